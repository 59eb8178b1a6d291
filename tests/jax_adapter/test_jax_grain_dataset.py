"""GrainDataset and GrainSampler in grain's own pipelines: the core's rows, and a state that is the core's cursor."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip

import jax_adapter  # noqa: E402 - after importorskip
import neutral_core as nc  # noqa: E402 - after importorskip
from jax_adapter import GrainSampler, GrainSource, addressable_rows  # noqa: E402 - after importorskip

WORLD_SIZES = (1, 2, 3, 4)


@pytest.fixture
def grain() -> Any:
    grain = pytest.importorskip("grain")
    flags = pytest.importorskip("absl.flags")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # grain's workers read absl flags, which only absl's app.run parses
    return grain


def dataset(plan: nc.Plan, **options: Any) -> Any:
    return jax_adapter.GrainDataset(plan, **({"batch_size": 12} | options))


def samples(batches: Any) -> list[int]:
    return [sample for batch in batches for sample in batch["sample"].tolist()]


def take(batches: Any, count: int) -> list[Any]:
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("last", ["drop", "pad"])
def test_the_union_over_ranks_is_the_cores_batches(grain: Any, world_size: int, last: str) -> None:
    plan = mixed_plan(documents=True, skip=[(30, 37)])
    core = list(nc.Loader(plan, batch_size=12, num_samples=100, last=last, threads=0))
    ranks = [
        list(dataset(plan, num_samples=100, last=last, dp_rank=rank, dp_world_size=world_size))
        for rank in range(world_size)
    ]
    assert {len(rank) for rank in ranks} == {len(core)} == {7 if last == "drop" else 8}
    for number, expected in enumerate(core):
        for key in expected:
            assert np.array_equal(np.concatenate([rank[number][key] for rank in ranks]), expected[key])


@pytest.mark.parametrize("before", WORLD_SIZES)
@pytest.mark.parametrize("after", WORLD_SIZES)
@pytest.mark.parametrize("batch_size", [12, 24])
def test_a_state_of_some_processes_resumes_at_others_and_at_another_batch_size(
    grain: Any, before: int, after: int, batch_size: int
) -> None:
    plan = mixed_plan()
    first = [iter(dataset(plan, dp_rank=rank, dp_world_size=before)) for rank in range(before)]
    head = [samples(take(rank, 5)) for rank in first]
    states = [json.dumps(rank.get_state()) for rank in first]
    assert len(set(states)) == 1
    second = [iter(dataset(plan, batch_size=batch_size, dp_rank=rank, dp_world_size=after)) for rank in range(after)]
    for rank in second:
        rank.set_state(json.loads(states[0]))
    tail = [samples(take(rank, 3)) for rank in second]
    assert sorted(sample for served in head + tail for sample in served) == list(range(5 * 12 + 3 * batch_size))


def test_the_state_is_the_cores_cursor_and_goes_into_every_loader(grain: Any, devices: list[Any]) -> None:
    plan = mixed_plan()
    batches = iter(dataset(plan))
    take(batches, 4)
    assert batches.get_state() == plan.cursor(48)
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    with jax_adapter.Loader(plan, batch_size=8, sharding=sharding) as loader:
        loader.set_state(batches.get_state())
        assert next(loader)["sample"].tolist() == list(range(48, 56))
        batches.set_state(loader.get_state())
    assert next(batches)["sample"].tolist() == list(range(56, 68))


def test_another_plans_state_is_refused_by_name(grain: Any) -> None:
    with pytest.raises(nc.StateError, match="seed differs"):
        iter(dataset(mixed_plan(seed=1))).set_state(mixed_plan(seed=2).cursor(12))


def test_it_composes_with_map_and_batch_and_keeps_the_cursor(grain: Any) -> None:
    plan = mixed_plan()

    def pipeline(batch_size: int) -> Any:
        rows = dataset(plan, batch_size=batch_size).map(lambda batch: batch["sample"])
        return iter(rows.batch(3, batch_fn=np.concatenate))

    first = pipeline(4)
    assert np.concatenate(take(first, 5)).tolist() == list(range(60))
    assert first.get_state() == plan.cursor(60)
    second = pipeline(10)
    second.set_state(first.get_state())
    assert np.concatenate(take(second, 2)).tolist() == list(range(60, 120))


@pytest.mark.parametrize("num_threads", [0, 1])
def test_packing_of_grain_works_over_it_and_resumes_from_the_cursor(grain: Any, num_threads: int) -> None:
    """grain's own packing of rows that grain made of ours: each row its own example; restored, it packs again from the cursor."""
    plan = mixed_plan()
    transformed = dataset(plan, batch_size=2).map(lambda batch: {"tokens": batch["tokens"].ravel()[:20]})
    packed = grain.experimental.FirstFitPackIterDataset(transformed, length_struct={"tokens": 48}, num_packing_bins=2)
    if num_threads:
        packed = grain.experimental.ThreadPrefetchIterDataset(packed, prefetch_buffer_size=2)
    whole = take(iter(packed), 6)
    first = iter(packed)
    take(first, 3)
    second = iter(packed)
    second.set_state(first.get_state())
    for found, expected in zip(take(second, 3), whole[3:], strict=True):
        for found_part, expected_part in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert np.array_equal(found_part, expected_part)
    assert set(plan.read([0, 1])["tokens"].ravel()[:20]) <= set(
        whole[0]["tokens"].ravel() if isinstance(whole[0], dict) else whole[0][0]["tokens"].ravel()
    )


