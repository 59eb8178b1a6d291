"""The same seed and plan in torch and in JAX: the same tokens, over 10,000 rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neutral_core as nc

ROWS, BATCH, SEQ_LEN = 10_000, 50, 64


def plan() -> nc.Plan:
    """Two sources, about 2,800 and 900 windows an epoch: several epochs of each."""
    random = np.random.default_rng(8)  # ids on both sides of 2^15, where int16 and uint16 part
    large, small = (
        nc.memory_corpus([random.integers(0, 50_257, n) for n in random.integers(1, 400, count)], vocab_size=50_257)
        for count in (900, 300)
    )
    sources = [nc.Source(large, name="large", weight="0.6"), nc.Source(small, name="small", weight="0.4")]
    return nc.Plan(sources, seq_len=SEQ_LEN, seed=17)


def test_torch_and_jax_serve_the_same_10_000_rows_and_give_the_models_the_same_inputs_and_targets(
    devices: list[Any],
) -> None:
    """Torch at two ranks, JAX over a mesh with a model axis, each with a plan of its own; the expected rows are those of ``Plan.read``."""
    pytest.importorskip("torch")
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import jax_adapter
    import torch_adapter

    expected = plan().read(np.arange(ROWS))["tokens"]
    options: dict[str, Any] = {"batch_size": BATCH, "num_samples": ROWS}
    sharding = NamedSharding(Mesh(np.array(devices[:4]).reshape(2, 2), ("data", "model")), PartitionSpec("data"))
    with (
        torch_adapter.Loader(plan(), device="cpu", dp_rank=0, dp_world_size=2, **options) as upper,
        torch_adapter.Loader(plan(), device="cpu", dp_rank=1, dp_world_size=2, **options) as lower,
        jax_adapter.Loader(plan(), sharding=sharding, **options) as whole,
    ):
        for step, (first, second, batch) in enumerate(zip(upper, lower, whole, strict=True)):
            rows = expected[BATCH * step : BATCH * (step + 1)]
            in_torch = {key: np.concatenate([first[key].numpy(), second[key].numpy()]) for key in first}
            in_jax = jax_adapter.unpack(batch, seq_len=SEQ_LEN)
            assert np.array_equal(in_torch["tokens"], rows)
            assert np.array_equal(np.asarray(batch["tokens"]), rows)
            assert np.array_equal(in_jax["inputs"], in_torch["tokens"][:, :SEQ_LEN])
            assert np.array_equal(in_jax["targets"], in_torch["tokens"][:, 1:])
            assert np.array_equal(in_jax["source"], in_torch["source"])
            assert np.array_equal(batch["sample"], in_torch["sample"])
    assert step + 1 == ROWS // BATCH
