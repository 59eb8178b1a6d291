"""``millstream merge``, ``split`` and ``reshard``: documents of corpora that exist become other corpora, in one streaming pass.

    merge     all documents of several corpora, one corpus after another
    reshard   the same of one corpus: only its shards are cut anew
    split     each document to train/ or validation/, by a hash of its tokens, or the last ones to validation/

Documents keep their order, their tokens and their fields; every block of the sources is checked as it is read, every block of the result after it was
written. Memory stays at about one run of documents, whatever the corpora's size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format.files import remove
from neutral_core.format.publish import publish
from neutral_core.format.shard import Shard
from neutral_core.format.shard_writer import Schema
from neutral_core.format.writer import TOKENS_PER_SHARD, ShardSeries
from prep import tasks
from prep.cut import runs_of
from prep.pieces import share_of, splits_of
from prep.progress import Progress
from prep.tokenizers import definition_beside

_RELEASED_TOKENS = 1 << 24  # read between two releases of a source's pages
RULES = ("hash", "order")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is asked of ``merge``, ``reshard`` or ``split``.

    Attributes:
        command: its name, for the record of the run and the provenance.
        sources: what open_corpus opens; at least one.
        destination: folder of the corpus to be, or of train/ and validation/.
        ignore: fields to be left out.
        validation: decimal text of the share that goes to validation/; None: nothing is split.
        by: ``hash``: of the document's ids, so that equal documents are on one side; ``order``: the last documents, counted in tokens.
        tokens_per_shard: a shard ends before the document that would exceed it.
        restart: see tasks.start.
    """

    command: str
    sources: tuple[str, ...]
    destination: Path
    ignore: tuple[str, ...] = ()
    validation: str | None = None
    by: str = "hash"
    tokens_per_shard: int = TOKENS_PER_SHARD
    restart: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """Documents that stand one after another: tokens [sum of lengths], lengths int64[n], fields as ShardWriter.add_many takes them."""

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]
    fields: Mapping[str, Any]

    def only(self, chosen: npt.NDArray[np.bool_]) -> _Run:
        """Return the documents that are chosen: bool[n]; a copy, or the run itself where all are."""
        if chosen.all():
            return self
        tokens = np.repeat(chosen, self.lengths)
        fields: dict[str, Any] = {}
        for name, value in self.fields.items():
            if name.startswith("ragged."):
                items, counts = value
                fields[name] = items[np.repeat(chosen, counts)], counts[chosen]
            else:
                fields[name] = value[tokens if name.startswith("token.") else chosen]
        return _Run(tokens=self.tokens[tokens], lengths=self.lengths[chosen], fields=fields)


def reshape(options: Options) -> dict[str, Any]:
    """Make the corpus or the two corpora; return the report: plain data, see ``lines_of``.

    Raises:
        ValueError: the sources do not fit together, or an option. FormatError: a source is damaged.
        FileNotFoundError, FileExistsError, BlockingIOError: see open_corpus and tasks.start.
    """
    share = share_of(options.validation)
    corpora = [nc.open_corpus(source, check="blocks") for source in options.sources]
    schema = _schema(options, corpora)
    definition = definition_beside(options.sources[0], schema.tokenizer)
    splits = splits_of(share)
    record = {
        "command": options.command,
        "version": 1,
        "sources": [corpus.fingerprint for corpus in corpora],
        "ignore": sorted(options.ignore),
        "validation": None if share is None else f"{share} by {options.by}",
        "tokens_per_shard": options.tokens_per_shard,
    }
    place = tasks.start(options.destination, record, restart=options.restart, splits=splits)
    if place is not None:
        with place:
            paths = _write(options, corpora, schema, share, place.path / "shards")
            for split in splits:
                publish(options.destination / split, paths[split], definition)
            tasks.finish(options.destination, splits)
    made = [nc.open_corpus(options.destination / split) for split in splits]
    _check_counts(corpora, made, options.destination)
    return {
        "corpora": [
            {
                "path": str(options.destination / split),
                "documents": corpus.num_documents,
                "tokens": corpus.num_tokens,
                "shards": corpus.num_shards,
                "fingerprint": corpus.fingerprint,
            }
            for split, corpus in zip(splits, made, strict=True)
        ],
        "sources": [
            {
                "path": source,
                "documents": corpus.num_documents,
                "tokens": corpus.num_tokens,
                "notes": list(corpus.notes),
            }
            for source, corpus in zip(options.sources, corpora, strict=True)
        ],
        "ignored": sorted(options.ignore),
    }


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    lines = []
    for made in report["corpora"]:
        lines.append(
            f"{made['path']}: {made['documents']:,} documents, {made['tokens']:,} tokens, {made['shards']:,} shards"
        )
        lines.append(f"  fingerprint {made['fingerprint']}")
        if not made["documents"]:
            lines.append("  WARNING: it holds no document.")
    for source in report["sources"]:
        lines.append(f"from {source['path']}: {source['documents']:,} documents, {source['tokens']:,} tokens")
        lines.extend(f"  note: {note}" for note in source["notes"])
    lines.extend(f"{name} was left out, as asked." for name in report["ignored"])
    lines.append("checked: every block of the sources as it was read, every block of the result as it was written")
    return lines


