"""A document as its tokens: what text each token is, which tokens are masked, and how that looks in colour on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from prep.tokenizers import Tokenizer

if TYPE_CHECKING:
    from rich.text import Text

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS = 8  # that one character is looked for in: four bytes, and what a tokenizer may put around them
_SPANS = "ragged.loss_masking_spans"
_MASK = "token.loss_mask"
_SHADES = ("black on cyan", "black on green")  # of the sixteen colours that every terminal has
_MASKED = ("white on red", "white on magenta")
_SPECIAL = "bold black on yellow"


class Piece(NamedTuple):
    """Some text and the tokens behind it: one, or several where a character is made of several; ``masked``: trained on none of them."""

    text: str
    ids: list[int]
    masked: bool
    special: bool


def pieces_of(tokenizer: Tokenizer, ids: npt.NDArray[Any], masked: npt.NDArray[np.bool_]) -> list[Piece]:
    """Return the pieces of a document: their texts, one after another, are the document's, but for special tokens, which show as ⟨id⟩.

    Args:
        tokenizer: that made the ids.
        ids: unsigned [n].
        masked: bool [n].
    """
    pieces: list[Piece] = []
    text = ""
    first = 0
    while first < len(ids):
        for last in range(first + 1, min(first + _MOST_TOKENS, len(ids)) + 1):
            longer = tokenizer.decode(ids[:last])
            whole = not longer.endswith(_BROKEN) or last == len(ids)
            if whole or masked[last - 1] != masked[first]:
                break
        added = longer[len(text) :] if longer.startswith(text) else tokenizer.decode(ids[first:last])
        special = not added and last == first + 1
        pieces.append(
            Piece(f"⟨{int(ids[first])}⟩" if special else added, ids[first:last].tolist(), bool(masked[first]), special)
        )
        text, first = longer, last
    return pieces


def masked_of(corpus: nc.Corpus, document: int, num_tokens: int) -> npt.NDArray[np.bool_]:
    """Return which of the first tokens of a document have no loss, as its fields say: bool[num_tokens]."""
    masked = np.zeros(num_tokens, dtype=bool)
    if _MASK in corpus.fields:
        masked |= corpus.field(_MASK, document)[:num_tokens] == 0
    if _SPANS in corpus.fields:
        for start, stop in corpus.field(_SPANS, document).tolist():
            masked[start:stop] = True
    return masked


def coloured(shown: Mapping[str, Any]) -> Text:
    """Return a document of ``inspect``'s report as text for rich: tokens in two shades in turn, masked ones in red and magenta, special ones in yellow."""
    from rich.text import Text

    text = Text(f"  document {shown['document']:,}")
    if "path" in shown:
        text.append(f" from {shown['path']}:{shown['line']}")
    text.append(
        f": {shown['tokens']:,} tokens" + (", the first of them:" if shown["tokens"] > len(shown["ids"]) else ":")
    )
    text.append("\n  ")
    shade = 0
    for piece in shown["pieces"]:
        style = _MASKED[shade] if piece["masked"] else _SPECIAL if piece["special"] else _SHADES[shade]
        for line in _visible(piece["text"]).splitlines(keepends=True):
            text.append(line.rstrip("\n"), style=style)
            text.append("\n  " if line.endswith("\n") else "")
        shade = 1 - shade
    return text


def legend(pieces: Sequence[Mapping[str, Any]]) -> Text:
    """Return the line that says what the colours mean, as far as they occur."""
    from rich.text import Text

    text = Text("  tokens in turn: ")
    text.append("one", style=_SHADES[0])
    text.append("next", style=_SHADES[1])
    for name, style in (("masked", _MASKED[0]), ("special", _SPECIAL)):
        if any(piece[name] for piece in pieces):
            text.append("  ")
            text.append(name, style=style)
    return text


def _visible(text: str) -> str:
    """Return text whose line ends and tabs can be seen, and which cannot steer the terminal."""
    shown = text.replace("\r", "␍").replace("\n", "⏎\n").replace("\t", "⇥   ")
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in shown)
