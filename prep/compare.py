"""Comparing a copy with what it was made from: every checksum, every document, every token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format.shard import Shard

if TYPE_CHECKING:
    from prep.foreign.columns import Documents

_CHUNK_TOKENS = 1 << 19
_RELEASED_TOKENS = 1 << 24  # compared between two releases of pages
_CHUNK_DOCUMENTS = 1 << 16
_AGAIN = "the disk or the memory is failing, or the source was changed meanwhile: convert it again with --restart."


def compare(source: nc.Corpus, copy: nc.Corpus, name: str, first: int = 0, last: int | None = None) -> None:
    """Check every checksum of ``copy``, and compare it with documents of ``source``, document for document, field for field and token for token.

    Args:
        source, copy: corpora.
        name: of the copy, for messages.
        first, last: the documents of the source that the copy holds; None: to the last one.

    Raises:
        FormatError: the copy is damaged or differs.
    """
    last = source.num_documents if last is None else last
    begin, end = (int(source.document_offsets(at, at)[0]) for at in (first, last))
    if (copy.num_documents, copy.num_tokens) != (last - first, end - begin):
        raise nc.FormatError(
            f"{name}: it holds {copy.num_documents:,} documents and {copy.num_tokens:,} tokens, its source {last - first:,} and "
            f"{end - begin:,}: {_AGAIN}"
        )
    try:
        copy.verify()
    except nc.FormatError as error:
        raise nc.FormatError(f"{name}: it is not as it was written ({error}): {_AGAIN}") from None
    for start in range(0, last - first, _CHUNK_DOCUMENTS):
        stop = min(start + _CHUNK_DOCUMENTS, last - first)
        offsets = source.document_offsets(first + start, first + stop) - begin
        if not np.array_equal(offsets, copy.document_offsets(start, stop)):
            raise nc.FormatError(
                f"{name}: documents {first + start:,} … {first + stop:,} begin elsewhere than in the source: {_AGAIN}"
            )
        for name_of_field in source.fields:
            theirs = source.field_items(name_of_field, first + start, first + stop)
            ours = copy.field_items(name_of_field, start, stop)
            if not _equal(theirs.items, ours.items) or not _equal(theirs.counts, ours.counts):
                raise nc.FormatError(
                    f"{name}: {name_of_field} of documents {first + start:,} … {first + stop:,} differs from the source: {_AGAIN}"
                )
    for start in range(0, end - begin, _CHUNK_TOKENS):
        stop = min(start + _CHUNK_TOKENS, end - begin)
        if start % _RELEASED_TOKENS == 0:
            source.release()
            copy.release()
        if not np.array_equal(source.tokens(begin + start, begin + stop), copy.tokens(start, stop)):
            raise nc.FormatError(
                f"{name}: tokens {begin + start:,} … {begin + stop:,} differ from the source: {_AGAIN}"
            )


def compare_documents(
    part: Documents, copy: nc.Corpus, name: str, first_document: int | None, first_token: int
) -> None:
    """Compare documents that were read again with those of a corpus of ours: ids, fields of tokens, and where they begin.

    Args:
        part: of the source.
        copy: shards of ours.
        name: of the copy, for messages.
        first_document: number of the first of them in the copy; None: documents are cut by a rule and not compared.
        first_token: number of its first token in the copy.

    Raises:
        FormatError: they differ.
    """
    last_token = first_token + len(part.tokens)
    if last_token > copy.num_tokens or not np.array_equal(part.tokens, copy.tokens(first_token, last_token)):
        raise nc.FormatError(f"{name}: tokens {first_token:,} … {last_token:,} differ from the source: {_AGAIN}")
    for field, values in part.fields.items():
        if not _equal(values, token_items(copy, field, first_token, last_token)):
            raise nc.FormatError(
                f"{name}: {field} of tokens {first_token:,} … {last_token:,} differs from the source: {_AGAIN}"
            )
    if first_document is not None:
        last = first_document + len(part.lengths)
        edges = first_token + np.cumsum(np.concatenate([[0], part.lengths]))
        if last > copy.num_documents or not np.array_equal(edges, copy.document_offsets(first_document, last)):
            raise nc.FormatError(
                f"{name}: documents {first_document:,} … {last:,} begin elsewhere than in the source: {_AGAIN}"
            )


def token_items(corpus: nc.Corpus, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Return what a ``token.`` field of a corpus of ours holds for tokens start … stop − 1 of its stream."""
    parts: list[npt.NDArray[Any]] = []
    for number, shard in enumerate(corpus.shards):
        low, high = corpus.first_token[number : number + 2].tolist()
        if max(start, low) < min(stop, high) or not parts:
            assert isinstance(shard, Shard)
            first = min(max(start, low), high)
            parts.append(shard.items(name, first - low, max(min(stop, high), first) - low))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _equal(left: npt.NDArray[Any] | None, right: npt.NDArray[Any] | None) -> bool:
    """Return whether two arrays hold the same bytes: a NaN is itself."""
    if left is None or right is None:
        return left is right
    same = left.dtype == right.dtype and left.shape == right.shape
    return same and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
