"""How random the order is: serial correlation and neighbourhood of windows, documents and sources, beside numpy's own permutations.

    python benchmarks/shuffle_quality.py [--documents N] [--picture FILE]

One epoch of a corpus of documents of 40 to 2,000 tokens in rows of 1,024 targets, once for each shuffle. "Ideal" is numpy's permutation of the same
windows (of the same sources: independent draws). Figures are means of five seeds, of one where documents are shuffled. Pairs are of rows in one batch of
512; a chunk is 2^21 tokens of the file, whatever the shuffle's own are. Everything is read off the public order (``plan.locate`` and ``plan.pieces``); no
token is looked at.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
SEQ_LEN, BATCH, LAGS, SEEDS = 1024, 512, 64, 5
CHUNK = 1 << 21  # tokens
NEAR = 100  # documents
SHUFFLES: dict[str, dict[str, Any]] = {
    "none": {"shuffle": "none"},
    "blocks, 1 chunk of 64": {"shuffle": "blocks", "chunk_windows": 64, "group_chunks": 1},
    "blocks, 16 chunks of 64": {"shuffle": "blocks", "chunk_windows": 64, "group_chunks": 16},
    "blocks, 64 chunks of 2,048 (default)": {"shuffle": "blocks"},
    "global": {"shuffle": "global"},
}
SHARES = np.array([0.3, 0.25, 0.2, 0.1, 0.08, 0.04, 0.02, 0.01])  # of eight sources
Curves = dict[str, Float64]
COLUMNS = (
    "one epoch of rows",
    "windows: serial correlation, lag 1",
    "worst of lags 1 … 64",
    "first documents: worst of lags 1 … 64",
    "chi² of the orders of 4 rows",
    "pairs of a batch in one chunk",
    "within 100 documents",
    "a window and the next of the stream: median distance, in epochs",
    "in one batch",
    "two epochs: correlation",
)


def main() -> None:
    """Print three tables and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--picture", type=Path, help="an SVG file to write")
    options = parser.parse_args()
    lengths = np.random.default_rng(0).integers(40, 2001, options.documents)
    corpus = nc.memory_corpus(np.split(np.zeros(lengths.sum(), np.uint8), np.cumsum(lengths)[:-1]), vocab_size=256)
    edges = corpus.document_offsets(0, corpus.num_documents)
    places, curves = _print_rows(corpus, edges)
    _print_documents(corpus, edges)
    mixed = _print_sources(corpus)
    if options.picture:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        options.picture.write_text(picture(places, curves, *mixed), encoding="utf-8")


# ---------------------------------------------------------------- rows


def _print_rows(corpus: nc.Corpus, edges: Int64) -> tuple[dict[str, Int64], Curves]:
    """Print the table of rows; return the windows of the first rows of each shuffle, and the serial correlations by lag."""
    places: dict[str, Int64] = {}
    curves: Curves = {}
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for name, options in SHUFFLES.items():
        found = []
        for seed in range(1, SEEDS + 1):
            plan = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, seed=seed, **options)
            window, start, document = served(plan, edges)
            row, curve = measures(window, start, document, following(plan))
            found.append(row)
            places.setdefault(name, window[: 4 * BATCH])
            curves.setdefault(name, curve)
        _print_row(name, found)
        plan = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, seed=1, document_shuffle=True, **options)
        _print_row(f"{name}; document_shuffle", [measures(*served(plan, edges), following(plan))[0]])
    found = []
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        window, then = random.permutation(len(window)), random.permutation(len(window))
        document = np.searchsorted(edges, window * SEQ_LEN, side="right") - 1
        row, curve = measures(window, window * SEQ_LEN, document, then * SEQ_LEN)
        found.append(row)
        places.setdefault("ideal", window[: 4 * BATCH])
        curves.setdefault("ideal", curve)
    _print_row("ideal", found)
    return places, curves


def _print_row(name: str, found: Sequence[Sequence[float]]) -> None:
    """Print the mean of what the seeds gave, and a second row with their standard deviation where there are several."""
    shapes = ("+.4f", ".4f", ".4f", ",.0f", ".3%", ".3%", ".3f", ".2%", "+.4f")
    rows = [(name, np.mean(found, axis=0))]
    if len(found) > 1 and name in ("global", "ideal"):
        rows.append(("± standard deviation", np.std(found, axis=0, ddof=1)))
    for title, row in rows:
        shown = (format(value, shape) for value, shape in zip(row, shapes, strict=True))
        print(f"| {title:54} | {' | '.join(shown)} |", flush=True)


