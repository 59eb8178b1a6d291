"""Files and folders that appear together at the end, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from neutral_core.format.files import fsync_folder, temporary_path


class TemporaryFiles:
    """Files and folders under temporary names, renamed together; removed where it does not come to that."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._open: list[BinaryIO] = []
        self._temporary: dict[Path, Path] = {}  # final → temporary

    def create(self, path: Path) -> BinaryIO:
        """Return a new file that will be ``path``; the first created is published last."""
        temporary = self._reserve(path)
        file = temporary.open("xb")
        self._stack.callback(temporary.unlink, missing_ok=True)
        self._stack.callback(file.close)
        self._open.append(file)
        return file

    def folder(self, path: Path) -> Path:
        """Return a new folder that will be ``path``; to bring its files to the disk is the caller's."""
        temporary = self._reserve(path)
        temporary.mkdir()
        self._stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        return temporary

    def temporary(self, path: Path) -> Path:
        """Return where what will be ``path`` is now."""
        return self._temporary[path]

    def publish(self) -> list[Path]:
        """Bring all files to the disk and give all their names; return those."""
        for file in self._open:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        for path, temporary in reversed(self._temporary.items()):
            os.replace(temporary, path)
        for folder in {path.parent for path in self._temporary}:
            fsync_folder(folder)
        return list(self._temporary)

    def _reserve(self, path: Path) -> Path:
        if path.exists():
            raise FileExistsError(f"{path}: it is there already: export to another place, or remove it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary[path] = temporary_path(path)
        return self._temporary[path]
