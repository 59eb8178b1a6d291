"""Which files are read, and how the work is cut: by the inputs alone, never by the number of workers.

A large file of lines is cut into byte ranges, each of which owns the documents that begin in it; Parquet and Arrow files likewise, each range with the row
groups or record batches that begin in it (prep.readers.rows); small files are put together; a compressed file is read in one go, because it cannot be
entered in the middle.
"""

from __future__ import annotations

import fnmatch
import glob as globbing
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.readers.hub import Hub, cached_files, is_named

TASK_BYTES = 8 << 20
EXPANSION = (
    4  # how much larger text is than it is compressed, about: what a compressed file counts for beside others in a task
)
RULES = ("file", "line", "blank-line")

_KINDS = {".txt": "text", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".xz": "xz"}
_KNOWN = ".txt, .jsonl, .json (also .gz, .zst, .xz), .parquet, .arrow"
_STATE, _SPLITS = "state.json", "dataset_dict.json"  # of Hugging Face's Dataset.save_to_disk
ROWS = ("parquet", "arrow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A file to read.

    Attributes:
        path: where it is.
        name: for people and for ``ragged.path``: relative to the folder that was asked for, with slashes; where there are several, with its name.
        num_bytes: its size as stored.
        kind: ``text``, ``jsonl``, ``parquet`` or ``arrow``. compression: ``""``, ``gz``, ``zst`` or ``xz``.
    """

    path: str
    name: str
    num_bytes: int
    kind: str
    compression: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The documents of one input that begin in bytes start … stop; ``stop`` None: to the end."""

    input: Input
    start: int = 0
    stop: int | None = None


def stored_name(item: Input) -> bytes:
    """Return the name as ``ragged.path`` holds it: UTF-8, or the file system's own bytes where they are none."""
    return item.name.encode("utf-8", errors="surrogateescape")


def stamp(item: Input) -> list[Any]:
    """Return what tells whether a file is still the same, as plain data: name, bytes, time of the last change in ns."""
    found = Path(item.path).stat()
    return [stored_name(item).decode("utf-8", errors="backslashreplace"), found.st_size, found.st_mtime_ns]


def find_inputs(paths: Sequence[str], glob: str | None = None, hub: Hub | None = None) -> list[Input]:
    """Return the files to read: those named, and those below the folders named, sorted by name; hidden ones are left out.

    A folder of Hugging Face's ``save_to_disk`` gives its Arrow files in its own order, a data set by name those of the library's cache.

    Args:
        paths: files, folders, patterns such as ``data/**/*.jsonl.gz``, and data sets by name (prep.readers.hub).
        glob: pattern for the names of files below folders, such as ``*.py``; files of an unknown suffix are then read as text. None: the files of a
            known suffix: .txt, .jsonl, .json (also with .gz, .zst, .xz), .parquet, .arrow.
        hub: which part of data sets by name.

    Raises:
        FileNotFoundError: a path does not exist, or there is nothing to read below it.
        ValueError: a file named has an unknown suffix and there is no glob.
    """
    found = []
    hub = hub or Hub()
    named = [text for text in paths if is_named(text, hub)]
    if not named and hub != Hub():
        raise ValueError(
            f"--hub-config, --hub-split and --hub-revision are for data sets by name, such as owner/name or hf://FOLDER: {', '.join(paths)} is none."
        )
    paths = [name for text in paths for name in ([text] if text in named else _matching(text))]
    for text in paths:
        path = Path(text).expanduser()
        if text in named:
            found += [_input(path, name, any_suffix=False) for path, name in cached_files(text, hub, glob)]
        elif path.is_file():
            found.append(_input(path, path.name, glob is not None))
        elif path.is_dir():
            found += _saved(path) if _is_saved(path) else _below(path, glob, "" if len(paths) == 1 else f"{path.name}/")
        else:
            also = f" If it is a data set of the hub, say hf://{text}." if text.isidentifier() else ""
            raise FileNotFoundError(f"{path}: there is no such file or folder.{also}")
    return found


def _matching(text: str) -> list[str]:
    """Return a path as it is, or what a pattern matches, sorted."""
    if Path(text).expanduser().exists() or not globbing.has_magic(text):
        return [text]
    found = sorted(globbing.glob(str(Path(text).expanduser()), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = [name for name in found if Path(name).is_file()]
    if not files:
        raise FileNotFoundError(f"{text}: there is no file of such a name.")
    return files


def _below(folder: Path, glob: str | None, prefix: str) -> list[Input]:
    below = []
    for entry in folder.rglob("*"):
        name = entry.relative_to(folder).as_posix()
        if not entry.is_file() or any(part.startswith(".") for part in name.split("/")):
            continue
        wanted = (
            _kind(entry.name) is not None
            if glob is None
            else fnmatch.fnmatch(entry.name, glob) or fnmatch.fnmatch(name, glob)
        )
        if wanted:
            below.append(_input(entry, prefix + name, glob is not None))
    if not below:
        what = f"named {glob!r}" if glob else f"with a known suffix: {_KNOWN}"
        raise FileNotFoundError(
            f"{folder}: there is no file {what} below it: give --glob PATTERN to read other names as text."
        )
    return sorted(below, key=lambda item: item.name)


def _is_saved(folder: Path) -> bool:
    if (folder / _SPLITS).is_file():
        inside = ", ".join(sorted(entry.parent.name for entry in folder.glob(f"*/{_STATE}")))
        raise ValueError(
            f"{folder}: it holds several splits of a dataset: name one of the folders in it: {inside or 'there is none'}."
        )
    return (folder / _STATE).is_file() and any(folder.glob("*.arrow"))


def _saved(folder: Path) -> list[Input]:
    """Return the Arrow files of a folder of ``save_to_disk`` in the order of its state.json."""
    path = folder / _STATE
    try:
        state = json.loads(path.read_bytes())
        names = [entry["filename"] for entry in state["_data_files"]]
        picked = [entry["filename"] for entry in state.get("_indices_files") or []]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: it is not what Dataset.save_to_disk writes ({error!r}).") from None
    if picked:
        raise ValueError(
            f"{folder}: its rows are picked by {', '.join(picked)}: save it again after flatten_indices()."
        )
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise ValueError(
                f"{path}: it names {name!r}, which is no file beside it: the folder was copied in part: copy it again."
            )
    return [_input(folder / name, name, any_suffix=False) for name in names]


def cut(inputs: Sequence[Input], rule: str, task_bytes: int = TASK_BYTES) -> list[tuple[Range, ...]]:
    """Return the tasks, in the order of their documents; a function of names, sizes and rule alone."""
    tasks: list[tuple[Range, ...]] = []
    group: list[Range] = []
    size = 0
    for item in inputs:
        num_bytes = item.num_bytes * (EXPANSION if item.compression else 1)
        if num_bytes > task_bytes:
            if group:
                tasks.append(tuple(group))
                group, size = [], 0
            if item.compression or (item.kind == "text" and rule == "file"):
                tasks.append((Range(input=item),))
            else:
                for start in range(0, item.num_bytes, task_bytes):
                    stop = start + task_bytes
                    tasks.append((Range(input=item, start=start, stop=stop if stop < item.num_bytes else None),))
            continue
        if size + num_bytes > task_bytes and group:
            tasks.append(tuple(group))
            group, size = [], 0
        group.append(Range(input=item))
        size += num_bytes
    if group:
        tasks.append(tuple(group))
    return tasks


def _kind(name: str) -> tuple[str, str] | None:
    compression = next((_COMPRESSIONS[end] for end in _COMPRESSIONS if name.endswith(end)), "")
    stem = name.rsplit(".", 1)[0] if compression else name
    kind = next((_KINDS[end] for end in _KINDS if stem.endswith(end)), None)
    return None if kind is None or (compression and kind in ROWS) else (kind, compression)


def _input(path: Path, name: str, any_suffix: bool) -> Input:
    known = _kind(path.name)
    if known is None and not any_suffix:
        raise ValueError(f"{path}: the suffix is none of {_KNOWN}: give --glob '*' to read it as text.")
    if known is None:
        known = "text", next((_COMPRESSIONS[end] for end in _COMPRESSIONS if path.name.endswith(end)), "")
    kind, compression = known
    return Input(
        path=str(path.absolute()), name=name, num_bytes=path.stat().st_size, kind=kind, compression=compression
    )
