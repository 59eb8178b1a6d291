"""Batches by number: this rank's rows of any global batch, for those who ask out of order; and blocks of batches, which the loader reads too.

A call that locates samples costs as much as hundreds of them, so some thousands are located together and the last blocks are kept.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from neutral_core.batch import Batch, pad
from neutral_core.batch_sizes import BatchSizes
from neutral_core.cursor import MAX_SAMPLE
from neutral_core.order.plan import Located, Plan
from neutral_core.read_ahead import Pace

CHUNK_ROWS = 256
LOCATE_ROWS = 8192
_KEPT = 2  # blocks
Int64 = npt.NDArray[np.int64]


class Batches:
    """The whole global batches of a finite pass, as a sequence: element k is this rank's rows of batch k.

    Args:
        plan: what to serve.
        batch_size: of the *global* batch, in rows, divisible by ``dp_world_size``; one number, since a schedule would move the batches.
        num_samples: the pass ends before this sample; samples after the last whole batch are dropped, skipped ones are in no batch.
        dp_rank, dp_world_size, rows: this process' share, as in ``Loader``.

    Elements are dicts of fresh arrays, as ``Plan.read`` returns them. May be called from many threads; pickles without data, maps or locks.

    Raises:
        ValueError: an argument outside its range. ExhaustedError: the pass would serve a source beyond its max_epochs.
        IndexError: a batch outside 0 ≤ k < len. FormatError, OSError: its shard is damaged or cannot be read.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        batch_size: int,
        num_samples: int,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        rows: npt.ArrayLike | None = None,
    ) -> None:
        if type(batch_size) is not int:
            raise ValueError(f"batch_size is {batch_size!r}, expected one integer: a schedule would move the batches.")
        if type(num_samples) is not int or not 0 <= num_samples <= MAX_SAMPLE:
            raise ValueError(f"num_samples is {num_samples!r}, expected an integer from 0 to 2^62.")
        check_rank(dp_rank, dp_world_size)
        BatchSizes(batch_size, dp_world_size, plan.skips.place_of)
        plan.check_end(num_samples)
        self.plan = plan
        self.batch_size = batch_size
        self.num_samples = num_samples
        self.rows = share_of(rows, batch_size, dp_rank, dp_world_size)
        self._length = plan.skips.place_of(num_samples) // batch_size
        self._start()

    def _start(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._lock = threading.Lock()
        self._pace = Pace(self.plan.row_length * self.plan.dtype.itemsize)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, k: SupportsIndex) -> Batch:
        """Return batch k."""
        return self.read(operator.index(k), 1)

    def read(self, first: int, count: int) -> Batch:
        """Return batches first … first + count − 1, count ≥ 1, one after another: the rows of all in one batch."""
        if not 0 <= first < first + count <= self._length:
            last = "" if count == 1 else f" … {first + count - 1:,}"
            raise IndexError(f"element {first:,}{last} is outside of the pass' {self._length:,} batches.")
        per_block = batches_per_block(len(self.rows))
        parts = []
        while count:
            number, at = divmod(first, per_block)
            take = min(count, per_block - at)
            parts.append(self._block(number, per_block).read(at, take))
            first, count = first + take, count - take
        return parts[0] if len(parts) == 1 else {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def _block(self, number: int, per_block: int) -> Block:
        with self._lock:
            block = self._blocks.pop(number, None)
            if block is None:
                count = min(per_block, self._length - number * per_block)
                place = number * per_block * self.batch_size
                block = Block(self.plan, place, count, self.batch_size, self.rows, None, self._pace)
                while len(self._blocks) >= _KEPT:
                    del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
            return block

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_blocks", "_lock", "_pace")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


def batches_per_block(share: int) -> int:
    """Return how many batches of which this rank reads ``share`` rows are located together: whole chunks of rows."""
    per_chunk = -(-CHUNK_ROWS // share)
    return max(LOCATE_ROWS // share // per_chunk, 1) * per_chunk


class Block:
    """Batches of one size, one after another, whose samples are located together, because a call costs as much as hundreds of samples.

    Args:
        place: of the first batch's first sample.
        count: of batches.
        size: of the global batch, in rows.
        rows: of each global batch, this rank's.
        stop: the place behind the last sample of a padded pass; None: every row is a sample.
        pace: whether to ask the system for rows beforehand.
    """

    def __init__(
        self, plan: Plan, place: int, count: int, size: int, rows: Int64, stop: int | None, pace: Pace
    ) -> None:
        self.count, self.size, self.share = count, size, len(rows)
        self._pace = pace
        self._advised = 0  # rows that the system was asked for
        self._plan, self._place, self._rows, self._stop = plan, place, rows, stop
        self._located: tuple[Int64, npt.NDArray[np.bool_], Located] | None = None
        self._lock = threading.Lock()

    def read(self, first: int, count: int) -> Batch:
        """Return this rank's rows of ``count`` batches from the block's batch ``first`` on."""
        with self._lock:
            if self._located is None:
                self._located = self._locate()
            samples, real, located = self._located
        start, stop = first * self.share, (first + count) * self.share
        begin = time.perf_counter()
        if self._pace.cold:
            ahead = stop + 2 * (stop - start)
            self._plan.advise(self._plan.pieces(located[max(start, self._advised) : ahead]))
            self._advised = ahead
        if self._stop is None or real[start:stop].all():
            where = located[start:stop]
            batch = self._plan.read_pieces(samples[start:stop], where, self._plan.pieces(where))
        else:
            batch = self._plan.read(samples[start:stop][real[start:stop]])
        self._pace.took(time.perf_counter() - begin, stop - start)
        return batch if self._stop is None else pad(batch, real[start:stop], self._plan.num_targets)

    def _locate(self) -> tuple[Int64, npt.NDArray[np.bool_], Located]:
        begins = self._place + np.arange(self.count, dtype=np.int64) * self.size
        places = (begins[:, None] + self._rows).ravel()
        real = np.ones(len(places), dtype=bool) if self._stop is None else places < self._stop
        # Rows behind the end of the pass are located as its last sample, and padded.
        last = (self._plan.skips.num_places if self._stop is None else self._stop) - 1
        samples = self._plan.skips.samples_at(np.minimum(places, last))
        return samples, real, self._plan.locate(samples)


def check_rank(dp_rank: int, dp_world_size: int) -> None:
    """Raise ValueError unless 0 ≤ dp_rank < dp_world_size."""
    if type(dp_world_size) is not int or dp_world_size < 1:
        raise ValueError(f"dp_world_size is {dp_world_size!r}, expected an integer from 1 on.")
    if type(dp_rank) is not int or not 0 <= dp_rank < dp_world_size:
        raise ValueError(
            f"dp_rank is {dp_rank!r}, expected an integer from 0 to dp_world_size - 1 = {dp_world_size - 1}."
        )


def share_of(
    rows: npt.ArrayLike | Callable[[int], npt.ArrayLike] | None, batch_size: int, dp_rank: int, dp_world_size: int
) -> Int64:
    """Return the rows of a global batch that are this process' share."""
    if rows is None:
        share = batch_size // dp_world_size
        return np.arange(dp_rank * share, (dp_rank + 1) * share, dtype=np.int64)
    array = np.asarray(rows(batch_size) if callable(rows) else rows)
    if dp_world_size != 1:
        raise ValueError(
            f"rows and dp_world_size={dp_world_size} are both given: each says which share is read; give one."
        )
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise ValueError(
            f"rows are {array.dtype} of shape {array.shape}, expected at least one integer in one dimension."
        )
    if int(array.min()) < 0 or int(array.max()) >= batch_size:
        raise ValueError(
            f"rows run from {int(array.min())} to {int(array.max())}, expected 0 ≤ row < batch_size {batch_size}."
        )
    return array.astype(np.int64)
