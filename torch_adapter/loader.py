"""The core's loader, with its rows as tensors on the device, sent ahead of the step that uses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch

import neutral_core as nc
from neutral_core.batch_sizes import BatchSize
from torch_adapter.attention import count_documents
from torch_adapter.context import reads_whole_rows
from torch_adapter.ranks import Group, check_same, data_parallel_rank
from torch_adapter.transfer import AcceleratorEngine, Arrived, Copied, Ring
from torch_adapter.widen import Tensors, widen_batch, widen_tensors

STREAMED = ("cuda", "xpu")  # devices with pinned memory and streams; batches for others are copied when asked for


class Loader:
    """Serve a plan's global batches in order, this rank's rows of each as tensors; an iterator, also a context manager.

    Args:
        plan: what to serve.
        batch_size: of the *global* batch, in rows; divisible by the number of ranks. Or a schedule, as ``neutral_core.Loader`` has it.
        device: of the tensors; None: the accelerator if torch sees one, else the CPU.
        dtype: of token ids, segment_ids, positions and source: torch.int64 or torch.int32.
        dp_rank, dp_world_size: this process' share; left out: torch.distributed's where it is initialised, else all of it. From a device mesh:
            ``data_parallel_rank(mesh=…, dims=…)``.
        num_samples, last, threads: as in ``neutral_core.Loader``.
        depth: batches under way to a ``cuda`` or ``xpu`` device before they are asked for, ≥ 0; for other devices nothing is staged.
        cu_seqlens: add the keys ``cu_seqlens``, int32[documents + 1], and ``max_seqlen``, a Python int, of this rank's rows, as
            ``torch_adapter.cu_seqlens`` returns them, counted on the host before the batch is sent; the plan has documents=True.
        max_documents: with cu_seqlens: entries for so many documents in each batch; None: for those there are.

    Each batch is a dict of new tensors with the keys of ``Plan.read``: ``tokens``, ``segment_ids``, ``positions``, ``source`` of ``dtype``,
    ``sample`` int64, ``loss_mask`` bool. To a ``cuda`` or ``xpu`` device ids travel as stored and are widened there, on a stream of their own.

    Memory: on the host what ``neutral_core.Loader`` holds, and for ``cuda`` or ``xpu`` depth + 1 sets of pinned buffers, each of one batch of this rank
    as stored; on the device depth batches of ``dtype`` beside those that the caller holds, and the narrow one that is being widened. 64 rows of
    2,049 uint16 and depth=2: 0.8 MB pinned, and at int64 2.1 MB on the device.

    Keys, dtypes and shapes are constant, but for the length of ``cu_seqlens`` where max_documents is left out.

    ``state_dict()`` counts the batches that the caller received, not those ahead, also after an error and after ``close()``. An error of the
    reader comes when its batch is due, after those that were under way; asked again, the loader tries that batch again.

    Raises:
        ValueError: an argument outside its range; an id of 2^31 or more with torch.int32; more documents in a batch than max_documents.
        FormatError, OSError: from the iteration, when a shard is damaged or cannot be read.
    """

    def __init__(
        self,
        plan: nc.Plan,
        *,
        batch_size: BatchSize,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.int64,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        num_samples: int | None = None,
        last: str = "drop",
        threads: int = 1,
        depth: int = 2,
        cu_seqlens: bool = False,
        max_documents: int | None = None,
    ) -> None:
        if dtype not in (torch.int64, torch.int32):
            raise ValueError(f"dtype is {dtype}, expected torch.int64 or torch.int32.")
        if type(depth) is not int or depth < 0:
            raise ValueError(f"depth is {depth!r}, expected an integer from 0 on.")
        _check_documents(plan, cu_seqlens, max_documents)
        rank, world_size = data_parallel_rank(dp_rank, dp_world_size)
        self.plan = plan
        self.dtype = dtype
        self.cu_seqlens = cu_seqlens
        self.max_documents = max_documents
        self.device = _device(device)
        self._reader = nc.Loader(
            plan,
            batch_size=batch_size,
            dp_rank=rank,
            dp_world_size=world_size,
            num_samples=num_samples,
            last=last,
            threads=threads,
        )
        self._told = {
            "batch_size": _plain(batch_size),
            "num_samples": num_samples,
            "last": last,
        }  # what ranks must agree on
        self.depth = depth if self.device.type in STREAMED else 0
        self._send = _sender(self.device, dtype, self.depth)
        self._ahead: deque[tuple[Tensors, Copied, tuple[int, int] | None, int]] = deque()  # the last: the next sample
        self._sample = self._reader.sample  # the first of the next batch that is handed out

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch; raise StopIteration at the end of a finite pass."""
        self._send_ahead()
        if not self._ahead:
            raise StopIteration
        tensors, copied, counts, next_sample = self._ahead[0]
        copied.order(tensors)  # an error here leaves the batch to be asked for again
        self._ahead.popleft()
        self._sample = next_sample
        if counts is None:
            return tensors
        length, max_seqlen = counts
        return {**tensors, "cu_seqlens": tensors["cu_seqlens"][:length], "max_seqlen": max_seqlen}

    def __len__(self) -> int:
        """Return the batches still to come; raise TypeError for an endless pass."""
        return len(self._reader) + len(self._ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor before the next batch: a small JSON-able dict, the same on every rank."""
        return self.plan.cursor(self._sample)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, of this loader or of the core's or JAX's; raise StateError for another plan's."""
        self._reader.set_state(state)
        self._ahead.clear()
        self._sample = self._reader.sample

    def check_ranks(self, group: Group = None) -> None:
        """Raise StateError on every rank, naming the rank and what differs, unless all have the same plan, data, place and batch sizes.

        Args:
            group: of torch.distributed; None: all ranks. All of its ranks call this, between two batches: once before the first one, and whenever
                asked. Without torch.distributed there is nothing to compare.

        One gathering of 64 bits a rank; making a loader and iterating over it never communicate. Also seen: a dp_rank that nobody reads, or that
        more ranks read than the others.
        """
        plan, reader = self.plan, self._reader
        what = {
            **plan.parts(len(plan.phases) - 1),
            "documents": plan.documents,
            "extra_tokens": plan.extra_tokens,
            "skip": [list(run) for run in plan.skips.runs],
            "next sample": self._sample,
            "dp_world_size": reader.dp_world_size,
            **self._told,
        }
        check_same(what, reader.dp_rank, group)

    def close(self) -> None:
        """Stop the threads; what was sent ahead is dropped. Done by ``with``."""
        if self._ahead:
            self._reader.seek(self._sample)  # so that len() and state_dict() still say what was received
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
                batch = next(self._reader, None)
                if batch is None:
                    return
                self._check_range(batch)
                batch, counts = self._with_cu_seqlens(batch)
                self._ahead.append((*self._send(batch), counts, self._reader.sample))
            except BaseException as error:
                # What was not sent was not read, and what was sent comes before an error; Ctrl-C comes at once.
                self._reader.seek(self._ahead[-1][-1] if self._ahead else self._sample)
                if not self._ahead or not isinstance(error, Exception):
                    raise
                return

    def _with_cu_seqlens(self, batch: nc.Batch) -> tuple[nc.Batch, tuple[int, int] | None]:
        """Add cu_seqlens to a batch, padded to a constant length, which buffers need; return also the length to hand out, and max_seqlen."""
        if not self.cu_seqlens:
            return batch, None
        segment_ids, seq_len = batch["segment_ids"], self.plan.seq_len
        ends, max_seqlen = count_documents(segment_ids, seq_len, self.max_documents)
        most = self.max_documents or len(segment_ids) * seq_len
        sent = np.zeros(most + 1, dtype=np.int32)
        sent[: len(ends)] = ends
        return {**batch, "cu_seqlens": sent}, (len(ends), max_seqlen)

    def _check_range(self, batch: nc.Batch) -> None:
        tokens = batch["tokens"]
        if self.dtype == torch.int32 and tokens.dtype == np.uint32 and tokens.size and int(tokens.max()) >= 2**31:
            raise ValueError(f"the id {int(tokens.max()):,} does not fit torch.int32: ask for dtype=torch.int64.")


def _check_documents(plan: nc.Plan, cu_seqlens: bool, max_documents: int | None) -> None:
    if cu_seqlens and not plan.documents:
        raise ValueError("cu_seqlens=True, but the plan does not know its documents: make it with documents=True.")
    if cu_seqlens and not reads_whole_rows(plan):
        raise ValueError(
            "cu_seqlens=True, but the plan reads a slice of each row: where documents begin is told of whole rows."
        )
    if max_documents is not None and not cu_seqlens:
        raise ValueError(f"max_documents is {max_documents}, which is for cu_seqlens=True only.")
    if max_documents is not None and (type(max_documents) is not int or max_documents < 1):
        raise ValueError(f"max_documents is {max_documents!r}, expected None or an integer from 1 on.")


def _plain(batch_size: BatchSize) -> Any:
    """Return a size or a schedule as plain integers."""
    return np.asarray(batch_size).tolist()


def _device(device: torch.device | str | None) -> torch.device:
    """Return the device with its number, so that a later change of the current one does not move the batches."""
    found = torch.device("cpu") if device is None else torch.device(device)
    if device is None and torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator() or found
    if str(found) in STREAMED:  # no number given
        return torch.device(found.type, torch.accelerator.current_device_index())
    return found


def _sender(device: torch.device, dtype: torch.dtype, depth: int) -> Callable[[nc.Batch], tuple[Tensors, Copied]]:
    """Return what sends a batch to a device while ``depth`` others are under way."""
    if device.type in STREAMED:
        return Ring(AcceleratorEngine(device), partial(widen_tensors, dtype=dtype), slots=depth + 1).send

    def send(batch: nc.Batch) -> tuple[Tensors, Copied]:
        return {key: tensor.to(device) for key, tensor in widen_batch(batch, dtype).items()}, Arrived()

    return send
