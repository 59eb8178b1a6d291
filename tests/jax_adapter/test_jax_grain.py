"""grain's own pipelines over GrainSource give the core's rows, and resume through their own state."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from jax_plans import mixed_plan

import neutral_core as nc
from jax_adapter import GrainSource


@pytest.fixture
def grain() -> Any:
    grain = pytest.importorskip("grain")
    flags = pytest.importorskip("absl.flags")
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # grain's workers read absl flags, which only absl's app.run parses
    return grain


@pytest.fixture
def plan(tmp_path: Path) -> nc.Plan:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=60000) as writer:
        for start in range(0, 50000, 500):
            writer.add(np.arange(start, start + 500))
    return nc.Plan(nc.Source(nc.open_corpus(tmp_path / "corpus")), seq_len=32, seed=3, documents=True)


def equal(left: nc.Batch, right: nc.Batch) -> bool:
    return set(left) == set(right) and all(
        np.array_equal(left[key], right[key]) and left[key].dtype == right[key].dtype for key in left
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_an_element_is_a_ranks_rows_of_one_global_batch(world_size: int) -> None:
    plan = mixed_plan(documents=True)
    for rank in range(world_size):
        source = GrainSource(plan, num_samples=100, batch_size=12, dp_rank=rank, dp_world_size=world_size)
        core = nc.Loader(plan, batch_size=12, dp_rank=rank, dp_world_size=world_size, num_samples=100, threads=0)
        assert len(source) == 8
        assert all(equal(source[k], batch) for k, batch in enumerate(core))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_skipped_samples_are_in_no_element(world_size: int) -> None:
    plan = mixed_plan(skip=[(0, 5), (30, 37)])
    sources = [
        GrainSource(plan, num_samples=100, batch_size=12, dp_rank=rank, dp_world_size=world_size)
        for rank in range(world_size)
    ]
    assert {len(source) for source in sources} == {7}  # 88 samples are left
    served = [sample for k in range(7) for source in sources for sample in source[k]["sample"].tolist()]
    assert served == [*range(5, 30), *range(37, 96)]
    rows = GrainSource(plan, num_samples=40)
    assert [int(rows[k]["sample"]) for k in range(len(rows))] == [*range(5, 30), *range(37, 40)]
    assert "skip=((0, 5), (30, 37))" in repr(rows)


def test_a_schedule_of_batch_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size is \[\(0, 8\)\], expected one integer"):
        GrainSource(mixed_plan(), num_samples=100, batch_size=[(0, 8)])  # type: ignore[arg-type]


def test_an_element_without_batch_size_is_one_row() -> None:
    plan = mixed_plan(documents=True)
    source = GrainSource(plan, num_samples=5)
    assert len(source) == 5
    for k in (0, np.int64(4)):
        assert equal(source[k], {key: rows[0] for key, rows in plan.read([int(k)]).items()})


@pytest.mark.parametrize("k", [-1, 8, 10**30])
def test_an_element_outside_is_an_index_error(k: int) -> None:
    with pytest.raises(IndexError, match=r"outside of the pass' 8 batches\."):
        GrainSource(mixed_plan(), num_samples=100, batch_size=12)[k]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": None}, "num_samples is None"),
        ({"num_samples": -1}, "num_samples is -1"),
        ({"num_samples": 10, "batch_size": 0}, "batch_size is 0"),
        ({"num_samples": 10, "batch_size": 5, "dp_world_size": 2}, "nearest that they do: 4 or 6"),
        ({"num_samples": 10, "batch_size": 4, "dp_world_size": 2, "dp_rank": 2}, "dp_rank is 2"),
        ({"num_samples": 10, "dp_world_size": 2}, "without batch_size"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrainSource(mixed_plan(), **options)


def test_repr_tells_plans_and_batches_apart_but_not_ranks_or_paths() -> None:
    def text(seed: int = 11, **options: Any) -> str:
        return repr(GrainSource(mixed_plan(seed=seed), **({"num_samples": 96, "batch_size": 12} | options)))

    assert text() == text(dp_rank=1, dp_world_size=3)
    assert len({text(), text(seed=12), text(num_samples=97), text(batch_size=6), text(batch_size=None)}) == 5
    assert mixed_plan().fingerprint in text()


def test_it_pickles_without_maps_or_data(plan: nc.Plan) -> None:
    source = GrainSource(plan, num_samples=960, batch_size=12, dp_rank=1, dp_world_size=2)
    expected = source[7]
    pickled = pickle.dumps(source)
    assert len(pickled) < 3000
    copy = pickle.loads(pickled)
    assert repr(copy) == repr(source)
    assert equal(copy[7], expected)


def test_grain_knows_it_as_a_source(grain: Any) -> None:
    assert isinstance(GrainSource(mixed_plan(), num_samples=1), grain.sources.RandomAccessDataSource)


def data_loader(grain: Any, source: GrainSource, workers: int) -> Any:
    sampler = grain.samplers.SequentialSampler(num_records=len(source), shard_options=grain.sharding.NoSharding())
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    return grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers, read_options=reading)


def map_dataset(grain: Any, source: GrainSource, workers: int) -> Any:
    dataset = grain.MapDataset.source(source).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if not workers:
        return dataset
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))


def map_dataset_of_rows(grain: Any, source: GrainSource, workers: int) -> Any:
    rows = GrainSource(source.plan, num_samples=source.num_samples)
    batches = grain.MapDataset.source(rows).batch(12)
    return batches.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=4))


@pytest.mark.parametrize(
    ("pipeline", "workers"),
    [(data_loader, 0), (data_loader, 2), (map_dataset, 0), (map_dataset, 2), (map_dataset_of_rows, 0)],
)
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # grain's workers: fork/spawn notices of Python and of protobuf
def test_grain_serves_the_cores_batches_and_resumes_through_its_own_state(
    grain: Any, plan: nc.Plan, pipeline: Any, workers: int
) -> None:
    source = GrainSource(plan, num_samples=240, batch_size=12)
    core = list(nc.Loader(plan, batch_size=12, num_samples=240, threads=0))
    pipe = pipeline(grain, source, workers)
    served = iter(pipe)
    head = [next(served) for _ in range(7)]
    state = served.get_state()
    whole = head + list(served)
    assert len(whole) == len(core) == 20
    assert all(equal(found, expected) for found, expected in zip(whole, core, strict=True))
    again = iter(pipeline(grain, pickle.loads(pickle.dumps(source)), workers))
    again.set_state(state)
    rest = list(again)
    assert len(rest) == 13
    assert all(equal(found, expected) for found, expected in zip(rest, core[7:], strict=True))


def test_another_plans_state_is_refused_by_grains_loader_because_of_repr(grain: Any) -> None:
    source, other = (GrainSource(mixed_plan(seed=seed), num_samples=240, batch_size=12) for seed in (1, 2))
    state = iter(data_loader(grain, source, 0)).get_state()
    with pytest.raises(ValueError, match="source"):
        iter(data_loader(grain, other, 0)).set_state(state)


def test_grains_loader_resumes_at_another_number_of_ranks(grain: Any) -> None:
    plan = mixed_plan()
    before = iter(data_loader(grain, GrainSource(plan, num_samples=240, batch_size=12), 0))
    next(before)
    for rank in range(3):
        source = GrainSource(plan, num_samples=240, batch_size=12, dp_rank=rank, dp_world_size=3)
        after = iter(data_loader(grain, source, 0))
        after.set_state(before.get_state())
        assert next(after)["sample"].tolist() == list(range(12 + 4 * rank, 16 + 4 * rank))


def test_the_adapter_imports_no_grain() -> None:
    code = "import sys, jax_adapter; print([name for name in sys.modules if name.split('.')[0] in ('grain', 'torch')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
