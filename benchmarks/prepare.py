"""``millstream prepare`` beside a bare loop of the same library and beside peers: whole processes, from start to exit, in turn, in one run.

    python benchmarks/prepare.py FILE.jsonl --tokenizer TOKENIZER.json [--repeats N] [--folder DIR] [--slow-megabytes N] [--only TEXT ...]
        [--peers PYTHON] [--megatron CHECKOUT] [--memory]

FILE: lines of JSON with "text". See benchmarks/prepare_peers.py for the bare loops, the peers and their environment; what is not there is left out,
aloud. MB/s: bytes of text (UTF-8) by seconds. Ratios to the bare loop of the same library and as many processes are taken within a round; figures are
medians of rounds. CPU seconds and memory are of the whole tree of processes; memory is the largest sum of resident sets seen, pages of mapped
files and shared ones counted in each. The input is in the cache. In the first round all tokens of our corpora are compared with the bare loop's.
Libraries at 5 MB/s read only the first N MB of the file (--slow-megabytes), and their rows say their own rates.

--memory: the same command on heads of the file of 10 MB, 100 MB, … and the whole, and no comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numpy as np
from processes import FailedError, Measured, run

import neutral_core as nc

HERE = Path(__file__).resolve().parent
CORES = os.cpu_count() or 1
OUT = "{out}"  # in a command: where it writes


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is run: commands at the same time; ``like``: the name of the bare loop to compare with."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    file: Path
    like: str
    environment: dict[str, str]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--eos-token", default="<|endoftext|>")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for what is written (default: the system's for temporary files)")
    parser.add_argument("--slow-megabytes", type=int, default=20)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="cases whose names have one of these in them")
    parser.add_argument("--peers", metavar="PYTHON", help="of the peers' environment")
    parser.add_argument("--megatron", type=Path, metavar="CHECKOUT", help="of Megatron-LM")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-prepare-", dir=options.folder) as folder:
        memory(options, Path(folder)) if options.memory else compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> None:
    """Run all cases in turn, some rounds of them."""
    slow = head(options.file, options.slow_megabytes * 10**6, folder / "slow.jsonl")
    cases = [*ours(options, options.file, slow, folder / "millstream"), *peers(options, slow, folder)]
    if options.only:
        cases = [case for case in cases if any(text in case.name for text in options.only)]
    text = {path: text_bytes(path) for path in {case.file for case in cases}}
    rounds: list[dict[str, Measured]] = []
    written = {}
    for number in range(options.repeats):
        rounds.append({})
        for place, case in enumerate(cases):
            if (found := attempt(case, folder / str(place))) is not None:
                rounds[-1][case.name] = found
        if number == 0:
            written = {case.name: size_of(folder / str(place)) for place, case in enumerate(cases)}
            check(cases, folder)
    print(f"\n{len(rounds)} rounds; " + "; ".join(f"{path.name}: {size / 1e6:,.0f} MB" for path, size in text.items()))
    print(f"| {'text to ids':54} | text, MB/s | of bare |      s |  CPU s | peak, MiB | written, MB |")
    print(f"|{'-' * 56}|{'-' * 12}|{'-' * 9}|{'-' * 8}|{'-' * 8}|{'-' * 11}|{'-' * 13}|")
    for case in cases:
        if rows := [row for row in rounds if case.name in row]:
            print(line_of(case, rows, text[case.file], written[case.name]))


def line_of(case: Case, rows: list[dict[str, Measured]], text: int, written: int) -> str:
    """Return a line of the table."""
    own = [row[case.name] for row in rows]
    seconds = statistics.median(each.seconds for each in own)
    ratios = [row[case.like].seconds / row[case.name].seconds for row in rows if case.like in row]
    ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
    cpu, tree = (statistics.median(values) for values in zip(*((x.cpu_seconds, x.tree) for x in own), strict=True))
    return (
        f"| {case.name:54} | {text / seconds / 1e6:10.1f} | {ratio:>7} | {seconds:6.2f} | {cpu:6.2f} "
        f"| {tree / 2**20:9,.0f} | {written / 1e6:11,.1f} |"
    )


def ours(options: argparse.Namespace, file: Path, slow: Path, script: Path) -> list[Case]:
    """Return the bare loops, and ``millstream prepare`` with one process and with as many as it takes by itself."""
    cases = []
    for library, path in (("gigatoken", file), ("tokenizers", slow)):
        if find_spec(library) is None:
            print(f"left out: {library} (it is not installed)")
            continue
        for workers in sorted({1, CORES}):
            # The tokenizers library has threads of its own; gigatoken gets a process for each part of the file.
            parts = workers if library == "gigatoken" else 1
            environment = {"PYTHONPATH": str(HERE.parent), "TOKENIZERS_PARALLELISM": str(workers > 1).lower()}
            told = ("--eos-id", str(eos_id(options)), "--dtype", dtype(options))
            bare = _peer(options, sys.executable, library, path, *told)
            like = bare_name(library, workers)
            commands = tuple((*bare, "--part", f"{part}/{parts}") for part in range(parts))
            cases.append(Case(name=like, commands=commands, file=path, like=like, environment=environment))
            command = [*millstream(options, script, path), "--tokenizer-engine", library]
            command += ["--workers", "1"] if workers == 1 else []
            name = f"{library}: millstream prepare, {'--workers 1' if workers == 1 else 'default workers'}"
            cases.append(Case(name=name, commands=(tuple(command),), file=path, like=like, environment=environment))
    return cases


def bare_name(library: str, workers: int) -> str:
    """Return the name of a bare loop."""
    kind = "threads" if library == "tokenizers" and workers > 1 else "processes" if workers > 1 else "process"
    return f"{library}: bare loop, {workers} {kind}"


def peers(options: argparse.Namespace, slow: Path, folder: Path) -> list[Case]:
    """Return the peers that are there."""
    if options.peers is None:
        print("left out: Megatron's and datatrove's (no --peers)")
        return []
    cases = []
    if options.megatron is None:
        print("left out: Megatron's (no --megatron)")
    else:
        checkout = ("--megatron", str(options.megatron))
        command = _peer(options, options.peers, "megatron-fast", options.file, *checkout)
        like = bare_name("gigatoken", CORES)
        cases.append(_peers_case("gigatoken: Megatron preprocess_data_fast.py", command, options.file, like))
        for workers in sorted({1, CORES}):
            command = _peer(options, options.peers, "megatron", slow, *checkout, "--workers", str(workers))
            name = f"tokenizers: Megatron preprocess_data.py, --workers {workers}"
            cases.append(_peers_case(name, command, slow, bare_name("tokenizers", workers)))
    for workers in sorted({1, CORES}):
        parts = split(slow, folder / f"parts-{workers}", workers)
        command = _peer(options, options.peers, "datatrove", parts, "--workers", str(workers))
        name = f"tokenizers: datatrove DocumentTokenizer, {workers} {'tasks' if workers > 1 else 'task'}"
        cases.append(_peers_case(name, command, slow, bare_name("tokenizers", workers)))
    return cases


def _peers_case(name: str, command: tuple[str, ...], file: Path, like: str) -> Case:
    environment = {"TOKENIZERS_PARALLELISM": "false"}  # they have processes, as ours
    return Case(name=name, commands=(command,), file=file, like=like, environment=environment)


def _peer(options: argparse.Namespace, python: str, what: str, file: Path, *more: str) -> tuple[str, ...]:
    given = ("--tokenizer", str(options.tokenizer), "--eos-token", options.eos_token)
    return (python, str(HERE / "prepare_peers.py"), what, str(file), OUT, *given, *more)


def millstream(options: argparse.Namespace, script: Path, file: Path) -> tuple[str, ...]:
    """Return the command, of this checkout, as pip would install it."""
    script.write_text("from prep.cli import run\n\nif __name__ == '__main__':\n    run()\n")
    given = ("--tokenizer", str(options.tokenizer), "--append-eos", "--eos-token", options.eos_token)
    return (sys.executable, str(script), "prepare", str(file), OUT, *given)


def eos_id(options: argparse.Namespace) -> int:
    """Return the id of the EOS token."""
    added = json.loads(options.tokenizer.read_bytes())["added_tokens"]
    return next(int(token["id"]) for token in added if token["content"] == options.eos_token)


def dtype(options: argparse.Namespace) -> str:
    """Return the narrowest dtype of the ids."""
    definition = json.loads(options.tokenizer.read_bytes())
    last = max([*definition["model"]["vocab"].values(), *(token["id"] for token in definition["added_tokens"])])
    return "uint16" if last < 1 << 16 else "uint32"


def attempt(case: Case, out: Path, *, shares: bool = False) -> Measured | None:
    """Run a case, what it wrote before being gone; say and return None where it fails."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    commands = [
        [part.replace(OUT, str(out / f"out{place}")) for part in command] for place, command in enumerate(case.commands)
    ]
    try:
        return run(commands, case.environment, out / "log", shares=shares)
    except FailedError as error:
        print(f"left out: {case.name} ({error})", flush=True)
        return None


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder but the log."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path != folder / "log")


