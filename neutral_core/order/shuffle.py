"""Shuffles of an epoch's windows: position → window and back, computed (docs/order.md §4 and §9).

``global``   one permutation over all windows: any window may come at any time.
``none``     file order.
``blocks``   for storage that is far away: windows are permuted within groups of a few chunks, chunks are permuted among each other, so a
             group touches its own chunks and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from neutral_core.order.permutation import UInt64, draw, permute, permute_inverse, radices

Int64 = npt.NDArray[np.int64]
CHUNK_TOKENS = 1 << 21  # of a chunk of ``blocks``, unless told otherwise: 4 MiB of uint16
GROUP_CHUNKS = 64

# Outputs of an epoch's key; a number is used for one thing only.
WINDOWS, OFFSET, GROUPS, REST, DOCUMENTS = range(5)


def output(keys: UInt64, number: int) -> UInt64:
    """Return one output of each epoch's key."""
    return draw(keys, np.full(keys.shape, number, dtype=np.int64))


class Shuffle(Protocol):
    """Arguments: source int64[n], index into the plan's; keys uint64[n], of the epochs; position or window int64[n]."""

    moves: bool

    def window(self, source: Int64, keys: UInt64, position: Int64) -> Int64:
        """Return the window at each position of its epoch."""
        ...

    def position(self, source: Int64, keys: UInt64, window: Int64) -> Int64:
        """Return where in its epoch each window comes."""
        ...


class NoShuffle:
    """Windows in file order, cut at the same places in each epoch."""

    moves = False

    def window(self, source: Int64, keys: UInt64, position: Int64) -> Int64:
        """See Shuffle."""
        return position

    def position(self, source: Int64, keys: UInt64, window: Int64) -> Int64:
        """See Shuffle."""
        return window


class _Range:
    """Permutations of 0 … n − 1 for one n a source."""

    def __init__(self, sizes: Int64) -> None:
        self.sizes = sizes
        self.radices: UInt64 = np.array([radices(max(n, 1)) for n in sizes.tolist()], dtype=np.uint64).reshape(-1, 2)

    def apply(self, function: Any, source: Int64, key: UInt64, index: Int64) -> Int64:
        a, b = self.radices[source, 0], self.radices[source, 1]
        return np.asarray(function(index, self.sizes[source], a, b, key), dtype=np.int64)


class GlobalShuffle:
    """One permutation over all windows of a source, another one in each epoch."""

    moves = True

    def __init__(self, num_windows: Int64) -> None:
        self._all = _Range(num_windows)

    def window(self, source: Int64, keys: UInt64, position: Int64) -> Int64:
        """See Shuffle."""
        return self._all.apply(permute, source, output(keys, WINDOWS), position)

    def position(self, source: Int64, keys: UInt64, window: Int64) -> Int64:
        """See Shuffle."""
        return self._all.apply(permute_inverse, source, output(keys, WINDOWS), window)


class BlockShuffle:
    """Chunks of ``chunk_windows`` windows in a permuted order, ``group_chunks`` of them at a time with their windows permuted together."""

    moves = True

    def __init__(self, num_windows: Int64, chunk_windows: int, group_chunks: int) -> None:
        self.chunk_windows, self.group_chunks = chunk_windows, group_chunks
        chunks = num_windows // chunk_windows
        self._whole = chunks * chunk_windows  # windows in whole chunks
        self._chunks = _Range(chunks)
        self._group = _Range(np.full(len(chunks), chunk_windows * group_chunks, dtype=np.int64))
        self._last_group = _Range(chunks % group_chunks * chunk_windows)
        self._rest = _Range(num_windows - self._whole)

    def window(self, source: Int64, keys: UInt64, position: Int64) -> Int64:
        """See Shuffle."""
        out = np.empty_like(position)
        for mine, group, ranges in self._parts(source, position):
            s, k, i = source[mine], keys[mine], position[mine]
            if group is None:
                out[mine] = self._whole[s] + ranges.apply(permute, s, output(k, REST), i - self._whole[s])
                continue
            first = group * self.group_chunks
            place = ranges.apply(permute, s, draw(output(k, GROUPS), group), i - first * self.chunk_windows)
            chunk = self._chunks.apply(permute, s, output(k, WINDOWS), first + place // self.chunk_windows)
            out[mine] = chunk * self.chunk_windows + place % self.chunk_windows
        return out

    def position(self, source: Int64, keys: UInt64, window: Int64) -> Int64:
        """See Shuffle."""
        out = np.empty_like(window)
        # Where a window's chunk comes decides its group; windows of the rest keep theirs.
        whole = window < self._whole[source]
        slot = np.zeros_like(window)
        s, k, w = source[whole], keys[whole], window[whole]
        slot[whole] = self._chunks.apply(permute_inverse, s, output(k, WINDOWS), w // self.chunk_windows)
        somewhere = np.where(whole, slot * self.chunk_windows, window)
        for mine, group, ranges in self._parts(source, somewhere):
            s, k, w = source[mine], keys[mine], window[mine]
            if group is None:
                out[mine] = self._whole[s] + ranges.apply(permute_inverse, s, output(k, REST), w - self._whole[s])
                continue
            first = group * self.group_chunks
            place = (slot[mine] - first) * self.chunk_windows + w % self.chunk_windows
            index = ranges.apply(permute_inverse, s, draw(output(k, GROUPS), group), place)
            out[mine] = first * self.chunk_windows + index
        return out

    def _parts(self, source: Int64, position: Int64) -> Sequence[tuple[Any, Int64 | None, _Range]]:
        """Return which entries lie in full groups, in their source's last group and in the rest, with their groups and ranges."""
        group = position // (self.chunk_windows * self.group_chunks)
        full = (group + 1) * self.chunk_windows * self.group_chunks <= self._whole[source]
        rest = position >= self._whole[source]
        last = ~full & ~rest
        found = ((full, group[full], self._group), (last, group[last], self._last_group), (rest, None, self._rest))
        return [part for part in found if part[0].any()]
