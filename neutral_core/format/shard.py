"""A shard: one file of a corpus, opened on first touch, its structure checked before any token is given out.

Opening checks, in this order: the length word, the header's rules (container), the header's own checksum, the digest that the manifest
promised, format version, counts, arrays and fields against each other, the ends of each offset array. ``verify`` adds what costs a pass
over the data: every block's checksum, every offset, every id, every byte of a bool, every padding.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.container import BLOCK, Array, Header, blocks, decode, decode_size
from neutral_core.format.content import Content, content_of
from neutral_core.format.fields import counted_by
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets, Offsets
from neutral_core.format.shard_like import FieldItems, TokenMemory, Tokens, rows_of

CHECKS = ("headers", "blocks")
_RELEASED = 32  # blocks of 1 MiB, or of as many tokens, that verify reads between two releases of pages


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What the manifest says of a shard: sizes in bytes, documents and tokens, and sha256(header ‖ checksums) in hexadecimal."""

    name: str
    num_bytes: int
    num_documents: int
    num_tokens: int
    digest: str


class Shard:
    """A shard file of ours.

    Args:
        path: of the file.
        access: ``map``, or ``read`` for file systems where maps are dangerous.
        check: ``headers``, or ``blocks``: each 1 MiB block's checksum at its first touch.
        expected: the manifest's entry, or None for a file on its own, which is then opened at once.
        declared: what the manifest says of every shard: vocab_size, tokenizer, fields; compared on opening.

    Raises:
        FormatError: on opening, when the file breaks a rule of FORMAT.md.
        FileNotFoundError: there is no such file.
    """

    __slots__ = (
        "_checked", "_checksums", "_content", "_file", "_header", "access", "check", "declared", "expected", "num_documents", "num_tokens", "path",
    )  # fmt: skip

    def __init__(
        self,
        path: Path,
        *,
        access: str = "map",
        check: str = "headers",
        expected: Entry | None = None,
        declared: Mapping[str, Any] | None = None,
    ) -> None:
        if check not in CHECKS:
            raise ValueError(f"check is {check!r}, expected 'headers' or 'blocks'.")
        self.path = path
        self.access = access
        self.check = check
        self.expected = expected
        self.declared = declared or {}
        self._header: Header | None = None
        if expected is None:
            self.open()
        entry = self.entry if expected is None else expected
        self.num_documents = entry.num_documents
        self.num_tokens = entry.num_tokens

    def open(self) -> Content:
        """Open and check the file if that has not been done; return what its header says."""
        if self._header is None:
            self._open()
        return self._content

    @property
    def entry(self) -> Entry:
        """The shard's entry for a manifest, from the file itself."""
        content = self.open()
        return Entry(
            name=self.path.name,
            num_bytes=self._file.num_bytes,
            num_documents=content.num_documents,
            num_tokens=content.num_tokens,
            digest=self._digest(),
        )

    def token_memory(self) -> TokenMemory | None:
        """See ShardLike."""
        if self.access != "map" or self.check != "headers":
            return None
        if self._header is None:
            self._open()
        memory = self._file.tokens
        if memory is None:
            memory = self._file.tokens = TokenMemory.of(self.items("tokens", 0, self.num_tokens))
        return memory

    def read(self, start: int, stop: int) -> Tokens:
        """See ShardLike; raises IndexError outside the shard."""
        self.open()
        return self.items("tokens", start, stop)

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        """See ShardLike."""
        tokens = self.token_memory()
        if tokens is not None:
            return rows_of(np.asarray(tokens.view), starts, length)
        return np.stack([self.read(start, start + length) for start in starts.tolist()])

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """See ShardLike."""
        self.open()
        array = self._arrays["tokens"]
        size = array.dtype.itemsize
        self._file.advise(self._start + array.start + starts * size, lengths * size)

    def release(self) -> None:
        """See ShardLike."""
        if self._header is not None:
            self._file.release()

    def offsets(self) -> Offsets:
        """See ShardLike; under ``access="read"`` the array is read whole: 8 bytes a document."""
        self.open()
        return ArrayOffsets(self.items("document_offsets", 0, self.num_documents + 1))

    def field(self, name: str, first: int, last: int) -> FieldItems:
        """See ShardLike; raises FormatError for offsets or bools that cannot be."""
        kind = name.partition(".")[0]
        if kind == "document":
            return FieldItems(self.items(name, first, last))
        source = "document_offsets" if kind == "token" else f"{name}.offsets"
        self.open()
        offsets = self.items(source, first, last + 1)
        counts = np.diff(offsets)
        if not 0 <= offsets[0] <= offsets[-1] <= self._arrays[name].shape[0] or (counts < 0).any():
            raise FormatError(
                f"{self.path}: {source}[{first}:{last + 1}] runs from {int(offsets[0]):,} to {int(offsets[-1]):,}: they must not decrease: the file "
                "is damaged."
            )
        items = self.items(name, int(offsets[0]), int(offsets[-1]))
        return FieldItems(items) if kind == "token" else FieldItems(items, counts)

    def verify(self) -> None:
        """See ShardLike: checksums of all blocks, all offsets, all ids, all bools."""
        content = self.open()
        for block in range(len(self._checksums) - 1):
            self._check_block(block)
            if block % _RELEASED == 0:
                self.release()
        for name, array in self._arrays.items():
            if counted_by(name) is not None:
                check_offsets(self.items(name, 0, array.shape[0]), f"{self.path}: {name}")
        self._check_paddings()
        for number, (start, stop) in enumerate(blocks(self.num_tokens)):
            if number % _RELEASED == 0:
                self.release()
            largest = int(self.items("tokens", start, stop).max())
            if largest >= content.vocab_size:
                raise FormatError(
                    f"{self.path}: tokens {start:,} … {stop:,} hold the id {largest:,}, expected ids below vocab_size {content.vocab_size:,}."
                )
        for name, array in self._arrays.items():
            if array.code == "BOOL":
                self.items(name, 0, array.shape[0])

    @property
    def _arrays(self) -> Mapping[str, Array]:
        assert self._header is not None
        return self._header.arrays

    def _open(self) -> None:
        path = str(self.path)
        if self.expected is not None and not self.path.exists():
            raise FormatError(
                f"{path}: dataset.json names this shard, but there is no such file: copy the corpus again."
            )
        with self.path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            first = file.read(8)
            size = decode_size(first, path=path, num_bytes=num_bytes)
            raw = first + file.read(size - 8)
            header = decode(raw, path=path, num_bytes=num_bytes)
            content = content_of(header, path)
            checksums = header.arrays["checksums"]
            file.seek(header.size + checksums.start)
            stored = np.frombuffer(file.read(checksums.num_bytes), dtype="<u4")
        if zlib.crc32(raw) != stored[0]:
            raise FormatError(
                f"{path}: byte 0: the header's checksum is {zlib.crc32(raw):#010x}, expected {stored[0]:#010x}: the file is damaged: copy it again."
            )
        self._file = FileBytes(self.path, num_bytes, self.access)
        self._checksums = stored
        self._checked = np.zeros(len(stored) - 1, dtype=bool)
        self._content = content
        self._header = header
        try:
            self._check_entry(raw)
            self._check_ends()
        except FormatError:
            self._header = None
            raise

    def _check_entry(self, raw: bytes) -> None:
        if self.expected is not None:
            found = Entry(
                name=self.expected.name,
                num_bytes=self._file.num_bytes,
                num_documents=self._content.num_documents,
                num_tokens=self._content.num_tokens,
                digest=hashlib.sha256(raw + self._checksums.tobytes()).hexdigest(),
            )
            for key in ("num_bytes", "num_documents", "num_tokens", "digest"):
                if getattr(found, key) != getattr(self.expected, key):
                    raise FormatError(
                        f"{self.path}: {key} is {getattr(found, key)!r}, but dataset.json expects {getattr(self.expected, key)!r}: "
                        "the file belongs to another corpus or version: copy the corpus again."
                    )

        for key, value in self.declared.items():
            if getattr(self._content, key) != value:
                raise FormatError(
                    f"{self.path}: {key} is {getattr(self._content, key)!r}, but dataset.json expects {value!r}: "
                    "the manifest was changed: copy the corpus again."
                )

    def _check_ends(self) -> None:
        for name, array in self._arrays.items():
            counted = counted_by(name)
            if counted is None:
                continue
            items = self._arrays[counted].shape[0]
            count = array.shape[0]
            ends = [int(self._raw(name, at, at + 1)[0]) for at in (0, count - 1)]
            if ends != [0, items]:
                raise FormatError(
                    f"{self.path}: {name} begins with {ends[0]:,} and ends with {ends[1]:,}, expected 0 and {items:,}: the file is damaged."
                )

    def _check_paddings(self) -> None:
        at = 0
        for name, array in self._arrays.items():
            if self._file.read(self._start + at, self._start + array.start).any():
                raise FormatError(
                    f"{self.path}: the padding before {name} holds a byte other than 0: the file was tampered with."
                )
            at = array.stop

    def _digest(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.sha256(file.read(self._start) + self._checksums.tobytes()).hexdigest()

    @property
    def _start(self) -> int:
        assert self._header is not None
        return self._header.size

    def _raw(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return items of an array without checking its blocks."""
        array = self._arrays[name]
        size = array.num_bytes // array.shape[0] if array.shape[0] else 0
        at = self._start + array.start
        return (
            self._file.read(at + start * size, at + stop * size)
            .view(array.dtype)
            .reshape((stop - start, *array.shape[1:]))
        )

    def items(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Return items start … stop of one of the file's arrays, by its name in the header, read-only; checked as ``check`` asks."""
        self.open()
        array = self._arrays[name]
        if not 0 <= start <= stop <= array.shape[0]:
            raise IndexError(f"{self.path}: {name}[{start}:{stop}] is outside of its {array.shape[0]:,} items.")
        if self.check == "blocks" and stop > start:
            size = array.num_bytes // array.shape[0]
            first, last = (array.start + start * size) // BLOCK, (array.start + stop * size - 1) // BLOCK
            for block in range(first, last + 1):
                if not self._checked[block]:
                    self._check_block(block)
        items = self._raw(name, start, stop)
        if array.code == "BOOL" and items.size and items.view(np.uint8).max() > 1:
            raise FormatError(
                f"{self.path}: {name}[{start}:{stop}] holds a byte other than 0 and 1, which is no bool: the file is damaged."
            )
        return items

    def _check_block(self, block: int) -> None:
        end = self._arrays["checksums"].start
        start, stop = self._start + block * BLOCK, self._start + min((block + 1) * BLOCK, end)
        found = zlib.crc32(self._file.read(start, stop).data)
        if found != self._checksums[block + 1]:
            raise FormatError(
                f"{self.path}: bytes {start:,} … {stop:,} have the checksum {found:#010x}, expected "
                f"{int(self._checksums[block + 1]):#010x}: the file is damaged: copy it again."
            )
        self._checked[block] = True


def check_offsets(offsets: npt.NDArray[Any], where: str) -> None:
    """Raise FormatError at the first offset that is smaller than the one before; in pieces, so that memory stays small."""
    for start in range(0, len(offsets) - 1, 1 << 20):
        piece = offsets[start : start + (1 << 20) + 1]
        wrong = np.flatnonzero(piece[1:] < piece[:-1])
        if len(wrong):
            at = start + int(wrong[0])
            raise FormatError(
                f"{where}[{at + 1}] is {int(offsets[at + 1]):,}, after {int(offsets[at]):,}: offsets must not decrease: the file is damaged."
            )
