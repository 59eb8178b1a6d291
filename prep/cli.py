"""The command ``millstream``: arguments in, work elsewhere, reports out.

Exit status 0: done; 1: it failed, one sentence on standard error; 2: the command line is wrong; 130: stopped by Ctrl-C. ``convert``, ``export``,
``inspect``, ``verify``, and ``plan`` and ``trace`` over a plan in JSON, need numpy alone.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import neutral_core as nc
from neutral_core.format.writer import TOKENS_PER_SHARD
from neutral_core.layouts import LAYOUTS
from prep.export import LAYOUTS as EXPORTED
from prep.extras import MissingExtraError
from prep.foreign.layouts import NAMES as CONVERTED
from prep.readers.inputs import RULES
from prep.tokenizers import Settings

_PATH = (
    "a corpus, a shard or a reference; of another layout a file, a folder, or the prefix of a pair or of numbered files"
)


def run() -> NoReturn:
    """Run the command on the process' arguments and exit."""
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # a character that the terminal cannot show is no reason to fail after the work
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.work(options)
    except KeyboardInterrupt:
        print("millstream: stopped; run the same command again to go on from here.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read the output has gone
        return 1
    except MemoryError as error:
        print(f"millstream {options.command}: the memory ran out ({error}): give fewer --workers.", file=sys.stderr)
        return 1
    except (nc.FormatError, ValueError, OSError, KeyError, IndexError, MissingExtraError) as error:
        text = _sentence(error, options)
        print(f"millstream {options.command}: {text}", file=sys.stderr)
        return 1
    return 0


class _Parser(argparse.ArgumentParser):
    """argparse, which names the nearest known word where one is unknown."""

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"invalid choice: '([^']*)'|unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown.group(1) or unknown.group(2)
            known = [option for action in self._actions for option in (*action.option_strings, *(action.choices or ()))]
            known += [option for sub in self._chosen() for action in sub._actions for option in action.option_strings]
            near = difflib.get_close_matches(word.partition("=")[0], [str(name) for name in known], 1)
            if near:
                message += f"; did you mean {near[0]}?"
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}\n")

    def _chosen(self) -> list[argparse.ArgumentParser]:
        return [
            parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for parser in action.choices.values()
        ]


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="millstream", description="Text in once, batches out: prepare, convert, look at and check corpora."
    )
    parser.add_argument("--version", action="version", version=f"millstream {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_prepare(commands.add_parser("prepare", help="text becomes a corpus", allow_abbrev=False))
    _add_convert(
        commands.add_parser("convert", help="a data set of another layout becomes a corpus", allow_abbrev=False)
    )
    inspect = commands.add_parser(
        "inspect", help="say what a corpus or a data set of another layout holds", allow_abbrev=False
    )
    _add_layout(inspect)
    inspect.add_argument("path", help=_PATH)
    inspect.add_argument("--documents", type=_count, default=3, metavar="N", help="documents to show (default: 3)")
    inspect.add_argument("--json", action="store_true", help="print plain data")
    inspect.set_defaults(work=_inspect)
    verify = commands.add_parser("verify", help="check every byte of a corpus", allow_abbrev=False)
    _add_layout(verify)
    verify.add_argument("path", help=_PATH)
    verify.set_defaults(work=_verify)
    _add_export(commands.add_parser("export", help="a corpus becomes files that other tools read", allow_abbrev=False))
    _add_plan(commands.add_parser("plan", help="say what a run over a plan will read", allow_abbrev=False))
    _add_trace(commands.add_parser("trace", help="say what was in a step, or when a text was seen", allow_abbrev=False))
    return parser


def _add_prepare(parser: argparse.ArgumentParser) -> None:
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
    _add_run(parser)
    parser.set_defaults(work=_prepare)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    _add_layout(parser, CONVERTED)
    parser.add_argument(
        "source", metavar="SRC", help="a file, a folder, the prefix of a pair or of numbered files: see docs/layouts.md"
    )
    parser.add_argument("destination", metavar="DST", help="folder of the corpus to be; new or empty")
    parser.add_argument("--tokenizer", metavar="T", help="that made the ids: byte, or the path of a tokenizer.json")
    parser.add_argument("--eos-token", metavar="TEXT", help="its end-of-text token, to be recorded")
    parser.add_argument(
        "--vocab-size", type=_positive, metavar="N", help="number of ids, where the tokenizer is not known"
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
    _add_run(parser)
    parser.set_defaults(work=_convert)


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="SRC", help="a corpus, or a single shard")
    parser.add_argument(
        "destination", metavar="DST", help="prefix (megatron), file (nanogpt, datatrove) or folder (olmo)"
    )
    parser.add_argument("--layout", required=True, choices=EXPORTED, help="that the other tool reads")
    parser.add_argument("--dtype", metavar="TYPE", help="of the ids (default: the layout's own for the vocabulary)")
    parser.add_argument("--json", action="store_true", help="print the report as plain data")
    parser.set_defaults(work=_export)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_plan_file(parser)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--samples", type=_positive, metavar="N", help="the run is samples 0 … N - 1")
    length.add_argument("--tokens", type=_positive, metavar="N", help="the run serves N targets")
    parser.add_argument("--batch-size", type=_positive, metavar="B", help="rows of a global batch, to count steps")
    parser.add_argument("--dp-world-size", type=_positive, metavar="W", help="ranks that share a batch (default: 1)")
    parser.add_argument("--plot", metavar="FILE", help="write a page with a plot of the sources over the run: .html")
    parser.add_argument("--json", action="store_true", help="print the report as plain data")
    parser.set_defaults(work=_plan, refuse=parser.error)


def _add_plan_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PLAN",
        help="a plan file: .yaml, .yml or .json; or a mixture of Fast-LLM's, Megatron's or OLMo's",
    )
    parser.add_argument("--seq-len", type=_positive, metavar="S", help="for a mixture of another tool's")
    parser.add_argument("--split", metavar="NAME", help="of a mixture that has splits, such as train")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    _add_plan_file(parser)
    parser.add_argument("--step", type=_count, metavar="N", help="the global batch number N, from 0")
    parser.add_argument(
        "--batch-size", type=_positive, metavar="B", help="rows of a global batch, the same at all steps"
    )
    parser.add_argument("--rank", type=_rank, metavar="R/W", help="only what rank R of W reads of the step")
    parser.add_argument("--sample", type=_count, nargs="+", metavar="N", help="these samples, instead of a step's")
    parser.add_argument("--text", action="store_true", help="show the text; ids where the tokenizer is not known")
    parser.add_argument("--full", action="store_true", help="show long text whole")
    parser.add_argument(
        "--find",
        metavar="WHAT",
        help="when it was seen: a document as SOURCE:NUMBER (NUMBER in a plan of one source), else a text",
    )
    parser.add_argument(
        "--samples",
        type=_positive,
        metavar="N",
        help="with --find: so far are samples 0 … N - 1; or --step N: that step and those before",
    )
    parser.add_argument(
        "--max-documents",
        type=_positive,
        metavar="N",
        help="with --find TEXT: stop after N documents that hold it (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="print plain data")
    parser.set_defaults(work=_trace, refuse=parser.error)


def _add_layout(parser: argparse.ArgumentParser, converted: Sequence[str] = ()) -> None:
    layouts = tuple(dict.fromkeys((*LAYOUTS, *converted)))
    parser.add_argument("--layout", choices=layouts, help="insist on a layout (default: by magic and size)")
    parser.add_argument("--dtype", metavar="TYPE", help="of the ids where no header says it, such as uint16")
    rows = "; of rows: index (a row is a document) or segments" if converted else ""
    parser.add_argument(
        "--boundaries",
        metavar="RULE",
        help=f"of documents where nothing stores them: eos:ID, bos:ID, fixed:N or none; of sentence-split pairs: sequences{rows}",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens-per-shard", type=_positive, default=TOKENS_PER_SHARD, metavar="N", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, metavar="N", help="processes (default: all cores)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard what a stopped run left in DST, instead of going on from it"
    )
    parser.add_argument("--json", action="store_true", help="print the report as plain data")


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
    _say(report, prepare.lines_of(report), options.json)


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
    _say(report, convert.lines_of(report), options.json)


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
    _say(report, refer.lines_of(report), options.json)


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
    _say(report, export.lines_of(report), options.json)


def _inspect(options: argparse.Namespace) -> None:
    from prep import inspect

    report = inspect.inspect(_open(options), Path(options.path), options.documents)
    _say(report, inspect.lines_of(report), options.json)


def _verify(options: argparse.Namespace) -> None:
    from prep import inspect

    print("\n".join(inspect.verify(_open(options), options.path)))


def _plan(options: argparse.Namespace) -> None:
    from prep import plan_file, plan_page, plan_report

    if options.dp_world_size is not None and options.batch_size is None:
        options.refuse("--dp-world-size needs --batch-size")
    page = None if options.plot is None else Path(options.plot)
    if page is not None and page.suffix not in (".html", ".htm"):
        options.refuse(f"--plot writes HTML: {options.plot!r} does not end in .html")
    plan = plan_file.open_plan(options.path, seq_len=options.seq_len, split=options.split)
    report = plan_report.report(
        plan,
        options.samples or plan_report.num_samples_of(plan, options.tokens),
        batch_size=options.batch_size,
        dp_world_size=options.dp_world_size or 1,
    )
    if page is not None:
        page.write_text(plan_page.page(report, f"Plan {Path(options.path).name}"), "utf-8")
    _say({"plan": options.path, **report}, [options.path, *plan_report.lines_of(report)], options.json)
    if report["refused"]:
        raise nc.ExhaustedError(report["refused"])


def _trace(options: argparse.Namespace) -> None:
    from prep import find, plan_file, trace

    _check_trace(options)
    plan = plan_file.open_plan(options.path, seq_len=options.seq_len, split=options.split)
    if options.find is not None:
        stop = options.samples or trace.end_of_step(plan, options.step, options.batch_size)
        report = find.find(
            plan,
            options.find,
            stop,
            batch_size=options.batch_size,
            max_documents=options.max_documents or 10,
            text=options.text,
            full=options.full,
        )
        lines = find.lines_of(report)
    else:
        report = trace.report(
            plan,
            samples=options.sample,
            step=options.step,
            batch_size=options.batch_size,
            rank=options.rank or (0, 1),
            text=options.text,
            full=options.full,
        )
        lines = trace.lines_of(report)
    _say({"plan": options.path, **report}, lines, options.json)


def _check_trace(options: argparse.Namespace) -> None:
    """Refuse options that do not go together, by name."""
    if options.full and not options.text:
        options.refuse("--full needs --text")
    if options.step is not None and options.batch_size is None:
        options.refuse("--step needs --batch-size: which samples a step holds depends on it")
    if options.find is None:
        if (options.step is None) == (options.sample is None):
            options.refuse("give one of --step N --batch-size B, --sample N, or --find WHAT")
        if options.samples is not None:
            options.refuse("--samples goes with --find; to trace samples: --sample")
        if options.max_documents is not None:
            options.refuse("--max-documents goes with --find")
        if options.rank is not None and options.step is None:
            options.refuse("--rank goes with --step")
        return
    if options.sample is not None or options.rank is not None:
        options.refuse("--sample and --rank do not go with --find; to say how far the run is: --samples N")
    if (options.step is None) == (options.samples is None):
        options.refuse("--find needs one of --samples N and --step N --batch-size B: how far the run is")


def _open(options: argparse.Namespace) -> nc.Corpus:
    return nc.open_corpus(options.path, layout=options.layout, dtype=options.dtype, boundaries=options.boundaries)


def _say(report: dict[str, Any], lines: list[str], as_json: bool) -> None:
    print(json.dumps(report, indent=1, ensure_ascii=False) if as_json else "\n".join(lines))


def _sentence(error: Exception, options: argparse.Namespace) -> str:
    """Return what the error says; of an error of the system's own: where, what, and what to do."""
    if isinstance(error, KeyError):
        return str(error.args[0])
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = error.filename or getattr(options, "destination", None) or options.path
    advice = "; free some space and run the same command again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{os.fsdecode(where)}: {error.strerror}{advice}."


def _version() -> str:
    try:
        return metadata.version("millstream")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _rank(text: str) -> tuple[int, int]:
    rank, slash, world = text.partition("/")
    if not (slash and rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise argparse.ArgumentTypeError(f"{text!r} is no rank R/W, with 0 ≤ R < W, such as 3/8")
    return int(rank), int(world)
