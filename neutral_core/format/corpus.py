"""A corpus: many shards as one ordered set of documents and one stream of tokens.

Opening reads the manifest only; shards are opened and checked when they are first touched. Corpora pickle by their path and fingerprint and
open again lazily, so that a process that receives one maps the files itself and refuses data that have changed meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.container import DTYPES
from neutral_core.format.content import code_of
from neutral_core.format.fields import Field
from neutral_core.format.manifest import MANIFEST, Manifest
from neutral_core.format.memory import MemoryShard
from neutral_core.format.publish import PARTIAL, shard_name
from neutral_core.format.shard import CHECKS, Shard
from neutral_core.format.shard_like import FieldItems, ShardLike
from neutral_core.format.shard_writer import token_array
from neutral_core.format.tokenizer import TokenizerIdentity

Tokens = npt.NDArray[Any]

_UNLISTED = f"there is no {MANIFEST}: the shards were taken in the order of their names; nothing says whether the last ones are there."


class Corpus:
    """An ordered set of documents; made by ``open_corpus``, ``memory_corpus`` or a legacy layout.

    Attributes:
        num_documents, num_tokens, num_shards: int.
        dtype: of the tokens: uint8, uint16 or uint32.
        vocab_size: number of ids, or None where a legacy layout does not say.
        tokenizer: TokenizerIdentity, or None where it is not known.
        fields: name → Field, what is stored beside the tokens.
        fingerprint: hexadecimal text that changes with the data and with nothing else.
        notes: sentences: what was inferred or repaired on opening; empty for corpora of ours.
        files: of a foreign layout, all that it was read from.
        digests: path → sha256 in hexadecimal, which ``verify`` compares; of a foreign layout that a reference recorded.
        reopen: what pickle calls instead of carrying data: a function and its arguments.
    """

    def __init__(
        self,
        shards: Sequence[ShardLike],
        *,
        dtype: np.dtype[Any],
        fingerprint: str,
        reopen: tuple[Callable[..., Corpus], tuple[Any, ...]] | None = None,
        vocab_size: int | None = None,
        tokenizer: TokenizerIdentity | None = None,
        fields: Mapping[str, Field] | None = None,
        notes: Sequence[str] = (),
        files: Sequence[Path] = (),
    ) -> None:
        self.files = tuple(files)
        self.digests: dict[Path, str] = {}
        self.shards = tuple(shards)
        self.dtype = dtype
        self.fingerprint = fingerprint
        self.vocab_size = vocab_size
        self.tokenizer = tokenizer
        self.fields = dict(fields or {})
        self.notes = tuple(notes)
        self.reopen = reopen
        documents, tokens = (shard.num_documents for shard in self.shards), (shard.num_tokens for shard in self.shards)
        self.first_document = np.array([0, *accumulate(documents)], dtype=np.int64)
        self.first_token = np.array([0, *accumulate(tokens)], dtype=np.int64)

    @property
    def num_documents(self) -> int:
        """Documents in the corpus, empty ones included."""
        return int(self.first_document[-1])

    @property
    def num_tokens(self) -> int:
        """Tokens in the corpus: the sum of its documents' lengths."""
        return int(self.first_token[-1])

    @property
    def num_shards(self) -> int:
        """Files that hold the tokens."""
        return len(self.shards)

    def document(self, index: int) -> Tokens:
        """Return the tokens of a document: read-only, a view of the map where there is one.

        Args:
            index: 0 ≤ index < num_documents; negative ones count from the end.

        Raises:
            IndexError: there is no such document.
            FormatError: its shard is damaged.
        """
        shard, local = self._locate(index)
        start, stop = self.shards[shard].offsets().at(np.array([local, local + 1])).tolist()
        if not 0 <= start <= stop <= self.shards[shard].num_tokens:
            where = getattr(self.shards[shard], "path", "the corpus")
            raise FormatError(
                f"{where}: document {local:,}: its offsets are {start:,} and {stop:,}: they must not decrease: the file is damaged; run verify."
            )
        return self.shards[shard].read(start, stop)

    def tokens(self, start: int, stop: int) -> Tokens:
        """Return tokens start … stop of the corpus as one stream: read-only, a view where they lie in one mapped shard, else a copy.

        Raises:
            IndexError: not 0 ≤ start ≤ stop ≤ num_tokens.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start:,} … {stop:,} are outside of the corpus' {self.num_tokens:,}.")
        pieces = [np.empty(0, dtype=self.dtype)]
        if start < stop:
            first = int(np.searchsorted(self.first_token, start, side="right")) - 1
            last = int(np.searchsorted(self.first_token, stop, side="left"))
            bounds = [(i, int(self.first_token[i]), int(self.first_token[i + 1])) for i in range(first, last)]
            pieces = [
                self.shards[i].read(max(start, low) - low, min(stop, high) - low)
                for i, low, high in bounds
                if low < high
            ]
        if len(pieces) == 1:
            return pieces[0]
        joined = np.concatenate(pieces)
        joined.flags.writeable = False
        return joined

    def document_offsets(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return where documents start … stop begin in the stream: int64[stop - start + 1], tokens, the last is where the last one ends.

        Raises:
            IndexError: not 0 ≤ start ≤ stop ≤ num_documents.
        """
        if not 0 <= start <= stop <= self.num_documents:
            raise IndexError(f"documents {start:,} … {stop:,} are outside of the corpus' {self.num_documents:,}.")
        if start == stop:
            return np.array(
                [self.num_tokens] if start == self.num_documents else self.document_offsets(start, start + 1)[:1]
            )
        pieces = []
        for shard in range(
            int(np.searchsorted(self.first_document, start, side="right")) - 1,
            int(np.searchsorted(self.first_document, stop, side="left")),
        ):
            lower = int(self.first_document[shard])
            first, last = max(start, lower), min(stop, int(self.first_document[shard + 1]))
            if first < last:
                offsets = self.shards[
                    shard
                ].offsets()  # before anything is made of so many documents as the manifest promises
                pieces.append(self.first_token[shard] + offsets.at(np.arange(first - lower, last - lower + 1)))
        return pieces[0] if len(pieces) == 1 else np.concatenate([*(piece[:-1] for piece in pieces[:-1]), pieces[-1]])

    def field(self, name: str, index: int) -> npt.NDArray[Any]:
        """Return what is stored under a field's name for a document, read-only.

        Returns:
            ``token.``: [length, *shape]; ``document.``: [*shape]; ``ragged.``: [any, *shape]. bfloat16 and float8 as bit patterns.

        Raises:
            KeyError: no such field is declared. IndexError: there is no such document. FormatError: its shard is damaged.
        """
        if name not in self.fields:
            raise KeyError(f"no field {name!r}; declared are: {', '.join(self.fields) or 'none'}.")
        shard, local = self._locate(index)
        items = self.shards[shard].field(name, local, local + 1).items
        return np.asarray(items[0]) if name.startswith("document.") else items

    def field_items(self, name: str, start: int, stop: int) -> FieldItems:
        """Return what is stored under a field's name for documents start … stop − 1, read-only; a view where it lies in one mapped shard.

        Returns:
            FieldItems: ``items`` as ``field`` has them, of all documents one after another; for ``ragged.`` ``counts``, int64[stop − start].

        Raises:
            as ``field``.
        """
        if name not in self.fields:
            raise KeyError(f"no field {name!r}; declared are: {', '.join(self.fields) or 'none'}.")
        if not 0 <= start <= stop <= self.num_documents:
            raise IndexError(f"documents {start:,} … {stop:,} are outside of the corpus' {self.num_documents:,}.")
        first = min(int(np.searchsorted(self.first_document, start, side="right")) - 1, self.num_shards - 1)
        last = max(int(np.searchsorted(self.first_document, stop, side="left")), first + 1)
        bounds = [(shard, *self.first_document[shard : shard + 2].tolist()) for shard in range(first, last)]
        parts: list[FieldItems] = [
            self.shards[shard].field(name, max(start, low) - low, min(stop, high) - low)
            for shard, low, high in bounds
            if low < high or len(bounds) == 1
        ]
        if len(parts) == 1:
            return parts[0]
        items = np.concatenate([part.items for part in parts])
        items.flags.writeable = False
        counts = [part.counts for part in parts if part.counts is not None]
        return FieldItems(items, np.concatenate(counts) if counts else None)

    def verify(self) -> None:
        """Read everything: checksums, offsets, ids; raise FormatError at the first fault. Takes as long as reading the files does."""
        for path, digest in self.digests.items():
            check_digest(path, digest)
        for shard in self.shards:
            shard.verify()

    def release(self) -> None:
        """Let touched pages of all maps go; what is read again comes from the system's cache. For passes over everything."""
        for shard in self.shards:
            shard.release()

    def _locate(self, index: int) -> tuple[int, int]:
        if not -self.num_documents <= index < self.num_documents:
            raise IndexError(f"document {index:,} is outside of the corpus' {self.num_documents:,} documents.")
        index %= self.num_documents
        shard = int(np.searchsorted(self.first_document, index, side="right")) - 1
        return shard, index - int(self.first_document[shard])

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Any, ...]]:
        if self.reopen is None:
            raise TypeError(
                f"{self!r} was not made by open_corpus or memory_corpus, so it cannot be opened again elsewhere."
            )
        return self.reopen

    def __repr__(self) -> str:
        return f"Corpus({self.num_documents:,} documents, {self.num_tokens:,} tokens, {self.dtype}, fingerprint {self.fingerprint[:16]})"


