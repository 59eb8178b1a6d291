"""``document_shuffle``: documents permuted inside fixed runs of 128, which keep their places in the stream (docs/order.md §10).

A run is 128 documents of a source one after another, counted from its first. Its tokens stay where they are as a whole, so a position in the
shuffled stream lies in the run that it lies in on disk, and only the lengths of that run's documents are needed to find the document: no
table of the corpus is made. Weaker than a shuffle of all documents: neighbours stay within one run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from neutral_core.order.permutation import UInt64, draw, permute, radices
from neutral_core.order.shuffle import DOCUMENTS, output
from neutral_core.order.windows import Pieces, Stretches

Int64 = npt.NDArray[np.int64]
RUN = 128
_ROWS = 1024  # located together: some ten megabytes


class DocumentRuns:
    """The documents of a plan's sources, permuted run by run.

    Args:
        stretches: where the sources' documents lie.
    """

    def __init__(self, stretches: Stretches) -> None:
        self._stretches = stretches
        self._radices: UInt64 = np.array([radices(max(n, 1)) for n in range(RUN + 1)], dtype=np.uint64)

    def pieces(self, sources: Int64, keys: UInt64, positions: Int64, length: int) -> Pieces:
        """Return what fills rows of ``length`` tokens that begin at positions of the shuffled streams; keys are those of the epochs."""
        parts = [
            self._pieces(sources[first : first + _ROWS], keys[first : first + _ROWS], positions[first : first + _ROWS], length, first)
            for first in range(0, max(len(positions), 1), _ROWS)
        ]  # fmt: skip
        return Pieces.join(parts)

    def starts(self, source: int, document: int, keys: UInt64) -> Int64:
        """Return where a document of a source (both counted from 0) begins in the stream of each epoch: int64, as keys."""
        run = np.full(len(keys), document // RUN, dtype=np.int64)
        edges, order, begins, _ = self._runs(np.full(len(keys), source, dtype=np.int64), keys, run)
        slot = np.argmax(order == document % RUN, axis=1)
        rows = np.arange(len(keys))
        return np.asarray(edges[:, 0] + begins[rows, slot])

    def _pieces(self, sources: Int64, keys: UInt64, positions: Int64, length: int, first_row: int) -> Pieces:
        totals = self._stretches.num_tokens[sources]
        row = np.arange(len(positions), dtype=np.int64)
        crosses = np.flatnonzero(positions + length > totals)  # from the stream's last token to its first
        row = np.concatenate([row, crosses])
        start = np.concatenate([positions, np.zeros(len(crosses), dtype=np.int64)])
        stop = np.concatenate([np.minimum(positions + length, totals), (positions + length - totals)[crosses]])
        column = np.concatenate([np.zeros(len(positions), dtype=np.int64), (totals - positions)[crosses]])
        source = sources[row]
        ends = self._stretches.documents_at(np.tile(source, 2), np.concatenate([start, stop - 1])).reshape(2, -1) // RUN
        counts = ends[1] - ends[0] + 1
        each = np.repeat(np.arange(len(row)), counts)
        run = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts) + ends[0][each]
        edges, order, begins, lengths = self._runs(source[each], keys[row][each], run)
        begins += edges[:, :1]
        low = np.maximum(begins, start[each][:, None])
        high = np.minimum(begins + lengths, stop[each][:, None])
        which, slot = np.nonzero(low < high)
        low, high = low[which, slot], high[which, slot]
        skipped = low - begins[which, slot]  # tokens of the document before the piece
        mine = each[which]
        segment, local = self._stretches.segments_at(source[mine], edges[which, order[which, slot]] + skipped)
        return Pieces(
            row=row[mine] + first_row,
            column=column[mine] + low - start[mine],
            segment=segment,
            start=local,
            length=high - low,
        )

    def _runs(self, source: Int64, keys: UInt64, run: Int64) -> tuple[Int64, Int64, Int64, Int64]:
        """Return for each run where its documents begin on disk [n, 129], which comes in each slot [n, 128], where in the run and how long it is."""
        first = run * RUN
        count = np.minimum(self._stretches.num_documents[source] - first, RUN)
        slots = np.arange(RUN)
        edges = self._stretches.document_starts(source, first, count, RUN)
        key = draw(output(keys, DOCUMENTS), run)
        a, b = (np.broadcast_to(self._radices[count, side][:, None], (len(run), RUN)).ravel() for side in (0, 1))
        index = np.minimum(slots, count[:, None] - 1)  # slots behind a short run repeat its last, and are empty
        order = permute(index.ravel(), np.repeat(count, RUN), a, b, np.repeat(key, RUN)).reshape(-1, RUN)
        lengths = np.take_along_axis(np.diff(edges, axis=1), order, axis=1)
        lengths[slots >= count[:, None]] = 0
        begins = np.cumsum(lengths, axis=1) - lengths
        return edges, order, begins, lengths
