"""What a training step wants of a batch, made on the devices: half the bytes cross the bus, and each device widens its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jax_adapter.batch import on_device
from jax_adapter.packed import Arrays


def unpack(batch: Mapping[str, Any], *, seq_len: int, sharding: NamedSharding | None = None) -> Arrays:
    """Return a batch of global arrays with int32 inputs and targets in the place of ``tokens``.

    Args:
        batch: of ``Loader``; ``sample``, on the host, is left out.
        seq_len: targets in a row, the plan's.
        sharding: of the two-dimensional results; None: as the loader's. With a second axis, where the loader's has none, each device cuts its part
            of the sequence from its own rows and nothing is sent.

    ``inputs`` int32[b, seq_len] = tokens[:, :seq_len]; ``targets`` int32[b, seq_len] = tokens[:, 1 : seq_len + 1]; ``segment_ids`` and
    ``positions``, if there, int32[b, seq_len], of the inputs; ``loss_mask``, if there; ``source`` as it is. Jitted: one compilation for all batches
    of a plan, whose keys, dtypes and shapes never change. It may also be called inside a jitted step. Nothing is donated: no result has the size of
    an argument, so XLA could reuse none; the arrays of the batch are freed when you drop it.
    """
    return on_device(columns, batch, seq_len, sharding)


def columns(batch: Arrays, seq_len: int) -> Arrays:
    """Return inputs, targets and what else belongs to the targets or inputs of a row; of any arrays, traced ones too."""
    of_inputs = {key: inputs_of(batch[key], seq_len) for key in ("segment_ids", "positions") if key in batch}
    tokens = batch["tokens"].astype(jnp.int32)
    kept = {key: rows for key, rows in batch.items() if key != "tokens"}
    return kept | of_inputs | {"inputs": inputs_of(tokens, seq_len), "targets": targets_of(tokens, seq_len)}


def inputs_of(rows: jax.Array, seq_len: int) -> jax.Array:
    """Return [b, seq_len] of [b, seq_len + 1 or more] or, in parts, of [b, parts, seq_len / parts + 1]: all but each row's or part's last."""
    return rows[:, :seq_len] if rows.ndim == 2 else rows[:, :, :-1].reshape(len(rows), seq_len)


def targets_of(rows: jax.Array, seq_len: int) -> jax.Array:
    """Return [b, seq_len]: what stands one further on than ``inputs_of``."""
    return rows[:, 1 : seq_len + 1] if rows.ndim == 2 else rows[:, :, 1:].reshape(len(rows), seq_len)
