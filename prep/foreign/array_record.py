"""ArrayRecord files, whose records are tf.Examples or bare ids, read by Google's own library (with grain).

A file is Riegeli's, of blocks of 64 KiB. What the library does not notice is checked here: a file that was cut short after its first block passes for one
without records, so the last block has to hold the postscript's magic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes
from prep.extras import require
from prep.foreign.example import NotExampleError, columns_of, kinds_of
from prep.foreign.files import data_files, holds
from prep.foreign.layout import Foreign, ForeignLayout, Kind, Rows

_MAGIC = bytes.fromhex("83af70d10d884a3f")
_BLOCK = 1 << 16
_POSTSCRIPT = 0x71930E704FDAE05E
_PIECE_BYTES = 64 << 20
_BATCH_RECORDS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Records first … last − 1 of a file; see Piece."""

    path: Path
    first: int
    last: int
    num_bytes: int
    kinds: Mapping[str, Kind]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        reader = _reader(self.path)
        try:
            for first in range(self.first, self.last, _BATCH_RECORDS):
                last = min(first + _BATCH_RECORDS, self.last)
                records = _read(reader, self.path, first, last)
                try:
                    columns = columns_of(records, names, dict(self.kinds))
                except NotExampleError as error:
                    raise FormatError(f"{self.path}: record {first + error.args[1]:,}: {error.args[0]}.") from None
                yield Rows(str(self.path), first, columns)
        finally:
            reader.close()


def _open(path: Path) -> Foreign:
    files, notes = data_files(path, _is_one, "ArrayRecord")
    kinds: dict[str, Kind] = {}
    pieces: list[_Part] = []
    for file in files:
        reader = _reader(file)
        try:
            total, num_bytes = reader.num_records(), file.stat().st_size
            if total and not kinds:
                try:
                    kinds = kinds_of(_read(reader, file, 0, 1)[0])
                except NotExampleError as error:
                    raise FormatError(f"{file}: record 0: {error.args[0]}.") from None
        finally:
            reader.close()
        count = max(1, min(num_bytes // _PIECE_BYTES, total))
        edges = [total * number // count for number in range(count + 1)]
        pieces += [
            _Part(path=file, first=first, last=last, num_bytes=num_bytes // count, kinds=kinds)
            for first, last in pairwise(edges)
        ]
    return Foreign(path=path, layout="array_record", columns=kinds, pieces=pieces, files=files, notes=notes)


def _is_one(path: Path) -> bool:
    return first_bytes(path, len(_MAGIC)) == _MAGIC


def _reader(path: Path) -> Any:
    """Open a file; raise FormatError for one that is damaged or was cut short."""
    num_bytes = path.stat().st_size
    if num_bytes % _BLOCK or num_bytes < _BLOCK:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected a multiple of {_BLOCK:,}: the copy was cut short: copy it again."
        )
    with path.open("rb") as file:
        file.seek(num_bytes - _BLOCK)
        if _varint(_POSTSCRIPT) not in file.read(_BLOCK):
            raise FormatError(
                f"{path}: its last block holds no postscript of ArrayRecord's: the copy was cut short, the writer was stopped, or it is another file of "
                "Riegeli's."
            )
    module = require("array_record.python.array_record_module", extra="jax", purpose="reading ArrayRecord")
    try:
        return module.ArrayRecordReader(str(path))
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"{path}: {error}: the file is damaged: copy it again.") from None


def _read(reader: Any, path: Path, first: int, last: int) -> list[bytes]:
    try:
        records: list[bytes] = reader.read(list(range(first, last)))
    except (RuntimeError, ValueError, IndexError) as error:
        raise FormatError(
            f"{path}: records {first:,} … {last:,}: {error}: the file is damaged: copy it again."
        ) from None
    if len(records) != last - first:
        raise FormatError(f"{path}: {len(records):,} records instead of {last - first:,}: the file is damaged.")
    return records


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


LAYOUT = ForeignLayout(name="array_record", recognises=lambda path: holds(path, _is_one), open=_open)
