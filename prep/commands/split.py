"""``millstream split``."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep.commands.arguments import PATH, add_rewrite, say


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="SRC", help=PATH)
    parser.add_argument("destination", metavar="DST", help="folder of train/ and validation/ to be; new or empty")
    parser.add_argument("--validation", required=True, metavar="F", help="share that goes to validation/, such as 0.01")
    parser.add_argument(
        "--by",
        choices=("hash", "order"),
        default="hash",
        help="hash: of a document's ids, so that equal documents are on one side; order: the last documents, by tokens (default: hash)",
    )
    add_rewrite(parser)
    parser.set_defaults(work=_split)


def _split(options: argparse.Namespace) -> None:
    from prep import reshape

    report = reshape.reshape(
        reshape.Options(
            command="split",
            sources=(options.source,),
            destination=Path(options.destination),
            ignore=tuple(options.ignore),
            validation=options.validation,
            by=options.by,
            tokens_per_shard=options.tokens_per_shard,
            restart=options.restart,
        )
    )
    say(report, reshape.lines_of(report), options.json)
