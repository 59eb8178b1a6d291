"""Skips: samples that are passed over, as after a loss spike, while all others keep their numbers (docs/order.md §8).

Samples that are left are counted 0, 1, 2, … by their *place*; a loader counts in places, and a cursor is the number of a sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.cursor import MAX_SAMPLE

Int64 = npt.NDArray[np.int64]


class Skips:
    """Runs of samples [start, stop) that are left out.

    Args:
        runs: pairs of integers, 0 ≤ start < stop ≤ 2^62, in any order; they may touch and overlap.

    Attributes:
        runs: the same, joined where they touch, in order.
        num_places: samples that are left.

    Raises:
        ValueError: naming what is no run.
    """

    def __init__(self, runs: Iterable[Any]) -> None:
        joined: list[tuple[int, int]] = []
        for start, stop in sorted(_run(run) for run in runs):
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            else:
                joined.append((start, stop))
        self.runs = tuple(joined)
        self._starts = np.array([start for start, _ in joined], dtype=np.int64)
        lengths = np.array([stop - start for start, stop in joined], dtype=np.int64)
        self._after = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)  # skipped before each run, and in all
        self._places = self._starts - self._after[:-1]
        self.num_places = MAX_SAMPLE - int(self._after[-1])

    def place_of(self, sample: int) -> int:
        """Return how many samples before ``sample`` are left: its place, or that of the next one left where it is skipped itself."""
        run = int(np.searchsorted(self._starts, sample, side="right")) - 1
        if run < 0:
            return sample
        skipped = int(self._after[run]) + min(sample, self.runs[run][1]) - self.runs[run][0]
        return sample - skipped

    def samples_at(self, places: Int64) -> Int64:
        """Return the samples at places (int64[n], ≥ 0; num_places itself gives 2^62)."""
        if not self.runs:
            return places
        return np.asarray(places + self._after[np.searchsorted(self._places, places, side="right")])

    def after(self, sample: int) -> int:
        """Return the sample itself, or where it is skipped the end of its run."""
        run = int(np.searchsorted(self._starts, sample, side="right")) - 1
        return max(sample, self.runs[run][1]) if run >= 0 else sample

    def skipped(self, samples: Int64) -> npt.NDArray[np.bool_]:
        """Return whether each sample is left out."""
        run = np.searchsorted(self._starts, samples, side="right") - 1
        stops = np.array([0, *(stop for _, stop in self.runs)], dtype=np.int64)
        return np.asarray(samples < stops[run + 1])


def _run(run: Any) -> tuple[int, int]:
    try:
        start, stop = run
    except (TypeError, ValueError):
        raise ValueError(f"skip holds {run!r}, expected a pair (from, to) of samples.") from None
    for value in (start, stop):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ValueError(f"skip holds {run!r}, expected a pair (from, to) of integers.")
    if not 0 <= start < stop <= MAX_SAMPLE:
        raise ValueError(f"skip holds {run!r}, expected 0 ≤ from < to ≤ 2^62: samples from … to - 1 are left out.")
    return int(start), int(stop)
