"""What a training step wants of a batch, made on the devices: half the bytes cross the bus, and each device widens its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

from jax_adapter.rows import with_axes

HOST_KEYS = ("sample",)  # int64 would wrap to int32 on a device
Arrays = dict[str, jax.Array]


def unpack(batch: Mapping[str, Any], *, seq_len: int, sharding: NamedSharding | None = None) -> Arrays:
    """Return a batch of global arrays with int32 inputs and targets in the place of ``tokens``.

    Args:
        batch: of ``Loader``; ``sample`` is left out, for int64 would wrap.
        seq_len: targets in a row, the plan's.
        sharding: of the two-dimensional results; None: over rows as the batch is. With a second axis, where the batch is whole rows, each device
            cuts its part of the sequence from its own rows and nothing is sent: the way to a context axis.

    ``inputs`` int32[b, seq_len] = tokens[:, :seq_len]; ``targets`` int32[b, seq_len] = tokens[:, 1 : seq_len + 1]; ``segment_ids`` and
    ``positions``, if there, int32[b, seq_len], of the inputs; ``loss_mask``, if there; ``source`` as it is. Jitted: one compilation for all batches
    of a plan, whose keys, dtypes and shapes never change. It may also be called inside a jitted step. Nothing is donated: no result has the size of
    an argument, so XLA could reuse none; the arrays of the batch are freed when you drop it.
    """
    return on_device(columns, batch, seq_len, sharding)


def columns(batch: Arrays, seq_len: int) -> Arrays:
    """Return inputs, targets and what else belongs to the targets or inputs of a row; of any arrays, traced ones too."""
    of_inputs = {key: batch[key][:, :seq_len] for key in ("segment_ids", "positions") if key in batch}
    tokens = batch["tokens"].astype(jnp.int32)
    kept = {key: rows for key, rows in batch.items() if key != "tokens"}
    return kept | of_inputs | {"inputs": tokens[:, :seq_len], "targets": tokens[:, 1 : seq_len + 1]}


def on_device(
    function: Callable[[Arrays, int], Arrays], batch: Mapping[str, Any], seq_len: int, sharding: NamedSharding | None
) -> Arrays:
    """Return a function of a batch and seq_len, whose results are two-dimensional, jitted with a sharding of them; ``source`` stays as it is."""
    held = {key: rows for key, rows in batch.items() if key not in HOST_KEYS and rows.ndim > 1}
    kept = {key: rows for key, rows in batch.items() if key not in HOST_KEYS and rows.ndim == 1}
    traced = isinstance(batch["tokens"], jax.core.Tracer)
    made: Arrays = jitted(function, None if traced else _over_rows(batch["tokens"].sharding), sharding)(held, seq_len)
    return kept | made


@lru_cache(maxsize=64)
def jitted(
    function: Callable[[Arrays, int], Arrays], over_rows: NamedSharding | None, sharding: NamedSharding | None
) -> Any:
    """Return the function jitted, seq_len static, its results under ``sharding``; one object for equal arguments, as jit's cache needs.

    ``over_rows``: first they are made under this one. Asked for a cut sequence at once, XLA would cut the arguments, which are a token longer,
    and send edges between the devices; each device has whole rows, and takes its part of the results from them. Meshes with Explicit axes
    keep the arguments' sharding by their own rule.
    """
    constrained = over_rows is not None and set(over_rows.mesh.axis_types) == {AxisType.Auto}

    def make(batch: Arrays, seq_len: int) -> Arrays:
        rows = function(batch, seq_len)
        if not constrained:
            return rows
        within: Arrays = jax.lax.with_sharding_constraint(rows, over_rows)  # type: ignore[no-untyped-call]  # JAX leaves it untyped
        return within

    make.__name__ = function.__name__
    outside = sharding or over_rows
    with_options = partial(jax.jit, make, static_argnums=1)
    return with_options() if outside is None else with_options(out_shardings=outside)


def _over_rows(sharding: Any) -> NamedSharding | None:
    """Return the sharding of results by default; None, left to XLA, where the batch's own cuts its columns or has no mesh."""
    if not isinstance(sharding, NamedSharding) or any(axes is not None for axes in sharding.spec[1:]):
        return None
    return with_axes(sharding, 1)
