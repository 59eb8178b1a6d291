"""Assembly: pieces become shards, in the order of the tasks, while later tasks are still being done.

Where a shard ends follows from the documents alone: before the one that would exceed ``tokens_per_shard``. Each shard has a thread of its own, because
what it does (copy, checksum, write, wait for the disk) happens outside of Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.publish import shard_name
from neutral_core.format.shard import Shard
from neutral_core.format.shard_writer import Schema, ShardWriter

_CHUNK_DOCUMENTS = 4096
_THREADS = 4
_SYNC_BYTES = 64 << 20  # written between two waits for the disk, so that the last one is short


class _Part(NamedTuple):
    """Documents first … last of a piece, and what to add to their line numbers."""

    piece: Shard
    first: int
    last: int
    line_base: int


class Assembly:
    """Use it with ``with``: on an error nothing is left under a shard's name but finished shards.

    Args:
        folder: where the shards are written; it exists and is empty.
        schema: of pieces and shards.
        tokens_per_shard: a shard ends before the document that would exceed it; documents are never split.
    """

    def __init__(self, folder: Path, schema: Schema, tokens_per_shard: int) -> None:
        if type(tokens_per_shard) is not int or tokens_per_shard < 1:
            raise ValueError(f"tokens_per_shard is {tokens_per_shard!r}, expected a positive integer.")
        self._folder = folder
        self._schema = schema
        self._limit = tokens_per_shard
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="shard")
        self._shards: list[Future[Path]] = []
        self._next()

    def add(self, piece: Path, line_base: int) -> None:
        """Append the documents of a piece; raise what an earlier one brought about, FormatError where a piece is damaged."""
        for shard in self._shards:
            if shard.done():
                shard.result()
        opened = Shard(piece, check="blocks")
        documents = opened.num_documents
        offsets = (
            opened.offsets().at(np.arange(documents + 1)) if self._tokens + opened.num_tokens > self._limit else None
        )
        first = 0
        while first < documents:
            last = documents if offsets is None else self._fitting(offsets, first)
            if last == first:
                self._parts.put(None)
                self._next()
                continue
            # Each shard is written by a thread of its own, which has the piece to itself.
            self._parts.put(_Part(opened if first == 0 else Shard(piece, check="blocks"), first, last, line_base))
            self._tokens += opened.num_tokens if offsets is None else int(offsets[last] - offsets[first])
            self._documents += last - first
            first = last

    def close(self) -> list[Path]:
        """Finish the last shard; return the paths of all, in order."""
        self._parts.put(None)
        return [shard.result() for shard in self._shards]

    def __enter__(self) -> Assembly:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._parts.put(_Stopped())
        self._threads.shutdown(wait=True, cancel_futures=kind is not None)

    def _fitting(self, offsets: npt.NDArray[np.int64], first: int) -> int:
        """Return the end of the documents from ``first`` on that the open shard still takes; one that is larger than a shard has its own."""
        last = int(np.searchsorted(offsets, offsets[first] + self._limit - self._tokens, side="right")) - 1
        return max(last, first if self._documents else first + 1)

    def _next(self) -> None:
        self._tokens = self._documents = 0
        self._parts: SimpleQueue[_Part | _Stopped | None] = SimpleQueue()
        path = self._folder / shard_name(len(self._shards))
        self._shards.append(self._threads.submit(_write, path, self._schema, self._parts))


class _Stopped(Exception):  # noqa: N818 - no error: the run was stopped, and the shard with it
    """The end of a shard that nobody wants any more."""


def _write(path: Path, schema: Schema, parts: SimpleQueue[_Part | _Stopped | None]) -> Path:
    synced = 0
    with ShardWriter(path, schema) as writer:
        while (part := parts.get()) is not None:
            if isinstance(part, _Stopped):
                raise part
            try:
                for tokens, lengths, fields in _chunks(part):
                    writer.add_many(tokens, lengths, fields)
            except FormatError as error:
                raise FormatError(
                    f"a piece of this run was damaged: run the same command again, to make it anew ({error})"
                ) from None
            if (writer.num_tokens - synced) * schema.dtype.itemsize >= _SYNC_BYTES:
                writer.sync()
                synced = writer.num_tokens
    return path


def _chunks(part: _Part) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64], dict[str, Any]]]:
    """Yield documents, some thousands at a time, with their fields."""
    piece = part.piece
    with_origin = bool(piece.open().fields)
    found = piece.offsets()
    for first in range(part.first, part.last, _CHUNK_DOCUMENTS):
        last = min(first + _CHUNK_DOCUMENTS, part.last)
        offsets = found.at(np.arange(first, last + 1))
        values: dict[str, Any] = {}
        if with_origin:
            values["document.line"] = piece.items("document.line", first, last) + part.line_base
            edges = piece.items("ragged.path.offsets", first, last + 1)
            values["ragged.path"] = (piece.items("ragged.path", int(edges[0]), int(edges[-1])), np.diff(edges))
        yield piece.read(int(offsets[0]), int(offsets[-1])), np.diff(offsets), values
        piece.release()  # mapped pages count as memory, and a piece may be large
