"""``millstream reshard``."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep.commands.arguments import PATH, add_rewrite, say


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="SRC", help=PATH)
    parser.add_argument("destination", metavar="DST", help="folder of the corpus to be; new or empty")
    add_rewrite(parser)
    parser.set_defaults(work=_reshard)


def _reshard(options: argparse.Namespace) -> None:
    from prep import reshape

    report = reshape.reshape(
        reshape.Options(
            command="reshard",
            sources=(options.source,),
            destination=Path(options.destination),
            ignore=tuple(options.ignore),
            tokens_per_shard=options.tokens_per_shard,
            restart=options.restart,
        )
    )
    say(report, reshape.lines_of(report), options.json)
