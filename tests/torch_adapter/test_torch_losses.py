"""Losses by source: sums and counts on paper, and over gloo ranks those of one rank with all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gloo_ranks import on_ranks  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, loss_by_source  # noqa: E402


def test_losses_of_rows_and_of_targets_are_summed_by_source_on_paper() -> None:
    source = torch.tensor([2, 0, 2, -1])
    sums, counts = loss_by_source(torch.tensor([1.0, 2.0, 4.0, 99.0]), source, 4)
    assert sums.tolist() == [2.0, 0.0, 5.0, 0.0]
    assert counts.tolist() == [1, 0, 2, 0]
    assert (sums.dtype, counts.dtype) == (torch.float64, torch.int64)
    targets = torch.tensor([[1.0, 2.0], [3.0, 4.0], [float("nan"), 8.0], [9.0, 9.0]])
    mask = torch.tensor([[True, True], [False, True], [False, True], [True, True]])
    sums, counts = loss_by_source(targets, source, 3, mask=mask)
    assert sums.tolist() == [4.0, 0.0, 11.0]
    assert counts.tolist() == [1, 0, 3]
    assert torch.isnan((sums / counts)[1])


def test_losses_that_are_watched_hold_no_graph() -> None:
    losses = torch.ones(2, requires_grad=True) * 3
    assert not loss_by_source(losses, torch.tensor([0, 1]), 2)[0].requires_grad


def test_no_rows_are_no_losses() -> None:
    sums, counts = loss_by_source(torch.empty(0, 5), torch.empty(0, dtype=torch.int64), 2)
    assert sums.tolist() == [0.0, 0.0]
    assert counts.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("losses", "source", "mask"), [((2, 3, 1), (2,), None), ((2, 3), (3,), None), ((2, 3), (2,), (2,)), ((), (), None)]
)
def test_shapes_that_do_not_belong_together_are_refused(losses: Any, source: Any, mask: Any) -> None:
    with pytest.raises(ValueError, match="losses are of shape"):
        loss_by_source(
            torch.zeros(losses),
            torch.zeros(source, dtype=torch.int64),
            2,
            mask=None if mask is None else torch.ones(mask, dtype=torch.bool),
        )


def test_a_source_that_the_plan_does_not_have_is_an_error() -> None:
    with pytest.raises((IndexError, RuntimeError)):
        loss_by_source(torch.ones(1), torch.tensor([2]), 2)


def mixture() -> nc.Plan:
    """Ids of source a are below 100, of b from 100 on, of c from 200 on."""
    corpora = [nc.memory_corpus([np.arange(first, first + 90)], vocab_size=300) for first in (0, 100, 200)]
    weights = ("0.5", "0.3", "0.2")
    return nc.Plan(
        [
            nc.Source(corpus, weight=weight, name=name)
            for corpus, weight, name in zip(corpora, weights, "abc", strict=True)
        ],
        seq_len=8,
        seed=5,
    )


def watched(rank: int, world_size: int) -> list[list[Any]]:
    """The loss of a target is its id, so that the expected sums come from the rows alone."""
    found = []
    with Loader(mixture(), batch_size=12, num_samples=30, last="pad", device="cpu") as loader:
        for batch in loader:
            losses = batch["tokens"][:, 1:9].float()
            sums, counts = loss_by_source(losses, batch["source"], 3, mask=batch["loss_mask"])
            found.append([sums.tolist(), counts.tolist()])
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_rank_sees_the_sums_of_the_whole_batch_and_padding_counts_nowhere(
    tmp_path: Path, world_size: int
) -> None:
    found = on_ranks(tmp_path, world_size, watched, world_size)
    assert all(each == found[0] for each in found)
    plan = mixture()
    for step, (sums, counts) in enumerate(found[0]):
        rows = plan.read(np.arange(12 * step, min(12 * step + 12, 30)))["tokens"][:, 1:9].astype(np.int64)
        of_source = [rows[rows[:, 0] // 100 == source] for source in range(3)]
        assert sums == [mine.sum() for mine in of_source]
        assert counts == [mine.size for mine in of_source]
    assert sum(found[0][-1][1]) == 6 * 8
