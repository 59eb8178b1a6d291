"""What the JAX loader has beside the contract (tests/test_contract.py): any mesh, global arrays, and memory that nothing writes to afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip

import neutral_core as nc  # noqa: E402 - after importorskip
from jax_adapter import Loader  # noqa: E402 - after importorskip

DATA_AXES = (1, 2, 3, 4, 8)


def over_rows(devices: list[Any], axis: int = 8) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices[:axis]), ("data",)), PartitionSpec("data"))


def check(batch: dict[str, Any], expected: nc.Batch, sharding: NamedSharding) -> None:
    """Each device's shard holds, bit for bit, the rows that the index map gives it."""
    assert set(batch) == set(expected)
    assert isinstance(batch["sample"], np.ndarray)
    assert batch["sample"].dtype == np.int64
    for key in set(batch) - {"sample"}:
        array, rows = batch[key], expected[key]
        assert isinstance(array, jax.Array)
        assert array.shape == rows.shape
        assert array.dtype == rows.dtype
        assert array.sharding.mesh == sharding.mesh
        assert array.sharding.spec == PartitionSpec(*sharding.spec[: rows.ndim])
        for shard in array.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), rows[shard.index])


@pytest.mark.parametrize("axis", DATA_AXES)
@pytest.mark.parametrize("depth", [0, 2])
def test_global_arrays_are_the_cores_rows(devices: list[Any], axis: int, depth: int) -> None:
    plan, sharding = mixed_plan(documents=True, extra_tokens=1), over_rows(devices, axis)
    with Loader(plan, batch_size=24, sharding=sharding, depth=depth) as loader:
        for step in range(30):
            expected = plan.read(np.arange(24 * step, 24 * step + 24))
            batch = next(loader)
            check(batch, expected, sharding)
            assert batch["sample"].tolist() == list(range(24 * step, 24 * step + 24))


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((4, 2), ("data",)),
        ((4, 2), ("model",)),
        ((4, 2), (("data", "model"),)),
        ((4, 2), (("model", "data"),)),
        ((4, 2), ()),
        ((4, 2), (None, "model")),
        ((4, 2), ("data", "model")),
        ((2, 2, 2), (("data", "model"), "context")),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_any_named_sharding_is_served(
    devices: list[Any], shape: tuple[int, ...], spec: tuple[Any, ...], explicit: bool
) -> None:
    plan, names = mixed_plan(documents=True, extra_tokens=1), ("data", "model", "context")[: len(shape)]
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = Mesh(np.array(devices).reshape(shape), names, axis_types=(kind,) * len(shape))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    with Loader(plan, batch_size=16, sharding=sharding) as loader:
        for step in range(3):
            check(next(loader), plan.read(np.arange(16 * step, 16 * step + 16)), sharding)


def test_devices_in_any_order_hold_the_rows_of_their_place(devices: list[Any]) -> None:
    plan, sharding = mixed_plan(), over_rows([devices[i] for i in (5, 2, 7, 0, 3, 6, 1, 4)])
    with Loader(plan, batch_size=8, sharding=sharding) as loader:
        shards = {shard.device: np.asarray(shard.data) for shard in next(loader)["tokens"].addressable_shards}
    assert np.array_equal(shards[devices[7]][0], plan.read([2])["tokens"][0])


