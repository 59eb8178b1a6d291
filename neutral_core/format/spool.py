"""What a shard's writer keeps while tokens stream by: running checksums of blocks, and arrays that come later in the file."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.container import BLOCK

_IN_MEMORY = 1 << 20
_CHUNK = 4 << 20


class BlockSums:
    """CRC-32 of each 1 MiB block of a stream of bytes, in one pass."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._sums: list[int] = []
        self._current = 0

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        at = 0
        while at < len(data):
            room = BLOCK - self.num_bytes % BLOCK
            piece = data[at : at + room]
            self._current = zlib.crc32(piece, self._current)
            self.num_bytes += len(piece)
            at += len(piece)
            if self.num_bytes % BLOCK == 0:
                self._sums.append(self._current)
                self._current = 0

    def finish(self) -> list[int]:
        """Return the sums of all blocks, the last of which may be shorter."""
        return self._sums + ([self._current] if self.num_bytes % BLOCK else [])


class Spool:
    """An array that grows: in memory up to 1 MiB, then in an unnamed temporary file in ``folder``, which no crash leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.num_items = 0
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=str(folder))  # noqa: SIM115 - closed in close()

    def write(self, items: npt.NDArray[Any]) -> None:
        """Append items, already of their final dtype."""
        self.num_items += len(items)
        self._file.write(np.ascontiguousarray(items).tobytes())

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes in order."""
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            yield chunk

    def close(self) -> None:
        """Free what it holds."""
        self._file.close()
