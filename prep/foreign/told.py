"""What a caller has to say of rows, and the evidence that is shown when it was not said."""

from __future__ import annotations

import numpy as np

from neutral_core.legacy.boundaries import CHOICES, Rule
from prep.foreign.choice import Choice
from prep.foreign.columns import documents_of
from prep.foreign.layout import BYTES, Foreign, Rows

INDEX, SEGMENTS = "index", "segments"
_SHOWN = 1000


def check_told(foreign: Foreign, choice: Choice, boundaries: str | None) -> str:
    """Return how documents are told: ``index``, ``segments``, or a rule that cuts the joined rows.

    Raises:
        ValueError: the dtype of a column of bytes, or what a row is, was not said; the message shows what speaks for which.
    """
    if foreign.columns[choice.tokens].holds == BYTES and choice.dtype is None:
        raise ValueError(
            f"{foreign.path}: the column {choice.tokens!r} holds bytes, and nothing says how wide its ids are; give --dtype. {_widths(foreign, choice)}"
        )
    if choice.segments is not None and boundaries != SEGMENTS:
        raise ValueError(
            f"{foreign.path}: its rows are packed, as {choice.segments} says: give --boundaries {SEGMENTS} to cut documents where it changes and drop what it "
            f"marks as padding, or --ignore {choice.segments}."
        )
    if boundaries == SEGMENTS and choice.segments is None:
        raise ValueError(
            f"{foreign.path}: boundaries is {SEGMENTS!r}, but there is no column {choice.tokens}_segmentation."
        )
    if boundaries in (INDEX, SEGMENTS):
        return boundaries
    if boundaries is not None:
        try:
            return str(Rule.of(boundaries))
        except ValueError:
            known = ", ".join((INDEX, SEGMENTS, *CHOICES))
            raise ValueError(f"boundaries is {boundaries!r}, expected one of {known}.") from None
    if foreign.rows_are_documents:
        return INDEX
    raise ValueError(
        f"{foreign.path}: nothing says whether a row is a document or a packed block; give --boundaries {INDEX} (each row is a document), or "
        f"{', '.join(CHOICES)} (rows "
        f"are joined to one stream, which is cut). {_evidence(foreign, choice)}"
    )


def _first_rows(foreign: Foreign, names: tuple[str, ...]) -> Rows | None:
    for piece in foreign.pieces:
        for rows in piece.read(names):
            if len(rows.columns[names[0]].counts):
                return rows
    return None


def _evidence(foreign: Foreign, choice: Choice) -> str:
    """Say how long the first rows are, and how they begin and end."""
    rows = _first_rows(foreign, choice.names)
    if rows is None:
        return "There are no rows."
    documents = documents_of(rows, choice)
    lengths = documents.lengths[:_SHOWN]
    ends = np.cumsum(lengths)
    some = lengths > 0
    sizes = (
        f"all have {int(lengths[0]):,} ids"
        if len(set(lengths.tolist())) == 1
        else f"have {int(lengths.min()):,} to {int(lengths.max()):,} ids"
    )
    said = [f"The first {len(lengths):,} rows {sizes}"]
    for what, at in (("ends", (ends - 1)[some]), ("begins", (ends - lengths)[some])):
        if len(at):
            ids, times = np.unique(documents.tokens[at], return_counts=True)
            most = int(times.argmax())
            said.append(f"the id {int(ids[most]):,} {what} {int(times[most]):,} of them")
    return f"{', '.join(said)}."


def _widths(foreign: Foreign, choice: Choice) -> str:
    """Say what the first row would be under each width."""
    rows = _first_rows(foreign, (choice.tokens,))
    if rows is None:
        return "There are no rows."
    values, counts = rows.columns[choice.tokens]
    first = np.ascontiguousarray(values[: int(counts[0])])
    views = []
    for name in ("uint16", "int32", "int64"):
        dtype = np.dtype(name)
        if len(first) % dtype.itemsize:
            views.append(f"as {name} it would not end on a whole id")
        elif len(first):
            ids = first.view(dtype)
            views.append(f"as {name} its {len(ids):,} ids run from {int(ids.min()):,} to {int(ids.max()):,}")
    return f"The first row has {len(first):,} bytes: {'; '.join(views)}." if views else "The first row is empty."
