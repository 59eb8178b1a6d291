"""Folders of Hugging Face's ``Dataset.save_to_disk``: Arrow streams in the order that ``state.json`` gives.

``_data_files`` is the order of the files; where ``_indices_files`` is not empty, the rows are those of the files permuted, picked or repeated by a column
``indices``, which is applied here. A folder of several splits (``dataset_dict.json``) is refused with their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes
from prep.foreign.arrow import ArrowFile, batches_of, check_kinds, checked, is_arrow, rows_of, schema_of
from prep.foreign.files import inside, read_json, short
from prep.foreign.layout import Column, Foreign, ForeignLayout, Kind, Rows

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_PIECE_ROWS = 1 << 16
_BATCH_ROWS = 1 << 12


@dataclass(frozen=True, kw_only=True, slots=True)
class _Picked:
    """Rows first … last − 1 of those that an indices file picks; see Piece."""

    files: tuple[Path, ...]
    indices: tuple[Path, ...]
    first: int
    last: int
    num_bytes: int
    kinds: Mapping[str, Kind]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        picked = _indices(self.indices)
        table = _table(self.files)
        for path, schema in zip(self.files, table.schemas, strict=True):
            check_kinds(schema, self.kinds, names, path)
        where = f"{self.files[0].parent}, by {self.indices[0].name}"
        for first in range(self.first, self.last, _BATCH_ROWS):
            rows = picked[first : min(first + _BATCH_ROWS, self.last)]
            yield Rows(where, first, {name: table.pick(name, rows) for name in names})


class _Table:
    """All rows of a folder, mapped; of a column that was asked for, 8 bytes a row are held."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.folder = files[0].parent
        self.batches: list[Any] = []
        self.schemas: list[Any] = []
        for path in files:
            with checked(path), batches_of(path, mapped=True) as (schema, batches):
                self.schemas.append(schema)
                self.batches += list(batches)
        self.ends = np.cumsum([batch.num_rows for batch in self.batches])
        self._columns: dict[tuple[str, int], tuple[npt.NDArray[Any], npt.NDArray[np.int64]]] = {}

    def pick(self, name: str, rows: npt.NDArray[np.int64]) -> Column:
        """Return a column of the rows given, in their order: one view a row, joined."""
        found = np.searchsorted(self.ends, rows, side="right")
        parts, counts = [], []
        for batch, row in zip(found.tolist(), rows.tolist(), strict=True):
            values, edges = self._column(name, batch)
            local = row - int(self.ends[batch]) + len(edges) - 1
            parts.append(values[edges[local] : edges[local + 1]])
            counts.append(len(parts[-1]))
        return Column(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64), np.array(counts, dtype=np.int64))

    def _column(self, name: str, batch: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        key = (name, batch)
        if key not in self._columns:
            first = int(self.ends[batch]) - self.batches[batch].num_rows
            with checked(self.folder):
                rows = rows_of(self.batches[batch], [name], str(self.folder), first)
            values, counts = rows.columns[name]
            self._columns[key] = (values, np.concatenate([[0], np.cumsum(counts)]))
        return self._columns[key]


@lru_cache(maxsize=1)
def _table(files: tuple[Path, ...]) -> _Table:
    return _Table(files)


@lru_cache(maxsize=1)
def _indices(files: tuple[Path, ...]) -> npt.NDArray[np.int64]:
    """Return which rows are picked, int64."""
    parts = [np.empty(0, dtype=np.int64)]
    for path in files:
        with checked(path), batches_of(path) as (schema, batches):
            if schema.names != ["indices"] or str(schema.field(0).type) not in ("uint64", "int64", "uint32", "int32"):
                raise FormatError(
                    f"{path}: its columns are {', '.join(schema.names)}, expected indices, a list of numbers of rows."
                )
            parts += [batch.column(0).to_numpy(zero_copy_only=False).astype(np.int64) for batch in batches]
    return np.concatenate(parts)


def _recognises(path: Path) -> bool:
    if (path / _SPLITS).is_file() and not (path / _STATE).exists():
        splits = read_json(path / _SPLITS)
        names = splits.get("splits") if isinstance(splits, dict) else None
        shown = ", ".join(map(str, names)) if isinstance(names, list) else "several"
        raise ValueError(f"{path}: it holds the splits {shown}; give the path of one, a folder inside it.")
    return b'"_data_files"' in first_bytes(path / _STATE, 1 << 20)


def _open(path: Path) -> Foreign:
    state = read_json(path / _STATE)
    files = _named(path, state, "_data_files")
    if not files:
        raise FormatError(f"{path / _STATE}: _data_files is empty: there is nothing to convert.")
    kinds = schema_of(files[0])
    indices = _named(path, state, "_indices_files") if state.get("_indices_files") else ()
    notes = tuple(
        f"left out of {path.name}: {file.name}, which {_STATE} does not name."
        for file in sorted(path.glob("*.arrow"))
        if file not in files and file not in indices
    )
    if not indices:
        pieces: list[Any] = [ArrowFile(path=file, num_bytes=file.stat().st_size, kinds=kinds) for file in files]
        return Foreign(path=path, layout="huggingface", columns=kinds, pieces=pieces, files=files, notes=notes)
    _table.cache_clear()
    _indices.cache_clear()
    total = _check_indices(_indices(indices), _table(files), indices[0])
    num_bytes = sum(file.stat().st_size for file in files)
    edges = [*range(0, total, _PIECE_ROWS), total]
    pieces = [
        _Picked(
            files=files,
            indices=indices,
            first=first,
            last=last,
            kinds=kinds,
            num_bytes=num_bytes * (last - first) // total,
        )
        for first, last in pairwise(edges)
    ]
    note = f"{indices[0].name} picks {total:,} rows out of the {int(_table(files).ends[-1]):,} of the data files, in its own order: it was applied."
    return Foreign(
        path=path, layout="huggingface", columns=kinds, pieces=pieces, files=(*files, *indices), notes=(*notes, note)
    )


def _check_indices(picked: npt.NDArray[np.int64], table: _Table, path: Path) -> int:
    total = int(table.ends[-1]) if len(table.ends) else 0
    wrong = np.flatnonzero((picked < 0) | (picked >= total))
    if len(wrong):
        raise FormatError(
            f"{path}: indices[{int(wrong[0]):,}] is {int(picked[wrong[0]]):,}, expected the number of a row from 0 to {total - 1:,}: it is damaged or "
            "of another "
            "data set."
        )
    return len(picked)


def _named(path: Path, state: Any, key: str) -> tuple[Path, ...]:
    """Return the files that a list of state.json names, each inside the folder and an Arrow stream."""
    entries = state.get(key) if isinstance(state, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"{path / _STATE}: {key} is {short(entries)}, expected a list of objects with filename.")
    files = []
    for number, entry in enumerate(entries):
        file = inside(path, entry.get("filename"), f"{path / _STATE}: {key}[{number}].filename")
        if not file.is_file():
            raise FormatError(f"{file}: {_STATE} names it, but it is not there: the copy was cut short: copy it again.")
        if not is_arrow(file):
            raise FormatError(f"{file}: it does not begin as an Arrow stream does: it is damaged: copy it again.")
        files.append(file)
    return tuple(files)


LAYOUT = ForeignLayout(name="huggingface", recognises=_recognises, open=_open)
