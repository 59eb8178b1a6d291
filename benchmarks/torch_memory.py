"""Memory of many ranks on one host: what each further rank adds of its own, beside what its buffers hold.

    python benchmarks/torch_memory.py [--tokens N] [--ranks N …] [--workers N]

Ranks are forked from one process that has loaded torch, so that only what they add is counted: private memory (Private_Clean + Private_Dirty of
/proc/self/smaps_rollup) and anonymous memory (RssAnon), after as many steps as read the corpus once, less before. The corpus' pages are the system's
cache, shared by all, and shown apart (RssFile); one rank alone maps them privately. --workers adds torch's DataLoader with so many workers per rank over
the same plan; its workers' memory is added to its rank's (their anonymous pages are in part those of the process that they were forked from).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import neutral_core as nc
from torch_adapter import Loader, MapDataset

SEQ_LEN, ROWS = 2048, 8  # of a batch of one rank
CHUNK_ROWS, THREADS = 256, 1


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000, help="of the corpus, uint16")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--workers", type=int, default=0, help="of a DataLoader on each rank, beside; 0: leave it out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        write(Path(folder) / "corpus", options.tokens)
        # Chunks as stored, their indices, and batches at int64 that the loop holds.
        buffers = (THREADS + 2) * CHUNK_ROWS * (SEQ_LEN + 1) * 2 + 2 * ROWS * (SEQ_LEN + 1) * 8
        print(f"corpus {options.tokens * 2 / 1e6:,.0f} MB; buffers of a rank {buffers / 1e6:.1f} MB")
        print(f"| {'':22} | ranks | private, MB a rank | anonymous, MB a rank | file pages, MB a rank |")
        print(f"|{'-' * 24}|{'-' * 7}|{'-' * 20}|{'-' * 22}|{'-' * 23}|")
        for name, workers in [("Loader", None)] + ([("DataLoader", options.workers)] if options.workers else []):
            for ranks in options.ranks:
                most = np.max(of_ranks(Path(folder) / "corpus", ranks, workers), axis=0)
                print(f"| {name:22} | {ranks:5} | {most[0]:18.1f} | {most[1]:20.1f} | {most[2]:21.1f} |")


def of_ranks(corpus: Path, ranks: int, workers: int | None) -> list[Any]:
    """Return (private, anonymous, file pages), MB that each rank grew by, all of them being at work at once."""
    fork = get_context("fork")
    meet, told = fork.Barrier(ranks), fork.SimpleQueue()
    children = [fork.Process(target=be, args=(corpus, rank, ranks, workers, meet, told)) for rank in range(ranks)]
    for child in children:
        child.start()
    found = [told.get() for _ in children]
    for child in children:
        child.join()
    return found


def be(corpus: Path, rank: int, ranks: int, workers: int | None, meet: Any, told: Any) -> None:
    """Be a rank: read as many rows as the corpus has, among all ranks, and tell how much memory that took."""
    torch.set_num_threads(1)
    before = memory(os.getpid())
    plan = nc.Plan(nc.Source(nc.open_corpus(corpus)), seq_len=SEQ_LEN, seed=1)
    steps = int(plan.num_windows[0]) // (ROWS * ranks)
    batches = batches_of(plan, rank, ranks, workers)
    for _ in range(steps):
        next(batches)["tokens"].sum()
    meet.wait()  # all hold what they hold
    told.put((family() - before) / 1e6)
    meet.wait()


def batches_of(plan: nc.Plan, rank: int, ranks: int, workers: int | None) -> Iterator[Any]:
    """Return the batches of a rank, through our Loader or torch's."""
    if workers is None:
        return Loader(plan, batch_size=ROWS * ranks, dp_rank=rank, dp_world_size=ranks, device="cpu", threads=THREADS)
    dataset = MapDataset(plan, int(plan.num_windows[0]) * 2)
    rows = [[*range(at + rank * ROWS, at + (rank + 1) * ROWS)] for at in range(0, len(dataset), ROWS * ranks)]
    return iter(DataLoader(dataset, batch_sampler=rows[:-1], num_workers=workers, multiprocessing_context="fork"))


def family() -> Any:
    """Return the memory of this process and its children."""
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
    return sum([memory(int(number)) for number in children], memory(own))


def memory(process: int) -> Any:
    """Return (private, anonymous, file-backed) bytes of a process."""
    told = [line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]]
    held = {line[0]: int(line[1]) * 1024 for line in told}
    status = [line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines()]
    rss = {line[0]: int(line[1]) * 1024 for line in status if line and line[0].startswith("Rss")}
    return np.array([held["Private_Clean:"] + held["Private_Dirty:"], rss["RssAnon:"], rss["RssFile:"]], dtype=float)


def write(folder: Path, num_tokens: int) -> None:
    """Write a corpus of random ids."""
    random = np.random.default_rng(0)
    with nc.CorpusWriter(folder, vocab_size=50_000) as writer:
        for start in range(0, num_tokens, 1 << 20):
            writer.add(random.integers(0, 50_000, min(1 << 20, num_tokens - start), dtype=np.uint16))


if __name__ == "__main__":
    main()
