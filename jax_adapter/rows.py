"""Which rows of a global batch, and which columns of them, a process reads: a function of the sharding alone, never of the process' number.

Processes may be interleaved in the mesh, hold the same rows, or lie in any order; JAX's own map of indices says what each device holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec

import neutral_core as nc


def addressable_rows(sharding: NamedSharding, batch_size: int) -> npt.NDArray[np.int64]:
    """Return int64[r]: the rows of a global batch of ``batch_size`` rows that devices of this process hold, ascending, each once.

    In this order ``jax.make_array_from_process_local_data(sharding, local, global_shape)`` takes them; give it the global shape always: without
    it JAX takes fewer rows for a smaller batch. For ``GrainSource`` and ``GrainDataset``; ``Loader`` asks itself.

    Raises:
        TypeError: the sharding is no NamedSharding.
        ValueError: the sharding does not divide the batch, with the nearest sizes; the mesh has no device of this process.
    """
    parts = num_parts(sharding, 0)
    if batch_size % parts:
        lower = batch_size // parts * parts
        near = f"{lower} or {lower + parts}" if lower > 0 else f"{parts}"
        raise ValueError(
            f"batch_size is {batch_size}, which the {parts} parts of the sharding's rows do not divide: the nearest that they do: {near}."
        )
    rows = np.arange(batch_size, dtype=np.int64).reshape(parts, -1)
    return rows[list(addressable_parts(sharding, 0))].ravel()


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """What a process reads of each row, where a sharding cuts rows into parts of equal length along the tokens.

    Attributes:
        cut: whether the sharding has an axis for tokens, be it of one device.
        num_parts: of a row; 1 unless cut.
        parts: which of them devices of this process hold, ascending.
        starts: of each of them its first column in what is read.
        tokens, targets: columns of one part. Of a cut row a part has its inputs and one token more, the last one's target.
        stretches: the columns of the whole row that are read, as ``Plan.narrow`` takes them; parts side by side are read as one.
    """

    cut: bool
    num_parts: int
    parts: tuple[int, ...]
    starts: tuple[int, ...]
    tokens: int
    targets: int
    stretches: tuple[tuple[int, int], ...]


def addressable_columns(sharding: NamedSharding, plan: nc.Plan) -> Columns:
    """Return what this process reads of each row of a plan; raise ValueError where the sharding cuts rows into parts of unequal length."""
    if with_axes(sharding, 2).spec[1:] in ((), (None,)):
        row, targets = plan.row_length, plan.num_targets
        return Columns(
            cut=False, num_parts=1, parts=(0,), starts=(0,), tokens=row, targets=targets, stretches=plan.columns
        )
    num = num_parts(sharding, 1)
    if plan.columns != ((0, plan.seq_len + 1),):
        raise ValueError(
            f"sharding: it cuts rows, of which the plan reads columns {plan.columns}, expected whole rows without extra_tokens: "
            "shard rows only and let unpack cut the sequence."
        )
    if plan.seq_len % num:
        raise ValueError(
            f"sharding: it cuts rows of {plan.seq_len} targets into {num} parts, which do not divide them."
        )
    length, parts = plan.seq_len // num, addressable_parts(sharding, 1)
    starts: list[int] = []
    stretches: list[tuple[int, int]] = []
    for place, part in enumerate(parts):
        beside = bool(place) and parts[place - 1] == part - 1
        first = stretches.pop()[0] if beside else part * length
        stretches.append((first, (part + 1) * length + 1))
        starts.append(place * length + len(stretches) - 1)
    return Columns(
        cut=True, num_parts=num, parts=parts, starts=tuple(starts), tokens=length + 1, targets=length,
        stretches=tuple(stretches),
    )  # fmt: skip


def with_axes(sharding: NamedSharding, ndim: int, first: int = 0) -> NamedSharding:
    """Return the sharding's axes ``first`` … first + ndim − 1, for arrays that have no more; raise TypeError where it is no NamedSharding."""
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"sharding is a {type(sharding).__name__}, expected a jax.sharding.NamedSharding.")
    spec = PartitionSpec(*sharding.spec[first : first + ndim])  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def num_parts(sharding: NamedSharding, axis: int) -> int:
    """Return into how many parts a sharding cuts an axis; they divide the number of the mesh's devices."""
    along = with_axes(sharding, 1, axis)
    size = int(along.mesh.size)
    return size // int(along.shard_shape((size,))[0])


def addressable_parts(sharding: NamedSharding, axis: int) -> tuple[int, ...]:
    """Return which parts of an axis devices of this process hold, ascending; raise ValueError where it has none in the mesh."""
    num = num_parts(sharding, axis)
    indices = with_axes(sharding, 1, axis).addressable_devices_indices_map((num,)).values()
    parts = sorted({index[0].indices(num)[0] for index in indices if index is not None})
    if not parts:
        raise ValueError("sharding: its mesh has no device of this process; make the loader where there is one.")
    return tuple(parts)
