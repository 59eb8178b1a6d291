"""CRC-32C (Castagnoli) of many records at once, in numpy: the standard library has another polynomial.

All records are cut into blocks of 256 bytes, which are taken through the table in lockstep, one byte of every block at a time; the blocks
of a record are then joined by what appending 256 zero bytes does to a remainder, which is linear. Source: RFC 3720, appendix B.4, for the polynomial
and test vectors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_BLOCK = 256
_MOST_BLOCKS = 1 << 16  # at a time: 16 MiB

Uint32 = npt.NDArray[np.uint32]


def _byte_table() -> Uint32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0)).astype(np.uint32)
    return table


def _first_shift() -> Uint32:
    """Return uint32[4, 256]: what each byte of a remainder becomes when 256 zero bytes follow."""
    tables = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    for _ in range(_BLOCK):
        tables = _TABLE[tables & 255] ^ (tables >> 8)
    return tables


@lru_cache(maxsize=64)
def _shift(level: int) -> Uint32:
    """Return the same for 256 · 2^level zero bytes."""
    if level == 0:
        return _first_shift()
    half = _shift(level - 1)
    return _shifted(half, half)


def _shifted(tables: Uint32, remainders: Uint32) -> Uint32:
    low = tables[0][remainders & 255] ^ tables[1][(remainders >> 8) & 255]
    return np.asarray(low ^ tables[2][(remainders >> 16) & 255] ^ tables[3][remainders >> 24])


_TABLE = _byte_table()
_SMALL = _TABLE.tolist()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of a few bytes."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = _SMALL[(remainder ^ byte) & 255] ^ (remainder >> 8)
    return remainder ^ 0xFFFFFFFF


def masked(remainder: int) -> int:
    """Return a CRC as TFRecord stores it."""
    return (((remainder >> 15) | (remainder << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c_many(data: bytes, lengths: npt.NDArray[np.int64]) -> Uint32:
    """Return the CRC-32C of each of the records that stand one after another.

    Args:
        data: all records.
        lengths: int64[n], bytes of each, which add up to all.

    Returns:
        uint32[n].
    """
    sums = np.zeros(len(lengths), dtype=np.uint32)
    content = np.frombuffer(data, dtype=np.uint8)
    ends = np.cumsum(lengths)
    blocks = -(-lengths // _BLOCK)
    first = 0
    while first < len(lengths):
        total = np.cumsum(blocks[first:])
        last = first + max(int(np.searchsorted(total, _MOST_BLOCKS, side="right")), 1)
        start = int(ends[first] - lengths[first])
        sums[first:last] = _lockstep(content[start : int(ends[last - 1])], lengths[first:last], blocks[first:last])
        first = last
    return sums


def _lockstep(content: npt.NDArray[np.uint8], lengths: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> Uint32:
    """Return the CRC of each record. Zeros before the first byte change nothing, so records are filled up with them at their front."""
    total = int(blocks.sum())
    lanes = np.zeros(total * _BLOCK, dtype=np.uint8)
    filled = blocks * _BLOCK
    begin = np.cumsum(filled) - lengths  # of each record in lanes
    source = np.cumsum(lengths) - lengths
    for at, start, length in zip(begin.tolist(), source.tolist(), lengths.tolist(), strict=True):
        lanes[at : at + length] = content[start : start + length]
    for byte in range(4):  # the remainder begins as ones: the same as the first four bytes turned over
        lanes[begin[lengths > byte] + byte] ^= 255
    columns = np.ascontiguousarray(lanes.reshape(total, _BLOCK).T)
    remainder = np.zeros(total, dtype=np.uint32)
    for column in columns:
        remainder = _TABLE[(remainder & 255) ^ column] ^ (remainder >> 8)
    joined = _join(remainder, blocks)
    return _short(joined, content, source, lengths) ^ np.uint32(0xFFFFFFFF)


def _join(remainder: Uint32, blocks: npt.NDArray[np.int64]) -> Uint32:
    """Return the remainder of each record from those of its blocks, two by two."""
    counts = blocks
    level = 0
    while int(counts.max(initial=0)) > 1:
        start = np.cumsum(counts) - counts
        remainder = np.insert(remainder, start[counts % 2 == 1], 0)  # a block of zeros before the first changes nothing
        remainder = _shifted(_shift(level), remainder[0::2]) ^ remainder[1::2]
        counts = (counts + 1) // 2
        level += 1
    joined = np.zeros(len(blocks), dtype=np.uint32)
    joined[blocks > 0] = remainder
    return joined


def _short(
    joined: Uint32, content: npt.NDArray[np.uint8], source: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> Uint32:
    """Replace the remainders of records of less than four bytes, which have no first four to turn over."""
    for record in np.flatnonzero(lengths < 4).tolist():
        piece = content[int(source[record]) : int(source[record] + lengths[record])].tobytes()
        joined[record] = crc32c(piece) ^ 0xFFFFFFFF
    return joined
