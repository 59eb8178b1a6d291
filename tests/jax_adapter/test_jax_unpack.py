"""Inputs and targets, on the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip

from jax_adapter import Loader, unpack  # noqa: E402 - after importorskip


@pytest.mark.parametrize(("axis", "spec"), [(1, ("data",)), (3, ("data",)), (8, ("data",)), (8, ())])
@pytest.mark.parametrize("explicit", [False, True])
def test_inputs_and_targets_are_wide_and_keep_the_sharding(
    devices: list[Any], axis: int, spec: tuple[str, ...], explicit: bool
) -> None:
    plan = mixed_plan(documents=True, extra_tokens=2)
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = Mesh(np.array(devices[:axis]), ("data",), axis_types=(kind,))
    with Loader(
        plan, batch_size=24, sharding=NamedSharding(mesh, PartitionSpec(*spec)), last="pad", num_samples=30
    ) as loader:
        for first, real in ((0, 24), (24, 6)):
            rows = unpack(next(loader), seq_len=16)
            expected = plan.read(np.arange(first, first + real))
            assert sorted(rows) == ["inputs", "loss_mask", "positions", "segment_ids", "source", "targets"]
            assert {str(rows[key].dtype) for key in rows} == {"int32", "bool"}
            on_host = {key: np.asarray(array) for key, array in rows.items()}
            assert np.array_equal(on_host["inputs"][:real], expected["tokens"][:, :16])
            assert np.array_equal(on_host["targets"][:real], expected["tokens"][:, 1:17])
            assert np.array_equal(on_host["positions"][:real], expected["positions"][:, :16])
            assert np.array_equal(on_host["segment_ids"][:real], expected["segment_ids"][:, :16])
            assert np.array_equal(on_host["loss_mask"].sum(axis=1), [16] * real + [0] * (24 - real))
            for key in rows:
                held = NamedSharding(mesh, PartitionSpec(*spec))
                assert rows[key].sharding.is_equivalent_to(held, rows[key].ndim)


def test_a_run_compiles_unpack_once(devices: list[Any]) -> None:
    plan = mixed_plan(documents=True, seq_len=19)
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    compilations = []

    def listen(event: str, seconds: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compilations.append(seconds)

    with Loader(plan, batch_size=8, sharding=sharding, last="pad", num_samples=8 * 40 + 3) as loader:
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            steps = sum(1 for batch in loader if unpack(batch, seq_len=19))
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
    assert steps == 41
    assert len(compilations) == 1


def test_unpack_may_be_called_inside_a_jitted_step(devices: list[Any]) -> None:
    plan = mixed_plan()
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    with Loader(plan, batch_size=8, sharding=sharding) as loader:
        total = jax.jit(lambda tokens: unpack({"tokens": tokens}, seq_len=16)["targets"].sum())(next(loader)["tokens"])
    assert int(total) == int(plan.read(np.arange(8))["tokens"][:, 1:17].astype(int).sum())
