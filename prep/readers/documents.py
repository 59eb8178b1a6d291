"""The documents of a range: text in UTF-8, exactly as stored, with the line on which each begins.

    file        the whole file is a document
    line        each line; its end is \\n with or without \\r before it; a \\r elsewhere is text; empty lines are passed over and counted
    blank-line  lines up to an empty one; the line ends between them are kept, the one at the end is not
    jsonl       each line's text under a key; empty lines are passed over and counted, an empty text is an empty document; a .json file may be one array
    rows        of Parquet and Arrow: each row's text in a column (prep.readers.rows)

A range that begins inside a file owns the documents that begin in it and reads its last one to the end, so that ranges of any size give the
documents of the whole file.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from prep.extras import require
from prep.readers import json_array, rows
from prep.readers.inputs import ROWS, Input, Range
from prep.readers.policies import DocumentError, actions_of

SHOWN = 5
_CHUNK = 1 << 20
_BUFFER = 1 << 18
_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 4096
_ZST_WINDOW = 1 << 31  # as `zstd --long=31` writes; the library's own limit is 2^27
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = b" \t\r"  # what JSON calls white space; the \n is gone

# By kind or rule: what is passed over and counted. Others have nothing of the kind: a file may be empty, and between blank lines nothing is.
_EMPTY: dict[str, Callable[[bytes], bool]] = {
    "jsonl": lambda data: not data.strip(_BLANK),
    "line": lambda data: not data,
}


@dataclass(kw_only=True, slots=True)
class Tally:
    """What reading counted.

    Attributes:
        num_lines: that begin in the range.
        num_empty_lines: passed over.
        num_skipped: documents left out. skipped_by_kind: the same by the kind of trouble, see prep.readers.policies.
        skipped: the first of them: (byte in the file, line from 1 in the range, why); ``place_of`` makes a place of the two numbers.
        num_mended: documents kept with U+FFFD in the place of what is not UTF-8. mended: the first of them, likewise.
    """

    num_lines: int = 0
    num_empty_lines: int = 0
    num_skipped: int = 0
    skipped_by_kind: dict[str, int] = field(default_factory=dict)
    skipped: list[tuple[int, int, str]] = field(default_factory=list)
    num_mended: int = 0
    mended: list[tuple[int, int, str]] = field(default_factory=list)

    def skip(self, at: int, number: int, bad: DocumentError) -> None:
        """Count a document that is left out."""
        self.num_skipped += 1
        self.skipped_by_kind[bad.kind] = self.skipped_by_kind.get(bad.kind, 0) + 1
        if len(self.skipped) < SHOWN:
            self.skipped.append((at, number, str(bad)))

    def mend(self, at: int, number: int, bad: DocumentError) -> None:
        """Count a document that is kept, though not UTF-8."""
        self.num_mended += 1
        if len(self.mended) < SHOWN:
            self.mended.append((at, number, str(bad)))


class Document(NamedTuple):
    """A text, and the line on which it begins, from 1, counted from the first line of its range."""

    text: str
    line: int


class Batch(NamedTuple):
    """Some documents of a range, in order.

    Attributes:
        texts: of the documents, or their ids, each an array (prep.readers.ids).
        lines: on which each begins, from 1, counted from the first line of the range.
        places: byte at which each begins in the file (as decompressed); of rows the row, from 0. ``place_of`` makes a place of it and the line.
    """

    texts: list[Any]
    lines: Sequence[int]
    places: Sequence[int]


def read_documents(part: Range, *, rule: str, text_key: str, on_bad: str, tally: Tally) -> Iterator[Document]:
    """Yield the documents of a range one by one: see ``read_batches``."""
    for batch in read_batches(part, rule=rule, text_key=text_key, on_bad=on_bad, tally=tally):
        yield from map(Document, batch.texts, batch.lines)


def read_batches(
    part: Range, *, rule: str, text_key: str, on_bad: str, tally: Tally, limit: int | None = None
) -> Iterator[Batch]:
    """Yield the documents of a range in order, about 1 MiB at a time; memory stays at that or at the largest document.

    Args:
        part: of an input.
        rule: ``file``, ``line`` or ``blank-line`` for text.
        text_key: of the text in a line of JSON.
        on_bad: what becomes of a document that is not UTF-8, not JSON, has no text under the key, or an empty one: see policies.actions_of.
        tally: counts as the iteration goes on.
        limit: stop behind so many documents, and look at none after them; None: take all.

    Raises:
        ValueError: a bad document under ``error``: with file, line and byte; a compressed file that is damaged or cut short, always.
    """
    is_json = part.input.kind == "jsonl"
    parse = _parse_json(text_key) if is_json else _parse_text
    judge = Judge(part, parse, rule=rule, key=text_key, on_bad=on_bad, tally=tally, limit=limit)
    if is_json:
        yield from _json_batches(part, judge)
    else:
        yield from judge.batches(_found(part, rule, text_key, tally))


class Judge:
    """What becomes of each document that was found, as the policies say.

    Args:
        part: where they were found.
        parse: what is stored, and whether to mend what is not UTF-8 → the text (or the ids); raises DocumentError.
        key, what: of the text, and what it is, for messages.
        rule, on_bad, tally, limit: see read_batches.
    """

    def __init__(
        self,
        part: Range,
        parse: Callable[[bytes, bool], Any],
        *,
        key: str,
        what: str = "text",
        rule: str = "",
        on_bad: str,
        tally: Tally,
        limit: int | None = None,
    ) -> None:
        self.key = key
        self.tally = tally
        self.left = math.inf if limit is None else limit  # documents that are still to be taken
        self._part = part
        self._parse = parse
        self._what = what
        self._actions = actions_of(on_bad)
        self.keeps_empty = self._actions["empty"] == "keep"
        self._is_empty = _EMPTY.get(rule if part.input.kind == "text" else part.input.kind)

    def batches(self, found: Iterable[tuple[int, int, bytes | None]]) -> Iterator[Batch]:
        """Yield the documents that are taken, of (place, line, what is stored, None for a null)."""
        texts: list[Any] = []
        lines: list[int] = []
        places: list[int] = []
        size = 0
        for at, number, data in found if self.left else ():
            text = self._text(at, number, data)
            if text is None:
                continue
            self.left -= 1
            texts.append(text)
            lines.append(number)
            places.append(at)
            size += len(text)
            if size >= _BATCH_BYTES or len(texts) >= _BATCH_DOCUMENTS or not self.left:
                yield Batch(texts, lines, places)
                texts, lines, places, size = [], [], [], 0
            if not self.left:
                return
        if texts:
            yield Batch(texts, lines, places)

    def _text(self, at: int, number: int, data: bytes | None) -> Any:
        """Return the text of a document, or None where it is left out, which is counted."""
        if at == 0 and data is not None and self._part.input.kind == "jsonl":
            data = data.removeprefix(b"\xef\xbb\xbf")
        if self._is_empty is not None and data is not None and self._is_empty(data):
            self.tally.num_empty_lines += 1
            return None
        try:
            return self._taken(at, number, data)
        except DocumentError as error:
            self.refuse(at, number, error)
            return None

    def refuse(self, at: int, number: int, error: DocumentError) -> None:
        """Leave a document out, which is counted; raise ValueError where that is not allowed."""
        if self._actions[error.kind] != "error":
            self.tally.skip(at, number, error)
            return
        advice = (
            "Leave such documents out with --on-bad empty=skip, and give --restart too."
            if error.kind == "empty"
            else "Mend it, or leave such documents out with --on-bad skip; either way give --restart too."
        )
        raise ValueError(f"{place_of(self._part, at, number)}: {error}. {advice}") from None

    def _taken(self, at: int, number: int, data: bytes | None) -> Any:
        """Return the text of a document; raise DocumentError where it is not kept as it is."""
        if data is None:
            raise DocumentError("type", f"{self.key!r} is null, expected a {self._what}")
        try:
            text = self._parse(data, False)
        except DocumentError as error:
            if self._actions[error.kind] != "keep":
                raise
            text = self._parse(data, True)
            self.tally.mend(at, number, error)
        if not len(text) and not self.keeps_empty:
            raise DocumentError("empty", f"its {self._what} is empty")
        return text


def _json_batches(part: Range, judge: Judge) -> Iterator[Batch]:
    """Yield the documents of lines of JSON: those of many lines in one go where nothing is odd with any of them, else line by line."""
    if _is_array(part.input):
        yield from judge.batches(json_found(part, judge.tally))
        return
    loads = fast_loads()
    with _undamaged(part.input), _open(part.input) as file:
        for at, number, lines in _line_batches(file, part, judge.tally):
            places = list(accumulate(map(len, lines[:-1]), initial=at))
            texts = _quickly(loads, lines, judge) if len(lines) <= judge.left else None
            if texts is not None:
                judge.left -= len(lines)
                yield Batch(texts, range(number, number + len(lines)), places)
            else:
                yield from judge.batches(zip(places, count(number), map(_without_end, lines), strict=False))
            if not judge.left:
                return


def _quickly(loads: Callable[[bytes], Any], lines: list[bytes], judge: Judge) -> list[str] | None:
    """Return the texts of lines of JSON, or None where one of them has to be looked at."""
    key = judge.key
    try:
        texts = [loads(line)[key] for line in lines]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    if set(map(type, texts)) != {str} or (not judge.keeps_empty and "" in texts):
        return None
    return texts


def _found(part: Range, rule: str, text_key: str, tally: Tally) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (where it begins, line or row from 1, what is stored, None for a null) for each document of a range."""
    if part.input.kind in ROWS:
        yield from rows.cells(part, text_key, tally)
        return
    with _undamaged(part.input), _open(part.input) as file:
        if part.input.kind == "text" and rule == "file":
            yield 0, 1, file.read()
        elif part.input.kind == "text" and rule == "blank-line":
            yield from _paragraphs(file, part, tally)
        else:
            for at, number, line in _lines(file, part, tally):
                yield at, number, _without_end(line)


