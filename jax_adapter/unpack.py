"""What a training step wants of a batch, made on the devices: half the bytes cross the bus, and each device widens its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


def unpack(batch: Mapping[str, Any], *, seq_len: int) -> dict[str, jax.Array]:
    """Return a batch of global arrays with int32 inputs and targets in the place of ``tokens``; sharded over rows as the batch is.

    Args:
        batch: of ``Loader``; ``sample`` is left out, for int64 would wrap.
        seq_len: targets in a row, the plan's.

    ``inputs`` int32[b, seq_len] = tokens[:, :seq_len]; ``targets`` int32[b, seq_len] = tokens[:, 1 : seq_len + 1]; ``segment_ids`` and
    ``positions``, if there, int32[b, seq_len], of the inputs; ``source`` and ``loss_mask`` as they are. Jitted: one compilation for all batches
    of a plan, whose keys, dtypes and shapes never change. It may also be called inside a jitted step.
    """
    rows: dict[str, jax.Array] = _unpack({key: rows for key, rows in batch.items() if key != "sample"}, seq_len)
    return rows


@partial(jax.jit, static_argnums=1)
def _unpack(batch: dict[str, jax.Array], seq_len: int) -> dict[str, jax.Array]:
    of_inputs = {key: batch[key][:, :seq_len] for key in ("segment_ids", "positions") if key in batch}
    tokens = batch["tokens"].astype(jnp.int32)
    kept = {key: rows for key, rows in batch.items() if key != "tokens"}
    return kept | of_inputs | {"inputs": tokens[:, :seq_len], "targets": tokens[:, 1 : seq_len + 1]}
