"""The tasks of converting rows: each piece of the source becomes a shard of ours, and is compared again with what has become of it.

    source ──pieces──▶ rows ──columns──▶ documents ──▶ a corpus of pieces ──cut anew──▶ the corpus asked for

The corpus of pieces is one of ours, so that all that follows is what happens to any corpus that is converted. A small result file appears beside a piece
last: a piece whose result is there is done, and a rerun takes it. Nothing depends on who reads which piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import neutral_core as nc
from neutral_core.format import canonical
from neutral_core.format.files import write_file
from neutral_core.format.publish import publish, shard_name
from neutral_core.format.shard import Shard
from neutral_core.format.shard_writer import Schema, ShardWriter
from neutral_core.legacy.boundaries import Rule
from prep.compare import compare_documents
from prep.engines import local
from prep.foreign.choice import Choice
from prep.foreign.columns import check_vocabulary, documents_of
from prep.foreign.found import Found, refuse_changed
from prep.foreign.joined import cut_stream, joined, write_edges
from prep.foreign.layout import Piece
from prep.progress import Progress

EDGES = "edges.npy"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One piece.

    Attributes:
        number, piece, choice: which, and how it is read.
        folder, schema: of the pieces.
        first_document, first_token: of the piece in the whole; to compare.
        shards: of the result; to compare. by_row: whether documents are compared too.
    """

    number: int
    piece: Piece
    choice: Choice
    folder: Path
    schema: Schema | None
    first_document: int = 0
    first_token: int = 0
    shards: tuple[Path, ...] = ()
    by_row: bool = True


def decode(found: Found, schema: Schema, folder: Path, workers: int) -> list[dict[str, Any]]:
    """Make the corpus of pieces in a folder; return what each piece held.

    Raises:
        FormatError: the source is damaged, or was changed meanwhile. ValueError: an id is outside of the vocabulary.
    """
    folder.mkdir(exist_ok=True)
    jobs = _jobs(found, schema, folder)
    results = []
    with Progress("read", sum(job.piece.num_bytes for job in jobs)) as progress:
        for job, result in zip(jobs, local.run(_decode, jobs, workers), strict=True):
            results.append(result)
            progress.add(job.piece.num_bytes, result["documents"], result["tokens"])
    refuse_changed(found)
    publish(folder, [_path(job) for job in jobs])
    return results


def opened(folder: Path, rule: Rule | None) -> nc.Corpus:
    """Open the corpus of pieces, its rows joined and cut by a rule where there is one."""
    corpus = nc.open_corpus(folder, check="blocks")
    return corpus if rule is None else joined(corpus, rule, folder.parent / EDGES)


def cut_rows(found: Found, folder: Path) -> list[str]:
    """Find where documents begin in the joined rows, where a rule says it; return notes."""
    if found.rule is None:
        return []
    result, notes = cut_stream(nc.open_corpus(folder, check="blocks"), found.rule, found.foreign.path)
    write_edges(result, found.rule, folder.parent / EDGES)
    return notes


def compare_again(found: Found, results: Sequence[Mapping[str, Any]], shards: Sequence[Path], workers: int) -> None:
    """Read the source again and compare it with the shards made of it: every id, field and document.

    Raises:
        FormatError: they differ.
    """
    documents = np.cumsum([0, *(result["documents"] for result in results)]).tolist()
    tokens = np.cumsum([0, *(result["tokens"] for result in results)]).tolist()
    jobs = _jobs(found, None, Path(), shards=tuple(shards), documents=documents, tokens=tokens)
    _result.cache_clear()
    with Progress("compare", sum(job.piece.num_bytes for job in jobs)) as progress:
        for job, (count, length) in zip(jobs, local.run(_compare, jobs, workers), strict=True):
            progress.add(job.piece.num_bytes, count, length)
    corpus = _result(tuple(shards))
    expected = tokens[-1], documents[-1] if found.rule is None else corpus.num_documents
    check_whole(found, corpus, *expected)


def compare_whole(found: Found, path: Path) -> None:
    """Compare a finished corpus with its source, in this process."""
    corpus = nc.open_corpus(path)
    documents = tokens = 0
    for job in _jobs(found, None, Path()):
        by_row = found.rule is None
        for rows in job.piece.read(job.choice.names):
            part = documents_of(rows, job.choice)
            compare_documents(part, corpus, str(path), documents if by_row else None, tokens)
            documents, tokens = documents + len(part.lengths), tokens + len(part.tokens)
    check_whole(found, corpus, tokens, documents if found.rule is None else corpus.num_documents)


