"""What the pages of ``plan --plot`` and ``--report`` have in common: one self-contained HTML file, no script, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLOURS = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#37477e",
)  # fmt: skip
_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; color: #222; background: #fff; margin: 24px; max-width: 1180px; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; }
code { font-size: 12px; }
svg { display: block; max-width: 100%; height: auto; }
svg text.over { paint-order: stroke; stroke: #fff; stroke-width: 4px; }
svg text { font: 12px system-ui, sans-serif; fill: #222; }
.beside { display: flex; flex-wrap: wrap; gap: 24px; }
.table { max-height: 520px; overflow: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { position: sticky; top: 0; background: #f3f3f3; text-align: right; }
td { text-align: right; border-top: 1px solid #eee; } th, td { padding: 3px 9px; }
th:first-child, td:first-child { text-align: left; max-width: 320px; overflow: hidden; text-overflow: ellipsis; }
.warning { background: #fff4ce; border-left: 4px solid #c90; padding: 8px 12px; }
.refused { background: #fde7e9; border-left: 4px solid #c33; padding: 8px 12px; }
summary { cursor: pointer; margin-top: 12px; }
"""


def html(title: str, parts: Sequence[str]) -> str:
    """Return a page of parts that are HTML already."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts, which are escaped here."""
    lines = [f"<tr>{''.join(f'<th>{escape(text)}</th>' for text in head)}</tr>"]
    lines.extend(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f'<div class="table"><table>{"".join(lines)}</table></div>'


def rounded(number: int) -> str:
    """Return a number for an axis: 250k, 1.5M."""
    for unit, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 10 * factor or (number >= factor and number % (factor // 10) == 0):
            return f"{number / factor:,.4g}{unit}"
    return f"{number:,}"


def short(name: str) -> str:
    """Return a name that fits a legend."""
    return name if len(name) <= 22 else f"{name[:14]}…{name[-7:]}"
