"""``millstream convert``, also with ``--reference``."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep.commands.arguments import add_layout, add_run, positive, say
from prep.foreign.layouts import NAMES as CONVERTED
from prep.tokenizers import Settings


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command\'s arguments."""
    add_layout(parser, CONVERTED)
    parser.add_argument(
        "source", metavar="SRC", help="a file, a folder, the prefix of a pair or of numbered files: see docs/layouts.md"
    )
    parser.add_argument("destination", metavar="DST", help="folder of the corpus to be; new or empty")
    parser.add_argument("--tokenizer", metavar="T", help="that made the ids: byte, or the path of its file")
    parser.add_argument("--eos-token", metavar="TEXT", help="its end-of-text token, to be recorded")
    parser.add_argument(
        "--vocab-size", type=positive, metavar="N", help="number of ids, where the tokenizer is not known"
    )
    parser.add_argument("--column", metavar="NAME", help="of the ids, where several columns hold integers")
    parser.add_argument(
        "--ignore",
        metavar="NAME",
        action="append",
        default=[],
        help="a column to be taken for not there, such as labels",
    )
    parser.add_argument("--no-verify", action="store_true", help="do not compare the result with the source")
    parser.add_argument(
        "--reference",
        action="store_true",
        help="copy nothing: DST becomes a file, beside or above the source, that makes it a corpus where it lies",
    )
    add_run(parser)
    parser.set_defaults(work=_convert)


def _convert(options: argparse.Namespace) -> None:
    from prep import convert

    settings = None
    if options.tokenizer == "char":
        raise ValueError("--tokenizer char has no definition outside of a corpus: leave it out and give --vocab-size.")
    if options.tokenizer is not None:
        named = options.tokenizer == "byte"
        settings = Settings(
            kind="byte" if named else "tokenizer.json",
            path=None if named else options.tokenizer,
            append_eos=options.eos_token is not None,
            eos_token=options.eos_token,
        )
    if options.reference:
        if options.column or options.ignore:
            raise ValueError("--reference copies nothing and reads no columns: leave --column and --ignore out.")
        _refer(options, settings)
        return
    report = convert.convert(
        convert.Options(
            source=options.source,
            destination=Path(options.destination),
            layout=options.layout,
            dtype=options.dtype,
            boundaries=options.boundaries,
            column=options.column,
            ignore=tuple(options.ignore),
            tokenizer=settings,
            vocab_size=options.vocab_size,
            tokens_per_shard=options.tokens_per_shard,
            verify=not options.no_verify,
            workers=options.workers,
            restart=options.restart,
        )
    )
    say(report, convert.lines_of(report), options.json)


def _refer(options: argparse.Namespace, tokenizer: Settings | None) -> None:
    from prep import refer

    report = refer.refer(
        refer.Options(
            source=options.source,
            destination=Path(options.destination),
            layout=options.layout,
            dtype=options.dtype,
            boundaries=options.boundaries,
            tokenizer=tokenizer,
            vocab_size=options.vocab_size,
            workers=options.workers,
        )
    )
    say(report, refer.lines_of(report), options.json)
