"""The core's loader, with its rows as global jax.Arrays.

    sharding's own index map ──▶ rows of this process ──core──▶ numpy, once per row ──▶ a shard per device ──▶ global arrays

Which rows a process reads follows from the sharding alone, never from the number of the process: meshes that interleave processes, or
replicate the batch over them, are served right. The global shape is always given, so a process can't change it by holding fewer rows.

Host memory: JAX's CPU backend aliases numpy memory that is aligned, and transfers to other devices may still be under way when a call
returns. Here no array is ever written after it went to JAX: each chunk that the core reads is fresh memory and is never used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding

import neutral_core as nc
from jax_adapter import check
from jax_adapter.rows import addressable_rows, check_columns, num_parts, with_axes
from jax_adapter.unpack import HOST_KEYS
from neutral_core.batch_sizes import BatchSize


class Loader:
    """Serve a plan's global batches in order, as global arrays; an iterator, also a context manager.

    Args:
        plan: what to serve.
        batch_size: of the *global* batch, in rows; divisible by the number of parts into which the sharding cuts rows. Or a schedule, as
            ``neutral_core.Loader`` has it; each size that it names is a shape to compile for.
        sharding: a NamedSharding whose first axis is rows and whose second, if it has one, is tokens; one-dimensional arrays take its first only.
            For a context axis give rows only and let ``unpack(…, sharding=…)`` cut the sequence: rows of seq_len + 1 seldom divide. In either
            case a process reads whole rows on the host, though its devices hold a part: the core has no reading of columns.
        num_samples: the pass ends before this sample; None: never.
        last: what becomes of the samples after the last whole batch of a finite pass: ``drop``, or ``pad``: a last batch with padding rows
            (sample −1, no loss). With ``pad`` every batch has the key ``loss_mask``. All processes take the same number of steps either way.
        threads: that read ahead on the host; 0 reads when asked.
        depth: batches whose transfer has begun before they are asked for, ≥ 0.
        check_every: the processes of the mesh compare plan, cursor and the rows that several of them hold at the first batch, the first one after
            ``set_state``, and every so many batches after it (a collective that waits for the steps before it, as every comparison must); 0:
            never. With it all processes take the same batches in turn, and set states together, as training does. One process compares nothing.

    Attributes:
        batch_size, rows: of the next batch: its size; and int64[r], ascending: the rows of it that the devices of this process hold; each is
            read once.

    Each batch is a dict. ``tokens`` uint8/16/32 [batch_size, seq_len + 1 + extra_tokens], narrow as stored (``unpack`` widens on the device);
    ``source`` int32[batch_size]; with a plan's ``documents`` also ``segment_ids`` and ``positions`` int32, as tokens; with ``pad`` also
    ``loss_mask`` bool [batch_size, seq_len]: global arrays. ``sample`` stays a numpy int64[r]: of this process' ``rows``, in their order. Leave
    it out of what you give to jit: without x64 JAX would wrap it silently.

    ``get_state()`` counts the batches that the caller received, not those ahead, also after an error and after ``close()``; it is the same on
    every process and resumes at any sharding, ``batch_size``, ``threads`` and ``depth``. An error of the reader comes when its batch is due,
    after those that were under way; asked again, the loader tries that batch again.

    Raises:
        TypeError: the sharding is no NamedSharding.
        ValueError: an argument outside its range; a batch size that the sharding does not divide, with the nearest that it does.
        FormatError, OSError: from the iteration, when a shard is damaged or cannot be read.
        RuntimeError: from the iteration, on every process: the processes differ; it names the step, counted from the loader's making or its last
            ``set_state``, the sample, the processes and what differs. The batch was not handed out.
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
        self._shardings = {ndim: with_axes(sharding, ndim) for ndim in (1, 2)}
        self.plan = plan
        self.sharding = sharding
        self.depth = depth
        several = len({device.process_index for device in sharding.mesh.devices.flat}) > 1
        self.check_every = check_every if several else 0
        self._options = f"{batch_size} {num_samples} {last}"

        check_columns(self._shardings, {plan.row_length} | ({plan.seq_len} if last == "pad" else set()))

        def rows(size: int) -> npt.NDArray[np.int64]:
            return addressable_rows(sharding, size)

        self._reader = nc.Loader(
            plan, batch_size=batch_size, rows=rows, num_samples=num_samples, last=last, threads=threads
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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch, its transfer perhaps still under way; raise StopIteration at the end of a finite pass."""
        self._send_ahead()
        if not self._ahead:
            raise StopIteration
        sent = self._ahead[0]
        if sent.parts is not None:
            self._compare(sent, sent.parts)
        self._ahead.popleft()
        self._sample = sent.next_sample
        self._step += 1
        return sent.arrays

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
                arrays = {
                    key: array if key in HOST_KEYS else self._global_array(array, size, rows)
                    for key, array in batch.items()
                }
                parts = self._digests(batch, rows, size, self._step + len(self._ahead))
                self._ahead.append(_Sent(arrays, size, rows, self._reader.sample, parts))
            except Exception:
                # What was not sent was not read, and what was sent comes before the error.
                self._reader.seek(self._ahead[-1].next_sample if self._ahead else self._sample)
                if not self._ahead:
                    raise
                return

    def _digests(
        self, batch: nc.Batch, rows: npt.NDArray[np.int64], size: int, step: int
    ) -> npt.NDArray[np.uint64] | None:
        if not self.check_every or step % self.check_every:
            return None
        return check.digests_of_parts(batch, rows, num_parts(self._shardings[1], 0, 1), size)

    def _compare(self, sent: _Sent, parts: npt.NDArray[np.uint64]) -> None:
        plan = f"{self.plan.fingerprint} {self.plan.skips.runs}"
        mine = check.numbers(step=self._step, plan=plan, sample=self._sample, options=self._options, parts=parts)
        assert isinstance(self.sharding.mesh, Mesh)  # not an AbstractMesh, whose devices nothing can hold
        check.compare(*check.gather(mine, self.sharding.mesh), batch_size=sent.batch_size)

    def _global_array(self, held: npt.NDArray[Any], batch_size: int, rows: npt.NDArray[np.int64]) -> jax.Array:
        """Return the global array of which this process holds ``rows``, from their content; may alias it, so nobody writes to it any more."""

        def shard(index: tuple[slice, ...] | None) -> npt.NDArray[Any]:
            assert index is not None  # JAX gives each shard's place in the global array
            start, stop, _ = index[0].indices(batch_size)
            at = int(np.searchsorted(rows, start))
            part: npt.NDArray[Any] = held[(slice(at, at + stop - start), *index[1:])]
            return part

        return jax.make_array_from_callback((batch_size, *held.shape[1:]), self._shardings[held.ndim], shard)


class _Sent(NamedTuple):
    """A batch whose transfer has begun."""

    arrays: dict[str, Any]
    batch_size: int
    rows: npt.NDArray[np.int64]
    next_sample: int  # the first of the batch behind it
    parts: npt.NDArray[np.uint64] | None  # their digests, where they are to be compared
