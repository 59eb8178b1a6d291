"""Spans of tokens as the fields of a corpus have them: [begin, end), half-open, counted from the document's first token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.fields import Field

FIELD = Field(dtype="int32", shape=(2,))


def checked_spans(
    spans: npt.NDArray[Any],
    counts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    *,
    first: int,
    path: Path,
    name: str,
) -> npt.NDArray[np.int32]:
    """Return spans of consecutive documents as int32[n, 2], aligned and read-only, once each is known to lie in its document.

    Args:
        spans: integers [n, 2], [begin, end).
        counts: int64[documents], how many belong to each; n in total.
        lengths: int64[documents], tokens.
        first: number of the first document, path, name: for messages.

    Raises:
        FormatError: not 0 ≤ begin ≤ end ≤ length. Spans without tokens are kept: a text that gives no token leaves one.
    """
    limits = np.repeat(lengths, counts)
    wrong = (spans[:, 0] < 0) | (spans[:, 1] < spans[:, 0]) | (spans[:, 1] > limits)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        document = first + int(np.searchsorted(np.cumsum(counts), at, side="right"))
        raise FormatError(
            f"{path}: {name} of document {document:,}: a span is [{int(spans[at, 0]):,}, {int(spans[at, 1]):,}), expected one inside of its "
            f"{int(limits[at]):,} tokens: the file is damaged."
        )
    found = np.array(spans, dtype="<i4")
    found.flags.writeable = False
    return found
