"""Be one rank of a training loop over gloo in which something goes wrong; a program for test_torch_failures.py.

python one_rank_that_fails.py CORPUS MEETING_FILE RANK WORLD_SIZE WHAT_HAPPENS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import neutral_core as nc
from torch_adapter import Loader, MapDataset

STEPS, FAULTY_RANK, FAULTY_STEP = 60, 1, 5
LEFT_OPEN: list[Loader] = []  # as a notebook's or a trainer's variables hold one


def main() -> None:
    corpus, meeting, rank, world_size, fault = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    patience = timedelta(seconds=40)
    dist.init_process_group("gloo", f"file://{meeting}", timeout=patience, rank=rank, world_size=world_size)
    plan = nc.Plan(nc.Source(nc.open_corpus(corpus, check="blocks")), seq_len=15, shuffle="none")
    try:
        if fault.startswith("worker"):
            train_through_workers(plan, fault)
        if fault == "not closed":
            next(Loader(plan, batch_size=2, device="cpu", threads=2))
            LEFT_OPEN.append(loader := Loader(plan, batch_size=2, device="cpu", threads=2))
            next(loader)
            raise ZeroDivisionError("nobody closes the loader")
        with Loader(plan, batch_size=2 * world_size, num_samples=2 * world_size * STEPS, device="cpu") as loader:
            loader.check_ranks()
            for step, batch in enumerate(loader):
                train(batch["tokens"])
                if rank == 0:
                    print(f"step {step}", flush=True)
                if step == FAULTY_STEP:
                    happen(fault, rank)
    finally:
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("millstream")]
        print(f"threads left: {left}", flush=True)
        dist.destroy_process_group()  # else gloo's own threads may abort the interpreter at its exit


def train(tokens: torch.Tensor) -> None:
    """What every step does: talk to the other ranks."""
    dist.all_reduce(tokens.double().mean())


def happen(fault: str, rank: int) -> None:
    if fault == "interrupt":
        print("waiting", flush=True)
        time.sleep(60)  # for the signal that the test sends; it ends the wait
    elif rank == FAULTY_RANK and fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rank == FAULTY_RANK and fault == "exception":
        raise ZeroDivisionError("the loss is no number")


def train_through_workers(plan: nc.Plan, fault: str) -> None:
    loader = torch.utils.data.DataLoader(
        MapDataset(plan, 4 * STEPS), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=30
    )
    batches = iter(loader)
    for step, batch in enumerate(batches):
        train(batch["tokens"])
        if step == FAULTY_STEP and fault == "worker killed":
            os.kill(batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        if step == FAULTY_STEP and fault == "workers' rank killed":
            os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit(0)


if __name__ == "__main__":
    main()
