"""Phases: stretches of samples with fixed weights; each source goes on from where it stood (docs/order.md §7).

A phase has a mixture of its own, counted from its first sample. How often each source was served before is closed form on the trees, so
nothing is replayed: a draw of a source is that count plus the mixture's own number.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.cursor import MAX_SAMPLE
from neutral_core.order.mixture import Mixture, exact_weight, exact_weights

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Phase:
    """From a sample on, other weights.

    Attributes:
        sample: the phase's first, ≥ 1 (a plan's sources themselves say what holds from sample 0 on).
        weights: name of a source → its weight, as ``Source`` takes it; a source that is not named, or has weight 0, is not served. None for all
            that are named: in proportion to their windows.
    """

    sample: int
    weights: Mapping[str, Any] = field(hash=False)


class Phases:
    """The mixtures of a plan, one after another.

    Args:
        starts: the first sample of each; the first is 0, increasing.
        weights: for each the integers, one a source.

    Attributes:
        bases: int64[num_phases, num_sources]: how often each source is served before each phase.
    """

    def __init__(self, starts: Sequence[int], weights: Sequence[Sequence[int]]) -> None:
        self.starts = np.array(starts, dtype=np.int64)
        self.mixtures = [Mixture(each) for each in weights]
        bases = np.zeros((len(starts), len(weights[0])), dtype=np.int64)
        for number, mixture in enumerate(self.mixtures[:-1]):
            bases[number + 1] = bases[number] + mixture.counts(starts[number + 1] - starts[number])
        self.bases = bases

    def at(self, samples: npt.ArrayLike) -> Int64:
        """Return the phase of each sample."""
        return np.asarray(np.searchsorted(self.starts, samples, side="right") - 1, dtype=np.int64)

    def split(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return (source, draw) of each sample: int64, as samples, 0 ≤ sample < 2^62."""
        if len(self.mixtures) == 1:
            return self.mixtures[0].split(samples)
        sources, draws = np.empty_like(samples), np.empty_like(samples)
        phases = self.at(samples)
        for phase in np.unique(phases).tolist():
            mine = phases == phase
            source, draw = self.mixtures[phase].split(samples[mine] - self.starts[phase])
            sources[mine], draws[mine] = source, draw + self.bases[phase, source]
        return sources, draws

    def join(self, source: int, draws: Int64) -> Int64:
        """Return the samples that are draws (int64[n], ≥ 0) of one source; raises as ``Mixture.join`` does."""
        samples = np.empty_like(draws)
        phases = np.searchsorted(self.bases[:, source], draws, side="right") - 1
        for phase in np.unique(phases).tolist():
            mine = phases == phase
            own = self.mixtures[phase].join(source, draws[mine] - self.bases[phase, source])
            samples[mine] = own + self.starts[phase]
        if len(samples) and int(samples.max()) >= MAX_SAMPLE:
            raise OverflowError(f"source {source}: a draw lies beyond the last sample, 2^62 - 1.")
        return samples

    def sample_of(self, source: int, draw: int) -> int | None:
        """Return the sample that is one draw of a source; None where that never comes."""
        try:
            return int(self.join(source, np.array([draw], dtype=np.int64))[0])
        except (ValueError, OverflowError):
            return None

    def counts(self, sample: int) -> Int64:
        """Return how often each source is served before ``sample``: int64[num_sources]."""
        phase = int(self.at(sample))
        own = self.mixtures[phase].counts(sample - int(self.starts[phase]))
        return np.asarray(self.bases[phase] + np.array(own, dtype=np.int64))


def phase_weights(phases: Sequence[Phase], names: Sequence[str], windows: Int64) -> tuple[list[int], list[list[int]]]:
    """Return the first sample and the integer weights of each phase, one a source; raise ValueError naming the phase and source."""
    starts: list[int] = []
    weights: list[list[int]] = []
    for phase in phases:
        if not isinstance(phase, Phase):
            raise TypeError(f"phases holds a {type(phase).__name__}, expected Phase(sample, weights).")
        least = starts[-1] + 1 if starts else 1
        if isinstance(phase.sample, bool) or not isinstance(phase.sample, (int, np.integer)):
            raise ValueError(f"a phase begins at sample {phase.sample!r}, expected an integer.")
        if not least <= phase.sample < MAX_SAMPLE:
            raise ValueError(
                f"a phase begins at sample {phase.sample:,}, expected {least:,} to 2^62 - 1: phases come in the order of their samples, and what holds "
                "from sample 0 on the sources say themselves."
            )
        starts.append(int(phase.sample))
        weights.append(_weights(phase, names, windows))
    return starts, weights


def _weights(phase: Phase, names: Sequence[str], windows: Int64) -> list[int]:
    where = f"the phase from sample {phase.sample:,} on"
    if not isinstance(phase.weights, Mapping):
        raise TypeError(f"{where}: weights is {type(phase.weights).__name__}, expected a dict of source names.")
    known = set(names)
    for name in phase.weights:
        if name not in known:
            near = difflib.get_close_matches(str(name), names, 1)
            raise ValueError(
                f"{where} names the source {name!r}, which the plan does not have: add it to the plan's sources, with weight 0 if it is to begin later."
                + (f" Did you mean {near[0]!r}?" if near else "")
            )
    return resolved_weights([phase.weights.get(name, 0) for name in names], names, windows, where=f"{where}: ")


def resolved_weights(given: Sequence[Any], names: Sequence[str], windows: Int64, *, where: str = "") -> list[int]:
    """Return integers in the ratio of the weights given; where they are left out (None) for all that are not 0, of the windows.

    Raises:
        ValueError: naming the source.
    """
    exact = []
    for weight, name in zip(given, names, strict=True):
        try:
            exact.append(None if weight is None else exact_weight(weight))
        except ValueError as error:
            raise ValueError(f"{where}source {name!r}: {error}") from None
    left_out = [weight is None for weight in exact]
    if any(left_out):
        if any(exact):
            name = names[left_out.index(True)]
            raise ValueError(
                f"{where}source {name!r} has no weight but others do: give all sources weights, or none but 0."
            )
        return exact_weights([count if out else 0 for count, out in zip(windows.tolist(), left_out, strict=True)])
    try:
        return exact_weights(exact)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None
