"""A map-style dataset for torch's own DataLoader, for code that wants one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset

import neutral_core as nc
from torch_adapter.widen import Tensors, widen_batch

Shape = Callable[[Tensors, nc.Plan], Tensors]


class MapDataset(Dataset[dict[str, torch.Tensor]]):
    """The samples before num_samples that a plan does not skip, in its order: give DataLoader ``shuffle=False``.

    Args:
        plan: what to serve.
        num_samples: the pass ends before this sample, ≥ 0; the length is how many before it are left.
        shape: makes of a batch of rows, and the plan, a dict of tensors with the same rows: ``causal_lm``, ``megatron``, or a function of your own,
            which workers must be able to import. None: the batch as it is.

    An item is one row: a dict of tensors with the keys of ``Plan.read``, ids int64, or those of ``shape``. ``__getitems__`` reads all rows of a batch in one
    call, which DataLoader uses. Pickles without data or maps, so it works with 0 or more workers, forked or spawned.

    A worker costs one to two milliseconds a message, whatever is in it, which is more than reading a hundred rows: ``torch_adapter.Loader`` needs no
    workers and is faster than any number of them.

    Raises:
        IndexError: an index outside −len … len − 1. ExhaustedError: on making it, where a source would be served beyond its max_epochs.
    """

    def __init__(self, plan: nc.Plan, num_samples: int, *, shape: Shape | None = None) -> None:
        if type(num_samples) is not int or num_samples < 0:
            raise ValueError(f"num_samples is {num_samples!r}, expected an integer from 0 on.")
        self.plan = plan
        self.num_samples = num_samples
        self.shape = shape
        self._rows = nc.Batches(plan, batch_size=1, num_samples=num_samples)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> dict[str, torch.Tensor]:
        """Return one row."""
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """Return the rows of several indices, read together."""
        places = [self._place(index) for index in indices]
        if places and places == list(range(places[0], places[0] + len(places))):
            rows = self._rows.read(places[0], len(places))  # in order: located thousands at a time
        else:
            rows = self.plan.read(self.plan.skips.samples_at(np.array(places, dtype=np.int64)))
        batch = widen_batch(rows, torch.int64)
        if self.shape is not None:
            batch = self.shape(batch, self.plan)
        return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]

    def _place(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index:,} is outside of the dataset's {len(self):,} samples.")
        return index % len(self)
