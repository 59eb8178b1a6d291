"""Batches by number are the loader's, in any order, at any number of ranks."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core import batches as module


def plan_of(**options: Any) -> nc.Plan:
    random = np.random.default_rng(5)
    corpora = [nc.memory_corpus([random.integers(0, 500, n) for n in random.integers(0, 40, 60)], vocab_size=500)] * 2
    sources = [nc.Source(corpus, name=name, weight=1) for corpus, name in zip(corpora, "ab", strict=True)]
    return nc.Plan(sources, **{"seq_len": 16, "seed": 11, "documents": True, "skip": [(3, 9), (40, 41)]} | options)


def same(left: nc.Batch, right: nc.Batch) -> bool:
    return set(left) == set(right) and all(
        np.array_equal(left[key], right[key]) and left[key].dtype == right[key].dtype for key in left
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_elements_of_all_ranks_are_the_global_batches(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCATE_ROWS", 24)  # many blocks
    monkeypatch.setattr(module, "CHUNK_ROWS", 6)
    plan = plan_of()
    ranks = [
        nc.Batches(plan, batch_size=24, num_samples=500, dp_rank=rank, dp_world_size=world_size)
        for rank in range(world_size)
    ]
    whole = list(nc.Loader(plan, batch_size=24, num_samples=500, threads=0))
    assert [len(rank) for rank in ranks] == [20] * world_size  # 493 samples are left
    for k in np.random.default_rng(0).permutation(20).tolist():
        shares = [rank[k] for rank in ranks]
        assert same({key: np.concatenate([share[key] for share in shares]) for key in shares[0]}, whole[k])


def test_several_batches_come_one_after_another_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCATE_ROWS", 24)
    monkeypatch.setattr(module, "CHUNK_ROWS", 6)
    plan = plan_of()
    batches = nc.Batches(plan, batch_size=8, num_samples=500)
    for first, count in ((0, 1), (0, 61), (5, 17), (60, 1)):
        expected = plan.read(plan.skips.samples_at(np.arange(8 * first, 8 * (first + count))))
        assert same(batches.read(first, count), expected)
    for first, count in ((-1, 1), (61, 1), (60, 2), (0, 62), (0, 0), (0, -1)):
        with pytest.raises(IndexError, match="outside of the pass' 61 batches"):
            batches.read(first, count)


def test_any_rows_may_be_a_share() -> None:
    plan = plan_of()
    share = nc.Batches(plan, batch_size=8, num_samples=100, rows=[5, 0, 5])
    assert share[2]["sample"].tolist() == plan.skips.samples_at(np.array([21, 16, 21])).tolist()


def test_it_pickles_without_data_and_serves_many_threads() -> None:
    plan = plan_of()
    batches = nc.Batches(plan, batch_size=8, num_samples=500)
    batches.read(0, 3)
    copy = pickle.loads(pickle.dumps(batches))
    assert not copy._blocks
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(copy.__getitem__, range(61)))
    assert all(same(batch, batches[k]) for k, batch in enumerate(found))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": [(0, 8)]}, r"batch_size is \[\(0, 8\)\], expected one integer"),
        ({"batch_size": 0}, "batch_size is 0, expected an integer from 1 on"),
        ({"dp_world_size": 3, "dp_rank": 0}, "8, which 3 ranks do not divide: the nearest that they do: 6 or 9"),
        ({"dp_world_size": 2, "dp_rank": 2}, "dp_rank is 2, expected an integer from 0 to dp_world_size - 1 = 1"),
        ({"num_samples": -1}, "num_samples is -1, expected an integer from 0"),
        ({"num_samples": None}, "num_samples is None, expected an integer from 0"),
        ({"rows": [8]}, "rows run from 8 to 8, expected 0 ≤ row < batch_size 8"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nc.Batches(plan_of(), **{"batch_size": 8, "num_samples": 100} | options)


def test_a_pass_beyond_max_epochs_is_refused() -> None:
    source = nc.Source(nc.memory_corpus([np.arange(100)]), max_epochs=2)
    plan = nc.Plan(source, seq_len=9)  # 11 windows
    assert len(nc.Batches(plan, batch_size=2, num_samples=22)) == 11
    with pytest.raises(nc.ExhaustedError, match="max_epochs=2"):
        nc.Batches(plan, batch_size=2, num_samples=23)
