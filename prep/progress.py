"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_EVERY_S = 10.0


class Progress:
    """Count bytes, documents and tokens of a known number of bytes.

    Args:
        what: is being done, one word.
        num_bytes: in all.
    """

    def __init__(self, what: str, num_bytes: int) -> None:
        self.what = what
        self.num_bytes = num_bytes
        self._done = self._documents = self._tokens = 0
        self._begin = self._said = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import (
                    BarColumn,
                    DownloadColumn,
                    TextColumn,
                    TimeRemainingColumn,
                    TransferSpeedColumn,
                )
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, TextColumn("{task.fields[counts]}"), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self.what, total=self.num_bytes, counts="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, num_bytes: int, documents: int, tokens: int) -> None:
        """Say that so much more is done."""
        self._done += num_bytes
        self._documents += documents
        self._tokens += tokens
        counts = f"{self._documents:,} documents, {self._tokens:,} tokens"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, counts=counts)
            return
        now = time.monotonic()
        if now - self._said >= _EVERY_S:
            self._said = now
            rate = self._done / (now - self._begin)
            left = (self.num_bytes - self._done) / rate if rate else 0
            print(
                f"{self.what}: {self._done / 1e6:,.0f} of {self.num_bytes / 1e6:,.0f} MB, {counts}, {rate / 1e6:,.1f} MB/s, {left:,.0f} s left",
                file=sys.stderr,
                flush=True,
            )
