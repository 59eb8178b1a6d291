"""``millstream plan``: what a run over a plan will read, before it begins; from the order's closed forms, never by going through it.

Two counts of a source are kept apart. Where it *stands*: all its samples, skipped ones too, which decides when an epoch ends. What it *serves*:
those that are not skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.batch_sizes import BatchSizes
from prep.plan_needs import needs

Int64 = npt.NDArray[np.int64]

_SHOWN = 40  # sources in one table of the text


def num_samples_of(plan: nc.Plan, num_tokens: int) -> int:
    """Return where a run ends that serves ``num_tokens`` targets, the last row whole: ⌈num_tokens / seq_len⌉ samples that are not skipped."""
    places = -(-num_tokens // plan.seq_len)
    if places > plan.skips.num_places:
        raise ValueError(f"{num_tokens:,} tokens are more than the plan's samples hold.")
    return int(plan.skips.samples_at(np.array([places - 1]))[0]) + 1


def report(plan: nc.Plan, num_samples: int, *, batch_size: int | None = None, dp_world_size: int = 1) -> dict[str, Any]:
    """Return what samples 0 … num_samples − 1 of a plan are: plain data, see ``lines_of``.

    Args:
        plan: its corpora opened.
        num_samples: ≥ 1, the run ends before this sample, as ``Loader(num_samples=…)`` does.
        batch_size: rows of a global batch; None: nothing is said of steps.
        dp_world_size: ranks.

    Returns:
        ``refused`` is the sentence with which the loader will refuse the run (max_epochs), or None. Tokens are targets, seq_len a sample.

    Raises:
        ValueError: the ranks do not divide the batch size.

    Costs some microseconds a source, phase and skip; reads nothing of the corpora.
    """
    draws = plan.counts(num_samples)
    batches = None if batch_size is None else _batches(plan, num_samples, batch_size, dp_world_size)
    served = _served(plan, 0, num_samples)
    sources = _sources(plan, num_samples, draws, served, batches)
    return {
        "fingerprint": plan.fingerprint,
        "seq_len": plan.seq_len,
        "seed": plan.seed,
        "windows": plan.windows,
        "shuffle": plan.shuffle,
        "num_samples": num_samples,
        "samples": int(served.sum()),
        "samples_skipped": num_samples - int(served.sum()),
        "tokens": int(served.sum()) * plan.seq_len,
        "batches": batches,
        "phases": _phases(plan, num_samples),
        "phases_not_reached": sum(phase.sample >= num_samples for phase in plan.phases),
        "skips": [[start, min(stop, num_samples)] for start, stop in plan.skips.runs if start < num_samples],
        "sources": sources,
        "refused": _refused(plan, num_samples),
        **needs(plan, draws, 1 if batches is None else batches["rows_per_rank"]),
    }


def _batches(plan: nc.Plan, num_samples: int, batch_size: int, dp_world_size: int) -> dict[str, int]:
    BatchSizes(batch_size, dp_world_size, plan.skips.place_of)  # refuses as the loader does
    steps, left = divmod(plan.skips.place_of(num_samples), batch_size)
    return {
        "batch_size": batch_size,
        "dp_world_size": dp_world_size,
        "rows_per_rank": batch_size // dp_world_size,
        "steps": steps,
        "samples_left_over": left,
        "padding_rows": batch_size - left if left else 0,
    }


def _served(plan: nc.Plan, start: int, stop: int) -> Int64:
    """Return how many samples of each source from ``start`` to ``stop`` are not skipped: exact, from differences of counts."""
    served = plan.counts(stop) - plan.counts(start)
    for first, last in plan.skips.runs:
        low, high = max(first, start), min(last, stop)
        if low < high:
            served = served - (plan.counts(high) - plan.counts(low))
    return np.asarray(served)


def _phases(plan: nc.Plan, num_samples: int) -> list[dict[str, Any]]:
    edges = [*(phase.sample for phase in plan.phases if phase.sample < num_samples), num_samples]
    found = []
    for phase, (start, stop) in zip(plan.phases, pairwise(edges), strict=False):
        served, first, last = _served(plan, start, stop), plan.counts(start), plan.counts(stop)
        weights = list(phase.weights.values())
        total, all_served = sum(weights), int(served.sum())
        sources = [
            {
                "source": plan.names[source],
                "samples": int(served[source]),
                "tokens": int(served[source]) * plan.seq_len,
                "share_asked": weights[source] / total,
                "share_got": int(served[source]) / all_served if all_served else None,
                "epochs_start": int(first[source]) / int(plan.num_windows[source]),
                "epochs_end": int(last[source]) / int(plan.num_windows[source]),
            }
            for source in np.flatnonzero([weight > 0 for weight in weights]).tolist()
        ]
        found.append({"start": start, "stop": stop, "samples": all_served, "sources": sources})
    return found


def _sources(
    plan: nc.Plan, num_samples: int, draws: Int64, served: Int64, batches: dict[str, int] | None
) -> list[dict[str, Any]]:
    found = []
    for index, (name, source) in enumerate(zip(plan.names, plan.sources, strict=True)):
        windows = int(plan.num_windows[index])
        targets = windows * plan.seq_len
        most = plan.most_draws(index)
        found.append(
            {
                "source": name,
                "documents": source.documents[1] - source.documents[0],
                "tokens_in_corpus": source.num_tokens,
                "windows_per_epoch": windows,
                "tokens_left_out_per_epoch": source.num_tokens - targets,
                "tokens_padded_per_epoch": 0,  # concat windows are full
                "samples": int(served[index]),
                "samples_skipped": int(draws[index] - served[index]),
                "tokens": int(served[index]) * plan.seq_len,
                "epochs": int(draws[index]) / windows,
                "max_epochs": source.max_epochs,
                "max_epochs_reached": None if most is None else _place(plan, plan.sample_of_draw(index, most), batches),
                "first_repeat": _place(plan, plan.sample_of_draw(index, windows), batches)
                if draws[index] > windows
                else None,
            }
        )
    return found


def _place(plan: nc.Plan, sample: int | None, batches: dict[str, int] | None) -> dict[str, int | None] | None:
    """Return a sample with the step that serves it, or the next one where it is skipped; no step behind the last whole batch."""
    if sample is None:
        return None
    step = None if batches is None else plan.skips.place_of(sample) // batches["batch_size"]
    return {"sample": sample, "step": None if batches is None or step is None or step >= batches["steps"] else step}


def _refused(plan: nc.Plan, num_samples: int) -> str | None:
    try:
        plan.check_end(num_samples)
    except nc.ExhaustedError as error:
        return str(error)
    return None


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person; of many sources the largest, and what the others come to."""
    return [
        f"{counted(len(report['sources']), 'source')}, seq_len {report['seq_len']:,}, seed {report['seed']}, {report['windows']} windows, "
        f"shuffle {report['shuffle']}",
        f"  fingerprint {report['fingerprint']}",
        *(f"  {line}" for line in totals(report)),
        *(line for number, phase in enumerate(report["phases"]) for line in _phase_lines(number, phase)),
        "",
        *_table(SOURCE_COLUMNS, *largest(report["sources"], _SHOWN)),
        "",
        *(f"  {line}" for line in (*needs_lines(report), *(f"WARNING: {text}" for text in report["warnings"]))),
        *([f"  REFUSED: {report['refused']}"] if report["refused"] else []),
    ]


