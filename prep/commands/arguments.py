"""Arguments that several commands have, and how a report is printed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import neutral_core as nc
from neutral_core.format.writer import TOKENS_PER_SHARD
from neutral_core.layouts import LAYOUTS
from prep.readers.policies import actions_of

PATH = (
    "a corpus, a shard or a reference; of another layout a file, a folder, or the prefix of a pair or of numbered files"
)


def add_layout(parser: argparse.ArgumentParser, converted: Sequence[str] = ()) -> None:
    """Declare --layout, --dtype and --boundaries; ``converted``: names of layouts that are converted and not read in place."""
    layouts = tuple(dict.fromkeys((*LAYOUTS, *converted)))
    parser.add_argument("--layout", choices=layouts, help="insist on a layout (default: by magic and size)")
    parser.add_argument("--dtype", metavar="TYPE", help="of the ids where no header says it, such as uint16")
    rows = "; of rows: index (a row is a document) or segments" if converted else ""
    parser.add_argument(
        "--boundaries",
        metavar="RULE",
        help=f"of documents where nothing stores them: eos:ID, bos:ID, fixed:N or none; of sentence-split pairs: sequences{rows}",
    )


def add_rewrite(parser: argparse.ArgumentParser) -> None:
    """Declare what ``merge``, ``split`` and ``reshard`` have in common."""
    parser.add_argument(
        "--ignore", metavar="FIELD", action="append", default=[], help="a field to be left out, such as ragged.path"
    )
    add_result(parser)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare what work in several processes has."""
    parser.add_argument(
        "--workers", type=positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    add_result(parser)


def add_result(parser: argparse.ArgumentParser) -> None:
    """Declare what all commands have that make a corpus."""
    parser.add_argument(
        "--tokens-per-shard",
        type=positive,
        default=TOKENS_PER_SHARD,
        metavar="N",
        help=f"(default: {TOKENS_PER_SHARD})",
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard what a stopped run left in DST, instead of going on from it"
    )
    parser.add_argument("--json", action="store_true", help="print the report as plain data")


def add_plan_file(parser: argparse.ArgumentParser) -> None:
    """Declare PLAN, --seq-len and --split."""
    parser.add_argument(
        "path",
        metavar="PLAN",
        help="a plan file: .yaml, .yml or .json; or a mixture of Fast-LLM's, Megatron's or OLMo's",
    )
    parser.add_argument("--seq-len", type=positive, metavar="S", help="for a mixture of another tool's")
    parser.add_argument("--split", metavar="NAME", help="of a mixture that has splits, such as train")


def open_layout(options: argparse.Namespace) -> nc.Corpus:
    """Return the corpus of a command that has ``add_layout`` and a path; say of a layout that is converted what it is."""
    try:
        return nc.open_corpus(options.path, layout=options.layout, dtype=options.dtype, boundaries=options.boundaries)
    except FileNotFoundError:
        from prep.foreign.layouts import foreign_layout  # loads all of them

        foreign = foreign_layout(Path(options.path).expanduser(), options.layout)
        if foreign is None:
            raise
        raise ValueError(
            f"{options.path}: it is of the layout {foreign.name}, which is not read in place: millstream convert {options.path} DST makes a corpus of it."
        ) from None


def say(report: dict[str, Any], lines: list[str], as_json: bool) -> None:
    """Print a report as plain data or as lines."""
    print(json.dumps(report, indent=1, ensure_ascii=False) if as_json else "\n".join(lines))


def positive(text: str) -> int:
    """Return a whole number from 1 on, as a type of argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def count(text: str) -> int:
    """Return a whole number, as a type of argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def policies(text: str) -> str:
    """Return what becomes of bad documents, as it was given, as a type of argparse."""
    try:
        actions_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def rank(text: str) -> tuple[int, int]:
    """Return (rank, world size) of R/W, as a type of argparse."""
    rank, slash, world = text.partition("/")
    if not (slash and rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise argparse.ArgumentTypeError(f"{text!r} is no rank R/W, with 0 ≤ R < W, such as 3/8")
    return int(rank), int(world)
