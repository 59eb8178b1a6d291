"""The page of ``prepare --report`` and ``inspect --report``: what corpora are like, as plots; one self-contained HTML file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from prep.page import COLOURS, html, rounded, short, table

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 540, 240, 60, 44, 12
_PLOT = _WIDTH - _LEFT - 12
_BARS = 20  # sources drawn
_ROWS = 1000  # sources in the table


def page(
    corpora: Sequence[Mapping[str, Any]],
    title: str,
    notes: Sequence[str] = (),
    skipped: Mapping[str, int] | None = None,
    reasons: Sequence[str] = (),
) -> str:
    """Return the page.

    Args:
        corpora: for each ``path``, ``documents``, ``tokens``, ``lines`` (for a person), and what ``survey`` returns; with ``text_bytes`` where known.
        title: escaped here.
        notes: sentences about the whole.
        skipped: why → how many documents were left out; None: nothing can be said about it.
        reasons: of the first of them.
    """
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(note)}</p>" for note in notes)]
    for entry in corpora:
        parts.append(
            f"<h2>{escape(str(entry['path']))}</h2><p>{'<br>'.join(escape(line) for line in entry['lines'])}</p>"
        )
        if entry["tokens"]:
            parts.append(f'<div class="beside">{_lengths(entry["lengths"])}{_frequencies(entry)}</div>')
        if entry["sources"]:
            parts.append(f"<h2>where the tokens come from</h2>{_sources(entry)}")
    if skipped is not None:
        rows = [(why, f"{number:,}") for why, number in sorted(skipped.items(), key=lambda item: -item[1])]
        parts.append("<h2>what was left out</h2>" + (table(("why", "documents"), rows) if rows else "<p>Nothing.</p>"))
        parts.append(f"<p>{'<br>'.join(escape(reason) for reason in reasons)}</p>")
    return html(title, parts)


def _lengths(lengths: Sequence[int]) -> str:
    """Return bars: how many documents there are of 0, 1, 2 … 3, 4 … 7, … tokens."""
    most = max(lengths, default=1)
    step = _PLOT / max(len(lengths), 1)
    marks = []
    for bits, number in enumerate(lengths):
        low, high = (1 << bits) >> 1, (1 << bits) - 1
        span = f"{low:,}" if low == high else f"{low:,} … {high:,}"
        height = (_HEIGHT - 1) * number / most
        marks.append(
            f'<rect x="{_LEFT + step * bits + 1:.1f}" y="{_TOP + _HEIGHT - height:.1f}" width="{max(step - 2, 1):.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[0]}"><title>{span} tokens: {number:,} documents</title></rect>'
        )
        if bits % max(len(lengths) // 8, 1) == 0:
            marks.append(_text(_LEFT + step * (bits + 0.5), _TOP + _HEIGHT + 16, rounded(low), "middle"))
    marks += [
        _text(_LEFT - 6, _TOP + _HEIGHT * (1 - part) + 4, rounded(int(most * part)), "end") for part in (0, 0.5, 1)
    ]
    return _svg("documents by their length", "tokens in a document, from … on", marks)


def _frequencies(entry: Mapping[str, Any]) -> str:
    """Return the curve of how often ids occur, the most frequent first, on two logarithmic scales."""
    points = entry["frequencies"]
    wide, high = (math.log10(max(value, 10)) for value in (points[-1][0], points[0][1]))
    path = " ".join(
        f"{_LEFT + _PLOT * math.log10(rank) / wide:.1f},{_TOP + _HEIGHT * (1 - math.log10(times) / high):.1f}"
        for rank, times in points
    )
    marks = [f'<polyline points="{path}" fill="none" stroke="{COLOURS[1]}" stroke-width="2"/>']
    for power in range(int(wide) + 1):
        marks.append(_text(_LEFT + _PLOT * power / wide, _TOP + _HEIGHT + 16, rounded(10**power), "middle"))
    for power in range(int(high) + 1):
        marks.append(_text(_LEFT - 6, _TOP + _HEIGHT * (1 - power / high) + 4, rounded(10**power), "end"))
    counted = entry["frequencies_over_tokens"]
    what = f"rank of an id: {entry['ids']:,} occur" + (
        "" if counted == entry["tokens"] else f" in {counted:,} tokens counted"
    )
    return _svg("how often ids occur", what, marks)


def _sources(entry: Mapping[str, Any]) -> str:
    """Return bars of the largest sources, and a table of all, with bytes of text per token where they are known."""
    sources = entry["sources"]
    most = max(source["tokens"] for source in sources) or 1
    marks = []
    for number, source in enumerate(sources[:_BARS]):
        y = 22 * number
        width = 640 * source["tokens"] / most
        share = source["tokens"] / max(entry["tokens"], 1)
        marks.append(f'<rect x="190" y="{y + 3}" width="{max(width, 1):.1f}" height="15" fill="{COLOURS[2]}"/>')
        marks.append(_text(182, y + 15, short(source["source"]), "end", source["source"]))
        marks.append(_text(196 + width, y + 15, f"{rounded(source['tokens'])} tokens, {share:.1%}", "start"))
    height = 22 * min(len(sources), _BARS) + 6
    bars = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" width="1000" height="{height}" role="img" '
        f'aria-label="tokens per source">{"".join(marks)}</svg>'
    )
    known = any("text_bytes" in source for source in sources)
    rows = [
        (source["source"], f"{source['documents']:,}", f"{source['tokens']:,}")
        + ((_per_token(source),) if known else ())
        for source in sources[:_ROWS]
    ]
    rest = f"<p>and {len(sources) - _ROWS:,} more</p>" if len(sources) > _ROWS else ""
    head = ("source", "documents", "tokens") + (("bytes per token",) if known else ())
    return f"{bars}<details><summary>all {len(sources):,}</summary>{table(head, rows)}{rest}</details>"


def _per_token(source: Mapping[str, Any]) -> str:
    return f"{source['text_bytes'] / source['tokens']:.3f}" if source.get("text_bytes") and source["tokens"] else "–"


def _text(x: float, y: float, text: str, anchor: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}{inside}</text>'


def _svg(title: str, axis: str, marks: Sequence[str]) -> str:
    height = _TOP + _HEIGHT + _BOTTOM
    frame = f'<path d="M{_LEFT},{_TOP}V{_TOP + _HEIGHT}H{_LEFT + _PLOT}" fill="none" stroke="#222"/>'
    return (
        f'<div><h2>{escape(title)}</h2><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">{"".join(marks)}{frame}{_text(_LEFT + _PLOT / 2, height - 6, axis, "middle")}</svg></div>'
    )
