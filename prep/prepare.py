"""``millstream prepare``: text becomes a corpus, or a training and a validation corpus, exactly once.

    inputs ──cut──▶ tasks ──tokenize, in processes──▶ pieces ──in the order of the tasks──▶ shards ──publish──▶ corpus

A piece is a shard file of ours under ``DST/.partial/pieces``, with a small result file beside it that appears last. The cut, and so every byte of the
result, depends on inputs and settings alone. A rerun after a crash takes the finished pieces and does the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format import canonical
from neutral_core.format.files import remove, write_file
from neutral_core.format.manifest import MANIFEST
from neutral_core.format.publish import publish, shard_name
from neutral_core.format.shard import Shard
from prep import engines, tasks
from prep.assembly import Assembly
from prep.pieces import (
    Job,
    Options,
    batches,
    characters_of,
    keep_open,
    piece_path,
    result_of,
    schema_of,
    share_of,
    size_of,
    splits_of,
    task_bytes_of,
    tokenize,
)
from prep.progress import Progress
from prep.readers.documents import SHOWN, Tally, place_of
from prep.readers.inputs import RULES, Input, Range, cut, find_inputs, stamp
from prep.report import baselines, why_dtype
from prep.tokenizers import Encoder, Encoding, Tokenizer, given, open_tokenizer, stored_files
from prep.tokenizers.files import digest
from prep.tokenizers.proof import PROOF_BYTES, check_excerpts, choose_engine

_BYTES_PER_PROCESS = 1 << 20  # a process takes a second to start, in which a tokenizer does about as much, or
_FAST = {"gigatoken": 1 << 27, "byte": 1 << 27, "char": 1 << 27, given.ENGINE: 1 << 27}  # much more
_COUNTED_TOKENS = 1 << 25  # ids by frequency: exact up to so many
_COUNTED_AT_ONCE = 1 << 19


def prepare(options: Options) -> dict[str, Any]:
    """Prepare a corpus and return the report: plain data, see ``lines_of``.

    One of several ranks does its own tasks; the last of them to finish puts the corpus together, and the report of the others has no corpora.

    Raises:
        ValueError: an option or a document; FileNotFoundError: an input or tokenizer; FileExistsError, BlockingIOError: see tasks.start.
    """
    if options.documents not in RULES:
        raise ValueError(f"documents is {options.documents!r}, expected one of {', '.join(RULES)}.")
    _check_ids(options)
    share = share_of(options.validation)
    inputs = find_inputs(options.inputs, options.glob, options.hub)
    # A wrong path or EOS is said before any work; characters are not known yet.
    tokenizer = None if options.tokenizer.kind == "char" else open_tokenizer(options.tokenizer)
    record = _record(options, inputs)
    options = replace(options, plan=_plan(record))
    several = options.rank.world_size > 1
    if several and options.restart:
        raise ValueError(
            "--restart is for one process, because ranks do not wait for each other: run it once with --rank 0/1 --restart."
        )
    try:
        place = tasks.start(
            options.destination, record, restart=options.restart, splits=splits_of(share), shared=several
        )
    except FileExistsError:
        if several and _is_finished(options, share):
            return _waiting_report(options, "the corpus is there: another rank put it together.")
        raise
    if place is None:
        return _existing_report(options, share)
    with place:
        return _prepare(options, place.path, inputs, record["inputs"], tokenizer)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The tasks of a run, where it works, with which tokenizer, what is said of that, and a check that the inputs are still the same."""

    jobs: Sequence[Job]
    place: Path
    tokenizer: Tokenizer
    note: str | None
    check: Callable[[], None]