def test_threads_ahead_and_device_put_report_what_the_consumer_received(grain: Any, devices: list[Any]) -> None:
    """Without ``sample``, which device_put would wrap; on a mesh, the rows that this process holds are its share."""
    plan = mixed_plan()
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    rows = addressable_rows(sharding, 16)
    assert rows.tolist() == list(range(16))
    without = dataset(plan, batch_size=16, rows=rows).map(lambda batch: {"tokens": batch["tokens"]})
    batches = iter(grain.experimental.device_put(without, sharding, cpu_buffer_size=3, device_buffer_size=2))
    found = take(batches, 5)
    assert all(batch["tokens"].sharding == sharding for batch in found)
    expected = plan.read(np.arange(80))["tokens"]
    assert np.array_equal(np.concatenate([np.asarray(batch["tokens"]) for batch in found]), expected)
    state = batches.get_state()
    assert state["sample"] == 80
    again = iter(grain.experimental.device_put(without, sharding))
    again.set_state(state)
    assert np.array_equal(np.asarray(next(again)["tokens"]), plan.read(np.arange(80, 96))["tokens"])
    batches.close()
    again.close()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    ("num_samples", "last"), [(96, "drop"), (100, "drop"), (100, "pad"), (7, "drop"), (7, "pad"), (0, "drop")]
)
def test_workers_copies_serve_every_batch_once_and_resume(
    grain: Any, workers: int, num_samples: int, last: str
) -> None:
    """What mp_prefetch makes of the dataset in its workers, without processes: copies, each set to its slice."""
    plan = mixed_plan(documents=True, skip=[(30, 37)])
    whole = dataset(plan, num_samples=num_samples, last=last, dp_rank=1, dp_world_size=2)
    expected = list(whole)

    def worker(number: int) -> Any:
        part = copy.deepcopy(pickle.loads(pickle.dumps(whole)))
        part.set_slice(slice(number, None, workers))
        return iter(part)

    for number in range(workers):
        found = list(worker(number))
        assert len(found) == len(expected[number::workers])
        for batch, wanted in zip(found, expected[number::workers], strict=True):
            assert set(batch) == set(wanted)
            assert all(np.array_equal(batch[key], wanted[key]) for key in batch)
        for stop in range(len(found) + 1):
            first, second = worker(number), worker(number)
            take(first, stop)
            second.set_state(first.get_state())
            assert samples(second) == samples(found[stop:])


@pytest.mark.parametrize("resumed", [False, pytest.param(True, marks=pytest.mark.slow)])  # seconds of imports a time
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # grain's workers: fork/spawn notices of Python and of protobuf
def test_worker_processes_change_neither_batches_nor_their_order_and_resume(grain: Any, resumed: bool) -> None:
    whole = dataset(mixed_plan(), num_samples=120)
    batches = iter(whole.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)))
    head = samples(take(batches, 5))
    if resumed:
        state = json.loads(json.dumps(batches.get_state()))
        batches.close()
        batches = iter(whole.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)))
        batches.set_state(state)
    assert head + samples(batches) == list(range(120))
    batches.close()


