"""The trace: which documents, at which token ranges, made a row. What was in the batch where the loss jumped?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from neutral_core.order.windows import Pieces, Stretches

if TYPE_CHECKING:
    from neutral_core.order.plan import Located


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedPiece:
    """A part of a row from one document.

    Attributes:
        document: its number in the corpus.
        start, stop: which of the document's tokens.
        column: where they begin in the row.
        shard: number of the corpus' shard that holds it.
    """

    document: int
    start: int
    stop: int
    column: int
    shard: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedRow:
    """Where a row comes from: the sample's source, epoch and window, and its pieces in the order of the row's columns."""

    sample: int
    source: str
    source_index: int
    epoch: int
    window: int
    pieces: tuple[TracedPiece, ...]


def trace_rows(
    samples: npt.NDArray[np.int64], located: Located, names: Sequence[str], stretches: Stretches, pieces: Pieces
) -> list[TracedRow]:
    """Return the traced rows of located samples, in their order."""
    rows: list[list[TracedPiece]] = [[] for _ in samples]
    for index in np.lexsort((pieces.column, pieces.row)).tolist():
        rows[int(pieces.row[index])].extend(
            _documents(
                stretches,
                int(pieces.segment[index]),
                int(pieces.start[index]),
                int(pieces.length[index]),
                int(pieces.column[index]),
            )
        )
    return [
        TracedRow(
            sample=int(samples[row]),
            source=names[int(located.source[row])],
            source_index=int(located.source[row]),
            epoch=int(located.epoch[row]),
            window=int(located.window[row]),
            pieces=tuple(found),
        )
        for row, found in enumerate(rows)
    ]


def _documents(stretches: Stretches, segment: int, start: int, length: int, column: int) -> list[TracedPiece]:
    """Cut a stretch of one shard where its documents begin; documents without tokens do not show."""
    offsets = stretches.shards[segment].offsets()
    first, last = offsets.find(np.array([start, start + length - 1])).tolist()
    edges = offsets.at(np.arange(first, last + 2)).tolist()
    found = []
    for number, (begin, end) in enumerate(pairwise(edges)):
        low, high = max(begin, start), min(end, start + length)
        if low < high:
            found.append(
                TracedPiece(
                    document=int(stretches.first_documents[segment]) + first + number,
                    start=low - begin,
                    stop=high - begin,
                    column=column + low - start,
                    shard=stretches.shard_numbers[segment],
                )
            )
    return found
