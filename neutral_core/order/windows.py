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

from neutral_core.format.shard_like import ShardLike
from neutral_core.order.source import Source

Int64 = npt.NDArray[np.int64]


def num_windows(num_tokens: int, seq_len: int) -> int:
    """Return the windows in an epoch of a source: ⌊(num_tokens − 1) / seq_len⌋."""
    return max(num_tokens - 1, 0) // seq_len


def windows_over(
    begins: Int64, length: int, num_windows: int, seq_len: int, row_length: int, total: int
) -> tuple[Int64, Int64]:
    """Return the windows whose rows hold a token of a stretch of ``length`` ≥ 1 tokens on a circle of ``total``.

    Args:
        begins: int64[n], where the stretch begins, counted from window 0's first token, 0 ≤ begin < total; one entry an epoch.

    Returns:
        (index into begins, window), int64 each; every pair once.
    """
    found = []
    for turn in (-total, 0, total):  # the stretch may reach over the circle's end, and the last windows may too
        first = np.maximum((begins + turn - row_length) // seq_len + 1, 0)
        last = np.minimum(-(-(begins + turn + length) // seq_len) - 1, num_windows - 1)
        counts = np.maximum(last - first + 1, 0)
        which = np.repeat(np.arange(len(begins)), counts)
        window = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + first[which]
        found.append(which * num_windows + window)
    return np.divmod(np.unique(np.concatenate(found)), num_windows)


@dataclass(frozen=True, slots=True)
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

    @staticmethod
    def join(parts: Sequence[Pieces]) -> Pieces:
        """Return the pieces of all parts."""
        if len(parts) == 1:
            return parts[0]
        return Pieces(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("row", "column", "segment", "start", "length")
            )
        )

    def of(self, chosen: Any) -> Pieces:
        """Return some of the pieces: indices, a mask or a slice."""
        return Pieces(
            self.row[chosen], self.column[chosen], self.segment[chosen], self.start[chosen], self.length[chosen]
        )


class Stretches:
    """The segments of all sources on one line of tokens, and on one of documents.

    Args:
        sources: of a plan.

    Attributes:
        num_tokens, num_documents: int64[num_sources].
        shards, shard_numbers, first_documents: for each segment its shard, that shard's number in its corpus and first document there.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.dtypes = {source.corpus.dtype for source in sources}
        self.shards: list[ShardLike] = []
        self.shard_numbers: list[int] = []
        token_edges, document_edges, token_starts, document_starts, firsts = [], [], [], [], []
        for source in sources:
            corpus = source.corpus
            low, high = _touched(corpus.first_document, *source.documents)
            tokens = np.clip(corpus.first_token[low : high + 1], *source.tokens)
            documents = np.clip(corpus.first_document[low : high + 1], *source.documents)
            token_edges.append(tokens - source.tokens[0])
            document_edges.append(documents - source.documents[0])
            token_starts.append(tokens[:-1] - corpus.first_token[low:high])
            document_starts.append(documents[:-1] - corpus.first_document[low:high])
            firsts.append(corpus.first_document[low:high])
            self.shards.extend(corpus.shards[low:high])
            self.shard_numbers.extend(range(low, high))
        self.num_tokens = np.array([int(edges[-1]) for edges in token_edges], dtype=np.int64)
        self.num_documents = np.array([int(edges[-1]) for edges in document_edges], dtype=np.int64)
        self.first_documents: Int64 = np.concatenate(firsts)
        self._parts: Int64 = np.array([source.documents[0] for source in sources], dtype=np.int64)
        self.base: Int64 = np.cumsum([0, *self.num_tokens.tolist()], dtype=np.int64)
        self._document_base: Int64 = np.cumsum([0, *self.num_documents.tolist()], dtype=np.int64)
        self._begins = _line(token_edges, self.base)
        self._document_begins = _line(document_edges, self._document_base)
        self._starts = np.concatenate(token_starts)
        self._document_starts = np.concatenate(document_starts)

    def segments_at(self, sources: npt.NDArray[Any], tokens: Int64) -> tuple[Int64, Int64]:
        """Return (segment, token in its shard) of tokens of sources."""
        place = self.base[sources] + tokens
        segment = np.searchsorted(self._begins, place, side="right") - 1
        return segment, self._starts[segment] + place - self._begins[segment]

    def documents_at(self, sources: npt.NDArray[Any], tokens: Int64) -> Int64:
        """Return the document that holds each token; both counted from the source's first."""
        segment, local = self.segments_at(sources, tokens)
        documents: Int64 = np.empty_like(local)
        for mine in by_segment(segment):
            documents[mine] = self.shards[int(segment[mine[0]])].offsets().find(local[mine])
        return np.asarray(documents + self.first_documents[segment] - self._parts[sources])

    def document_starts(self, sources: npt.NDArray[Any], first: Int64, count: Int64, width: int) -> Int64:
        """Return where ``count`` (1 … width) documents from ``first`` on begin, and the last one ends: int64[n, width + 1], in tokens of the source.

        Entries behind the end repeat it.
        """
        out = np.empty((len(first), width + 1), dtype=np.int64)
        place = self._document_base[sources] + first
        segment = np.searchsorted(self._document_begins, place, side="right") - 1
        inside = place + count <= self._document_begins[segment + 1]
        for mine in by_segment(segment):
            whole = mine[inside[mine]]
            number = int(segment[mine[0]])
            last = np.minimum(np.arange(width + 1), count[whole][:, None])
            local = (place[whole] - self._document_begins[number] + self._document_starts[number])[:, None] + last
            found = self.shards[number].offsets().at(local)
            out[whole] = found - self._starts[number] + self._begins[number] - self.base[sources[whole]][:, None]
        across = np.flatnonzero(~inside)  # runs that cross shards: each document looked up by itself
        if len(across):
            numbers = first[across, None] + np.minimum(np.arange(width + 1), count[across][:, None])
            owners = np.repeat(np.asarray(sources)[across], width + 1)
            out[across] = self._starts_of(owners, numbers.ravel()).reshape(numbers.shape)
        return out

    def _starts_of(self, sources: Int64, documents: Int64) -> Int64:
        """Return where documents begin, in tokens of their source; for its number of documents, where it ends."""
        out = self.num_tokens[sources]
        inner = np.flatnonzero(documents < self.num_documents[sources])
        place = self._document_base[sources[inner]] + documents[inner]
        segment = np.searchsorted(self._document_begins, place, side="right") - 1
        for mine in by_segment(segment):
            number = int(segment[mine[0]])
            local = place[mine] - self._document_begins[number] + self._document_starts[number]
            found = self.shards[number].offsets().at(local) - self._starts[number] + self._begins[number]
            out[inner[mine]] = found - self.base[sources[inner[mine]]]
        return out

    def advise(self, pieces: Pieces) -> None:
        """Ask the system to bring what the pieces hold into memory; returns at once."""
        for mine in by_segment(pieces.segment):
            self.shards[int(pieces.segment[mine[0]])].advise(pieces.start[mine], pieces.length[mine])

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
        return Pieces.join([Pieces(*each) for each in found] or [Pieces(row, row, row, row, row)])


def by_segment(segments: Int64) -> list[Int64]:
    """Return the indices of equal entries together."""
    if not len(segments):
        return []
    if (segments == segments[0]).all():
        return [np.arange(len(segments), dtype=np.int64)]
    order = np.argsort(segments, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(segments[order])) + 1)


def _touched(first_document: Int64, start: int, stop: int) -> tuple[int, int]:
    """Return the run of shards that hold documents start … stop − 1, at least one."""
    low = min(int(np.searchsorted(first_document, start, side="right")) - 1, len(first_document) - 2)
    return low, max(int(np.searchsorted(first_document, stop, side="left")), low + 1)


def _line(edges: list[Int64], base: Int64) -> Int64:
    """Return where all segments begin on one line, and its end."""
    begins = [each[:-1] + start for each, start in zip(edges, base[:-1].tolist(), strict=True)]
    return np.concatenate([*begins, base[-1:]])
