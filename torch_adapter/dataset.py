"""A map-style dataset for torch's own DataLoader, for code that wants one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import torch
from torch.utils.data import Dataset

import neutral_core as nc
from torch_adapter.widen import widen_batch


class MapDataset(Dataset[dict[str, torch.Tensor]]):
    """Samples 0 … num_samples − 1 of a plan, in its order: give DataLoader ``shuffle=False``.

    Args:
        plan: what to serve.
        num_samples: length, ≥ 0.

    An item is one row: a dict of tensors with the keys of ``Plan.read``, ids int64. ``__getitems__`` reads all rows of a batch in one call, which
    DataLoader uses. Pickles without data or maps, so it works with 0 or more workers, forked or spawned.

    A worker costs about a millisecond a message, whatever is in it, which is more than reading a hundred rows: ``torch_adapter.Loader`` needs no
    workers and is faster than any number of them.

    Raises:
        IndexError: an index outside −len … len − 1.
    """

    def __init__(self, plan: nc.Plan, num_samples: int) -> None:
        if type(num_samples) is not int or num_samples < 0:
            raise ValueError(f"num_samples is {num_samples!r}, expected an integer from 0 on.")
        self.plan = plan
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: SupportsIndex) -> dict[str, torch.Tensor]:
        """Return one row."""
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return the rows of several indices, read together."""
        batch = widen_batch(self.plan.read([self._sample(index) for index in indices]), torch.int64)
        return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]

    def _sample(self, index: int) -> int:
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(f"index {index:,} is outside of the dataset's {self.num_samples:,} samples.")
        return index % self.num_samples