def _schema(options: Options, corpora: Sequence[nc.Corpus]) -> Schema:
    """Return what the result declares: what all sources do; raise ValueError where they differ."""
    declared = [
        {name: field for name, field in corpus.fields.items() if name not in options.ignore} for corpus in corpora
    ]
    for name in options.ignore:
        if not any(name in corpus.fields for corpus in corpora):
            raise ValueError(f"--ignore {name}: no source has such a field.")
    first = corpora[0]
    for source, corpus, fields in zip(options.sources, corpora, declared, strict=True):
        if corpus.tokenizer != first.tokenizer:
            raise ValueError(
                f"{source}: its tokenizer is {_name(corpus)}, that of {options.sources[0]} is {_name(first)}: their ids do not mean the same; only "
                "corpora of one tokenizer can be merged. Prepare the text again with one of them."
            )
        different = sorted({*fields, *declared[0]} - {name for name in fields if declared[0].get(name) == fields[name]})
        if different:
            raise ValueError(
                f"{source}: {', '.join(different)} are not declared as in {options.sources[0]}: leave them out with "
                f"{' '.join(f'--ignore {name}' for name in different)}."
            )
    return Schema(
        vocab_size=max(corpus.vocab_size or 2 ** (8 * corpus.dtype.itemsize) for corpus in corpora),
        tokenizer=first.tokenizer,
        fields=declared[0],
        provenance={"made by": f"millstream {options.command}", "sources": _digest_of(corpora)},
    )


def _name(corpus: nc.Corpus) -> str:
    return (
        "not recorded" if corpus.tokenizer is None else f"{corpus.tokenizer.name!r} ({corpus.tokenizer.sha256[:16]}…)"
    )


def _digest_of(corpora: Sequence[nc.Corpus]) -> str:
    return hashlib.sha256("\n".join(corpus.fingerprint for corpus in corpora).encode()).hexdigest()


def _write(
    options: Options, corpora: Sequence[nc.Corpus], schema: Schema, share: Fraction | None, folder: Path
) -> dict[str, list[Path]]:
    """Write the shards of each split and check every byte of them; return their paths, in order."""
    if folder.exists():
        remove(folder)  # of a run that was stopped: one pass is one task
    series: dict[str, ShardSeries] = {}
    try:
        for split in splits_of(share):
            (folder / split).mkdir(parents=True, exist_ok=True)
            series[split] = ShardSeries(folder / split, schema, options.tokens_per_shard)
        with Progress(
            options.command, sum(corpus.num_tokens * corpus.dtype.itemsize for corpus in corpora)
        ) as progress:
            for run, sides in _sided(corpora, share, options):
                for number, split in enumerate(splits_of(share)):
                    part = run if sides is None else run.only(sides == number)
                    if len(part.lengths):
                        series[split].add_many(part.tokens, part.lengths, part.fields)
                progress.add(run.tokens.nbytes, len(run.lengths), len(run.tokens))
        paths = {split: one.close() for split, one in series.items()}
    except BaseException:
        for one in series.values():
            one.abort()
        raise
    for path in (path for split in paths.values() for path in split):
        Shard(path).verify()
    return paths


def _sided(
    corpora: Sequence[nc.Corpus], share: Fraction | None, options: Options
) -> Iterator[tuple[_Run, npt.NDArray[np.bool_] | None]]:
    """Yield runs of documents and which of them are for validation: bool[n], None where nothing is split."""
    total = sum(corpus.num_tokens for corpus in corpora)
    begin = 0
    for corpus in corpora:
        for run in _runs(corpus, options.ignore):
            sides = None
            if share is not None and options.by == "order":
                sides = begin + np.cumsum(run.lengths) - run.lengths >= int(total - share * total)
            elif share is not None:
                sides = _by_hash(run, share)
            yield run, sides
            begin += len(run.tokens)


def _runs(corpus: nc.Corpus, ignore: Sequence[str]) -> Iterator[_Run]:
    released = 0
    for first, offsets in runs_of(corpus, 0, corpus.num_documents):
        begin, end = int(offsets[0]), int(offsets[-1])
        items = {
            name: corpus.field_items(name, first, first + len(offsets) - 1)
            for name in corpus.fields
            if name not in ignore
        }
        yield _Run(
            tokens=corpus.tokens(begin, end),
            lengths=np.diff(offsets),
            fields={
                name: value.items if value.counts is None else (value.items, value.counts)
                for name, value in items.items()
            },
        )
        if end // _RELEASED_TOKENS != released:
            released = end // _RELEASED_TOKENS
            corpus.release()


def _by_hash(run: _Run, share: Fraction) -> npt.NDArray[np.bool_]:
    """Return which documents are for validation, by a hash of their ids as little-endian uint32, whatever width they are stored in."""
    limit = share * 2**64
    data = np.ascontiguousarray(run.tokens, dtype="<u4").view(np.uint8)
    edges = (4 * np.cumsum(run.lengths)).tolist()
    digests = (
        hashlib.blake2b(data[start:stop].data, digest_size=8, person=b"millstream-split").digest()
        for start, stop in zip([0, *edges[:-1]], edges, strict=True)
    )
    return np.array([int.from_bytes(digest, "little") < limit for digest in digests], dtype=bool)


def _check_counts(corpora: Sequence[nc.Corpus], made: Sequence[nc.Corpus], destination: Path) -> None:
    for what in ("num_documents", "num_tokens"):
        found, expected = (sum(getattr(corpus, what) for corpus in group) for group in (made, corpora))
        if found != expected:
            raise nc.FormatError(
                f"{destination}: {what} is {found:,}, but the sources hold {expected:,}: they were changed meanwhile: do it again in another folder."
            )
