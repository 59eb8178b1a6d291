"""``millstream inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep.commands.arguments import PATH, add_layout, count, open_layout, say


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_layout(parser)
    parser.add_argument("path", help=PATH)
    parser.add_argument("--documents", type=count, default=3, metavar="N", help="documents to show (default: 3)")
    parser.add_argument("--json", action="store_true", help="print plain data")
    parser.set_defaults(work=_inspect)


def _inspect(options: argparse.Namespace) -> None:
    from prep import inspect

    report = inspect.inspect(open_layout(options), Path(options.path), options.documents)
    say(report, inspect.lines_of(report), options.json)
