"""Publishing: how files and corpora appear, whole or not at all.

A corpus is put together in ``<directory>/.partial`` and appears in this order: each shard by rename, then ``dataset.json`` by rename, then
``.partial`` goes. A directory that has ``.partial`` and no ``dataset.json`` is not there for readers. Every step may be the last before a
crash: ``publish`` with the same list goes on from any of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from neutral_core.format.files import fsync_folder, remove, write_file
from neutral_core.format.manifest import MANIFEST, Manifest
from neutral_core.format.shard import Shard

try:
    import fcntl
except ImportError:  # Windows: no lock; two writers at once are then the caller's to prevent
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
_LOCK = "lock"


class Workplace:
    """``<directory>/.partial``, held by one process at a time for as long as the ``with`` lasts; the lock dies with the process.

    Args:
        directory: of the corpus (or of several) to be; made if it is missing.
        shared: with others that say so too: they do different parts of the work.

    Raises:
        FileExistsError: the directory holds a finished corpus or anything else that is not a workplace's.
        BlockingIOError: another process writes there now.
    """

    def __init__(self, directory: str | os.PathLike[str], *, shared: bool = False) -> None:
        self.directory = Path(directory)
        self.path = self.directory / PARTIAL
        self._refuse_corpus()
        if self.directory.exists() and not self.path.exists() and any(self.directory.iterdir()):
            raise FileExistsError(
                f"{self.directory}: the folder is not empty; a corpus is written into a new or empty folder: choose another."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / _LOCK, "ab")  # noqa: SIM115 - held until __exit__
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                raise BlockingIOError(
                    f"{self.directory}: another process is writing there now; wait for it or choose another folder."
                ) from None
        try:
            self._refuse_corpus()  # again: another process may have finished one before it gave the lock up
        except FileExistsError:
            self._lock.close()
            remove(self.path)
            raise

    def _refuse_corpus(self) -> None:
        if (self.directory / MANIFEST).exists():
            raise FileExistsError(
                f"{self.directory}: there is a corpus already; a corpus is never overwritten: choose another folder."
            )

    def clear(self, keep: Sequence[str] = ()) -> None:
        """Remove everything in the workplace, left by an earlier process, but the lock and the names in ``keep``."""
        for entry in self.path.iterdir():
            if entry.name != _LOCK and entry.name not in keep:
                remove(entry)

    def release(self) -> None:
        """Let another process write there."""
        self._lock.close()

    def __enter__(self) -> Workplace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def publish(
    directory: str | os.PathLike[str], shard_paths: Sequence[Path], extra_files: Mapping[str, bytes] | None = None
) -> Manifest:
    """Make finished shard files a corpus: move them into ``directory`` as shard-00000.safetensors, …, then write ``dataset.json``.

    ``.partial`` is left to the caller where anything is still in it.

    Args:
        directory: of the corpus; made if it is missing.
        shard_paths: finished shards in the corpus' order, on the same file system; those that an interrupted call moved are recognised.
        extra_files: name → content of files that belong beside the shards (a tokenizer's definition).

    Returns:
        The manifest that was written.

    Raises:
        FileNotFoundError: a shard is neither at its path nor at its final place.
        FormatError: a shard is damaged, or they were declared differently.
    """
    directory = Path(directory)
    partial = directory / PARTIAL
    partial.mkdir(parents=True, exist_ok=True)
    final = [directory / shard_name(index) for index in range(len(shard_paths))]
    for source, target in zip(shard_paths, final, strict=True):
        if source != target and (source.exists() or not target.exists()):
            os.replace(source, target)
    fsync_folder(directory)
    manifest = Manifest.of([Shard(path) for path in final])
    for name, content in (extra_files or {}).items():
        write_file(directory / name, content, by_way_of=partial)
    write_file(directory / MANIFEST, manifest.to_bytes(), by_way_of=partial)
    if not any(partial.iterdir()):
        partial.rmdir()
    fsync_folder(directory)
    return manifest


def shard_name(index: int) -> str:
    """Return the file name of shard number ``index``."""
    return f"shard-{index:05}.safetensors"
