"""A plan of some columns of each row: the whole rows' columns, of which no others are read; the order is the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neutral_core as nc

SEQ_LEN = 9


def plan_of(**options: Any) -> nc.Plan:
    random = np.random.default_rng(4)
    corpora = [
        nc.memory_corpus([random.integers(0, 500, n) for n in random.integers(0, 15, 30)], vocab_size=500) for _ in "ab"
    ]
    sources = [nc.Source(corpus, weight=1, name=name) for corpus, name in zip(corpora, "ab", strict=True)]
    return nc.Plan(sources, **({"seq_len": SEQ_LEN, "seed": 3, "documents": True, "extra_tokens": 2} | options))


stretches = st.tuples(st.integers(0, 11), st.integers(1, 12)).filter(lambda pair: pair[0] < pair[1])


@given(columns=st.lists(stretches, min_size=1, max_size=4), document_shuffle=st.booleans())
def test_columns_are_those_of_the_whole_row_in_the_order_asked(
    columns: list[tuple[int, int]], document_shuffle: bool
) -> None:
    whole = plan_of(document_shuffle=document_shuffle)
    samples = np.arange(90)  # more than one epoch, so that rows cross the end
    rows, part = whole.read(samples), whole.narrow(columns)
    found = part.read(samples)
    at = [column for start, stop in columns for column in range(start, stop)]
    for key in ("tokens", "segment_ids", "positions"):
        assert np.array_equal(found[key], rows[key][:, at])
        assert found[key].dtype == rows[key].dtype
    pieces = part.pieces(part.locate(samples))
    assert np.bincount(pieces.row, pieces.length).tolist() == [len(at)] * len(samples)
    assert part.fingerprint == whole.fingerprint
    assert part.cursor(5) == whole.cursor(5)


def test_a_padded_pass_has_a_loss_mask_of_the_stretchs_targets_and_narrow_plans_survive_pickling() -> None:
    part = pickle.loads(pickle.dumps(plan_of().narrow([(0, 4), (8, 12)])))
    assert part.num_targets == 3 + 1  # columns 1, 2, 3; and 9: those behind it are no targets
    for world_size in (1, 2, 4):
        ranks = [
            nc.Loader(part, batch_size=4, dp_rank=rank, dp_world_size=world_size, num_samples=6, last="pad", threads=0)
            for rank in range(world_size)
        ]
        batches = [
            {key: np.concatenate([share[key] for share in step]) for key in step[0]}
            for step in zip(*ranks, strict=True)
        ]
        assert [batch["loss_mask"].sum(axis=1).tolist() for batch in batches] == [[4, 4, 4, 4], [4, 4, 0, 0]]
        assert batches[1]["tokens"].shape == (4, 8)


def test_narrowing_counts_columns_of_the_whole_row_each_time() -> None:
    part = plan_of().narrow([(2, 5)]).narrow([(0, 3)])
    assert part.columns == ((0, 3),)
    assert np.array_equal(part.read([1])["tokens"], plan_of().read([1])["tokens"][:, :3])


@pytest.mark.parametrize("columns", [[], [(3, 3)], [(0, 13)], [(-1, 4)], [(0, 2), (5, 4)]])
def test_columns_outside_of_the_row_are_refused(columns: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="columns"):
        plan_of().narrow(columns)