def json_found(part: Range, tally: Tally) -> Iterator[tuple[int, int, bytes]]:
    """Yield (where it begins, line, what is stored) for each line of JSON, or element of an array: one is whole in the range at its start."""
    is_array = _is_array(part.input)
    with _undamaged(part.input), _open(part.input) as file:
        if not is_array:
            for at, number, line in _lines(file, part, tally):
                yield at, number, _without_end(line)
        elif not part.start:
            for at, number, data in json_array.elements(file, part.input.name):
                tally.num_lines = number
                yield at, number, data


def _is_array(item: Input) -> bool:
    """Return whether a file is one array of JSON; lines of JSON are called .jsonl, or begin with an object."""
    if not Path(item.path).name.removesuffix(f".{item.compression}").endswith(".json"):
        return False
    with _undamaged(item), _open(item) as file:
        return json_array.is_array(file)


def _open(item: Input) -> IO[bytes]:
    if item.compression == "gz":
        return cast("IO[bytes]", io.BufferedReader(gzip.open(item.path, "rb"), _CHUNK))
    if item.compression == "xz":
        return cast("IO[bytes]", io.BufferedReader(lzma.open(item.path, "rb"), _CHUNK))
    if item.compression == "zst":
        zstandard = require("zstandard", extra="prep", purpose=f"reading {item.name}")
        return cast("IO[bytes]", io.BufferedReader(_Zst(open(item.path, "rb"), zstandard), _CHUNK))
    return open(item.path, "rb", buffering=_BUFFER)


