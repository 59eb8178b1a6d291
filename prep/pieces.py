"""A task of ``prepare``: the documents of some ranges are read, tokenized and written as pieces, one for each side of the split.

A piece is a shard file of ours. A small result file appears beside it last, by rename: a task whose result is there is done.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format import canonical
from neutral_core.format.files import temporary_path
from neutral_core.format.shard import Shard
from neutral_core.format.shard_writer import Schema, ShardWriter
from neutral_core.format.writer import TOKENS_PER_SHARD
from prep.engines.ranks import Rank
from prep.readers.documents import Document, Tally, read_documents
from prep.readers.inputs import Input, Range, stored_name
from prep.tokenizers import Settings, first_outside, open_tokenizer, with_edges

_BATCH_CHARACTERS = 1 << 20
_BATCH_DOCUMENTS = 4096
ORIGIN_FIELDS = {"document.line": nc.Field(dtype="int64"), "ragged.path": nc.Field(dtype="uint8")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is asked of ``prepare``.

    Attributes:
        inputs: files and folders. destination: folder of the corpus to be.
        tokenizer: see prep.tokenizers.Settings.
        glob, documents (rule), text_key, on_bad: see prep.readers.
        validation: decimal text of the share of documents that make a validation corpus, by a hash of their text; None: none.
        origin: store each document's file and line.
        tokens_per_shard, restart: see Assembly, tasks.start.
        engine, workers, rank: who does the tasks, see prep.engines.
        task_bytes: how the work is cut; None: as ``task_bytes_of`` says.
        plan: digest of inputs and settings, which the shards carry; prepare fills it in.
    """

    inputs: tuple[str, ...]
    destination: Path
    tokenizer: Settings
    glob: str | None = None
    documents: str = "file"
    text_key: str = "text"
    on_bad: str = "error"
    validation: str | None = None
    origin: bool = True
    tokens_per_shard: int = TOKENS_PER_SHARD
    workers: int = 1
    restart: bool = False
    task_bytes: int | None = None
    engine: str = "local"
    rank: Rank = field(default_factory=Rank)
    plan: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One task, for a worker: its number, its ranges, and what to do with them."""

    number: int
    ranges: tuple[Range, ...]
    folder: Path
    options: Options


def task_bytes_of(inputs: Sequence[Input]) -> int:
    """Return how much text makes a task: about a 128th of all, 1 … 64 MiB, so that few bytes use all cores and many make no millions of files."""
    total = sum(item.num_bytes for item in inputs)
    return 1 << min(max((total >> 7).bit_length(), 20), 26)


def splits_of(share: Fraction | None) -> tuple[str, ...]:
    """Return the folders below the destination that become corpora; "" is the destination itself."""
    return ("",) if share is None else ("train", "validation")


def share_of(text: str | None) -> Fraction | None:
    """Return the validation share as an exact rational; raise ValueError unless it is between 0 and 1."""
    if text is None:
        return None
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 < share < 1:
        raise ValueError(f"validation is {text!r}, expected a share between 0 and 1, such as 0.01.")
    return share


def characters_of(job: Job) -> str:
    """Return the characters that occur in the documents of a task, sorted."""
    found: set[str] = set()
    for part in job.ranges:
        for text in texts_of(part, job.options):
            found.update(text)
    return "".join(sorted(found))


def texts_of(part: Range, options: Options) -> Iterator[str]:
    """Yield the texts of a range, in order."""
    return (document.text for document in _documents(part, options, Tally()))


def _documents(part: Range, options: Options, tally: Tally) -> Iterator[Document]:
    return read_documents(part, rule=options.documents, text_key=options.text_key, on_bad=options.on_bad, tally=tally)


@lru_cache(maxsize=1)
def tokenizer_of(settings: Settings) -> Any:
    """Open the tokenizer once a process: some take a second."""
    return open_tokenizer(settings)


def tokenize(job: Job) -> dict[str, Any]:
    """Write the pieces of a task, unless an earlier run has and they are whole; return its result."""
    earlier = result_of(job)
    if earlier is not None and _are_whole(job, earlier):
        return earlier
    share = share_of(job.options.validation)
    pieces = {split: _Piece(job, split, share) for split in splits_of(share)}
    tallies: list[Tally] = []
    try:
        for part in job.ranges:
            tally = Tally()
            tallies.append(tally)
            path = stored_name(part.input)
            for document in _documents(part, job.options, tally):
                pieces[_side(document.text, share)].add(document.text, document.line, path, len(tallies) - 1)
        for piece in pieces.values():
            piece.close()
    except BaseException:
        for piece in pieces.values():
            piece.writer.abort()
        raise
    result = {
        "documents": sum(piece.writer.num_documents for piece in pieces.values()),
        "tokens": sum(piece.writer.num_tokens for piece in pieces.values()),
        "text_bytes": {split: piece.text_bytes for split, piece in pieces.items()},
        "stored_bytes": sum(size_of(part) for part in job.ranges),
        "lengths_histogram": {split: _without_zeros(piece.histogram) for split, piece in pieces.items()},
        "sources": np.sum(
            [piece.sources for piece in pieces.values()], axis=0
        ).tolist(),  # of each range: bytes of text, documents, tokens
        "lines": [tally.num_lines for tally in tallies],
        "empty_lines": sum(tally.num_empty_lines for tally in tallies),
        "skipped": sum(tally.num_skipped for tally in tallies),
        "skipped_by_kind": dict(sum((Counter(tally.skipped_by_kind) for tally in tallies), Counter())),
        "mended": sum(tally.num_mended for tally in tallies),
        "first_skipped": [[index, *skipped] for index, tally in enumerate(tallies) for skipped in tally.skipped],
    }
    _write_result(job, result)
    return result


def result_of(job: Job) -> dict[str, Any] | None:
    """Return the result of a task, or None where it is not done."""
    try:
        found = canonical.loads(_result_path(job).read_bytes())
    except (FileNotFoundError, ValueError):  # a power cut may leave an empty file
        return None
    return found if isinstance(found, dict) else None


def _result_path(job: Job) -> Path:
    return job.folder / f"{job.number:06}.json"


def _write_result(job: Job, result: dict[str, Any]) -> None:
    """Put the result under its name by a rename. Neither it nor the pieces wait for the disk: what a power cut damages is made anew."""
    path = _result_path(job)
    temporary = temporary_path(path)
    try:
        temporary.write_bytes(canonical.dumps(result))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _are_whole(job: Job, result: dict[str, Any]) -> bool:
    """Return whether the pieces of an earlier run are as they were written."""
    try:
        shards = [Shard(piece_path(job, split)) for split in result["text_bytes"]]
        for shard in shards:
            shard.verify()
    except (nc.FormatError, FileNotFoundError, KeyError):
        return False
    return True


class _Piece:
    """The documents of one task on one side of the split, tokenized some at a time."""

    def __init__(self, job: Job, split: str, share: Fraction | None) -> None:
        self._tokenizer = tokenizer_of(job.options.tokenizer)
        self._origin = job.options.origin
        self._texts: list[str] = []
        self._lines: list[int] = []
        self._paths: list[bytes] = []
        self._characters = 0
        self.text_bytes = 0
        path = piece_path(job, split)
        path.unlink(missing_ok=True)  # finished by a run that was stopped before it wrote the result
        self.writer = ShardWriter(path, schema_of(self._tokenizer.identity, job.options), durable=False)
        self.histogram = np.zeros(64, dtype=np.int64)  # of document lengths, by number of binary digits
        self.sources = np.zeros((len(job.ranges), 3), dtype=np.int64)
        self._ranges: list[int] = []

    def add(self, text: str, line: int, path: bytes, number: int) -> None:
        self._ranges.append(number)
        self._texts.append(text)
        self._lines.append(line)
        self._paths.append(path)
        self._characters += len(text)
        if self._characters >= _BATCH_CHARACTERS or len(self._texts) >= _BATCH_DOCUMENTS:
            self.flush()

    def close(self) -> None:
        self.flush()
        self.writer.close()

    def flush(self) -> None:
        """Tokenize what waits."""
        if not self._texts:
            return
        identity = self._tokenizer.identity
        ids, lengths = self._tokenizer.encode(self._texts)
        outside = first_outside(ids, lengths, identity.vocab_size)
        if outside is not None:
            document, place, found = outside
            where = f"{self._paths[document].decode('utf-8', errors='replace')}:{self._lines[document]}"
            raise ValueError(
                f"{where}: position {place:,} of the document: the id {found:,} is outside of the vocabulary of {identity.vocab_size:,} ids."
            )
        sizes = np.array(
            [len(text) if text.isascii() else len(text.encode("utf-8")) for text in self._texts], dtype=np.int64
        )
        self.text_bytes += int(sizes.sum())
        tokens, lengths = with_edges(
            ids, lengths, bos=identity.bos_id, eos=identity.eos_id, dtype=self.writer.schema.dtype
        )
        fields: dict[str, Any] = {}
        if self._origin:
            joined = np.frombuffer(b"".join(self._paths), dtype=np.uint8)
            fields["document.line"] = np.array(self._lines, dtype=np.int64)
            fields["ragged.path"] = (joined, np.array([len(path) for path in self._paths], dtype=np.int64))
        self.writer.add_many(tokens, lengths, fields)
        self.histogram += np.bincount(bit_lengths(lengths), minlength=64)
        np.add.at(self.sources, self._ranges, np.stack([sizes, np.ones_like(sizes), lengths], axis=1))
        self._texts, self._lines, self._paths, self._ranges, self._characters = [], [], [], [], 0


def schema_of(identity: nc.TokenizerIdentity, options: Options) -> Schema:
    """Return what pieces and shards declare."""
    provenance = {"documents": options.documents, "made by": "millstream prepare", "plan": options.plan}
    return Schema(
        vocab_size=identity.vocab_size,
        tokenizer=identity,
        fields=ORIGIN_FIELDS if options.origin else {},
        provenance=provenance,
    )


def piece_path(job: Job, split: str) -> Path:
    """Return the file of a task's piece on one side of the split."""
    return job.folder / f"{job.number:06}.{split or 'all'}.safetensors"


def bit_lengths(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of binary digits of each: 0 for 0, 1 for 1, 2 for 2 and 3, …; exact below 2^53."""
    return np.frexp(lengths.astype(np.float64))[1].astype(np.int64)


def _without_zeros(histogram: npt.NDArray[np.int64]) -> list[int]:
    """Return it as a list up to the last that is not zero."""
    return [int(count) for count in np.trim_zeros(histogram, "b")]


def size_of(part: Range) -> int:
    """Return the bytes of a range, as stored."""
    return (part.input.num_bytes if part.stop is None else part.stop) - part.start


def _side(text: str, share: Fraction | None) -> str:
    """Return the split that a text belongs to: equal texts are on the same side, always."""
    if share is None:
        return ""
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8, person=b"millstream-split").digest()
    return "validation" if int.from_bytes(digest, "little") < share * 2**64 else "train"
