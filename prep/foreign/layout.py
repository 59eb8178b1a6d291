"""What every layout that is converted offers: how it is told from others, which columns it has, and its rows piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

INTEGERS = "integers"
BYTES = "bytes"
JSON = "JSON"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a column holds.

    Attributes:
        holds: ``integers``: a list of them in each row; ``bytes``: what may be ids of a width that nothing says; ``JSON``: text that may be a list of
            integers; anything else is for messages: it is not read.
        dtype: of a list's integers as stored, where all rows have the same; else None.
    """

    holds: str
    dtype: np.dtype[Any] | None = None

    def __str__(self) -> str:
        return self.holds if self.dtype is None else f"{self.holds}, {self.dtype}"


class Column(NamedTuple):
    """One column of rows that stand one after another: all their values, [sum of counts], and how many are each row's, int64[rows].

    Values are integers (or bools) of any width; of a column of bytes they are uint8.
    """

    values: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Rows that stand one after another.

    ``where`` names their file, for messages; ``first`` is the number of the first of them in it; ``columns`` are those that were asked for.
    """

    where: str
    first: int
    columns: Mapping[str, Column]


class Piece(Protocol):
    """A part of a data set that one task reads: plain data that pickles, such as a file, or a row group of one."""

    @property
    def num_bytes(self) -> int:
        """As stored, about; for progress alone."""
        ...

    def read(self, names: Sequence[str]) -> Iterator[Rows]:
        """Yield all rows in order, some at a time, with the columns named.

        Raises:
            FormatError: the bytes are not what they should be. MissingExtraError: a library is not installed.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """A data set that was found and whose headers were read.

    Attributes:
        path: as given.
        layout: its name.
        columns: name → what it holds.
        pieces: in the order of their rows; the rows of all of them are the data set.
        files: whose bytes the fingerprint covers, in order.
        notes: sentences: what was inferred or left out.
        rows_are_documents: by the makers' own word; else the caller has to say it.
    """

    path: Path
    layout: str
    columns: Mapping[str, Kind]
    pieces: Sequence[Piece]
    files: Sequence[Path]
    notes: tuple[str, ...] = ()
    rows_are_documents: bool = False


class ForeignLayout(NamedTuple):
    """A layout that one module reads.

    Attributes:
        name: what a caller may insist on.
        recognises: whether a path holds it, by magic, checksum or side files, never by a name alone; reads a few kilobytes at most.
        open: reads its headers; raises FormatError for damage, ValueError where the caller has to say what the files do not.
    """

    name: str
    recognises: Callable[[Path], bool]
    open: Callable[[Path], Foreign]
