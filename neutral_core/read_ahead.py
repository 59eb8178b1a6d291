"""When to ask the system for the rows of coming chunks beforehand: on cold storage only.

Rows of a shuffled order lie anywhere, so the kernel's own guess of what comes next is wrong, and each page fault waits for the disk alone:
milliseconds a row, where asking for many rows at once costs some twenty microseconds each. On warm data asking is a waste of about a
microsecond a row, as much as half of reading it. So it is asked for the first chunk, and from then on for as long as chunks take longer than
warm ones can (benchmarks/cold.py).
"""

from __future__ import annotations

_ROW_SECONDS = 3 * 3e-6  # three times what a warm row and a warm byte take on a slow machine
_BYTE_SECONDS = 3 / 1e9


class Pace:
    """Whether storage is cold, judged by the chunk that was read last.

    Args:
        row_bytes: bytes of tokens in a row.
    """

    __slots__ = ("_row_seconds", "cold")

    def __init__(self, row_bytes: int) -> None:
        self._row_seconds = _ROW_SECONDS + row_bytes * _BYTE_SECONDS
        self.cold = True  # until shown otherwise

    def took(self, seconds: float, num_rows: int) -> None:
        """Learn how long a chunk took, asking included."""
        self.cold = seconds > num_rows * self._row_seconds
