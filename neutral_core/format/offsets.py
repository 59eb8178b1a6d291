"""Where documents begin: int64 offsets in tokens, looked up by document and by token, whatever holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Offsets(Protocol):
    """num_documents + 1 offsets: first 0, non-decreasing, last the number of tokens."""

    def at(self, documents: npt.NDArray[Any]) -> Int64:
        """Return the offsets of documents 0 … num_documents (the last is the end): int64, as the argument."""
        ...

    def find(self, tokens: npt.NDArray[Any]) -> Int64:
        """Return for each token, 0 ≤ token < num_tokens, the document that holds it: int64, as the argument."""
        ...


class ArrayOffsets:
    """Offsets in an aligned int64 array, in memory or mapped."""

    __slots__ = ("array",)

    def __init__(self, array: Int64) -> None:
        self.array = array

    def at(self, documents: npt.NDArray[Any]) -> Int64:
        """See Offsets."""
        return np.asarray(self.array[documents], dtype=np.int64)

    def find(self, tokens: npt.NDArray[Any]) -> Int64:
        """See Offsets; O(log num_documents) a token."""
        return np.searchsorted(self.array, tokens, side="right").astype(np.int64) - 1


class ComputedOffsets:
    """Offsets that a function computes from document numbers; found by bisection in lockstep, so nothing is held.

    For what lies unaligned in a foreign file: numpy would copy such an array whole before searching it.

    Args:
        num_documents: documents; ``offset_of`` takes 0 … num_documents.
        offset_of: int64[n] → int64[n], non-decreasing.
    """

    __slots__ = ("num_documents", "offset_of")

    def __init__(self, num_documents: int, offset_of: Callable[[Int64], Int64]) -> None:
        self.num_documents = num_documents
        self.offset_of = offset_of

    def at(self, documents: npt.NDArray[Any]) -> Int64:
        """See Offsets."""
        return self.offset_of(np.asarray(documents, dtype=np.int64))

    def find(self, tokens: npt.NDArray[Any]) -> Int64:
        """See Offsets; O(log num_documents) calls of ``offset_of`` for all tokens together."""
        tokens = np.asarray(tokens, dtype=np.int64)
        low = np.zeros(tokens.shape, dtype=np.int64)
        high = np.full(tokens.shape, self.num_documents, dtype=np.int64)  # offset(low) <= token < offset(high)
        for _ in range(max(self.num_documents, 1).bit_length()):
            middle = (low + high) >> 1
            right = self.offset_of(middle) <= tokens
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return low
