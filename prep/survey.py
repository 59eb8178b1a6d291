"""What a corpus is like as a whole: lengths of documents, how often ids occur, what came from which file. One pass, in bounded memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc

_DOCUMENTS = 1 << 16
_SAMPLE_TOKENS = 1 << 24
_SAMPLE_PIECES = 64
_POINTS = 200  # of the curve of frequencies
_SOURCES = 100  # files apart from each other; where there are more, folders


def survey(corpus: nc.Corpus) -> dict[str, Any]:
    """Return plain data on a corpus.

    Returns:
        ``lengths``: number of documents of 0, 1, 2 … 3, 4 … 7, … tokens; ``frequencies``: [rank from 1, how often] of ids, at most 200 points from the
        most frequent on; ``frequencies_over_tokens``: how many tokens were counted, evenly spaced where there are many; ``ids``: how many occur in
        them; ``sources``: documents and tokens by file, or by folder where files are many, the largest first; empty where origins are not stored.
    """
    ids, counts, seen = frequencies(corpus)
    counts = np.sort(counts)[::-1]
    ranks = np.unique(np.geomspace(1, max(len(counts), 1), _POINTS).astype(np.int64))[: len(counts)]
    return {
        "lengths": _lengths(corpus),
        "frequencies": [[int(rank), int(counts[rank - 1])] for rank in ranks],
        "frequencies_over_tokens": seen,
        "ids": len(ids),
        "sources": _sources(corpus) if "ragged.path" in corpus.fields else [],
    }


def frequencies(corpus: nc.Corpus) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], int]:
    """Return the ids that occur, sorted, how often each does, and in how many tokens: all, or evenly spaced stretches where there are many."""
    total = corpus.num_tokens
    if total <= _SAMPLE_TOKENS:
        stretches = [(0, total)]
    else:
        size = _SAMPLE_TOKENS // _SAMPLE_PIECES
        stretches = [
            (at, at + size) for at in ((total - size) * n // (_SAMPLE_PIECES - 1) for n in range(_SAMPLE_PIECES))
        ]
    ids, counts = np.empty(0, dtype=corpus.dtype), np.empty(0, dtype=np.int64)
    for start, stop in stretches:
        found, times = np.unique(corpus.tokens(start, stop), return_counts=True)
        ids, places = np.unique(np.concatenate([ids, found]), return_inverse=True)
        times = np.concatenate([counts, times])
        counts = np.zeros(len(ids), dtype=np.int64)  # by rank, not by id: an id may be 4 billion
        np.add.at(counts, places, times)
    return ids, counts, sum(stop - start for start, stop in stretches)


def _lengths(corpus: nc.Corpus) -> list[int]:
    found = np.zeros(65, dtype=np.int64)
    for start in range(0, corpus.num_documents, _DOCUMENTS):
        lengths = np.diff(corpus.document_offsets(start, min(start + _DOCUMENTS, corpus.num_documents)))
        bits = np.frexp(lengths.astype(np.float64))[1]  # 0 → 0, 1 → 1, 2 and 3 → 2, …: exact below 2^53
        found += np.bincount(bits, minlength=65)
    return [int(number) for number in np.trim_zeros(found, "b")]


def _sources(corpus: nc.Corpus) -> list[dict[str, Any]]:
    documents: Counter[bytes] = Counter()
    tokens: Counter[bytes] = Counter()
    depth = 1 << 16  # parts of a path that tell sources apart
    for start in range(0, corpus.num_documents, _DOCUMENTS):
        stop = min(start + _DOCUMENTS, corpus.num_documents)
        paths = corpus.field_items("ragged.path", start, stop)
        assert paths.counts is not None
        data, edges = paths.items.tobytes(), [0, *np.cumsum(paths.counts).tolist()]
        lengths = np.diff(corpus.document_offsets(start, stop)).tolist()
        for number, length in enumerate(lengths):
            path = _cut(data[edges[number] : edges[number + 1]], depth)
            documents[path] += 1
            tokens[path] += length
        while len(tokens) > _SOURCES and (deepest := max(path.count(b"/") for path in tokens)) > 0:
            depth = deepest
            documents, tokens = (_folded(counts, depth) for counts in (documents, tokens))
    return [
        {"source": path.decode("utf-8", errors="replace"), "documents": documents[path], "tokens": number}
        for path, number in sorted(tokens.items(), key=lambda entry: (-entry[1], entry[0]))
    ]


def _cut(path: bytes, depth: int) -> bytes:
    """Return the first parts of a path."""
    return path if path.count(b"/") < depth else b"/".join(path.split(b"/")[:depth])


def _folded(counts: Counter[bytes], depth: int) -> Counter[bytes]:
    folded: Counter[bytes] = Counter()
    for path, number in counts.items():
        folded[_cut(path, depth)] += number
    return folded
