"""Batches as known training codes name them, made on the devices from a batch of ``Loader``: one compilation, no copy between devices.

No code of theirs is needed. What each of them means by a key is said below, and docs/from_maxtext.md shows the loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_adapter.unpack import Arrays, columns, on_device


def maxtext_batch(batch: Mapping[str, Any], *, seq_len: int, sharding: NamedSharding | None = None) -> Arrays:
    """Return MaxText's batch: inputs, targets, and position and segmentation of each, int32[b, seq_len].

    Args:
        batch, seq_len, sharding: as in ``unpack``.

    ``inputs_segmentation``: the documents of a row from 1, for the attention mask; without a plan's ``documents`` all 1. ``targets_segmentation``:
    that of the target token, and 0 where there is no loss (padding): MaxText's loss weight is ``targets_segmentation != 0``, never the number.
    ``inputs_position``, ``targets_position``: restarting in each document; without ``documents`` 0 … seq_len − 1 and 1 … seq_len. In padding rows
    all are 0.
    """
    held = {key: rows for key, rows in batch.items() if key != "source"}
    return on_device(_maxtext, held, seq_len, sharding)


def levanter_batch(batch: Mapping[str, Any], *, seq_len: int, sharding: NamedSharding | None = None) -> Arrays:
    """Return what Levanter's LmExample holds: tokens, loss_weight and segment_ids, [b, seq_len + 1].

    Args:
        batch, seq_len, sharding: as in ``unpack``.

    Levanter's rows hold their own targets: position t predicts token t + 1, and the last one nothing. So its ``Pos`` is the plan's seq_len + 1:
    for Pos = 4096 make a plan of seq_len=4095. ``tokens`` int32; ``loss_weight`` float32, 1 where the next token counts, 0 at the last position and
    in padding (older versions name it ``loss_mask``); ``segment_ids`` int32, documents from 1, for ``AttentionMask.causal().with_segment_ids``; without
    a plan's ``documents`` all 1, and 0 in padding.
    """
    held = {key: rows for key, rows in batch.items() if key != "source"}
    return on_device(_levanter, held, seq_len, sharding)


def _maxtext(batch: Arrays, seq_len: int) -> Arrays:
    rows = columns(batch, seq_len)
    length = batch["tokens"].shape[1]
    ones = jnp.ones_like(batch["tokens"], dtype=jnp.int32)
    real = ones
    if "loss_mask" in batch:  # a padding row has no loss anywhere
        real = ones * batch["loss_mask"].any(axis=1, keepdims=True)
    segments = batch.get("segment_ids", real)
    positions = batch.get("positions", jnp.arange(length, dtype=jnp.int32) * real)
    counted = batch.get("loss_mask", ones[:, :seq_len] != 0)
    return {
        "inputs": rows["inputs"],
        "inputs_position": positions[:, :seq_len],
        "inputs_segmentation": segments[:, :seq_len],
        "targets": rows["targets"],
        "targets_position": positions[:, 1 : seq_len + 1],
        "targets_segmentation": jnp.where(counted, segments[:, 1 : seq_len + 1], 0),
    }


def _levanter(batch: Arrays, seq_len: int) -> Arrays:
    ones = jnp.ones_like(batch["tokens"][:, : seq_len + 1], dtype=jnp.int32)
    counted = batch.get("loss_mask", ones[:, :seq_len] != 0)
    segments = batch.get("segment_ids", ones * counted.any(axis=1, keepdims=True))
    return {
        "tokens": batch["tokens"][:, : seq_len + 1].astype(jnp.int32),
        "loss_weight": jnp.pad(counted.astype(jnp.float32), ((0, 0), (0, 1))),
        "segment_ids": segments[:, : seq_len + 1],
    }
