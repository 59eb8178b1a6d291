"""``millstream inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from prep.commands.arguments import PATH, add_layout, count, open_layout, say
from prep.extras import MissingExtraError, require


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_layout(parser)
    parser.add_argument("path", help=PATH)
    parser.add_argument("--documents", type=count, default=3, metavar="N", help="documents to show (default: 3)")
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="show the tokens of documents in colour (default: on a terminal)",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write a page with plots: lengths of documents, ids by frequency, tokens per source",
    )
    parser.add_argument("--json", action="store_true", help="print plain data")
    parser.set_defaults(work=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from prep import inspect
    from prep.report_page import page
    from prep.survey import survey

    corpus = open_layout(options)
    report = inspect.inspect(corpus, Path(options.path), options.documents)
    if options.report is not None:
        entry = {**report, **survey(corpus), "lines": inspect.lines_of(report)[1:]}
        Path(options.report).write_text(page([entry], f"millstream inspect {options.path}"), encoding="utf-8")
    console = None if options.json or options.color == "never" else _console(options.color == "always")
    if console is not None and any("pieces" in shown for shown in report["first_documents"]):
        show_coloured(report, inspect.lines_of(report), console)
    else:
        say(report, [*inspect.lines_of(report), *inspect.document_lines(report)], options.json)


def show_coloured(report: dict[str, Any], lines: list[str], console: Any) -> None:
    """Print the report, its documents token by token in colour, on a console of rich."""
    from prep.token_edges import coloured, legend

    console.print("\n".join(lines), markup=False)
    for shown in report["first_documents"]:
        console.print(coloured(shown))
    console.print(legend([piece for shown in report["first_documents"] for piece in shown["pieces"]]))


def _console(always: bool) -> Any:
    """Return a console of rich that shows colours, or None where standard output is none and ``always`` does not ask for it."""
    try:
        rich = require("rich.console", extra="prep", purpose="--color always")
    except MissingExtraError:
        if always:
            raise
        return None
    console = rich.Console(force_terminal=True if always else None, highlight=False, soft_wrap=True)
    return console if always or (console.is_terminal and not console.no_color) else None
