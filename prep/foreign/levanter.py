"""Levanter's caches: a folder with ``shard_ledger.json`` and, for each leaf of the examples, zarr3 arrays ``offsets`` and ``data``; see levanter_array.

    <leaf>/offsets   int64; [0] is the number of rows, [i] where row i - 1 ends in data; arrays are "infinite", of 2^54
    <leaf>/data      the rows of the leaf, one after another
    <leaf>/shapes    there where a row has more than one dimension: such a leaf is not read

The rows of a cache are documents. A cache that is not finished is refused. What ``export`` wrote is checked chunk by chunk; Levanter's own arrays have
no checksums, unless they were made with other codecs. A chunk of zeros alone is not stored by Levanter, and refused as a missing one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from prep.foreign.files import count_of, read_json, short
from prep.foreign.layout import INTEGERS, Column, Foreign, ForeignLayout, Kind, Rows
from prep.foreign.levanter_array import ArrayReader

LEDGER = "shard_ledger.json"
_PIECE_TOKENS = 1 << 25
_BATCH_TOKENS = 1 << 20
_BATCH_ROWS = 1 << 16
_MOST_CHUNK = 1 << 28  # values of a chunk that is read at once
_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Range:
    """Rows first … last − 1 of a cache; see Piece."""

    folder: Path
    first: int
    last: int
    num_bytes: int
    kinds: Mapping[str, Kind]

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """See Piece."""
        leaves = {name: self.folder / name for name in names}
        arrays = {name: (ArrayReader(leaf / "offsets"), ArrayReader(leaf / "data")) for name, leaf in leaves.items()}
        for start in range(self.first, self.last, _BATCH_ROWS):
            stop = min(start + _BATCH_ROWS, self.last)
            edges = {name: _edges(offsets, start, stop) for name, (offsets, _) in arrays.items()}
            at, lead = 0, edges[names[0]]
            while at < stop - start:
                fit = int(np.searchsorted(lead, lead[at] + _BATCH_TOKENS, side="right")) - 1
                end = min(max(fit, at + 1), stop - start)
                columns = {
                    name: Column(
                        _values(data, int(edges[name][at]), int(edges[name][end])),
                        np.diff(edges[name][at : end + 1]),
                    )
                    for name, (_, data) in arrays.items()
                }
                yield Rows(str(self.folder), start + at, columns)
                at = end


def _open(path: Path) -> Foreign:
    ledger_path = path / LEDGER
    ledger = read_json(ledger_path)
    if not isinstance(ledger, dict) or ledger.get("is_finished") is not True:
        raise FormatError(
            f"{ledger_path}: is_finished is {short(ledger.get('is_finished') if isinstance(ledger, dict) else ledger)}, expected true: the cache is being "
            "written, or its writer was stopped."
        )
    total = count_of(ledger, "total_num_rows", str(ledger_path))
    leaves = sorted(
        meta.parent.parent
        for meta in path.glob("**/data/zarr.json")
        if (meta.parent.parent / "offsets" / "zarr.json").is_file()
    )
    if not leaves:
        raise FormatError(
            f"{path}: no folder in it holds 'offsets' and 'data' of zarr3: the copy was cut short: copy it again."
        )
    kinds = {str(leaf.relative_to(path)): _kind(leaf) for leaf in leaves}
    pieces = _pieces(path, total, kinds)
    files = [file for leaf in leaves for file in sorted(leaf.rglob("*")) if file.is_file()]
    return Foreign(
        path=path,
        layout="levanter",
        columns=kinds,
        pieces=pieces,
        files=files,
        notes=_notes(ledger),
        rows_are_documents=True,
    )


def _pieces(path: Path, total: int, kinds: Mapping[str, Kind]) -> list[_Range]:
    """Cut the rows into pieces of about so many tokens, after checking the number of rows of each leaf that can be read."""
    most = num_bytes = 0
    for name, kind in kinds.items():
        if kind.holds != INTEGERS or kind.dtype is None:
            continue
        offsets = ArrayReader(path / name / "offsets")
        rows = 0 if not total and offsets.is_empty else int(offsets.read(0, 1)[0])
        if rows != total:
            raise FormatError(
                f"{path / name}: it has {rows:,} rows, but {LEDGER} says {total:,}: the copy was cut short, or the cache was changed: copy it again."
            )
        values = int(offsets.read(total, total + 1)[0]) if total else 0
        most, num_bytes = max(most, values), num_bytes + values * kind.dtype.itemsize
    count = max(1, min(-(-most // _PIECE_TOKENS), total))
    edges = [total * number // count for number in range(count + 1)]
    return [
        _Range(folder=path, first=first, last=last, num_bytes=num_bytes // count, kinds=kinds)
        for first, last in pairwise(edges)
    ]


def _recognises(path: Path) -> bool:
    return (path / LEDGER).is_file()


def _notes(ledger: Mapping[str, Any]) -> tuple[str, ...]:
    metadata = ledger.get("metadata")
    made = metadata.get("preprocessor_metadata") if isinstance(metadata, dict) else None
    return (f"the cache says of its tokenizer: {json.dumps(made, sort_keys=True)[:200]}.",) if made else ()


def _kind(leaf: Path) -> Kind:
    """Return what a leaf holds, from the metadata of its arrays; refuse chunks too large to be read."""
    for name in ("offsets", "data"):
        meta = read_json(leaf / name / "zarr.json")
        where = f"{leaf / name / 'zarr.json'}"
        if not isinstance(meta, dict) or meta.get("zarr_format") != 3 or meta.get("node_type") != "array":
            raise FormatError(f"{where}: expected the metadata of an array of zarr 3.")
        shape = meta.get("shape")
        if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
            raise FormatError(f"{where}: shape is {short(shape)}, expected one dimension.")
        if name == "offsets" and meta.get("data_type") != "int64":
            raise FormatError(f"{where}: data_type is {short(meta.get('data_type'))}, expected int64.")
        inner = _inner_chunk(meta)
        if not 1 <= inner <= _MOST_CHUNK:
            raise FormatError(f"{where}: a chunk has {inner:,} values, expected 1 to {_MOST_CHUNK:,}.")
    if (leaf / "shapes").exists():
        return Kind(holds="rows of more than one dimension")
    code = meta.get("data_type")
    return Kind(holds=INTEGERS, dtype=np.dtype(code)) if code in _INTEGERS else Kind(holds=str(code))


def _inner_chunk(meta: Mapping[str, Any]) -> int:
    """Return how many values are decoded at once, 0 where the metadata do not say it."""
    try:
        found = meta["chunk_grid"]["configuration"]["chunk_shape"]
        for codec in meta["codecs"]:
            if codec["name"] == "sharding_indexed":
                found = codec["configuration"]["chunk_shape"]
        size = found[0] if len(found) == 1 else 0
    except (KeyError, TypeError, IndexError):
        return 0
    return size if type(size) is int else 0


def _edges(offsets: ArrayReader, first: int, last: int) -> npt.NDArray[np.int64]:
    """Return where rows first … last begin in the data: int64[last − first + 1]; the first row begins at 0, whose place holds the number of rows."""
    edges = offsets.read(first, last + 1).astype(np.int64)
    if first == 0:
        edges[0] = 0
    wrong = np.flatnonzero(np.diff(edges) < 0)
    if len(wrong) or edges[0] < 0:
        at = first + int(wrong[0]) if len(wrong) else first
        raise FormatError(f"{offsets.path}: row {at:,} ends before it begins: the cache is damaged.")
    return edges


def _values(data: ArrayReader, start: int, stop: int) -> npt.NDArray[Any]:
    """Return values, some at a time: a stretch longer than what there is meets a missing chunk before it fills the memory."""
    if stop - start <= _BATCH_TOKENS:
        return data.read(start, stop)
    parts = [data.read(at, min(at + _BATCH_TOKENS, stop)) for at in range(start, stop, _BATCH_TOKENS)]
    return np.concatenate(parts)


LAYOUT = ForeignLayout(name="levanter", recognises=_recognises, open=_open)
