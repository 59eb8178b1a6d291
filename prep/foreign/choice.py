"""Which column of a data set holds the ids, and what the columns beside it mean; nothing is chosen between two columns of integers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import neutral_core as nc
from prep.foreign.layout import BYTES, INTEGERS, JSON, Foreign, Kind

MASK, LABELS, LOSS_MASK, ASSISTANT_MASKS = "attention_mask", "labels", "loss_mask", "assistant_masks"
IGNORED_LABEL = -100
FIELD = "token.loss_mask"
_DERIVED = ("position_ids", "token_type_ids", "special_tokens_mask", "length")


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which columns are read, and as what.

    Attributes:
        tokens: the column of ids.
        dtype: of its ids, where a column of bytes holds them; else None.
        mask, labels, loss_mask, segments: columns of these meanings, or None.
    """

    tokens: str
    dtype: str | None = None
    mask: str | None = None
    labels: str | None = None
    loss_mask: str | None = None
    segments: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        others = (self.mask, self.labels, self.loss_mask, self.segments)
        return (self.tokens, *(name for name in others if name is not None))

    @property
    def fields(self) -> dict[str, nc.Field]:
        """The fields of the corpus."""
        return {} if self.labels is None and self.loss_mask is None else {FIELD: nc.Field(dtype="bool")}


def choose(
    foreign: Foreign, *, column: str | None, ignore: Sequence[str], dtype: str | None
) -> tuple[Choice, list[str]]:
    """Return which columns are read, and notes on that.

    Args:
        foreign: what was found.
        column: the name of the ids' column, or None: the only one that can be it.
        ignore: names of columns to be taken for not there.
        dtype: of the ids in a column of bytes; elsewhere only compared.

    Raises:
        ValueError: no column or several can hold the ids, or an option does not fit: the message shows the columns.
    """
    for name in (*ignore, *(() if column is None else (column,))):
        if name not in foreign.columns:
            near = difflib.get_close_matches(name, foreign.columns, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"{foreign.path}: there is no column {name!r}; there are {_listed(foreign.columns)}.{hint}"
            )
    columns = {name: kind for name, kind in foreign.columns.items() if name not in ignore}
    tokens = _tokens(foreign, columns) if column is None else column
    kind = foreign.columns[tokens]
    if kind.holds not in (INTEGERS, BYTES, JSON) or (kind.dtype is not None and kind.dtype.kind == "b"):
        raise ValueError(
            f"{foreign.path}: the column {tokens!r} holds {kind}, expected a list of integers in each row."
        )
    given = None if dtype is None else _dtype_of(foreign, dtype)
    if given is not None and kind.dtype is not None and given.itemsize != kind.dtype.itemsize:
        raise ValueError(
            f"{foreign.path}: dtype is {given}, but the column {tokens!r} holds {kind.dtype}: leave it out."
        )
    companions = {
        name: name if name in columns and columns[name].holds == INTEGERS and name != tokens else None
        for name in (MASK, LABELS, LOSS_MASK, ASSISTANT_MASKS, f"{tokens}_segmentation")
    }
    mask, labels, loss_mask, assistant, segments = companions.values()
    said = [name for name in (labels, loss_mask, assistant) if name]
    if len(said) > 1:
        raise ValueError(f"{foreign.path}: it has the columns {' and '.join(said)}: give --ignore for all but one.")
    choice = Choice(
        tokens=tokens,
        dtype=given.str if given is not None and kind.holds == BYTES else None,
        mask=mask,
        labels=labels,
        loss_mask=loss_mask or assistant,
        segments=segments,
    )
    return choice, _notes(foreign, choice)


def _tokens(foreign: Foreign, columns: Mapping[str, Kind]) -> str:
    """Return the only column that can hold the ids."""
    candidates = [
        name
        for name, kind in columns.items()
        if kind.holds == INTEGERS
        and (kind.dtype is None or kind.dtype.kind in "iu")
        and name not in (MASK, LABELS, LOSS_MASK, ASSISTANT_MASKS, *_DERIVED)
        and not name.endswith(("_segmentation", "_position"))
    ]
    if not candidates:
        candidates = [name for name, kind in columns.items() if kind.holds == BYTES]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ValueError(
            f"{foreign.path}: no column holds a list of integers in each row; there are {_listed(foreign.columns)}. Text is tokenized by millstream prepare."
        )
    raise ValueError(
        f"{foreign.path}: nothing says which column holds the ids; give --column with one of {', '.join(candidates)}. There are {_listed(foreign.columns)}."
    )


def _listed(columns: Mapping[str, Kind]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in columns.items()) or "none"


def _dtype_of(foreign: Foreign, text: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(text)
    except TypeError:
        dtype = np.dtype("O")
    if dtype.kind not in "iu" or dtype.byteorder == ">":
        raise ValueError(
            f"{foreign.path}: dtype is {text!r}, expected one of numpy's little-endian integer types, such as uint16."
        )
    return dtype.newbyteorder("<")


def _notes(foreign: Foreign, choice: Choice) -> list[str]:
    notes = [f"ids are taken from the column {choice.tokens}."] if len(foreign.columns) > 1 else []
    if choice.mask:
        notes.append(
            f"{choice.mask}: where it is 0 before or behind the ones of a row, the id is padding and was dropped."
        )
    if choice.labels:
        notes.append(f"{choice.labels} became {FIELD}: an id is trained on where its label is not {IGNORED_LABEL}.")
    if choice.loss_mask:
        notes.append(f"{choice.loss_mask} became {FIELD}.")
    spare = [name for name in foreign.columns if name not in choice.names]
    if spare:
        notes.append(f"columns left out: {', '.join(spare)}.")
    return notes
