"""What a run over a plan needs of the machine: files held open, memory, and warnings where that will not do.

    global   any shard at any time            blocks   those of a group of chunks of each source            none   the one that each source stands in

Shards beyond what a process holds open at once are let go and opened again for a row: thrashing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.batches import CHUNK_ROWS
from neutral_core.format.file_bytes import TRACKS_DESCRIPTOR, max_held

Int64 = npt.NDArray[np.int64]

_THREADS = 1  # the loader's own default
_MOST_HELD = 30_000  # whatever the limit on open files


def needs(plan: nc.Plan, draws: Int64, rows_per_rank: int = 1) -> dict[str, Any]:
    """Return ``files``, ``memory`` and ``warnings`` of a run: plain data.

    Args:
        draws: int64[num_sources], how far the run goes in each source; those with 0 are not touched.
        rows_per_rank: of a batch.
    """
    files = _files(plan, draws)
    return {"files": files, "memory": _memory(plan, draws, rows_per_rank), "warnings": _warnings(plan, draws, files)}


def _used(plan: nc.Plan, draws: Int64) -> list[int]:
    return np.flatnonzero(draws > 0).tolist()


def _files(plan: nc.Plan, draws: Int64) -> dict[str, int]:
    """Return how many shards the run's sources have, how many are touched at any time, and how many are held open at once."""
    touched: dict[int, npt.NDArray[np.bool_]] = {}
    at_a_time = 0
    for index in _used(plan, draws):
        source = plan.sources[index]
        corpus = source.corpus
        first = int(np.searchsorted(corpus.first_token, source.tokens[0], side="right")) - 1
        last = int(np.searchsorted(corpus.first_token, source.tokens[1], side="left"))
        touched.setdefault(id(corpus), np.zeros(corpus.num_shards, dtype=bool))[first:last] = True
        at_a_time += _at_a_time(plan, last - first, source.num_tokens)
    shards = sum(int(each.sum()) for each in touched.values())
    held = min(shards, max_held())
    return {
        "shards": shards,
        "shards_at_a_time": min(at_a_time, shards),
        "max_held": max_held(),
        "descriptors": 0 if TRACKS_DESCRIPTOR and not _reads(plan) else held,
    }


def _at_a_time(plan: nc.Plan, shards: int, num_tokens: int) -> int:
    """Return about how many of a source's shards the order touches in turn: all, those of a group of chunks, or the one it stands in."""
    if plan.shuffle == "global":
        return shards
    if plan.shuffle == "none":
        return 1
    chunk = plan.chunk_windows * plan.seq_len
    return min(shards, plan.group_chunks * (1 + -(-chunk * shards // num_tokens)))


def _reads(plan: nc.Plan) -> bool:
    return any(
        getattr(shard, "access", "map") == "read" for source in plan.sources for shard in source.corpus.shards[:1]
    )


def _memory(plan: nc.Plan, draws: Int64, share: int) -> dict[str, int]:
    """Return bytes: of the loader's chunks in one process, and of the page cache in which every row of the run is warm."""
    rows = -(-CHUNK_ROWS // share) * share
    row = (
        plan.row_length * (plan.dtype.itemsize + (8 if plan.documents else 0)) + 12
    )  # segment_ids and positions; source and sample
    cache = 0
    for corpus, parts in _parts(plan, _used(plan, draws)):
        for start, stop, documents in parts:
            cache += (stop - start) * corpus.dtype.itemsize
            cache += 8 * documents if plan.documents or plan.document_shuffle else 0
    return {"loader_threads": _THREADS, "loader_bytes": (_THREADS + 2) * rows * row, "page_cache_bytes": cache}


def _parts(plan: nc.Plan, used: Sequence[int]) -> list[tuple[nc.Corpus, list[tuple[int, int, int]]]]:
    """Return for each corpus the runs of tokens (start, stop, documents) that its sources cover, joined where they overlap."""
    of_corpus: dict[int, list[int]] = {}
    for index in used:
        of_corpus.setdefault(id(plan.sources[index].corpus), []).append(index)
    found = []
    for indices in of_corpus.values():
        joined: list[tuple[int, int, int, int]] = []  # tokens, documents
        for (first, last), (start, stop) in sorted(
            (plan.sources[i].documents, plan.sources[i].tokens) for i in indices
        ):
            if joined and first <= joined[-1][3]:
                begin, end, low, high = joined.pop()
                joined.append((begin, max(end, stop), low, max(high, last)))
            else:
                joined.append((start, stop, first, last))
        found.append(
            (plan.sources[indices[0]].corpus, [(start, stop, high - low) for start, stop, low, high in joined])
        )
    return found


def _warnings(plan: nc.Plan, draws: Int64, files: dict[str, int]) -> list[str]:
    found = []
    if files["shards_at_a_time"] > files["max_held"]:
        remedies = [f"raise `ulimit -n` to {2 * files['shards_at_a_time']:,} or more"]
        if files["shards_at_a_time"] > _MOST_HELD:
            remedies = []  # no limit lets more be held
        remedies.append("make larger shards (--tokens-per-shard)")
        if plan.shuffle == "global":
            remedies.append("use shuffle: blocks")
        found.append(
            f"thrashing: shuffle {plan.shuffle!r} touches {files['shards_at_a_time']:,} shards in turn, but a process holds {files['max_held']:,} open at "
            f"once (half of its limit on open files, here), so about {1 - files['max_held'] / files['shards_at_a_time']:.0%} of the rows will open a file "
            f"anew: {', or '.join(remedies)}."
        )
    found.extend(_shared(plan, _used(plan, draws)))
    idle = [repr(name) for name, count in zip(plan.names, draws.tolist(), strict=True) if not count]
    if idle:
        more = f" and {len(idle) - 3:,} more" if len(idle) > 3 else ""
        found.append(f"not served in this run: {', '.join(idle[:3])}{more}.")
    return found


def _shared(plan: nc.Plan, used: Sequence[int]) -> list[str]:
    """Return a sentence where two sources serve the same documents: these repeat before any epoch ends."""
    runs = sorted((plan.sources[i].corpus.fingerprint, plan.sources[i].documents, plan.names[i]) for i in used)
    pairs = []
    reach = runs[0] if runs else None
    for run in runs[1:]:
        assert reach is not None
        if run[0] == reach[0] and run[1][0] < reach[1][1]:
            pairs.append((reach[2], run[2]))
        if run[0] != reach[0] or run[1][1] > reach[1][1]:
            reach = run
    if not pairs:
        return []
    more = f" (and {len(pairs) - 1:,} more)" if len(pairs) > 1 else ""
    return [
        f"sources {pairs[0][0]!r} and {pairs[0][1]!r}{more} serve the same documents of one corpus: these repeat although no epoch has ended."
    ]
