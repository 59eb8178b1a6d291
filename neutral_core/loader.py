"""The plain loader: an iterator over the rows of one rank's share of each global batch, read ahead by threads.

    samples of this rank, some thousands at a time ──locate──▶ chunks of 256 rows or more ──threads──▶ batches, in order

The threads only fill arrays; which row is which is settled before they start, so their number changes nothing but the speed. Handing a chunk
over costs as much as some rows, which is why a chunk holds 256 rows or more; a batch is a view into one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core import cursor
from neutral_core.batch import Batch, pad
from neutral_core.order.plan import Located, Plan
from neutral_core.order.windows import Pieces

CHUNK_ROWS = 256
LOCATE_ROWS = 8192
_LAST = ("drop", "pad")
_Block = tuple[npt.NDArray[np.int64], Located, Pieces]  # samples, where they are, what fills them


class Loader:
    """Serve a plan's global batches in order, this rank's rows of each; an iterator, also a context manager.

    Args:
        plan: what to serve.
        batch_size: of the *global* batch, in rows; divisible by ``dp_world_size``.
        dp_rank, dp_world_size: this process' share: rows dp_rank · b … (dp_rank + 1) · b − 1 of each global batch, b = batch_size / dp_world_size.
        rows: the rows of each global batch to read instead, integers [b] in any order, where a share is not one contiguous piece (a device mesh);
            dp_rank and dp_world_size are then left out.
        num_samples: the pass ends before this sample; None: never.
        last: what becomes of the samples after the last whole batch of a finite pass: ``drop``, or ``pad``: a last batch with padding rows
            (sample −1, no loss). With ``pad`` every batch has the key ``loss_mask``. All ranks take the same number of steps either way.
        threads: that read ahead; 0 reads when asked. One is enough unless storage is slow.

    Each batch is a dict as ``Plan.read`` returns it. The arrays are the caller's: they may be kept and written to. Memory: threads + 2 chunks of
    max(256, b) rows.

    ``len()`` is the number of batches still to come in a finite pass. ``get_state()`` is taken between two batches and resumes before the next,
    at any ``dp_world_size``, ``batch_size`` and ``threads``.

    Raises:
        ValueError: an argument outside its range; a batch size that the ranks do not divide, with the nearest that they do.
        FormatError, OSError: from the iteration, when a shard is damaged or cannot be read.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        batch_size: int,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        rows: npt.ArrayLike | None = None,
        num_samples: int | None = None,
        last: str = "drop",
        threads: int = 1,
    ) -> None:
        _check(batch_size, dp_rank, dp_world_size, num_samples, last, threads)
        self.plan = plan
        self.batch_size = batch_size
        self.dp_rank = dp_rank
        self.dp_world_size = dp_world_size
        self.num_samples = num_samples
        self.last = last
        self.rows = _rows(rows, batch_size, dp_rank, dp_world_size)
        self.rows_per_rank = len(self.rows)
        self.batches_per_chunk = -(-CHUNK_ROWS // self.rows_per_rank)
        self._depth = threads + 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="millstream-reader") if threads else None
        self._closed = False
        self._order = _OrderBlocks(self)
        self._start(0)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch; raise StopIteration at the end of a finite pass."""
        if self._closed:
            raise ValueError("the loader is closed: make another one.")
        if self._left_in_chunk == 0:
            try:
                self._next_chunk()
            except Exception:
                if not self._closed:
                    self.seek(self._sample)  # nothing was handed out: asked again, the same batch is read again
                raise
        at = (self._chunk_batches - self._left_in_chunk) * self.rows_per_rank
        self._left_in_chunk -= 1
        self._sample += self.batch_size
        return {key: rows[at : at + self.rows_per_rank] for key, rows in self._chunk.items()}

    def __len__(self) -> int:
        """Return the batches still to come; raise TypeError for an endless pass."""
        if self.num_samples is None:
            raise TypeError("the loader has no length: give num_samples to make its pass finite.")
        return self._batches_from(self._sample)

    def get_state(self) -> dict[str, Any]:
        """Return the cursor before the next batch: a small JSON-able dict, the same on every rank."""
        return cursor.make(self._sample, self.plan.fingerprint, self.plan.parts)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; O(1). Raise StateError, naming the part that differs, for another plan's or other data's."""
        self.seek(cursor.sample_of(state, self.plan.fingerprint, self.plan.parts))

    def seek(self, sample: int) -> None:
        """Make ``sample`` (0 … 2^62) the first one of the next batch; O(1)."""
        if type(sample) is not int or not 0 <= sample <= cursor.MAX_SAMPLE:
            raise ValueError(f"sample is {sample!r}, expected an integer from 0 to 2^62.")
        self._drop_ahead()
        self._start(sample)

    def close(self) -> None:
        """Stop the threads; what was read ahead is dropped. Done by ``with``, and when the loader is collected."""
        self._closed = True
        self._drop_ahead()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, sample: int) -> None:
        self._sample = sample  # the first of the next batch that is handed out
        self._next_to_read = sample
        self._left_in_chunk = 0
        self._chunk: Batch = {}
        self._ahead: deque[Future[Batch]] = deque()

    def _batches_from(self, sample: int) -> int:
        """Return the batches from ``sample`` to the end of the pass; samples end at 2^62."""
        left = max((cursor.MAX_SAMPLE if self.num_samples is None else self.num_samples) - sample, 0)
        return left // self.batch_size if self.last == "drop" else -(-left // self.batch_size)

    def _next_chunk(self) -> None:
        if self._pool is None:
            count = self._take()
            self._chunk = self._order.read(self._next_to_read - count * self.batch_size, count)
        else:
            while len(self._ahead) < self._depth and self._batches_from(self._next_to_read):
                count = self._take()
                self._ahead.append(
                    self._pool.submit(self._order.read, self._next_to_read - count * self.batch_size, count)
                )
            if not self._ahead:
                raise StopIteration
            self._chunk = self._ahead[0].result()
            self._ahead.popleft()
        self._chunk_batches = self._left_in_chunk = len(self._chunk["sample"]) // self.rows_per_rank

    def _take(self) -> int:
        """Return the batches of the next chunk to read, and move on behind them."""
        into = (
            self._next_to_read // self.batch_size % self.batches_per_chunk
        )  # chunks end where blocks of located samples do
        count = min(self.batches_per_chunk - into, self._batches_from(self._next_to_read))
        if not count:
            raise StopIteration
        self._next_to_read += count * self.batch_size
        return count

    def _drop_ahead(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()


class _OrderBlocks:
    """Locates this rank's samples some thousands at a time, because a call costs as much as hundreds of samples; keeps the last two blocks."""

    def __init__(self, loader: Loader) -> None:
        self._plan = loader.plan
        self._batch_size = loader.batch_size
        self._rows = loader.rows_per_rank
        self._row_numbers = loader.rows
        self._num_samples = loader.num_samples
        self._pads = loader.last == "pad"
        self._per_block = max(LOCATE_ROWS // self._rows // loader.batches_per_chunk, 1) * loader.batches_per_chunk
        self._blocks: dict[int, _Block] = {}
        self._lock = threading.Lock()

    def read(self, sample: int, count: int) -> Batch:
        """Return this rank's rows of ``count`` global batches from the one that begins at ``sample`` on."""
        samples, located, pieces = self._locate(sample, count)
        if not self._pads:
            return self._plan.read_pieces(samples, located, pieces)
        real = samples < (cursor.MAX_SAMPLE if self._num_samples is None else self._num_samples)
        if real.all():
            return pad(self._plan.read_pieces(samples, located, pieces), real, self._plan.seq_len)
        return pad(self._plan.read(samples[real]), real, self._plan.seq_len)

    def _locate(self, sample: int, count: int) -> _Block:
        """Return samples, where they are and what fills them, from the block of batches that holds them; a chunk never crosses a block's edge."""
        batch, phase = divmod(sample, self._batch_size)
        number, at = divmod(batch, self._per_block)
        first = number * self._per_block * self._batch_size + phase
        with self._lock:
            if first not in self._blocks:
                samples = self._samples(first, self._per_block)
                while len(self._blocks) > 1:
                    del self._blocks[next(iter(self._blocks))]
                located = self._plan.locate(samples)
                self._blocks[first] = samples, located, self._plan.pieces(located)
            samples, located, pieces = self._blocks[first]
        start, stop = at * self._rows, (at + count) * self._rows
        return samples[start:stop], located[start:stop], pieces.of_rows(start, stop)

    def _samples(self, sample: int, count: int) -> npt.NDArray[np.int64]:
        batches = sample + np.arange(count, dtype=np.int64) * self._batch_size
        samples: npt.NDArray[np.int64] = (batches[:, None] + self._row_numbers).ravel()
        return np.minimum(samples, cursor.MAX_SAMPLE - 1)  # a block may reach beyond the last sample there is


def _check(batch_size: int, dp_rank: int, dp_world_size: int, num_samples: int | None, last: str, threads: int) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("dp_world_size", dp_world_size, 1),
        ("threads", threads, 0),
    ):
        if type(value) is not int or value < least:
            raise ValueError(f"{name} is {value!r}, expected an integer from {least} on.")
    if type(dp_rank) is not int or not 0 <= dp_rank < dp_world_size:
        raise ValueError(
            f"dp_rank is {dp_rank!r}, expected an integer from 0 to dp_world_size - 1 = {dp_world_size - 1}."
        )
    if batch_size % dp_world_size:
        lower = batch_size // dp_world_size * dp_world_size
        near = f"{lower} or {lower + dp_world_size}" if lower else f"{dp_world_size}"
        raise ValueError(
            f"batch_size is {batch_size}, which {dp_world_size} ranks do not divide: the nearest that they do: {near}."
        )
    if num_samples is not None and (type(num_samples) is not int or not 0 <= num_samples <= cursor.MAX_SAMPLE):
        raise ValueError(f"num_samples is {num_samples!r}, expected None or an integer from 0 to 2^62.")
    if last not in _LAST:
        raise ValueError(f"last is {last!r}, expected 'drop' or 'pad'.")


def _rows(rows: npt.ArrayLike | None, batch_size: int, dp_rank: int, dp_world_size: int) -> npt.NDArray[np.int64]:
    """Return the rows of a global batch that are this process' share."""
    if rows is None:
        share = batch_size // dp_world_size
        return np.arange(dp_rank * share, (dp_rank + 1) * share, dtype=np.int64)
    array = np.asarray(rows)
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
