"""Parquet files and Arrow's streams and files, read by pyarrow: lists of integers go from Arrow's buffers to numpy without a Python number between.

    Parquet       "PAR1" at both ends     a row group is a piece
    Arrow file    "ARROW1"                a file is a piece
    Arrow stream  ff ff ff ff             a file is a piece; it has to end with the end-of-stream mark: reading would take a cut for the end

A column of tokens is a list (32- or 64-bit offsets, or of a fixed size) of integers without nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes
from prep.extras import require
from prep.foreign.files import data_files, holds
from prep.foreign.layout import BYTES, INTEGERS, Column, Foreign, ForeignLayout, Kind, Rows

_PARQUET, _FILE, _STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_BATCH_VALUES = 1 << 20
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowGroup:
    """A row group of a Parquet file; see Piece."""

    path: Path
    group: int
    num_bytes: int
    first: int
    kinds: Mapping[str, Kind]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        with checked(self.path):
            with parquet(self.path) as file:
                check_kinds(file.schema_arrow, self.kinds, names, self.path)
                group = file.metadata.row_group(self.group)
                values = max(group.column(number).num_values for number in range(group.num_columns))
                rows = max(1, min(_BATCH_ROWS, _BATCH_VALUES * group.num_rows // max(values, 1)))
                first = self.first
                for batch in file.iter_batches(rows, row_groups=[self.group], columns=list(names), use_threads=False):
                    yield rows_of(batch, names, str(self.path), first)
                    first += batch.num_rows
            if first - self.first != group.num_rows:
                raise FormatError(
                    f"{self.path}: row group {self.group:,} has {first - self.first:,} rows, but its footer says {group.num_rows:,}: it is damaged."
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrowFile:
    """An Arrow stream or file; see Piece."""

    path: Path
    num_bytes: int
    kinds: Mapping[str, Kind]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        with checked(self.path), batches_of(self.path) as (schema, batches):
            check_kinds(schema, self.kinds, names, self.path)
            first = 0
            for batch in batches:
                yield rows_of(batch, names, str(self.path), first)
                first += batch.num_rows


def _open_parquet(path: Path) -> Foreign:
    files, notes = data_files(path, _is_parquet, "Parquet")
    kinds: dict[str, Kind] = {}
    pieces: list[_RowGroup] = []
    for file in files:
        with checked(file), parquet(file) as opened:
            if not kinds:
                kinds = kinds_of(opened.schema_arrow)
            first = 0
            for number in range(opened.metadata.num_row_groups):
                group = opened.metadata.row_group(number)
                num_bytes = sum(group.column(at).total_compressed_size for at in range(group.num_columns))
                pieces.append(_RowGroup(path=file, group=number, num_bytes=num_bytes, first=first, kinds=kinds))
                first += group.num_rows
    return Foreign(path=path, layout="parquet", columns=kinds, pieces=pieces, files=files, notes=notes)


def _open_arrow(path: Path) -> Foreign:
    files, notes = data_files(path, is_arrow, "Arrow")
    kinds = schema_of(files[0])
    pieces = [ArrowFile(path=file, num_bytes=file.stat().st_size, kinds=kinds) for file in files]
    return Foreign(path=path, layout="arrow", columns=kinds, pieces=pieces, files=files, notes=notes)


def schema_of(path: Path) -> dict[str, Kind]:
    """Return the columns of an Arrow stream or file."""
    with checked(path), batches_of(path) as (schema, _):
        return kinds_of(schema)


def kinds_of(schema: Any) -> dict[str, Kind]:
    """Return what the columns of an Arrow schema hold."""
    types = require("pyarrow", extra="prep", purpose="reading Arrow").types
    found = {}
    for field in schema:
        kind = field.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            inner = kind.value_type
            if types.is_integer(inner) or types.is_boolean(inner):
                found[field.name] = Kind(holds=INTEGERS, dtype=np.dtype(inner.to_pandas_dtype()))
                continue
        whole = types.is_binary(kind) or types.is_large_binary(kind)
        found[field.name] = Kind(holds=BYTES if whole else str(kind))
    return found


def check_kinds(schema: Any, kinds: Mapping[str, Kind], names: Sequence[str], path: Path) -> None:
    """Raise FormatError where a file's columns are not those of the first file."""
    found = kinds_of(schema)
    for name in names:
        if found.get(name) != kinds[name]:
            raise FormatError(
                f"{path}: its column {name!r} holds {found.get(name, 'nothing: there is none')}, but {kinds[name]} in the first file: they are of two data "
                "sets."
            )


