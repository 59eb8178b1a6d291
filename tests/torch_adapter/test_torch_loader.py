"""What the torch loader has beside the contract (tests/test_contract.py): wide ids, ranks from torch.distributed, tensors that may be written to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset, data_parallel_rank  # noqa: E402
from torch_adapter.widen import widen, widen_batch  # noqa: E402


def mixed_plan(**options: Any) -> nc.Plan:
    random = np.random.default_rng(5)
    corpora = [
        nc.memory_corpus([random.integers(0, 60_000, n) for n in random.integers(0, 90, 40)], vocab_size=60_000)
        for _ in "ab"
    ]
    sources = [nc.Source(corpora[0], name="a", weight="0.7"), nc.Source(corpora[1], name="b", weight="0.3")]
    return nc.Plan(sources, **({"seq_len": 16, "seed": 11, "documents": True} | options))


def same(found: dict[str, np.ndarray], expected: nc.Batch) -> bool:
    return set(found) == set(expected) and all(np.array_equal(found[key], expected[key]) for key in found)


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
