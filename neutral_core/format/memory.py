"""A shard in memory, for tests and small things."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.offsets import ArrayOffsets, Offsets
from neutral_core.format.shard_like import FieldItems, TokenMemory, rows_of


class MemoryShard:
    """Documents as arrays of one dtype, joined; see ShardLike."""

    __slots__ = ("array", "num_documents", "num_tokens", "starts")

    def __init__(self, documents: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> None:
        self.array = np.concatenate([np.empty(0, dtype=dtype), *documents]).astype(dtype, copy=False)
        self.array.flags.writeable = False
        self.starts = np.cumsum([0, *(len(document) for document in documents)], dtype=np.int64)
        self.num_documents = len(documents)
        self.num_tokens = len(self.array)

    def digest(self, vocab_size: int) -> str:
        """Return a hexadecimal digest of all it holds."""
        state = hashlib.sha256(f"memory {vocab_size} {self.array.dtype.str} {self.num_documents}\n".encode())
        state.update(self.starts.tobytes())
        state.update(self.array.tobytes())
        return state.hexdigest()

    def token_memory(self) -> TokenMemory:
        """See ShardLike."""
        return TokenMemory.of(self.array)

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See ShardLike."""
        return self.array[start:stop]

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
        """See ShardLike."""
        return rows_of(self.array, starts, length)

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """See ShardLike; they are there already."""

    def release(self) -> None:
        """See ShardLike; there are no maps."""

    def offsets(self) -> Offsets:
        """See ShardLike."""
        return ArrayOffsets(self.starts)

    def field(self, name: str, first: int, last: int) -> FieldItems:
        """See ShardLike; there are no fields in memory."""
        raise KeyError(f"no field {name!r} in documents {first} … {last}: a corpus in memory has none.")

    def verify(self) -> None:
        """See ShardLike; memory needs no check."""
