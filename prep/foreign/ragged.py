"""Stretches of bytes of different lengths: cut into batches, and gathered into one array."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def stretches_of(offsets: Int64, most: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of runs of items of at most ``most`` bytes, or of one item.

    Args:
        offsets: int64[n + 1], where each begins, non-decreasing.
        most: bytes.
    """
    first, total = 0, len(offsets) - 1
    while first < total:
        last = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
        last = min(max(last, first + 1), total)
        yield first, last
        first = last


def items_of(data: bytes, starts: Int64, sizes: Int64) -> npt.NDArray[np.uint8]:
    """Return stretches of bytes one after another, uint8[sum of sizes]: a copy."""
    view = memoryview(data)
    parts = [view[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    return np.frombuffer(b"".join(parts), dtype=np.uint8)
