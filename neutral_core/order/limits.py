"""``max_epochs``: how often each source may be served, and the first sample at which that would be exceeded (docs/order.md §7)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from neutral_core.cursor import MAX_SAMPLE
from neutral_core.errors import ExhaustedError
from neutral_core.order.mixture import exact_weight
from neutral_core.order.phases import Phases
from neutral_core.order.skips import Skips
from neutral_core.order.source import Source

Int64 = npt.NDArray[np.int64]


class Limits:
    """How often the sources of a plan may be served.

    Args:
        sources, names, num_windows, phases, skips: of the plan.

    Attributes:
        most: int64[num_sources], samples of each source that may be served; 2^62 where it has no max_epochs.
    """

    def __init__(
        self, sources: Sequence[Source], names: Sequence[str], num_windows: Int64, phases: Phases, skips: Skips
    ) -> None:
        self._sources, self._names, self._phases, self._skips = sources, names, phases, skips
        self.most = np.full(len(sources), MAX_SAMPLE, dtype=np.int64)
        for number, source in enumerate(sources):
            if source.max_epochs is not None:
                self.most[number] = min(int(exact_weight(source.max_epochs) * int(num_windows[number])), MAX_SAMPLE)

    def check(self, sources: Int64, draws: Int64, samples: Int64) -> None:
        """Raise ExhaustedError for the first of samples that is a draw of its source beyond its limit."""
        beyond = np.flatnonzero(draws >= self.most[sources])
        if len(beyond):
            self._refuse(int(samples[beyond[0]]), int(sources[beyond[0]]))

    def check_pass(self, num_samples: int) -> None:
        """Raise ExhaustedError if one of the first ``num_samples`` samples, skipped ones apart, is beyond a limit."""
        sample, source = self.first
        if source is not None and num_samples > sample:
            self._refuse(sample, source)

    @functools.cached_property
    def first(self) -> tuple[int, int | None]:
        """The first sample beyond a limit that is not skipped, and its source; (2^62, None) where there is none."""
        limited = [number for number, source in enumerate(self._sources) if source.max_epochs is not None]
        found = [(sample, number) for number in limited if (sample := self._first_of(number)) is not None]
        return min(found, default=(MAX_SAMPLE, None))

    def _first_of(self, source: int) -> int | None:
        sample = self._phases.sample_of(source, int(self.most[source]))
        while sample is not None and (after := self._skips.after(sample)) > sample:
            served = int(self._phases.counts(after)[source])
            sample = self._phases.sample_of(source, served) if after < MAX_SAMPLE else None
        return sample

    def _refuse(self, sample: int, source: int) -> None:
        raise ExhaustedError(
            f"source {self._names[source] or 'the source'!r}: sample {sample:,} would serve it beyond its max_epochs="
            f"{self._sources[source].max_epochs} ({int(self.most[source]):,} samples): end the pass there (num_samples={sample}), begin a phase without "
            "it, or raise max_epochs."
        )
