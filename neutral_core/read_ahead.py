"""When to ask the system for the rows of coming chunks beforehand: on cold storage only.

Rows of a shuffled order lie anywhere, so the kernel's own guess of what comes next is wrong, and each page fault waits for the disk alone:
milliseconds a row, where asking for many rows at once costs some twenty microseconds each. On warm data asking is a waste of about a
microsecond a row, as much as half of reading it. So it is asked for the first chunk, and from then on while chunks take longer than warm ones can
(benchmarks/cold.py).
"""

from __future__ import annotations

_ROW_SECONDS = 3 * 3e-6  # three times what a warm row and a warm byte take on a slow machine
_BYTE_SECONDS = 3 / 1e9


_PATIENCE = (
    64,
    4096,
)  # chunks: a chunk that was asked for comes fast, which does not show that the next would come fast unasked


class Pace:
    """Whether storage is cold, judged by the chunks before.

    Once a chunk was slow, the next 64 are asked for; then one is not, as a probe. Each probe that is slow doubles the number, up to 4,096.

    Args:
        row_bytes: bytes of tokens in a row.
    """

    __slots__ = ("_left", "_patience", "_row_seconds", "cold")

    def __init__(self, row_bytes: int) -> None:
        self._row_seconds = _ROW_SECONDS + row_bytes * _BYTE_SECONDS
        self._patience = _PATIENCE[0]
        self._left = 0  # chunks to be asked for before the next probe
        self.cold = True  # until shown otherwise

    def took(self, seconds: float, num_rows: int) -> None:
        """Learn how long a chunk took, asking included."""
        if seconds > num_rows * self._row_seconds:
            if not self.cold:
                self._patience = min(2 * self._patience, _PATIENCE[1])
            self.cold, self._left = True, self._patience
        elif self.cold:
            self._left -= 1
            self.cold = self._left > 0
