"""Which rows of a global batch a process reads: a function of the sharding alone, never of the process' number.

Processes may be interleaved in the mesh, hold the same rows, or lie in any order; JAX's own map of indices says what each device holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec


def addressable_rows(sharding: NamedSharding, batch_size: int) -> npt.NDArray[np.int64]:
    """Return int64[r]: the rows of a global batch of ``batch_size`` rows that devices of this process hold, ascending, each once.

    In this order ``jax.make_array_from_process_local_data(sharding, local, global_shape)`` takes them; give it the global shape always: without
    it JAX takes fewer rows for a smaller batch. For ``GrainSource`` and ``GrainDataset``; ``Loader`` asks itself.

    Raises:
        TypeError: the sharding is no NamedSharding.
        ValueError: the sharding does not divide the batch, with the nearest sizes; the mesh has no device of this process.
    """
    over_rows = with_axes(sharding, 1)
    check_rows(over_rows, batch_size)
    indices = over_rows.addressable_devices_indices_map((batch_size,)).values()
    parts = {index[0].indices(batch_size)[:2] for index in indices if index is not None}
    if not parts:
        raise ValueError("sharding: its mesh has no device of this process; make the loader where there is one.")
    return np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in sorted(parts)])


def with_axes(sharding: NamedSharding, ndim: int) -> NamedSharding:
    """Return the sharding's first ``ndim`` axes, for arrays that have no more; raise TypeError where it is no NamedSharding."""
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"sharding is a {type(sharding).__name__}, expected a jax.sharding.NamedSharding.")
    spec = PartitionSpec(*sharding.spec[:ndim])  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def check_rows(sharding: NamedSharding, batch_size: int) -> None:
    """Raise ValueError, with the nearest sizes that it does, where a sharding of one axis does not divide a batch."""
    parts = num_parts(sharding, 0, 1)
    if batch_size % parts:
        lower = batch_size // parts * parts
        near = f"{lower} or {lower + parts}" if lower > 0 else f"{parts}"
        raise ValueError(
            f"batch_size is {batch_size}, which the {parts} parts of the sharding's rows do not divide: the nearest that they do: {near}."
        )


def check_columns(shardings: Mapping[int, NamedSharding], widths: set[int]) -> None:
    """Raise ValueError where the sharding of two axes cuts rows of one of these widths into parts of unequal length."""
    columns = num_parts(shardings[2], 1, 2)
    if any(width % columns for width in widths):
        raise ValueError(
            f"sharding: it cuts rows of {' and '.join(map(str, sorted(widths)))} into {columns} parts, which do not divide them: "
            "shard rows only and let unpack cut the sequence, or choose the plan's extra_tokens."
        )


def num_parts(sharding: NamedSharding, axis: int, ndim: int) -> int:
    """Return into how many parts a sharding cuts an axis; they divide the number of the mesh's devices."""
    size = int(sharding.mesh.size)
    return size // int(sharding.shard_shape((size,) * ndim)[axis])
