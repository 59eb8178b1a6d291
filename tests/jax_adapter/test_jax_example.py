"""The example over several meshes, and as a program: one run, whatever its devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learnable_corpus import write_learnable_corpus

pytest.importorskip("jax")
pytest.importorskip("optax")

import neutral_core as nc

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_jax.py"


@pytest.fixture
def example(devices: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    return pytest.importorskip("train_jax")


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_run_on_2_then_4_then_1_devices_has_the_samples_and_losses_of_one_uninterrupted_run(
    tmp_path: Path, example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the four devices, two share each row; the uninterrupted run has a mesh that none of the others has."""
    monkeypatch.setattr(example, "LAYERS", 1)  # half to compile, four times
    common = [str(write_learnable_corpus(tmp_path / "corpus")), "--batch-size", "12", "--seq-len", "16"]
    parts, whole = tmp_path / "parts.jsonl", tmp_path / "whole.jsonl"
    checkpoint = ["--checkpoint", str(tmp_path / "run.npz"), "--log-steps", str(parts)]
    example.main([*common, *checkpoint, "--devices", "2", "--steps", "7"])
    example.main([*common, *checkpoint, "--devices", "4", "--model", "2", "--steps", "13", "--resume"])
    example.main([*common, *checkpoint, "--devices", "1", "--steps", "20", "--resume"])
    example.main([*common, "--log-steps", str(whole), "--devices", "3", "--steps", "20"])
    found, expected = lines_of(parts), lines_of(whole)
    assert [line["step"] for line in found] == list(range(1, 21))
    assert [line["devices"] for line in found] == [2] * 7 + [4] * 6 + [1] * 7
    assert [sample for line in found for sample in line["samples"]] == list(range(20 * 12))
    assert [line["samples"] for line in expected] == [line["samples"] for line in found]
    assert expected[0]["loss"] - expected[-1]["loss"] > 0.5  # it learns: a run that lost something would differ
    losses = [line["loss"] for line in found]
    np.testing.assert_allclose(losses, [line["loss"] for line in expected], rtol=2e-5)


def test_weights_are_cut_over_the_model_axis_and_a_step_is_compiled_once(tmp_path: Path, example: Any) -> None:
    jax = example.jax
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    params = example.init(1, 50, 16)
    optimizer = example.optax.adam(example.warm_up)
    training = {"params": params, "optimizer": optimizer.init(params), "step": jax.numpy.zeros((), int)}
    training = example.place(training, mesh)
    rows = jax.device_put(np.ones((4, 16), np.int32), jax.sharding.NamedSharding(mesh, jax.P("data")))
    before = example.train_step._cache_size()
    for _ in range(3):
        training, _ = example.train_step(optimizer, training, {"inputs": rows, "targets": rows})
    assert example.train_step._cache_size() == before + 1
    mean = training["optimizer"][0].mu
    for tree in (training["params"], mean):
        held = {name: array.addressable_shards[0].data.shape for name, array in tree["blocks"][0].items()}
        assert held == {"qkv": (128, 3, 2, 32), "out": (2, 32, 128), "up": (128, 256), "down": (256, 128)}


def test_the_program_takes_virtual_devices_and_ends_with_the_baseline(tmp_path: Path) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=4) as writer:
        writer.add(np.tile([0, 1, 2, 3], 500))
    options = ["--seq-len", "16", "--steps", "3", "--batch-size", "9", "--log-steps", str(tmp_path / "log.jsonl")]
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "corpus"), *options],
        env=inherited | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].endswith("unigram baseline 1.3863")  # ln 4: four tokens, equally often
    assert [line["devices"] for line in lines_of(tmp_path / "log.jsonl")] == [3, 3, 3]
