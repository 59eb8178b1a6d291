"""A map-style dataset for torch's own DataLoader, for code that wants one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

import neutral_core as nc
from neutral_core.batch import pad
from torch_adapter.widen import Tensors, widen_batch

Shape = Callable[[Tensors, nc.Plan], Tensors]


class MapDataset(Dataset[dict[str, torch.Tensor]]):
    """The samples before num_samples that a plan does not skip, in its order: give DataLoader ``shuffle=False``.

    Args:
        plan: what to serve.
        num_samples: the pass ends before this sample, ≥ 0; the length is how many before it are left.
        shape: makes of a batch of rows, and the plan, a dict of tensors with the same rows: ``causal_lm``, ``megatron``, or a function of your own,
            which workers must be able to import. None: the batch as it is.
        pad_to: rows; the length is rounded up to a multiple of it by rows of padding, which have no loss, and every row has the key ``loss_mask``.
            With the global batch's size every batch is whole and every rank takes as many steps. None: no padding; ask DataLoader or the
            sampler to drop the last batch.

    An item is one row: a dict of tensors with the keys of ``Plan.read``, ids int64, or those of ``shape``. Index None is a row of padding, as
    Megatron asks for it; rows that are read together with one have the key ``loss_mask``. ``__getitems__`` reads all rows of a batch in one call,
    which DataLoader uses. Pickles without data or maps, so it works with 0 or more workers, forked or spawned.

    A worker costs one to two milliseconds a message, whatever is in it, which is more than reading a hundred rows: ``torch_adapter.Loader`` needs no
    workers and is faster than any number of them.

    Raises:
        IndexError: an index outside −len … len − 1. ExhaustedError: on making it, where a source would be served beyond its max_epochs.
    """

    def __init__(
        self, plan: nc.Plan, num_samples: int, *, shape: Shape | None = None, pad_to: int | None = None
    ) -> None:
        if type(num_samples) is not int or num_samples < 0:
            raise ValueError(f"num_samples is {num_samples!r}, expected an integer from 0 on.")
        if pad_to is not None and (type(pad_to) is not int or pad_to < 1):
            raise ValueError(f"pad_to is {pad_to!r}, expected None or an integer from 1 on.")
        self.plan = plan
        self.num_samples = num_samples
        self.shape = shape
        self.pad_to = pad_to
        self._rows = nc.Batches(plan, batch_size=1, num_samples=num_samples)

    def __len__(self) -> int:
        rows = self.pad_to or 1
        return -(-len(self._rows) // rows) * rows

    def __getitem__(self, index: SupportsIndex | None) -> dict[str, torch.Tensor]:
        """Return one row."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex | None]) -> list[dict[str, torch.Tensor]]:
        """Return the rows of several indices, read together."""
        places = np.array([self._place(index) for index in indices], dtype=np.int64)
        real = places < len(self._rows)
        rows = self._read(places[real])
        if self.pad_to is not None or not real.all():
            rows = pad(rows, real, self.plan.num_targets)
        batch = widen_batch(rows, torch.int64)
        if self.shape is not None:
            batch = self.shape(batch, self.plan)
        return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]

    def _read(self, places: npt.NDArray[np.int64]) -> nc.Batch:
        if len(places) and (np.diff(places) == 1).all():
            return self._rows.read(int(places[0]), len(places))  # in order: located thousands at a time
        return self.plan.read(self.plan.skips.samples_at(places))

    def _place(self, index: SupportsIndex | None) -> int:
        """Return which of the rows an index means; a row of padding is behind the last one."""
        if index is None:
            return len(self._rows)
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"index {number:,} is outside of the dataset's {len(self):,} samples.")
        return number % len(self)
