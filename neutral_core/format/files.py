"""Files that appear whole or not at all: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import io
import os
import secrets
import shutil
from pathlib import Path


def write_file(path: Path, content: bytes, *, by_way_of: Path | None = None) -> None:
    """Write a small file whole or not at all: temporary name, fsync, rename, fsync of the folder."""
    temporary = temporary_path((by_way_of or path.parent) / path.name)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """Return a hidden name beside ``path``, ending in ``.tmp``, that no other attempt uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def fsync_folder(path: Path) -> None:
    """Make renames in a folder durable; a platform that cannot open folders (Windows) goes without."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: io.FileIO, data: bytes | memoryview) -> None:
    """Write all of ``data`` to an unbuffered file, which may take less at a time."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[file.write(view) :]


def remove(path: Path) -> None:
    """Remove a file or a folder with all it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
