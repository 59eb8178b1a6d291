"""Rows of Parquet and Arrow files: one column of each, some rows at a time, read by pyarrow.

A range owns the row groups of Parquet, or the record batches of an Arrow file, that begin in it. An Arrow stream, which says nowhere where its batches
begin, belongs whole to the range at its start. Memory stays at about 1 MiB, or at a row, and what pyarrow holds of a column or of a record batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prep.extras import require
from prep.foreign.arrow import batches_of, checked, parquet
from prep.readers import arrow_file
from prep.readers.inputs import Range

if TYPE_CHECKING:
    from prep.readers.documents import Tally

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 12


class Wanted(NamedTuple):
    """What a column has to hold: whether a type of Arrow's is such, what to call it, and the flag that names the column."""

    holds: Callable[[Any], bool]
    what: str
    flag: str


def cells(part: Range, column: str, tally: Tally) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (row of the file from 0, row of the range from 1, UTF-8 as it is stored, or None for a null) for each row.

    Args:
        part: of a Parquet or Arrow file.
        column: of texts.
        tally: its num_lines counts rows.

    Raises:
        ValueError: there is no such column of texts. FormatError: the file is damaged or cut short.
    """
    first = None
    for at, values in arrays(part, column, TEXTS):
        first = at if first is None else first
        with checked(Path(part.input.path)):
            found = _bytes_of(values)
        for number, value in enumerate(found, start=at):
            tally.num_lines += 1
            yield number, number - first + 1, value


def arrays(part: Range, column: str, wanted: Wanted) -> Iterator[tuple[int, Any]]:
    """Yield (row of the file from 0, array of the column) for the rows of a range, about 1 MiB at a time; what the arrays say is not checked yet.

    Raises:
        ValueError: there is no such column. FormatError: the file is damaged or cut short.
    """
    path = Path(part.input.path)
    read = _parquet if part.input.kind == "parquet" else _arrow_file if arrow_file.is_one(path) else _arrow_stream
    with checked(path):
        yield from read(path, part, column, wanted)


def _parquet(path: Path, part: Range, column: str, wanted: Wanted) -> Iterator[tuple[int, Any]]:
    with parquet(path) as opened:
        _check_column(opened.schema_arrow, column, part, wanted)
        at = 0
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            chunks = [group.column(index) for index in range(group.num_columns)]
            begin = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
            if _owns(part, begin):
                # Of a list, "column.list.element".
                own = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == column]
                size = max(chunk.total_uncompressed_size for chunk in own or chunks)
                first = at
                for batch in opened.iter_batches(
                    _step(group.num_rows, size), row_groups=[number], columns=[column], use_threads=False
                ):
                    yield first, batch.column(0)
                    first += batch.num_rows
                if first - at != group.num_rows:
                    raise OSError(
                        f"row group {number:,} has {first - at:,} rows, but its footer says {group.num_rows:,}"
                    )
            at += group.num_rows


def _arrow_file(path: Path, part: Range, column: str, wanted: Wanted) -> Iterator[tuple[int, Any]]:
    arrow = require("pyarrow", extra="prep", purpose="reading Arrow")
    with arrow.OSFile(str(path)) as source:
        reader = require("pyarrow.ipc", extra="prep", purpose="reading Arrow").open_file(source)
        _check_column(reader.schema, column, part, wanted)
        at = 0
        for number, (begin, num_rows) in enumerate(arrow_file.batches(path)):
            if _owns(part, begin):
                values = reader.get_batch(number).column(reader.schema.get_field_index(column))
                if len(values) != num_rows:
                    raise OSError(f"record batch {number:,} has {len(values):,} rows, but says {num_rows:,}")
                yield from _slices(at, values)
            at += num_rows


def _arrow_stream(path: Path, part: Range, column: str, wanted: Wanted) -> Iterator[tuple[int, Any]]:
    if part.start:
        return
    with batches_of(path) as (schema, batches):
        _check_column(schema, column, part, wanted)
        at = 0
        for batch in batches:
            yield from _slices(at, batch.column(schema.get_field_index(column)))
            at += batch.num_rows


def _owns(part: Range, begin: int) -> bool:
    return part.start <= begin and (part.stop is None or begin < part.stop)


def _slices(at: int, values: Any) -> Iterator[tuple[int, Any]]:
    step = _step(len(values), values.nbytes)
    for start in range(0, len(values), step):
        yield at + start, values.slice(start, step)


def _step(num_rows: int, num_bytes: int) -> int:
    """Return how many rows are about 1 MiB."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * num_rows // max(num_bytes, 1)))


def _bytes_of(values: Any) -> list[bytes | None]:
    """Return what an array of texts holds, not decoded: what is not UTF-8 is the reader's to judge."""
    pyarrow = require("pyarrow", extra="prep", purpose="reading Arrow")
    if pyarrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    values = values.cast(pyarrow.large_binary())
    values.validate(full=True)  # of a damaged file, offsets may point anywhere
    return values.to_pylist()  # type: ignore[no-any-return]


def _check_column(schema: Any, column: str, part: Range, wanted: Wanted) -> None:
    known = [field.name for field in schema if wanted.holds(field.type)]
    if column not in known:
        kind = schema.field(column).type if column in schema.names else None
        found = (
            f"there is no column {column!r}"
            if kind is None
            else f"its column {column!r} holds {kind}, no {wanted.what}"
        )
        raise ValueError(
            f"{part.input.name}: {found}; columns of {wanted.what}: {', '.join(known) or 'none'}: name one with {wanted.flag}."
        )


def _is_text(kind: Any) -> bool:
    types = require("pyarrow", extra="prep", purpose="reading Arrow").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


TEXTS = Wanted(_is_text, "texts", "--text-key")
