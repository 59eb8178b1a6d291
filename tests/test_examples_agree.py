"""The two training examples are one model on the same rows: from the same weights, by plain SGD, they have the same losses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from learnable_corpus import write_learnable_corpus

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS, SEQ_LEN, VOCAB_SIZE, WIDTH, HEADS = 100, 16, 50, 128, 4


def write_weights(path: Path) -> Path:
    """Write first weights as the examples' --initial takes them: matrices [in, out], heads apart."""
    random = np.random.default_rng(1)
    heads = (HEADS, WIDTH // HEADS)
    shapes = {"embed": (VOCAB_SIZE, WIDTH), "place": (SEQ_LEN, WIDTH)}
    for block in ("blocks.0", "blocks.1"):
        shapes |= {f"{block}.qkv": (WIDTH, 3, *heads), f"{block}.out": (*heads, WIDTH)}
        shapes |= {f"{block}.up": (WIDTH, 4 * WIDTH), f"{block}.down": (4 * WIDTH, WIDTH)}
    scales = {name: 0.05 if name in ("embed", "place") else WIDTH**-0.5 for name in shapes}
    arrays: dict[str, Any] = {name: random.normal(0, scales[name], shape) for name, shape in shapes.items()}
    np.savez(path, **{name: array.astype(np.float32) for name, array in arrays.items()})
    return path


def test_torch_and_jax_have_the_same_100_losses_from_the_same_weights_by_plain_sgd_at_one_tenth(
    tmp_path: Path, devices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 1e-3 nats, absolute, at each step, in float32; JAX over a mesh of two by two."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("optax")
    monkeypatch.syspath_prepend(EXAMPLES)
    import train_jax
    import train_torch

    corpus, weights = write_learnable_corpus(tmp_path / "corpus"), write_weights(tmp_path / "weights.npz")
    common = [str(corpus), "--initial", str(weights), "--sgd", "0.1", "--steps", str(STEPS), "--batch-size", "8"]
    common += ["--seq-len", str(SEQ_LEN), "--log-steps"]
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # on a busy machine, two threads of so small a model mostly wait for each other: 20 s instead of 1
    try:
        train_torch.run(train_torch.arguments([*common, str(tmp_path / "torch.jsonl"), "--device", "cpu"]))
    finally:
        torch.set_num_threads(threads)
    train_jax.main([*common, str(tmp_path / "jax.jsonl"), "--devices", "4", "--model", "2"])
    in_torch, in_jax = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("torch", "jax")
    )
    for key in ("step", "samples"):
        assert [line[key] for line in in_torch] == [line[key] for line in in_jax]
    losses = np.array([[line["loss"] for line in lines] for lines in (in_torch, in_jax)])
    assert losses.shape == (2, STEPS)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-3)
    assert losses[0, 0] - losses[0, -1] > 1  # they learned, so that agreement says something
