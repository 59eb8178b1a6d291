"""One chunk of LitData's: its items, cut into leaves; see litdata.py for the bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from prep.foreign.compressed import decompress, zstd_size
from prep.foreign.layout import BYTES, INTEGERS, Column, Kind, Rows
from prep.foreign.ragged import items_of, stretches_of

INDEX = "index.json"
_MAGIC = b"LDFZ01\0\0"
_FRAME = np.dtype([("first", "<u4"), ("count", "<u4"), ("at", "<u8"), ("bytes", "<u4"), ("raw", "<u4")])
_MOST_BYTES = 2**32 - 1  # offsets are u32
_BATCH_BYTES = 8 << 20
_ARRAY = re.compile(r"no_header_(tensor|numpy):(\d{1,3})")

# LitData's own numbers of the integer types; two of torch's where it has two names for one type.
_CODES = {
    "tensor": {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"},
    "numpy": {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8"},
}

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk; see Piece.

    Attributes:
        path: of its file. raw_bytes, items, tokens: of the chunk, by the index; tokens may be None.
        level: of the compression: ``chunk``, ``batch``, ``sample`` or None.
        names, formats: of the leaves of an item.
        trees: whether an item begins with the sizes of its leaves.
    """

    path: Path
    num_bytes: int
    raw_bytes: int
    items: int
    tokens: int | None
    level: str | None
    names: tuple[str, ...]
    formats: tuple[str, ...]
    trees: bool

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        wanted = [self.names.index(name) for name in names]
        total = 0
        for first, data, offsets in self._stretches():
            starts, sizes = self._leaves(data, offsets, first)
            columns = {}
            for name, number in zip(names, wanted, strict=True):
                columns[name] = self._values(data, number, starts[number], sizes[number], first)
            total += sum(len(columns[name].values) for name in names[:1])
            yield Rows(str(self.path), first, columns)
        if not self.trees and self.tokens not in (None, total):
            raise FormatError(
                f"{self.path}: the chunk has {total:,} tokens, but {INDEX} says {self.tokens:,} (dim): it is damaged, or of another data set."
            )

    def _stretches(self) -> Iterator[tuple[int, bytes, Int64]]:
        """Yield runs of items: the number of the first, bytes, and where in them each begins, and the last ends."""
        data = self.path.read_bytes()
        if self.level == "batch":
            yield from self._frames(data)
            return
        if self.level == "chunk":
            room = self.raw_bytes + 4 + 4 * (self.items + 1)  # some versions counted the items alone
            data = decompress(data, "zstd", min(room, _MOST_BYTES), str(self.path))
        offsets = self._offsets(data)
        for first, last in stretches_of(offsets, _BATCH_BYTES):
            if self.level == "sample":
                yield self._samples(data, offsets[first : last + 1], first)
            else:
                yield first, data, offsets[first : last + 1]

    def _offsets(self, data: bytes) -> Int64:
        start = 4 + 4 * (self.items + 1)
        count = int.from_bytes(data[:4], "little")
        if len(data) < start or count != self.items:
            raise FormatError(
                f"{self.path}: byte 0: the chunk has {count:,} items in {len(data):,} bytes, but {INDEX} says {self.items:,}: it is damaged, or of "
                "another data set."
            )
        self._check_size(len(data), start)
        offsets = np.frombuffer(data, dtype="<u4", count=count + 1, offset=4).astype(np.int64)
        if offsets[0] != start or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
            raise FormatError(
                f"{self.path}: byte 4: the offsets of its items run from {int(offsets[0]):,} to {int(offsets[-1]):,}, expected from {start:,} to "
                f"{len(data):,}, "
                "never decreasing: the chunk is damaged, or of 4 GiB or more."
            )
        return offsets

    def _check_size(self, found: int, start: int) -> None:
        if self.level != "sample" and found not in (self.raw_bytes, self.raw_bytes + start):
            raise FormatError(
                f"{self.path}: the chunk has {found:,} bytes, but {INDEX} says {self.raw_bytes:,}: the copy was cut short: copy it again."
            )

    def _samples(self, data: bytes, offsets: Int64, first: int) -> tuple[int, bytes, Int64]:
        """Decompress items that are one zstd frame each."""
        parts = []
        for at, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            where = f"{self.path}: item {first + at:,}"
            expected = zstd_size(data[start:stop], where)
            content = decompress(data[start:stop], "zstd", expected, where)
            if len(content) != expected:
                raise FormatError(
                    f"{where}: {len(content):,} bytes come out of it, expected {expected:,}: it is damaged."
                )
            parts.append(content)
        return first, b"".join(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64)

    def _frames(self, data: bytes) -> Iterator[tuple[int, bytes, Int64]]:
        """Yield the items of each frame of a chunk that was compressed some items at a time."""
        offsets, frames, start = self._directory(data)
        done, at = 0, start
        for number, frame in enumerate(frames):
            first, count, begin, size, raw = (int(frame[key]) for key in ("first", "count", "at", "bytes", "raw"))
            if first != done or count < 1 or first + count > self.items or begin != at or begin + size > len(data):
                raise FormatError(
                    f"{self.path}: frame {number:,} holds items {first:,} … {first + count:,} at bytes {begin:,} … {begin + size:,}, expected items "
                    f"from {done:,} "
                    f"at byte {at:,}: the chunk is damaged."
                )
            local = offsets[first : first + count + 1] - offsets[first]
            where = f"{self.path}: frame {number:,}"
            content = decompress(data[begin : begin + size], "zstd", int(local[-1]), where)
            if len(content) != raw or raw != local[-1]:
                raise FormatError(
                    f"{where}: {len(content):,} bytes come out of it, expected {raw:,} by its entry and {int(local[-1]):,} by the offsets: it is damaged."
                )
            yield first, content, local
            done, at = first + count, begin + size
        if done != self.items or at != len(data):
            raise FormatError(
                f"{self.path}: its frames hold {done:,} of {self.items:,} items and end at byte {at:,} of {len(data):,}: the chunk is damaged."
            )

    def _directory(self, data: bytes) -> tuple[Int64, npt.NDArray[Any], int]:
        """Return the offsets of the items, the entries of the frames, and where the first frame begins."""
        head = np.frombuffer(data[12:24].ljust(12, b"\0"), dtype="<u4")
        count, number = int(head[0]), int(head[2])
        start = 24 + 4 * (count + 1)
        end = start + _FRAME.itemsize * number
        if data[:8] != _MAGIC or data[8:10] != b"\1\0" or count != self.items or end > len(data):
            raise FormatError(
                f"{self.path}: byte 0: {data[:10]!r} with {count:,} items and {number:,} frames, expected {_MAGIC!r}, version 1, and the "
                f"{self.items:,} items that "
                f"{INDEX} says: the chunk is damaged or newer."
            )
        offsets = np.frombuffer(data, dtype="<u4", count=count + 1, offset=24).astype(np.int64)
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise FormatError(f"{self.path}: byte 24: the offsets of its items decrease: the chunk is damaged.")
        return offsets, np.frombuffer(data, dtype=_FRAME, count=number, offset=start), end

    def _leaves(self, data: bytes, offsets: Int64, first: int) -> tuple[list[Int64], list[Int64]]:
        """Return where each leaf of the items begins, and its size."""
        if not self.trees:
            return [offsets[:-1]], [np.diff(offsets)]
        head = 4 * len(self.names)
        room = np.diff(offsets) - head
        content = np.frombuffer(data, dtype=np.uint8)
        wrong = np.flatnonzero(room < 0)
        if not len(wrong):
            heads = content[offsets[:-1, None] + np.arange(head)].reshape(len(room), head).view("<u4").astype(np.int64)
            wrong = np.flatnonzero(heads.sum(axis=1) != room)
        if len(wrong):
            raise FormatError(
                f"{self.path}: item {first + int(wrong[0]):,}: its leaves do not fill its {int(room[wrong[0]]) + head:,} bytes: the chunk is damaged, "
                "or data_format "
                "is of another data set."
            )
        starts = offsets[:-1, None] + head + np.cumsum(heads, axis=1) - heads
        return list(starts.T), list(heads.T)

    def _values(self, data: bytes, number: int, starts: Int64, sizes: Int64, first: int) -> Column:
        kind = kind_of(self.formats[number])
        values = items_of(data, starts, sizes)
        if kind.dtype is None:
            return Column(values, sizes)
        wrong = np.flatnonzero(sizes % kind.dtype.itemsize)
        if len(wrong):
            raise FormatError(
                f"{self.path}: item {first + int(wrong[0]):,}: {self.names[number]} has {int(sizes[wrong[0]]):,} bytes, no multiple of "
                f"{kind.dtype.itemsize}, the "
                f"size of {kind.dtype}: the chunk is damaged."
            )
        return Column(values.view(kind.dtype), sizes // kind.dtype.itemsize)


def kind_of(text: str) -> Kind:
    """Return what a leaf holds, by its entry in ``data_format``."""
    match = _ARRAY.fullmatch(text)
    if match is not None and int(match[2]) in _CODES[match[1]]:
        return Kind(holds=INTEGERS, dtype=np.dtype(_CODES[match[1]][int(match[2])]))
    if text == "bytes":
        return Kind(holds=BYTES)
    return Kind(holds="pickled objects, which are never unpickled" if text == "pickle" else text)
