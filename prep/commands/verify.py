"""``millstream verify``."""

from __future__ import annotations

import argparse

from prep.commands.arguments import PATH, add_layout, open_layout


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_layout(parser)
    parser.add_argument("path", help=PATH)
    parser.set_defaults(work=_verify)


def _verify(options: argparse.Namespace) -> None:
    from prep import inspect

    print("\n".join(inspect.verify(open_layout(options), options.path)))
