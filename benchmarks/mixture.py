"""The mixture beside two others: how far from weight · n a source ever is, and what a sample costs.

    python benchmarks/mixture.py [--samples N] [--sources N …]

Rules beside ours, re-stated here from what they are known to do:

* Megatron's, greedy: sample i goes to the source with the largest weight · max(i, 1) − served, the first of equals; all of it before the run.
  Where megatron-core is importable its own helper, in C++, is run as well and must agree sample for sample.
* Fast-LLM's, without an index: before sample n each source is taken to have served ⌊weight · n⌋; while these sum to m < n, one more goes to the
  source with the largest weight · (m + 1) − served; then sample n goes to the one with the largest weight · (n + 1) − served, as its number
  "served". The numbers found are not those that the samples before n left, so some come twice and some never. A sample costs the square of the
  sources: fewer samples are taken where there are many.

A deviation is served(n) − weight · n; least and most over all sources and all prefixes of the samples. It falls between two samples of a source and
jumps by 1 at each, so its extremes lie just before and just after a source's own samples, and at the end. Everything runs in one process, on one
thread; microseconds are of its CPU time, ours in blocks of 8,192 samples.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.order.mixture import Mixture, exact_weights

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
BLOCK = 8192  # samples of one call
WIDE = 1 << 20  # weights · samples in one array, at most
SAMPLES_OF_FAST_LLM = {100: 10**5, 1000: 10**4, 10_000: 10**3}  # by number of sources; of fewer sources, all


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10**6, help="of which all prefixes are looked at")
    parser.add_argument("--sources", type=int, nargs="*", default=[2, 3, 10, 100, 1000, 10_000])
    options = parser.parse_args()
    helper = _megatron_helper()
    if helper is None:
        print("left out: megatron-core's own helper (not importable)")
    _print_smallest_repeat()
    costs: dict[tuple[int, str], tuple[float, ...]] = {}
    print(
        "| sources | weights     | ours          | Megatron's    | Fast-LLM's             | in samples | come twice | never come |"
    )
    print(
        "|---------|-------------|---------------|---------------|------------------------|------------|------------|------------|"
    )
    for count in options.sources:
        for name, make in KINDS.items():
            weights = exact_weights(make(count))
            shares = np.array([float(Fraction(weight, sum(weights))) for weight in weights])
            costs[count, name] = _row(f"| {count:7,} | {name:11} |", weights, shares, options.samples, helper)
    _print_costs(costs)


def _row(
    title: str, weights: list[int], shares: Float64, samples: int, helper: Callable[..., Int64] | None
) -> tuple[float, ...]:
    """Print a row; return the microseconds of a sample: ours, whole locate, Megatron's in numpy and in C++, Fast-LLM's in numpy."""
    mixture = Mixture(weights)
    ours, split = _timed(lambda: _in_blocks(mixture.split, samples), samples)
    theirs, greedy_cost = _timed(lambda: greedy(shares, samples), samples)
    compiled = float("nan")
    if helper is not None:
        same, compiled = _timed(lambda: helper(shares, samples), samples)
        assert (same == theirs).all(), "the re-statement of Megatron's rule is not Megatron's"
    fewer = min(samples, SAMPLES_OF_FAST_LLM.get(len(shares), samples))
    (source, draw), stateless = _timed(lambda: fast_llm(shares, fewer), fewer)
    twice, never = repeats(source, draw)
    first, second, third = (_range(*deviation(each, shares)) for each in (ours, theirs, source))
    print(f"{title} {first:13} | {second:13} | {third:22} | {fewer:10,} | {twice:10,} | {never:10,} |", flush=True)
    plan = _plan(len(weights), weights)
    _, whole = _timed(lambda: _in_blocks(lambda k: (plan.locate(k).source,), samples), samples)
    return split, whole, greedy_cost, compiled, stateless


def deviation(sources: Int64, shares: Float64) -> tuple[float, float]:
    """Return the least and the greatest served(n) − share · n over all sources and prefixes; in float64, off by less than 10^-9."""
    n = np.arange(len(sources))
    order = np.argsort(sources, kind="stable")
    served = np.bincount(sources, minlength=len(shares))
    draws = np.empty_like(n)
    draws[order] = n - np.repeat(np.cumsum(served) - served, served)
    before = draws - shares[sources] * n
    after = draws + 1 - shares[sources] * (n + 1)
    at_end = served - shares * len(n)
    return min(before.min(), at_end.min()), max(after.max(), at_end.max())


def _range(least: float, most: float) -> str:
    return f"{least:+,.2f} … {most:+,.2f}"


def greedy(shares: Float64, samples: int) -> Int64:
    """Return the source of each sample by Megatron's rule."""
    served, lag = np.zeros(len(shares)), np.empty(len(shares))
    found = np.empty(samples, dtype=np.int64)
    for sample in range(samples):
        np.multiply(shares, max(sample, 1), out=lag)
        lag -= served
        source = lag.argmax()
        found[sample] = source
        served[source] += 1
    return found


