"""``millstream prepare``: text becomes a corpus, or a training and a validation corpus, exactly once.

    inputs ──cut──▶ tasks ──tokenize, in processes──▶ pieces ──in the order of the tasks──▶ shards ──publish──▶ corpus

A piece is a shard file of ours under ``DST/.partial/pieces``, with a small result file beside it that appears last. The cut, and so every byte of the
result, depends on inputs and settings alone. A rerun after a crash takes the finished pieces and does the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format import canonical
from neutral_core.format.files import remove, write_file
from neutral_core.format.publish import publish
from neutral_core.format.shard import Shard
from neutral_core.format.writer import ShardSeries
from prep import tasks
from prep.pieces import Job, Options, characters_of, piece_path, schema_of, share_of, splits_of, tokenize, tokenizer_of
from prep.progress import Progress
from prep.readers.documents import SHOWN, place_of
from prep.readers.inputs import RULES, Input, Range, cut, find_inputs, stamp
from prep.report import baselines, why_dtype
from prep.tokenizers import DEFINITION, open_tokenizer

_CHUNK_DOCUMENTS = 4096


def prepare(options: Options) -> dict[str, Any]:
    """Prepare a corpus and return the report: plain data, see ``lines_of``.

    Raises:
        ValueError: an option or a document; FileNotFoundError: an input or tokenizer; FileExistsError, BlockingIOError: see tasks.start.
    """
    if options.documents not in RULES:
        raise ValueError(f"documents is {options.documents!r}, expected one of {', '.join(RULES)}.")
    share = share_of(options.validation)
    inputs = find_inputs(options.inputs, options.glob)
    settings = options.tokenizer
    tokenizer_of.cache_clear()  # its file may have changed since an earlier call
    if settings.kind != "char":
        open_tokenizer(settings)  # a wrong path or EOS is said before any work
    record = _record(options, inputs)
    place = tasks.start(options.destination, record, restart=options.restart, splits=splits_of(share))
    if place is None:
        return _existing_report(options, share)
    with place:
        ranges = cut(inputs, options.documents, options.task_bytes)
        if settings.kind == "char":
            settings = replace(settings, characters=_characters(ranges, place.path, options))
        options = replace(options, tokenizer=settings)
        tokenizer = open_tokenizer(settings)
        pieces = place.path / "pieces"
        pieces.mkdir(exist_ok=True)
        jobs = [Job(number=number, ranges=task, folder=pieces, options=options) for number, task in enumerate(ranges)]
        results = []
        with Progress("prepare", sum(item.num_bytes for item in inputs)) as progress:
            for result in tasks.run(tokenize, jobs, options.workers):
                results.append(result)
                progress.add(result["stored_bytes"], result["documents"], result["tokens"])
        _refuse_changed(inputs, record["inputs"])
        report = _report_head(tokenizer, jobs, results)
        extra = {} if tokenizer.definition is None else {DEFINITION: tokenizer.definition}
        for split in splits_of(share):
            target = options.destination / split
            counts, paths = _assemble(split, jobs, results, place.path / f"shards-{split or 'all'}", tokenizer.identity)
            publish(target, paths, extra)
            report["corpora"].append(
                _corpus_entry(split, target, counts, sum(result["text_bytes"][split] for result in results))
            )
        tasks.finish(options.destination, splits_of(share))
    return report


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    from prep.report import corpus_lines

    lines = [line for entry in report["corpora"] for line in corpus_lines(entry["path"], entry)]
    if any(not entry["documents"] for entry in report["corpora"]) and len(report["corpora"]) > 1:
        lines.append("  documents are split whole: --documents line or blank-line makes more of them, if these are few")
    lines.append(f"tokens are stored as {report['why_dtype']}")
    lines.extend(report["notes"])
    if report["empty_lines"]:
        lines.append(f"{report['empty_lines']:,} empty lines passed over")
    if report["skipped"]:
        lines.append(f"{report['skipped']:,} bad documents left out, the first of them:")
        lines.extend(f"  {reason}" for reason in report["reasons"])
    return lines


def _record(options: Options, inputs: Sequence[Input]) -> dict[str, Any]:
    """Return what must be the same for leftovers to be used."""
    settings = {
        key: value
        for key, value in asdict(options).items()
        if key not in ("inputs", "destination", "workers", "restart")
    }
    path = options.tokenizer.path
    definition = None
    if path is not None:
        file = Path(path).expanduser()
        definition = hashlib.sha256((file / DEFINITION if file.is_dir() else file).read_bytes()).hexdigest()
        settings["tokenizer"]["path"] = os.fsencode(path).decode("utf-8", errors="backslashreplace")
    files = [stamp(item) for item in inputs]
    return {"command": "prepare", "version": 2, "tokenizer definition": definition, "inputs": files, **settings}


def _refuse_changed(inputs: Sequence[Input], stamps: Sequence[Sequence[Any]]) -> None:
    """Raise ValueError where a file is no longer as it was when the work was cut: its documents could be of two versions, or left out."""
    for item, before in zip(inputs, stamps, strict=True):
        if stamp(item) != list(before):
            raise ValueError(
                f"{item.path}: it was changed while it was being read: wait until nothing writes to it, then run the same command with --restart."
            )


def _characters(ranges: Sequence[tuple[Range, ...]], place: Path, options: Options) -> str:
    """Return the characters that occur, sorted; found once and kept for a rerun."""
    path = place / "characters.json"
    if path.exists():
        return str(json.loads(path.read_bytes()))
    found: set[str] = set()
    jobs = [Job(number=number, ranges=task, folder=place, options=options) for number, task in enumerate(ranges)]
    for characters in tasks.run(characters_of, jobs, options.workers):
        found.update(characters)
    text = "".join(sorted(found))
    write_file(path, canonical.dumps(text))
    return text


def _assemble(
    split: str, jobs: Sequence[Job], results: Sequence[Mapping[str, Any]], folder: Path, identity: nc.TokenizerIdentity
) -> tuple[npt.NDArray[np.int64], list[Path]]:
    """Write the pieces of a split, in order, as shards; return how often each id occurs, and the shards."""
    options = jobs[0].options
    if folder.exists():
        remove(folder)
    folder.mkdir()
    counts = np.zeros(identity.vocab_size, dtype=np.int64)
    series = ShardSeries(folder, schema_of(identity, options), options.tokens_per_shard)
    lines_before: dict[str, int] = {}
    try:
        for job, result in zip(jobs, results, strict=True):
            # A range inside a file counts lines from its own first one; all ranges but the only one of a task begin at line 1.
            base = lines_before.get(job.ranges[0].input.path, 0) if job.ranges[0].start else 0
            lines_before = {job.ranges[-1].input.path: base + result["lines"][-1]}
            for tokens, lengths, fields in _chunks(Shard(piece_path(job, split), check="blocks"), base):
                series.add_many(tokens, lengths, fields)
                counts += np.bincount(tokens, minlength=identity.vocab_size)
        return counts, series.close()
    except nc.FormatError as error:
        series.abort()
        raise nc.FormatError(
            f"a piece of this run was damaged: run the same command with --restart, to make it anew ({error})"
        ) from None
    except BaseException:
        series.abort()
        raise


def _chunks(piece: Shard, line_base: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int64], dict[str, Any]]]:
    """Yield the documents of a piece, some thousands at a time, with their fields."""
    fields = piece.open().fields
    for first in range(0, piece.num_documents, _CHUNK_DOCUMENTS):
        last = min(first + _CHUNK_DOCUMENTS, piece.num_documents)
        offsets = piece.offsets().at(np.arange(first, last + 1))
        values: dict[str, Any] = {}
        if fields:
            values["document.line"] = piece.items("document.line", first, last) + line_base
            edges = piece.items("ragged.path.offsets", first, last + 1)
            values["ragged.path"] = (piece.items("ragged.path", int(edges[0]), int(edges[-1])), np.diff(edges))
        yield piece.read(int(offsets[0]), int(offsets[-1])), np.diff(offsets), values


def _report_head(tokenizer: Any, jobs: Sequence[Job], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    skipped = [
        (job.ranges, *entry) for job, result in zip(jobs, results, strict=True) for entry in result["first_skipped"]
    ]
    return {
        "corpora": [],
        "why_dtype": why_dtype(tokenizer.identity, tokenizer.identity.vocab_size),
        "notes": list(tokenizer.notes),
        "empty_lines": sum(result["empty_lines"] for result in results),
        "skipped": sum(result["skipped"] for result in results),
        "reasons": [f"{place_of(ranges[index], at, line)}: {why}." for ranges, index, at, line, why in skipped[:SHOWN]],
    }


def _corpus_entry(split: str, path: Path, counts: npt.NDArray[np.int64], text_bytes: int) -> dict[str, Any]:
    corpus = nc.open_corpus(path)
    return {
        "split": split,
        "path": str(path),
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "shards": corpus.num_shards,
        "bytes": sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
        "fingerprint": corpus.fingerprint,
        "text_bytes": text_bytes,
        **baselines(counts, len(counts), text_bytes),
    }


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
        counts = np.zeros(corpus.vocab_size or 1, dtype=np.int64)
        for start in range(0, corpus.num_tokens, 1 << 22):
            counts += np.bincount(
                corpus.tokens(start, min(start + (1 << 22), corpus.num_tokens)), minlength=len(counts)
            )
        report["corpora"].append(_corpus_entry(split, path, counts, 0))
        report["why_dtype"] = why_dtype(corpus.tokenizer, len(counts))
    return report