def _prepare(
    options: Options,
    place: Path,
    inputs: Sequence[Input],
    stamps: Sequence[Sequence[Any]],
    tokenizer: Tokenizer | None,
) -> dict[str, Any]:
    task_bytes = options.task_bytes or task_bytes_of(inputs)
    ranges, last_limit = _first_tasks(cut(inputs, options.documents, task_bytes), options)
    if tokenizer is None:
        characters = _characters(ranges, place, options, last_limit)
        tokenizer = open_tokenizer(replace(options.tokenizer, characters=characters))
    allow_special = options.tokenizer.allow_special
    encoder: Encoder
    if options.ids_key is not None:
        encoder, engine, note = given.GivenEncoder(tokenizer.identity), given.ENGINE, None
    else:
        encoder, engine, note = choose_engine(
            options.tokenizer.engine, tokenizer, _first_texts(ranges, options), allow_special=allow_special
        )
    for name, content in stored_files(tokenizer).items():
        write_file(place / name, content)
    encoding = Encoding(folder=place, identity=tokenizer.identity, allow_special=allow_special, engine=engine)
    pieces = place / "pieces"
    pieces.mkdir(exist_ok=True)
    jobs = _jobs(ranges, last_limit, folder=pieces, options=options, encoding=encoding)
    run = _Run(jobs=jobs, place=place, tokenizer=tokenizer, note=note, check=partial(_refuse_changed, inputs, stamps))
    mine = options.rank.share(jobs)
    num_bytes = sum(size_of(part) for job in mine for part in job.ranges)
    workers = options.workers or _worth(num_bytes, engine, tokenizer, options.rank.workers())
    keep_open(encoding, encoder if workers <= 1 and options.engine == "local" else None)
    del encoder  # what the workers need, they open themselves
    try:
        with Progress("prepare", num_bytes) as progress:
            results = _done(mine, options, workers, tokenizer, progress)
            if options.rank.world_size == 1:
                return _finish(run, results)
            for _ in results:
                pass
    finally:
        keep_open(encoding, None)
    return _finish_as_last(run)


def _check_ids(options: Options) -> None:
    """Raise ValueError where what is said of ids does not fit together."""
    if options.limit is not None and (type(options.limit) is not int or options.limit < 1):
        raise ValueError(f"limit is {options.limit!r}, expected a positive number of documents.")
    kind = options.tokenizer.kind
    if options.ids_key is not None and kind == "char":
        raise ValueError("char makes its vocabulary of texts, and with --ids-key there are none: give --vocab-size N.")
    if kind != given.KIND and {options.tokenizer.vocab_size, options.tokenizer.eos_id, options.tokenizer.bos_id} != {
        None
    }:
        raise ValueError(
            "--vocab-size, --eos-id and --bos-id are for ids that no tokenizer is named for: leave them or --tokenizer out."
        )
    if options.ids_key is None and kind == given.KIND:
        raise ValueError("--vocab-size is for documents that are ids already: say with --ids-key where they are.")


def _first_tasks(
    ranges: Sequence[tuple[Range, ...]], options: Options
) -> tuple[Sequence[tuple[Range, ...]], int | None]:
    """Return the tasks that hold the documents asked for, and how many of the last one's are; None: all. Reads these documents, and none behind them."""
    left = options.limit
    for number, task in enumerate(ranges):
        if left is None:
            break
        found = 0
        for part in task:
            for batch in batches(part, options, Tally(), left - found):
                found += len(batch.texts)
        if found == left:
            return ranges[: number + 1], left
        left -= found
    return ranges, None


def _jobs(ranges: Sequence[tuple[Range, ...]], last_limit: int | None, **shared: Any) -> list[Job]:
    last = len(ranges) - 1
    return [
        Job(number=number, ranges=task, limit=last_limit if number == last else None, **shared)
        for number, task in enumerate(ranges)
    ]


