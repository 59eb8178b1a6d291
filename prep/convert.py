"""``millstream convert``: a data set of another layout becomes a corpus, token for token, document for document.

The source is opened in place and cut into shards by whole documents; each shard is one task, kept by a rerun. Then each is compared with the source
and its checksums are checked; only what has passed is published.

A source that cannot be opened in place (prep.foreign: compressed, or rows of columns) is first read into a corpus of pieces beside the result, which is
then cut like any other; what is compared at the end is the source, read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format.publish import publish, shard_name
from neutral_core.format.shard import Shard
from neutral_core.format.shard_writer import Schema, ShardWriter
from neutral_core.format.writer import TOKENS_PER_SHARD
from neutral_core.legacy.boundaries import Rule
from prep import tasks
from prep.compare import compare
from prep.cut import runs_of, shards_of
from prep.engines import local
from prep.foreign import pieces
from prep.foreign.found import Found, find
from prep.progress import Progress
from prep.report import why_dtype
from prep.tokenizers import Settings, Tokenizer, definition_beside, open_tokenizer, stored_files

_CHUNK_TOKENS = 1 << 19
_RELEASED_TOKENS = 1 << 24  # written between two releases of the source's pages


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is asked of ``convert``.

    Attributes:
        source, destination: paths.
        layout, dtype, boundaries: see open_corpus, and prep.foreign.
        column, ignore: of rows: the column of ids, where several could be it, and columns to be taken for not there.
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
    column: str | None = None
    ignore: tuple[str, ...] = ()
    tokenizer: Settings | None = None
    vocab_size: int | None = None
    tokens_per_shard: int = TOKENS_PER_SHARD
    verify: bool = True
    workers: int = 1
    restart: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One shard: documents first … last of the source that had this fingerprint.

    ``pieces`` is the folder of the corpus of pieces that a source was read into, ``rule`` what cuts its joined rows.
    """

    options: Options
    pieces: Path | None
    rule: Rule | None
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
def _source(options: Options, folder: Path | None, rule: Rule | None) -> nc.Corpus:
    """Open the source, or what it was read into, once a process: a rule such as eos:ID costs a pass over the whole file."""
    if folder is not None:
        return pieces.opened(folder, rule)
    return nc.open_corpus(
        options.source, layout=options.layout, dtype=options.dtype, boundaries=options.boundaries, check="blocks"
    )


def _source_of(job: _Job) -> nc.Corpus:
    """Return the source of a job; raise FormatError where it is no longer what the jobs were cut from."""
    source = _source(job.options, job.pieces, job.rule)
    if source.fingerprint != job.fingerprint:
        raise nc.FormatError(
            f"{job.options.source}: it was changed while it was being converted: wait until nothing writes to it, then convert it with --restart."
        )
    return source


def convert(options: Options) -> dict[str, Any]:
    """Convert and return the report: plain data, see ``lines_of``.

    Raises:
        FormatError: the source is damaged, or the result differs from it (which only a failing disk can bring about).
        ValueError: an option, or something has to be said that the source does not.
        FileNotFoundError, FileExistsError, BlockingIOError: see open_corpus and tasks.start.
        MissingExtraError: the source's layout needs a library that is not installed.
    """
    _source.cache_clear()  # the file may have changed since an earlier call
    found = find(
        Path(options.source).expanduser(),
        layout=options.layout,
        dtype=options.dtype,
        boundaries=options.boundaries,
        column=options.column,
        ignore=options.ignore,
    )
    if found is None:
        _refuse_columns(options)
    source = _source(options, None, None) if found is None else found
    notes = list(source.notes)
    tokenizer = None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    schema, told = _schema(options, source, tokenizer, notes)
    record = {
        "command": "convert",
        "version": 1,
        "source": source.fingerprint,
        "vocab_size": schema.vocab_size,
        "tokenizer": None if schema.tokenizer is None else schema.tokenizer.to_json(),
        "tokens_per_shard": options.tokens_per_shard,
    }
    place = tasks.start(options.destination, record, restart=options.restart)
    if place is None and options.verify:
        if isinstance(source, nc.Corpus):
            compare(source, nc.open_corpus(options.destination), str(options.destination))
        else:
            pieces.compare_whole(source, options.destination)
    if place is not None:
        with place:
            paths, largest = _convert(options, source, schema, place.path, notes)
            if largest >= 0 and not told:
                notes.append(f"the largest id that occurs is {largest:,}.")
            publish(options.destination, paths, _definition(options, source, tokenizer))
            tasks.finish(options.destination)
    return _report(options, notes)


