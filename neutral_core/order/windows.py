"""``concat`` windows: which tokens of a source's circular stream fill a row (docs/order.md §5), and in which shards they lie.

    source s, position p ──base──▶ place on one line that all sources share ──bisection──▶ segment: a stretch of one shard

A row is one piece of a segment as a rule; one that crosses a shard's edge, or from a source's last token to its first, is several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.corpus import Corpus
from neutral_core.format.shard_like import ShardLike

Int64 = npt.NDArray[np.int64]


def num_windows(num_tokens: int, seq_len: int) -> int:
    """Return the windows in an epoch of a source: ⌊(num_tokens − 1) / seq_len⌋."""
    return max(num_tokens - 1, 0) // seq_len


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Stretches of shards that fill rows: int64 arrays of one length, in no order but that of a row's columns.

    Attributes:
        row, column: where the piece goes.
        segment: index into ``Stretches.shards``.
        start: its first token in that shard. length: in tokens, ≥ 1.
    """

    row: Int64
    column: Int64
    segment: Int64
    start: Int64
    length: Int64

    def of_rows(self, first: int, last: int) -> Pieces:
        """Return the pieces of rows first … last, counted from 0 again; cheap where each row is one piece."""
        if len(self.row) and len(self.row) == int(self.row[-1]) + 1:
            chosen: Any = slice(first, last)
        else:
            chosen = np.flatnonzero((self.row >= first) & (self.row < last))
        return Pieces(
            row=self.row[chosen] - first,
            column=self.column[chosen],
            segment=self.segment[chosen],
            start=self.start[chosen],
            length=self.length[chosen],
        )


class Stretches:
    """The segments of all sources on one line.

    Args:
        runs: for each source its corpus and the tokens [start, stop) of it that are the source.
    """

    def __init__(self, runs: Sequence[tuple[Corpus, int, int]]) -> None:
        self.dtypes = {corpus.dtype for corpus, _, _ in runs}
        self.shards: list[ShardLike] = []
        self.first_documents: list[int] = []
        self.shard_numbers: list[int] = []
        begins: list[Int64] = []
        starts: list[Int64] = []
        base = [0]
        for corpus, start, stop in runs:
            edges = np.clip(corpus.first_token, start, stop)
            begins.append(base[-1] + edges[:-1] - start)
            starts.append(edges[:-1] - corpus.first_token[:-1])
            self.shards.extend(corpus.shards)
            self.first_documents.extend(corpus.first_document[:-1].tolist())
            self.shard_numbers.extend(range(corpus.num_shards))
            base.append(base[-1] + stop - start)
        self.base = np.array(base, dtype=np.int64)
        self._begins = np.concatenate([*begins, self.base[-1:]])
        self._starts = np.concatenate(starts)

    def pieces(self, sources: npt.NDArray[Any], positions: Int64, length: int) -> Pieces:
        """Return what fills rows of ``length`` tokens that begin at ``positions`` (int64[n], in tokens) of ``sources``."""
        row = np.arange(len(positions), dtype=np.int64)
        first, end = self.base[sources], self.base[np.asarray(sources) + 1]
        place = first + positions
        left = np.full(len(positions), length, dtype=np.int64)
        found: list[tuple[Int64, Int64, Int64, Int64, Int64]] = []
        while len(row):
            segment = np.searchsorted(self._begins, place, side="right") - 1
            take = np.minimum(left, self._begins[segment + 1] - place)
            found.append((row, length - left, segment, self._starts[segment] + place - self._begins[segment], take))
            more = left > take
            if not more.any():
                break
            row, left, place, first, end = row[more], (left - take)[more], (place + take)[more], first[more], end[more]
            place = np.where(place == end, first, place)
        names = ("row", "column", "segment", "start", "length")
        columns = [np.concatenate(parts) for parts in zip(*found, strict=True)] if found else [row] * 5
        return Pieces(**dict(zip(names, columns, strict=True)))
