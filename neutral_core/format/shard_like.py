"""What a corpus is made of, whatever holds it, and how rows are taken out of an array of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from neutral_core.format.offsets import Offsets

Tokens = npt.NDArray[Any]


class FieldItems(NamedTuple):
    """What a field holds for documents that stand one after another.

    ``token.``: items [sum of lengths, *shape]; ``document.``: [documents, *shape]; ``ragged.``: [total, *shape], and how many of them belong to
    each document, int64[documents].
    """

    items: npt.NDArray[Any]
    counts: npt.NDArray[np.int64] | None = None


class TokenMemory(NamedTuple):
    """Tokens that lie in memory, mapped or not: a view that keeps them there, and the address of the first."""

    view: memoryview
    address: int

    @classmethod
    def of(cls, tokens: Tokens) -> TokenMemory:
        """Return the memory of a contiguous array."""
        return cls(tokens.data, int(tokens.__array_interface__["data"][0]))


class ShardLike(Protocol):
    """What a corpus is made of: a file of ours, a legacy data set read in place, or arrays in memory."""

    num_documents: int
    num_tokens: int

    def token_memory(self) -> TokenMemory | None:
        """Return all tokens, read-only, if they may be read freely, else None: each access goes through ``read`` or ``rows``."""
        ...

    def read(self, start: int, stop: int) -> Tokens:
        """Return tokens start … stop of the shard, read-only: a view where the bytes are mapped."""
        ...

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        """Return [len(starts), length], a fresh array: ``length`` tokens from each start on."""
        ...

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Ask the system to bring stretches of tokens into memory; returns at once."""
        ...

    def release(self) -> None:
        """Let touched pages of maps go: for passes over everything, which would seem to hold all of it."""
        ...

    def offsets(self) -> Offsets:
        """Return where the documents begin."""
        ...

    def field(self, name: str, first: int, last: int) -> FieldItems:
        """Return what a declared field holds for documents first … last − 1, read-only."""
        ...

    def verify(self) -> None:
        """Check every byte; raise FormatError."""
        ...


def rows_of(tokens: Tokens, starts: npt.NDArray[np.int64], length: int) -> Tokens:
    """Return [len(starts), length], a fresh array: ``length`` tokens of a 1-D array from each start on; one gather, no loop."""
    last = len(tokens) - length
    if last < 0 or (len(starts) and not (int(starts.min()) >= 0 and int(starts.max()) <= last)):
        raise IndexError(f"a row of {length:,} tokens does not lie in an array of {len(tokens):,}.")
    step = tokens.strides[0]
    windows = np.lib.stride_tricks.as_strided(tokens, (last + 1, length), (step, step), writeable=False)
    return np.asarray(windows[starts])


def rows_at(addresses: npt.NDArray[np.int64], dtype: np.dtype[Any], length: int) -> Tokens:
    """Return [len(addresses), length], a fresh array: ``length`` items from each address on; one gather over any number of maps.

    Args:
        addresses: int64[n], n ≥ 1, multiples of the item's size apart; the caller keeps the memory of every row alive.
    """
    base = int(addresses.min())
    items = (addresses - base) // dtype.itemsize
    return np.asarray(np.asarray(_Span(base, int(items.max()) + 1, dtype, length))[items])


class _Span:
    """All rows of ``length`` items that begin in a stretch of memory, most of which is never touched: what lies between maps need not be there."""

    def __init__(self, base: int, count: int, dtype: np.dtype[Any], length: int) -> None:
        size = dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (base, True),
            "shape": (count, length),
            "strides": (size, size),
            "typestr": dtype.str,
        }
