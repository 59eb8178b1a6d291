"""The example resumes at another number of ranks with the samples that were due."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import neutral_core as nc

ROOT = Path(__file__).parents[2]


def train(corpus: Path, ranks: int, *options: str) -> str:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    program = [str(ROOT / "examples" / "train_torch.py"), str(corpus), "--seq-len", "16", *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_example_resumes_alone_where_2_ranks_stopped_and_at_another_batch_size(tmp_path: Path) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=4) as writer:
        writer.add(np.tile([0, 1, 2, 3], 500))
    log, checkpoint = tmp_path / "log.jsonl", tmp_path / "run.pt"
    options = ["--log-samples", str(log), "--checkpoint", str(checkpoint)]
    train(tmp_path / "corpus", 2, "--steps", "5", "--batch-size", "6", *options)
    output = train(tmp_path / "corpus", 1, "--steps", "9", "--batch-size", "9", "--resume", *options)
    lines = sorted(
        (json.loads(line) for line in log.read_text().splitlines()), key=lambda line: (line["step"], line["rank"])
    )
    assert [(line["step"], line["rank"]) for line in lines] == [
        *((step, rank) for step in range(1, 6) for rank in (0, 1)),
        *((step, 0) for step in range(6, 10)),
    ]
    assert [sample for line in lines for sample in line["samples"]] == list(range(5 * 6 + 4 * 9))
    assert output.splitlines()[-1].endswith("unigram baseline 1.3863")  # ln 4: four tokens, equally often
