"""The sections of a ``.fast_llm_dataset`` file: found by its JSON, their tags, sizes and offsets checked; see fast_llm_dataset.py for the bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.container import DTYPES
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.fast_llm_json import (
    BEGIN,
    LEFT_OUT,
    TYPES,
    check_places,
    count_of,
    entries_of,
    read_json,
    shape_of,
    short,
    vocab_size_of,
)

_PIECE = 1 << 20
_TAGS = {
    "language_model": (b"lm begin", b"lm end"),
    "token": (b"token begin", b"token end"),
    "range": (b"range begin", b"range end"),
    "patch": (b"patch begin", b"patch end"),
    "token_data": (b"token data begin", b"token data end"),
}
_DTYPES = {name: np.dtype(code) for name, code in DTYPES.values() if name != "bool" and not name.startswith("float8")}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArray:
    """An array in the file, at any byte: ``start`` in bytes, ``shape`` with the items first."""

    file: FileBytes
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return items first … last − 1, read-only and aligned: a view where they are, else a copy."""
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        found = self.file.read(self.start + first * size, self.start + last * size)
        items = found.view(self.dtype).reshape((last - first, *self.shape[1:]))
        if not items.flags.aligned:
            items = items.copy()
            items.flags.writeable = False
        return items

    def take(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return single items of a mapped 1-D array, wherever they are; nothing else is touched."""
        stop = self.start + self.num_bytes
        return np.asarray(self.file.map()[self.start : stop].view(self.dtype)[numbers])


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A section whose tags, size and offsets are right.

    Attributes:
        dtype: name of its items' dtype, ``int32`` of ranges.
        arrays: name → where it lies; ``items``, ``offsets``, and of patches ``token_map``, ``positions``, ``lengths``, ``group_offsets``.
    """

    dtype: str
    arrays: Mapping[str, StoredArray]

    @property
    def num_items(self) -> int:
        """Tokens, ranges or patches in the section."""
        return self.arrays["items"].shape[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sections:
    """What a file holds.

    Attributes:
        num_documents: in each section.
        sections: name → Section, of those that are there; ``tokens`` always is.
        vocab_size: number of ids, or None where the file does not say.
        left_out: names of sections that are not read.
    """

    num_documents: int
    sections: Mapping[str, Section]
    vocab_size: int | None
    left_out: tuple[str, ...]


def read_sections(file: FileBytes) -> Sections:
    """Read a file's JSON, and check its sections against it and against each other; passes over all offsets and keeps none.

    Raises:
        FormatError: the file is no ``.fast_llm_dataset``, is not finished, or contradicts itself.
    """
    path = file.path
    root, stop = read_json(file)
    entries = entries_of(root, path)
    places = {
        name: (count_of(path, name, entry, "begin"), count_of(path, name, entry, "end"))
        for name, entry in entries.items()
    }
    head, foot = _TAGS["language_model"]
    check_places(path, places, BEGIN + len(head), stop - len(foot))
    _check_tags(file, "language_model", _TAGS["language_model"], BEGIN, stop)
    num_documents = count_of(path, "tokens", entries["tokens"], "num_documents")
    sections = {}
    for name, kind in TYPES.items():
        if name in entries:
            found = count_of(path, name, entries[name], "num_documents")
            if found != num_documents:
                raise FormatError(
                    f"{path}: {name}.num_documents is {found:,}, but tokens.num_documents is {num_documents:,}: the file is damaged."
                )
            sections[name] = _section(file, name, kind, entries[name], places[name])
    for name in ("advantages", "old_log_probabilities"):
        if name in sections:
            _check_same_offsets(path, name, sections[name], sections["tokens"])
    return Sections(
        num_documents=num_documents,
        sections=sections,
        vocab_size=vocab_size_of(root),
        left_out=tuple(name for name in LEFT_OUT if name in entries),
    )


def _section(file: FileBytes, name: str, kind: str, entry: Mapping[str, Any], place: tuple[int, int]) -> Section:
    path = file.path
    head, foot = _TAGS[kind]
    dtype, layout = _layout(path, name, kind, entry)
    arrays, at = {}, place[0] + len(head)
    for key, (of, shape) in layout.items():
        arrays[key] = StoredArray(file=file, start=at, dtype=of, shape=shape)
        at += arrays[key].num_bytes
    if at + len(foot) != place[1]:
        raise FormatError(
            f"{path}: {name} has {place[1] - place[0]:,} bytes by its begin and end, but {at + len(foot) - place[0]:,} by its counts: the file is damaged."
        )
    _check_tags(file, name, (head, foot), *place)
    _check_offsets(path, f"{name}'s offsets", arrays["offsets"], arrays["items"].shape[0])
    if kind == "patch":
        _check_offsets(path, f"{name}'s group offsets", arrays["group_offsets"], arrays["lengths"].shape[0])
    return Section(dtype=dtype, arrays=arrays)


def _layout(
    path: Path, name: str, kind: str, entry: Mapping[str, Any]
) -> tuple[str, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
    """Return the name of the items' dtype, and dtype and shape of each array in the order of the file."""
    int32 = np.dtype("<i4")
    documents = count_of(path, name, entry, "num_documents") + 1
    if kind == "range":
        shape: tuple[int, ...] = (count_of(path, name, entry, "num_ranges"), 2)
        return "int32", {"items": (int32, shape), "offsets": (int32, (documents,))}
    dtype = entry.get("data_type")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise FormatError(
            f"{path}: {name}.data_type is {short(dtype)}, expected one of {', '.join(_DTYPES)}: the file is damaged."
        )
    if kind == "patch":
        shape = shape_of(path, name, dtype, entry, "patch_shape")
        if len(shape) < 2:
            raise FormatError(
                f"{path}: {name}.patch_shape is {list(shape)}, expected two numbers or more: the file is damaged."
            )
        patches, groups = (count_of(path, name, entry, key) for key in ("num_patches", "num_patch_groups"))
        return dtype, {
            "items": (_DTYPES[dtype], (patches, *shape)),
            "token_map": (int32, (patches,)),
            "positions": (int32, (patches, len(shape) - 1)),
            "offsets": (int32, (documents,)),
            "lengths": (int32, (groups,)),
            "group_offsets": (int32, (documents,)),
        }
    shape = shape_of(path, name, dtype, entry, "shape") if kind == "token_data" else ()
    tokens = count_of(path, name, entry, "num_tokens")
    return dtype, {"items": (_DTYPES[dtype], (tokens, *shape)), "offsets": (np.dtype("<i8"), (documents,))}


def _check_tags(file: FileBytes, name: str, tags: tuple[bytes, bytes], begin: int, end: int) -> None:
    for tag, at in ((tags[0], begin), (tags[1], end - len(tags[1]))):
        found = file.read(at, at + len(tag)).tobytes()
        if found != tag:
            raise FormatError(
                f"{file.path}: byte {at:,}: found {found!r}, expected {tag!r} of {name}: the file is damaged."
            )


def _check_offsets(path: Path, what: str, offsets: StoredArray, total: int) -> None:
    """Check that offsets begin with 0, do not decrease, and end with ``total``."""
    count = offsets.shape[0]
    ends = [int(offsets.read(at, at + 1)[0]) for at in (0, count - 1)]
    if ends != [0, total]:
        raise FormatError(
            f"{path}: {what} run from {ends[0]:,} to {ends[1]:,}, expected 0 to {total:,}: the file is damaged."
        )
    for start in range(0, count, _PIECE):
        piece = offsets.read(start, min(start + _PIECE + 1, count))
        wrong = np.flatnonzero(piece[1:] < piece[:-1])
        if len(wrong):
            at = int(wrong[0])
            raise FormatError(
                f"{path}: entry {start + at + 1:,} of {what} is {int(piece[at + 1]):,}, after {int(piece[at]):,}: they must not decrease: the file is "
                "damaged."
            )


def _check_same_offsets(path: Path, name: str, section: Section, tokens: Section) -> None:
    ours, theirs = section.arrays["offsets"], tokens.arrays["offsets"]
    for start in range(0, ours.shape[0], _PIECE):
        stop = min(start + _PIECE, ours.shape[0])
        if not np.array_equal(ours.read(start, stop), theirs.read(start, stop)):
            raise FormatError(f"{path}: {name} has other lengths than the documents' tokens: the file is damaged.")