def check(cases: list[Case], folder: Path) -> None:
    """Compare all tokens of our corpora with those that the bare loop wrote."""
    places = {case.name: folder / str(place) for place, case in enumerate(cases)}
    for name, place in places.items():
        like = next(case.like for case in cases if case.name == name)
        if "millstream" not in name or not (place / "out0" / "dataset.json").exists() or like not in places:
            continue
        corpus, at = nc.open_corpus(place / "out0"), 0
        for part in sorted(places[like].glob("out*"), key=lambda path: int(path.name[3:])):
            if part.stat().st_size == 0:  # more processes than documents
                continue
            bare = np.memmap(part, dtype=corpus.dtype, mode="r")
            for start in range(0, len(bare), 1 << 24):
                some = bare[start : start + (1 << 24)]
                if not np.array_equal(corpus.tokens(at, min(at + len(some), corpus.num_tokens)), some):
                    raise SystemExit(f"{name}: other tokens than those of {like} at {at:,} … {at + len(some):,}.")
                at += len(some)
        if at != corpus.num_tokens:
            raise SystemExit(f"{name}: {corpus.num_tokens:,} tokens, and {at:,} of {like}.")
        print(f"the same {at:,} tokens: {name}; {like}", flush=True)


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Run the command on heads of the file and print a table of its memory."""
    print(f"| {'first MB of the file':>20} | MB/s | the process | largest worker | all, RSS | all, PSS  MiB |")
    print(f"|{'-' * 22}|{'-' * 6}|{'-' * 13}|{'-' * 16}|{'-' * 10}|{'-' * 15}|")
    whole = options.file.stat().st_size
    for size in [*(10**power for power in range(7, 13) if 10**power < 0.9 * whole), whole]:
        file = head(options.file, size, folder / "head.jsonl")
        command = millstream(options, folder / "millstream", file)
        case = Case(name=f"{size:,}", commands=(command,), file=file, like="", environment={"PYTHONPATH": str(HERE.parent)})  # fmt: skip
        if (found := attempt(case, folder / "corpus", shares=True)) is not None:
            sizes = [f"{each / 2**20:,.0f}" for each in (found.first, found.other, found.tree, found.shares)]
            print(
                f"| {file.stat().st_size / 1e6:20,.0f} | {file.stat().st_size / found.seconds / 1e6:4.0f} "
                f"| {sizes[0]:>11} | {sizes[1]:>14} | {sizes[2]:>8} | {sizes[3]:>13} |",
                flush=True,
            )


def head(file: Path, size: int, to: Path) -> Path:
    """Write the first lines of a file, up to the one that reaches the size; return the new file, or the old one where that is all of it."""
    if size >= file.stat().st_size:
        return file
    with open(file, "rb") as lines, open(to, "wb") as out:
        while out.tell() < size and (line := lines.readline()):
            out.write(line)
    return to


def split(file: Path, folder: Path, parts: int) -> Path:
    """Write the lines of a file as so many files of a folder, in turn."""
    folder.mkdir()
    with ExitStack() as stack:
        files = [stack.enter_context(open(folder / f"{number}.jsonl", "wb")) for number in range(parts)]
        for line, out in zip(stack.enter_context(open(file, "rb")), cycle(files), strict=False):
            out.write(line)
    return folder


def text_bytes(file: Path) -> int:
    """Return the bytes of all texts, UTF-8."""
    with open(file, "rb") as lines:
        return sum(len(json.loads(line)["text"].encode()) for line in lines)


if __name__ == "__main__":
    main()
