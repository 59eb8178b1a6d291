"""Rules that say where documents begin in files of tokens that do not say it. They are asked for and never guessed.

    eos:ID    a document ends after each ID; tokens after the last one are a document too
    bos:ID    a document begins at each ID; tokens before the first one are a document too
    fixed:N   each N tokens are a document; the last may be shorter
    none      the file is one document

Documents do not go on from one file into the next: each file of several is cut by itself, and what an ID leaves over at its start or end is a
document of its own, which is noted. ``eos`` and ``bos`` read the files whole once on opening and hold 8 bytes a document; an ID that
occurs in none of them is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.offsets import ArrayOffsets, ComputedOffsets, Offsets
from neutral_core.legacy.flat import FlatShard

CHOICES = ("eos:ID", "bos:ID", "fixed:N", "none")
_RULES = "eos:ID, bos:ID, fixed:N or none"
_PIECE = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A boundary rule.

    Attributes:
        kind: ``eos``, ``bos``, ``fixed`` or ``none``.
        number: the ID or N; 0 for ``none``.
    """

    kind: str
    number: int = 0

    @classmethod
    def of(cls, text: str) -> Rule:
        """Return the rule that a text says; raise ValueError where it says none."""
        kind, _, number = text.partition(":")
        if text == "none":
            return cls(kind=kind)
        if kind not in ("eos", "bos", "fixed") or not number.isdecimal() or (kind == "fixed" and int(number) == 0):
            raise ValueError(f"boundaries is {text!r}, expected {_RULES}.")
        return cls(kind=kind, number=int(number))

    @property
    def by_id(self) -> bool:
        """Whether an id says where documents begin or end."""
        return self.kind in ("eos", "bos")

    def __str__(self) -> str:
        return (
            self.kind if self.kind == "none" else f"{self.kind}:{self.number}"
        )  # eos:09 is eos:9, also in fingerprints


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A file cut into documents.

    Attributes:
        path: for messages.
        offsets, num_documents: of the documents.
        num_tokens: of the file.
        found: how often the rule's id occurs.
        rest: tokens that the id leaves over, or that are in a last document shorter than N; 0 where there are none.
    """

    path: Path
    offsets: Offsets
    num_documents: int
    num_tokens: int
    found: int = 0
    rest: int = 0


def rule_of(boundaries: str | None, tokens: FlatShard, path: Path, hint: str = "") -> Rule:
    """Return the rule that was given; raise ValueError, with what speaks for which, where there is none.

    Args:
        boundaries: as given to open_corpus.
        tokens: of the first file, or of the one that tells most; its documents are not looked at.
        path: as given to open_corpus.
        hint: what the layout's makers do, a sentence.
    """
    if boundaries is None:
        said = f"{_evidence(tokens)} {hint}".strip()
        raise ValueError(f"{path}: nothing in the file says where documents begin; give boundaries={_RULES}. {said}")
    return Rule.of(boundaries)


def cut(tokens: FlatShard, rule: Rule, path: Path) -> Cut:
    """Cut one file; an id that does not occur leaves it one document. ``notes_of`` refuses a rule that found nothing anywhere."""
    total = tokens.num_tokens
    if rule.kind == "none":
        return Cut(path=path, offsets=ArrayOffsets(np.array([0, total])), num_documents=1, num_tokens=total)
    if rule.kind == "fixed":
        count, length = rows_of_tokens(total, rule.number)
        return Cut(path=path, offsets=length, num_documents=count, num_tokens=total, rest=total % rule.number)
    found = _positions(tokens, rule.number)
    edges = found + 1 if rule.kind == "eos" else found
    table = np.unique(np.concatenate([[0], edges, [total]])).astype(np.int64)
    rest = total
    if len(edges):
        rest = total - int(edges[-1]) if rule.kind == "eos" else int(edges[0])
    return Cut(
        path=path,
        offsets=ArrayOffsets(table),
        num_documents=len(table) - 1,
        num_tokens=total,
        found=len(found),
        rest=rest,
    )


def rows_of_tokens(num_tokens: int, length: int) -> tuple[int, Offsets]:
    """Return how many documents of ``length`` tokens, the last maybe shorter, and where they begin."""
    length = min(length, max(num_tokens, 1))  # a longer one is the same, and would not fit into int64
    count = -(-num_tokens // length)
    return count, ComputedOffsets(count, lambda numbers: np.minimum(numbers * length, num_tokens))


def notes_of(cuts: Sequence[Cut], rule: Rule, path: Path) -> list[str]:
    """Return sentences on what a rule did to all files of a data set, in order.

    Raises:
        FormatError: it goes by an id that occurs in none of them.
    """
    total = sum(each.num_tokens for each in cuts)
    found = sum(each.found for each in cuts)
    if rule.by_id and not found:
        raise FormatError(
            f"{path}: the id {rule.number:,} does not occur in {total:,} tokens: the tokenizer, the dtype or the rule '{rule}' is wrong."
        )
    left = [each for each in cuts if each.rest]
    notes: list[str] = []
    if len(cuts) == 1:
        notes.extend(_note_of_rest(each, rule) for each in left)
    elif left:
        notes.append(_note_of_rests(left, len(cuts), rule))
    if rule.by_id:
        number = sum(each.num_documents for each in cuts)
        where = cuts[0].path.name if len(cuts) == 1 else f"{path.name}, {len(cuts):,} files"
        notes.append(f"{where}: {number:,} documents by the rule {rule}; the id occurs {found:,} times.")
    elif rule.kind == "none" and len(cuts) > 1:
        notes.append(f"{path.name}: each of the {len(cuts):,} files is taken as one document.")
    return notes


def _note_of_rest(each: Cut, rule: Rule) -> str:
    if rule.kind == "fixed":
        return f"{each.path.name}: the last document has {each.rest:,} tokens instead of {rule.number:,}."
    side = "after the last" if rule.kind == "eos" else "before the first"
    return f"{each.path.name}: {each.rest:,} tokens {side} {rule.number:,} are taken as a document of their own."


def _note_of_rests(left: Sequence[Cut], num_files: int, rule: Rule) -> str:
    begins = f"{len(left):,} of {num_files:,} files, the first of them {left[0].path.name}"
    tokens = f"{sum(each.rest for each in left):,} tokens"
    if rule.kind == "fixed":
        return (
            f"{begins}, end with a document shorter than {rule.number:,}, {tokens} in all: each file is cut by itself."
        )
    if rule.kind == "bos":
        return (
            f"{begins}, do not begin with {rule.number:,}: their {tokens} before the first one are taken as a document of their own in each; as a rule they "
            "are the end of what the file before began."
        )
    return (
        f"{begins}, do not end with {rule.number:,}: their {tokens} after the last one are taken as a document of their own in each, and so is what the "
        "next file goes on with."
    )


def _positions(tokens: FlatShard, number: int) -> npt.NDArray[np.int64]:
    found = [np.empty(0, dtype=np.int64)]
    for start in range(0, tokens.num_tokens, _PIECE):
        piece = tokens.read(start, min(start + _PIECE, tokens.num_tokens))
        found.append(start + np.flatnonzero(piece == number))
    return np.concatenate(found)


def _evidence(tokens: FlatShard) -> str:
    """Say what could be the id at which documents end or begin."""
    if not tokens.num_tokens:
        return "The file is empty."
    piece = tokens.read(0, min(_PIECE, tokens.num_tokens))
    first, last = int(piece[0]), int(tokens.read(tokens.num_tokens - 1, tokens.num_tokens)[0])
    said = (
        f"The last id is {last:,}, which occurs {int((piece == last).sum()):,} times in the first {len(piece):,} tokens"
    )
    return f"{said}; the first id is {first:,}, which occurs {int((piece == first).sum()):,} times."
