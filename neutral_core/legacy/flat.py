"""Tokens that stand one after another in a foreign file: signed, 64-bit and unsigned integers served as uint8, uint16 or uint32."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import Offsets
from neutral_core.format.shard_like import FieldItems, TokenMemory, rows_of

_SAMPLES = 64  # of a file
_ALL_SAMPLES = 4096  # of a data set, but for two of each file
_SAMPLE_BYTES = 4096
_VERIFIED_DOCUMENTS = 1024  # at a time: an item of a field may be an image


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTokens:
    """How ids are stored and served: signed ones as unsigned of the same width, 64-bit ones as uint32, each checked as it is read.

    Attributes:
        dtype: in the file, little-endian.
        served: uint8, uint16 or uint32.
        most: the largest number that may stand for an id, or None where every bit pattern is one.
        least: the smallest, which stands for id 0.
    """

    dtype: np.dtype[Any]
    served: np.dtype[Any]
    most: int | None
    least: int = 0

    @classmethod
    def of(cls, dtype: np.dtype[Any], least: int = 0) -> StoredTokens:
        """Return how ids of a stored integer dtype are served; raise ValueError for another kind.

        Args:
            dtype: as stored.
            least: what stands for id 0: 1 where ids were counted from 1.
        """
        if dtype.byteorder == ">":
            raise ValueError(
                f"dtype is {dtype.str}, expected a little-endian one: big-endian files are not read; swap their bytes first."
            )
        dtype = dtype.newbyteorder("<")
        if dtype.kind not in "iu":
            raise ValueError(f"dtype is {dtype}, expected an integer type: tokens are integers.")
        served = np.dtype(f"<u{min(dtype.itemsize, 4)}")
        most = min(int(np.iinfo(dtype).max), 2**32 - 1 + least)
        checked = dtype.kind == "i" or dtype.itemsize > 4 or least > 0
        return cls(dtype=dtype, served=served, most=most if checked else None, least=least)

    @classmethod
    def asked(cls, dtype: npt.DTypeLike, path: Path) -> StoredTokens:
        """Return how ids of a dtype that a caller gave are served; raise ValueError for what is none of numpy's integer types."""
        try:
            return cls.of(np.dtype(dtype))
        except TypeError:
            raise ValueError(
                f"{path}: dtype is {dtype!r}, expected one of numpy's integer types, such as uint16."
            ) from None


