"""TFRecord files of tf.Example, read without TensorFlow; plain, gzip or zlib.

    u64 length    u32 masked CRC-32C of the length    data    u32 masked CRC-32C of the data        over and over; no header, no index, no count

Both checksums of every record are checked. Nothing in a file says how many records it has: one that was cut short between two records cannot be told from
a whole one. Columns are the features of the first record of the first file; every record has them.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes
from prep.foreign.compressed import Inflated
from prep.foreign.crc32c import crc32c, crc32c_many, masked
from prep.foreign.example import NotExampleError, columns_of, kinds_of
from prep.foreign.files import data_files, holds
from prep.foreign.layout import Foreign, ForeignLayout, Kind, Rows

_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 1 << 14
_MOST_BYTES = 2**31 - 1  # of a message of protocol buffers
_STEP = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """One file; see Piece."""

    path: Path
    num_bytes: int
    kinds: Mapping[str, Kind]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        first = 0
        for records in _batches(self.path):
            try:
                columns = columns_of(records, names, dict(self.kinds))
            except NotExampleError as error:
                raise FormatError(f"{self.path}: record {first + error.args[1]:,}: {error.args[0]}.") from None
            yield Rows(str(self.path), first, columns)
            first += len(records)


def _open(path: Path) -> Foreign:
    files, notes = data_files(path, _is_one, "TFRecord")
    first = next(_batches(files[0], most_records=1))[0]
    try:
        kinds = kinds_of(first)
    except NotExampleError as error:
        raise FormatError(f"{files[0]}: record 0: {error.args[0]}.") from None
    pieces = [_File(path=file, num_bytes=file.stat().st_size, kinds=kinds) for file in files]
    return Foreign(path=path, layout="tfrecord", columns=kinds, pieces=pieces, files=files, notes=notes)


def _is_one(path: Path) -> bool:
    """Return whether a file begins with a length and its checksum, as they are or compressed."""
    first = first_bytes(path, 4096)
    if _is_compressed(first):
        try:
            first = zlib.decompressobj(wbits=47).decompress(first, 12)
        except zlib.error:
            return False
    return _is_head(first)


def _is_head(first: bytes) -> bool:
    return len(first) >= 12 and masked(crc32c(first[:8])) == int.from_bytes(first[8:12], "little")


def _is_compressed(first: bytes) -> bool:
    """Return whether a file begins as gzip or zlib do and not as a record: a length may begin with the same bytes."""
    zlib_head = first[:1] == b"\x78" and int.from_bytes(first[:2], "big") % 31 == 0
    return (first[:2] == b"\x1f\x8b" or zlib_head) and not _is_head(first)


def _batches(path: Path, most_records: int = _BATCH_RECORDS) -> Iterator[list[bytes]]:
    """Yield the records of a file, checked, some megabytes at a time."""
    num_bytes = path.stat().st_size
    with path.open("rb") as raw:
        compressed = _is_compressed(first_bytes(path, 12))
        stream: BinaryIO = io.BufferedReader(Inflated(raw), _STEP) if compressed else raw
        limit = _MOST_BYTES if compressed else num_bytes
        at = number = 0
        while True:
            batch: list[bytes] = []
            sums: list[int] = []
            size = 0
            while size < _BATCH_BYTES and len(batch) < most_records:
                where = f"{path}: record {number + len(batch):,}, byte {at:,}"
                try:
                    head = stream.read(12)
                    if not head:
                        break
                    length = _length(head, where, limit if compressed else limit - at - 16)
                    data = _exactly(stream, length + 4, where)
                except (zlib.error, EOFError) as error:
                    raise FormatError(
                        f"{where}: the compressed data are damaged or cut short ({error}): copy it again."
                    ) from None
                batch.append(data[:length])
                sums.append(int.from_bytes(data[length:], "little"))
                size += length
                at += length + 16
            if not batch:
                return
            _check(path, batch, sums, number)
            yield batch
            number += len(batch)


def _length(head: bytes, where: str, room: int) -> int:
    if len(head) < 12:
        raise FormatError(f"{where}: the file ends inside a record's head: the copy was cut short: copy it again.")
    length, stored = struct.unpack("<QI", head)
    found = masked(crc32c(head[:8]))
    if found != stored:
        raise FormatError(
            f"{where}: the checksum of its length is {found:#010x}, expected {stored:#010x}: the file is damaged, or is no TFRecord."
        )
    if length > min(room, _MOST_BYTES):
        raise FormatError(
            f"{where}: it has {length:,} bytes, but there is room for {max(min(room, _MOST_BYTES), 0):,}: the copy was cut short: copy it again."
        )
    return int(length)


def _exactly(stream: BinaryIO, count: int, where: str) -> bytes:
    """Read so many bytes; a stream that claims more than it has does not make this process allocate them."""
    parts, left = [], count
    while left:
        part = stream.read(min(left, _STEP))
        if not part:
            raise FormatError(f"{where}: the file ends inside the record: the copy was cut short: copy it again.")
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check(path: Path, batch: Sequence[bytes], sums: Sequence[int], first: int) -> None:
    lengths = np.array([len(record) for record in batch], dtype=np.int64)
    plain = crc32c_many(b"".join(batch), lengths)
    found = ((plain >> np.uint32(15)) | (plain << np.uint32(17))) + np.uint32(0xA282EAD8)
    wrong = np.flatnonzero(found != np.array(sums, dtype=np.uint32))
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{path}: record {first + at:,}: the checksum of its data is {int(found[at]):#010x}, expected {sums[at]:#010x}: the file is damaged: copy it "
            "again."
        )


LAYOUT = ForeignLayout(name="tfrecord", recognises=lambda path: holds(path, _is_one), open=_open)
