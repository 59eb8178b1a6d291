"""Millstream for JAX: global arrays for any NamedSharding, and a source for grain.

    mesh = jax.make_mesh((8,), ("data",))
    with Loader(plan, batch_size=512, sharding=NamedSharding(mesh, PartitionSpec("data"))) as loader:
        for batch in loader:
            rows = unpack(batch, seq_len=plan.seq_len)    # inputs and targets: int32[512, seq_len], sharded as the batch is

Order, reading and state are the core's; here are only the calls into JAX. grain is not imported, and is needed only by those who use it.
"""

from jax_adapter.grain import GrainSource
from jax_adapter.loader import Loader
from jax_adapter.unpack import unpack

__all__ = ["GrainSource", "Loader", "unpack"]