def totals(report: Mapping[str, Any]) -> list[str]:
    """Return lines on the run as a whole."""
    skipped = f", {report['samples_skipped']:,} skipped" if report["samples_skipped"] else ""
    lines = [
        f"samples 0 … {report['num_samples'] - 1:,}: {report['samples']:,} served{skipped}; {report['tokens']:,} tokens (targets)"
    ]
    if report["phases_not_reached"]:
        lines.append(f"not reached: {counted(report['phases_not_reached'], 'later phase')}")
    batches = report["batches"]
    if batches is None:
        return lines
    line = f"{counted(batches['steps'], 'step')} of {counted(batches['batch_size'], 'row')}"
    if batches["dp_world_size"] > 1:
        line += f", {batches['rows_per_rank']:,} on each of {batches['dp_world_size']:,} ranks"
    if batches["samples_left_over"]:
        line += (
            f"; {counted(batches['samples_left_over'], 'sample')} after the last whole batch: last='drop' leaves them out, last='pad' makes one more "
            f"step with {counted(batches['padding_rows'], 'padding row')}"
        )
    return [*lines, line]


def needs_lines(report: Mapping[str, Any]) -> list[str]:
    """Return lines on files and memory."""
    files, memory = report["files"], report["memory"]
    return [
        f"files: {counted(files['shards'], 'shard')}, about {files['shards_at_a_time']:,} touched in turn; at most {files['max_held']:,} are held open, "
        f"{counted(files['descriptors'], 'descriptor')} a process",
        f"memory: {size_of(memory['loader_bytes'])} a process for the loader's chunks (threads={memory['loader_threads']}); "
        f"{size_of(memory['page_cache_bytes'])} of page cache on a machine hold all that the run's sources read",
    ]