def check_digest(path: Path, expected: str) -> None:
    """Raise FormatError unless a file's sha256 is the one expected."""
    with path.open("rb") as file:
        found = digest_of(file)
    if found != expected:
        raise FormatError(
            f"{path}: its sha256 is {found}, but {expected} was recorded: the file was changed or is damaged: copy it again."
        )


def digest_of(file: BinaryIO) -> str:
    """Return the sha256 of the rest of an open file, in hexadecimal."""
    state = hashlib.sha256()
    while block := file.read(1 << 20):
        state.update(block)
    return state.hexdigest()


def open_folder(
    path: Path, *, tokenizer: TokenizerIdentity | None, fingerprint: str | None, check: str, access: str
) -> Corpus:
    """Open a corpus of ours: a folder with a manifest, a folder of shards without one, or one shard.

    Raises:
        FileNotFoundError: it is not there, or not finished.
        FormatError: manifest or shards are damaged, or the fingerprint is not theirs.
    """
    if check not in CHECKS:
        raise ValueError(f"check is {check!r}, expected 'headers' or 'blocks'.")
    folder = path.parent if path.is_file() else path
    manifest = _manifest(path)
    if fingerprint is not None:
        manifest = manifest.cut(fingerprint, str(path))
    if tokenizer is not None and manifest.tokenizer is not None and tokenizer != manifest.tokenizer:
        raise ValueError(f"{path}: the tokenizer given is {tokenizer}, but the corpus says {manifest.tokenizer}.")
    declared = {"vocab_size": manifest.vocab_size, "tokenizer": manifest.tokenizer, "fields": manifest.fields}
    return Corpus(
        [
            Shard(folder / entry.name, access=access, check=check, expected=entry, declared=declared)
            for entry in manifest.entries
        ],
        dtype=np.dtype(DTYPES[code_of(manifest.vocab_size)][1]),
        fingerprint=manifest.chain[-1],
        vocab_size=manifest.vocab_size,
        tokenizer=manifest.tokenizer or tokenizer,
        fields=manifest.fields,
        notes=[] if path.is_file() or (path / MANIFEST).exists() else [_UNLISTED],
    )


