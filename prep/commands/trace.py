"""``millstream trace``."""

from __future__ import annotations

import argparse

from prep.commands.arguments import add_plan_file, count, positive, rank, say


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command\'s arguments."""
    add_plan_file(parser)
    parser.add_argument("--step", type=count, metavar="N", help="the global batch number N, from 0")
    parser.add_argument(
        "--batch-size", type=positive, metavar="B", help="rows of a global batch, the same at all steps"
    )
    parser.add_argument("--rank", type=rank, metavar="R/W", help="only what rank R of W reads of the step")
    parser.add_argument("--sample", type=count, nargs="+", metavar="N", help="these samples, instead of a step's")
    parser.add_argument("--text", action="store_true", help="show the text; ids where the tokenizer is not known")
    parser.add_argument("--full", action="store_true", help="show long text whole")
    parser.add_argument(
        "--find",
        metavar="WHAT",
        help="when it was seen: a document as SOURCE:NUMBER (NUMBER in a plan of one source), else a text",
    )
    parser.add_argument(
        "--samples",
        type=positive,
        metavar="N",
        help="with --find: so far are samples 0 … N - 1; or --step N: that step and those before",
    )
    parser.add_argument(
        "--max-documents",
        type=positive,
        metavar="N",
        help="with --find TEXT: stop after N documents that hold it (default: 10)",
    )
    parser.add_argument("--json", action="store_true", help="print plain data")
    parser.set_defaults(work=_trace, refuse=parser.error)


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
    say({"plan": options.path, **report}, lines, options.json)


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