@contextmanager
def _undamaged(item: Input) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise ValueError(
            f"{item.name}: the compressed file is damaged or cut short ({error}): copy it again."
        ) from None


class _Zst(io.RawIOBase):
    """A .zst file of any number of frames. The library's own reader has no lines, and takes a file that is cut short for a short one."""

    def __init__(self, file: IO[bytes], zstandard: Any) -> None:
        self._file = file
        self._zstandard = zstandard
        self._frame: Any = None
        self._rest = b""
        self._held = memoryview(b"")

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; raise EOFError where the file is damaged or ends inside a frame."""
        while not self._held:
            data = self._rest or self._file.read(
                1 << 14
            )  # little, because it can become a hundred times as much and more
            if not data and self._frame is None:
                return 0
            if not data:
                raise EOFError("it ends inside a frame")
            self._frame = self._frame or self._zstandard.ZstdDecompressor(max_window_size=_ZST_WINDOW).decompressobj()
            try:
                self._held = memoryview(self._frame.decompress(data))
            except self._zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            self._rest = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size

    def close(self) -> None:
        """See io.RawIOBase."""
        self._file.close()
        super().close()


def _line_batches(file: IO[bytes], part: Range, tally: Tally) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield (byte at which the first begins, its number from 1, lines with their ends) of the lines that begin in the range, about 1 MiB at a time."""
    at = _enter(file, part)
    number = 1
    while (part.stop is None or at < part.stop) and (lines := file.readlines(_BATCH_BYTES)):
        if part.stop is not None:
            begins = accumulate(map(len, lines), initial=at)
            del lines[bisect_left(list(begins), part.stop) :]
        tally.num_lines += len(lines)
        yield at, number, lines
        at += sum(map(len, lines))
        number += len(lines)


def _lines(file: IO[bytes], part: Range, tally: Tally, *, beyond: bool = False) -> Iterator[tuple[int, int, bytes]]:
    """Yield (byte at which it begins, number from 1, line with its end) of each line that begins in the range; ``beyond``: also of later ones."""
    at = _enter(file, part)
    stop = math.inf if part.stop is None else part.stop
    if at >= stop:
        return  # no line begins here: one from before goes on to the end of the range, or beyond
    for number, line in enumerate(file, start=1):
        tally.num_lines += at < stop
        yield at, number, line
        at += len(line)
        if at >= stop and not beyond:
            return


