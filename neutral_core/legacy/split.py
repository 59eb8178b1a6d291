"""A ``.bin`` that was split into parts for upload, as Pythia's are: ``name-00000-of-00020.bin`` …, read as the one file that its index describes.

Parts are cut by bytes, in the middle of documents and even of ids, so they are one stretch of bytes: read, not mapped, whatever ``access`` is asked
for. Makers count differently: the number behind ``of`` is that of the parts, or of the last part.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.file_bytes import Bytes, FileBytes

_PART = re.compile(r"-(\d{5,})-of-(\d{5,})\.bin")


def parts_of(path: Path) -> list[Path]:
    """Return the parts of a ``.bin`` that is not there itself, in order; none where it is there or was not split.

    Raises:
        FormatError: a part is missing.
    """
    if path.is_file() or not path.parent.is_dir():
        return []
    stem = path.name.removesuffix(".bin")
    numbers: dict[int, Path] = {}
    said: set[int] = set()
    for part in path.parent.iterdir():
        found = _PART.fullmatch(part.name[len(stem) :]) if part.name.startswith(stem) else None
        if found:
            numbers[int(found[1])] = part
            said.add(int(found[2]))
    if not numbers:
        return []
    if len(said) > 1:
        raise FormatError(f"{path}: it was split into parts more than once, of {sorted(said)}: keep one set of them.")
    count = len(numbers)
    missing = next((number for number in range(count) if number not in numbers), None)
    if missing is None and said not in ({count}, {count - 1}):
        missing = count
    if missing is not None:
        raise FormatError(
            f"{path}: it was split into parts, {count} of which are here, but number {missing} of {max(said)} is not: copy all of them."
        )
    return [numbers[number] for number in sorted(numbers)]


def token_bytes(path: Path, access: str) -> tuple[FileBytes, list[Path]]:
    """Return the bytes of a ``.bin``, split or not, and the files that hold them."""
    parts = parts_of(path)
    if not parts:
        return FileBytes(path, path.stat().st_size, access), [path]
    return SplitBytes(path, [FileBytes(part, part.stat().st_size, access) for part in parts]), parts


class SplitBytes(FileBytes):
    """The bytes of several files one after another, as one file that is read.

    Args:
        path: that the file would have, for messages.
        parts: its files.
    """

    __slots__ = ("_edges", "_parts")

    def __init__(self, path: Path, parts: list[FileBytes]) -> None:
        self._parts = parts
        self._edges = np.cumsum([0, *(part.num_bytes for part in parts)], dtype=np.int64)
        super().__init__(path, int(self._edges[-1]), "read")

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes start … stop: of one part as that gives them, else a fresh array."""
        first = int(np.searchsorted(self._edges, start, side="right")) - 1
        found = []
        while start < stop:
            low, high = self._edges[first : first + 2].tolist()
            found.append(self._parts[first].read(start - low, min(stop, high) - low))
            start, first = min(stop, high), first + 1
        if len(found) == 1:
            return found[0]
        joined = np.concatenate([np.empty(0, dtype=np.uint8), *found])
        joined.flags.writeable = False
        return joined

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """See FileBytes; a stretch across an edge is advised in its first part."""
        which = np.searchsorted(self._edges, starts, side="right") - 1
        for part in np.unique(which).tolist():
            mine = which == part
            inside = np.minimum(lengths[mine], self._edges[part + 1] - starts[mine])
            self._parts[part].advise(starts[mine] - self._edges[part], inside)
