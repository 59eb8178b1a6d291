"""One zarr3 array of Levanter's caches, through tensorstore: "infinite" (2^54), in files of 2^27 values, each in chunks of 2^18 with an index at its end.

Levanter opens an array only where its codecs are those that it writes itself (bytes, blosc at level 5): with a crc32c among them it is refused. Blosc
notices damage now and then, no more. So what we write has a second array beside it, ``<name>_checksums``, with a crc32c codec of its own: uint32, the
CRC-32 (zlib) of each chunk's values as stored little-endian, the last chunk filled up with zeros. The attribute ``millstream_checksums`` of the first array
says that the second must be there; Levanter passes over both. Arrays without that attribute are read unchecked but for what their codecs check.

A missing chunk is refused on every read, never filled in; so a chunk of zeros alone is stored like any other.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from prep.extras import require

SIZE = 2**54
CHUNK = 1 << 18
FILE = 512 * CHUNK
_SUMS = 4096  # in a chunk: 16 KiB
_ATTRIBUTE = "millstream_checksums"
_KIND = "crc32"
_AGAIN = "the cache is damaged or was cut short: copy it again."
_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


class ArrayReader:
    """An array that is read, with its checksums where it has some.

    Args:
        path: of its folder.

    Raises:
        FormatError: its metadata are not those of an array, or its checksums are missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._array = _open(path)
        self._sums: Any = None
        self._sums_path = _checksums_path(path)
        self._chunk = self._file = 0
        kind = _attributes(self._array).get(_ATTRIBUTE)
        if kind is None:
            return
        if kind != _KIND:
            raise FormatError(
                f"{path / 'zarr.json'}: {_ATTRIBUTE} is {kind!r}, expected {_KIND!r}: it was written by a newer version: update millstream."
            )
        self._sums = _open(self._sums_path)
        layout = self._sums.chunk_layout.read_chunk.shape
        if self._sums.dtype.name != "uint32" or self._sums.rank != 1 or layout[0] > CHUNK:
            raise FormatError(
                f"{self._sums_path / 'zarr.json'}: it holds {self._sums.dtype.name} in chunks of {list(layout)}, expected uint32 in one dimension and chunks "
                f"of at most {CHUNK:,}: {_AGAIN}"
            )
        self._chunk = self._array.chunk_layout.read_chunk.shape[0]
        self._file = self._array.chunk_layout.write_chunk.shape[0]

    @property
    def is_empty(self) -> bool:
        """Whether no chunk of it is stored, as Levanter leaves the offsets of no rows."""
        return not any(self.path.glob("c/*"))

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return values start … stop − 1; raise FormatError where a chunk is missing or damaged, or where they are outside of the array."""
        if self._sums is None or start >= stop:
            return _read(self._array, self.path, start, stop)
        first, last = start // self._chunk, -(-stop // self._chunk)
        if not 0 <= first < last <= self._sums.shape[0]:
            raise FormatError(
                f"{self.path}: items {start:,} … {stop:,} are outside of the {self._sums.shape[0]:,} chunks of {self._chunk:,} that have checksums: {_AGAIN}"
            )
        base = first * self._chunk
        values = _read(self._array, self.path, base, last * self._chunk)
        sums = _read(self._sums, self._sums_path, first, last).tolist()
        for number, expected in enumerate(sums, first):
            found = _checksum(values[number * self._chunk - base :][: self._chunk])
            if found != expected:
                at = number * self._chunk
                raise FormatError(
                    f"{self.path / 'c' / str(at // self._file)}: the chunk of items {at:,} … {at + self._chunk:,} has the CRC-32 {found:08x}, expected "
                    f"{expected:08x}: it is damaged, or was changed since it was exported: copy it again."
                )
        return values[start - base : stop - base]


def write_array(path: Path, dtype: np.dtype[Any], parts: Iterable[npt.NDArray[Any]]) -> int:
    """Write values and their checksums; return how many. At most a file of them is held, because a part of one would be written again with each next one.

    Args:
        path: of its folder, which must not be there yet.
        dtype: of the array.
        parts: that stand one after another, [n] each, of any dtype that is cast to it without a check.

    Raises:
        OSError: it cannot be written.
    """
    array = _create(path, SIZE, dtype.name, _codecs_as_levanter(), FILE, {_ATTRIBUTE: _KIND})
    sums: list[int] = []
    held, filled, written = np.empty(FILE, dtype=dtype), 0, 0
    for part in parts:
        at = 0
        while at < len(part):
            count = min(len(part) - at, FILE - filled)
            held[filled : filled + count] = part[at : at + count]
            at, filled = at + count, filled + count
            if filled == FILE:
                sums += _write_file(array, path, written, held, filled)
                written += filled
                held, filled = np.empty(FILE, dtype=dtype), 0  # tensorstore may go on reading the other
    if filled:
        sums += _write_file(array, path, written, held, filled)
    beside = _checksums_path(path)
    codecs: list[dict[str, Any]] = [_LITTLE, {"name": "crc32c"}]
    array = _create(beside, len(sums), "uint32", codecs, _SUMS)
    _finish(_begin_write(array, 0, np.array(sums, dtype=np.uint32)), beside)
    return written + filled


def _checksum(chunk: npt.NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(chunk, dtype=chunk.dtype.newbyteorder("<")).data)


def _write_file(array: Any, path: Path, at: int, held: npt.NDArray[Any], filled: int) -> list[int]:
    """Write one file's values; return the checksums of its chunks."""
    end = -(-filled // CHUNK) * CHUNK
    held[filled:end] = 0
    writing = _begin_write(array, at, held[:filled])
    sums = [_checksum(held[start : start + CHUNK]) for start in range(0, end, CHUNK)]
    _finish(writing, path)
    return sums


def _checksums_path(path: Path) -> Path:
    return path.with_name(f"{path.name}_checksums")


def _codecs_as_levanter() -> list[dict[str, Any]]:
    blosc = {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}}
    configuration = {
        "chunk_shape": [CHUNK],
        "codecs": [_LITTLE, blosc],
        "index_codecs": [_LITTLE, {"name": "crc32c"}],
        "index_location": "end",
    }
    return [{"name": "sharding_indexed", "configuration": configuration}]


