"""The core's loader, with its rows as global jax.Arrays.

    sharding's own index map ──▶ rows and columns of this process ──core──▶ numpy, once ──▶ packed ──▶ a shard per device ──▶ one global array

What a process reads follows from the sharding alone, never from the number of the process: meshes that interleave processes, or
replicate the batch over them, are served right. The global shape is always given, so a process can't change it by holding fewer rows.

Host memory: JAX's CPU backend aliases numpy memory that is aligned, and transfers to other devices may still be under way when a call
returns. Here no array is ever written after it went to JAX: each batch is packed in fresh memory, which is never used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding

import neutral_core as nc
from jax_adapter import check
from jax_adapter.batch import Batch
from jax_adapter.packed import Layout, layout_of, pack, stays
from jax_adapter.rows import addressable_columns, addressable_rows, num_parts, with_axes
from neutral_core.batch_sizes import BatchSize


class Loader:
    """Serve a plan's global batches in order, as global arrays; an iterator, also a context manager.

    Args:
        plan: what to serve.
        batch_size: of the *global* batch, in rows; divisible by the number of parts into which the sharding cuts rows. Or a schedule, as
            ``neutral_core.Loader`` has it; each size that it names is a shape to compile for.
        sharding: a NamedSharding whose first axis is rows and whose second, if it has one, is tokens: a context axis, which cuts rows into
            parts. They divide seq_len. A process reads the rows, and of these the parts, that its devices hold, and nothing else of the files.
        num_samples: the pass ends before this sample; None: never.
        last: what becomes of the samples after the last whole batch of a finite pass: ``drop``, or ``pad``: a last batch with padding rows
            (sample −1, no loss). With ``pad`` every batch has the key ``loss_mask``. All processes take the same number of steps either way.
        threads: that read ahead on the host; 0 reads when asked.
        depth: batches whose transfer has begun before they are asked for, ≥ 0.
        check_every: the processes of the mesh compare plan, cursor and the rows that several of them hold at the first batch, the first one after
            ``set_state``, and every so many batches after it (a collective that waits for the steps before it, as every comparison must); 0:
            never. With it all processes take the same batches in turn, and set states together, as training does. One process compares nothing.
            A process whose reader fails joins the comparison of that step, so that all raise; at a step without one the others wait in their next
            collective until JAX sees that the process has ended: let its error end it, or give 1.

    Attributes:
        batch_size, rows: of the next batch: its size; and int64[r], ascending: the rows of it that the devices of this process hold; each is
            read once.

    Each batch is a mapping over one packed array, the only one that travels (``Batch``; ``unpack`` takes it as it is). ``tokens`` uint8/16/32
    [batch_size, seq_len + 1 + extra_tokens], narrow as stored (``unpack`` widens on the device); ``source`` int32[batch_size]; with a plan's
    ``documents`` also ``segment_ids`` and ``positions`` int32, as tokens; with ``pad`` also ``loss_mask`` bool [batch_size, seq_len]: global
    arrays. ``sample`` stays a numpy int64[r]: of this process' ``rows``, in their order; given to jit, a batch goes without it.

    With a sharding of tokens too, ``tokens``, ``segment_ids`` and ``positions`` are [batch_size, parts, seq_len / parts + 1]: of each part its inputs
    and the last one's target, positions and segments counted over whole rows; ``source`` travels apart. ``unpack`` gives the same [batch_size, seq_len]
    as from whole rows. Such a plan has no extra_tokens.

    Device memory: of depth + 1 batches, with the one that the caller was handed last.

    ``get_state()`` counts the batches that the caller received, not those ahead, also after an error and after ``close()``; it is the same on
    every process and resumes at any sharding, ``batch_size``, ``threads`` and ``depth``. An error of the reader comes when its batch is due,
    after those that were under way; asked again, the loader tries that batch again.

    Raises:
        TypeError: the sharding is no NamedSharding.
        ValueError: an argument outside its range; a batch size that the sharding does not divide, with the nearest that it does; a seq_len that
            its context axis does not divide.
        FormatError, OSError: from the iteration, when a shard is damaged or cannot be read.
        RuntimeError: from the iteration, on every process: the processes differ, or one could not read its rows (and raises its own error); it
            names the step, counted from the loader's making or its last ``set_state``, the sample, the processes and what differs. The batch
            was not handed out.
    """

    def __init__(
        self,
        plan: nc.Plan,
        *,
        batch_size: BatchSize,
        sharding: NamedSharding,
        num_samples: int | None = None,
        last: str = "drop",
        threads: int = 1,
        depth: int = 2,
        check_every: int = 1000,
    ) -> None:
        for name, value in (("depth", depth), ("check_every", check_every)):
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} is {value!r}, expected an integer from 0 on.")
        self._over_rows, self._over_both = with_axes(sharding, 1), with_axes(sharding, 2)
        self._columns = addressable_columns(sharding, plan)
        self.plan = plan
        self.sharding = sharding
        self.depth = depth
        several = len({device.process_index for device in sharding.mesh.devices.flat}) > 1
        self.check_every = check_every if several else 0
        self._options = f"{batch_size} {num_samples} {last}"
        self._layout: Layout | None = None  # known from the first batch on

        def rows(size: int) -> npt.NDArray[np.int64]:
            return addressable_rows(sharding, size)

        self._reader = nc.Loader(
            plan.narrow(self._columns.stretches),
            batch_size=batch_size,
            rows=rows,
            num_samples=num_samples,
            last=last,
            threads=threads,
        )
        self._ahead: deque[_Sent] = deque()
        self._sample = self._reader.sample  # the first of the next batch that is handed out
        self._step = 0  # of the next batch that is handed out

    @property
    def batch_size(self) -> int:
        """Rows of the next global batch."""
        return self._ahead[0].batch_size if self._ahead else self._reader.batch_size

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The rows of the next global batch that devices of this process hold: int64[r], ascending."""
        return self._ahead[0].rows if self._ahead else self._reader.rows

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, its transfer perhaps still under way; raise StopIteration at the end of a finite pass."""
        try:
            self._send_ahead()
        except Exception:
            if self._is_compared(self._step):
                self._gather(np.zeros(self._num_parts, dtype=np.uint64), failed=True)
            raise
        if not self._ahead:
            raise StopIteration
        sent = self._ahead[0]
        if sent.parts is not None:
            told = self._gather(sent.parts)
            check.compare(*told, batch_size=sent.batch_size, num_columns=self._columns.num_parts)
        self._ahead.popleft()
        self._sample = sent.next_sample
        self._step += 1
        return sent.batch

    def __len__(self) -> int:
        """Return the batches still to come; raise TypeError for an endless pass."""
        return len(self._reader) + len(self._ahead)

    def get_state(self) -> dict[str, Any]:
        """Return the cursor before the next batch: a small JSON-able dict, the same on every process."""
        return self.plan.cursor(self._sample)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken; O(1). Raise StateError, naming the part that differs, for another plan's or other data's."""
        self._reader.set_state(state)
        self._ahead.clear()
        self._sample = self._reader.sample
        self._step = 0

    def close(self) -> None:
        """Stop the threads; what was sent ahead is dropped. Done by ``with``."""
        if self._ahead:
            self._reader.seek(self._sample)  # so that len() still says what was received
        self._reader.close()
        self._ahead.clear()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send_ahead(self) -> None:
        """Keep the batches under way that there shall be, while there are any."""
        while len(self._ahead) <= self.depth:
            try:
                size, rows = self._reader.batch_size, self._reader.rows
                batch = next(self._reader, None)
                if batch is None:
                    return
                self._ahead.append(self._send(batch, size, rows))
            except Exception:
                # What was not sent was not read, and what was sent comes before the error.
                self._reader.seek(self._ahead[-1].next_sample if self._ahead else self._sample)
                if not self._ahead:
                    raise
                return

    def _send(self, batch: nc.Batch, size: int, rows: npt.NDArray[np.int64]) -> _Sent:
        """Return a batch whose transfer has begun; JAX may alias what is packed, so nobody writes to it any more."""
        layout = self._layout = self._layout or layout_of(batch, self._columns, self.plan.row_length)
        packed = pack(batch, layout, self._columns)
        parts = None
        if self._is_compared(self._step + len(self._ahead)):
            held = check.Held(packed, layout, rows, self._columns)
            parts = check.digests_of_parts(batch, held, size, num_parts(self.sharding, 0))
        in_fields = {field.key for field in layout.fields}
        arrays = {
            key: held_rows if stays(key, held_rows) else self._global_array(held_rows, size, rows)
            for key, held_rows in batch.items()
            if key not in in_fields
        }
        on_devices = Batch(self._global_packed(packed, size, rows), layout, arrays)
        return _Sent(on_devices, size, rows, self._reader.sample, parts)

    def _is_compared(self, step: int) -> bool:
        return bool(self.check_every) and step % self.check_every == 0

    @property
    def _num_parts(self) -> int:
        return num_parts(self.sharding, 0) * self._columns.num_parts

    def _gather(self, parts: npt.NDArray[np.uint64], *, failed: bool = False) -> tuple[list[int], check.UInt64]:
        """Tell the other processes of the mesh what this one is about to serve; return what all of them told."""
        plan = f"{self.plan.fingerprint} {self.plan.skips.runs}"
        mine = check.numbers(
            step=self._step, plan=plan, sample=self._sample, options=self._options, parts=parts, failed=failed
        )
        assert isinstance(self.sharding.mesh, Mesh)  # not an AbstractMesh, whose devices nothing can hold
        return check.gather(mine, self.sharding.mesh)

    def _global_packed(self, packed: npt.NDArray[Any], size: int, rows: npt.NDArray[np.int64]) -> jax.Array:
        """Return the global array of which this process holds, of ``rows``, the parts that are packed."""
        parts, width = self._columns.parts, packed.shape[2]
        if not self._columns.cut:
            return self._global_array(packed[0], size, rows)

        def shard(index: tuple[slice, ...]) -> npt.NDArray[Any]:
            part = index[1].indices(self._columns.num_parts)[0]
            return packed[parts.index(part), _within(rows, index[0], size), None]

        return _made((size, self._columns.num_parts, width), self._over_both, shard)

    def _global_array(self, held: npt.NDArray[Any], size: int, rows: npt.NDArray[np.int64]) -> jax.Array:
        """Return the global array of which this process holds ``rows``."""
        return _made((size, *held.shape[1:]), self._over_rows, lambda index: held[_within(rows, index[0], size)])


def _made(
    shape: tuple[int, ...], sharding: NamedSharding, shard: Callable[[tuple[slice, ...]], npt.NDArray[Any]]
) -> jax.Array:
    # JAX's types allow None for an index, which no NamedSharding has.
    return jax.make_array_from_callback(shape, sharding, shard)  # type: ignore[arg-type]


def _within(rows: npt.NDArray[np.int64], index: slice, size: int) -> slice:
    """Return where rows of a global batch are among those held."""
    start, stop, _ = index.indices(size)
    at = int(rows.searchsorted(start))
    return slice(at, at + stop - start)


class _Sent(NamedTuple):
    """A batch whose transfer has begun."""

    batch: Batch
    batch_size: int
    rows: npt.NDArray[np.int64]
    next_sample: int  # the first of the batch behind it
    parts: npt.NDArray[np.uint64] | None  # their digests, where they are to be compared