def _convert(
    options: Options, source: nc.Corpus | Found, schema: Schema, folder: Path, notes: list[str]
) -> tuple[list[Path], int]:
    """Write the shards and compare them with the source; return their paths, and the largest id."""
    results: list[dict[str, Any]] = []
    made = rule = None
    corpus = source
    if not isinstance(source, nc.Corpus):
        made, rule = folder / "pieces", source.rule
        results = pieces.decode(source, schema, made, options.workers)
        notes += [*pieces.notes_of(source, results), *pieces.cut_rows(source, made)]
        corpus = _source(options, made, rule)
    assert isinstance(corpus, nc.Corpus)
    shards = folder / "shards"
    shards.mkdir(exist_ok=True)
    jobs = [
        _Job(
            options=options,
            pieces=made,
            rule=rule,
            fingerprint=corpus.fingerprint,
            first=first,
            last=last,
            path=shards / shard_name(number),
            schema=schema,
        )
        for number, (first, last) in enumerate(shards_of(corpus, options.tokens_per_shard))
    ]
    largest = _run("convert", _write, corpus, jobs, options.workers)
    if options.verify:
        _run("verify", _verify if made is None else _verify_sums, corpus, jobs, options.workers)
        if not isinstance(source, nc.Corpus):
            pieces.compare_again(source, results, [job.place() for job in jobs], options.workers)
    return [job.path for job in jobs], largest


def _schema(
    options: Options, source: nc.Corpus | Found, tokenizer: Tokenizer | None, notes: list[str]
) -> tuple[Schema, bool]:
    """Return what is declared, and whether somebody said how many ids there are."""
    vocab_size = options.vocab_size or source.vocab_size or 2 ** (8 * source.dtype.itemsize)
    told = tokenizer is not None or options.vocab_size is not None or source.vocab_size is not None
    if tokenizer is not None:
        vocab_size = tokenizer.identity.vocab_size
    elif not told:
        notes.append(
            f"the source does not say how many ids its vocabulary has: all {vocab_size:,} that {source.dtype} can hold were declared; give "
            "--tokenizer or --vocab-size to declare fewer."
        )
    schema = Schema(
        vocab_size=vocab_size,
        tokenizer=source.tokenizer if tokenizer is None else tokenizer.identity,
        fields=source.fields,
        provenance={"made by": "millstream convert", "source": source.fingerprint},
    )
    return schema, told


def _refuse_columns(options: Options) -> None:
    for name, value in (("column", options.column), ("ignore", options.ignore)):
        if value:
            raise ValueError(f"{options.source}: --{name} is given, but its layout has no columns: leave it out.")


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


def _run(
    what: str, function: Callable[[_Job], tuple[int, int, int]], source: nc.Corpus, jobs: Sequence[_Job], workers: int
) -> int:
    """Do something to each shard; return the largest id, −1 where there is none."""
    largest = -1
    with Progress(what, source.num_tokens * source.dtype.itemsize) as progress:
        for num_tokens, num_documents, largest_in_shard in local.run(function, jobs, workers):
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
    released = 0
    with ShardWriter(job.path, job.schema) as writer:
        for first, offsets in runs_of(source, job.first, job.last):
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
            del tokens, fields
            if writer.num_tokens // _RELEASED_TOKENS != released:
                released = writer.num_tokens // _RELEASED_TOKENS
                source.release()
    return writer.num_tokens, writer.num_documents, largest


def _verify(job: _Job) -> tuple[int, int, int]:
    """Compare one shard with the source; return what ``_write`` does, but for the largest id."""
    shard = nc.open_corpus(job.place())
    compare(_source_of(job), shard, str(job.place()), job.first, job.last)
    return shard.num_tokens, shard.num_documents, -1


def _verify_sums(job: _Job) -> tuple[int, int, int]:
    """Check every checksum of one shard; return what ``_verify`` does."""
    shard = Shard(job.place())
    shard.verify()
    return shard.num_tokens, shard.num_documents, -1


def _definition(options: Options, source: nc.Corpus | Found, tokenizer: Tokenizer | None) -> dict[str, bytes]:
    """Return the file that rows decode by: the tokenizer's that was given, or the one beside a source of ours."""
    if tokenizer is not None:
        return stored_files(tokenizer)
    return definition_beside(options.source, source.tokenizer)


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


def _report(options: Options, notes: list[str]) -> dict[str, Any]:
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