def test_slices_that_would_change_the_order_are_refused(grain: Any) -> None:
    with pytest.raises(ValueError, match="sequential_slice is True"):
        dataset(mixed_plan()).set_slice(slice(0, None, 2), True)
    with pytest.raises(ValueError, match="2 workers with a schedule of batch sizes"):
        dataset(mixed_plan(), batch_size=[(0, 8), (80, 16)]).set_slice(slice(0, None, 2))
    sizes = [len(batch["sample"]) for batch in dataset(mixed_plan(), batch_size=[(0, 8), (16, 16)], num_samples=48)]
    assert sizes == [8, 8, 16, 16]


def test_wrong_arguments_are_refused_when_the_dataset_is_made(grain: Any) -> None:
    with pytest.raises(ValueError, match="nearest that they do: 12 or 14"):
        dataset(mixed_plan(), batch_size=13, dp_world_size=2)


def test_a_closed_iterator_says_so(grain: Any) -> None:
    batches = iter(dataset(mixed_plan()))
    batches.close()
    with pytest.raises(ValueError, match="the iterator is closed"):
        next(batches)


def test_reprs_are_fingerprints_and_name_no_rank(grain: Any) -> None:
    def text(seed: int = 11, **options: Any) -> str:
        return repr(dataset(mixed_plan(seed=seed), **options))

    assert text() == text(dp_rank=1, dp_world_size=3) == str(dataset(mixed_plan()))
    assert len({text(), text(seed=12), text(num_samples=97), text(batch_size=6), text(last="pad")}) == 5
    assert mixed_plan().fingerprint in text()
    source = GrainSource(mixed_plan(), num_samples=96)
    assert repr(source) in repr(GrainSampler(source))
    assert repr(GrainSampler(source)) != repr(GrainSampler(source, state=mixed_plan().cursor(4)))


# The sampler.


