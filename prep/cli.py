"""The command ``millstream``: arguments in, work elsewhere (``prep.commands``), reports out.

Exit status 0: done; 1: it failed, one sentence on standard error; 2: the command line is wrong; 130: stopped by Ctrl-C. ``convert``, ``export``,
``inspect``, ``verify``, and ``plan`` and ``trace`` over a plan in JSON, need numpy alone.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import neutral_core as nc
from prep.extras import MissingExtraError

_COMMANDS = (
    ("prepare", "text becomes a corpus"),
    ("convert", "a data set of another layout becomes a corpus"),
    ("inspect", "say what a corpus or a data set of another layout holds"),
    ("verify", "check every byte of a corpus"),
    ("merge", "several corpora become one"),
    ("split", "a corpus becomes one for training and one for validation"),
    ("reshard", "the shards of a corpus are cut anew"),
    ("export", "a corpus becomes files that other tools read"),
    ("plan", "say what a run over a plan will read"),
    ("trace", "say what was in a step, or when a text was seen"),
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
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(given[0] if given else "").parse_args(given)
    try:
        options.work(options)
    except KeyboardInterrupt:
        command = shlex.join(["millstream", *given])
        print(f"millstream: stopped; run the same command again to go on from here: {command}", file=sys.stderr)
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


def _parser(asked: str) -> argparse.ArgumentParser:
    """Return the parser; of the commands only the one that is asked for is loaded."""
    parser = _Parser(
        prog="millstream", description="Text in once, batches out: prepare, convert, look at and check corpora."
    )
    parser.add_argument(
        "--version", action="version", version=f"millstream {_version()}" if asked == "--version" else ""
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, what in _COMMANDS:
        command = commands.add_parser(name, help=what, allow_abbrev=False)
        if name == asked:
            import_module(f"prep.commands.{name}").add(command)
    return parser


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
    from importlib import metadata

    try:
        return metadata.version("millstream")
    except metadata.PackageNotFoundError:
        return "(not installed)"