class FlatShard:
    """One foreign file of tokens; see ShardLike.

    Args:
        file: its bytes.
        stored: how ids are stored.
        offsets: where documents begin.
        num_documents: how many there are.
        start_byte: where the tokens begin in the file.
        num_tokens: how many there are; None: they run to the file's end.
        fields: name of a declared field → what returns its items for documents first … last − 1, first and last being valid.
    """

    __slots__ = ("_fields", "_file", "_offsets", "_start", "_stored", "num_documents", "num_tokens")

    def __init__(
        self,
        file: FileBytes,
        stored: StoredTokens,
        *,
        offsets: Offsets,
        num_documents: int,
        start_byte: int = 0,
        num_tokens: int | None = None,
        fields: Mapping[str, Callable[[int, int], FieldItems]] | None = None,
    ) -> None:
        self._file = file
        self._stored = stored
        self._start = start_byte
        self._offsets = offsets
        self.num_documents = num_documents
        self._fields = dict(fields or {})
        room = (file.num_bytes - start_byte) // stored.dtype.itemsize
        self.num_tokens = room if num_tokens is None else num_tokens
        if not 0 <= self.num_tokens <= room:
            raise FormatError(
                f"{file.path}: {self.num_tokens:,} tokens of {stored.dtype} from byte {start_byte:,} on do not fit into its {file.num_bytes:,} bytes: it "
                "is damaged or the copy was cut short: copy it again."
            )

    def token_memory(self) -> TokenMemory | None:
        """See ShardLike; None where ids have to be checked as they are read, or do not lie on multiples of their size."""
        if self._stored.most is not None or self._file.access != "map" or self._start % self._stored.dtype.itemsize:
            return None
        memory = self._file.tokens
        if memory is None:
            memory = self._file.tokens = TokenMemory.of(self.read(0, self.num_tokens))
        return memory

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See ShardLike; raises FormatError for an id that is negative or beyond 2^32 - 1."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"{self._file.path}: tokens {start:,} … {stop:,} are outside of its {self.num_tokens:,}.")
        size = self._stored.dtype.itemsize
        found = self._file.read(self._start + start * size, self._start + stop * size).view(self._stored.dtype)
        return self._serve(found, lambda at: start + at)

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """See ShardLike; raises FormatError for an id that is negative or beyond 2^32 - 1."""
        if not len(starts):
            return np.empty((0, length), dtype=self._stored.served)
        if self._file.access != "map":
            return np.stack([self.read(start, start + length) for start in starts.tolist()])
        stop = self._start + self.num_tokens * self._stored.dtype.itemsize
        found = rows_of(self._file.map()[self._start : stop].view(self._stored.dtype), starts, length)
        return self._serve(found, lambda at: int(starts[at // length]) + at % length)

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """See ShardLike."""
        size = self._stored.dtype.itemsize
        self._file.advise(self._start + starts * size, lengths * size)

    def release(self) -> None:
        """See ShardLike."""
        self._file.release()

    def offsets(self) -> Offsets:
        """See ShardLike."""
        return self._offsets

    def field(self, name: str, first: int, last: int) -> FieldItems:
        """See ShardLike."""
        if not 0 <= first <= last <= self.num_documents:
            raise IndexError(
                f"{self._file.path}: documents {first:,} … {last:,} are outside of its {self.num_documents:,}."
            )
        return self._fields[name](first, last)

    def verify(self) -> None:
        """See ShardLike: reads every id and every field; these files carry no checksums."""
        for start in range(0, self.num_tokens, 1 << 20):
            self.read(start, min(start + (1 << 20), self.num_tokens))
            if start % (1 << 25) == 0:
                self.release()
        for read in self._fields.values():
            for first in range(0, self.num_documents, _VERIFIED_DOCUMENTS):
                read(first, min(first + _VERIFIED_DOCUMENTS, self.num_documents))

    def _serve(self, found: npt.NDArray[Any], position: Callable[[int], int]) -> npt.NDArray[Any]:
        most, least = self._stored.most, self._stored.least
        if most is None:
            return found
        if found.size and (int(found.min()) < least or int(found.max()) > most):
            at = int(np.flatnonzero((found < least) | (found > most))[0])
            raise FormatError(
                f"{self._file.path}: token {position(at):,} is {int(found.flat[at]):,}, expected an id from {least:,} to {most:,}: these are no tokens "
                "(labels, masked ids?), or the dtype is wrong, or the file is damaged."
            )
        if least:
            found = np.subtract(found, least, dtype=found.dtype)
            found.flags.writeable = False
        if found.dtype.itemsize == self._stored.served.itemsize:
            return found.view(self._stored.served)
        served = found.astype(self._stored.served)
        served.flags.writeable = found.flags.writeable
        return served


def fingerprint_of(layout: str, dtype: str, boundaries: str, paths: Sequence[Path]) -> str:
    """Return the fingerprint of foreign files: layout, dtype, boundary rule, sizes, and 64 evenly spaced blocks of 4 KiB of each.

    Of more than 64 files fewer of each, 4,096 in all, but at least the first and the last.

    Never a path or a time: a copy elsewhere has the same one. It costs the same for a terabyte; it does not prove that no other byte changed.
    """
    state = hashlib.sha256(f"legacy 1\n{layout}\n{dtype}\n{boundaries}\n".encode())
    samples = max(2, min(_SAMPLES, _ALL_SAMPLES // max(len(paths), 1)))
    for path in paths:
        num_bytes = path.stat().st_size
        state.update(f"{num_bytes}\n".encode())
        spare = max(num_bytes - _SAMPLE_BYTES, 0)
        with path.open("rb") as file:
            for number in range(samples):
                file.seek(spare * number // (samples - 1))
                state.update(file.read(_SAMPLE_BYTES))
    return state.hexdigest()
