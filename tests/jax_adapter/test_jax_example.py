"""The example resumes at another number of devices with the samples that were due."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jax")

import neutral_core as nc

ROOT = Path(__file__).parents[2]


def train(corpus: Path, *options: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / "train_jax.py"), str(corpus), "--seq-len", "16", *options]
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=inherited | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_example_resumes_at_another_number_of_devices_and_batch_size(tmp_path: Path) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=4) as writer:
        writer.add(np.tile([0, 1, 2, 3], 500))
    log, checkpoint = tmp_path / "log.jsonl", tmp_path / "run.npz"
    options = ["--log-samples", str(log), "--checkpoint", str(checkpoint)]
    train(tmp_path / "corpus", "--steps", "5", "--devices", "2", "--batch-size", "6", *options)
    output = train(tmp_path / "corpus", "--steps", "9", "--devices", "3", "--batch-size", "9", "--resume", *options)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 10))
    assert [line["devices"] for line in lines] == [2] * 5 + [3] * 4
    assert [sample for line in lines for sample in line["samples"]] == list(range(5 * 6 + 4 * 9))
    assert output.splitlines()[-1].endswith("unigram baseline 1.3863")  # ln 4: four tokens, equally often
