"""The sizes of global batches over a run: one size, or a schedule that changes it at given samples.

The batch that begins at sample K has the size of the last entry at or before K. State is samples, so a schedule needs none of its own. Counted
in places (samples that are not skipped), as the loader counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

BatchSize = int | Sequence[tuple[int, int]]


class BatchSizes:
    """A schedule of sizes.

    Args:
        batch_size: an integer ≥ 1, or pairs (sample, batch_size), the first at sample 0, the samples increasing.
        dp_world_size: ranks, which divide every size.
        place_of: sample → place.

    Raises:
        ValueError: what is no size or no schedule; a size that the ranks do not divide, with the nearest that they do.
    """

    def __init__(self, batch_size: Any, dp_world_size: int, place_of: Callable[[int], int]) -> None:
        entries = [(0, batch_size)] if _is_int(batch_size) else _entries(batch_size)
        for _, size in entries:
            _check_size(size, dp_world_size)
        self.sizes = [size for _, size in entries]
        self._starts = np.array([place_of(sample) for sample, _ in entries], dtype=np.int64)

    def run(self, place: int) -> tuple[int, int | None]:
        """Return the size of the batch that begins at a place, and how many batches from it on have that size; None: all."""
        entry = int(np.searchsorted(self._starts, place, side="right")) - 1
        if entry + 1 == len(self.sizes):
            return self.sizes[entry], None
        return self.sizes[entry], -(-(int(self._starts[entry + 1]) - place) // self.sizes[entry])

    def batches(self, place: int, stop: int, *, partial: bool) -> int:
        """Return how many batches begin at or after ``place`` and lie before ``stop``, a last partial one counted if asked."""
        count = 0
        while place < stop:
            size, run = self.run(place)
            whole, rest = divmod(stop - place, size)
            if run is None or run > whole:
                return count + whole + (partial and rest > 0)
            count += run
            place += run * size
        return count


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _entries(schedule: Any) -> list[tuple[int, int]]:
    problem = f"batch_size is {schedule!r}, expected an integer or pairs (sample, batch_size), the first at sample 0, the samples increasing."
    try:
        entries = [(int(sample), int(size)) for sample, size in schedule if _is_int(sample) and _is_int(size)]
        valid = len(entries) == len(schedule) > 0
    except (TypeError, ValueError):
        raise ValueError(problem) from None
    samples = [sample for sample, _ in entries]
    if not valid or samples[0] != 0 or any(a >= b for a, b in pairwise(samples)):
        raise ValueError(problem)
    return entries


def _check_size(size: int, dp_world_size: int) -> None:
    if size < 1:
        raise ValueError(f"batch_size is {size!r}, expected an integer from 1 on.")
    if size % dp_world_size:
        lower = size // dp_world_size * dp_world_size
        near = f"{lower} or {lower + dp_world_size}" if lower else f"{dp_world_size}"
        raise ValueError(
            f"batch_size is {size}, which {dp_world_size} ranks do not divide: the nearest that they do: {near}."
        )
