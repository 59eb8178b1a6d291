"""``millstream convert``: a data set of another layout becomes a corpus, token for token, document for document.

The source is opened in place and cut into shards by whole documents; each shard is one task, kept by a rerun. Then each is compared with the source
and its checksums are checked; only what has passed is published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format.publish import publish, shard_name
from neutral_core.format.shard_writer import Schema, ShardWriter
from neutral_core.format.writer import TOKENS_PER_SHARD
from prep import tasks
from prep.compare import compare
from prep.progress import Progress
from prep.report import why_dtype
from prep.tokenizers import DEFINITION, Settings, Tokenizer, open_tokenizer

_CHUNK_TOKENS = 1 << 19
_CHUNK_DOCUMENTS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is asked of ``convert``.

    Attributes:
        source, destination: paths.
        layout, dtype, boundaries: see open_corpus.
        tokenizer: that made the ids, if it is known.
        vocab_size: number of ids, where the tokenizer is not known; None: all that the stored width can hold.
        tokens_per_shard: a shard ends before the document that would exceed it.
        verify: compare the result with the source before it is published.
        workers, restart: see tasks.
    """

    source: str
    destination: Path
    layout: str | None = None
    dtype: str | None = None
    boundaries: str | None = None
    tokenizer: Settings | None = None
    vocab_size: int | None = None
    tokens_per_shard: int = TOKENS_PER_SHARD
    verify: bool = True
    workers: int = 1
    restart: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One shard: documents first … last of the source that had this fingerprint."""

    options: Options
    fingerprint: str
    first: int
    last: int
    path: Path
    schema: Schema

    def place(self) -> Path:
        """Return where the shard is: where an interrupted publication has put it, or where it is written."""
        final = self.options.destination / self.path.name
        return final if final.exists() else self.path


@lru_cache(maxsize=1)
def _source(options: Options) -> nc.Corpus:
    """Open the source once a process: a rule such as eos:ID costs a pass over the whole file."""
    return nc.open_corpus(
        options.source, layout=options.layout, dtype=options.dtype, boundaries=options.boundaries, check="blocks"
    )


def _source_of(job: _Job) -> nc.Corpus:
    """Return the source of a job; raise FormatError where it is no longer what the jobs were cut from."""
    source = _source(job.options)
    if source.fingerprint != job.fingerprint:
        raise nc.FormatError(
            f"{job.options.source}: it was changed while it was being converted: wait until nothing writes to it, then convert it with --restart."
        )
    return source


def convert(options: Options) -> dict[str, Any]:
    """Convert and return the report: plain data, see ``lines_of``.

    Raises:
        FormatError: the source is damaged, or the result differs from it (which only a failing disk can bring about).
        ValueError: an option; FileNotFoundError, FileExistsError, BlockingIOError: see open_corpus and tasks.start.
    """
    _source.cache_clear()  # the file may have changed since an earlier call
    source = _source(options)
    tokenizer = None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    vocab_size = options.vocab_size or source.vocab_size or 2 ** (8 * source.dtype.itemsize)
    notes = list(source.notes)
    told = tokenizer is not None or options.vocab_size is not None or source.vocab_size is not None
    if tokenizer is not None:
        vocab_size = tokenizer.identity.vocab_size
    elif not told:
        notes.append(
            f"the source does not say how many ids its vocabulary has: all {vocab_size:,} that {source.dtype} can hold were declared; give "
            "--tokenizer or --vocab-size to declare fewer."
        )
    identity = source.tokenizer if tokenizer is None else tokenizer.identity
    schema = Schema(
        vocab_size=vocab_size,
        tokenizer=identity,
        fields=source.fields,
        provenance={"made by": "millstream convert", "source": source.fingerprint},
    )
    record = {
        "command": "convert",
        "version": 1,
        "source": source.fingerprint,
        "vocab_size": vocab_size,
        "tokenizer": None if identity is None else identity.to_json(),
        "tokens_per_shard": options.tokens_per_shard,
    }
    place = tasks.start(options.destination, record, restart=options.restart)
    if place is None and options.verify:
        compare(source, nc.open_corpus(options.destination), str(options.destination))
    if place is not None:
        with place:
            folder = place.path / "shards"
            folder.mkdir(exist_ok=True)
            jobs = [
                _Job(
                    options=options,
                    fingerprint=source.fingerprint,
                    first=first,
                    last=last,
                    path=folder / shard_name(number),
                    schema=schema,
                )
                for number, (first, last) in enumerate(_cut(source, options.tokens_per_shard))
            ]
            largest = _run("convert", _write, source, jobs, options.workers)
            if largest >= 0 and not told:
                notes.append(f"the largest id that occurs is {largest:,}.")
            if options.verify:
                _run("verify", _verify, source, jobs, options.workers)
            publish(options.destination, [job.path for job in jobs], _definition(options, source, tokenizer))
            tasks.finish(options.destination)
    return _report(options, source, notes)


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    lines = [
        f"{report['path']}: {report['documents']:,} documents, {report['tokens']:,} tokens, {report['shards']:,} shards",
        f"  fingerprint {report['fingerprint']}",
        f"tokens are stored as {report['why_dtype']}",
        *report["notes"],
    ]
    if report["verified"]:
        lines.append("verified: checksums, and every document and token against the source")
    return lines


def _cut(source: nc.Corpus, tokens_per_shard: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) documents of each shard: at most ``tokens_per_shard`` tokens, at least one document."""
    if tokens_per_shard < 1:
        raise ValueError(f"tokens_per_shard is {tokens_per_shard}, expected a positive integer.")
    total = source.num_documents
    first = 0
    while first < total or first == 0:
        limit = int(source.document_offsets(first, first)[0]) + tokens_per_shard
        low, high = first, total  # documents up to low fit
        while low < high:
            middle = (low + high + 1) // 2
            if int(source.document_offsets(middle, middle)[0]) <= limit:
                low = middle
            else:
                high = middle - 1
        last = max(low, min(first + 1, total))
        yield first, last
        if last == total:
            return
        first = last


