"""MDS, the shards of MosaicML's streaming, version 2, compressed or not: a folder with ``index.json``.

    index.json   {"version": 2, "shards": [{format "mds", version 2, column_names, column_encodings, column_sizes, samples, compression, hashes,
                 raw_data {basename, bytes, hashes}, zip_data null or the same, …}, …]}
    shard        u32 n    u32 offset[n + 1], bytes from the start of the file, the first after the configuration, the last the file's size
                 configuration: JSON, columns as in the index    n samples
    sample       u32 size of each column that has no fixed one, then the values of all columns, in their order
    ndarray      [u8 code of the dtype, where the encoding says none]  u8 4·dimensions + log2(width of a size)  the sizes  the values; the values alone
                 where the encoding gives the shape

Little-endian; a compressed shard is one stream. Every hash of the index that Python's hashlib has is checked. Columns of ids are ``ndarray`` of integers in
one dimension, ``bytes`` (of a width that nothing says) and ``json``; what else there is, pickled columns among it, is passed over unread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes
from prep.foreign.compressed import ALGORITHMS
from prep.foreign.files import count_of, inside, read_json, short
from prep.foreign.layout import BYTES, INTEGERS, JSON, Foreign, ForeignLayout, Kind
from prep.foreign.mds_shard import CONFIGURATION, INDEX, MdsShard, is_known
from prep.foreign.mds_values import DTYPES

_MOST_BYTES = 2**32 - 1  # offsets are u32
_BEGINS = re.compile(rb'\s*\{\s*("version"\s*:\s*\d+\s*,\s*)?"shards"\s*:\s*\[')

Int64 = npt.NDArray[np.int64]


def _open(path: Path) -> Foreign:
    folder = _folder(path)
    index_path = folder / INDEX
    index = read_json(index_path)
    entries = index.get("shards") if isinstance(index, dict) else None
    if not isinstance(entries, list) or index.get("version") != 2:
        raise FormatError(f"{index_path}: expected an object with 'version' 2 and 'shards', a list.")
    if not entries:
        raise FormatError(f"{index_path}: it lists no shards: there is nothing to convert.")
    shards = [_shard(folder, entry, f"{index_path}: shards[{number}]") for number, entry in enumerate(entries)]
    for number, shard in enumerate(shards):
        if (shard.names, shard.encodings) != (shards[0].names, shards[0].encodings):
            raise FormatError(
                f"{index_path}: shards[{number}] has other columns than shards[0]: they belong to two data sets."
            )
    kinds = {
        name: _kind(encoding, size)
        for name, encoding, size in zip(shards[0].names, shards[0].encodings, shards[0].sizes, strict=True)
    }
    return Foreign(
        path=path,
        layout="mds",
        columns=kinds,
        pieces=shards,
        files=[shard.path for shard in shards],
        notes=_hash_notes(shards),
    )


def _folder(path: Path) -> Path:
    return path.parent if path.name == INDEX and not path.is_dir() else path


def _recognises(path: Path) -> bool:
    return _BEGINS.match(first_bytes(_folder(path) / INDEX, 256)) is not None


def _shard(folder: Path, entry: Any, where: str) -> MdsShard:
    if not isinstance(entry, dict):
        raise FormatError(f"{where} is {short(entry)}, expected an object.")
    if entry.get("format") != "mds" or entry.get("version") != 2:
        raise FormatError(
            f"{where} has format {short(entry.get('format'))} and version {short(entry.get('version'))}, expected 'mds' and 2."
        )
    names, encodings, sizes = _declared(entry, where)
    raw, packed = entry.get("raw_data"), entry.get("zip_data")
    raw_path = _file(folder, raw, f"{where}.raw_data")
    raw_bytes = count_of(raw, "bytes", f"{where}.raw_data")
    if raw_bytes > _MOST_BYTES:
        raise FormatError(
            f"{where}.raw_data.bytes is {raw_bytes:,}, but its offsets have 32 bits and have wrapped around: such a shard cannot be read; write it "
            "again with a "
            "smaller size_limit."
        )
    algorithm, path, num_bytes, hashes = None, raw_path, raw_bytes, _hashes(raw, f"{where}.raw_data")
    outer = hashes
    if packed is not None and not raw_path.is_file():
        algorithm = str(entry.get("compression")).partition(":")[0]
        if algorithm not in ALGORITHMS:
            raise FormatError(
                f"{where}.compression is {short(entry.get('compression'))}, expected one of {', '.join(ALGORITHMS)}."
            )
        path = _file(folder, packed, f"{where}.zip_data")
        num_bytes, outer = count_of(packed, "bytes", f"{where}.zip_data"), _hashes(packed, f"{where}.zip_data")
    if not path.is_file():
        raise FormatError(f"{path}: {INDEX} names it, but it is not there: the copy was cut short: copy it again.")
    return MdsShard(
        path=path,
        num_bytes=num_bytes,
        raw_bytes=raw_bytes,
        algorithm=algorithm,
        hashes=(outer, hashes),
        samples=count_of(entry, "samples", where),
        names=names,
        encodings=encodings,
        sizes=sizes,
    )


def _declared(entry: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    """Return names, encodings and sizes of the columns."""
    encodings, names, sizes = (entry.get(key) for key in CONFIGURATION)
    lists = [names, encodings, sizes]
    good = all(isinstance(value, list) and len(value) == len(names or []) for value in lists) and bool(names)
    good = good and all(isinstance(value, str) for value in [*(names or []), *(encodings or [])])
    good = good and all(size is None or (type(size) is int and 0 < size < 2**32) for size in sizes or [])
    if not good or len(set(names or [])) != len(names or []):
        raise FormatError(
            f"{where}: column_names, column_encodings and column_sizes are {short(lists)}, expected three lists of one length, names that differ, "
            "sizes from 1 to "
            "2^32 - 1 or null."
        )
    return tuple(names or []), tuple(encodings or []), tuple(sizes or [])


def _file(folder: Path, data: Any, where: str) -> Path:
    basename = data.get("basename") if isinstance(data, dict) else None
    return inside(folder, basename, f"{where}.basename")


def _hashes(data: Any, where: str) -> tuple[tuple[str, str], ...]:
    hashes = data.get("hashes") if isinstance(data, dict) else None
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise FormatError(f"{where}.hashes is {short(hashes)}, expected an object of texts.")
    return tuple(sorted(hashes.items()))


def _hash_notes(shards: Sequence[MdsShard]) -> tuple[str, ...]:
    """Say which hashes are checked, and which are not: hashlib does not have xxhash's."""
    named = {name for shard in shards for hashes in shard.hashes for name, _ in hashes}
    known, unknown = ([name for name in sorted(named) if is_known(name) == side] for side in (True, False))
    notes = [f"the shards' hashes were checked: {', '.join(known)}."] if known else []
    if unknown:
        notes.append(f"hashes that hashlib does not have were not checked: {', '.join(unknown)}.")
    if not named:
        notes.append(f"{INDEX} holds no hashes: what changed inside a value cannot be noticed.")
    return tuple(notes)


def _kind(encoding: str, size: int | None) -> Kind:
    """Return what a column holds."""
    name, _, rest = encoding.partition(":")
    if name == "ndarray":
        dtype, _, shape = rest.partition(":")
        if shape.count(","):
            return Kind(holds=f"arrays of {shape.count(',') + 1} dimensions ({encoding})")
        if not dtype:
            return Kind(holds=INTEGERS)
        if dtype in _names():
            return Kind(holds=INTEGERS, dtype=np.dtype(dtype).newbyteorder("<"))
        return Kind(holds=encoding)
    if name in ("bytes", "json"):
        return Kind(holds=BYTES if name == "bytes" else JSON)
    if name == "pkl":
        return Kind(holds="pickled objects, which are never unpickled")
    return Kind(holds=f"{encoding}, one value a sample")


def _names() -> set[str]:
    return {np.dtype(code).name for code in DTYPES.values()}


LAYOUT = ForeignLayout(name="mds", recognises=_recognises, open=_open)
