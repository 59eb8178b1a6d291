"""The plain loader: an iterator over the rows of one rank's share of each global batch, read ahead by threads.

    samples of this rank, some thousands at a time ──locate──▶ chunks of 256 rows or more ──threads──▶ batches, in order

The threads only fill arrays; which row is which is settled before they start, so their number changes nothing but the speed. Handing a chunk
over costs as much as some rows, which is why a chunk holds 256 rows or more; a batch is a view into one. The loader counts in places: samples
that the plan does not skip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core import cursor
from neutral_core.batch import Batch
from neutral_core.batch_sizes import BatchSize, BatchSizes
from neutral_core.batches import CHUNK_ROWS, Block, batches_per_block, check_rank, share_of
from neutral_core.order.plan import Plan
from neutral_core.read_ahead import Pace

_LAST = ("drop", "pad")
Int64 = npt.NDArray[np.int64]


class Loader:
    """Serve a plan's global batches in order, this rank's rows of each; an iterator, also a context manager.

    Args:
        plan: what to serve.
        batch_size: of the *global* batch, in rows, divisible by ``dp_world_size``; or a schedule of pairs (sample, batch_size), the first at
            sample 0: a batch has the size of the last pair at or before its first sample.
        dp_rank, dp_world_size: this process' share: rows dp_rank · b … (dp_rank + 1) · b − 1 of each global batch, b = batch_size / dp_world_size.
        rows: the rows of each global batch to read instead, integers [b] in any order, where a share is not one contiguous piece (a device mesh);
            for a schedule, a function that returns them for a batch size. dp_rank and dp_world_size are then left out.
        num_samples: the pass ends before this sample; None: never.
        last: what becomes of the samples after the last whole batch of a finite pass: ``drop``, or ``pad``: a last batch with padding rows
            (sample −1, no loss). With ``pad`` every batch has the key ``loss_mask``. All ranks take the same number of steps either way.
        threads: that read ahead; 0 reads when asked. One is enough unless storage is slow.

    Each batch is a dict as ``Plan.read`` returns it. The arrays are the caller's: they may be kept and written to. Memory: threads + 2 chunks of
    max(256, b) rows. A global batch is the next batch_size samples that the plan does not skip.

    ``len()`` is the number of batches still to come in a finite pass. ``get_state()`` is taken between two batches and resumes before the next,
    at any ``dp_world_size``, ``batch_size`` and ``threads``.

    Attributes:
        sample: the first one of the next batch. batch_size, rows: of the next batch.

    Raises:
        ValueError: an argument outside its range; a batch size that the ranks do not divide, with the nearest that they do.
        ExhaustedError: the pass would serve a source beyond its max_epochs: on making the loader where num_samples says so, else from the
            iteration, in place of the batch that would hold the first such sample.
        FormatError, OSError: from the iteration, when a shard is damaged or cannot be read.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        batch_size: BatchSize,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        rows: npt.ArrayLike | Callable[[int], npt.ArrayLike] | None = None,
        num_samples: int | None = None,
        last: str = "drop",
        threads: int = 1,
    ) -> None:
        _check(dp_rank, dp_world_size, num_samples, last, threads)
        self.plan = plan
        self.dp_rank = dp_rank
        self.dp_world_size = dp_world_size
        self.num_samples = num_samples
        self.last = last
        self._sizes = BatchSizes(batch_size, dp_world_size, plan.skips.place_of)
        self._rows = {size: share_of(rows, size, dp_rank, dp_world_size) for size in self._sizes.sizes}
        if num_samples is not None:
            plan.check_end(num_samples)
        self._stop = plan.skips.place_of(cursor.MAX_SAMPLE if num_samples is None else num_samples)
        self._end = plan.skips.place_of(plan.end)  # no batch reaches beyond, padding apart
        self._depth = threads + 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="millstream-reader") if threads else None
        self._pace = Pace(plan.row_length * plan.dtype.itemsize)
        self._closed = False
        self._start(0)

    @property
    def sample(self) -> int:
        """The first sample of the next batch; at the end of a pass, of one that would follow."""
        return int(self.plan.skips.samples_at(np.array([self._place], dtype=np.int64))[0])

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch."""
        return self._sizes.run(self._place)[0]

    @property
    def rows(self) -> Int64:
        """The rows of the next global batch that are this process' share: int64[b]."""
        return self._rows[self.batch_size]

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
                    self._start(self._place)  # nothing was handed out: asked again, the same batch is read again
                raise
        share = self._share
        at = (self._chunk_batches - self._left_in_chunk) * share
        self._left_in_chunk -= 1
        self._place += self._size
        return {key: rows[at : at + share] for key, rows in self._chunk.items()}

    def __len__(self) -> int:
        """Return the batches still to come; raise TypeError for an endless pass."""
        if self.num_samples is None:
            raise TypeError("the loader has no length: give num_samples to make its pass finite.")
        return self._batches_from(self._place)

    def __bool__(self) -> bool:
        return True  # a loader without a length is one all the same

    def get_state(self) -> dict[str, Any]:
        """Return the cursor before the next batch: a small JSON-able dict, the same on every rank."""
        return self.plan.cursor(self.sample)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; O(1). Raise StateError, naming the part that differs, where the plan's past or its data are others."""
        self.seek(self.plan.sample_in(state))

    def seek(self, sample: int) -> None:
        """Make ``sample`` (0 … 2^62) the first one of the next batch, or the first after it that is not skipped; O(1)."""
        if type(sample) is not int or not 0 <= sample <= cursor.MAX_SAMPLE:
            raise ValueError(f"sample is {sample!r}, expected an integer from 0 to 2^62.")
        self._start(self.plan.skips.place_of(sample))

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

    def _start(self, place: int) -> None:
        self._drop_ahead()
        self._place = place  # the first of the next batch that is handed out
        self._next_to_read = place
        self._left_in_chunk = 0
        self._chunk: Batch = {}
        self._block: Block | None = None  # the one that is being taken, and how many of its batches are
        self._taken = 0
        self._most = 1  # batches in the next chunk: the first one comes alone, so that it comes soon

    def _batches_from(self, place: int) -> int:
        """Return the batches from ``place`` to the end of the pass, as far as max_epochs allows."""
        whole = self._sizes.batches(place, min(self._stop, self._end), partial=False)
        if self.last == "drop" or self._end < self._stop:
            return whole
        return self._sizes.batches(place, self._stop, partial=True)

    def _next_chunk(self) -> None:
        if self._pool is None:
            block, first, count = self._take()
            chunk = block.read(first, count)
        else:
            while len(self._ahead) < self._depth and self._batches_from(self._next_to_read):
                block, first, count = self._take()
                self._ahead.append((block, self._pool.submit(block.read, first, count)))
            if not self._ahead:
                self._finish()
            block, future = self._ahead[0]
            chunk = future.result()
            self._ahead.popleft()
        self._chunk, self._size, self._share = chunk, block.size, block.share
        self._chunk_batches = self._left_in_chunk = len(chunk["sample"]) // block.share

    def _take(self) -> tuple[Block, int, int]:
        """Return the next chunk to read, as batches of a block, and move on behind it."""
        if self._block is None or self._taken == self._block.count:
            self._block, self._taken = self._next_block(), 0
        block, first = self._block, self._taken
        count = min(-(-CHUNK_ROWS // block.share), block.count - first, self._most)
        self._most *= 2
        self._taken += count
        self._next_to_read += count * block.size
        return block, first, count

    def _next_block(self) -> Block:
        left = self._batches_from(self._next_to_read)
        if not left:
            self._finish()
        size, run = self._sizes.run(self._next_to_read)
        count = min(batches_per_block(len(self._rows[size])), left, left if run is None else run)
        stop = self._stop if self.last == "pad" else None
        return Block(self.plan, self._next_to_read, count, size, self._rows[size], stop, self._pace)

    def _finish(self) -> None:
        """Raise what ends the pass."""
        if self._end < self._stop and self._sizes.batches(self._next_to_read, self._stop, partial=self.last == "pad"):
            self.plan.check_end(cursor.MAX_SAMPLE)
        raise StopIteration

    def _drop_ahead(self) -> None:
        for _, future in getattr(self, "_ahead", ()):
            future.cancel()
        self._ahead: deque[tuple[Block, Future[Batch]]] = deque()


def _check(dp_rank: int, dp_world_size: int, num_samples: int | None, last: str, threads: int) -> None:
    check_rank(dp_rank, dp_world_size)
    if type(threads) is not int or threads < 0:
        raise ValueError(f"threads is {threads!r}, expected an integer from 0 on.")
    if num_samples is not None and (type(num_samples) is not int or not 0 <= num_samples <= cursor.MAX_SAMPLE):
        raise ValueError(f"num_samples is {num_samples!r}, expected None or an integer from 0 to 2^62.")
    if last not in _LAST:
        raise ValueError(f"last is {last!r}, expected 'drop' or 'pad'.")
