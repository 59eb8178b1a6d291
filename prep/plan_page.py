"""The page of ``millstream plan --plot``: which source is served when, as one self-contained HTML file with inline SVG; no script, no network.

Height is a source's share of the samples, from left to right goes the run; small sources are folded into one band. A dashed line says where a
source's second epoch begins, hatching which samples are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from prep.page import COLOURS, html, rounded, short, table
from prep.plan_report import (
    PHASE_COLUMNS,
    SOURCE_COLUMNS,
    Columns,
    cells,
    largest,
    needs_lines,
    place_of,
    share_of,
    totals,
)

_BANDS = 10  # sources drawn apart from each other
_ROWS = 1000  # of a table
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 1120, 320, 56, 240, 56
_PLOT = _WIDTH - _LEFT - _RIGHT
_LANE = 16  # a row of labels above the plot
_OTHER = "#c9c9c9"


def page(report: Mapping[str, Any], title: str) -> str:
    """Return a report (see ``plan_report.report``) as an HTML page with a plot."""
    phases = "".join(
        f"<details><summary>phase {number + 1}, samples {phase['start']:,} … {phase['stop'] - 1:,}</summary>"
        f"{_table(PHASE_COLUMNS, phase['sources'])}</details>"
        for number, phase in enumerate(report["phases"][:_ROWS])
    )
    parts = [
        f"<h1>{escape(title)}</h1>",
        *([f'<p class="refused">Refused: {escape(report["refused"])}</p>'] if report["refused"] else []),
        *(f'<p class="warning">{escape(text)}</p>' for text in report["warnings"]),
        f"<p>{'<br>'.join(escape(line) for line in totals(report))}</p>",
        plot(report),
        f"<h2>Sources</h2>{_table(SOURCE_COLUMNS, report['sources'])}",
        f"<h2>Phases</h2>{phases}",
        f"<h2>Files and memory</h2><p>{'<br>'.join(escape(line) for line in needs_lines(report))}</p>",
        f"<p>Plan <code>{escape(report['fingerprint'])}</code>, {escape(report['windows'])} windows, shuffle {escape(report['shuffle'])}, "
        f"seed {report['seed']}.</p>",
    ]
    return html(title, parts)


def plot(report: Mapping[str, Any]) -> str:
    """Return the plot as an SVG element."""
    bands = _bands(report)
    repeats = [(name, place["sample"]) for name, place in _repeats(report) if name in bands]
    labels = _labels(repeats, report["num_samples"])
    top = 28 + _LANE * (1 + max((label.lane for label in labels), default=-1))
    marks = [
        _area(report, bands, top),
        *(_skip(start, stop, report["num_samples"], top) for start, stop in report["skips"]),
        *(_phase(number, phase, report["num_samples"], top) for number, phase in enumerate(report["phases"])),
        *(_repeat(label, bands, report, top) for label in labels),
        *(_repeat_label(label, top) for label in labels),
        _axes(report, top),
        _legend(report, bands, top),
    ]
    height = top + _HEIGHT + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        'aria-label="share of each source over the samples of the run">'
        '<defs><pattern id="skip" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#fff" fill-opacity="0.7"/><rect width="2" height="6" fill="#555"/></pattern></defs>'
        + "\n".join(marks)
        + "</svg>"
    )


def _bands(report: Mapping[str, Any]) -> dict[str, str]:
    """Return source → colour of those that are drawn apart, the largest first; one more is drawn than folded alone."""
    served = [entry for entry in report["sources"] if entry["samples"]]
    most = _BANDS if len(served) > _BANDS + 1 else _BANDS + 1
    ranked = sorted(served, key=lambda entry: -entry["samples"])[:most]
    colours = (*COLOURS, _OTHER)
    return {entry["source"]: colours[number] for number, entry in enumerate(ranked)}


def _repeats(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(entry["source"], entry["first_repeat"]) for entry in report["sources"] if entry["first_repeat"]]


def _x(sample: float, num_samples: int) -> float:
    return _LEFT + _PLOT * sample / num_samples


def _stack(phase: Mapping[str, Any], bands: Mapping[str, str]) -> list[tuple[str | None, float, float]]:
    """Return (source or None for the others, lower edge, share) of the bands in a phase, from below."""
    shares = {entry["source"]: entry["share_got"] or 0.0 for entry in phase["sources"]}
    found: list[tuple[str | None, float, float]] = []
    edge = 0.0
    for name in bands:
        found.append((name, edge, shares.pop(name, 0.0)))
        edge += found[-1][2]
    return [*found, (None, edge, sum(shares.values()))]


def _area(report: Mapping[str, Any], bands: Mapping[str, str], top: int) -> str:
    rects = []
    for number, phase in enumerate(report["phases"]):
        left, right = _x(phase["start"], report["num_samples"]), _x(phase["stop"], report["num_samples"])
        for name, edge, share in _stack(phase, bands):
            if share:
                said = "other sources" if name is None else name
                rects.append(
                    f'<rect x="{left:.2f}" y="{top + _HEIGHT * (1 - edge - share):.2f}" width="{right - left:.2f}" height="{_HEIGHT * share:.2f}" '
                    f'fill="{_OTHER if name is None else bands[name]}"><title>{escape(said)}: {share_of(share)} of phase {number + 1}</title></rect>'
                )
    return "".join(rects)


def _skip(start: int, stop: int, num_samples: int, top: int) -> str:
    left = _x(start, num_samples)
    width = max(_x(stop, num_samples) - left, 1.5)
    return (
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{_HEIGHT}" fill="url(#skip)"><title>skipped: samples {start:,} … {stop - 1:,}'
        "</title></rect>"
    )


def _phase(number: int, phase: Mapping[str, Any], num_samples: int, top: int) -> str:
    left, right = _x(phase["start"], num_samples), _x(phase["stop"], num_samples)
    line = (
        f'<line x1="{left:.2f}" x2="{left:.2f}" y1="{top - 6}" y2="{top + _HEIGHT}" stroke="#222"/>' if number else ""
    )
    wide = right - left > 60
    return line + (
        f'<text x="{(left + right) / 2:.2f}" y="14" text-anchor="middle" font-weight="600">phase {number + 1}</text>'
        if wide
        else ""
    )


class Label(NamedTuple):
    """Where a source begins to repeat: x of the line, x at which its text begins, the row of labels that it stands in."""

    source: str
    sample: int
    x: float
    begin: float
    lane: int


def _labels(repeats: Sequence[tuple[str, int]], num_samples: int) -> list[Label]:
    """Return labels of which no two in a lane overlap, from left to right."""
    ends: list[float] = []
    found = []
    for name, sample in sorted(repeats, key=lambda each: each[1]):
        x = _x(sample, num_samples)
        width = 7.0 * len(_repeat_text(name)) + 12
        begin = min(x + 4, _WIDTH - width)
        lane = next((lane for lane, end in enumerate(ends) if end <= begin), len(ends))
        ends[lane : lane + 1] = [begin + width]
        found.append(Label(name, sample, x, begin, lane))
    return found


def _repeat_text(name: str) -> str:
    return f"{short(name)} repeats"


def _repeat(label: Label, bands: Mapping[str, str], report: Mapping[str, Any], top: int) -> str:
    """Return the line at which a source begins to repeat, and a dot in its band."""
    phase = next(phase for phase in report["phases"] if phase["start"] <= label.sample < phase["stop"])
    edge, share = next((edge, share) for name, edge, share in _stack(phase, bands) if name == label.source)
    x = label.x
    return (
        f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{top - 18 - _LANE * label.lane}" y2="{top + _HEIGHT}" stroke="#222" stroke-dasharray="5 4"/>'
        f'<circle cx="{x:.2f}" cy="{top + _HEIGHT * (1 - edge - share / 2):.2f}" r="4.5" fill="{bands[label.source]}" stroke="#222" '
        'stroke-width="1.5"/>'
    )


def _repeat_label(label: Label, top: int) -> str:
    return (
        f'<text class="over" x="{label.begin:.2f}" y="{top - 10 - _LANE * label.lane}">{escape(_repeat_text(label.source))}'
        f"<title>{escape(label.source)}: its second epoch begins at sample {label.sample:,}</title></text>"
    )


def _axes(report: Mapping[str, Any], top: int) -> str:
    bottom = top + _HEIGHT
    found = [f'<rect x="{_LEFT}" y="{top}" width="{_PLOT}" height="{_HEIGHT}" fill="none" stroke="#222"/>']
    for percent in (0, 25, 50, 75, 100):
        y = bottom - _HEIGHT * percent / 100
        found.append(f'<text x="{_LEFT - 8}" y="{y + 4:.2f}" text-anchor="end">{percent}%</text>')
    for sample in _ticks(report["num_samples"]):
        x = _x(sample, report["num_samples"])
        found.append(f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{bottom}" y2="{bottom + 5}" stroke="#222"/>')
        found.append(f'<text x="{x:.2f}" y="{bottom + 18}" text-anchor="middle">{rounded(sample)}</text>')
    unit = f"sample (a sample is {report['seq_len']:,} tokens"
    if report["batches"]:
        unit += f", a step {report['batches']['batch_size']:,} samples"
    found.append(f'<text x="{_LEFT + _PLOT / 2}" y="{bottom + 40}" text-anchor="middle">{unit})</text>')
    return "".join(found)


def _legend(report: Mapping[str, Any], bands: Mapping[str, str], top: int) -> str:
    """Return names and shares of the whole run, in the order of the stack."""
    total = max(report["samples"], 1)
    samples = {entry["source"]: entry["samples"] for entry in report["sources"]}
    lines = [(colour, name, samples.pop(name)) for name, colour in bands.items()]
    others = [count for count in samples.values() if count]
    if others:
        lines.append((_OTHER, f"{len(others):,} others", sum(others)))
    found = []
    for number, (colour, name, count) in enumerate(reversed(lines)):
        y = top + 22 * number
        found.append(f'<rect x="{_LEFT + _PLOT + 16}" y="{y}" width="13" height="13" fill="{colour}"/>')
        found.append(
            f'<text x="{_LEFT + _PLOT + 36}" y="{y + 11}">{share_of(count / total)} {escape(short(name))}<title>{escape(name)}</title></text>'
        )
    folded = [place for name, place in _repeats(report) if name not in bands]
    if folded:
        first = min(folded, key=lambda place: int(place["sample"]))
        y = top + 22 * len(lines) + 11
        found.append(f'<text x="{_LEFT + _PLOT + 16}" y="{y}">{len(folded):,} of the others repeat,</text>')
        found.append(
            f'<text x="{_LEFT + _PLOT + 16}" y="{y + 16}">first at {place_of({**first, "step": None}, "")}</text>'
        )
    return "".join(found)


def _ticks(num_samples: int) -> list[int]:
    """Return 0 and some round numbers up to ``num_samples``."""
    step = 1
    while num_samples // step > 8:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return list(range(0, num_samples + 1, step))


def _table(columns: Columns, entries: Sequence[Mapping[str, Any]]) -> str:
    shown, rest = largest(entries, _ROWS)
    head, *rows = cells(columns, shown)
    return table(head, rows) + (f"<p>{escape(rest)}</p>" if rest else "")