def _spec(path: Path) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path.absolute()}/"},
        "fill_missing_data_reads": False,
        "store_data_equal_to_fill_value": True,
    }


def _create(
    path: Path,
    size: int,
    dtype: str,
    codecs: list[dict[str, Any]],
    chunk: int,
    attributes: Mapping[str, str] | None = None,
) -> Any:
    tensorstore = require("tensorstore", extra="jax", purpose="writing a cache of Levanter's")
    metadata = {
        "shape": [size],
        "data_type": dtype,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk]}},
        "codecs": codecs,
        "attributes": dict(attributes or {}),
    }
    try:
        return tensorstore.open({**_spec(path), "metadata": metadata}, create=True).result()
    except (ValueError, RuntimeError) as error:
        raise OSError(f"{path}: it cannot be written: {_reason(error)}.") from None


def _begin_write(array: Any, at: int, values: npt.NDArray[Any]) -> Any:
    """Write in tensorstore's threads, which may go on reading the values; see _finish."""
    writing = array[at : at + len(values)].write(values, can_reference_source_data_indefinitely=True)
    writing.commit.force()
    return writing


def _finish(writing: Any, path: Path) -> None:
    try:
        writing.result()
    except (ValueError, RuntimeError) as error:
        raise OSError(f"{path}: it cannot be written: {_reason(error)}.") from None


def _open(path: Path) -> Any:
    tensorstore = require("tensorstore", extra="jax", purpose="reading a cache of Levanter's")
    try:
        return tensorstore.open(_spec(path), open=True, read=True).result()
    except (ValueError, FileNotFoundError) as error:
        raise FormatError(f"{path}: {_reason(error)}: {_AGAIN}") from None


def _read(array: Any, path: Path, start: int, stop: int) -> npt.NDArray[Any]:
    if not 0 <= start <= stop <= array.shape[0]:
        raise FormatError(
            f"{path}: items {start:,} … {stop:,} are outside of its {array.shape[0]:,}: the cache is damaged."
        )
    if start == stop:
        return np.empty(0, dtype=array.dtype.numpy_dtype)
    try:
        return np.asarray(array[start:stop].read().result())
    except (ValueError, FileNotFoundError, OSError) as error:
        raise FormatError(f"{path}: items {start:,} … {stop:,}: {_reason(error)}: {_AGAIN}") from None


def _attributes(array: Any) -> Mapping[str, Any]:
    """Return the attributes in an array's metadata."""
    found = array.spec().to_json().get("metadata", {}).get("attributes", {})
    return found if isinstance(found, dict) else {}


def _reason(error: Exception) -> str:
    """Return the first sentence of an error of tensorstore's, without what it adds on itself."""
    text = str(error).strip()
    if not text:
        return type(error).__name__
    for added in (" [source", " [tensorstore_spec", " [os_error_code"):
        text = text.partition(added)[0]
    said = text.splitlines()[0].rstrip(".")
    if "NOT_FOUND" in said and "shard entry" in said:
        said += " (lost; or it held zeros alone, which Levanter does not store and nothing tells from lost ones)"
    return said