def loader_of(grain: Any, source: GrainSource, rank: int, world_size: int, state: Any = None) -> Any:
    options = grain.sharding.ShardOptions(shard_index=rank, shard_count=world_size)
    return grain.DataLoader(
        data_source=source,
        sampler=GrainSampler(source, state=state),
        shard_options=options,
        worker_count=0,
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rows_through_dataloader_are_sharded_once(grain: Any, world_size: int) -> None:
    """The sampler gets global indices and must not shard again: the union is the whole, each row once, and row r goes to process r mod n."""
    source = GrainSource(mixed_plan(), num_samples=96)
    ranks = [[int(row["sample"]) for row in loader_of(grain, source, rank, world_size)] for rank in range(world_size)]
    assert ranks == [list(range(rank, 96, world_size)) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_whole_batches_through_dataloader_are_the_sources_share(grain: Any, world_size: int) -> None:
    plan, served = mixed_plan(), []
    for rank in range(world_size):
        source = GrainSource(plan, num_samples=96, batch_size=12, dp_rank=rank, dp_world_size=world_size)
        served += samples(loader_of(grain, source, 0, 1))
    assert sorted(served) == list(range(96))


def test_dataloader_drops_what_the_processes_do_not_divide(grain: Any) -> None:
    """grain's own rule, so num_samples is to be divisible; GrainDataset and whole batches as elements have no such remainder."""
    source = GrainSource(mixed_plan(), num_samples=11)
    ranks = [[int(row["sample"]) for row in loader_of(grain, source, rank, 2)] for rank in range(2)]
    assert ranks == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_dataloader_asks_for_the_length_and_probes_nothing(grain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without __len__ grain makes 63 probing calls; and an endless plan's sampler costs nothing to make."""
    calls: list[int] = []
    original = GrainSampler.__getitem__
    monkeypatch.setattr(GrainSampler, "__getitem__", lambda self, i: calls.append(i) or original(self, i))
    source = GrainSource(mixed_plan(), num_samples=2**62)
    loader = loader_of(grain, source, 3, 4)
    assert calls == []
    assert int(next(iter(loader))["sample"]) == 3
    assert calls[0] == 3


def test_a_sampler_begins_where_a_cursor_stands_and_dataloader_resumes_it(grain: Any) -> None:
    plan = mixed_plan(skip=[(30, 37)])
    source = GrainSource(plan, num_samples=120, batch_size=12)
    sampler = GrainSampler(source, state=plan.cursor(43))  # 36 samples were served, 7 skipped
    assert (sampler.first, len(sampler)) == (3, len(source) - 3)
    rest = iter(loader_of(grain, source, 0, 1, state=source.cursor(3)))
    assert next(rest)["sample"].tolist() == list(range(43, 55))
    again = iter(loader_of(grain, source, 0, 1, state=source.cursor(3)))
    again.set_state(rest.get_state())
    assert next(again)["sample"].tolist() == list(range(55, 67))
    with pytest.raises(ValueError, match="sampler"):
        iter(loader_of(grain, source, 0, 1)).set_state(rest.get_state())
    assert len(GrainSampler(source, state=plan.cursor(43 + 1200))) == 0


def test_a_sampler_refuses_what_it_cannot_serve() -> None:
    source = GrainSource(mixed_plan(), num_samples=120, batch_size=12)
    with pytest.raises(ValueError, match="4 samples inside element 3 of 12"):
        GrainSampler(source, state=mixed_plan().cursor(40))
    with pytest.raises(nc.StateError, match="seed differs"):
        GrainSampler(source, state=mixed_plan(seed=1).cursor(36))
    for i in (-1, 10):
        with pytest.raises(IndexError, match="outside of the sampler's 10 elements"):
            GrainSampler(source)[i]


def test_record_metadata_is_grains_and_works_with_a_batch_operation(grain: Any) -> None:
    source = GrainSource(mixed_plan(), num_samples=24)
    assert GrainSampler(source)[np.int64(5)] == grain.RecordMetadata(index=5, record_key=5)
    loader = grain.DataLoader(
        data_source=source,
        sampler=GrainSampler(source),
        shard_options=grain.sharding.NoSharding(),
        operations=[grain.transforms.Batch(batch_size=6, drop_remainder=True)],
        worker_count=0,
    )
    assert samples(loader) == list(range(24))


def test_a_sources_cursor_is_the_cores(grain: Any) -> None:
    source = GrainSource(mixed_plan(skip=[(5, 9)]), num_samples=100, batch_size=12)
    assert [source.cursor(k)["sample"] for k in (0, 1, len(source))] == [0, 16, 100]
    with pytest.raises(IndexError, match="element 9 is outside of 0 … 8"):
        source.cursor(9)


# What must never leave a source.


@pytest.mark.parametrize("batch_size", [None, 12])
def test_no_none_and_no_stop_iteration_leaves_a_source(monkeypatch: pytest.MonkeyPatch, batch_size: int | None) -> None:
    """grain leaves out an element that is None, and takes a StopIteration for the end of the data, both without a word."""
    source = GrainSource(mixed_plan(documents=True, skip=[(3, 5)]), num_samples=100, batch_size=batch_size)
    assert all(
        isinstance(source[k], dict) and all(rows is not None for rows in source[k].values()) for k in range(len(source))
    )

    def read(*arguments: Any) -> Any:
        raise StopIteration

    monkeypatch.setattr(nc.Plan, "read_pieces", read)
    with pytest.raises(RuntimeError, match="the data do not end here"):
        source[0]


def test_rows_of_a_mesh_are_a_sources_share(devices: list[Any]) -> None:
    mesh = Mesh(np.array(devices), ("data",))
    rows = addressable_rows(NamedSharding(mesh, PartitionSpec("data")), 16)
    source = GrainSource(mixed_plan(), num_samples=100, batch_size=16, rows=rows[::2])
    assert source[2]["sample"].tolist() == list(range(32, 48, 2))
    with pytest.raises(ValueError, match="rows are given without batch_size"):
        GrainSource(mixed_plan(), num_samples=100, rows=rows)
    with pytest.raises(ValueError, match="nearest that they do: 16 or 24"):
        addressable_rows(NamedSharding(mesh, PartitionSpec("data")), 20)
    with pytest.raises(TypeError, match="sharding is a NoneType"):
        addressable_rows(None, 16)  # type: ignore[arg-type]
