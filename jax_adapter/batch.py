"""A batch on the devices: a mapping of the core's keys over the one array that travelled, and functions of it as jitted programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from jax_adapter.packed import Arrays, Layout, split
from jax_adapter.rows import with_axes

Function = Callable[[Arrays, int], Arrays]
_DIMENSIONS = (1, 2, 3)


@jax.tree_util.register_pytree_node_class
class Batch(MutableMapping[str, Any]):
    """The keys of a batch; those that are packed are taken apart, by one small program on the devices, when one of them is first asked for.

    ``unpack`` and the shapes of other training codes take the packed array as it is. A pytree: it may be given to jit, device_put, or be donated, and
    what is on the host (``sample``) stays behind. As with any program over several processes, all of them take a batch apart, or none.

    Attributes:
        packed: uint8/16/32 [batch_size, words], of cut rows [batch_size, parts, words]; None once it was taken apart.
        layout: where the keys are in it.
    """

    def __init__(self, packed: Any, layout: Layout, arrays: Mapping[str, Any]) -> None:
        self.packed, self.layout = packed, layout
        self._arrays = dict(arrays)

    def __getitem__(self, key: str) -> Any:
        if key not in self._arrays and self._is_packed(key):
            self._take_apart()
        return self._arrays[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._take_apart()
        self._arrays[key] = value

    def __delitem__(self, key: str) -> None:
        if self._is_packed(key):
            self._take_apart()
        del self._arrays[key]

    def __iter__(self) -> Iterator[str]:
        if self.packed is not None:
            yield from (field.key for field in self.layout.fields)
        yield from self._arrays

    def __len__(self) -> int:
        return len(self._arrays) + (len(self.layout.fields) if self.packed is not None else 0)

    def __repr__(self) -> str:
        return f"Batch({', '.join(self)})"

    def on_devices(self) -> Arrays:
        """Return all keys but those on the host; for use in a jitted function."""
        arrays = {key: rows for key, rows in self._arrays.items() if not isinstance(rows, np.ndarray)}
        return arrays if self.packed is None else split(self.packed, self.layout) | arrays

    def tree_flatten(self) -> tuple[tuple[Any, Arrays], Layout]:
        """Return what is on the devices, and what is the same in every batch of a plan."""
        arrays = {key: rows for key, rows in self._arrays.items() if not isinstance(rows, np.ndarray)}
        return (self.packed, arrays), self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, children: tuple[Any, Arrays]) -> Batch:
        """Return a batch of what was flattened."""
        packed, arrays = children
        return cls(packed, layout, arrays if isinstance(arrays, dict) else {})

    def _is_packed(self, key: str) -> bool:
        return self.packed is not None and any(field.key == key for field in self.layout.fields)

    def _take_apart(self) -> None:
        if self.packed is not None:
            self._arrays = on_device(_as_they_are, self, 0, None) | self._arrays
            self.packed = None


def on_device(function: Function, batch: Mapping[str, Any], seq_len: int, sharding: NamedSharding | None) -> Arrays:
    """Return a function of a batch's arrays and seq_len, jitted; its results under ``sharding``, of which those of one axis take the first."""
    held = batch
    if not isinstance(batch, Batch):
        held = {key: rows for key, rows in batch.items() if not isinstance(rows, np.ndarray)}
    leaf = held.packed if isinstance(held, Batch) and held.packed is not None else held["tokens"]
    own = None if isinstance(leaf, jax.core.Tracer) else leaf.sharding
    over = own if isinstance(own, NamedSharding) else None
    found: Arrays = {}
    for made in jitted(function, over, sharding)(held, seq_len):
        found |= made
    return found


@lru_cache(maxsize=64)
def jitted(function: Function, own: NamedSharding | None, sharding: NamedSharding | None) -> Any:
    """Return the function jitted, seq_len static, its results by their number of axes; one object for equal arguments, as jit's cache needs.

    ``own``: the batch's, under which the results are made first. Asked for a cut sequence at once, XLA would cut the arguments, which are a token
    longer, and send edges between the devices; each device has whole rows, and takes its part of the results from them. Meshes with Explicit
    axes keep the arguments' sharding by their own rule.
    """
    constrained = own is not None and set(own.mesh.axis_types) == {AxisType.Auto}

    def make(batch: Any, seq_len: int) -> list[Arrays]:
        rows = function(batch.on_devices() if isinstance(batch, Batch) else batch, seq_len)
        if own is not None and constrained:
            rows = {key: _constrain(made, with_axes(own, min(made.ndim, 2))) for key, made in rows.items()}
        return [{key: made for key, made in rows.items() if made.ndim == ndim} for ndim in _DIMENSIONS]

    make.__name__ = function.__name__
    outside = sharding or own
    with_options = partial(jax.jit, make, static_argnums=1)
    if outside is None:
        return with_options()
    return with_options(out_shardings=[with_axes(outside, min(ndim, 2)) for ndim in _DIMENSIONS])


def _constrain(rows: jax.Array, sharding: NamedSharding) -> jax.Array:
    constrained: jax.Array = jax.lax.with_sharding_constraint(rows, sharding)  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    return constrained


def _as_they_are(batch: Arrays, seq_len: int) -> Arrays:
    return batch
