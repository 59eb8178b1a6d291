"""``millstream prepare``."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prep import config
from prep.commands.arguments import add_run, count, policies, positive, rank, say
from prep.engines import ENGINES
from prep.engines.ranks import Rank, rank_of
from prep.readers.inputs import RULES
from prep.tokenizers import Settings, open_tokenizer, proof
from prep.tokenizers.given import KIND

if TYPE_CHECKING:
    from prep.pieces import Options


_OF_TOKENIZER = ("append_eos", "prepend_bos", "eos_token", "bos_token", "allow_special")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command\'s arguments. None of them has a default here: what is not given is the configuration file's, or that of ``Options``."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="INPUT ... DST",
        help="files, folders, patterns, data sets of the hub; and the folder of the corpus to be, new or empty",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML or JSON that says what the flags say; flags win over it")
    parser.add_argument(
        "--hub-config",
        metavar="NAME",
        help="configuration of a data set by name: owner/name, hf://owner/name, or a folder in the hub's layout",
    )
    parser.add_argument("--hub-split", metavar="NAME", help="split of it (default: train)")
    parser.add_argument("--hub-revision", metavar="R", help="branch, tag or commit of it")
    parser.add_argument(
        "--tokenizer",
        metavar="T",
        help="byte, char, or the path of a tokenizer.json, a SentencePiece .model or a .tiktoken file",
    )
    _add_switch(parser, "append-eos", "put the end-of-text id behind each document")
    _add_switch(parser, "prepend-bos", "put the begin-of-text id before each document")
    parser.add_argument(
        "--eos-token", metavar="TEXT", help="which added token is EOS, where the tokenizer's files do not say"
    )
    parser.add_argument("--bos-token", metavar="TEXT", help="which added token is BOS, likewise")
    _add_switch(parser, "allow-special", "text that spells a special token becomes that token")
    parser.add_argument(
        "--tokenizer-engine",
        choices=proof.ENGINES,
        help="what encodes: the library of the tokenizer's kind, or gigatoken; auto: gigatoken where its ids prove to be the same",
    )
    parser.add_argument("--documents", choices=RULES, help="what a document is in a text file (default: file)")
    parser.add_argument("--text-key", metavar="KEY", help="of the text in a line of JSON or a row (default: text)")
    parser.add_argument(
        "--ids-key",
        metavar="KEY",
        help="documents are ids already: lists under this key of a line of JSON, or in this column; nothing is encoded",
    )
    parser.add_argument(
        "--vocab-size", type=positive, metavar="N", help="of --ids-key without --tokenizer: how many ids there are"
    )
    parser.add_argument("--eos-id", type=count, metavar="ID", help="of --vocab-size: what --append-eos appends")
    parser.add_argument("--bos-id", type=count, metavar="ID", help="of --vocab-size: what --prepend-bos prepends")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="take the first N documents alone, to try a setting"
    )
    parser.add_argument(
        "--glob",
        metavar="PATTERN",
        help="which files of folders to read, such as '*.py'; unknown suffixes are read as text",
    )
    parser.add_argument(
        "--on-bad",
        type=policies,
        metavar="POLICY",
        help="error (default) or skip: a document that is not UTF-8 or JSON, or has no text; or by kind, such as skip,encoding=keep,empty=skip",
    )
    parser.add_argument(
        "--validation",
        metavar="F",
        help="share of documents, by a hash of their text, for DST/validation; the rest: DST/train",
    )
    _add_switch(parser, "origin", "store each document's file and line (default: yes)")
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="write a page with plots: lengths, ids by frequency, sources, what was left out",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="write nothing: say what would be read, and estimate tokens and size from a sample",
    )
    parser.add_argument("--engine", choices=ENGINES, help="who does the tasks: processes here, or Ray (default: local)")
    parser.add_argument(
        "--rank", type=rank, metavar="R/W", help="do share R of W alone (default: as torchrun or Slurm say, else 0/1)"
    )
    add_run(parser)
    parser.set_defaults(
        work=partial(_prepare, parser), workers=None, tokens_per_shard=None, restart=None, json=None, dry_run=None
    )


def _add_switch(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=what)


def keys(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return what a configuration file can say: the flags, inputs and destination."""
    places = argparse.ArgumentParser()
    found = [places.add_argument("inputs", nargs="+"), places.add_argument("destination")]
    return found + [action for action in parser._actions if action.dest not in ("help", "config", "paths")]


def asked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[Options, dict[str, Any]]:
    """Return what is asked of ``prepare``, and all that was said: by the flags, else by the file."""
    from prep import pieces

    said = {} if options.config is None else config.load(options.config, keys(parser))
    said |= {name: value for name, value in vars(options).items() if value is not None}
    if options.paths:
        if len(options.paths) < 2:
            parser.error("give INPUT ... and DST: one of them is missing")
        said |= {"inputs": options.paths[:-1], "destination": options.paths[-1]}
    missing = [
        name
        for name, key in (("INPUT", "inputs"), ("DST", "destination"), ("--tokenizer", "tokenizer"))
        if key not in said and (key != "tokenizer" or "vocab_size" not in said)
    ]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)} (or --config FILE)")
    ranks = rank_of(os.environ)
    if "rank" in said:
        ranks = Rank(
            rank=said["rank"][0], world_size=said["rank"][1], on_this_host=ranks.on_this_host, launcher="--rank"
        )
    taken = {field.name for field in fields(pieces.Options)} - {"tokenizer", "rank", "workers", "inputs", "destination"}
    return pieces.Options(
        inputs=tuple(said["inputs"]),
        destination=Path(said["destination"]),
        tokenizer=_tokenizer(said, options.config),
        rank=ranks,
        workers=said.get("workers"),
        **{name: value for name, value in said.items() if name in taken},
    ), said


def _tokenizer(said: dict[str, Any], from_file: str | None) -> Settings:
    given = {name: said[name] for name in (*_OF_TOKENIZER, "vocab_size", "eos_id", "bos_id") if name in said}
    if "tokenizer" not in said:
        return Settings(kind=KIND, **given)
    named = said["tokenizer"] in ("byte", "char")
    settings = Settings(
        kind=said["tokenizer"] if named else "tokenizer.json",
        path=None if named else said["tokenizer"],
        engine=said.get("tokenizer_engine", "auto"),
        **given,
    )
    if from_file is None or "append_eos" in said or named:
        return settings
    # Fast-LLM's first format has no word on EOS, and means one behind each document.
    try:
        open_tokenizer(replace(settings, append_eos=True))
    except ValueError:
        return settings
    return replace(settings, append_eos=True)


def _prepare(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    from prep import dry_run, prepare  # each command loads what it needs

    what, said = asked(parser, options)
    options.destination = str(what.destination)  # for what the system says without a place
    as_json = said.get("json", False)
    if said.get("dry_run", False):
        estimate = dry_run.dry_run(what)
        say(estimate, dry_run.lines_of(estimate), as_json)
        return
    report = prepare.prepare(what)
    if options.config is not None and "append_eos" not in said and what.tokenizer.path is not None:
        report["notes"].append(
            f"{options.config} does not say append_eos: "
            + (
                "EOS is behind each document."
                if what.tokenizer.append_eos
                else "the tokenizer names no EOS, and none was appended."
            )
        )
    if "report" in said and report["corpora"]:
        Path(said["report"]).write_text(prepare.page_of(report), encoding="utf-8")
    say(report, prepare.lines_of(report), as_json)
