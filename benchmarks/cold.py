"""Rows from a cold page cache: the Loader as it is, without reading ahead, and under access="read", in one run.

    python benchmarks/cold.py [--gigabytes N] [--rows N] [--rounds N] [--folder DIR]

The corpus' pages are dropped before each case (posix_fadvise DONTNEED, no privilege needed); the table's figures are medians of rounds, with the
order continued, so no row is read twice. What the disk below caches itself cannot be dropped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import neutral_core as nc
from neutral_core.read_ahead import Pace

SEQ_LEN = 2048
BATCH = 8


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the corpus")
    parser.add_argument("--rows", type=int, default=1024, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="on the storage to be measured (default: the system's for temporary files)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-cold-", dir=options.folder) as folder:
        path = Path(folder) / "corpus"
        _write(path, int(options.gigabytes * 5e8))
        sample = 0
        times: dict[str, list[float]] = {}
        for _ in range(options.rounds):
            for name, access, threads, ahead in (
                ("map, the kernel's own guess", "map", 1, False),
                ("map, asked beforehand", "map", 1, True),
                ("map, asked beforehand, 4 threads", "map", 4, True),
                ("read", "read", 1, False),
                ("read, asked beforehand", "read", 1, True),
                ("read, 8 threads", "read", 8, False),
            ):
                _drop(path)
                seconds = _serve(path, access, threads, ahead, sample, options.rows)
                times.setdefault(name, []).append(seconds / options.rows * 1e6)
                sample += 2 * options.rows
        warm = [
            _serve(path, "map", 1, ahead, 0, options.rows) / options.rows * 1e6 for ahead in (False, False, True, True)
        ]
        print(f"| {'cold, rows of 2,049 uint16':34} | µs/row |")
        print(f"|{'-' * 36}|{'-' * 8}|")
        for name, found in times.items():
            print(f"| {name:34} | {statistics.median(found):6.1f} |")
        print(f"| {'warm, not asked':34} | {warm[1]:6.1f} |")
        print(f"| {'warm, asked if slow':34} | {warm[3]:6.1f} |")


def _serve(path: Path, access: str, threads: int, ahead: bool, sample: int, rows: int) -> float:
    """Return the seconds from opening the corpus to the last of the rows."""
    begin = time.perf_counter()
    plan = nc.Plan(nc.Source(nc.open_corpus(path, access=access)), seq_len=SEQ_LEN, seed=1)
    with nc.Loader(plan, batch_size=BATCH, threads=threads) as loader:
        loader._pace = Pace(SEQ_LEN * 2) if ahead else _Never()
        loader.seek(sample)
        for _ in range(rows // BATCH):
            next(loader)
        return time.perf_counter() - begin


class _Never(Pace):
    """Storage that is never found cold."""

    def __init__(self) -> None:
        super().__init__(0)
        self.cold = False

    def took(self, seconds: float, num_rows: int) -> None:
        """Learn nothing."""


def _write(path: Path, num_tokens: int) -> None:
    random = np.random.default_rng(0)
    with nc.CorpusWriter(path, vocab_size=50257, tokens_per_shard=1 << 28) as writer:
        for _ in range(-(-num_tokens // 600_000)):
            writer.add_many(random.integers(0, 50257, 600_000, dtype=np.uint16), np.full(1000, 600))


def _drop(path: Path) -> None:
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