def check_whole(found: Found, corpus: nc.Corpus, num_tokens: int, num_documents: int) -> None:
    """Refuse a result that holds more than was compared, or whose documents are not where the rule puts them."""
    if (corpus.num_tokens, corpus.num_documents) != (num_tokens, num_documents):
        raise nc.FormatError(
            f"{found.foreign.path}: {num_documents:,} documents and {num_tokens:,} tokens were read, but {corpus.num_documents:,} and "
            f"{corpus.num_tokens:,} stored: "
            "convert it again with --restart."
        )
    if found.rule is None:
        return
    expected, _ = cut_stream(corpus, found.rule, found.foreign.path)
    for first in range(0, max(corpus.num_documents, 1), 1 << 20):
        last = min(first + (1 << 20), corpus.num_documents)
        same = expected.num_documents == corpus.num_documents and np.array_equal(
            expected.offsets.at(np.arange(first, last + 1)), corpus.document_offsets(first, last)
        )
        if not same:
            raise nc.FormatError(
                f"{found.foreign.path}: documents {first:,} … {last:,} are not where the rule {found.rule} puts them: convert it again with --restart."
            )


def notes_of(found: Found, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on what was dropped and masked."""
    rows, dropped, trained, tokens = (
        sum(result[key] for result in results) for key in ("rows", "dropped", "trained", "tokens")
    )
    notes = []
    if dropped:
        notes.append(f"{dropped:,} ids of padding were dropped from {rows:,} rows.")
    if found.choice.fields:
        notes.append(f"{trained:,} of {tokens:,} ids are trained on.")
    return notes


def _jobs(
    found: Found,
    schema: Schema | None,
    folder: Path,
    *,
    shards: tuple[Path, ...] = (),
    documents: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
) -> list[_Job]:
    return [
        _Job(
            number=number,
            piece=piece,
            choice=found.choice,
            folder=folder,
            schema=schema,
            first_document=0 if documents is None else documents[number],
            first_token=0 if tokens is None else tokens[number],
            shards=shards,
            by_row=found.rule is None,
        )
        for number, piece in enumerate(found.foreign.pieces)
    ]


def _path(job: _Job) -> Path:
    return job.folder / shard_name(job.number)


def _decode(job: _Job) -> dict[str, Any]:
    """Write one piece, unless an earlier run has; return its result."""
    assert job.schema is not None
    path = _path(job)
    result_path = path.with_suffix(".json")
    if result_path.exists():
        return canonical.loads(result_path.read_bytes())  # type: ignore[no-any-return]
    path.unlink(missing_ok=True)  # finished by a run that was stopped before it wrote the result
    rows_read = dropped = trained = 0
    largest = -1
    with ShardWriter(path, job.schema) as writer:
        for rows in job.piece.read(job.choice.names):
            documents = documents_of(rows, job.choice)
            largest = max(largest, check_vocabulary(rows, documents, job.schema.vocab_size))
            writer.add_many(documents.tokens, documents.lengths, documents.fields)
            rows_read += len(rows.columns[job.choice.tokens].counts)
            dropped += documents.dropped
            trained += sum(int(mask.sum()) for mask in documents.fields.values())
    result = {
        "documents": writer.num_documents,
        "tokens": writer.num_tokens,
        "rows": rows_read,
        "dropped": dropped,
        "trained": trained,
        "largest": largest,
    }
    write_file(result_path, canonical.dumps(result))
    return result


def _compare(job: _Job) -> tuple[int, int]:
    """Compare one piece of the source with the result; return how many documents and tokens it has."""
    corpus = _result(job.shards)
    document, token = job.first_document, job.first_token
    for rows in job.piece.read(job.choice.names):
        part = documents_of(rows, job.choice)
        compare_documents(part, corpus, str(job.shards[0].parent), document if job.by_row else None, token)
        document, token = document + len(part.lengths), token + len(part.tokens)
    return document - job.first_document, token - job.first_token


@lru_cache(maxsize=1)
def _result(shards: tuple[Path, ...]) -> nc.Corpus:
    """Return the shards of a result as a corpus, opened once a process."""
    first = Shard(shards[0])
    content = first.open()
    return nc.Corpus(
        [first, *(Shard(path) for path in shards[1:])],
        dtype=first.read(0, 0).dtype,
        fingerprint="",
        vocab_size=content.vocab_size,
        fields=content.fields,
    )
