"""Several runs of one command share its tasks: rank r of w takes tasks r, r + w, r + 2w, …; nobody waits for anybody, the last to finish assembles.

This is the one place where ``prep`` reads a launcher's environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Job = TypeVar("Job")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """Which share of the tasks a run does.

    Attributes:
        rank, world_size: 0 ≤ rank < world_size.
        on_this_host: ranks that share this machine's cores.
        launcher: who says so, for people.
    """

    rank: int = 0
    world_size: int = 1
    on_this_host: int = 1
    launcher: str = ""

    def share(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return this rank's part of the jobs."""
        return jobs[self.rank :: self.world_size]

    def workers(self) -> int:
        """Return how many processes this rank may have: the cores that it may use, shared among the ranks of this machine."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(cores // self.on_this_host, 1)


def rank_of(environment: Mapping[str, str]) -> Rank:
    """Return what the environment says: of torchrun, of a Slurm array, of a step of srun (or of both: each member's tasks), or one rank alone.

    Raises:
        ValueError: a launcher's numbers do not fit together.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, world = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        return _checked(rank, world, _number(environment, "LOCAL_WORLD_SIZE", 1), "RANK and WORLD_SIZE")
    rank, world, here, said = 0, 1, 1, []
    if "SLURM_ARRAY_TASK_ID" in environment and "SLURM_ARRAY_TASK_COUNT" in environment:
        rank, world = _member(environment)
        said.append("SLURM_ARRAY_TASK_ID")
    if (
        "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment
    ):  # a batch script has a SLURM_PROCID of 0, and is alone
        count = _number(environment, "SLURM_STEP_NUM_TASKS", _number(environment, "SLURM_NTASKS", 1))
        rank, world = rank * count + _number(environment, "SLURM_PROCID"), world * count
        here = _first_number(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        said.append("SLURM_PROCID")
    return _checked(rank, world, here, " and ".join(said))


def _member(environment: Mapping[str, str]) -> tuple[int, int]:
    task, least = _number(environment, "SLURM_ARRAY_TASK_ID"), _number(environment, "SLURM_ARRAY_TASK_MIN", 0)
    step, count = _number(environment, "SLURM_ARRAY_TASK_STEP", 1), _number(environment, "SLURM_ARRAY_TASK_COUNT")
    rank, odd = divmod(task - least, max(step, 1))
    if odd or not 0 <= rank < count:
        raise ValueError(
            f"SLURM_ARRAY_TASK_ID is {task} in an array of {count} from {least}: its members are not evenly spaced; give --rank R/W."
        )
    return rank, count


def _checked(rank: int, world: int, here: int, launcher: str) -> Rank:
    if not 0 <= rank < world:
        raise ValueError(f"{launcher}: rank {rank} of {world}, expected 0 ≤ rank < number of ranks; give --rank R/W.")
    return Rank(
        rank=rank, world_size=world, on_this_host=min(max(here, 1), world), launcher=launcher if world > 1 else ""
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.strip().isdecimal():
        raise ValueError(f"{name} is {text!r} in the environment, expected a whole number; give --rank R/W.")
    return int(text)


def _first_number(text: str) -> int:
    """Return n of Slurm's ``n(x2),m``."""
    digits = text.partition("(")[0].partition(",")[0]
    return int(digits) if digits.isdecimal() else 1
