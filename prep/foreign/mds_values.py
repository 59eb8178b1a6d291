"""The values of one column of MDS, of many samples at once, as arrays of integers; see mds.py for the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from prep.foreign.files import short
from prep.foreign.layout import Column
from prep.foreign.ragged import items_of

DTYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4", 64: "<u8", 65: "<i8"}
_MOST_BYTES = 2**32 - 1  # offsets are u32

Int64 = npt.NDArray[np.int64]


class Place(NamedTuple):
    """Where values come from, for messages: a column of the samples from ``first`` on."""

    path: Path
    name: str
    first: int

    def of(self, at: int) -> str:
        """Return the place of one of the samples."""
        return f"{self.path}: sample {self.first + at:,}: {self.name}"


def values_of(data: bytes, encoding: str, starts: Int64, sizes: Int64, place: Place) -> Column:
    """Return a column of samples that follow each other."""
    name, _, rest = encoding.partition(":")
    if name == "bytes":
        return Column(items_of(data, starts, sizes), sizes)
    if name == "json":
        return _json(data, starts, sizes, place)
    dtype, _, shape = rest.partition(":")
    if shape:
        return _whole(data, starts, sizes, np.dtype(dtype), place)
    content = np.frombuffer(data, dtype=np.uint8)
    if not dtype:
        codes = _byte(content, starts, sizes, place)
        used = np.unique(codes).tolist()
        odd = np.flatnonzero(~np.isin(codes, list(DTYPES)))
        if len(odd):
            raise FormatError(
                f"{place.of(int(odd[0]))} has the dtype code {int(codes[odd[0]])}, expected one of an integer type: tokens are integers."
            )
        starts, sizes = starts + 1, sizes - 1
        if len(used) > 1:
            return _mixed(data, codes, starts, sizes, place)
        dtype = np.dtype(DTYPES[used[0]]).name if used else "int64"
    starts, sizes = _skip_shape(content, starts, sizes, np.dtype(dtype).itemsize, place)
    return _whole(data, starts, sizes, np.dtype(dtype), place)


def _mixed(data: bytes, codes: npt.NDArray[np.uint8], starts: Int64, sizes: Int64, place: Place) -> Column:
    """Return arrays whose dtypes differ from sample to sample: each by itself, as int64."""
    parts = [
        values_of(
            data,
            f"ndarray:{np.dtype(DTYPES[code]).name}",
            starts[at : at + 1],
            sizes[at : at + 1],
            place._replace(first=place.first + at),
        )
        for at, code in enumerate(codes.tolist())
    ]
    wide = np.uint64 if any(part.values.dtype == np.uint64 for part in parts) else np.int64
    return Column(
        np.concatenate([part.values.astype(wide) for part in parts]), np.concatenate([part.counts for part in parts])
    )


def _skip_shape(
    content: npt.NDArray[np.uint8], starts: Int64, sizes: Int64, itemsize: int, place: Place
) -> tuple[Int64, Int64]:
    """Return where the values of one-dimensional arrays begin behind their shape, and their bytes, checked against it."""
    kinds = _byte(content, starts, sizes, place)
    odd = np.flatnonzero(kinds >> 2 != 1)
    if len(odd):
        raise FormatError(
            f"{place.of(int(odd[0]))} has {int(kinds[odd[0]]) >> 2} dimensions, expected one: a row of ids."
        )
    widths = np.left_shift(1, kinds & 3).astype(np.int64)
    short_ones = np.flatnonzero(sizes < 1 + widths)
    if len(short_ones):
        raise FormatError(f"{place.of(int(short_ones[0]))} is shorter than its shape: the shard is damaged.")
    counts = np.zeros(len(starts), dtype=np.uint64)
    for byte in range(int(widths.max(initial=0))):
        live = np.flatnonzero(widths > byte)
        counts[live] |= content[starts[live] + 1 + byte].astype(np.uint64) << np.uint64(8 * byte)
    starts, sizes = starts + 1 + widths, sizes - 1 - widths
    wrong = np.flatnonzero((counts > np.uint64(_MOST_BYTES)) | (counts.astype(np.int64) * itemsize != sizes))
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{place.of(at)} says that it has {int(counts[at]):,} values of {itemsize} bytes, but there are {int(sizes[at]):,} bytes: the shard is damaged."
        )
    return starts, sizes


def _byte(content: npt.NDArray[np.uint8], starts: Int64, sizes: Int64, place: Place) -> npt.NDArray[np.uint8]:
    empty = np.flatnonzero(sizes < 1)
    if len(empty):
        raise FormatError(f"{place.of(int(empty[0]))} is empty, expected the shape of an array: the shard is damaged.")
    return content[starts]


def _whole(data: bytes, starts: Int64, sizes: Int64, dtype: np.dtype[Any], place: Place) -> Column:
    wrong = np.flatnonzero(sizes % dtype.itemsize)
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{place.of(at)} has {int(sizes[at]):,} bytes, no multiple of {dtype.itemsize}, the size of {dtype}."
        )
    return Column(items_of(data, starts, sizes).view(dtype.newbyteorder("<")), sizes // dtype.itemsize)


def _json(data: bytes, starts: Int64, sizes: Int64, place: Place) -> Column:
    """Return lists of integers that are stored as text, which takes long."""
    lists = []
    for at, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        try:
            value = json.loads(data[start : start + size])
            good = isinstance(value, list) and all(type(item) is int and -(2**63) <= item < 2**63 for item in value)
        except (ValueError, RecursionError):
            good, value = False, data[start : start + min(size, 60)]
        if not good:
            raise FormatError(f"{place.of(at)} is {short(value)}, expected a list of integers.")
        lists.append(np.array(value, dtype=np.int64))
    counts = np.array([len(item) for item in lists], dtype=np.int64)
    return Column(np.concatenate(lists) if lists else np.empty(0, dtype=np.int64), counts)
