"""Reading a warm corpus: rows per second through the whole Loader, order included, beside the floor that the machine sets.

    python benchmarks/read.py [--tokens N] [--rounds N] [--peers]

Floor: one np.take of random rows of a [n, 2049] uint16 map into a kept buffer, and one cast to a kept int32 buffer, in batches of 8. The other rows
are the same batches through Loader, cast by the caller into the same int32 buffer. One after another, round by round: figures are medians of rounds,
ratios are taken within a round (shared machines drift). --peers adds the readers of benchmarks/peers.py, each in a process of its own, which waits
while others are timed: their threads would slow everything else down.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from peers import PEERS

import neutral_core as nc

SEQ_LEN = 2048
BATCH = 8
ROUND = 4096  # rows
PER_DOCUMENT = 600  # tokens


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000, help="of the corpus, uint16")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", action="store_true", help="also time peers' readers that are installed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        cases = _cases(Path(folder), options.tokens)
        if options.peers:
            cases += _peers(Path(folder))
        times: dict[str, list[float]] = {name: [] for name, _ in cases}
        for _ in range(options.rounds):
            for name, serve in cases:
                begin = time.perf_counter()
                serve(ROUND // BATCH)
                times[name].append((time.perf_counter() - begin) / ROUND * 1e6)
        floor = times[cases[0][0]]
        print(
            f"| {'batches [8, 2049] uint16, widened to int32 by the caller':60} | µs/row | M tokens/s | of the floor |"
        )
        print(f"|{'-' * 62}|{'-' * 8}|{'-' * 12}|{'-' * 14}|")
        for name, row in times.items():
            ratio = statistics.median(a / b for a, b in zip(floor, row, strict=True))
            middle = statistics.median(row)
            print(f"| {name:60} | {middle:6.2f} | {SEQ_LEN / middle:10,.0f} | {ratio:12.2f} |")


def _cases(folder: Path, num_tokens: int) -> list[tuple[str, Callable[[int], None]]]:
    one = _corpus(folder / "one", num_tokens, num_shards=1)
    many = _corpus(folder / "many", num_tokens, num_shards=2000)
    step = many.num_documents // 1000
    sources = [
        nc.Source(one, name=f"s{i}", weight=1 + i % 7, documents=slice(i * step, (i + 1) * step)) for i in range(1000)
    ]
    cases = [("floor: np.take and cast", _floor(one))]
    for name, plan in (
        ("1 shard", nc.Plan(nc.Source(one), seq_len=SEQ_LEN, seed=1)),
        ("2,000 shards", nc.Plan(nc.Source(many), seq_len=SEQ_LEN, seed=1)),
        ("1,000 sources", nc.Plan(sources, seq_len=SEQ_LEN, seed=1)),
        ("1 shard, segment_ids and positions", nc.Plan(nc.Source(one), seq_len=SEQ_LEN, seed=1, documents=True)),
        ("1 shard, shuffle=blocks", nc.Plan(nc.Source(one), seq_len=SEQ_LEN, seed=1, shuffle="blocks")),
        ("1 shard, document_shuffle", nc.Plan(nc.Source(one), seq_len=SEQ_LEN, seed=1, document_shuffle=True)),
        ("2,000 shards, document_shuffle", nc.Plan(nc.Source(many), seq_len=SEQ_LEN, seed=1, document_shuffle=True)),
    ):
        for threads in (0, 1, 2) if plan.documents else (0, 1):
            loader = nc.Loader(plan, batch_size=BATCH, threads=threads)
            cases.append((f"Loader, {name}, threads={threads}", _through(loader)))
    return cases


def _peers(folder: Path) -> list[tuple[str, Callable[[int], None]]]:
    cases = []
    for number, name in enumerate(PEERS):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        context.Process(target=_be_peer, args=(theirs, folder, number), daemon=True).start()
        ready = ours.recv()
        if ready is not None:
            print(f"left out: {name} ({ready})")
            continue
        cases.append((name, _asked(ours)))
    return cases


def _asked(connection: Connection) -> Callable[[int], None]:
    def serve(count: int) -> None:
        connection.send(count)
        connection.recv()

    return serve


def _be_peer(connection: Connection, folder: Path, number: int) -> None:
    """Be a process of a peer's own: its threads and memory slow nobody else down."""
    corpus = nc.open_corpus(folder / "one")
    place = folder / f"peer-{number}"
    place.mkdir()
    try:
        batches = list(PEERS.values())[number](place, corpus.tokens(0, corpus.num_tokens), PER_DOCUMENT, SEQ_LEN, BATCH)
        _drain(batches)
    except ImportError as error:
        connection.send(str(error))
        return
    connection.send(None)
    while True:
        for _ in range(connection.recv()):
            next(batches)
        connection.send(None)


def _drain(batches: Iterator[object]) -> Callable[[int], None]:
    def serve(count: int) -> None:
        for _ in range(count):
            next(batches)

    serve(64)
    return serve


def _floor(corpus: nc.Corpus) -> Callable[[int], None]:
    tokens = corpus.tokens(0, corpus.num_tokens)
    rows = tokens[: len(tokens) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].reshape(-1, SEQ_LEN + 1)
    narrow, wide = np.empty((BATCH, SEQ_LEN + 1), np.uint16), np.empty((BATCH, SEQ_LEN + 1), np.int32)
    random = np.random.default_rng(0)

    def serve(batches: int) -> None:
        for chosen in random.integers(0, len(rows), (batches, BATCH)):
            np.take(rows, chosen, axis=0, out=narrow, mode="clip")
            np.copyto(wide, narrow)

    serve(64)
    return serve


def _through(loader: Iterator[dict[str, np.ndarray]]) -> Callable[[int], None]:
    wide = np.empty((BATCH, SEQ_LEN + 1), np.int32)

    def serve(batches: int) -> None:
        for _ in range(batches):
            np.copyto(wide, next(loader)["tokens"])

    serve(1024)  # opens the shards, fills what is read ahead
    return serve


def _corpus(path: Path, num_tokens: int, *, num_shards: int) -> nc.Corpus:
    """Write and open a corpus of documents of 600 tokens; every page is then in the cache."""
    random = np.random.default_rng(0)
    documents = num_tokens // PER_DOCUMENT // num_shards * num_shards
    with nc.CorpusWriter(path, vocab_size=50257, tokens_per_shard=documents // num_shards * PER_DOCUMENT) as writer:
        left = documents
        while left:
            count = min(left, 4096)
            tokens = random.integers(0, 50257, count * PER_DOCUMENT, dtype=np.uint16)
            writer.add_many(tokens, np.full(count, PER_DOCUMENT))
            left -= count
    corpus = nc.open_corpus(path)
    for shard in corpus.shards:
        shard.read(0, shard.num_tokens).max()  # warm: mapped and touched
    return corpus


if __name__ == "__main__":
    main()
