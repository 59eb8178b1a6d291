"""Which share of a global batch this process reads: explicit arguments, else torch.distributed where it is initialised, else all of it."""

from __future__ import annotations

import torch.distributed


def data_parallel_rank(dp_rank: int | None = None, dp_world_size: int | None = None) -> tuple[int, int]:
    """Return (dp_rank, dp_world_size); never initialises torch.distributed.

    Args:
        dp_rank, dp_world_size: both, and they win over everything; or neither. Where several ranks share the same rows (tensor or pipeline
            parallelism) they must be given, from a device mesh as ``mesh["dp"].get_local_rank()`` and ``mesh["dp"].size()``.

    Raises:
        ValueError: one is given without the other.
    """
    if (dp_rank is None) != (dp_world_size is None):
        raise ValueError(f"dp_rank is {dp_rank} and dp_world_size is {dp_world_size}: give both or neither.")
    if dp_rank is not None and dp_world_size is not None:
        return dp_rank, dp_world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