def _worth(num_bytes: int, engine: str, tokenizer: Tokenizer, most: int) -> int:
    """Return how many processes are worth their start."""
    kind = engine if engine in _FAST else tokenizer.identity.kind
    return max(min(num_bytes // _FAST.get(kind, _BYTES_PER_PROCESS), most), 1)


def _done(
    jobs: Sequence[Job], options: Options, workers: int, tokenizer: Tokenizer, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Do the tasks and yield their results, in order."""
    for result in engines.run(options.engine, tokenize, jobs, workers):
        check_excerpts(tokenizer, result["excerpts"])
        progress.add(result["stored_bytes"], result["documents"], result["tokens"])
        yield result


def _finish_as_last(run: _Run) -> dict[str, Any]:
    """Put the corpus together if all ranks have done their tasks and none of them does it already."""
    options = run.jobs[0].options
    try:
        with tasks.held(run.place / "assembly", wait=False) as mine:
            results = [result_of(job) for job in run.jobs] if mine else []
            for result in results:
                check_excerpts(run.tokenizer, result["excerpts"] if result else [])
            left = sum(result is None for result in results)
            if (
                mine
                and not left
                and not (options.destination / splits_of(share_of(options.validation))[-1] / MANIFEST).exists()
            ):
                return _finish(run, cast("list[dict[str, Any]]", results))
    except FileNotFoundError:  # another rank has finished the run, and removed its workplace
        if not _is_finished(options, share_of(options.validation)):
            raise
        left = 0
    if left:
        return _waiting_report(
            options,
            f"{left:,} of {len(run.jobs):,} tasks are other ranks' and not done yet: the last to finish puts the corpus together.",
        )
    return _waiting_report(options, "another rank puts the corpus together.")


def _finish(run: _Run, results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Assemble the pieces as their results come, then publish; return the report."""
    options = run.jobs[0].options
    splits = splits_of(share_of(options.validation))
    kept, paths = _assemble(
        run.jobs, results, {split: run.place / f"shards-{split or 'all'}" for split in splits}, run.tokenizer.identity
    )
    run.check()
    report = _report_head(run, kept)
    for split in splits:
        target = options.destination / split
        publish(target, paths[split], stored_files(run.tokenizer))
        report["corpora"].append(_corpus_entry(split, target, sum(result["text_bytes"][split] for result in kept)))
    tasks.finish(options.destination, splits)
    return report


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    from prep.report import corpus_lines

    lines = [line for entry in report["corpora"] for line in corpus_lines(entry["path"], entry)]
    if any(not entry["documents"] for entry in report["corpora"]) and len(report["corpora"]) > 1:
        lines.append("  documents are split whole: --documents line or blank-line makes more of them, if these are few")
    if "why_dtype" in report:
        lines.append(f"tokens are stored as {report['why_dtype']}")
    lines.extend(report["notes"])
    if report["empty_lines"]:
        lines.append(f"{report['empty_lines']:,} empty lines passed over")
    if report.get("mended"):
        lines.append(f"{report['mended']:,} documents kept with U+FFFD in the place of what is not UTF-8")
    if report["skipped"]:
        kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(report["skipped_by_kind"].items()))
        lines.append(f"{report['skipped']:,} bad documents left out ({kinds}), the first of them:")
        lines.extend(f"  {reason}" for reason in report["reasons"])
    return lines


def page_of(report: Mapping[str, Any]) -> str:
    """Return the report as a page with plots; reads the corpora once more."""
    from prep.report import corpus_lines
    from prep.report_page import page
    from prep.survey import survey

    known = {name: text_bytes for name, (text_bytes, _, _) in report.get("sources", {}).items()}
    entries = []
    for entry in report["corpora"]:
        found = survey(nc.open_corpus(entry["path"]))
        if len(report["corpora"]) == 1:  # bytes are counted by file, not by split
            for source in found["sources"]:
                source["text_bytes"] = known.get(source["source"])
        entries.append(
            {
                **entry,
                **found,
                "lines": [line.removeprefix(f"{entry['path']}: ") for line in corpus_lines(entry["path"], entry)],
            }
        )
    return page(
        entries,
        "millstream prepare",
        notes=[f"Tokens are stored as {report['why_dtype']}.", *report["notes"]],
        reasons=report["reasons"],
        skipped={
            **report.get("skipped_by_kind", {}),
            **({"empty lines": report["empty_lines"]} if report["empty_lines"] else {}),
        },
    )


def _record(options: Options, inputs: Sequence[Input]) -> dict[str, Any]:
    """Return what must be the same for leftovers to be used."""
    settings = {
        key: value
        for key, value in asdict(options).items()
        if key not in ("inputs", "destination", "workers", "restart", "engine", "rank", "plan")
    }
    path = options.tokenizer.path
    del settings["tokenizer"]["engine"]  # ids don't depend on it
    definition = None
    if path is not None:
        definition = digest(path)
        settings["tokenizer"]["path"] = os.fsencode(path).decode("utf-8", errors="backslashreplace")
    files = [stamp(item) for item in inputs]
    return {"command": "prepare", "version": 3, "tokenizer definition": definition, "inputs": files, **settings}


def _plan(record: Mapping[str, Any]) -> str:
    """Return the digest of a record but for places and times: what a corpus was made of, and how."""
    content = {
        **record,
        "inputs": [entry[:2] for entry in record["inputs"]],
        "tokenizer": {**record["tokenizer"], "path": None},
    }
    return hashlib.sha256(canonical.dumps(content)).hexdigest()


def _first_texts(ranges: Sequence[tuple[Range, ...]], options: Options) -> list[str]:
    """Return the corpus' own first documents, about 256 KiB, for a proof; what is wrong with one of them is said when it is read for good."""
    found: list[str] = []
    size = 0
    for part in chain.from_iterable(ranges):
        for batch in batches(part, replace(options, on_bad="skip"), Tally()):
            found += batch.texts
            size += sum(map(len, batch.texts))
            if size >= PROOF_BYTES:
                return found
    return found


def _refuse_changed(inputs: Sequence[Input], stamps: Sequence[Sequence[Any]]) -> None:
    """Raise ValueError where a file is no longer as it was when the work was cut: its documents could be of two versions, or left out."""
    for item, before in zip(inputs, stamps, strict=True):
        if stamp(item) != list(before):
            raise ValueError(
                f"{item.path}: it was changed while it was being read: wait until nothing writes to it, then run the same command with --restart."
            )


def _characters(ranges: Sequence[tuple[Range, ...]], place: Path, options: Options, last_limit: int | None) -> str:
    """Return the characters that occur, sorted; found once and kept for a rerun."""
    path = place / "characters.json"
    if path.exists():
        return str(json.loads(path.read_bytes()))
    found: set[str] = set()
    jobs = _jobs(ranges, last_limit, folder=place, options=options)
    workers = options.workers or options.rank.workers()
    for characters in engines.run(options.engine, characters_of, jobs, workers):
        found.update(characters)
    text = "".join(sorted(found))
    write_file(path, canonical.dumps(text))
    return text


def _assemble(
    jobs: Sequence[Job], results: Iterable[dict[str, Any]], folders: Mapping[str, Path], identity: nc.TokenizerIdentity
) -> tuple[list[dict[str, Any]], dict[str, list[Path]]]:
    """Write the pieces of each split, in order, as shards, while results come; return the results, and the shards of each split."""
    options = jobs[0].options
    kept: list[dict[str, Any]] = []
    lines_before: dict[str, int] = {}
    with ExitStack() as stack:
        assemblies = {}
        for split, folder in folders.items():
            if folder.exists():
                remove(folder)
            folder.mkdir()
            assemblies[split] = stack.enter_context(
                Assembly(folder, schema_of(identity, options), options.tokens_per_shard)
            )
        for job, result in zip(jobs, results, strict=True):
            kept.append(result)
            # A range inside a file counts lines from its own first one; all ranges but the only one of a task begin at line 1.
            base = lines_before.get(job.ranges[0].input.path, 0) if job.ranges[0].start else 0
            lines_before = {job.ranges[-1].input.path: base + result["lines"][-1]}
            for split, assembly in assemblies.items():
                assembly.add(piece_path(job, split), base)
        return kept, {split: assembly.close() for split, assembly in assemblies.items()}


def _report_head(run: _Run, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    jobs, tokenizer = run.jobs, run.tokenizer
    skipped = [
        (job.ranges, *entry) for job, result in zip(jobs, results, strict=True) for entry in result["first_skipped"]
    ]
    return {
        "corpora": [],
        "why_dtype": why_dtype(given.recorded(tokenizer.identity), tokenizer.identity.vocab_size),
        "notes": [*tokenizer.notes, *([run.note] if run.note else []), *_notes(jobs[-1], results)],
        "tasks": len(jobs),
        "sources": _sources(jobs, results),
        "lengths_histogram": _histograms(results),
        "empty_lines": sum(result["empty_lines"] for result in results),
        "skipped": sum(result["skipped"] for result in results),
        "skipped_by_kind": dict(sum((Counter(result["skipped_by_kind"]) for result in results), Counter())),
        "mended": sum(result["mended"] for result in results),
        "reasons": [f"{place_of(ranges[index], at, line)}: {why}." for ranges, index, at, line, why in skipped[:SHOWN]],
    }


def _notes(last: Job, results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield sentences on what was asked for and came otherwise than it may have been meant."""
    limit, documents = last.options.limit, sum(result["documents"] for result in results)
    if limit is not None and documents == limit:
        yield f"--limit: the first {limit:,} documents of the inputs alone."
    elif limit is not None:
        yield f"--limit is {limit:,}, but the inputs have no more than {documents:,} documents."
    ended = sum(result["ended"] for result in results)
    if ended:
        yield f"{ended:,} documents ended with EOS before --append-eos put another one behind them: leave it out if that is not meant."


def _sources(jobs: Sequence[Job], results: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return bytes of text, documents and tokens by input: of each file, or of each folder where there are more than a thousand files."""
    found: dict[str, list[int]] = {}
    names = {part.input.name for job in jobs for part in job.ranges}
    for job, result in zip(jobs, results, strict=True):
        for part, counts in zip(job.ranges, result["sources"], strict=True):
            name = part.input.name if len(names) <= 1000 else part.input.name.rpartition("/")[0] or "."
            found[name] = [a + b for a, b in zip(found.get(name, [0, 0, 0]), counts, strict=True)]
    return found


def _histograms(results: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return by split how many documents have 0, 1, 2 … 3, 4 … 7, … tokens."""
    found: dict[str, list[int]] = {}
    for result in results:
        for split, counts in result["lengths_histogram"].items():
            found[split] = [a + b for a, b in zip_longest(found.get(split, []), counts, fillvalue=0)]
    return found


def _corpus_entry(split: str, path: Path, text_bytes: int) -> dict[str, Any]:
    corpus = nc.open_corpus(path)
    counts = counts_of(corpus)
    seen = int(counts.sum())
    return {
        "split": split,
        "path": str(path),
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "shards": corpus.num_shards,
        "bytes": sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
        "fingerprint": corpus.fingerprint,
        "text_bytes": text_bytes,
        **baselines(counts, len(counts), round(text_bytes * seen / corpus.num_tokens) if seen else None),
    }


def counts_of(corpus: nc.Corpus) -> npt.NDArray[np.int64]:
    """Return how often each id occurs: int64[vocab_size]; of a corpus of more than 2^25 tokens, in as many that are evenly spread over it."""
    counts = np.zeros(corpus.vocab_size or 1, dtype=np.int64)
    step = max(corpus.num_tokens / (_COUNTED_TOKENS // _COUNTED_AT_ONCE), _COUNTED_AT_ONCE)
    for number in range(-int(-corpus.num_tokens // step)):
        start = int(number * step)
        counts += np.bincount(
            corpus.tokens(start, min(start + _COUNTED_AT_ONCE, corpus.num_tokens)), minlength=len(counts)
        )
        corpus.release()  # mapped pages count as memory
    return counts


def _waiting_report(options: Options, note: str) -> dict[str, Any]:
    """Return the report of a rank that puts nothing together."""
    where = f"rank {options.rank.rank} of {options.rank.world_size}"
    said = f" ({options.rank.launcher})" if options.rank.launcher else ""
    return {
        "corpora": [],
        "notes": [f"{where}{said}: its tasks are done; {note}"],
        "empty_lines": 0,
        "skipped": 0,
        "reasons": [],
    }


def _is_finished(options: Options, share: Fraction | None) -> bool:
    """Return whether the destination holds the whole corpus of the same inputs and settings."""
    for split in splits_of(share):
        try:
            manifest = nc.open_corpus(options.destination / split)
        except (FileNotFoundError, nc.FormatError):
            return False
        shard = Shard(options.destination / split / shard_name(0))
        if shard.open().provenance.get("plan") != options.plan or not manifest.num_shards:
            return False
    return True


def _existing_report(options: Options, share: Fraction | None) -> dict[str, Any]:
    """Return the report of a run that had finished but for its last clean-up."""
    report: dict[str, Any] = {
        "corpora": [],
        "notes": ["an earlier run had finished; nothing was left to do"],
        "empty_lines": 0,
        "skipped": 0,
        "reasons": [],
    }
    for split in splits_of(share):
        path = options.destination / split
        corpus = nc.open_corpus(path)
        report["corpora"].append(_corpus_entry(split, path, 0))
        report["why_dtype"] = why_dtype(corpus.tokenizer, corpus.vocab_size or 1)
    return report
