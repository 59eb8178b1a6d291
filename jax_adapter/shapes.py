"""Batches as known training codes name them, made on the devices from a batch of ``Loader``: one compilation, no copy between devices.

No code of theirs is needed. What each of them means by a key is said below, and docs/from_maxtext.md shows the loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_adapter.batch import on_device
from jax_adapter.packed import Arrays
from jax_adapter.unpack import columns, targets_of


def maxtext_batch(batch: Mapping[str, Any], *, seq_len: int, sharding: NamedSharding | None = None) -> Arrays:
    """Return MaxText's batch: inputs, targets, and position and segmentation of each, int32[b, seq_len].

    Args:
        batch, seq_len, sharding: as in ``unpack``.

    ``inputs_segmentation``: the documents of a row from 1, for the attention mask; without a plan's ``documents`` all 1. ``targets_segmentation``:
    that of the target token, and 0 where there is no loss (padding): MaxText's loss weight is ``targets_segmentation != 0``, never the number.
    ``inputs_position``, ``targets_position``: restarting in each document; without ``documents`` 0 … seq_len − 1 and 1 … seq_len. In padding rows
    all are 0.
    """
    return on_device(_maxtext, batch, seq_len, sharding)


def levanter_batch(batch: Mapping[str, Any], *, seq_len: int, sharding: NamedSharding | None = None) -> Arrays:
    """Return what Levanter's LmExample holds: tokens, loss_weight and segment_ids, [b, seq_len + 1].

    Args:
        batch, seq_len, sharding: as in ``unpack``.

    Levanter's rows hold their own targets: position t predicts token t + 1, and the last one nothing. So its ``Pos`` is the plan's seq_len + 1:
    for Pos = 4096 make a plan of seq_len=4095. ``tokens`` int32; ``loss_weight`` float32, 1 where the next token counts, 0 at the last position and
    in padding (older versions name it ``loss_mask``); ``segment_ids`` int32, documents from 1, for ``AttentionMask.causal().with_segment_ids``; without
    a plan's ``documents`` all 1, and 0 in padding.

    Raises:
        ValueError: the loader cut the rows over a context axis.
    """
    return on_device(_levanter, batch, seq_len, sharding)


def _maxtext(batch: Arrays, seq_len: int) -> Arrays:
    rows = columns(batch, seq_len)
    real = _real(batch, rows["inputs"])
    places = jnp.arange(seq_len, dtype=jnp.int32)
    segments, positions = batch.get("segment_ids"), batch.get("positions")
    target_segments = real if segments is None else targets_of(segments, seq_len)
    return {
        "inputs": rows["inputs"],
        "inputs_position": places * real if positions is None else rows["positions"],
        "inputs_segmentation": real if segments is None else rows["segment_ids"],
        "targets": rows["targets"],
        "targets_position": (places + 1) * real if positions is None else targets_of(positions, seq_len),
        "targets_segmentation": jnp.where(batch.get("loss_mask", real != 0), target_segments, 0),
    }


def _levanter(batch: Arrays, seq_len: int) -> Arrays:
    if batch["tokens"].ndim > 2:
        raise ValueError(
            "batch: its rows are cut over a context axis, each part with its own targets, expected whole rows, as Levanter's: "
            "give the loader a sharding of rows only, and levanter_batch the one with the context axis."
        )
    tokens = batch["tokens"][:, : seq_len + 1].astype(jnp.int32)
    real = _real(batch, tokens)
    return {
        "tokens": tokens,
        "loss_weight": jnp.pad(batch.get("loss_mask", real[:, :seq_len]).astype(jnp.float32), ((0, 0), (0, 1))),
        "segment_ids": batch["segment_ids"][:, : seq_len + 1] if "segment_ids" in batch else real,
    }


def _real(batch: Arrays, rows: jax.Array) -> jax.Array:
    """Return int32, of the shape of ``rows``: 0 in padding rows, else 1."""
    ones = jnp.ones_like(rows, dtype=jnp.int32)
    return ones * (batch["source"][:, None] >= 0) if "source" in batch else ones
