"""The batch: rows of tokens, and what says which document a token belongs to, as numpy arrays with a leading row axis.

Keys, dtypes and shapes are constant over a plan; data never decide them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.order.windows import Pieces, Stretches, by_segment

Batch = dict[str, npt.NDArray[Any]]

_TOGETHER = 8  # rows of one shard from which one gather beats a copy for each


def read_tokens(
    stretches: Stretches, pieces: Pieces, num_rows: int, length: int, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return [num_rows, length] of ``dtype``, a fresh array: the tokens of the pieces."""
    segments = pieces.segment
    whole = len(segments) == num_rows  # then the pieces stand in the order of the rows
    if whole and num_rows and (segments == segments[0]).all():
        return stretches.shards[int(segments[0])].rows(pieces.start, length).astype(dtype, copy=False)
    if not num_rows:
        return np.empty((0, length), dtype=dtype)
    if whole and len(np.unique(segments)) * _TOGETHER <= num_rows:
        out = np.empty((num_rows, length), dtype=dtype)
        for chosen in by_segment(segments):
            out[pieces.row[chosen]] = stretches.shards[int(segments[chosen[0]])].rows(pieces.start[chosen], length)
        return out
    in_place = np.lexsort((pieces.column, pieces.row)) if not whole else slice(None)
    found = []
    for segment, start, count in zip(
        *(x[in_place].tolist() for x in (segments, pieces.start, pieces.length)), strict=True
    ):
        shard = stretches.shards[segment]
        tokens = shard.token_view()
        if tokens is None:
            found.append(shard.read(start, start + count).data)
        else:
            found.append(tokens[start : start + count])
    if stretches.dtypes == {dtype}:
        # One join of memoryviews costs half of copying each of them by a statement of its own.
        return np.frombuffer(bytearray().join(found), dtype=dtype).reshape(num_rows, length)
    return np.concatenate([np.asarray(piece) for piece in found]).astype(dtype).reshape(num_rows, length)


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
        inner = first[which] + 1 + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins.append(begins[0][chosen][which] + offsets.at(inner) - start[which])
    places = np.unique(np.concatenate(begins))  # documents without tokens begin where the next one does
    lengths = np.diff(places, append=num_rows * length)
    row = places // length
    number = np.arange(len(places)) - np.searchsorted(row, row)
    segment_ids = np.repeat((number + 1).astype(np.int32), lengths)
    width = np.dtype(np.int32 if num_rows * length < 2**31 else np.int64)
    positions = np.arange(num_rows * length, dtype=width)
    np.subtract(positions, np.repeat(places.astype(width), lengths), out=positions)
    shape = num_rows, length
    return segment_ids.reshape(shape), positions.astype(np.int32, copy=False).reshape(shape)


def pad(batch: Batch, real: npt.NDArray[np.bool_], seq_len: int) -> Batch:
    """Return the batch with its rows where ``real`` is True, padding rows elsewhere, and the key ``loss_mask``.

    A padding row has tokens, segment_ids and positions 0, source and sample −1 and no loss.
    """
    padded: Batch = {}
    for key, rows in batch.items():
        fill = -1 if key in ("source", "sample") else 0
        padded[key] = np.full((len(real), *rows.shape[1:]), fill, dtype=rows.dtype)
        padded[key][real] = rows
    padded["loss_mask"] = np.repeat(real[:, None], seq_len, axis=1)
    return padded
