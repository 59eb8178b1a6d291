"""Decompression that never yields more than was declared: a small file cannot fill the memory."""

from __future__ import annotations

import bz2
import io
import zlib
from typing import Any, BinaryIO

from neutral_core.errors import FormatError
from prep.extras import MissingExtraError, require

_STEP = 1 << 20
_SNAPPY_RATIO = 22  # three bytes make 64 at most

ALGORITHMS = ("br", "bz2", "gz", "snappy", "zstd")


def decompress(data: bytes, algorithm: str, most: int, where: str) -> bytes:
    """Return what was compressed.

    Args:
        data: one stream or frame.
        algorithm: one of ALGORITHMS.
        most: bytes that may come out; memory grows with what does come out, not with this.
        where: for messages.

    Raises:
        FormatError: it is damaged, or more comes out. MissingExtraError: the library is not installed.
    """
    if algorithm == "snappy":
        return _snappy(data, most, where)
    library_error, stream = _opened(data, algorithm)
    parts, total = [], 0
    try:
        while part := stream.read(min(_STEP, most - total + 1)):
            parts.append(part)
            total += len(part)
            if total > most:
                break
    except (library_error, EOFError, OSError) as error:
        raise FormatError(f"{where}: its {algorithm} data are damaged or cut short ({error}): copy it again.") from None
    if total > most:
        raise FormatError(
            f"{where}: more than the {most:,} bytes that were declared come out of it: it is damaged or was tampered with."
        )
    return b"".join(parts)


def zstd_size(data: bytes, where: str) -> int:
    """Return how many bytes a zstd frame says that it holds; raise FormatError where it does not say it, or more than 4 GiB."""
    zstandard = require("zstandard", extra="prep", purpose="reading zstd data")
    try:
        size: int = zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        size = -1
    if not 0 <= size < 2**32:
        raise FormatError(f"{where}: it is no zstd frame that says its size, of less than 4 GiB: it is damaged.")
    return size


class Inflated(io.RawIOBase):
    """A file of gzip or zlib streams, one after another, as what was compressed; at most what is read is held in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._state: Any = None
        self._waiting = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read; raise zlib.error for damage, EOFError where the stream is cut short."""
        while True:
            if self._state is None or self._state.eof:
                rest = b"" if self._state is None else self._state.unused_data
                self._waiting = rest or self._file.read(_STEP)
                if not self._waiting:
                    return 0
                self._state = zlib.decompressobj(wbits=47)
            elif not self._waiting:
                self._waiting = self._file.read(_STEP)
                if not self._waiting:
                    raise EOFError("the compressed data end in the middle")
            part: bytes = self._state.decompress(self._waiting, len(buffer))
            self._waiting = self._state.unconsumed_tail
            if part:
                buffer[: len(part)] = part
                return len(part)


def _opened(data: bytes, algorithm: str) -> tuple[type[Exception], Any]:
    """Return the error that damage raises, and what was compressed as a stream."""
    source = io.BytesIO(data)
    if algorithm == "gz":
        return zlib.error, io.BufferedReader(Inflated(source))
    if algorithm == "bz2":
        return ValueError, bz2.BZ2File(source)
    if algorithm == "zstd":
        zstandard = require("zstandard", extra="prep", purpose="reading zstd data")
        return zstandard.ZstdError, zstandard.ZstdDecompressor().stream_reader(source)
    arrow = _arrow("br", "brotli")
    return arrow.ArrowException, arrow.CompressedInputStream(arrow.BufferReader(data), "brotli")


def _snappy(data: bytes, most: int, where: str) -> bytes:
    """Return a raw snappy block's content, whose length it says itself."""
    arrow = _arrow("snappy", "snappy")
    length, shift = 0, 0
    for byte in data[:5]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if length > min(most, _SNAPPY_RATIO * len(data)):
        raise FormatError(f"{where}: it says that {length:,} bytes come out of it, expected at most {most:,}.")
    try:
        return bytes(arrow.decompress(data, decompressed_size=length, codec="snappy", asbytes=True))
    except (arrow.ArrowException, OSError) as error:
        raise FormatError(f"{where}: its snappy data are damaged or cut short ({error}): copy it again.") from None


def _arrow(algorithm: str, codec: str) -> Any:
    arrow = require("pyarrow", extra="prep", purpose=f"reading {algorithm} data")
    if not arrow.Codec.is_available(codec):
        raise MissingExtraError(f"this pyarrow was built without {codec}: pip install 'millstream[prep]'")
    return arrow
