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
from prep.readers.documents import Batch, Tally, place_of, read_batches
from prep.readers.hub import Hub
from prep.readers.inputs import Input, Range, stored_name
from prep.tokenizers import Encoder, Encoding, Settings, first_outside, open_encoder, with_edges
from prep.tokenizers.given import ENGINE, recorded
from prep.tokenizers.proof import Excerpt, excerpt

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
        ids_key: of ids in the place of texts: see prep.readers.ids; None: texts.
        hub_config, hub_split, hub_revision: of data sets by name: see prep.readers.hub.
        limit: take the first so many documents alone; None: all.
        validation: decimal text of the share of documents that make a validation corpus, by a hash of their text; None: none.
        origin: store each document's file and line.
        tokens_per_shard, restart: see Assembly, tasks.start.
        engine, rank: who does the tasks, see prep.engines. workers: processes; None: as many as there are cores, as far as it is worth starting them.
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
    ids_key: str | None = None
    hub_config: str | None = None
    hub_split: str = "train"
    hub_revision: str | None = None
    limit: int | None = None
    validation: str | None = None
    origin: bool = True
    tokens_per_shard: int = TOKENS_PER_SHARD
    workers: int | None = None
    restart: bool = False
    task_bytes: int | None = None
    engine: str = "local"
    rank: Rank = field(default_factory=Rank)
    plan: str = ""

    @property
    def hub(self) -> Hub:
        """Which part of data sets by name."""
        return Hub(config=self.hub_config, split=self.hub_split, revision=self.hub_revision)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One task, for a worker: its number, its ranges, and what to do with them.

    Attributes:
        encoding: None where nothing is encoded.
        limit: take the first so many documents of it alone; None: all.
    """

    number: int
    ranges: tuple[Range, ...]
    folder: Path
    options: Options
    encoding: Encoding | None = None
    limit: int | None = None


def task_bytes_of(inputs: Sequence[Input]) -> int:
    """Return how much text makes a task: about a 64th of all, 1 … 64 MiB, so that few bytes use all cores and many make no millions of files."""
    total = sum(item.num_bytes for item in inputs)
    return 1 << min(max((total >> 6).bit_length(), 20), 26)


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
    for _, batch in _batches_of(job, []):
        found.update(*batch.texts)
    return "".join(sorted(found))


def batches(part: Range, options: Options, tally: Tally, limit: int | None = None) -> Iterator[Batch]:
    """Yield the documents of a range, in order: texts, or ids."""
    if options.ids_key is not None:
        from prep.readers.ids import read_id_batches  # loads pyarrow

        return read_id_batches(part, key=options.ids_key, on_bad=options.on_bad, tally=tally, limit=limit)
    return read_batches(
        part, rule=options.documents, text_key=options.text_key, on_bad=options.on_bad, tally=tally, limit=limit
    )


def _batches_of(job: Job, tallies: list[Tally]) -> Iterator[tuple[int, Batch]]:
    """Yield the documents of a task with the number of their range, whose tally is appended when it begins."""
    left = job.limit
    for number, part in enumerate(job.ranges):
        tallies.append(Tally())
        for batch in batches(part, job.options, tallies[-1], left):
            left = None if left is None else left - len(batch.texts)
            yield number, batch


_open: dict[Encoding, Encoder] = {}  # one at most: some take a second to open


def keep_open(encoding: Encoding, encoder: Encoder | None) -> None:
    """Let the tasks of this process use what is open already, and nothing else; None: let go of it."""
    _open.clear()
    if encoder is not None:
        _open[encoding] = encoder


def _encoder_of(job: Job) -> Encoder:
    assert job.encoding is not None
    if job.encoding not in _open:
        keep_open(job.encoding, open_encoder(job.encoding))
    return _open[job.encoding]


def tokenize(job: Job) -> dict[str, Any]:
    """Write the pieces of a task, unless an earlier run has and they are whole; return its result."""
    earlier = result_of(job)
    if earlier is not None and _are_whole(job, earlier):
        return earlier
    share = share_of(job.options.validation)
    pieces = {split: _Piece(job, split) for split in splits_of(share)}
    tallies: list[Tally] = []
    try:
        for number, batch in _batches_of(job, tallies):
            if share is None:
                pieces[""].add(batch, number)
            else:
                for split, documents in _by_side(batch, share).items():
                    pieces[split].add(documents, number)
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
        "ended": sum(piece.num_ended for piece in pieces.values()),
        "excerpts": [list(excerpt) for piece in pieces.values() for excerpt in piece.excerpts],
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

    def __init__(self, job: Job, split: str) -> None:
        assert job.encoding is not None
        self._job = job
        self._encoder = _encoder_of(job)
        self._names = [stored_name(part.input) for part in job.ranges]
        self.text_bytes = 0
        path = piece_path(job, split)
        path.unlink(missing_ok=True)  # finished by a run that was stopped before it wrote the result
        self.writer = ShardWriter(path, schema_of(job.encoding.identity, job.options), durable=False)
        self.histogram = np.zeros(64, dtype=np.int64)  # of document lengths, by number of binary digits
        self.sources = np.zeros((len(job.ranges), 3), dtype=np.int64)
        self.num_ended = 0  # documents whose ids end with the EOS that is put behind them
        self.excerpts: list[Excerpt] = []
        self._clear()

    def add(self, batch: Batch, number: int) -> None:
        """Take documents of the task's range of that number."""
        self._texts += batch.texts
        self._lines += batch.lines
        self._places += batch.places
        self._ranges += [number] * len(batch.texts)
        self._characters += sum(map(len, batch.texts))
        if self._characters >= _BATCH_CHARACTERS or len(self._texts) >= _BATCH_DOCUMENTS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self.writer.close()

    def _clear(self) -> None:
        self._texts: list[Any] = []  # or ids
        self._lines: list[int] = []
        self._places: list[int] = []
        self._ranges: list[int] = []
        self._characters = 0

    def _flush(self) -> None:
        """Tokenize what waits."""
        if not self._texts:
            return
        identity = self._encoder.identity
        ids, lengths = self._encoder.encode(self._texts)
        self._check(ids, lengths)
        engine = None if self._job.encoding is None else self._job.encoding.engine
        if engine == "gigatoken":
            self.excerpts.append(excerpt(self._encoder, self._texts, self._job.number + len(self.excerpts)))
        if engine == ENGINE:
            sizes = np.zeros(len(lengths), dtype=np.int64)
            last = ids[np.cumsum(lengths)[lengths > 0] - 1]
            self.num_ended += 0 if identity.eos_id is None else int(np.count_nonzero(last == identity.eos_id))
        else:
            sizes = _text_sizes(self._texts)
        self.text_bytes += int(sizes.sum())
        tokens, lengths = with_edges(
            ids, lengths, bos=identity.bos_id, eos=identity.eos_id, dtype=self.writer.schema.dtype
        )
        fields: dict[str, Any] = {}
        if self._job.options.origin:
            names = [self._names[number] for number in self._ranges]
            joined = np.frombuffer(b"".join(names), dtype=np.uint8)
            fields["document.line"] = np.array(self._lines, dtype=np.int64)
            fields["ragged.path"] = (joined, np.array(list(map(len, names)), dtype=np.int64))
        self.writer.add_many(tokens, lengths, fields)
        self.histogram += np.bincount(bit_lengths(lengths), minlength=64)
        np.add.at(self.sources, self._ranges, np.stack([sizes, np.ones_like(sizes), lengths], axis=1))
        self._clear()

    def _check(self, ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> None:
        """Raise ValueError for an id that the vocabulary does not hold."""
        size = self._encoder.identity.vocab_size
        outside = first_outside(ids, lengths, size)
        if outside is None:
            return
        document, position, found = outside
        part = self._job.ranges[self._ranges[document]]
        raise ValueError(
            f"{place_of(part, self._places[document], self._lines[document])}: position {position:,} of the document: the id {found:,} is outside "
            f"of the vocabulary of {size:,} ids."
        )


def schema_of(identity: nc.TokenizerIdentity, options: Options) -> Schema:
    """Return what pieces and shards declare."""
    provenance = {"documents": options.documents, "made by": "millstream prepare", "plan": options.plan}
    return Schema(
        vocab_size=identity.vocab_size,
        tokenizer=recorded(identity),
        fields=ORIGIN_FIELDS if options.origin else {},
        provenance=provenance,
    )


def _text_sizes(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the bytes of each text in UTF-8."""
    return np.array([len(text) if text.isascii() else len(text.encode("utf-8")) for text in texts], dtype=np.int64)


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


def _by_side(batch: Batch, share: Fraction) -> dict[str, Batch]:
    """Return the documents of each split: equal texts, or ids, are on the same side, always."""
    sides = [_side(text, share) for text in batch.texts]
    return {
        split: Batch(*([value for value, side in zip(values, sides, strict=True) if side == split] for values in batch))
        for split in splits_of(share)
    }


def _side(text: Any, share: Fraction) -> str:
    content = text.encode("utf-8") if isinstance(text, str) else text.astype("<i8").tobytes()
    digest = hashlib.blake2b(content, digest_size=8, person=b"millstream-split").digest()
    return "validation" if int.from_bytes(digest, "little") < share * 2**64 else "train"
