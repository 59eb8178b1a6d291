"""The example under torch's own launcher, and over several numbers of ranks: one run, whatever its ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from gloo_ranks import on_ranks
from learnable_corpus import write_learnable_corpus

import neutral_core as nc

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_torch.py"


def run_example(rank: int, given: list[str]) -> None:
    """What one rank does, in a process that has joined the others already."""
    specification = importlib.util.spec_from_file_location("train_torch", EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    torch.set_num_threads(1)
    example.run(example.arguments(given))


def lines_of(log: Path) -> list[dict[str, Any]]:
    return sorted(map(json.loads, log.read_text().splitlines()), key=lambda line: (line["step"], line["rank"]))


def test_a_run_of_2_then_4_then_3_ranks_has_the_samples_and_losses_of_one_uninterrupted_run(tmp_path: Path) -> None:
    corpus, steps = write_learnable_corpus(tmp_path / "corpus"), {2: 7, 4: 13, 3: 20}
    common = [str(corpus), "--device", "cpu", "--batch-size", "12", "--seq-len", "16"]

    def train(name: str, ranks: int, *options: str) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir()
        log = tmp_path / name / "log.jsonl"
        on_ranks(tmp_path / name, ranks, run_example, [*common, "--log-steps", str(log), *options])
        lines = lines_of(log)
        assert {line["rank"] for line in lines} == set(range(ranks))
        return lines

    parts = []
    for ranks, until in steps.items():
        resume = ["--resume"] if parts else []
        checkpoint = ["--checkpoint", str(tmp_path / "run.pt"), *resume]
        parts += train(f"{ranks} ranks", ranks, "--steps", str(until), *checkpoint)
    whole = train("uninterrupted", 1, "--steps", "20")

    assert [sample for line in parts for sample in line["samples"]] == list(range(20 * 12))
    assert [sample for line in whole for sample in line["samples"]] == list(range(20 * 12))
    losses = {line["step"]: line["loss"] for line in parts}
    assert all(line["loss"] == losses[line["step"]] for line in parts), "the ranks log one loss"
    expected = np.array([line["loss"] for line in whole])
    assert expected[0] - expected[-1] > 0.5  # it learns, so that a run that lost something would be seen to differ
    np.testing.assert_allclose([losses[step] for step in range(1, 21)], expected, rtol=2e-5)


def test_torchrun_starts_it_and_it_resumes_alone_at_another_batch_size(tmp_path: Path) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=4) as writer:
        writer.add(np.tile([0, 1, 2, 3], 500))
    log, checkpoint = tmp_path / "log.jsonl", tmp_path / "run.pt"
    common = [str(tmp_path / "corpus"), "--device", "cpu", "--seq-len", "16", "--checkpoint", str(checkpoint)]
    options = [*common, "--log-steps", str(log)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLE), *options, "--steps", "5", "--batch-size", "6"],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].endswith("unigram baseline 1.3863")  # ln 4: four tokens, equally often
    (tmp_path / "alone").mkdir()
    on_ranks(tmp_path / "alone", 1, run_example, [*options, "--steps", "9", "--batch-size", "9", "--resume"])
    lines = lines_of(log)
    assert [(line["step"], line["rank"]) for line in lines] == [
        *((step, rank) for step in range(1, 6) for rank in (0, 1)),
        *((step, 0) for step in range(6, 10)),
    ]
    assert [sample for line in lines for sample in line["samples"]] == list(range(5 * 6 + 4 * 9))
