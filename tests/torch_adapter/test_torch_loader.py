"""The torch loader keeps the contract: the core's rows, bit for bit, at any number of ranks, through any number of resumes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset, data_parallel_rank  # noqa: E402
from torch_adapter.widen import widen, widen_batch  # noqa: E402

WORLD_SIZES = (1, 2, 3, 4, 8)


def mixed_plan(**options: Any) -> nc.Plan:
    random = np.random.default_rng(5)
    corpora = [
        nc.memory_corpus([random.integers(0, 60_000, n) for n in random.integers(0, 90, 40)], vocab_size=60_000)
        for _ in "ab"
    ]
    sources = [nc.Source(corpora[0], name="a", weight="0.7"), nc.Source(corpora[1], name="b", weight="0.3")]
    return nc.Plan(sources, **({"seq_len": 16, "seed": 11, "documents": True} | options))


def rows_of(loaders: list[Loader], steps: int) -> dict[str, np.ndarray]:
    """Return the rows that the loaders of all ranks serve together, in the order of the global batches."""
    batches = [next(loader) for _ in range(steps) for loader in loaders]
    return {key: np.concatenate([batch[key].numpy() for batch in batches]) for key in batches[0]}


def same(found: dict[str, np.ndarray], expected: nc.Batch) -> bool:
    return set(found) == set(expected) and all(np.array_equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ranks_only_slice_the_order(world_size: int, dtype: torch.dtype) -> None:
    plan = mixed_plan()
    loaders = [
        Loader(plan, batch_size=24, dtype=dtype, device="cpu", dp_rank=rank, dp_world_size=world_size)
        for rank in range(world_size)
    ]
    assert same(rows_of(loaders, 20), plan.read(np.arange(20 * 24)))
    assert {str(rows.dtype) for key, rows in next(loaders[0]).items() if key != "sample"} == {str(dtype)}
    for loader in loaders:
        loader.close()


def test_a_run_at_2_then_4_then_3_ranks_is_one_run() -> None:
    plan = mixed_plan()
    found, state = [], None
    for world_size, steps in ((2, 5), (4, 3), (3, 7)):
        loaders = [
            Loader(plan, batch_size=24, device="cpu", dp_rank=rank, dp_world_size=world_size)
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        found.append(rows_of(loaders, steps))
        states = [loader.state_dict() for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        for loader in loaders:
            loader.close()
    together = {key: np.concatenate([part[key] for part in found]) for key in found[0]}
    assert same(together, plan.read(np.arange(15 * 24)))


def test_a_state_of_the_core_resumes_here() -> None:
    plan = mixed_plan()
    with nc.Loader(plan, batch_size=6) as core, Loader(plan, batch_size=4, device="cpu") as loader:
        next(core)
        loader.load_state_dict(core.get_state())
        assert next(loader)["sample"].tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_padded_pass_serves_each_sample_once_in_equal_steps(world_size: int) -> None:
    plan = mixed_plan()
    loaders = [
        Loader(plan, batch_size=24, device="cpu", dp_rank=rank, dp_world_size=world_size, num_samples=50, last="pad")
        for rank in range(world_size)
    ]
    assert {len(loader) for loader in loaders} == {3}
    samples = []
    for shares in zip(*loaders, strict=True):
        for share in shares:
            samples.extend(share["sample"].tolist())
            assert (share["loss_mask"].any(dim=1) == (share["sample"] >= 0)).all()
    assert sorted(sample for sample in samples if sample >= 0) == list(range(50))
    for loader in loaders:
        loader.close()


def test_another_plan_is_refused_with_the_part_that_differs() -> None:
    with Loader(mixed_plan(), batch_size=4, device="cpu") as loader:
        state = loader.state_dict()
    with (
        Loader(mixed_plan(seed=12), batch_size=4, device="cpu") as other,
        pytest.raises(nc.StateError, match="seed differs"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("dtype", "ids"),
    [
        (np.uint8, [0, 255]),
        (np.uint16, [0, 32767, 32768, 40000, 65535]),
        (np.uint32, [0, 2**16, 2**31, 3 * 10**9, 2**32 - 1]),
    ],
)
def test_ids_beyond_the_signed_range_are_widened_as_they_are(dtype: Any, ids: list[int]) -> None:
    assert widen(torch.from_numpy(np.array(ids, dtype=dtype)), torch.int64).tolist() == ids
    small = [number for number in ids if number < 2**31]
    assert widen(torch.from_numpy(np.array(small, dtype=dtype)), torch.int32).tolist() == small
    assert widen_batch({"tokens": np.array(ids, dtype=dtype)}, torch.int64)["tokens"].tolist() == ids


def test_an_id_that_int32_cannot_hold_is_refused() -> None:
    corpus = nc.memory_corpus([np.full(50, 3 * 10**9)])
    loader = Loader(nc.Plan(nc.Source(corpus), seq_len=4), batch_size=2, device="cpu", dtype=torch.int32)
    with pytest.raises(ValueError, match=r"3,000,000,000 does not fit torch\.int32"):
        next(loader)
    loader.close()


@pytest.mark.parametrize(
    ("options", "message"), [({"dtype": torch.int16}, "dtype is"), ({"dp_rank": 1}, "give both or neither")]
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Loader(mixed_plan(), batch_size=4, **options)


def test_without_torch_distributed_one_rank_reads_all() -> None:
    assert data_parallel_rank() == (0, 1)
    assert data_parallel_rank(2, 3) == (2, 3)


def test_a_tensor_is_the_callers_to_write_to() -> None:
    plan = mixed_plan()
    with Loader(plan, batch_size=4, device="cpu") as loader:
        for step in range(100):
            batch = next(loader)
            assert same(
                {key: rows.numpy() for key, rows in batch.items()}, plan.read(np.arange(4 * step, 4 * step + 4))
            )
            for rows in batch.values():
                rows.fill_(7)


def test_a_dataset_item_is_the_cores_row() -> None:
    plan = mixed_plan()
    dataset = MapDataset(plan, 30)
    expected = plan.read(np.arange(30))
    assert len(dataset) == 30
    for index in (0, 7, 29, -1, -30):
        assert all(np.array_equal(rows.numpy(), expected[key][index]) for key, rows in dataset[index].items())
    for index in (30, -31):
        with pytest.raises(IndexError, match="outside of the dataset's 30"):
            dataset[index]
