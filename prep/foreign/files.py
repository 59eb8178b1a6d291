"""Which files of a folder make one data set, in which order; and the small JSON files that say so, which may be hostile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from neutral_core.errors import FormatError

_MOST_JSON_BYTES = 1 << 28
_SHOWN = 4
_OF = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})(.*)", re.DOTALL)
_SIDE_FILES = (
    ".json", ".jsonl", ".txt", ".md", ".yaml", ".yml", ".csv", ".tsv", ".html", ".py", ".lock", ".crc", ".index", ".idx", ".sha256", ".md5",
)  # fmt: skip


def holds(path: Path, belongs: Callable[[Path], bool]) -> bool:
    """Return whether a path is a file of a layout, or a folder or prefix of files one of which is.

    Args:
        path: of a file, a folder, or the part before ``-00000-of-00002`` of files.
        belongs: whether a file is of the layout, by its first bytes.
    """
    if path.is_file():
        return belongs(path)
    return any(belongs(file) for file in _candidates(path))


def data_files(path: Path, belongs: Callable[[Path], bool], what: str) -> tuple[list[Path], tuple[str, ...]]:
    """Return the files of one data set in the order of the numbers in their names, and notes on what was left out.

    Args:
        path, belongs: see ``holds``.
        what: the layout, for messages.

    Raises:
        ValueError: a folder holds several data sets. FormatError: a file is of another kind, or is missing by the numbers in the names.
    """
    if path.is_file():
        return [path], ()
    found: list[Path] = []
    strange: list[Path] = []
    for file in _candidates(path):
        (found if belongs(file) else strange).append(file)
    if not found:
        raise FileNotFoundError(f"{path}: there is no file of {what}.")
    if strange:
        raise FormatError(
            f"{strange[0]}: it does not begin as a file of {what} does, as {found[0].name} beside it: it is damaged, or belongs to another data set: copy "
            "it again or move it away."
        )
    families = sorted({_family(file) for file in found})
    if len(families) > 1:
        names = [min(file.name for file in found if _family(file) == family) for family in families]
        more = ", …" if len(names) > _SHOWN else ""
        raise ValueError(
            f"{path}: it holds {len(names):,} data sets of {what}, by the names of its files: {', '.join(names[:_SHOWN])}{more}; give the path of one: a file, "
            f"the part of the name before -00000-of-, such as {path / _prefix(names[0])}, or a folder of its own."
        )
    _check_numbers(found)
    notes = []
    if path.is_dir():
        spare = sorted(entry.name for entry in path.iterdir() if entry not in set(found))
        if spare:
            notes.append(f"left out of {path.name}: {', '.join(spare[:_SHOWN])}{', …' if len(spare) > _SHOWN else ''}.")
    if len(found) > 1:
        notes.append(
            f"{len(found):,} files in the order of the numbers in their names: {found[0].name} … {found[-1].name}."
        )
    return found, tuple(notes)


def read_json(path: Path) -> Any:
    """Return what a file of JSON says; raise FormatError for what is none, says a key twice, or is larger than 256 MiB."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file, so {path.parent} is no data set of this layout.")
    num_bytes = path.stat().st_size
    if num_bytes > _MOST_JSON_BYTES:
        raise FormatError(f"{path}: the file has {num_bytes:,} bytes, expected at most {_MOST_JSON_BYTES:,}.")
    return parse_json(path.read_bytes(), str(path))


def parse_json(text: bytes, where: str) -> Any:
    """Return what JSON says; raise FormatError for what is none or says a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{where}: it is not JSON ({error}): the copy was cut short or the file is damaged: copy it again."
        ) from None


def inside(folder: Path, name: Any, where: str) -> Path:
    """Return the path of a file that a side file names; raise FormatError where the name leads out of the folder."""
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if (
        not parts
        or ".." in parts
        or parts[0].startswith("/")
        or set(name) & set("\\\0")
        or PureWindowsPath(name).anchor
    ):
        raise FormatError(f"{where} is {short(name)}, expected the name of a file inside {folder}.")
    return folder.joinpath(*parts)


def count_of(entry: Any, key: str, where: str) -> int:
    """Return a count that JSON says; raise FormatError for what is none."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if type(value) is not int or not 0 <= value < 2**62:
        raise FormatError(f"{where}.{key} is {short(value)}, expected an integer from 0 to 2^62 - 1.")
    return value


def short(value: Any) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _candidates(path: Path) -> list[Path]:
    """Return the files of a folder or prefix that could hold data, in the order of the numbers in their names."""
    if path.is_dir():
        found = [file for file in path.iterdir() if file.is_file()]
    elif path.parent.is_dir() and path.name:
        matches = [(_OF.fullmatch(file.name), file) for file in path.parent.iterdir()]
        found = [file for match, file in matches if match is not None and match[1] == path.name]
    else:
        return []
    data = [file for file in found if not file.name.startswith((".", "_")) or _OF.fullmatch(file.name)]
    return sorted((file for file in data if not file.name.endswith(_SIDE_FILES)), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _family(path: Path) -> str:
    return re.sub(r"\d+", "#", path.name)


def _prefix(name: str) -> str:
    match = _OF.fullmatch(name)
    return name if match is None else match[1]


def _check_numbers(files: list[Path]) -> None:
    """Refuse files named -00000-of-00002 where some are missing: nothing else would say it."""
    matches = [match for match in (_OF.fullmatch(file.name) for file in files) if match is not None]
    if not matches:
        return
    numbers, totals = [int(match[2]) for match in matches], {int(match[3]) for match in matches}
    if len(totals) > 1:
        raise FormatError(
            f"{files[0]}: the files are numbered of {' and of '.join(f'{total:,}' for total in sorted(totals))}: they are of two versions of a data set: keep "
            "one of them."
        )
    present = set(numbers)
    missing = next((number for number in range(min(totals.pop(), len(numbers) + 1)) if number not in present), None)
    if missing is not None:
        first = matches[0]
        name = f"{first[1]}-{missing:0{len(first[2])}d}-of-{first[3]}{first[4]}"
        raise FormatError(f"{files[0].with_name(name)}: it is missing: the copy was cut short: copy it again.")
