"""What every foreign layout offers: how it is told from others, and how it is opened in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy.typing as npt

from neutral_core.format.corpus import Corpus
from neutral_core.format.tokenizer import TokenizerIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What ``open_corpus`` was asked for.

    Attributes:
        path: expanded; of a file, a folder, or a prefix of files.
        layout: the name that the caller insists on, or None: the files decide.
        dtype: of the ids as stored, or None.
        boundaries: the rule for documents, or None.
        tokenizer: who made the ids, or None.
        access: ``map`` or ``read``.
    """

    path: Path
    layout: str | None = None
    dtype: npt.DTypeLike | None = None
    boundaries: str | None = None
    tokenizer: TokenizerIdentity | None = None
    access: str = "map"


class Layout(NamedTuple):
    """A family of foreign layouts that one module reads.

    Attributes:
        names: what a caller may insist on; several where one magic serves several makers.
        recognises: whether a path holds it, by magic, size or side files, never by a name alone; reads a few kilobytes at most.
        open: opens it in place; raises FormatError for damage, ValueError where the caller has to say what the files do not.
        boundaries: rules that it takes beside ``index``, which all take that store their documents; for messages.
        takes_dtype: whether the files leave the dtype open.
    """

    names: tuple[str, ...]
    recognises: Callable[[Path], bool]
    open: Callable[[Request], Corpus]
    boundaries: tuple[str, ...] = ()
    takes_dtype: bool = False


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, fewer where it is shorter; none of what is no file."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(count)
