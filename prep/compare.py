"""Comparing a copy with what it was made from: every checksum, every document, every token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc

_CHUNK_TOKENS = 1 << 19
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
        if not np.array_equal(source.tokens(begin + start, begin + stop), copy.tokens(start, stop)):
            raise nc.FormatError(
                f"{name}: tokens {begin + start:,} … {begin + stop:,} differ from the source: {_AGAIN}"
            )


def _equal(left: npt.NDArray[Any] | None, right: npt.NDArray[Any] | None) -> bool:
    """Return whether two arrays hold the same bytes: a NaN is itself."""
    if left is None or right is None:
        return left is right
    same = left.dtype == right.dtype and left.shape == right.shape
    return same and np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
