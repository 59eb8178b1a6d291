"""What a corpus is made of, whatever holds it, and how rows are taken out of an array of tokens."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from neutral_core.format.offsets import Offsets

Tokens = npt.NDArray[Any]


class ShardLike(Protocol):
    """What a corpus is made of: a file of ours, a legacy data set read in place, or arrays in memory."""

    num_documents: int
    num_tokens: int

    def token_view(self) -> memoryview | None:
        """Return all tokens, read-only, if they may be sliced freely, else None: each access goes through ``read``."""
        ...

    def read(self, start: int, stop: int) -> Tokens:
        """Return tokens start … stop of the shard, read-only: a view where the bytes are mapped."""
        ...

    def rows(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        """Return [len(starts), length], a fresh array: ``length`` tokens from each start on."""
        ...

    def offsets(self) -> Offsets:
        """Return where the documents begin."""
        ...

    def field(self, name: str, document: int) -> npt.NDArray[Any]:
        """Return a document's items of a declared field."""
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
