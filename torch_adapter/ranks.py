"""Which share of a global batch this process reads, and whether all ranks agree on what they read.

The share is two numbers, (dp_rank, dp_world_size): explicit arguments, else from a device mesh, else torch.distributed's where it is initialised,
else all of it. Nothing here initialises torch.distributed. The environment is read for one question only: whether a launcher started several
ranks of which torch.distributed does not know yet.
"""

from __future__ import annotations

import difflib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed

from neutral_core.errors import StateError
from neutral_core.format import canonical

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Group = Any  # torch.distributed.ProcessGroup; None: all ranks


def data_parallel_rank(
    dp_rank: int | None = None,
    dp_world_size: int | None = None,
    *,
    mesh: DeviceMesh | None = None,
    dims: str | Sequence[str] = "dp",
) -> tuple[int, int]:
    """Return (dp_rank, dp_world_size), 0 ≤ dp_rank < dp_world_size; communicates with nobody.

    Args:
        dp_rank, dp_world_size: both, and they win over everything; or neither.
        mesh: a DeviceMesh with names, where several ranks share the same rows: ranks that differ only in other dimensions (tensor, pipeline,
            context, expert parallelism) get the same numbers.
        dims: names of the mesh's dimensions over which rows are divided, the outermost first: ``("dp_replicate", "dp_shard")``.

    Raises:
        ValueError: one number without the other; an unknown or repeated name; a process outside of the mesh; a launcher's WORLD_SIZE says that
            there are several ranks, but neither arguments nor torch.distributed say which of them this is.
    """
    if (dp_rank is None) != (dp_world_size is None):
        raise ValueError(f"dp_rank is {dp_rank} and dp_world_size is {dp_world_size}: give both or neither.")
    if dp_rank is not None and dp_world_size is not None:
        return dp_rank, dp_world_size
    if mesh is not None:
        return _rank_in(mesh, (dims,) if isinstance(dims, str) else tuple(dims))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    launched = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and launched.isdecimal() and int(launched) > 1:
        raise ValueError(
            f"a launcher started {launched} ranks (WORLD_SIZE, RANK) but torch.distributed is not initialised, so each of them would read every "
            "row: call torch.distributed.init_process_group first, or give dp_rank and dp_world_size."
        )
    return 0, 1


def _rank_in(mesh: DeviceMesh, dims: tuple[str, ...]) -> tuple[int, int]:
    names, coordinate = mesh.mesh_dim_names or (), mesh.get_coordinate()
    for name in dims:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"dims: the mesh has no dimension {name!r}, its dimensions are {', '.join(names) or 'not named'}.{hint}"
            )
    if not dims or len(set(dims)) < len(dims):
        raise ValueError(f"dims are {dims}, expected at least one name, each once.")
    if coordinate is None:
        raise ValueError("mesh: this process is no part of it: make no loader here, or give dp_rank and dp_world_size.")
    sizes = [mesh.size(names.index(name)) for name in dims]
    rank = 0
    for name, size in zip(dims, sizes, strict=True):
        rank = rank * size + coordinate[names.index(name)]
    return rank, math.prod(sizes)


def check_same(what: Mapping[str, Any], dp_rank: int, group: Group = None) -> None:
    """Raise on every rank of a group unless all hold the same, and each dp_rank is held by equally many.

    Args:
        what: name of a part → its value, of the types of JSON, with an item ``dp_world_size``; a collective call of all ranks of the group.
        group: None: all ranks. Without torch.distributed nothing is compared.

    What is gathered is a digest of 64 bits and dp_rank; the parts themselves only where digests differ.

    Raises:
        StateError: naming the ranks that differ from most others, each part, and both values; or the dp_ranks that nobody, or too many, hold.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    told = _gather((canonical.digest(dict(what), 16), dp_rank), group)
    if len({digest for digest, _ in told}) > 1:
        raise StateError(_difference(_gather(dict(what), group), group))
    held = Counter(rank for _, rank in told)
    counts = [held[rank] for rank in range(int(what["dp_world_size"]))]
    if len(set(counts)) > 1:
        most = max(counts)
        few = [rank for rank, count in enumerate(counts) if count < most]
        raise StateError(
            f"ranks: of dp_world_size {len(counts)}, dp_rank {_some(few)} is held by fewer processes than the others ({most} each), so rows would "
            "be left out or read too often: give every process its own share, from a mesh by data_parallel_rank(mesh=…, dims=…)."
        )


def _gather(value: Any, group: Group) -> list[Any]:
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, value, group=group)
    return found


def _difference(told: list[dict[str, Any]], group: Group) -> str:
    """Return the sentence that says which ranks differ in what."""
    usual, found = {}, []
    for name in dict.fromkeys(name for each in told for name in each):
        values = [each.get(name) for each in told]
        usual[name] = max(values, key=values.count)  # where there are as many of each: rank 0's
    number = (lambda place: place) if group is None else (lambda place: torch.distributed.get_global_rank(group, place))
    for place, each in enumerate(told):
        parts = [
            f"{name} ({each.get(name)!r}, theirs {value!r})" for name, value in usual.items() if each.get(name) != value
        ]
        if parts:
            found.append(f"rank {number(place)} differs in {', '.join(parts)}")
    rest = f"; and {len(found) - 4:,} more ranks" if len(found) > 4 else ""
    return (
        f"ranks: {'; '.join(found[:4])}{rest}: they would train on other rows than the others. "
        "Give every rank the same files, plan and checkpoint."
    )


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
