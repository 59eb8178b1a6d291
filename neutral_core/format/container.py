"""The container: the header of a safetensors file ⇄ bytes, checked to the last space.

A file is a length word (u64, little-endian), a JSON header of that length, and the data of the arrays without holes. On top of what
safetensors asks, Millstream asks (FORMAT.md §2): canonical JSON, no key twice, a header that ends on a page and whose length follows from
the declared fields alone, arrays that begin on multiples of 64 with ``padding.<i>`` between them. The same arrays and metadata always
give the same bytes.

Nothing here opens a file: functions from values to bytes and back, so that the rules can be tested without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.format import canonical

PAGE = 4096
ALIGNMENT = 64
BLOCK = 1 << 20
MAX_RANK = 32
MAX_HEADER = 100_000_000  # the limit of the safetensors library, kept so that every file that we write opens there

# name in the header → (name of the field's dtype, numpy dtype of the bytes). The last three have no numpy type: their bit patterns are returned.
DTYPES: dict[str, tuple[str, str]] = {
    "BOOL": ("bool", "?"),
    "U8": ("uint8", "u1"),
    "I8": ("int8", "i1"),
    "U16": ("uint16", "<u2"),
    "I16": ("int16", "<i2"),
    "F16": ("float16", "<f2"),
    "U32": ("uint32", "<u4"),
    "I32": ("int32", "<i4"),
    "F32": ("float32", "<f4"),
    "U64": ("uint64", "<u8"),
    "I64": ("int64", "<i8"),
    "F64": ("float64", "<f8"),
    "BF16": ("bfloat16", "<u2"),
    "F8_E4M3": ("float8_e4m3", "u1"),
    "F8_E5M2": ("float8_e5m2", "u1"),
}
CODES = {name: code for code, (name, _) in DTYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Array:
    """One array of a file: ``code`` is a key of DTYPES, ``start`` and ``stop`` are bytes from the start of the data."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int = 0
    stop: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the stored bytes, little-endian."""
        return np.dtype(DTYPES[self.code][1])

    @property
    def num_bytes(self) -> int:
        """Bytes of the array's data, from its shape."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A decoded header: ``size`` in bytes with its length word (the data begin there), arrays in file order."""

    size: int
    arrays: dict[str, Array]
    metadata: dict[str, Any]


