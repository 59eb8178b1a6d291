"""What a damaged file yields, read to the last byte: everything it holds, or nothing; and that this took neither long nor much memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import neutral_core as nc

MAX_SECONDS = 0.1
MAX_BYTES = 50_000_000
VALUES = (0, 1, -1, 2**31, 2**63 - 1)


def contents(path: Path, **how: Any) -> dict[str, Any] | None:
    """Documents and fields, document by document, as lists; None where the path is refused."""
    try:
        corpus = nc.open_corpus(path, **how)
        corpus.verify()
        numbers = range(corpus.num_documents)
        found: dict[str, Any] = {"documents": [corpus.document(number).tolist() for number in numbers]}
        for name in corpus.fields:
            found[name] = [corpus.field(name, number).tolist() for number in numbers]
    except (nc.FormatError, FileNotFoundError, ValueError) as error:
        if path.name not in str(error):
            raise AssertionError("the refusal does not name the file") from error
        return None
    assert corpus.tokens(0, corpus.num_tokens).tolist() == [token for part in found["documents"] for token in part]
    return found


def checked_contents(path: Path, **how: Any) -> dict[str, Any] | None:
    """``contents``, within MAX_SECONDS (the better of two tries: other processes run beside a test) and MAX_BYTES."""
    begin = time.process_time()
    found = contents(path, **how)
    took = time.process_time() - begin
    tracemalloc.start()
    try:
        begin = time.process_time()
        contents(path, **how)
        took = min(took, time.process_time() - begin)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took < MAX_SECONDS
    assert peak < MAX_BYTES
    return found


def stream_of(path: Path, **how: Any) -> list[int] | None:
    """``checked_contents`` as one list of ids, document by document, whatever file of a set a refusal names."""
    took = MAX_SECONDS
    tracemalloc.start()
    try:
        for _ in range(2):
            begin = time.process_time()
            found = _stream(path, **how)
            took = time.process_time() - begin
            if took < MAX_SECONDS:
                break
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took < MAX_SECONDS
    assert peak < MAX_BYTES
    return found


def _stream(path: Path, **how: Any) -> list[int] | None:
    try:
        corpus = nc.open_corpus(path, **how)
        corpus.verify()
        found = [token for number in range(corpus.num_documents) for token in corpus.document(number).tolist()]
        assert found == corpus.tokens(0, corpus.num_tokens).tolist()
    except (nc.FormatError, FileNotFoundError, ValueError):
        return None
    return found


def replaced(data: bytes, at: int, size: int, value: int, order: Any = "little") -> bytes:
    """``data`` with the integer of ``size`` bytes at ``at`` replaced by ``value``, modulo its range."""
    return data[:at] + (value % 256**size).to_bytes(size, order) + data[at + size :]