def _enter(file: IO[bytes], part: Range) -> int:
    """Go to the first line that begins at the range's start or after it, but not past the range's end: a line may be as long as the file."""
    if part.start == 0:
        return 0
    at = part.start - 1
    file.seek(at)
    while piece := file.readline(_CHUNK):
        at += len(piece)
        if piece.endswith(b"\n") or (part.stop is not None and at >= part.stop):
            break
    return at


def _paragraphs(file: IO[bytes], part: Range, tally: Tally) -> Iterator[tuple[int, int, bytes]]:
    """Yield (byte, line number, lines up to an empty one) of each stretch of lines that begins in the range."""
    before = b"\n"
    if part.start:
        first = _enter(file, part)
        file.seek(max(first - 3, 0))
        before = file.read(first - max(first - 3, 0))
    # What stands at the range's start goes on from an earlier range unless the line before is empty.
    inside_foreign = not (before.endswith((b"\n\n", b"\n\r\n")) or before in (b"\n", b"\r\n"))
    begun: tuple[int, int] | None = None
    held: list[bytes] = []
    for at, number, line in _lines(file, part, tally, beyond=True):
        empty = not _without_end(line)
        owned = part.stop is None or at < part.stop
        if begun is None and not owned:
            return
        if inside_foreign:
            inside_foreign = not empty
        elif not empty:
            begun = begun or (at, number)
            held.append(line)
        elif begun is not None:
            yield (*begun, _without_end(b"".join(held)))
            begun, held = None, []
    if begun is not None:
        yield (*begun, _without_end(b"".join(held)))


def _without_end(line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return line[: -2 if line.endswith(b"\r\n") else -1]
    return line


def _parse_text(data: bytes, mend: bool) -> str:
    try:
        return data.decode("utf-8", errors="replace" if mend else "strict")
    except UnicodeDecodeError as error:
        raise DocumentError(
            "encoding", f"byte {error.start:,} of the document, {data[error.start]:#04x}, is not UTF-8"
        ) from None


def _parse_json(text_key: str) -> Callable[[bytes, bool], str]:
    loads = fast_loads()

    def parse(data: bytes, mend: bool) -> str:
        try:
            value = loads(data)
            if type(value) is dict and type(found := value.get(text_key)) is str:
                return found
        except ValueError:
            pass  # the standard library decides, so that what is refused does not depend on what is installed
        return _slowly(data, mend, text_key)

    return parse


def _slowly(data: bytes, mend: bool, text_key: str) -> str:
    """Return the text of a line of JSON by the standard library, or raise what is wrong with it."""
    found = slow_value(data, mend, text_key, "--text-key")
    if not isinstance(found, str):
        raise DocumentError("type", f"the value of {text_key!r} is {type(found).__name__}, expected a text")
    if mend:
        return _SURROGATE.sub("\ufffd", found)
    if b"\\u" in data and _SURROGATE.search(found):
        raise DocumentError(
            "encoding", f"the text of {text_key!r} holds half of a surrogate pair, which UTF-8 cannot write"
        )
    return found


def slow_value(data: bytes, mend: bool, key: str, flag: str) -> Any:
    """Return what an object of JSON has under a key by the standard library, or raise what is wrong with it; ``flag`` names the key."""
    text = _parse_text(data, mend)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DocumentError("json", f"it is not JSON ({error})") from None
    except RecursionError:
        raise DocumentError("json", "it is JSON nested too deeply") from None
    if not isinstance(value, dict) or key not in value:
        keys = f"its keys are {', '.join(sorted(value)[:10])}" if isinstance(value, dict) else "it is no object"
        raise DocumentError("missing", f"there is no key {key!r}: {keys}; name the right one with {flag}")
    return value[key]


def fast_loads() -> Callable[[bytes], Any]:
    """Return orjson's parser, which is several times as fast; without it one that leaves everything to the standard library."""
    try:
        import orjson
    except ImportError:

        def none(data: bytes) -> None:
            return None

        return none
    return orjson.loads


def place_of(part: Range, at: int, number: int) -> str:
    """Return ``file: line N (byte B)`` of a document; costs a pass over the file up to it, so ask for few.

    Args:
        part: the range in which it begins.
        at: byte at which it begins in the file (as decompressed); of rows: its number, from 0.
        number: line on which it begins, from 1 in the range.
    """
    if part.input.kind in ROWS:
        return f"{part.input.name}: row {at + 1:,}"
    if part.start:
        with open(part.input.path, "rb") as file:
            left, number = at, 1
            while left and (piece := file.read(min(left, _CHUNK))):
                number += piece.count(b"\n")
                left -= len(piece)
    return f"{part.input.name}: line {number:,} (byte {at:,})"
