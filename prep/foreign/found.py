"""A data set that will be converted: what it holds, what was said of it, and the fingerprint of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import neutral_core as nc
from neutral_core.format import canonical
from neutral_core.legacy.boundaries import Rule
from neutral_core.legacy.flat import StoredTokens, fingerprint_of
from prep.foreign.choice import Choice, choose
from prep.foreign.layout import Foreign
from prep.foreign.layouts import foreign_layout
from prep.foreign.told import INDEX, SEGMENTS, check_told


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A data set that will be converted, and how.

    Attributes:
        foreign, choice: what it holds, and which columns are read.
        boundaries: ``index``, ``segments``, or a rule.
        fingerprint: of the source, with what was said of it.
        notes: what was inferred so far.
    """

    foreign: Foreign
    choice: Choice
    boundaries: str
    fingerprint: str
    notes: tuple[str, ...]

    @property
    def rule(self) -> Rule | None:
        """The rule that cuts the joined rows; None where rows are cut by themselves."""
        return None if self.boundaries in (INDEX, SEGMENTS) else Rule.of(self.boundaries)

    @property
    def fields(self) -> dict[str, nc.Field]:
        """What is stored beside the tokens."""
        return self.choice.fields

    @property
    def vocab_size(self) -> None:
        """No layout says it."""
        return None

    @property
    def tokenizer(self) -> None:
        """No layout says it."""
        return None

    @property
    def dtype(self) -> np.dtype[Any]:
        """How wide ids may be: uint8, uint16 or uint32."""
        kind = self.foreign.columns[self.choice.tokens]
        stored = self.choice.dtype if kind.dtype is None else kind.dtype
        return np.dtype(np.uint32) if stored is None else StoredTokens.of(np.dtype(stored)).served


def find(
    path: Path,
    *,
    layout: str | None,
    dtype: str | None,
    boundaries: str | None,
    column: str | None,
    ignore: Sequence[str],
) -> Found | None:
    """Return what a path holds and how it will be converted; None where it is read in place.

    Raises:
        FormatError: it is damaged. ValueError: something has to be said that the files do not, or an option does not fit.
    """
    made_by = foreign_layout(path, layout)
    if made_by is None:
        return None
    foreign = made_by.open(path)
    if not foreign.pieces:
        raise nc.FormatError(f"{path}: it holds no rows: there is nothing to convert.")
    choice, notes = choose(foreign, column=column, ignore=ignore, dtype=dtype)
    told = check_told(foreign, choice, boundaries)
    return Found(
        foreign=foreign,
        choice=choice,
        boundaries=told,
        fingerprint=_fingerprint(foreign, choice, told),
        notes=(*foreign.notes, *notes),
    )


def refuse_changed(found: Found) -> None:
    """Raise FormatError where the source is no longer what it was when it was found."""
    if _fingerprint(found.foreign, found.choice, found.boundaries) != found.fingerprint:
        raise nc.FormatError(
            f"{found.foreign.path}: it was changed while it was being converted: wait until nothing writes to it, then convert it with --restart."
        )


def _fingerprint(foreign: Foreign, choice: Choice, boundaries: str) -> str:
    """Return the fingerprint of a source: its files, and what was said of them."""
    how = canonical.dumps([boundaries, choice.tokens, choice.mask, choice.labels, choice.loss_mask, choice.segments])
    kind = foreign.columns[choice.tokens]
    return fingerprint_of(foreign.layout, str(choice.dtype or kind.dtype), how.decode(), list(foreign.files))
