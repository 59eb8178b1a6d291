"""Millstream for JAX: global arrays for any NamedSharding, and sources for grain.

    mesh = jax.make_mesh((8,), ("data",))
    with Loader(plan, batch_size=512, sharding=NamedSharding(mesh, PartitionSpec("data"))) as loader:
        for batch in loader:
            rows = unpack(batch, seq_len=plan.seq_len)    # inputs and targets: int32[512, seq_len], sharded as the batch is

Order, reading and state are the core's; here are only the calls into JAX. grain is not imported before ``GrainDataset`` or an element of a
``GrainSampler`` is asked for, and is needed only by those who use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax_adapter.batch import Batch
from jax_adapter.grain import GrainSampler, GrainSource
from jax_adapter.loader import Loader
from jax_adapter.rows import addressable_rows
from jax_adapter.shapes import levanter_batch, maxtext_batch
from jax_adapter.unpack import unpack

if TYPE_CHECKING:
    from jax_adapter.grain_dataset import GrainDataset

__all__ = [
    "Batch",
    "GrainDataset",
    "GrainSampler",
    "GrainSource",
    "Loader",
    "addressable_rows",
    "levanter_batch",
    "maxtext_batch",
    "unpack",
]


def __getattr__(name: str) -> Any:
    if name == "GrainDataset":  # a subclass of grain's
        from jax_adapter.grain_dataset import GrainDataset

        return GrainDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