def fast_llm(shares: Float64, samples: int) -> tuple[Int64, Int64]:
    """Return (source, draw) of each sample by Fast-LLM's rule, many samples at a time."""
    step = max(WIDE // len(shares), 1)
    parts = [_fast_llm(shares, np.arange(at, min(at + step, samples))) for at in range(0, samples, step)]
    source, draw = (np.concatenate(each) for each in zip(*parts, strict=True))
    return source, draw


def _fast_llm(shares: Float64, n: Int64) -> tuple[Int64, Int64]:
    served = np.floor(shares * n[:, None])
    total = served.sum(axis=1).astype(np.int64)
    rows = np.flatnonzero(total < n)
    while len(rows):
        source = (shares * (total[rows, None] + 1) - served[rows]).argmax(axis=1)
        served[rows, source] += 1
        total[rows] += 1
        rows = rows[total[rows] < n[rows]]
    source = (shares * (n[:, None] + 1) - served).argmax(axis=1)
    return source, served[np.arange(len(n)), source].astype(np.int64)


def repeats(source: Int64, draw: Int64) -> tuple[int, int]:
    """Return how many samples are draws that were served before, and how many draws below a source's last one never are."""
    width = int(draw.max()) + 1
    unique = np.unique(source * width + draw)
    last = np.full(int(source.max()) + 1, -1)
    np.maximum.at(last, source, draw)
    return len(source) - len(unique), int((last + 1).sum()) - len(unique)


def _print_smallest_repeat() -> None:
    source, draw = fast_llm(np.array([1, 1, 3, 5]) / 10, 10)
    pairs = ", ".join(f"{s}:{j}" for s, j in zip(source.tolist(), draw.tolist(), strict=True))
    print(f"Fast-LLM's rule, weights 1, 1, 3, 5, source:draw of the first ten samples: {pairs}\n")


def _print_costs(costs: dict[tuple[int, str], tuple[float, ...]]) -> None:
    print(
        "\n| µs a sample | weights     | ours: mixture | whole plan.locate | Megatron's, numpy | its C++ | Fast-LLM's, numpy |"
    )
    print(
        "|-------------|-------------|---------------|-------------------|-------------------|---------|-------------------|"
    )
    for (count, name), (split, whole, numpy_greedy, compiled, stateless) in costs.items():
        print(
            f"| {count:11,} | {name:11} | {split:13.2f} | {whole:17.2f} | {numpy_greedy:17.1f} | {compiled:7.2f} | {stateless:17.1f} |"
        )


def _in_blocks(function: Callable[[Int64], tuple[Int64, ...]], samples: int) -> Int64:
    """Return the first result over the samples, asked for in blocks."""
    return np.concatenate([function(np.arange(at, min(at + BLOCK, samples)))[0] for at in range(0, samples, BLOCK)])


def _timed(function: Callable[[], Any], samples: int) -> tuple[Any, float]:
    begin = time.process_time()
    result = function()
    return result, (time.process_time() - begin) / samples * 1e6


def _plan(count: int, weights: list[int]) -> nc.Plan:
    """Return a plan over sources of one document of 1,000 tokens each, in rows of 17."""
    corpus = nc.memory_corpus(list(np.zeros((count, 1000), dtype=np.uint8)))
    sources = [nc.Source(corpus, name=f"s{i}", weight=weights[i], documents=slice(i, i + 1)) for i in range(count)]
    return nc.Plan(sources, seq_len=16, seed=1)


def _megatron_helper() -> Callable[[Float64, int], Int64] | None:
    try:
        helpers: Any = importlib.import_module("megatron.core.datasets.helpers")
    except ImportError:
        return None

    def build(shares: Float64, samples: int) -> Int64:
        sources, draws = np.zeros(samples, dtype=np.int16), np.zeros(samples, dtype=np.int64)
        helpers.build_blending_indices(sources, draws, shares, len(shares), samples, False)
        return sources.astype(np.int64)

    return build


def _uniform(count: int) -> list[Any]:
    return [1] * count


def _zipf(count: int) -> list[Any]:
    return [1 / rank for rank in range(1, count + 1)]


def _dirichlet(count: int) -> list[Any]:
    return list(np.random.default_rng(count).dirichlet(np.ones(count)).tolist())


def _extreme(count: int) -> list[Any]:
    return ["1e-9" if source % 2 == 0 else "1" for source in range(count)]


def _heavy(count: int) -> list[Any]:
    return [99 * (count - 1)] + [1] * (count - 1)


KINDS: dict[str, Callable[[int], list[Any]]] = {
    "uniform": _uniform,
    "Zipf": _zipf,
    "Dirichlet": _dirichlet,
    "1e-9 and 1": _extreme,
    "99% in one": _heavy,
}

if __name__ == "__main__":
    main()
