"""Ranks of torch.distributed over gloo, for tests: a function run in processes of their own, which share one import of torch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

ALONE = multiprocessing.get_context("forkserver")
ALONE.set_forkserver_preload(
    ["torch.distributed", "torch._dynamo"]
)  # the second one at the first optimizer, else in each rank


def on_ranks(folder: Path, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what ``function(rank, *arguments)`` returns on each of the ranks of a group."""
    with ProcessPoolExecutor(world_size, mp_context=ALONE) as ranks:
        calls = [ranks.submit(_be, folder, rank, world_size, function, arguments) for rank in range(world_size)]
        return [call.result(timeout=120) for call in calls]


def _be(folder: Path, rank: int, world_size: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    meet = f"file://{folder}/meet-{function.__name__}"
    torch.distributed.init_process_group("gloo", meet, timeout=timedelta(seconds=60), rank=rank, world_size=world_size)
    try:
        result = function(rank, *arguments)
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()
    return result
