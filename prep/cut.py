"""Where a corpus is cut anew: into shards, and into runs of documents that are copied at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

import neutral_core as nc

_CHUNK_TOKENS = 1 << 19
_CHUNK_DOCUMENTS = 1 << 16


def shards_of(source: nc.Corpus, tokens_per_shard: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) documents of each shard: at most ``tokens_per_shard`` tokens, at least one document."""
    if tokens_per_shard < 1:
        raise ValueError(f"tokens_per_shard is {tokens_per_shard}, expected a positive integer.")
    total = source.num_documents
    first = 0
    while first < total or first == 0:
        limit = int(source.document_offsets(first, first)[0]) + tokens_per_shard
        low, high = first, total  # documents up to low fit
        while low < high:
            middle = (low + high + 1) // 2
            if int(source.document_offsets(middle, middle)[0]) <= limit:
                low = middle
            else:
                high = middle - 1
        last = max(low, min(first + 1, total))
        yield first, last
        if last == total:
            return
        first = last


def runs_of(source: nc.Corpus, first: int, last: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the first document and the offsets of runs of documents of about 1 MiB of tokens, or of one document.

    So much stays in the processor's cache between checking, checksum and writing.
    """
    for start in range(first, last, _CHUNK_DOCUMENTS):
        offsets = source.document_offsets(start, min(start + _CHUNK_DOCUMENTS, last))
        at = 0
        while at < len(offsets) - 1:
            fit = int(np.searchsorted(offsets, offsets[at] + _CHUNK_TOKENS, side="right")) - 1
            end = max(fit, at + 1)
            yield start + at, offsets[at : end + 1]
            at = end
