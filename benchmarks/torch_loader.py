"""Rows per second to int64 tensors: our Loader beside torch's DataLoader over the same plan, in one run.

    python benchmarks/torch_loader.py [--tokens N] [--rounds N] [--seconds N]

Every case serves batches of 8 rows, tokens int64[8, 2049], on the CPU. Floor: np.take of random rows of a map, one cast, torch.from_numpy. In each
round each case is made anew, so that nothing reads ahead while another is timed; it serves batches for a while (its start, and what it reads ahead,
are not counted) and is then timed next to a stretch of the floor. Figures are medians of rounds, ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from read import BATCH, SEQ_LEN, _corpus
from torch.utils.data import DataLoader

import neutral_core as nc
from torch_adapter import Loader, MapDataset

SAMPLES = 1 << 24
Case = tuple[str, Callable[[], Any]]  # name, makes an iterable of batches


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="of the corpus, uint16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="that a case is timed in each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        corpus = _corpus(Path(folder) / "one", options.tokens, num_shards=1)
        print_table(_floor(corpus), _cases(corpus), options.rounds, options.seconds)


def print_table(floor: Iterator[Any], cases: list[Case], rounds: int, seconds: float) -> None:
    """Time the cases round by round and print medians."""
    floors: list[float] = []
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in cases}
    for _ in range(rounds):
        for name, make in cases:
            floors.append(_micros_per_row(floor, seconds))
            served = make()
            batches = iter(served)
            times[name].append((floors[-1], _micros_per_row(batches, seconds)))
            getattr(served, "close", lambda: None)()
            del served, batches  # ends the workers
            gc.collect()
    print(f"| {'batches [8, 2049] to int64 tensors on the CPU':50} | µs/row | rows/s    | of the floor |")
    print(f"|{'-' * 52}|{'-' * 8}|{'-' * 11}|{'-' * 14}|")
    _print_row("floor: np.take, a cast, torch.from_numpy", [(micros, micros) for micros in floors])
    for name, pairs in times.items():
        _print_row(name, pairs)


def _print_row(name: str, pairs: list[tuple[float, float]]) -> None:
    middle = statistics.median(micros for _, micros in pairs)
    ratio = statistics.median(floor / micros for floor, micros in pairs)
    print(f"| {name:50} | {middle:6.2f} | {1e6 / middle:9,.0f} | {ratio:12.2f} |")


def _micros_per_row(batches: Iterator[Any], seconds: float) -> float:
    """Serve for as long as it is then timed."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        next(batches)
    count, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        next(batches)
        count += 1
    return passed / count / BATCH * 1e6


def _floor(corpus: nc.Corpus) -> Iterator[torch.Tensor]:
    tokens = corpus.tokens(0, corpus.num_tokens)
    rows = tokens[: len(tokens) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].reshape(-1, SEQ_LEN + 1)
    random = np.random.default_rng(0)
    while True:
        yield torch.from_numpy(np.take(rows, random.integers(0, len(rows), BATCH), axis=0).astype(np.int64))


def _cases(corpus: nc.Corpus) -> list[Case]:
    plan = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, seed=1)
    marked = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, seed=1, documents=True)
    cases: list[Case] = []
    for suffix, served in ("", plan), (", segment_ids and positions", marked):
        ours = partial(Loader, served, batch_size=BATCH, device="cpu")
        cases.append((f"Loader{suffix}", ours))
        cases.append((f"Loader, threads=0{suffix}", partial(ours, threads=0)))
    for workers in 0, 2:
        name = f"MapDataset, DataLoader({workers} workers)"
        cases.append((name, partial(DataLoader, MapDataset(plan, SAMPLES), batch_size=BATCH, num_workers=workers)))
    return cases


if __name__ == "__main__":
    main()
