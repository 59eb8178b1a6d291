"""Rows become documents: which column holds the ids, what the columns beside it mean, and what is refused.

    attention_mask         ones in one run of a row, zeros before and behind it: padding, which is dropped
    labels                 equal to the ids, or -100: token.loss_mask, True where the label is not -100. Labels are not shifted: label i belongs to id i, as
                           Hugging Face's models have it
    loss_mask              0 or 1: token.loss_mask; assistant_masks, as Hugging Face's chat templates name it, is the same
    <ids>_segmentation     T5X and MaxText: 1, 2, … for the documents of a packed row, 0 for padding: documents are cut where it changes (``segments``)

Whatever contradicts this is refused by its place; a column that is in the way can be ignored by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from prep.foreign.choice import FIELD, IGNORED_LABEL, Choice
from prep.foreign.layout import Column, Rows

Int64 = npt.NDArray[np.int64]


class Documents(NamedTuple):
    """Documents that stand one after another, and what was dropped of their rows."""

    tokens: npt.NDArray[Any]
    lengths: Int64
    fields: Mapping[str, npt.NDArray[Any]]
    dropped: int


def documents_of(rows: Rows, choice: Choice) -> Documents:
    """Return the documents of rows: one a row, or one a segment.

    Raises:
        FormatError: an id is negative or beyond 2^32 - 1, or a column beside the ids is not what it should be; by its place.
    """
    tokens, counts = _ids(rows, choice)
    keep: npt.NDArray[np.bool_] | None = None
    if choice.mask is not None:
        keep = _kept_by_mask(_beside(rows, choice.mask, counts), rows, choice.mask, counts)
    segments = None if choice.segments is None else _beside(rows, choice.segments, counts)
    if segments is not None:
        keep = segments != 0 if keep is None else keep & (segments != 0)
    trained = _trained(rows, choice, tokens, counts, keep)
    lengths, dropped = counts, 0
    if keep is not None:
        dropped = len(tokens) - int(keep.sum())
        sums = np.concatenate([[0], np.cumsum(keep)])
        ends = np.cumsum(counts)
        lengths = sums[ends] - sums[ends - counts]
        tokens = tokens[keep]
        trained = None if trained is None else trained[keep]
    _check_ids(rows, choice.tokens, tokens, lengths)
    if segments is not None:
        lengths = _runs(segments[keep], lengths)
    return Documents(tokens, lengths, {} if trained is None else {FIELD: trained}, dropped)


def check_vocabulary(rows: Rows, documents: Documents, vocab_size: int) -> int:
    """Return the largest id, −1 where there is none; raise ValueError, by its place, for one that the vocabulary does not hold."""
    largest = int(documents.tokens.max(initial=0)) if len(documents.tokens) else -1
    if largest >= vocab_size:
        at = int(np.flatnonzero(documents.tokens >= vocab_size)[0])
        number, position = _place(documents.lengths, at)
        raise ValueError(
            f"{rows.where}: document {number:,} of those from row {rows.first:,} on, position {position:,}: the id {int(documents.tokens[at]):,} is "
            "outside of the "
            f"vocabulary of {vocab_size:,} ids: give a larger --vocab-size, with added tokens, or the right --tokenizer."
        )
    return largest


def _ids(rows: Rows, choice: Choice) -> Column:
    values, counts = rows.columns[choice.tokens]
    if choice.dtype is None:
        return Column(values, counts)
    dtype = np.dtype(choice.dtype)
    wrong = np.flatnonzero(counts % dtype.itemsize)
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{rows.where}: row {rows.first + at:,}: {choice.tokens} has {int(counts[at]):,} bytes, no multiple of {dtype.itemsize}, the size of "
            f"{dtype}: the dtype is "
            "wrong, or the file is damaged."
        )
    return Column(np.ascontiguousarray(values).view(dtype), counts // dtype.itemsize)


def _beside(rows: Rows, name: str, counts: Int64) -> npt.NDArray[Any]:
    """Return the values of a column that has one for each id."""
    values, found = rows.columns[name]
    wrong = np.flatnonzero(found != counts)
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{rows.where}: row {rows.first + at:,}: {name} has {int(found[at]):,} values for {int(counts[at]):,} ids: if it means something else, "
            f"give --ignore {name}."
        )
    return values


def _kept_by_mask(mask: npt.NDArray[Any], rows: Rows, name: str, counts: Int64) -> npt.NDArray[np.bool_]:
    """Return which ids are no padding; refuse a mask whose ones are not one run in each row."""
    kept = _bools(mask, rows, name, counts)
    begins = kept.copy()  # where a run of ones begins
    begins[1:] &= ~kept[:-1]
    starts = (np.cumsum(counts) - counts)[counts > 0]
    begins[starts] = kept[starts]
    sums = np.concatenate([[0], np.cumsum(begins)])
    ends = np.cumsum(counts)
    wrong = np.flatnonzero(sums[ends] - sums[ends - counts] > 1)
    if len(wrong):
        raise FormatError(
            f"{rows.where}: row {rows.first + int(wrong[0]):,}: {name} has zeros between its ones, so it is more than padding: give --ignore {name} "
            "to keep all ids."
        )
    return kept


def _bools(values: npt.NDArray[Any], rows: Rows, name: str, counts: Int64) -> npt.NDArray[np.bool_]:
    wrong = np.flatnonzero((values != 0) & (values != 1))
    if len(wrong):
        number, position = _place(counts, int(wrong[0]))
        raise FormatError(
            f"{rows.where}: row {rows.first + number:,}, position {position:,}: {name} is {int(values[wrong[0]])}, expected 0 or 1: if it means "
            "something else, give "
            f"--ignore {name}."
        )
    return values.astype(np.bool_)


def _trained(
    rows: Rows, choice: Choice, tokens: npt.NDArray[Any], counts: Int64, keep: npt.NDArray[np.bool_] | None
) -> npt.NDArray[np.bool_] | None:
    """Return which ids are trained on, or None where nothing says it."""
    if choice.loss_mask is not None:
        return _bools(_beside(rows, choice.loss_mask, counts), rows, choice.loss_mask, counts)
    if choice.labels is None:
        return None
    labels = _beside(rows, choice.labels, counts)
    trained = labels != IGNORED_LABEL
    wrong = np.flatnonzero(trained & (labels != tokens) & (True if keep is None else keep))
    if len(wrong):
        at = int(wrong[0])
        number, position = _place(counts, at)
        raise FormatError(
            f"{rows.where}: row {rows.first + number:,}, position {position:,}: the label is {int(labels[at]):,}, expected the id {int(tokens[at]):,} "
            f"or {IGNORED_LABEL}: "
            f"labels that are no mask of the ids (shifted, or of another task) are not read: give --ignore {choice.labels} to leave them out."
        )
    return np.asarray(trained, dtype=np.bool_)


def _check_ids(rows: Rows, name: str, tokens: npt.NDArray[Any], lengths: Int64) -> None:
    if not len(tokens) or (int(tokens.min()) >= 0 and int(tokens.max()) < 2**32):
        return
    at = int(np.flatnonzero((tokens < 0) | (tokens >= 2**32))[0])
    number, position = _place(lengths, at)
    raise FormatError(
        f"{rows.where}: row {rows.first + number:,}, position {position:,}: {name} is {int(tokens[at]):,}, expected an id from 0 to 2^32 - 1: these "
        "are no ids (labels, a "
        "hash?), or the dtype is wrong, or the file is damaged."
    )


def _runs(segments: npt.NDArray[Any], lengths: Int64) -> Int64:
    """Return the lengths of the runs of equal segments, none of which goes on into the next row."""
    edge = np.ones(len(segments), dtype=np.bool_)
    edge[1:] = segments[1:] != segments[:-1]
    edge[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    return np.diff(np.flatnonzero(edge), append=len(segments)).astype(np.int64)


def _place(lengths: Int64, at: int) -> tuple[int, int]:
    """Return which of documents of these lengths holds a position of all of them, and its position in it."""
    ends = np.cumsum(lengths)
    number = int(np.searchsorted(ends, at, side="right"))
    return number, at - int(ends[number] - lengths[number])