def _phase_lines(number: int, phase: Mapping[str, Any]) -> list[str]:
    head = f"phase {number + 1}, samples {phase['start']:,} … {phase['stop'] - 1:,}: {phase['samples']:,} served"
    return ["", f"  {head}", *_table(PHASE_COLUMNS, *largest(phase["sources"], _SHOWN))]


Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]

PHASE_COLUMNS: Columns = {
    "source": lambda entry: entry["source"],
    "samples": lambda entry: f"{entry['samples']:,}",
    "tokens": lambda entry: f"{entry['tokens']:,}",
    "asked": lambda entry: share_of(entry["share_asked"]),
    "got": lambda entry: share_of(entry["share_got"]),
    "epochs from": lambda entry: f"{entry['epochs_start']:,.3f}",
    "to": lambda entry: f"{entry['epochs_end']:,.3f}",
}
SOURCE_COLUMNS: Columns = {
    "source": lambda entry: entry["source"],
    "documents": lambda entry: f"{entry['documents']:,}",
    "tokens": lambda entry: f"{entry['tokens_in_corpus']:,}",
    "windows/epoch": lambda entry: f"{entry['windows_per_epoch']:,}",
    "left out/epoch": lambda entry: f"{entry['tokens_left_out_per_epoch']:,}",
    "padded": lambda entry: f"{entry['tokens_padded_per_epoch']:,}",
    "samples": lambda entry: f"{entry['samples']:,}",
    "served tokens": lambda entry: f"{entry['tokens']:,}",
    "epochs": lambda entry: f"{entry['epochs']:,.3f}",
    "max_epochs": lambda entry: (
        ""
        if entry["max_epochs"] is None
        else f"{entry['max_epochs']:g} (until {place_of(entry['max_epochs_reached'], 'the end')})"
    ),
    "first repeats": lambda entry: place_of(entry["first_repeat"], "not in this run"),
}


def largest(entries: Sequence[Mapping[str, Any]], count: int) -> tuple[list[Mapping[str, Any]], str]:
    """Return the entries, or the ``count`` with most samples where there are more, and a line on the rest."""
    if len(entries) <= count:
        return list(entries), ""
    ranked = sorted(entries, key=lambda entry: -entry["samples"])
    samples, tokens = (sum(entry[key] for entry in ranked[count:]) for key in ("samples", "tokens"))
    rest = f"… and {len(entries) - count:,} more sources: {samples:,} samples, {tokens:,} tokens (--json names all)"
    return ranked[:count], rest


def place_of(place: Mapping[str, int | None] | None, otherwise: str) -> str:
    """Return a sample and its step as text."""
    if place is None:
        return otherwise
    return f"sample {place['sample']:,}" + ("" if place["step"] is None else f", step {place['step']:,}")


def share_of(share: float | None) -> str:
    """Return a share as text; small ones keep their figures."""
    if share is None:
        return "-"
    return f"{share:.2%}" if share >= 0.001 or share == 0 else f"{100 * share:.2g}%"


def size_of(num_bytes: int) -> str:
    """Return bytes as text with three figures."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes} bytes"


def cells(columns: Columns, entries: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a table as text, its head first; a column that is empty throughout is left out."""
    rows = [[cell(entry) for cell in columns.values()] for entry in entries]
    filled = [number for number in range(len(columns)) if any(row[number] for row in rows) or not number]
    return [[line[number] for number in filled] for line in ([*columns], *rows)]


def _table(columns: Columns, entries: Sequence[Mapping[str, Any]], rest: str) -> list[str]:
    table = cells(columns, entries)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "    " + "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in table
    ]
    return [*lines, *([f"    {rest}"] if rest else [])]


def counted(count: int, noun: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