def served(plan: nc.Plan, edges: Int64) -> tuple[Int64, Int64, Int64]:
    """Return for each sample of epoch 0 its window, its first token's place in the stream and its first document."""
    count = int(plan.num_windows[0])
    located = plan.locate(np.arange(count))
    pieces = plan.pieces(located)
    first = pieces.column == 0
    document = np.empty(count, dtype=np.int64)
    document[pieces.row[first]] = np.searchsorted(edges, pieces.start[first], side="right") - 1
    return located.window, located.start, document


def following(plan: nc.Plan) -> Int64:
    """Return where in the stream the samples of epoch 1 begin."""
    count = int(plan.num_windows[0])
    return plan.locate(np.arange(count, 2 * count)).start


def measures(window: Int64, start: Int64, document: Int64, then: Int64) -> tuple[list[float], Float64]:
    """Return the figures of one row of the table, and the serial correlation of windows by lag.

    Args:
        window, start, document: of each sample of an epoch. then: starts of the next epoch's samples.
    """
    curve, documents = serial(window), serial(document)
    position = np.argsort(window)
    distance = np.abs(np.diff(position))  # between a window and the next in the stream
    found = [
        curve[0], np.abs(curve).max(), np.abs(documents).max(), ordinal_chi2(window),
        pairs_in_batches(start // CHUNK, 0), pairs_in_batches(document, NEAR),
        float(np.median(distance)) / len(window), float(np.mean(position[1:] // BATCH == position[:-1] // BATCH)),
        _of_two_epochs(start, then),
    ]  # fmt: skip
    return found, curve


def serial(values: Int64) -> Float64:
    """Return the correlation of a series with itself at lags 1 … 64; of a random permutation it is 0 ± 1/√n."""
    x = values - values.mean()
    return np.array([np.dot(x[:-lag], x[lag:]) / np.dot(x, x) for lag in range(1, LAGS + 1)])


def ordinal_chi2(values: Int64) -> float:
    """Return chi² over the 24 orders that four values in a row may have; 23 degrees of freedom: 23 ± 6.8 if all are as likely."""
    order = np.argsort(values[: len(values) // 4 * 4].reshape(-1, 4), axis=1) @ np.array([64, 16, 4, 1])
    counts = np.zeros(24)
    _, some = np.unique(order, return_counts=True)
    counts[: len(some)] = some
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean())


def pairs_in_batches(values: Int64, near: int) -> float:
    """Return which share of the pairs of rows in one batch differ by ``near`` at most."""
    whole = np.sort(values[: len(values) // BATCH * BATCH].reshape(-1, BATCH), axis=1)
    line = (whole + np.arange(len(whole))[:, None] * (int(values.max()) + near + 1)).ravel()
    close = np.searchsorted(line, line + near, side="right") - np.arange(len(line)) - 1
    return float(close.sum()) / (len(whole) * BATCH * (BATCH - 1) / 2)


def _of_two_epochs(start: Int64, then: Int64) -> float:
    """Return the correlation of when a place in the stream comes in two epochs."""
    order = np.argsort(then)
    there = order[np.searchsorted(then[order], start, side="right") - 1]  # −1: before the first cut, in the last window
    return float(np.corrcoef(np.arange(len(start)), there)[0, 1])


# ---------------------------------------------------------------- documents


def _print_documents(corpus: nc.Corpus, edges: Int64) -> None:
    """Print how often documents that follow one another still do after an epoch."""
    count = len(edges) - 1
    plan = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, seed=1, shuffle="none", document_shuffle=True)
    streams = [np.arange(count), *(_documents_of(plan, edges, epoch) for epoch in range(3))]
    random = np.random.default_rng(0)
    runs = [np.arange(at, min(at + 128, count)) for at in range(0, count, 128)]
    within = [np.concatenate([random.permutation(run) for run in runs]) for _ in range(SEEDS + 1)]
    full = [random.permutation(count) for _ in range(SEEDS + 1)]
    print("\n| documents that follow one another still do | share     | either way | at most 128 apart |")
    print("|---|---|---|---|")
    _print_kept("document_shuffle: file and epoch 0", [streams[:2]])
    _print_kept("document_shuffle: epochs 0 and 1, 1 and 2", list(pairwise(streams[1:])))
    _print_kept("ideal within runs of 128: of two shuffles", list(pairwise(within)))
    _print_kept("ideal over all documents: of two shuffles", list(pairwise(full)))


def _print_kept(name: str, pairs: Sequence[Sequence[Int64]]) -> None:
    rows = []
    for one, other in pairs:
        slot = np.empty(len(other), dtype=np.int64)
        slot[other] = np.arange(len(other))
        step = np.diff(slot[one])
        rows.append([np.mean(step == 1), np.mean(np.abs(step) == 1), np.mean(np.abs(step) <= 128)])
    print(f"| {name:42} | {' | '.join(f'{value:9.4%}' for value in np.mean(rows, axis=0))} |")


def _documents_of(plan: nc.Plan, edges: Int64, epoch: int) -> Int64:
    """Return the documents in the order of an epoch's stream; the last ones, in no window, are put at the end."""
    count = int(plan.num_windows[0])
    pieces = plan.pieces(plan.locate(np.arange(epoch * count, (epoch + 1) * count)))
    order = np.lexsort((pieces.column, pieces.row))
    document = np.searchsorted(edges, pieces.start[order], side="right") - 1
    _, first = np.unique(document, return_index=True)
    seen = document[np.sort(first)]
    return np.concatenate([seen, np.setdiff1d(np.arange(len(edges) - 1), seen)])


# ---------------------------------------------------------------- sources


def _print_sources(corpus: nc.Corpus) -> tuple[Curves, Curves]:
    """Print the table of sources; return by lag how often two rows have the same source, and the deviations of batches' counts."""
    step = corpus.num_documents // len(SHARES)
    sources = [
        nc.Source(corpus, name=f"s{i}", weight=repr(float(share)), documents=slice(i * step, (i + 1) * step))
        for i, share in enumerate(SHARES)
    ]
    plan = nc.Plan(sources, seq_len=SEQ_LEN, seed=1)
    count = 2000 * BATCH
    drawn = [np.random.default_rng(seed).choice(len(SHARES), count, p=SHARES) for seed in range(SEEDS)]
    curves: Curves = {}
    spreads: Curves = {}
    print(f"\n| sources of {count:,} rows, weights {' '.join(f'{share:g}' for share in SHARES)} | the next row's is the same | "
          "most and least of 64 lags | a batch's count, root mean square in multinomial deviations | largest error in a batch, rows |")  # fmt: skip
    print("|---|---|---|---|---|")
    rows = []
    for name, source in [("ours", plan.locate(np.arange(count)).source), *(("ideal", each) for each in drawn)]:
        same = np.array([np.mean(source[:-lag] == source[lag:]) for lag in range(1, LAGS + 1)])
        counts = np.stack([np.bincount(batch, minlength=len(SHARES)) for batch in source.reshape(-1, BATCH)])
        error = counts - SHARES * BATCH
        spread = error / np.sqrt(BATCH * SHARES * (1 - SHARES))
        rows.append([same[0], same.max(), same.min(), np.sqrt(np.mean(spread**2)), np.abs(error).max()])
        curves[name], spreads[name] = same, spread.ravel()
    for name, row in (
        ("ours", rows[0]),
        ("ideal", np.mean(rows[1:], axis=0)),
        ("± its standard deviation", np.std(rows[1:], axis=0, ddof=1)),
    ):
        print(f"| {name:24} | {row[0]:.4f} | {row[1]:.4f}, {row[2]:.4f} | {row[3]:.3f} | {row[4]:.2f} |")
    print(f"Of independent draws two rows have the same source with probability {np.sum(SHARES**2):.4f}.")
    return curves, spreads


# ---------------------------------------------------------------- picture

INK, GRID, PAPER = "#2b2b2b", "#d9d9d9", "#ffffff"
COLOURS = ("#8c8c8c", "#d9822b", "#a0529f", "#2f6fb7", "#1a8f5a", "#2b2b2b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A chart's place in the picture and the values at its lower and upper edge; across it runs from 0 to 1."""

    x: float
    y: float
    width: float
    height: float
    low: float = 0.0
    high: float = 1.0

    def points(self, across: Float64, values: npt.NDArray[Any]) -> list[tuple[float, float]]:
        """Return where values stand in the picture."""
        up = (values - self.low) / (self.high - self.low)
        return list(zip(self.x + self.width * across, self.y + self.height * (1 - up), strict=True))


def picture(places: dict[str, Int64], curves: Curves, same: Curves, spreads: Curves) -> str:
    """Return the picture as SVG: where the first rows come from, serial correlation by lag, and sources."""
    last = max(int(window.max()) for window in places.values())
    lags = np.arange(1, LAGS + 1) / LAGS
    band = 2 / np.sqrt(last + 1)
    parts = [_text(20, 24, "Where the first 2,048 rows (across) lie in the corpus (upwards); every second row", 14)]
    for number, ((name, window), colour) in enumerate(zip(places.items(), COLOURS, strict=True)):
        frame = Frame(x=20 + 163 * number, y=44, width=148, height=148, high=last)
        parts += _axes(frame, name.replace(" (default)", ""))
        parts.append(_dots(frame.points(np.linspace(0, 1, len(window))[::2], window[::2]), colour))
    parts.append(_text(20, 232, "Serial correlation of windows by lag, 1 … 64 rows", 14))
    most = max(curve.max() for curve in curves.values() if curve.max() < 0.05)
    wide = Frame(x=60, y=256, width=420, height=200, low=-0.1)
    close = Frame(x=550, y=256, width=420, height=200, low=-2 * band, high=1.2 * most)
    parts += [*_axes(wide, "all", 0, 0.5, 1), _band(close, -band, band)]
    parts += _axes(close, "close up; grey: ± 2/√windows, for random permutations", -band, 0, band, 2 * band)
    for number, ((name, curve), colour) in enumerate(zip(curves.items(), COLOURS, strict=True)):
        parts += [_line(frame.points(lags, curve), colour) for frame in (wide, close) if curve.max() <= frame.high]
        parts.append(_text(60 + (0, 50, 200, 360, 590, 650)[number], 478, name, 12, colour))
    parts.append(
        _text(20, 514, "A mixture of eight sources: ours (green) is more even than chance (black), and periodic", 14)
    )
    left = Frame(x=60, y=538, width=420, height=220)
    right = Frame(x=550, y=538, width=420, height=220)
    parts += _axes(left, "two rows 1 … 64 apart have the same source: share", 0, 0.5, 1)
    parts += _axes(right, "a source's rows in a batch of 512, in multinomial deviations: share of batches", 0, 0.5, 1)
    for name, colour in (("ours", COLOURS[4]), ("ideal", COLOURS[5])):
        heights, _ = np.histogram(spreads[name], bins=np.arange(-4.125, 4.2, 0.25))
        parts.append(_line(left.points(lags, same[name]), colour))
        parts.append(_line(right.points(np.linspace(0, 1, len(heights)), heights / len(spreads[name])), colour))
    parts += [
        _text(right.x + right.width * (at + 4) / 8 - 5, 774, f"{at:+d}" if at else "0", 11) for at in range(-4, 5)
    ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 800" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="1000" height="800" fill="{PAPER}"/>', *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, size: int, colour: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _axes(frame: Frame, title: str, *ticks: float) -> list[str]:
    x, y, width, height = frame.x, frame.y, frame.width, frame.height
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="{GRID}"/>']
    for tick, (_, at) in zip(ticks, frame.points(np.zeros(len(ticks)), np.array(ticks)), strict=True):
        parts.append(f'<path d="M{x} {at:.1f}h{width}" stroke="{GRID}"/>')
        parts.append(_text(x - 5, at + 4, f"{tick:.2g}", 11, anchor="end"))
    return [*parts, _text(x, y - 5, title, 11)]


def _line(points: list[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _dots(points: list[tuple[float, float]], colour: str) -> str:
    moves = "".join(f"M{x:.0f} {y:.0f}h0" for x, y in points)
    return f'<path d="{moves}" stroke="{colour}" stroke-width="2" stroke-linecap="round"/>'


def _band(frame: Frame, low: float, high: float) -> str:
    (x, lower), (_, upper) = frame.points(np.zeros(2), np.array([low, high]))
    return f'<rect x="{x}" y="{upper:.1f}" width="{frame.width}" height="{lower - upper:.1f}" fill="{GRID}" opacity="0.6"/>'


if __name__ == "__main__":
    main()
