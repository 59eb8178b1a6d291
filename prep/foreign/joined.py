"""Rows of a corpus joined to one stream and cut by a rule: documents go on from one row, and from one shard, into the next."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.errors import FormatError
from neutral_core.format.offsets import ArrayOffsets, Offsets
from neutral_core.format.shard_like import FieldItems, TokenMemory, Tokens
from neutral_core.legacy.boundaries import Cut, Rule, cut, notes_of, rows_of_tokens
from neutral_core.legacy.flat import FlatShard
from prep.compare import token_items

_MOST_IN_ONE = 1 << 32


class _Stream:
    """All tokens of a corpus of ours as one shard; see ShardLike."""

    def __init__(self, corpus: nc.Corpus, offsets: Offsets, num_documents: int) -> None:
        self.corpus = corpus
        self.num_documents = num_documents
        self.num_tokens = corpus.num_tokens
        self._offsets = offsets

    def token_memory(self) -> TokenMemory | None:
        """See ShardLike."""
        return None

    def read(self, start: int, stop: int) -> Tokens:
        """See ShardLike."""
        return self.corpus.tokens(start, stop)

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        """See ShardLike."""
        return np.stack([self.read(start, start + length) for start in starts.tolist()])

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """See ShardLike."""

    def release(self) -> None:
        """See ShardLike."""
        self.corpus.release()

    def offsets(self) -> Offsets:
        """See ShardLike."""
        return self._offsets

    def field(self, name: str, first: int, last: int) -> FieldItems:
        """See ShardLike; fields of tokens alone."""
        start, stop = self._offsets.at(np.array([first, last])).tolist()
        return FieldItems(token_items(self.corpus, name, start, stop))

    def verify(self) -> None:
        """See ShardLike."""
        self.corpus.verify()


def cut_stream(corpus: nc.Corpus, rule: Rule, path: Path) -> tuple[Cut, list[str]]:
    """Cut all tokens of a corpus by a rule; return the cut, and notes. ``eos`` and ``bos`` read all tokens and hold 8 bytes a document.

    Raises:
        FormatError: the rule's id does not occur.
        ValueError: it would make one document that does not fit into memory.
    """
    if rule.kind == "none" and corpus.num_tokens > _MOST_IN_ONE:
        raise ValueError(
            f"{path}: boundaries is 'none', but one document of {corpus.num_tokens:,} tokens would be held in memory: give fixed:N; rows of kind concat are "
            "the same."
        )
    empty = ArrayOffsets(np.zeros(1, dtype=np.int64))
    found = cut(cast(FlatShard, _Stream(corpus, empty, 0)), rule, path)  # it reads tokens and their number, and no more
    return found, notes_of([found], rule, path)


def write_edges(found: Cut, rule: Rule, path: Path) -> None:
    """Write where documents begin for other processes, where a pass over all tokens has found it."""
    if rule.by_id:
        with path.open("wb") as file:
            np.save(file, found.offsets.at(np.arange(found.num_documents + 1)))


def joined(corpus: nc.Corpus, rule: Rule, edges: Path) -> nc.Corpus:
    """Return a corpus of the same tokens with the documents that a rule has cut; see write_edges."""
    offsets: Offsets
    if rule.by_id:
        table = np.load(edges, mmap_mode="r", allow_pickle=False)
        if table.dtype != np.int64 or table.ndim != 1 or int(table[-1]) != corpus.num_tokens:
            raise FormatError(f"{edges}: it does not fit the pieces beside it: run the same command with --restart.")
        count, offsets = len(table) - 1, ArrayOffsets(table)
    elif rule.kind == "fixed":
        count, offsets = rows_of_tokens(corpus.num_tokens, rule.number)
    else:
        count, offsets = 1, ArrayOffsets(np.array([0, corpus.num_tokens], dtype=np.int64))
    return nc.Corpus(
        [_Stream(corpus, offsets, count)],
        dtype=corpus.dtype,
        fingerprint=corpus.fingerprint,
        vocab_size=corpus.vocab_size,
        tokenizer=corpus.tokenizer,
        fields=corpus.fields,
    )
