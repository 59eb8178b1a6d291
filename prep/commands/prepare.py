"""``millstream prepare``."""

from __future__ import annotations

import argparse
from pathlib import Path

from prep.commands.arguments import add_run, say
from prep.readers.inputs import RULES
from prep.tokenizers import Settings


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command\'s arguments."""
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="files and folders: .txt, .jsonl, also .gz and .zst")
    parser.add_argument("destination", metavar="DST", help="folder of the corpus to be; new or empty")
    parser.add_argument("--tokenizer", required=True, metavar="T", help="byte, char, or the path of a tokenizer.json")
    parser.add_argument("--append-eos", action="store_true", help="put the end-of-text id behind each document")
    parser.add_argument("--prepend-bos", action="store_true", help="put the begin-of-text id before each document")
    parser.add_argument(
        "--eos-token", metavar="TEXT", help="which added token is EOS, where the tokenizer's files do not say"
    )
    parser.add_argument("--bos-token", metavar="TEXT", help="which added token is BOS, likewise")
    parser.add_argument(
        "--allow-special", action="store_true", help="text that spells a special token becomes that token"
    )
    parser.add_argument(
        "--documents", choices=RULES, default="file", help="what a document is in a text file (default: file)"
    )
    parser.add_argument(
        "--text-key", default="text", metavar="KEY", help="of the text in a line of JSON (default: text)"
    )
    parser.add_argument(
        "--glob",
        metavar="PATTERN",
        help="which files of folders to read, such as '*.py'; unknown suffixes are read as text",
    )
    parser.add_argument(
        "--on-bad",
        choices=("error", "skip"),
        default="error",
        help="a document that is not UTF-8 or JSON (default: error)",
    )
    parser.add_argument(
        "--validation",
        metavar="F",
        help="share of documents, by a hash of their text, for DST/validation; the rest: DST/train",
    )
    parser.add_argument("--no-origin", action="store_true", help="do not store each document's file and line")
    add_run(parser)
    parser.set_defaults(work=_prepare)


def _prepare(options: argparse.Namespace) -> None:
    from prep import pieces, prepare  # each command loads what it needs

    named = options.tokenizer in ("byte", "char")
    settings = Settings(
        kind=options.tokenizer if named else "tokenizer.json",
        path=None if named else options.tokenizer,
        append_eos=options.append_eos,
        prepend_bos=options.prepend_bos,
        eos_token=options.eos_token,
        bos_token=options.bos_token,
        allow_special=options.allow_special,
    )
    report = prepare.prepare(
        pieces.Options(
            inputs=tuple(options.inputs),
            destination=Path(options.destination),
            tokenizer=settings,
            glob=options.glob,
            documents=options.documents,
            text_key=options.text_key,
            on_bad=options.on_bad,
            validation=options.validation,
            origin=not options.no_origin,
            tokens_per_shard=options.tokens_per_shard,
            workers=options.workers,
            restart=options.restart,
        )
    )
    say(report, prepare.lines_of(report), options.json)
