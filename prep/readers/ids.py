"""Documents that are ids already: a list of integers under a key of each line of JSON, or in a column of lists in Parquet and Arrow.

Of Parquet and Arrow the ids go from Arrow's buffers to numpy without a Python number between; a line of JSON becomes a list on the way, which costs about
as much as a fast tokenizer. They are taken as they are; whether the vocabulary holds them is asked before they are stored (prep.pieces).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prep.extras import require
from prep.foreign.arrow import checked
from prep.readers import rows
from prep.readers.documents import Batch, Judge, Tally, fast_loads, json_found, slow_value
from prep.readers.inputs import ROWS, Range
from prep.readers.policies import DocumentError


def read_id_batches(part: Range, *, key: str, on_bad: str, tally: Tally, limit: int | None = None) -> Iterator[Batch]:
    """Yield the documents of a range in order, about 1 MiB at a time: of each its ids, an array of integers of any type.

    Args:
        part: of lines of JSON, Parquet or Arrow.
        key: of the ids in a line of JSON, or the column.
        on_bad: see policies.actions_of; what is no list of integers is of the kind ``type``.
        tally, limit: see documents.read_batches.

    Raises:
        ValueError: a bad document under ``error``; a file of another kind; no such column. FormatError: a damaged file.
    """
    if part.input.kind == "text":
        raise ValueError(
            f"{part.input.name}: it is text, but ids (--ids-key) are read from JSON, Parquet and Arrow: leave one of the two out."
        )
    judge = Judge(part, _parser(key), key=key, what="list of ids", on_bad=on_bad, tally=tally, limit=limit)
    if part.input.kind in ROWS:
        yield from _of_rows(part, key, judge)
    else:
        yield from judge.batches(json_found(part, tally))


def _of_rows(part: Range, key: str, judge: Judge) -> Iterator[Batch]:
    arrow = require("pyarrow", extra="prep", purpose="reading Arrow")
    compute = require("pyarrow.compute", extra="prep", purpose="reading Arrow")
    first = None
    for at, values in rows.arrays(part, key, _IDS) if judge.left else ():
        first = at if first is None else first
        judge.tally.num_lines += len(values)
        with checked(Path(part.input.path)):
            values.validate(full=True)  # of a damaged file, offsets may point anywhere
        bad = _bad_rows(values, key, judge.keeps_empty)
        good = np.delete(np.arange(len(values)), list(bad))[: min(judge.left, len(values))]
        judge.left -= len(good)
        last = len(values) if judge.left else int(good[-1])
        for row, error in sorted(bad.items()):
            if row < last:
                judge.refuse(at + row, at + row - first + 1, error)
        if len(good) < len(values):
            values = values.take(arrow.array(good))
        if len(good):
            places = good + at
            ends = np.cumsum(compute.list_value_length(values).to_numpy(zero_copy_only=False), dtype=np.int64)
            ids = values.flatten().to_numpy(zero_copy_only=False)
            yield Batch(np.split(ids, ends[:-1]), (places - first + 1).tolist(), places.tolist())
        if not judge.left:
            return


def _bad_rows(values: Any, key: str, keeps_empty: bool) -> dict[int, DocumentError]:
    """Return the rows that are not taken as they are, and why; nothing is looked at where nothing can be wrong."""
    compute = require("pyarrow.compute", extra="prep", purpose="reading Arrow")
    found: dict[int, DocumentError] = {}
    if values.null_count:
        for row in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)).tolist():
            found[row] = DocumentError("type", f"{key!r} is null, expected a list of ids")
    flat = values.flatten()
    if flat.null_count:
        owners = compute.list_parent_indices(values).to_numpy(zero_copy_only=False)
        nulls = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
        for row in np.unique(owners[nulls]).tolist():
            begin = int(np.searchsorted(owners, row))
            position = int(nulls[np.searchsorted(nulls, begin)]) - begin
            found[row] = DocumentError("type", f"{key!r}[{position:,}] is null, expected an id")
    if not keeps_empty:
        lengths = compute.list_value_length(values).fill_null(1).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(lengths == 0).tolist():
            found[row] = DocumentError("empty", "its list of ids is empty")
    return found


def _parser(key: str) -> Callable[[bytes, bool], npt.NDArray[np.int64]]:
    """Return what makes ids of an object of JSON, or raises DocumentError."""
    loads = fast_loads()

    def parse(data: bytes, mend: bool) -> npt.NDArray[np.int64]:
        try:
            return _array(loads(data)[key], key)
        except (ValueError, TypeError, KeyError, IndexError):
            pass  # the standard library decides, so that what is refused does not depend on what is installed
        return _array(slow_value(data, mend, key, "--ids-key"), key)

    return parse


def _array(found: Any, key: str) -> npt.NDArray[np.int64]:
    if type(found) is not list:
        raise DocumentError("type", f"the value of {key!r} is {type(found).__name__}, expected a list of ids")
    if set(map(type, found)) <= {int}:  # a bool is none
        with contextlib.suppress(OverflowError):
            return np.array(found, dtype=np.int64)
    for position, value in enumerate(found):
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            shown = "null" if value is None else str(value).lower() if type(value) is bool else f"{value!r}"[:40]
            raise DocumentError("type", f"{key!r}[{position:,}] is {shown}, expected an id")
    raise AssertionError


def _is_ids(kind: Any) -> bool:
    types = require("pyarrow", extra="prep", purpose="reading Arrow").types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list and types.is_integer(kind.value_type))


_IDS = rows.Wanted(_is_ids, "lists of integers", "--ids-key")
