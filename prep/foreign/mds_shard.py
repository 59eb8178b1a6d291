"""One shard of MDS: its samples, cut into columns; see mds.py for the bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from prep.foreign.compressed import decompress
from prep.foreign.files import parse_json, short
from prep.foreign.layout import Rows
from prep.foreign.mds_values import Place, values_of
from prep.foreign.ragged import stretches_of

INDEX = "index.json"
CONFIGURATION = ("column_encodings", "column_names", "column_sizes")
_BATCH_BYTES = 8 << 20

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class MdsShard:
    """A shard; see Piece.

    Attributes:
        path: of the file that is there.
        num_bytes: of it, by the index.
        raw_bytes: of the shard, by the index: the same where it is not compressed.
        algorithm: of the compression, or None.
        hashes: (name, hexadecimal) of what ``path`` holds, and of the shard.
        samples: by the index.
        names, encodings, sizes: of the columns.
    """

    path: Path
    num_bytes: int
    raw_bytes: int
    algorithm: str | None
    hashes: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
    samples: int
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        data = self._content()
        offsets = self._offsets(data)
        wanted = [self.names.index(name) for name in names]
        for first, last in stretches_of(offsets, _BATCH_BYTES):
            starts, sizes = self._columns(data, offsets[first : last + 1], first)
            columns = {}
            for name, number in zip(names, wanted, strict=True):
                place = Place(self.path, name, first)
                columns[name] = values_of(data, self.encodings[number], starts[number], sizes[number], place)
            yield Rows(str(self.path), first, columns)

    def _content(self) -> bytes:
        """Return the shard, decompressed, after checking sizes and hashes."""
        found = self.path.stat().st_size
        if found != self.num_bytes:
            raise FormatError(
                f"{self.path}: the file has {found:,} bytes, but {INDEX} says {self.num_bytes:,}: the copy was cut short: copy it again."
            )
        data = self.path.read_bytes()
        _check_hashes(self.path, data, self.hashes[0])
        if self.algorithm is None:
            return data
        data = decompress(data, self.algorithm, self.raw_bytes, str(self.path))
        if len(data) != self.raw_bytes:
            raise FormatError(
                f"{self.path}: {len(data):,} bytes come out of it, but {INDEX} says {self.raw_bytes:,}: the copy was cut short: copy it again."
            )
        _check_hashes(self.path, data, self.hashes[1])
        return data

    def _offsets(self, data: bytes) -> Int64:
        """Return where samples begin, checked against the configuration inside the shard and its size."""
        start = 4 + 4 * (self.samples + 1)
        count = int.from_bytes(data[:4], "little")
        if len(data) < start or count != self.samples:
            raise FormatError(
                f"{self.path}: byte 0: the shard has {count:,} samples in {len(data):,} bytes, but {INDEX} says {self.samples:,}: it is damaged, or "
                "of another "
                "data set."
            )
        offsets = np.frombuffer(data, dtype="<u4", count=count + 1, offset=4).astype(np.int64)
        if not start <= offsets[0] <= len(data) or offsets[-1] != len(data) or (np.diff(offsets) < 0).any():
            raise FormatError(
                f"{self.path}: byte 4: the offsets of its samples run from {int(offsets[0]):,} to {int(offsets[-1]):,}, expected from {start:,} or more to "
                f"{len(data):,}, never decreasing: the shard is damaged."
            )
        inner = parse_json(data[start : int(offsets[0])], f"{self.path}: byte {start:,}: its configuration")
        expected = [list(self.encodings), list(self.names), list(self.sizes)]
        if not isinstance(inner, dict) or [inner.get(key) for key in CONFIGURATION] != expected:
            raise FormatError(
                f"{self.path}: byte {start:,}: the columns of the shard are not those that {INDEX} says: they belong to two data sets."
            )
        return offsets

    def _columns(self, data: bytes, offsets: Int64, first: int) -> tuple[list[Int64], list[Int64]]:
        """Return where the values of each column begin, and their sizes, of samples that follow each other."""
        free = [number for number, size in enumerate(self.sizes) if size is None]
        head = 4 * len(free)
        room = np.diff(offsets) - head
        if (room < 0).any():
            at = first + int(np.flatnonzero(room < 0)[0])
            raise FormatError(
                f"{self.path}: sample {at:,} is shorter than the sizes of its columns: the shard is damaged."
            )
        content = np.frombuffer(data, dtype=np.uint8)
        heads = content[offsets[:-1, None] + np.arange(head)].reshape(len(room), head).view("<u4")
        sizes = [
            heads[:, free.index(number)].astype(np.int64) if size is None else np.full(len(room), size, dtype=np.int64)
            for number, size in enumerate(self.sizes)
        ]
        wrong = np.flatnonzero(sum(sizes, np.zeros(len(room), dtype=np.int64)) != room)
        if len(wrong):
            at = int(wrong[0])
            raise FormatError(
                f"{self.path}: sample {first + at:,}: its columns have {sum(int(size[at]) for size in sizes):,} bytes, but there are "
                f"{int(room[at]):,}: the shard "
                "is damaged."
            )
        starts, begin = [], offsets[:-1] + head
        for size in sizes:
            starts.append(begin)
            begin = begin + size
        return starts, sizes


def is_known(algorithm: str) -> bool:
    """Return whether hashlib has a hash of this name whose digest has one length."""
    return algorithm in hashlib.algorithms_available and not algorithm.startswith("shake")


def _check_hashes(path: Path, data: bytes, hashes: Sequence[tuple[str, str]]) -> None:
    for name, expected in hashes:
        if is_known(name):
            found = hashlib.new(name, data, usedforsecurity=False).hexdigest()
            if found != expected:
                raise FormatError(
                    f"{path}: its {name} is {found}, but {INDEX} says {short(expected)}: it is damaged: copy it again."
                )
