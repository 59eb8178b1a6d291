"""What the JAX loader has beside the contract (tests/test_contract.py): any mesh, global arrays, and memory that nothing writes to afterwards."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip

import neutral_core as nc  # noqa: E402 - after importorskip
from jax_adapter import Loader, packed, unpack  # noqa: E402 - after importorskip

DATA_AXES = (1, 2, 3, 4, 8)
PER_TOKEN = ("tokens", "segment_ids", "positions")


def over_rows(devices: list[Any], axis: int = 8) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices[:axis]), ("data",)), PartitionSpec("data"))


def check(batch: dict[str, Any], expected: nc.Batch, sharding: NamedSharding) -> None:
    """Each device's shard holds, bit for bit, the rows that the index map gives it."""
    assert set(batch) == set(expected)
    assert isinstance(batch["sample"], np.ndarray)
    assert batch["sample"].dtype == np.int64
    for key in set(batch) - {"sample"}:
        array, rows = batch[key], in_parts(expected[key], sharding) if key in PER_TOKEN else expected[key]
        assert isinstance(array, jax.Array)
        assert array.shape == rows.shape
        assert array.dtype == rows.dtype
        assert array.sharding.mesh == sharding.mesh
        assert array.sharding.spec == PartitionSpec(*sharding.spec[: rows.ndim])
        for shard in array.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), rows[shard.index])


