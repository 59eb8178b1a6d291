"""``millstream plan``."""

from __future__ import annotations

import argparse
from pathlib import Path

import neutral_core as nc
from prep.commands.arguments import add_plan_file, positive, say


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the command\'s arguments."""
    add_plan_file(parser)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--samples", type=positive, metavar="N", help="the run is samples 0 … N - 1")
    length.add_argument("--tokens", type=positive, metavar="N", help="the run serves N targets")
    parser.add_argument("--batch-size", type=positive, metavar="B", help="rows of a global batch, to count steps")
    parser.add_argument("--dp-world-size", type=positive, metavar="W", help="ranks that share a batch (default: 1)")
    parser.add_argument("--plot", metavar="FILE", help="write a page with a plot of the sources over the run: .html")
    parser.add_argument("--json", action="store_true", help="print the report as plain data")
    parser.set_defaults(work=_plan, refuse=parser.error)


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
    say({"plan": options.path, **report}, [options.path, *plan_report.lines_of(report)], options.json)
    if report["refused"]:
        raise nc.ExhaustedError(report["refused"])
