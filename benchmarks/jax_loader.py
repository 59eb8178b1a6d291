"""Rows per second to JAX arrays: our Loader beside grain's pipelines over the same plan, in one run.

    python benchmarks/jax_loader.py [--tokens N] [--rounds N] [--workers N]

Every case serves the plan's batches of 8 rows, tokens uint16[8, 2049] and source int32[8], as arrays on one device, complete before the next batch
is asked for: of the Loader as it travels, one packed array, which a step unpacks; or taken apart. Floor: np.take of random rows of a map, and one
device_put. In each round each case is made anew, so that no pipeline reads ahead while another is timed, serves batches for half a second and is
then timed for half a second, next to a quarter of a second of the floor; batches are taken as fast as they come. Figures are medians of rounds,
ratios are taken within a round. "as told" is ReadOptions(num_threads=0, prefetch_buffer_size=0). --workers adds grain with that many processes.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from read import BATCH, SEQ_LEN, _corpus

import neutral_core as nc
from jax_adapter import Batch, GrainSource, Loader, unpack

WARM_SECONDS = 0.5
SAMPLES = 1 << 30
Case = tuple[
    str, Callable[[], Any], Callable[[Any], Any]
]  # name, makes an iterable of batches, turns a batch into arrays


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="of the corpus, uint16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="also time grain with this many worker processes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        corpus = _corpus(Path(folder) / "one", options.tokens, num_shards=1)
        plan = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, seed=1)
        cases = [*_ours(plan), *_grains(plan, 0)]
        if options.workers:
            _parse_absl_flags()
            cases += _grains(plan, options.workers)
        print_table(_floor(corpus), cases, options.rounds)


def print_table(floor: Iterator[Any], cases: list[Case], rounds: int) -> None:
    """Time the cases round by round and print medians."""
    floors: list[float] = []
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in cases}
    for _ in range(rounds):
        for name, make, to_arrays in cases:
            floors.append(_micros_per_row(floor, 0.25))
            pipeline = make()
            iterator = iter(pipeline)
            times[name].append((floors[-1], _micros_per_row(map(to_arrays, iterator), 0.5)))
            for end in (iterator, pipeline):
                getattr(end, "close", lambda: None)()
            del pipeline, iterator, end
            gc.collect()
    title = "batches [8, 2049] uint16 as arrays on one device"
    print(f"| {title:66} | µs/row | rows/s | of the floor |\n|{'-' * 68}|{'-' * 8}|{'-' * 8}|{'-' * 14}|")
    _print_row("floor: np.take and device_put", statistics.median(floors), 1.0)
    for name, pairs in times.items():
        _print_row(name, statistics.median(took for _, took in pairs), statistics.median(f / took for f, took in pairs))


def _print_row(name: str, micros: float, ratio: float) -> None:
    print(f"| {name:66} | {micros:6.1f} | {1e6 / micros:6.0f} | {ratio:12.3f} |", flush=True)


def _micros_per_row(batches: Iterator[Any], seconds: float) -> float:
    next(batches)  # workers start
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < WARM_SECONDS:
        next(batches)
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        jax.block_until_ready(next(batches))  # type: ignore[no-untyped-call]  # JAX leaves it untyped
        count += 1
    return passed / count / BATCH * 1e6


def _floor(corpus: nc.Corpus) -> Iterator[Any]:
    tokens = corpus.tokens(0, corpus.num_tokens)
    rows = tokens[: len(tokens) // (SEQ_LEN + 1) * (SEQ_LEN + 1)].reshape(-1, SEQ_LEN + 1)
    random = np.random.default_rng(0)
    while True:
        yield jax.device_put(np.take(rows, random.integers(0, len(rows), BATCH), axis=0))


def _ours(plan: nc.Plan) -> list[Case]:
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    by_rows = NamedSharding(mesh, PartitionSpec("data"))  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    ahead = partial(Loader, plan, batch_size=BATCH, sharding=by_rows)
    return [
        ("jax_adapter.Loader", ahead, _as_it_is),
        ("jax_adapter.Loader, threads=0, depth=0", partial(ahead, threads=0, depth=0), _as_it_is),
        ("jax_adapter.Loader, taken apart: uint16 tokens, int32 source", ahead, _without_sample),
        ("jax_adapter.Loader, and unpack: int32 inputs and targets", ahead, partial(unpack, seq_len=SEQ_LEN)),
    ]


def _grains(plan: nc.Plan, workers: int) -> list[Case]:
    batches = GrainSource(plan, num_samples=SAMPLES, batch_size=BATCH)
    rows = GrainSource(plan, num_samples=SAMPLES)
    as_told = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    element = grain.MapDataset.source(batches)
    stacked = grain.MapDataset.source(rows).map(_without_sample).batch(BATCH)
    pipelines: dict[str, Callable[[], Any]] = {}
    if workers:
        processes = grain.MultiprocessingOptions(num_workers=workers)
        pipelines = {
            "MapDataset, batch elements, mp_prefetch": lambda: element.to_iter_dataset(as_told).mp_prefetch(processes),
            "MapDataset, rows.map.batch, mp_prefetch": lambda: stacked.to_iter_dataset(as_told).mp_prefetch(processes),
        }
    else:
        pipelines = {
            "MapDataset, batch elements, as told": lambda: element.to_iter_dataset(as_told),
            "MapDataset, batch elements, its defaults": element.to_iter_dataset,
            "MapDataset, rows.map.batch, as told": lambda: stacked.to_iter_dataset(as_told),
            "MapDataset, rows.map.batch, its defaults": stacked.to_iter_dataset,
        }
    in_batches = [grain.transforms.Batch(BATCH)]
    pipelines["DataLoader, batch elements, its defaults"] = lambda: _data_loader(batches, [], workers)
    pipelines["DataLoader, rows and Batch, its defaults"] = lambda: _data_loader(rows, in_batches, workers)
    suffix = f", {workers} workers" if workers else ""
    return [
        (f"grain.{name}{suffix}", make, lambda batch: jax.device_put(_without_sample(batch)))
        for name, make in pipelines.items()
    ]


def _data_loader(source: GrainSource, operations: list[Any], workers: int) -> Any:
    sampler = grain.samplers.SequentialSampler(num_records=len(source), shard_options=grain.sharding.NoSharding())
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=workers)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _without_sample(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: rows for key, rows in batch.items() if key != "sample"}


def _parse_absl_flags() -> None:
    """Grain's workers read flags that only absl's app.run parses."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()


if __name__ == "__main__":
    main()
