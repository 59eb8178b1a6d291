"""Data sets by name, through Hugging Face's ``datasets``: it downloads them into its cache as Arrow files, and those are read as any others are.

    owner/name        where there is no such path on this disk
    hf://owner/name   always
    hf://FOLDER, or a folder with a configuration or a split: a folder in the hub's layout, which needs no network

A folder is given a cache of its own for what its files are now: the library's own key is the folder's name alone, so that another folder of that name, or
one that has changed, would be served as what was read first (datasets 5.2).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prep.extras import require

_SCHEME = "hf://"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r"\.(txt|jsonl?|parquet|arrow|gz|zst|xz)$")  # a path that is not there, rather than a name
_SPLIT = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hub:
    """Which part of a data set by name: its configuration, split, and revision (a branch, tag or commit of its repository)."""

    config: str | None = None
    split: str = "train"
    revision: str | None = None


def is_named(text: str, hub: Hub) -> bool:
    """Return whether an input is for the library: by its scheme, or because the disk has no such path, or as a folder with more to say of it."""
    if text.startswith(_SCHEME):
        return True
    path = Path(text).expanduser()
    if path.is_dir():
        return hub.config is not None or hub.split != "train"
    return _NAME.fullmatch(text) is not None and not _FILE.search(text) and not path.exists()


def cached_files(text: str, hub: Hub, glob: str | None) -> list[tuple[Path, str]]:
    """Return the Arrow files of a data set in the library's order, each with the name ``owner/name/split/file``.

    Args:
        text: as ``is_named`` takes it.
        hub: which part of it.
        glob: which of its files, as the library's ``data_files``.

    Raises:
        ValueError, FileNotFoundError: the library does not load it. MissingExtraError: it is not installed.
    """
    name = text.removeprefix(_SCHEME).removeprefix("datasets/")
    folder = Path(name).expanduser()
    by_scheme = text.startswith(_SCHEME)
    if not _SPLIT.fullmatch(hub.split):
        raise ValueError(
            f"{text}: the split is {hub.split!r}, expected the name of one, whole: --limit takes the first documents alone."
        )
    where = (
        text if by_scheme or folder.is_dir() else f"{text}: there is no such file or folder; to look for it on the hub"
    )
    datasets = require("datasets", extra="hub", purpose=where)
    options: dict[str, Any] = {"revision": hub.revision}
    if folder.is_dir():
        if hub.revision is not None:
            raise ValueError(f"{text}: it is a folder, and has no revision {hub.revision!r}: leave --hub-revision out.")
        name, options = str(folder.resolve()), {"cache_dir": _cache_of(folder.resolve(), datasets)}
    try:
        found = datasets.load_dataset(
            name, hub.config, split=hub.split, data_files=glob, keep_in_memory=False, **options
        )
    except Exception as error:  # of the library, of pyarrow and of the network: there is no common one
        reason = " ".join(str(error).split())[:400].rstrip(".")
        if folder.is_dir():
            raise ValueError(f"{text}: the datasets library does not load it: {reason}.") from error
        raise FileNotFoundError(
            f"{text}: {'' if by_scheme else 'there is no such file or folder, and '}the datasets library does not load it from the hub: {reason}."
        ) from error
    label = "/".join(filter(None, (folder.resolve().name if folder.is_dir() else name, hub.config, hub.split)))
    paths = [Path(entry["filename"]) for entry in found.cache_files]
    return [(path, f"{label}/{path.name}") for path in paths]


def _cache_of(folder: Path, datasets: Any) -> str:
    """Return a folder of the library's cache that belongs to this folder with these files in it."""
    files = sorted(
        (path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    )
    key = hashlib.sha256(json.dumps([str(folder), files]).encode()).hexdigest()[:16]
    return str(Path(datasets.config.HF_DATASETS_CACHE) / f"millstream-{key}")
