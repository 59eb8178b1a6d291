"""Files that their makers numbered, ``name_000001.bin``, ``name_000002.bin``, …: which of a folder's make one data set, in which order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from pathlib import Path

from neutral_core.errors import FormatError

_SHOWN = 4

_Numbered = tuple[tuple[int, ...], Path]


def holds(path: Path, belongs: Callable[[Path], bool], *, levels: int = 1) -> bool:
    """Return whether a path is a file, or a folder or prefix of files, of a layout; asks the first file of each data set of a folder.

    Args:
        path: of a file, a folder, or a prefix of files.
        belongs: whether a file is of the layout, by its first bytes.
        levels: how many numbers may end a name, as in ``name_<writer>_<number>.bin``.
    """
    if path.is_file():
        return belongs(path)
    found = _sets(path, levels) if path.is_dir() else [_with_prefix(path, levels)]
    return any(files and belongs(files[0][1]) for files in found)


def numbered_files(path: Path, belongs: Callable[[Path], bool], *, what: str, levels: int = 1) -> list[Path]:
    """Return the files of one data set in the order of their numbers: a file itself, the data set of a folder, or the files of a prefix.

    Args:
        path, belongs, levels: see ``holds``.
        what: the layout, for messages.

    Raises:
        FileNotFoundError: there is none. ValueError: a folder holds several data sets. FormatError: a number is missing or occurs twice.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        found = [files for files in _sets(path, levels) if belongs(files[0][1])]
        if len(found) > 1:
            names = [_name(files, levels) for files in found]
            more = ", …" if len(names) > _SHOWN else ""
            raise ValueError(
                f"{path}: it holds {len(names):,} data sets of {what}: {', '.join(names[:_SHOWN])}{more}; give the path of one, such as "
                f"{path / names[0]}."
            )
    else:
        found = [files for files in [_with_prefix(path, levels)] if files]
    if not found:
        raise FileNotFoundError(
            f"{path}: there is no file of {what}, and there are none named {path.name}_<number>.bin."
        )
    _check(found[0])
    return [file for _, file in found[0]]


def next_of(path: Path) -> Path | None:
    """Return the path of the file that would come after a numbered one, its number as wide; None for a file without a number."""
    match = re.fullmatch(r"(.*_)(\d+)", path.stem)
    if match is None:
        return None
    return path.with_name(f"{match[1]}{int(match[2]) + 1:0{len(match[2])}d}{path.suffix}")


def _sets(folder: Path, levels: int) -> list[list[_Numbered]]:
    """Return the data sets of a folder by name, each in order; a file without a number is one of its own."""
    sets: dict[str, list[_Numbered]] = {}
    for path in sorted(folder.glob("*.bin")):
        match = re.fullmatch(rf"(.+?)((?:_\d+){{1,{levels}}})\.bin", path.name)
        if path.is_file():
            sets.setdefault(path.name if match is None else match[1], []).append((_numbers(match), path))
    return [sorted(sets[name]) for name in sorted(sets)]


def _with_prefix(prefix: Path, levels: int) -> list[_Numbered]:
    """Return the files whose names are a prefix and up to so many numbers, in order."""
    name = prefix.name.removesuffix("_")
    if not name or not prefix.parent.is_dir():
        return []
    pattern = re.compile(rf"{re.escape(name)}((?:_\d+){{1,{levels}}})\.bin")
    found = [(pattern.fullmatch(path.name), path) for path in prefix.parent.iterdir()]
    return sorted((_numbers(match, 1), path) for match, path in found if match is not None and path.is_file())


def _numbers(match: re.Match[str] | None, group: int = 2) -> tuple[int, ...]:
    return () if match is None else tuple(int(number) for number in match[group][1:].split("_"))


def _name(files: list[_Numbered], levels: int) -> str:
    """Return by which name one data set of a folder is opened alone."""
    numbers, path = files[0]
    return re.sub(rf"(?:_\d+){{1,{levels}}}$", "", path.stem) if numbers else path.name


def _check(files: Iterable[_Numbered]) -> None:
    """Refuse gaps and doubles among the last numbers: nothing else would say that a file is missing."""
    for _, group in groupby(files, key=lambda entry: entry[0][:-1]):
        members = list(group)
        for (before, one), (after, other) in pairwise(members):
            if before == after:
                raise FormatError(f"{other}: it has the same number as {one.name}: keep one of the two.")
            if after[-1] != before[-1] + 1:
                raise FormatError(
                    f"{other}: it comes after {one.name}: number {before[-1] + 1:,} is missing: the copy was cut short: copy it again, or number the "
                    "files that are wanted without gaps."
                )