def _manifest(path: Path) -> Manifest:
    if path.is_file():
        return Manifest.of([Shard(path)])
    try:
        return Manifest.from_bytes((path / MANIFEST).read_bytes(), str(path / MANIFEST))
    except FileNotFoundError:
        pass
    if (path / PARTIAL).exists():
        # Between the two looks the writer may have finished, which removes .partial after the manifest has appeared.
        if (path / MANIFEST).exists():
            return _manifest(path)
        raise FileNotFoundError(
            f"{path}: the corpus is not finished: it is being written, or the writer was stopped: run its command again."
        )
    shards = sorted(path.glob("*.safetensors"))
    if (path / MANIFEST).exists():
        return _manifest(path)
    if not shards:
        inside = ", ".join(sorted(found.parent.name for found in path.glob(f"*/{MANIFEST}")))
        hint = f"; open one of those inside it: {inside}" if inside else ""
        raise FileNotFoundError(
            f"{path}: there is no corpus: no {MANIFEST}, no *.safetensors, no legacy data set of this name{hint}."
        )
    _check_numbers(path, [shard.name for shard in shards])
    return Manifest.of([Shard(shard) for shard in shards])


def _check_numbers(path: Path, names: list[str]) -> None:
    """Refuse shards that are numbered as ours are, with a gap: without a manifest nothing else would say that one is missing."""
    missing = sorted({shard_name(number) for number in range(len(names))} - set(names))
    if missing and all(re.fullmatch(r"shard-\d{5,}\.safetensors", name) for name in names):
        raise FormatError(
            f"{path}: {missing[0]} is missing, and so is {MANIFEST}: the copy was cut short: copy it again."
        )


def memory_corpus(
    documents: Sequence[npt.ArrayLike], *, vocab_size: int | None = None, tokenizer: TokenizerIdentity | None = None
) -> Corpus:
    """Return a corpus in memory, for tests: the same thing as one on disk, without fields.

    Args:
        documents: integers [n] each, 0 ≤ id < vocab_size.
        vocab_size: decides the dtype; None: one more than the largest id.
        tokenizer: its identity, or None.

    Raises:
        ValueError: an id outside of the vocabulary, or a document that is no array of integers.
    """
    arrays = [token_array(document) for document in documents]
    largest = max((int(array.max()) for array in arrays if array.size), default=0)
    smallest = min((int(array.min()) for array in arrays if array.size), default=0)
    size = largest + 1 if vocab_size is None else vocab_size
    if smallest < 0 or largest >= size:
        raise ValueError(f"ids run from {smallest:,} to {largest:,}, expected 0 ≤ id < vocab_size {size:,}.")
    shard = MemoryShard(arrays, np.dtype(DTYPES[code_of(size)][1]))
    return Corpus(
        [shard],
        dtype=shard.array.dtype,
        fingerprint=shard.digest(size),
        reopen=(_memory_corpus, (list(documents), size, tokenizer)),
        vocab_size=size,
        tokenizer=tokenizer,
    )


def _memory_corpus(documents: list[npt.ArrayLike], vocab_size: int, tokenizer: TokenizerIdentity | None) -> Corpus:
    return memory_corpus(documents, vocab_size=vocab_size, tokenizer=tokenizer)
