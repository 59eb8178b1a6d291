"""The batch: rows of tokens, and what says which document a token belongs to, as numpy arrays with a leading row axis.

Keys, dtypes and shapes are constant over a plan; data never decide them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.shard_like import rows_at
from neutral_core.order.windows import Pieces, Stretches, by_segment

Batch = dict[str, npt.NDArray[Any]]


def read_tokens(
    stretches: Stretches, pieces: Pieces, num_rows: int, length: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return [num_rows, length] of ``dtype``, a fresh array: the tokens of the pieces."""
    if not num_rows:
        return np.empty((0, length), dtype=dtype)
    whole = pieces.length == length
    if np.count_nonzero(whole) * 2 < num_rows:
        return _join(stretches, pieces, num_rows, length, dtype)
    if whole.all():
        return _read_rows(stretches, pieces, num_rows, length, dtype)
    out = _read_rows(stretches, pieces.of(whole), num_rows, length, dtype)
    rest = pieces.of(~whole)
    rows, rest_rows = np.unique(rest.row, return_inverse=True)
    rest = Pieces(rest_rows, rest.column, rest.segment, rest.start, rest.length)
    out[rows] = _join(stretches, rest, len(rows), length, dtype)
    return out


def _read_rows(
    stretches: Stretches, pieces: Pieces, num_rows: int, length: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return rows of which those of pieces, at least one and each a whole row, are filled; the others hold anything."""
    segments, which = np.unique(pieces.segment, return_inverse=True)
    shards = [stretches.shards[segment] for segment in segments.tolist()]
    memories = [shard.token_memory() for shard in shards]  # held until the rows have been copied
    if len(stretches.dtypes) == 1 and None not in memories:
        (stored,) = stretches.dtypes
        found = np.array([memory.address for memory in memories if memory], dtype=np.int64)[which]
        found += pieces.start * stored.itemsize
        addresses = np.full(
            num_rows, found[0], dtype=np.int64
        )  # a row of several pieces is gathered from anywhere first
        addresses[pieces.row] = found
        return rows_at(addresses, stored, length).astype(dtype, copy=False)
    out = np.empty((num_rows, length), dtype=dtype)
    for mine in by_segment(which):
        out[pieces.row[mine]] = shards[int(which[mine[0]])].rows(pieces.start[mine], length)
    return out


def _join(stretches: Stretches, pieces: Pieces, num_rows: int, length: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return rows of any pieces: one statement a piece, and one join of memoryviews, which costs half of copying each by a statement."""
    in_place = np.lexsort((pieces.column, pieces.row))
    found = []
    for segment, start, count in zip(
        *(x[in_place].tolist() for x in (pieces.segment, pieces.start, pieces.length)), strict=True
    ):
        shard = stretches.shards[segment]
        memory = shard.token_memory()
        if memory is None:
            found.append(shard.read(start, start + count).data)
        else:
            found.append(memory.view[start : start + count])
    if stretches.dtypes == {dtype}:
        return np.frombuffer(bytearray().join(found), dtype=dtype).reshape(num_rows, length)
    return np.concatenate([np.empty(0, dtype), *(np.asarray(piece) for piece in found)], dtype=dtype).reshape(
        num_rows, length
    )


def read_documents(
    stretches: Stretches, pieces: Pieces, num_rows: int, length: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (segment_ids, positions), int32[num_rows, length] each, fresh arrays.

    segment_ids count the documents of a row from 1; positions restart at 0 at each document's first token in the row, and at the row's start.
    """
    begins = [pieces.row * length + pieces.column]  # of documents, as places in the rows one after another
    for chosen in by_segment(pieces.segment):
        offsets = stretches.shards[int(pieces.segment[chosen[0]])].offsets()
        start = pieces.start[chosen]
        first, last = offsets.find(start), offsets.find(start + pieces.length[chosen] - 1)
        counts = last - first
        which = np.repeat(np.arange(len(chosen)), counts)
        inner = np.arange(len(which)) + np.repeat(first + 1 - np.cumsum(counts) + counts, counts)
        begins.append(offsets.at(inner) + (begins[0][chosen] - start)[which])
    places = np.sort(np.concatenate(begins), kind="stable")
    places = places[np.diff(places, prepend=-1) > 0]  # documents without tokens begin where the next one does
    lengths = np.diff(places, append=num_rows * length)
    firsts = np.flatnonzero(places % length == 0)  # each row begins with a document
    number = np.arange(1, len(places) + 1) - np.repeat(firsts, np.diff(firsts, append=len(places)))
    segment_ids = np.repeat(number.astype(np.int32), lengths)
    width = np.dtype(np.int32 if num_rows * length < 2**31 else np.int64)
    positions = np.repeat(places.astype(width), lengths)
    np.subtract(_counting(num_rows * length, width), positions, out=positions)
    shape = num_rows, length
    return segment_ids.reshape(shape), positions.astype(np.int32, copy=False).reshape(shape)


@lru_cache(maxsize=1)
def _counting(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return 0 … count − 1, kept for the next chunk, which has the same size."""
    numbers = np.arange(count, dtype=dtype)
    numbers.flags.writeable = False
    return numbers


def pad(batch: Batch, real: npt.NDArray[np.bool_], num_targets: int) -> Batch:
    """Return the batch with its rows where ``real`` is True, padding rows elsewhere, and the key ``loss_mask``.

    A padding row has tokens, segment_ids and positions 0, source and sample −1 and no loss.
    """
    padded: Batch = {}
    for key, rows in batch.items():
        fill = -1 if key in ("source", "sample") else 0
        padded[key] = np.full((len(real), *rows.shape[1:]), fill, dtype=rows.dtype)
        padded[key][real] = rows
    padded["loss_mask"] = np.repeat(real[:, None], num_targets, axis=1)
    return padded
