"""Rows of Parquet and Arrow files: the text in one column of each, some at a time, read by pyarrow.

A Parquet range owns the row groups that begin in it. Memory stays at about 1 MiB of text, or at a row, and what pyarrow holds of a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prep.extras import require
from prep.foreign.arrow import batches_of, checked, parquet
from prep.readers.inputs import Range

if TYPE_CHECKING:
    from prep.readers.documents import Tally

_BATCH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 12


def cells(part: Range, column: str, tally: Tally) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (row of the file from 0, row of the range from 1, UTF-8 as it is stored, or None for a null) for each row.

    Args:
        part: of a Parquet or Arrow file.
        column: of texts.
        tally: its num_lines counts rows.

    Raises:
        ValueError: there is no such column of texts. FormatError: the file is damaged or cut short.
    """
    path = Path(part.input.path)
    first = None
    with checked(path):
        for at, values in (_parquet if part.input.kind == "parquet" else _arrow)(path, part, column):
            first = at if first is None else first
            for number, value in enumerate(_bytes_of(values), start=at):
                tally.num_lines += 1
                yield number, number - first + 1, value


def _parquet(path: Path, part: Range, column: str) -> Iterator[tuple[int, Any]]:
    """Yield (first row, array of the column) of the row groups that begin in the range."""
    with parquet(path) as opened:
        _check_column(opened.schema_arrow, column, part)
        at = 0
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            chunks = [group.column(index) for index in range(group.num_columns)]
            begin = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
            if part.start <= begin and (part.stop is None or begin < part.stop):
                size = max(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
                first = at
                for batch in opened.iter_batches(
                    _rows(group.num_rows, size), row_groups=[number], columns=[column], use_threads=False
                ):
                    yield first, batch.column(0)
                    first += batch.num_rows
                if first - at != group.num_rows:
                    raise OSError(
                        f"row group {number:,} has {first - at:,} rows, but its footer says {group.num_rows:,}"
                    )
            at += group.num_rows


def _arrow(path: Path, part: Range, column: str) -> Iterator[tuple[int, Any]]:
    """Yield (first row, array of the column) of the batches of an Arrow file or stream."""
    with batches_of(path) as (schema, batches):
        _check_column(schema, column, part)
        at = 0
        for batch in batches:
            values = batch.column(schema.get_field_index(column))
            step = _rows(len(values), values.nbytes)
            for start in range(0, len(values), step):
                yield at + start, values.slice(start, step)
            at += len(values)


def _rows(num_rows: int, num_bytes: int) -> int:
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


def _check_column(schema: Any, column: str, part: Range) -> None:
    texts = [field.name for field in schema if _is_text(field.type)]
    if column not in texts:
        kind = schema.field(column).type if column in schema.names else None
        found = f"there is no column {column!r}" if kind is None else f"its column {column!r} holds {kind}, no texts"
        raise ValueError(
            f"{part.input.name}: {found}; columns of texts: {', '.join(texts) or 'none'}: name one with --text-key."
        )


def _is_text(kind: Any) -> bool:
    types = require("pyarrow", extra="prep", purpose="reading Arrow").types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
