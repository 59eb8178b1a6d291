"""Tokens of one file or several that say where they lie and how wide they are, but not where documents begin: opened by a boundary rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets, Offsets
from neutral_core.legacy.boundaries import Rule, cut, notes_of
from neutral_core.legacy.flat import FlatShard, StoredTokens
from neutral_core.legacy.joined import Part, join
from neutral_core.legacy.layout import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """The tokens of one file.

    Attributes:
        file: its bytes.
        stored: how ids are stored.
        start_byte, num_tokens: where they begin, and how many are taken; both fit into the file.
        left_out: tokens at their end that are not taken, for the fingerprint.
    """

    file: FileBytes
    stored: StoredTokens
    start_byte: int
    num_tokens: int
    left_out: int = 0

    @property
    def path(self) -> Path:
        """Of the file."""
        return self.file.path

    def shard(self, offsets: Offsets | None = None, num_documents: int = 0) -> FlatShard:
        """Return the tokens as a shard; without offsets as one whose documents are not looked at."""
        return FlatShard(
            self.file,
            self.stored,
            offsets=ArrayOffsets(np.zeros(1, dtype=np.int64)) if offsets is None else offsets,
            num_documents=num_documents,
            start_byte=self.start_byte,
            num_tokens=self.num_tokens,
        )


def open_by_rule(
    stretches: Sequence[Stretch],
    rule: Rule,
    request: Request,
    *,
    layout: str,
    notes: Sequence[str] = (),
) -> Corpus:
    """Return the corpus of files cut by a rule, one shard a file.

    Args:
        stretches: at least one, in order.
        rule: see boundaries.
        request: what open_corpus was asked for.
        layout: for the fingerprint.
        notes: what was inferred or left out before.

    Raises:
        FormatError: the rule's id occurs in none of the files, or their dtypes differ.
    """
    cuts = [cut(stretch.shard(), rule, stretch.path) for stretch in stretches]
    parts = [
        Part(
            path=stretch.path,
            shard=stretch.shard(each.offsets, each.num_documents),
            stored=stretch.stored,
            files=(stretch.path,),
            boundaries=f"{rule} -{stretch.left_out}" if stretch.left_out else str(rule),
        )
        for stretch, each in zip(stretches, cuts, strict=True)
    ]
    return join(
        parts,
        layout=layout,
        tokenizer=request.tokenizer,
        notes=[*notes, *notes_of(cuts, rule, request.path)],
    )