def place(arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays with offsets, and ``padding.<i>`` before array i wherever it would not begin on a multiple of 64."""
    placed: list[Array] = []
    at = 0
    for index, array in enumerate(arrays):
        gap = -at % ALIGNMENT
        if gap:
            placed.append(Array(name=f"padding.{index}", code="U8", shape=(gap,), start=at, stop=at + gap))
            at += gap
        placed.append(Array(name=array.name, code=array.code, shape=array.shape, start=at, stop=at + array.num_bytes))
        at += array.num_bytes
    return placed


def header_size(arrays: Sequence[Array], metadata: dict[str, Any]) -> int:
    """Return the bytes before the data, length word included: a multiple of 4096 that no count can change.

    It is that of a header in which every number has 20 digits and every padding that could occur does.

    Args:
        arrays: the file's arrays in order, without padding.
        metadata: plain data; its numbers may still be unknown.
    """
    every: list[Array] = []
    for index, array in enumerate(arrays):
        if index:
            every.append(Array(name=f"padding.{index}", code="U8", shape=(0,)))
        every.append(array)
    longest = len(_text(every, metadata, widest=True))
    return math.ceil((8 + longest) / PAGE) * PAGE


def encode(arrays: Sequence[Array], metadata: dict[str, Any]) -> bytes:
    """Return length word and padded header for arrays in file order (without padding) and metadata.

    Raises:
        ValueError: the header would exceed 100,000,000 bytes.
    """
    size = header_size(arrays, metadata)
    if size > MAX_HEADER:
        raise ValueError(
            f"the header would have {size:,} bytes, at most {MAX_HEADER:,} are allowed: shorten the provenance"
        )
    text = _text(place(arrays), metadata, widest=False)
    return (size - 8).to_bytes(8, "little") + text + b" " * (size - 8 - len(text))


def decode_size(first: bytes, *, path: str, num_bytes: int) -> int:
    """Return the header's size from a file's first 8 bytes; raise FormatError where the file cannot hold it."""
    if num_bytes < 8 or len(first) < 8:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, a shard has at least {PAGE:,}: it is no shard, or the copy was cut short."
        )
    size = 8 + int.from_bytes(first[:8], "little")
    if size % PAGE or size > MAX_HEADER or size == 0:
        raise FormatError(
            f"{path}: byte 0: the header's length is {size - 8:,}, expected 8 less than a multiple of {PAGE:,}, up to {MAX_HEADER:,}: "
            "it is no shard, or damaged: copy it again."
        )
    if size > num_bytes:
        raise FormatError(
            f"{path}: the header promises {size:,} bytes but the file ends after {num_bytes:,}; the copy was cut short: copy it again."
        )
    return size


def decode(raw: bytes, *, path: str, num_bytes: int) -> Header:
    """Decode length word and header; raise FormatError for the first rule that they break.

    Args:
        raw: the file's first bytes, exactly as many as ``decode_size`` says.
        path: for messages.
        num_bytes: size of the whole file; the arrays must fill it exactly.
    """
    text = raw[8:].rstrip(b" ")
    try:
        tree = canonical.loads(text)
        exact = isinstance(tree, dict) and canonical.dumps(tree) == text
    except ValueError as error:
        raise FormatError(
            f"{path}: the header is not valid JSON ({error}): it is no shard, or damaged: copy it again."
        ) from None
    if not exact:
        raise FormatError(
            f"{path}: the header is not canonical JSON (sorted keys, no spaces): it was not written by Millstream."
        )
    metadata = _metadata(tree.pop("__metadata__", None), path)
    arrays = sorted((_array(name, entry, path) for name, entry in tree.items()), key=lambda a: (a.start, a.stop))
    _check_placement(arrays, len(raw), num_bytes, path)
    proper = [array for array in arrays if not array.name.startswith("padding.")]
    if place(proper) != arrays:
        raise FormatError(
            f"{path}: the arrays or their paddings are not where the rule of 64 puts them: it was not written by Millstream, or is damaged."
        )
    if header_size(proper, metadata) != len(raw):
        raise FormatError(
            f"{path}: the header has {len(raw):,} bytes, expected {header_size(proper, metadata):,} for its fields: it was not written by "
            "Millstream, or is damaged."
        )
    return Header(size=len(raw), arrays={array.name: array for array in proper}, metadata=metadata)


def _text(arrays: Sequence[Array], metadata: dict[str, Any], *, widest: bool) -> bytes:
    inner = _widen(metadata) if widest else metadata
    tree: dict[str, Any] = {"__metadata__": {"millstream": canonical.dumps(inner).decode("utf-8")}}
    for array in arrays:
        entry = {"data_offsets": [array.start, array.stop], "dtype": array.code, "shape": list(array.shape)}
        tree[array.name] = _widen(entry) if widest else entry
    return canonical.dumps(tree)


def _widen(value: Any) -> Any:
    """Return plain data with every number replaced by one of 20 digits."""
    if isinstance(value, dict):
        return {key: _widen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_widen(item) for item in value]
    return 10**19 if type(value) is int else value


def _metadata(entry: Any, path: str) -> dict[str, Any]:
    if not isinstance(entry, dict) or set(entry) != {"millstream"} or not isinstance(entry["millstream"], str):
        raise FormatError(
            f"{path}: __metadata__ does not hold the one text 'millstream': it is a safetensors file but no shard of Millstream."
        )
    text = entry["millstream"].encode("utf-8", errors="surrogatepass")
    try:
        metadata = canonical.loads(text)
        exact = isinstance(metadata, dict) and canonical.dumps(metadata) == text
    except ValueError as error:
        raise FormatError(
            f"{path}: the metadata is not valid JSON ({error}): the file is damaged: copy it again."
        ) from None
    if not exact:
        raise FormatError(f"{path}: the metadata is not a canonical JSON object: it was not written by Millstream.")
    assert isinstance(metadata, dict)
    return metadata


def _array(name: str, entry: Any, path: str) -> Array:
    where = f"{path}: array {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"data_offsets", "dtype", "shape"}:
        raise FormatError(f"{where}: expected an object with data_offsets, dtype and shape: the file is damaged.")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise FormatError(f"{where}: dtype is {code!r}, expected one of {', '.join(DTYPES)}.")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise FormatError(
            f"{where}: shape or data_offsets are not at most {MAX_RANK} whole numbers from 0 to 2^63 - 1: the file is damaged."
        )
    array = Array(name=name, code=code, shape=tuple(shape), start=offsets[0], stop=offsets[1])
    if array.stop - array.start != array.num_bytes:
        raise FormatError(
            f"{where}: shape {shape} of {code} needs {array.num_bytes:,} bytes but data_offsets {offsets} hold "
            f"{array.stop - array.start:,}: the file is damaged."
        )
    return array


def _counts(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= MAX_RANK
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


def _check_placement(arrays: list[Array], size: int, num_bytes: int, path: str) -> None:
    at = 0
    for array in arrays:
        if array.start != at:
            raise FormatError(
                f"{path}: array {array.name!r} begins at byte {array.start:,} of the data, expected {at:,}: arrays overlap or leave a hole."
            )
        at = array.stop
    if size + at != num_bytes:
        what = (
            "the copy was cut short: copy it again"
            if num_bytes < size + at
            else "something was appended: it is not the file that was written"
        )
        raise FormatError(f"{path}: the header promises {size + at:,} bytes but the file has {num_bytes:,}; {what}.")


def blocks(num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, stop) bytes of the checksum blocks of ``num_bytes`` bytes of data: 1 MiB each, the last may be shorter."""
    for start in range(0, num_bytes, BLOCK):
        yield start, min(start + BLOCK, num_bytes)