def in_parts(rows: np.ndarray, sharding: NamedSharding) -> np.ndarray:
    """Whole rows as they are; under a sharding of tokens too, each part with the token behind it."""
    axes = sharding.spec[1] if len(sharding.spec) > 1 else None
    if axes is None:
        return rows
    num_parts = math.prod(sharding.mesh.shape[axis] for axis in ([axes] if isinstance(axes, str) else axes))
    length = (rows.shape[1] - 1) // num_parts
    return np.stack([rows[:, part * length : (part + 1) * length + 1] for part in range(num_parts)], axis=1)


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
        ((2, 4), ("data", "model")),
        ((1, 8), ("data", "model")),
        ((8, 1), ("data", "model")),
        ((2, 2, 2), (("data", "model"), "context")),
        ((2, 2, 2), ("data", ("model", "context"))),
    ],
)
@pytest.mark.parametrize("explicit", [False, True])
def test_any_named_sharding_is_served(
    devices: list[Any], shape: tuple[int, ...], spec: tuple[Any, ...], explicit: bool
) -> None:
    extra_tokens = 1 if len(spec) < 2 else 0
    plan, names = mixed_plan(documents=True, extra_tokens=extra_tokens), ("data", "model", "context")[: len(shape)]
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
@pytest.mark.parametrize("context", [1, 2])
def test_no_host_buffer_that_jax_may_alias_is_written_again(
    devices: list[Any], monkeypatch: pytest.MonkeyPatch, context: int, reused: bool
) -> None:
    """The CPU backend uses the packed memory as it lies, at 64-byte boundaries; with a loader that reuses its memory the check fails."""
    plan, pool, original = mixed_plan(seq_len=32), [], packed.aligned_zeros

    def memory(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        if not pool or not reused:
            pool.append(original(shape, dtype))
        return pool[-1]

    monkeypatch.setattr(packed, "aligned_zeros", memory)
    mesh = Mesh(np.array(devices).reshape(8 // context, context), ("data", "context"))
    spec = PartitionSpec("data", "context") if context > 1 else PartitionSpec("data")
    with Loader(plan, batch_size=8, sharding=NamedSharding(mesh, spec), threads=1) as loader:
        sent = [next(loader).packed for _ in range(200)]
    first, last = pool[0].ctypes.data, pool[0].ctypes.data + pool[0].nbytes
    pointers = [shard.data.unsafe_buffer_pointer() for shard in sent[0].addressable_shards]
    assert all(first <= pointer < last for pointer in pointers)
    found = np.concatenate([np.asarray(rows)[..., : 32 // context + 1] for rows in sent])
    expected = in_parts(plan.read(np.arange(1600))["tokens"], NamedSharding(mesh, spec))
    assert np.array_equal(found, expected) is not reused


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
            {"sharding": lambda devices: NamedSharding(over_rows(devices, 3).mesh, PartitionSpec(None, "data"))},
            ValueError,
            r"cuts rows of 16 targets into 3 parts, which do not divide them\.",
        ),
        (
            {
                "plan": mixed_plan(extra_tokens=1),
                "sharding": lambda devices: NamedSharding(over_rows(devices).mesh, PartitionSpec(None, "data")),
            },
            ValueError,
            r"the plan reads columns \(\(0, 18\),\), expected whole rows without extra_tokens",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    devices: list[Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    sharding: Callable[..., Any] | None = options.pop("sharding", over_rows)
    options = {"batch_size": 8, "sharding": sharding and sharding(devices)} | options
    plan = options.pop("plan", mixed_plan())
    with pytest.raises(error, match=message):
        Loader(plan, **options)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (1, 8)])
def test_rows_cut_over_a_context_axis_unpack_to_what_whole_rows_do(
    devices: list[Any], shape: tuple[int, int], documents: bool, explicit: bool
) -> None:
    """Each device holds its own inputs and targets, also those at an edge; nothing is sent between devices for it."""
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = Mesh(np.array(devices).reshape(shape), ("data", "context"), axis_types=(kind, kind))
    cut, rows_only = NamedSharding(mesh, PartitionSpec("data", "context")), NamedSharding(mesh, PartitionSpec("data"))
    plan, options = mixed_plan(documents=documents), {"batch_size": 8, "num_samples": 27, "last": "pad"}
    with Loader(plan, sharding=cut, **options) as parts, Loader(plan, sharding=rows_only, **options) as whole:
        for left, right in zip(parts, whole, strict=True):
            found, expected = unpack(left, seq_len=16), unpack(right, seq_len=16, sharding=cut)
            assert left["sample"].tolist() == right["sample"].tolist()
            assert set(found) == set(expected)
            for key, rows in found.items():
                assert np.array_equal(rows, expected[key])
                assert rows.dtype == expected[key].dtype
                assert rows.sharding.is_equivalent_to(cut if rows.ndim == 2 else rows_only, rows.ndim)


def samples_at(plan: nc.Plan, count: int) -> tuple[Any, Any, Any]:
    samples = np.arange(count)
    located = plan.locate(samples)
    return samples, located, plan.pieces(located)


def test_of_a_cut_row_a_process_reads_its_parts_and_no_more(
    devices: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As process 1 of two, of which each holds some parts of every row: what is asked of the shards is counted in tokens."""
    asked: list[int] = []
    original = nc.Plan.read_pieces

    def read(self: nc.Plan, samples: Any, located: Any, pieces: Any) -> nc.Batch:
        asked.append(int(pieces.length.sum()))
        return original(self, samples, located, pieces)

    monkeypatch.setattr(nc.Plan, "read_pieces", read)
    plan = mixed_plan()
    for held, tokens in (((0, 1, 2, 3), 17), ((2, 3), 9), ((0,), 5), ((0, 2), 10), ((1, 2, 3), 13)):
        mesh = Mesh(np.array(devices[:4]), ("context",))
        sharding = NamedSharding(mesh, PartitionSpec(None, "context"))
        with monkeypatch.context() as other:
            rows_and_columns = {0: (0,), 1: held}
            other.setattr("jax_adapter.rows.addressable_parts", lambda _, axis, found=rows_and_columns: found[axis])
            loader = Loader(plan, batch_size=8, sharding=sharding, threads=0, num_samples=8)
        asked.clear()
        batch = next(loader._reader)
        assert asked == [8 * tokens]
        assert batch["tokens"].shape == (8, tokens)
        columns, whole = loader._columns, original(plan, *samples_at(plan, 8))["tokens"]
        for part, start in zip(columns.parts, columns.starts, strict=True):
            assert np.array_equal(batch["tokens"][:, start : start + 5], whole[:, 4 * part : 4 * part + 5])


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_on_the_devices_are_depth_batches_and_the_one_in_use(devices: list[Any], depth: int) -> None:
    import gc

    def live() -> int:
        return sum(array.shape == (56, 64) for array in jax.live_arrays())

    gc.collect()
    with Loader(mixed_plan(seq_len=33), batch_size=56, sharding=over_rows(devices), depth=depth) as loader:
        most = 0
        for _ in range(20):
            batch = None
            batch = next(loader)
            assert batch.packed.shape == (56, 64)
            most = max(most, live())
        assert most == depth + 1
    del batch
    assert live() == 0


def test_a_batch_is_a_mapping_and_is_taken_apart_when_a_key_of_the_packed_array_is_asked_for(
    devices: list[Any],
) -> None:
    with Loader(mixed_plan(documents=True), batch_size=8, sharding=over_rows(devices)) as loader:
        batch, keys = next(loader), {"tokens", "segment_ids", "positions", "source", "sample"}
        assert set(batch) == keys
        assert len(batch) == 5
        assert batch["sample"].tolist() == list(range(8))
        assert batch.packed is not None
        assert batch.pop("sample").tolist() == list(range(8))
        assert np.asarray(batch["tokens"]).tolist() == mixed_plan().read(np.arange(8))["tokens"].tolist()
        assert batch.packed is None
        assert set(batch) == set(dict(batch)) == keys - {"sample"}
        batch["tokens"] = batch["tokens"] + 1
        del batch["source"]
        assert int(batch["tokens"][0, 0]) == int(mixed_plan().read([0])["tokens"][0, 0]) + 1
        assert unpack(batch, seq_len=16).keys() == {"inputs", "targets", "segment_ids", "positions"}
        with pytest.raises(KeyError):
            batch["loss_mask"]


def test_a_batch_given_to_jit_is_its_packed_array_and_compiles_once(devices: list[Any]) -> None:
    compiled = []

    def step(batch: Any) -> Any:
        compiled.append(set(batch))
        return unpack(batch, seq_len=16)["targets"].sum()

    jitted, plan = jax.jit(step, donate_argnums=0), mixed_plan(documents=True)
    with Loader(plan, batch_size=8, sharding=over_rows(devices)) as loader:
        for first in range(0, 80, 8):
            expected = plan.read(np.arange(first, first + 8))["tokens"][:, 1:17].astype(int).sum()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Some donated buffers were not usable")
                assert int(jitted(next(loader))) == expected
    assert compiled == [{"tokens", "segment_ids", "positions", "source"}]  # sample stayed on the host
