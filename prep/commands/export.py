"""``millstream export``."""

from __future__ import annotations

import argparse
from pathlib import Path

import neutral_core as nc
from prep.commands.arguments import say
from prep.export import LAYOUTS as EXPORTED


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command\'s arguments."""
    parser.add_argument("path", metavar="SRC", help="a corpus, or a single shard")
    parser.add_argument(
        "destination", metavar="DST", help="prefix (megatron), file (nanogpt, datatrove) or folder (olmo, levanter)"
    )
    parser.add_argument("--layout", required=True, choices=EXPORTED, help="that the other tool reads")
    parser.add_argument("--dtype", metavar="TYPE", help="of the ids (default: the layout's own for the vocabulary)")
    parser.add_argument("--json", action="store_true", help="print the report as plain data")
    parser.set_defaults(work=_export)


def _export(options: argparse.Namespace) -> None:
    from prep import export

    report = export.export(
        export.Options(
            source=nc.open_corpus(options.path, check="blocks"),
            destination=Path(options.destination),
            layout=options.layout,
            dtype=options.dtype,
        )
    )
    say(report, export.lines_of(report), options.json)