def test_each_row_is_read_once_however_many_devices_hold_it(
    devices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, read = mixed_plan(), []
    original = nc.Plan.read_pieces
    monkeypatch.setattr(
        nc.Plan, "read_pieces", lambda self, samples, *rest: read.extend(samples) or original(self, samples, *rest)
    )
    sharding = NamedSharding(Mesh(np.array(devices), ("model",)), PartitionSpec())
    with Loader(plan, batch_size=4, sharding=sharding, threads=0, num_samples=40) as loader:
        assert len(list(loader)) == 10
    assert read == list(range(40))


def test_length_and_state_count_what_the_caller_received_not_what_is_ahead(devices: list[Any]) -> None:
    with Loader(mixed_plan(), batch_size=8, sharding=over_rows(devices), num_samples=83, depth=5) as loader:
        for received in range(10):
            assert loader.get_state()["sample"] == 8 * received
            assert len(loader) == 10 - received
            next(loader)
        assert next(loader, None) is None


@pytest.mark.parametrize("depth", [0, 3])
def test_a_failed_transfer_skips_nothing(devices: list[Any], monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    with Loader(mixed_plan(), batch_size=8, sharding=over_rows(devices), depth=depth) as loader:
        received = [next(loader)["sample"][0].item()]
        with monkeypatch.context() as broken:
            broken.setattr(jax, "make_array_from_callback", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
            received += [next(loader)["sample"][0].item() for _ in range(depth)]  # they were under way
            for _ in range(4):
                with pytest.raises(RuntimeError, match="no memory"):
                    next(loader)
                assert loader.get_state()["sample"] == 8 * (1 + depth)
        received += [next(loader)["sample"][0].item() for _ in range(5)]
    assert received == list(range(0, 8 * (6 + depth), 8))


@pytest.mark.parametrize("reused", [False, True])
def test_no_host_buffer_that_jax_may_alias_is_written_again(
    devices: list[Any], monkeypatch: pytest.MonkeyPatch, reused: bool
) -> None:
    """The core's chunks are put at 64-byte boundaries, where the CPU backend aliases them; with a reader that reuses its memory the check fails."""
    plan, pool, original = mixed_plan(seq_len=31), [], nc.Plan.read_pieces  # rows of 64 bytes

    def read(self: nc.Plan, *arguments: Any) -> nc.Batch:
        batch = original(self, *arguments)
        if not pool or not reused:
            pool.append(aligned(batch["tokens"].shape, batch["tokens"].dtype))
        pool[-1][: len(batch["tokens"])] = batch["tokens"]
        return batch | {"tokens": pool[-1][: len(batch["tokens"])]}

    monkeypatch.setattr(nc.Plan, "read_pieces", read)
    with Loader(plan, batch_size=8, sharding=over_rows(devices), threads=1) as loader:
        tokens = [next(loader)["tokens"] for _ in range(200)]
    assert any(pool[0].ctypes.data == shard.data.unsafe_buffer_pointer() for shard in tokens[0].addressable_shards)
    monkeypatch.setattr(nc.Plan, "read_pieces", original)
    unchanged = np.array_equal(
        np.concatenate([np.asarray(rows) for rows in tokens]), plan.read(np.arange(1600))["tokens"]
    )
    assert unchanged is not reused


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def test_a_chunk_of_the_core_is_never_memory_of_a_map_or_of_an_earlier_chunk(
    tmp_path: Path, devices: list[Any]
) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=60000) as writer:
        writer.add(np.arange(50000))
    corpus = nc.open_corpus(tmp_path / "corpus")
    plan = nc.Plan(nc.Source(corpus), seq_len=31, shuffle="none")
    with Loader(plan, batch_size=8, sharding=over_rows(devices), num_samples=1600, depth=0) as loader:
        kept = [(batch["tokens"], np.array(batch["tokens"])) for batch in loader]
    stored = corpus.tokens(0, corpus.num_tokens)
    first, last = stored.ctypes.data, stored.ctypes.data + stored.nbytes
    for array, copy in kept:
        assert np.array_equal(np.asarray(array), copy)
        pointers = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
        assert not any(first <= pointer < last for pointer in pointers)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"batch_size": 20},
            ValueError,
            "8 parts of the sharding's rows do not divide: the nearest that they do: 16 or 24",
        ),
        ({"batch_size": 5}, ValueError, "the nearest that they do: 8"),
        ({"depth": -1}, ValueError, "depth is -1"),
        ({"sharding": None}, TypeError, "sharding is a NoneType"),
        (
            {"sharding": lambda devices: NamedSharding(over_rows(devices).mesh, PartitionSpec(None, "data"))},
            ValueError,
            "cuts rows of 17 into 8 parts",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    devices: list[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    sharding: Callable[..., Any] | None = options.pop("sharding", over_rows)
    options = {"batch_size": 8, "sharding": sharding and sharding(devices)} | options
    with pytest.raises(error, match=message):
        Loader(mixed_plan(), **options)
