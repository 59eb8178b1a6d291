"""Bytes of files: maps and descriptors, of which only so many are held at once.

Python's mmap keeps its file's descriptor, so a process that maps thousands of shards would run out of them. Files are therefore opened on
first touch and the oldest is let go when the limit is reached: half of the process's soft limit on open files, over all corpora together
(descriptors belong to the process, so this one piece of state does too). An array that a caller still holds keeps its own map alive.

A file that is truncated while it is mapped kills the process that touches the missing part (SIGBUS); ``access="read"`` never maps, and
raises OSError there: the choice for NFS and Lustre.
"""

from __future__ import annotations

import io
import mmap
import os
import sys
import threading
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.shard_like import TokenMemory

# From Python 3.13 on a map need not keep the descriptor.
TRACKS_DESCRIPTOR = sys.hexversion >= 0x030D0000

Bytes = npt.NDArray[np.uint8]


class FileBytes:
    """A file's bytes, opened when first asked for, and again after having been let go.

    Args:
        path: of the file.
        num_bytes: its size when it was checked; another size later is an OSError.
        access: ``map`` or ``read``.
    """

    __slots__ = ("__weakref__", "_file", "_map", "_mmap", "access", "num_bytes", "path", "tokens")

    def __init__(self, path: Path, num_bytes: int, access: str) -> None:
        if access not in ("map", "read"):
            raise ValueError(f"access is {access!r}, expected 'map' or 'read'.")
        if access == "read" and not hasattr(os, "preadv"):
            raise ValueError("access='read' needs os.preadv, which this platform lacks; use access='map'.")
        self.path = path
        self.num_bytes = num_bytes
        self.access = access
        self._map: Bytes | None = None
        self._mmap: mmap.mmap | None = None
        self._file: io.FileIO | None = None
        self.tokens: TokenMemory | None = None  # the part of the map that is asked for row by row, let go with it

    def map(self) -> Bytes:
        """Return uint8[num_bytes], a read-only view of the map; raise OSError where the file is gone or has changed its size."""
        mapped = self._map
        if mapped is None:
            with self._open() as file:
                self._mmap = _map(file) if self.num_bytes else None  # an empty file cannot be mapped
            mapped = self._map = np.frombuffer(b"" if self._mmap is None else self._mmap, dtype=np.uint8)
            _held.add(self)
        return mapped

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes start … stop: a view of the map, or a fresh array under ``access="read"``."""
        if self.access == "map":
            return self.map()[start:stop]
        file = self._opened()
        out = np.empty(stop - start, dtype=np.uint8)
        read_into(file, out.data, start)
        out.flags.writeable = False
        return out

    def advise(self, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        """Ask the system to read stretches of bytes into its cache; returns at once, and does nothing where the platform cannot."""
        if self.access == "read":
            if hasattr(os, "posix_fadvise"):
                descriptor = self._opened().fileno()
                for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
            return
        self.map()
        mapped = self._mmap
        if mapped is not None and hasattr(mmap, "MADV_WILLNEED"):
            pages = starts // mmap.PAGESIZE * mmap.PAGESIZE
            for page, length in zip(pages.tolist(), (lengths + starts - pages).tolist(), strict=True):
                mapped.madvise(mmap.MADV_WILLNEED, page, length)

    def release(self) -> None:
        """Let the pages of the map go that were touched: they stay in the system's cache, and count no longer as this process' memory."""
        mapped = self._mmap
        if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)

    def let_go(self) -> None:
        """Drop map and descriptor; arrays that were handed out, and reads in progress, keep them as long as they live."""
        self.tokens = None
        self._map = None
        self._mmap = None
        self._file = None

    def _opened(self) -> io.FileIO:
        file = self._file
        if file is None:
            file = self._file = self._open()
            _held.add(self)
        return file

    def _open(self) -> io.FileIO:
        file = _File(self.path)
        found = os.fstat(file.fileno()).st_size
        if found != self.num_bytes:
            file.close()
            raise OSError(
                f"{self.path}: the file has {found:,} bytes but had {self.num_bytes:,} when it was opened: it was replaced; open the corpus again."
            )
        return file


class _File(io.FileIO):
    """A file that closes without a warning when the last read that uses it is over."""

    def __del__(self) -> None:
        self.close()


def read_into(file: io.FileIO, out: memoryview, start: int) -> None:
    """Fill ``out`` (bytes) from byte ``start`` of an open file; raise OSError where the file ends before."""
    done = 0
    while done < len(out):
        count = os.preadv(file.fileno(), [out[done:]], start + done)
        if count == 0:
            raise OSError(
                f"{file.name}: the file ends after {os.fstat(file.fileno()).st_size:,} bytes: it was truncated after it was opened."
            )
        done += count


def _map(file: io.FileIO) -> mmap.mmap:
    keep: dict[str, Any] = {"trackfd": False} if TRACKS_DESCRIPTOR else {}
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, **keep)


def max_held() -> int:
    """Return how many files are held at once: half of the soft limit on open files, from 8 to 30,000."""
    try:
        import resource
    except ImportError:  # Windows has no limit of this kind
        return 2048
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 30_000 if soft == resource.RLIM_INFINITY else max(8, min(soft // 2, 30_000))


class _Held:
    """The files that are open now, oldest first; a file that is no longer used leaves by itself."""

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[int, FileBytes] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    def add(self, file: FileBytes) -> None:
        with self._lock:
            self._files.pop(id(file), None)
            self._files[id(file)] = file
            excess = len(self._files) - max_held()
            for key in [*islice(self._files.keys(), excess)] if excess > 0 else ():
                oldest = self._files.pop(key, None)
                if oldest is not None:
                    oldest.let_go()


_held = _Held()
