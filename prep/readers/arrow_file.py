"""The footer of an Arrow file: where each record batch begins, and how many rows it has, which pyarrow does not say without reading it.

    ARROW1 … messages … footer, bytes of the footer (int32), ARROW1

Footer and messages are FlatBuffers: a table points at its vtable, which holds for each field where it is in the table, or 0. Everything is little-endian.
Source: Apache Arrow's format/File.fbs and Message.fbs; the FlatBuffers internals page.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes

_MAGIC = b"ARROW1"
_TAIL = 4 + len(_MAGIC)
_CONTINUED = b"\xff\xff\xff\xff"  # before a message's size; files of before 2019 have none
_FOOTER_BATCHES = 3  # field of Footer: a vector of Block: offset int64, bytes of the metadata int32, 4 of padding, bytes of the body int64
_BLOCK = struct.Struct("<qi4xq")
_MESSAGE_HEADER, _BATCH_LENGTH = 2, 0  # fields of Message and RecordBatch


class Batch(NamedTuple):
    """A record batch: the byte at which it begins, and its rows."""

    begin: int
    num_rows: int


def is_one(path: Path) -> bool:
    """Return whether a file begins as an Arrow file does; a stream does not."""
    return first_bytes(path, len(_MAGIC)) == _MAGIC


def batches(path: Path) -> list[Batch]:
    """Return the record batches of an Arrow file, in order; reads the footer and some hundred bytes of each.

    Raises:
        FormatError: the footer, or what it points at, is not there.
    """
    try:
        with path.open("rb") as file:
            return [Batch(begin, _rows(file, begin, num_bytes)) for begin, num_bytes in _blocks(file)]
    except (struct.error, OverflowError, ValueError) as error:
        raise FormatError(
            f"{path}: its footer does not say where its record batches are ({error}): the file is damaged or was cut short: copy it again."
        ) from None


def _blocks(file: BinaryIO) -> list[tuple[int, int]]:
    """Return the first byte of each record batch and the bytes of its metadata."""
    end = file.seek(0, 2)
    file.seek(end - _TAIL)
    size = _int32(file.read(_TAIL), 0)
    file.seek(end - _TAIL - size)
    footer = file.read(max(size, 0))
    vector = _field(footer, _uint32(footer, 0), _FOOTER_BATCHES)
    if vector is None:
        return []
    vector += _uint32(footer, vector)
    count = _uint32(footer, vector)
    return [_BLOCK.unpack_from(footer, vector + 4 + number * _BLOCK.size)[:2] for number in range(count)]


def _rows(file: BinaryIO, begin: int, num_bytes: int) -> int:
    file.seek(begin)
    data = file.read(max(num_bytes, 0))
    data = data[8 if data.startswith(_CONTINUED) else 4 :]
    header = _field(data, _uint32(data, 0), _MESSAGE_HEADER)
    if header is None:
        raise ValueError(f"the message at byte {begin:,} has no header")
    length = _field(data, header + _uint32(data, header), _BATCH_LENGTH)
    return 0 if length is None else int(struct.unpack_from("<q", data, length)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return where a field of a table is, or None where it has its default."""
    vtable = table - _int32(data, table)
    if vtable < 0:
        raise ValueError(f"a table at byte {table:,} has no vtable")
    (size,) = struct.unpack_from("<H", data, vtable)
    at = 4 + 2 * number
    if at >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + at)
    return table + offset if offset else None


def _int32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<i", data, at)[0])


def _uint32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