def rows_of(batch: Any, names: Sequence[str], where: str, first: int) -> Rows:
    """Return the columns named of a record batch; raise FormatError for nulls and for offsets that cannot be."""
    columns = {}
    for name in names:
        array = batch.column(batch.schema.get_field_index(name))
        array.validate(full=True)
        if array.null_count:
            at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise FormatError(f"{where}: row {first + at:,}: {name} is null, expected a list.")
        columns[name] = _column(array, f"{where}: rows {first:,} … {first + batch.num_rows:,}: {name}")
    return Rows(where, first, columns)


def _column(array: Any, where: str) -> Column:
    types = require("pyarrow", extra="prep", purpose="reading Arrow").types
    if types.is_fixed_size_list(array.type):
        values, counts = array.flatten(), np.full(len(array), array.type.list_size, dtype=np.int64)
    elif types.is_binary(array.type) or types.is_large_binary(array.type):
        width = "<i8" if types.is_large_binary(array.type) else "<i4"
        edges = np.frombuffer(array.buffers()[1] or b"", dtype=width)[array.offset : array.offset + len(array) + 1]
        content = np.frombuffer(array.buffers()[2] or b"", dtype=np.uint8)
        edges = edges if len(edges) else np.zeros(1, dtype=width)
        return Column(content[int(edges[0]) : int(edges[-1])], np.diff(edges).astype(np.int64))
    else:
        edges = array.offsets.to_numpy()
        values = array.values.slice(int(edges[0]), int(edges[-1]) - int(edges[0]))
        counts = np.diff(edges).astype(np.int64)
    if values.null_count:
        raise FormatError(f"{where} holds a null, expected integers.")
    return Column(values.to_numpy(zero_copy_only=False), counts)


@contextmanager
def batches_of(path: Path, *, mapped: bool = False) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open an Arrow stream or file; yield its schema and its record batches, in order: read, or views of a map."""
    arrow = require("pyarrow", extra="prep", purpose="reading Arrow")
    with arrow.memory_map(str(path)) if mapped else arrow.OSFile(str(path)) as source:
        if first_bytes(path, len(_FILE)) == _FILE:
            reader = require("pyarrow.ipc", extra="prep", purpose="reading Arrow").open_file(source)
            yield reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))
            return
        num_bytes = source.size()
        with path.open("rb") as file:
            file.seek(max(num_bytes - len(_END), 0))
            if file.read() != _END:
                raise FormatError(
                    f"{path}: the stream does not end with Arrow's end mark: the copy was cut short, or its writer was stopped: copy it again."
                )
        reader = require("pyarrow.ipc", extra="prep", purpose="reading Arrow").open_stream(source)
        yield reader.schema, _to_the_end(reader, source, path)


def _to_the_end(reader: Any, source: Any, path: Path) -> Iterator[Any]:
    yield from reader
    if source.tell() != source.size():
        raise FormatError(
            f"{path}: the stream ends at byte {source.tell():,}, but the file has {source.size():,}: what follows is not read: it is damaged, or two "
            "streams were joined."
        )


@contextmanager
def parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file, whose pages are checked against their checksums where it has them."""
    module = require("pyarrow.parquet", extra="prep", purpose="reading Parquet")
    with module.ParquetFile(str(path), page_checksum_verification=True) as file:
        yield file


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Raise FormatError where pyarrow says that a file is not what it should be; errors of the system's own go through."""
    arrow = require("pyarrow", extra="prep", purpose="reading Arrow and Parquet")
    try:
        yield
    except FormatError:
        raise
    except (arrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise FormatError(f"{path}: {reason}: the file is damaged or was cut short: copy it again.") from None


def _is_parquet(path: Path) -> bool:
    return first_bytes(path, len(_PARQUET)) == _PARQUET


def is_arrow(path: Path) -> bool:
    """Return whether a file begins as an Arrow file or stream does."""
    first = first_bytes(path, 8)
    room = int.from_bytes(first[4:8], "little", signed=True)
    return first.startswith(_FILE) or (first.startswith(_STREAM) and 0 < room <= path.stat().st_size)


PARQUET = ForeignLayout(name="parquet", recognises=lambda path: holds(path, _is_parquet), open=_open_parquet)
ARROW = ForeignLayout(name="arrow", recognises=lambda path: holds(path, is_arrow), open=_open_arrow)
