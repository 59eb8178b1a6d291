"""Two files that make one data set, an ``.idx`` and a ``.bin``: which ones a path names, and what indexes of all makers have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.layout import first_bytes
from neutral_core.legacy.split import parts_of

# The codes of dtypes on which all makers agree; 6 and 7 are float32 and float64 in one order or the other.
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}


def pair_of(path: Path) -> tuple[Path, Path] | None:
    """Return (``.idx``, ``.bin``) for a prefix or either file, or None where there are no two such files; the ``.bin`` may be split.

    The suffixes are appended to the name as it is: a prefix may hold dots.
    """
    name = str(path)
    prefix = name[:-4] if name.endswith((".idx", ".bin")) else name
    for stem in dict.fromkeys((prefix, name)):
        index, tokens = Path(stem + ".idx"), Path(stem + ".bin")
        if index.is_file() and (tokens.is_file() or parts_of(tokens)):
            return index, tokens
    return None


def demand_pair(path: Path) -> tuple[Path, Path]:
    """Return (``.idx``, ``.bin``) for a prefix or either file; raise FileNotFoundError where there are no two such files."""
    pair = pair_of(path)
    if pair is None:
        raise FileNotFoundError(f"{path}: there are no two files {path.name}.idx and {path.name}.bin.")
    return pair


def index_start(path: Path, magic: bytes, count: int) -> bytes | None:
    """Return the first bytes of a pair's index, if they begin with a magic, or None; raise FileNotFoundError for an index without its ``.bin``."""
    pair = pair_of(path)
    start = first_bytes(path if pair is None else pair[0], count)
    if not start.startswith(magic):
        return None
    if pair is None:
        raise FileNotFoundError(
            f"{path}: it is the index of a pair, but {path.with_suffix('.bin').name} is not beside it."
        )
    return start


def raw_index(file: FileBytes) -> Callable[[], npt.NDArray[np.uint8]]:
    """Return what gives an index's bytes: the map, asked for anew so that it can be let go; under ``access="read"`` the bytes, in memory."""
    if file.access == "map":
        return file.map
    held = file.read(0, file.num_bytes)
    return lambda: held


def dtype_of(code: int, path: Path, at: int) -> np.dtype[Any]:
    """Return the dtype of the tokens for the code at a byte of an index; raise FormatError for a code that is no integer's."""
    if code not in CODES:
        why = (
            "means float32 in some tools and float64 in others, and tokens are no floats"
            if code in (6, 7)
            else "is unknown"
        )
        raise FormatError(
            f"{path}: byte {at}: the dtype's code is {code}, expected one of {', '.join(map(str, CODES))}: it {why}."
        )
    return np.dtype(CODES[code])
