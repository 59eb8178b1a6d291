"""datatrove's ``.ds`` files and what stands beside them, read in place: one file, or a folder of them in the order of their names.

    X.ds             u16 or u32 ids to the end of the file (little-endian); nothing in it says which
    X.ds.index       u64 end[documents], in tokens, without a leading 0: the last one is the number of tokens
    X.ds.loss        optional: one byte a token, 1 where it is trained on → ``token.loss_mask``
    X.ds.metadata    optional: text, "<tokenizer>|<bytes a token>", the number of tokens, the same for people, a line each

The width is told by the last end: times 2 or times 4 it is the size of the ``.ds``, never both where there are tokens. ``.metadata`` and dtype must agree
with that; without an index one of the two must say it. Without an index the boundary rules of headerless files are asked for.
All files of a folder have one width, and all of them or none have an index and a loss mask. Only the folder itself is looked at, none inside it.

Opening passes once over the indices, 8 bytes a document, and keeps none of them (under ``access="read"``: in memory); the rules ``eos`` and ``bos``
read all tokens. A chunk-shuffled file has its documents cut at the chunks' edges, and stores the pieces: they are its documents here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.beside import Documents, check_all_or_none, documents_by_rule, part_of
from neutral_core.legacy.boundaries import CHOICES
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.joined import join
from neutral_core.legacy.layout import Layout, Request

_PIECE = 1 << 20
_WIDTHS = (2, 4)
_MOST_METADATA_BYTES = 1 << 16
_UNSHUFFLED = re.compile(r"(.*_|)(\d{5})_unshuffled\.ds")


class _Ends:
    """Documents that are stored by their ends alone; see Offsets.

    Args:
        ends: returns int64[documents], non-decreasing: asked for anew, so that a map can be let go and opened again.
    """

    __slots__ = ("_ends",)

    def __init__(self, ends: Callable[[], npt.NDArray[np.int64]]) -> None:
        self._ends = ends

    def at(self, documents: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """See Offsets."""
        out = np.zeros(documents.shape, dtype=np.int64)
        later = documents > 0
        out[later] = self._ends()[documents[later] - 1]
        return out

    def find(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """See Offsets; O(log num_documents) a token."""
        return np.searchsorted(self._ends(), tokens, side="right").astype(np.int64)


class _Metadata(NamedTuple):
    tokenizer: str
    width: int
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """A ``.ds`` and what stands beside it."""

    path: Path
    num_bytes: int
    index: Callable[[], npt.NDArray[np.uint8]] | None
    metadata: _Metadata | None
    width: int | None  # None where neither index nor metadata decide it

    def ends(self) -> npt.NDArray[np.int64]:
        assert self.index is not None
        return self.index().view("<i8")


def open_datatrove(request: Request) -> Corpus:
    """Open a ``.ds`` file, or a folder of them, in place.

    Raises:
        ValueError: width or boundary rule are needed and not given, or given and the files say otherwise.
        FormatError: for every way in which the files can contradict each other; the message names file, field, found and expected.
    """
    paths = _paths(request.path)
    if not paths:
        raise FileNotFoundError(f"{request.path}: there is no *.ds in it.")
    indexed = check_all_or_none([(path, _side(path, ".index")) for path in paths])
    masked = check_all_or_none([(path, _side(path, ".loss")) for path in paths])
    if indexed and request.boundaries not in (None, "index"):
        raise ValueError(
            f"{paths[0]}: boundaries is {request.boundaries!r}, but {paths[0].name}.index stores its documents: leave it out."
        )
    files = [_look(path, indexed, request.access) for path in paths]
    _refuse_twice(files)
    stored = StoredTokens.of(np.dtype(f"<u{_width(files, request)}"))
    notes = _notes(request, files, stored)
    tokens = [FileBytes(file.path, file.num_bytes, request.access) for file in files]
    if indexed:
        documents = [Documents(_Ends(file.ends), len(file.ends())) for file in files]
    else:
        documents = documents_by_rule(tokens, stored, request, notes)
    parts = [
        part_of(
            bare,
            stored,
            found,
            mask=_side(bare.path, ".loss") if masked else None,
            others=(_side(bare.path, ".index"),) if indexed else (),
        )
        for bare, found in zip(tokens, documents, strict=True)
    ]
    return join(parts, layout="datatrove", tokenizer=request.tokenizer, notes=notes)


def _paths(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("*.ds") if file.is_file()) if path.is_dir() else [path]


def _side(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _recognises(path: Path) -> bool:
    if not path.is_dir() and not (path.is_file() and path.suffix == ".ds"):
        return False
    return any(_side(file, suffix).is_file() for file in _paths(path) for suffix in (".index", ".metadata", ".loss"))


def _look(path: Path, indexed: bool, access: str) -> _File:
    """Return a ``.ds`` after comparing its size with what the side files say."""
    num_bytes = path.stat().st_size
    index = _read_index(_side(path, ".index"), access) if indexed else None
    metadata = _read_metadata(_side(path, ".metadata"))
    widths = set(_WIDTHS)
    if index is not None:
        ends = index().view("<u8")
        num_tokens = int(ends[-1]) if len(ends) else 0
        widths = {width for width in _WIDTHS if num_tokens * width == num_bytes}
        if not widths:
            raise FormatError(
                f"{path}: the file has {num_bytes:,} bytes, but {path.name}.index promises {num_tokens:,} tokens, {2 * num_tokens:,} bytes as uint16 "
                f"or {4 * num_tokens:,} as uint32: one of the two was cut short or belongs to another data set: copy both again."
            )
    if metadata is not None and (metadata.width not in widths or metadata.num_tokens * metadata.width != num_bytes):
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes{_as(index, widths)}, but {path.name}.metadata says {metadata.num_tokens:,} tokens of "
            f"{metadata.width} bytes: the copy was cut short, or the .metadata is of another file: copy it again or remove it."
        )
    if metadata is not None:
        widths = {metadata.width}
    return _File(
        path=path,
        num_bytes=num_bytes,
        index=index,
        metadata=metadata,
        width=next(iter(widths)) if len(widths) == 1 else None,
    )


def _as(index: Any, widths: set[int]) -> str:
    return "" if index is None else f", by its index in ids of {' or '.join(map(str, sorted(widths)))} bytes"


def _read_index(path: Path, access: str) -> Callable[[], npt.NDArray[np.uint8]]:
    """Return what gives the bytes of an index whose ends do not decrease."""
    num_bytes = path.stat().st_size
    if num_bytes % 8:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected 8 for each document: it was cut short: copy it again."
        )
    file = FileBytes(path, num_bytes, access)
    held = None if access == "map" else file.read(0, num_bytes)
    ends = (file.map() if held is None else held).view("<u8")
    for start in range(0, len(ends), _PIECE):
        piece = ends[start : start + _PIECE + 1]
        wrong = np.flatnonzero(piece[1:] < piece[:-1])
        if len(wrong):
            at = start + int(wrong[0])
            raise FormatError(
                f"{path}: document {at + 1:,} ends at token {int(ends[at + 1]):,}, the one before at {int(ends[at]):,}: ends must not decrease: the "
                "file is damaged: copy it again."
            )
    return file.map if held is None else lambda: held


def _read_metadata(path: Path) -> _Metadata | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(_MOST_METADATA_BYTES).decode("utf-8", errors="replace")
    first, second = (*text.splitlines(), "", "")[:2]
    tokenizer, _, width = first.rpartition("|")  # an unknown tokenizer is written as "Unknown Tokenizer|2|2"
    if width not in map(str, _WIDTHS) or not _is_count(second):
        raise FormatError(
            f"{path}: it begins with {text[:60]!r}, expected two lines, '<tokenizer>|<2 or 4 bytes a token>' and the number of tokens: it is damaged: "
            "copy it again or remove it."
        )
    return _Metadata(tokenizer, int(width), int(second))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _width(files: Sequence[_File], request: Request) -> int:
    """Return the bytes of an id, the same in all files; asks for it where nothing says it."""
    said = [file for file in files if file.width is not None]
    for file in said:
        if file.width != said[0].width:
            raise FormatError(
                f"{file.path}: its ids have {file.width} bytes, but {said[0].width} in {said[0].path.name}: the files do not belong to one data set: "
                "keep those of another one in a folder of their own."
            )
    width = said[0].width if said else None
    given = None if request.dtype is None else StoredTokens.asked(request.dtype, request.path).dtype
    if given is None and width is None:
        raise ValueError(
            f"{files[0].path}: nothing says how wide its ids are: there is no {files[0].path.name}.index with tokens and no "
            f"{files[0].path.name}.metadata; give dtype: datatrove writes uint16 where the vocabulary has at most 65,536 ids, else uint32."
        )
    if given is not None and given.itemsize not in (_WIDTHS if width is None else (width,)):
        expected = "uint16 or uint32" if width is None else f"ids of {width} bytes, as the files beside it say"
        raise ValueError(f"{request.path}: dtype is {given}, expected {expected}.")
    return width if given is None and width is not None else np.dtype(given).itemsize


def _refuse_twice(files: Sequence[_File]) -> None:
    """Refuse what a stopped shuffle leaves: the documents before it and after it, side by side."""
    names = [file.path.name for file in files if file.num_bytes]
    for file in files:
        found = _UNSHUFFLED.fullmatch(file.path.name)
        if found and file.num_bytes:
            twins = re.compile(re.escape(f"{found[1]}{found[2]}") + r"_\d{5}_(doc|chunk)_shuffled\.ds")
            twin = next((name for name in names if twins.fullmatch(name)), None)
            if twin:
                raise FormatError(
                    f"{file.path}: {twin} beside it holds the same documents, shuffled: the shuffle was stopped before it removed this file: remove one "
                    "of the two."
                )


def _notes(request: Request, files: Sequence[_File], stored: StoredTokens) -> list[str]:
    notes = []
    names = sorted({file.metadata.tokenizer for file in files if file.metadata})
    if names:
        notes.append(
            f"the .metadata beside the tokens say that they are of the tokenizer {', '.join(map(repr, names))}."
        )
    guessed = [file for file in files if file.metadata is None and file.index is not None and file.num_bytes]
    if guessed and request.dtype is None:
        notes.append(
            f"{guessed[0].path.name}{f' and {len(guessed) - 1:,} more' if guessed[1:] else ''}: the ids are {stored.dtype}, because the number of tokens "
            "in the .index fits the size of the .ds in this width alone; no .metadata says it."
        )
    if request.path.is_dir():
        for suffix in (".index", ".loss", ".metadata"):
            notes.extend(_strays(request.path, suffix))
    return notes


def _strays(path: Path, suffix: str) -> list[str]:
    """Return notes on ``.metadata`` without a ``.ds``; raise FormatError for other side files without one."""
    notes = []
    for side in sorted(path.glob(f"*.ds{suffix}")):
        if not side.with_name(side.name.removesuffix(suffix)).is_file():
            if suffix != ".metadata":
                raise FormatError(
                    f"{side}: {side.name.removesuffix(suffix)} is not beside it: the copy was cut short: copy it again."
                )
            notes.append(
                f"{side.name} is of no file here and is left out: datatrove's merger writes one for all of its files together."
            )
    return notes


LAYOUT = Layout(
    names=("datatrove",),
    recognises=_recognises,
    open=open_datatrove,
    boundaries=CHOICES,
    takes_dtype=True,
)