def _run(
    what: str, function: Callable[[_Job], tuple[int, int, int]], source: nc.Corpus, jobs: Sequence[_Job], workers: int
) -> int:
    """Do something to each shard; return the largest id, −1 where there is none."""
    largest = -1
    with Progress(what, source.num_tokens * source.dtype.itemsize) as progress:
        for num_tokens, num_documents, largest_in_shard in tasks.run(function, jobs, workers):
            largest = max(largest, largest_in_shard)
            progress.add(num_tokens * source.dtype.itemsize, num_documents, num_tokens)
    return largest


def _write(job: _Job) -> tuple[int, int, int]:
    """Write one shard, unless an earlier run has; return its tokens, its documents and its largest id."""
    source = _source_of(job)
    largest = -1
    if job.place().exists():
        shard = nc.open_corpus(job.place())
        for start in range(0, shard.num_tokens, _CHUNK_TOKENS):
            largest = max(largest, int(shard.tokens(start, min(start + _CHUNK_TOKENS, shard.num_tokens)).max()))
        return shard.num_tokens, shard.num_documents, largest
    with ShardWriter(job.path, job.schema) as writer:
        for first, offsets in _chunks(source, job.first, job.last):
            tokens = source.tokens(int(offsets[0]), int(offsets[-1]))
            if len(tokens):
                largest = max(largest, int(tokens.max()))
                _check_largest(largest, source, job, offsets, tokens)
            last = first + len(offsets) - 1
            fields = {name: source.field_items(name, first, last) for name in source.fields}
            writer.add_many(
                tokens,
                np.diff(offsets),
                {name: value.items if value.counts is None else value for name, value in fields.items()},
            )
    return writer.num_tokens, writer.num_documents, largest


def _verify(job: _Job) -> tuple[int, int, int]:
    """Compare one shard with the source; return what ``_write`` does, but for the largest id."""
    shard = nc.open_corpus(job.place())
    compare(_source_of(job), shard, str(job.place()), job.first, job.last)
    return shard.num_tokens, shard.num_documents, -1


def _definition(options: Options, source: nc.Corpus, tokenizer: Tokenizer | None) -> dict[str, bytes]:
    """Return the file that rows decode by: the tokenizer's that was given, or the one beside a source of ours."""
    if tokenizer is not None:
        return {} if tokenizer.definition is None else {DEFINITION: tokenizer.definition}
    path = Path(options.source).expanduser()
    path = (path if path.is_dir() else path.parent) / DEFINITION
    if source.tokenizer is not None and path.is_file():
        definition = path.read_bytes()
        if hashlib.sha256(definition).hexdigest() == source.tokenizer.sha256:
            return {DEFINITION: definition}
    return {}


def _check_largest(
    largest: int, source: nc.Corpus, job: _Job, offsets: npt.NDArray[np.int64], tokens: npt.NDArray[Any]
) -> None:
    """Refuse an id that the declared vocabulary does not hold, by its place in the source."""
    if largest >= job.schema.vocab_size:
        place = int(offsets[0]) + int(np.flatnonzero(tokens >= job.schema.vocab_size)[0])
        number = int(np.searchsorted(offsets, place, side="right")) - 1
        document = np.searchsorted(source.document_offsets(job.first, job.last), offsets[number], side="right") - 1
        raise ValueError(
            f"document {job.first + int(document):,} of the source, position {place - int(offsets[number]):,}: the id {largest:,} is outside of "
            f"the vocabulary of {job.schema.vocab_size:,} ids: give a larger --vocab-size, with added tokens, or the right --tokenizer."
        )


def _chunks(source: nc.Corpus, first: int, last: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Yield the first document and the offsets of runs of documents of about 1 MiB of tokens, or of one document.

    So much stays in the processor's cache between checking, checksum and writing.
    """
    for start in range(first, last, _CHUNK_DOCUMENTS):
        offsets = source.document_offsets(start, min(start + _CHUNK_DOCUMENTS, last))
        at = 0
        while at < len(offsets) - 1:
            fit = int(np.searchsorted(offsets, offsets[at] + _CHUNK_TOKENS, side="right")) - 1
            end = max(fit, at + 1)
            yield start + at, offsets[at : end + 1]
            at = end


def _report(options: Options, source: nc.Corpus, notes: list[str]) -> dict[str, Any]:
    corpus = nc.open_corpus(options.destination)
    return {
        "path": str(options.destination),
        "source": options.source,
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "shards": corpus.num_shards,
        "fingerprint": corpus.fingerprint,
        "why_dtype": why_dtype(corpus.tokenizer, corpus.vocab_size or 1),
        "notes": notes,
        "verified": options.verify,
    }
