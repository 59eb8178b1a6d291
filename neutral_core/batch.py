"""The batch: rows of tokens, and what says which document a token belongs to, as numpy arrays with a leading row axis.

Keys, dtypes and shapes are constant over a plan; data never decide them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.order.windows import Pieces, Stretches

Batch = dict[str, npt.NDArray[Any]]

_TOGETHER = 8  # rows of one shard from which one gather beats a copy for each


def read_tokens(stretches: Stretches, pieces: Pieces, num_rows: int, length: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return [num_rows, length] of ``dtype``, a fresh array: the tokens of the pieces."""
    segments = pieces.segment
    whole = len(segments) == num_rows
    if whole and num_rows and (segments == segments[0]).all():
        return stretches.shards[int(segments[0])].rows(pieces.start, length).astype(dtype, copy=False)
    out = np.empty((num_rows, length), dtype=dtype)
    for chosen in _by_segment(segments):
        shard = stretches.shards[int(segments[chosen[0]])]
        if whole and len(chosen) >= _TOGETHER:
            out[pieces.row[chosen]] = shard.rows(pieces.start[chosen], length)
            continue
        tokens = shard.token_array()
        for row, column, start, count in zip(
            pieces.row[chosen].tolist(),
            pieces.column[chosen].tolist(),
            pieces.start[chosen].tolist(),
            pieces.length[chosen].tolist(),
            strict=True,
        ):
            found = tokens[start : start + count] if tokens is not None else shard.read(start, start + count)
            out[row, column : column + count] = found
    return out


def read_documents(
    stretches: Stretches, pieces: Pieces, num_rows: int, length: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return (segment_ids, positions), int32[num_rows, length] each, fresh arrays.

    segment_ids count the documents of a row from 1; positions restart at 0 at each document's first token in the row, and at the row's start.
    """
    begins = np.zeros((num_rows, length), dtype=bool)
    begins[pieces.row, pieces.column] = True
    for chosen in _by_segment(pieces.segment):
        offsets = stretches.shards[int(pieces.segment[chosen[0]])].offsets()
        start = pieces.start[chosen]
        first, last = offsets.find(start), offsets.find(start + pieces.length[chosen] - 1)
        counts = last - first
        if not counts.any():
            continue
        which = np.repeat(np.arange(len(chosen)), counts)
        inner = first[which] + 1 + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        column = pieces.column[chosen][which] + offsets.at(inner) - start[which]
        begins[pieces.row[chosen][which], column] = True
    segment_ids = np.cumsum(begins, axis=1, dtype=np.int32)
    columns = np.arange(length, dtype=np.int32)
    positions = columns - np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    return segment_ids, positions.astype(np.int32, copy=False)


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


def _by_segment(segments: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the indices of equal entries together."""
    if not len(segments):
        return []
    order = np.argsort(segments, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(segments[order])) + 1)
