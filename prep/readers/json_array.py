"""A ``.json`` file that is one array: its elements, one after another, as the bytes that they are; memory stays at the largest.

Only brackets, commas and strings are looked at, each byte once; what an element says is its reader's to judge. Nothing can enter an array in the middle,
so that it belongs whole to the range at its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

_CHUNK = 1 << 20
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_IN_ARRAY = re.compile(rb'["\[\]{},]')
_ELSEWHERE = re.compile(rb'["\[\]{}]')
_QUOTE, _BACKSLASH, _COMMA, _BEGIN, _END = b'"\\,[]'


def is_array(file: IO[bytes]) -> bool:
    """Return whether the first byte that is no white space is a bracket; the file is at its start, and is left somewhere."""
    first = file.read(len(_BOM)).removeprefix(_BOM).lstrip(_SPACE)
    while not first and (more := file.read(1)):
        first = more.lstrip(_SPACE)
    return first.startswith(b"[")


def elements(file: IO[bytes], name: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield (byte at which it begins, line from 1, its bytes) of each element of an array.

    Args:
        file: at its start, of which ``is_array`` is true.
        name: of the file, for messages.

    Raises:
        ValueError: the array is cut short, something follows it, or its commas and brackets do not fit.
    """
    at, line = 0, 1
    held: list[bytes] = []
    last = 0  # the mark before
    for piece, mark in _pieces(file):
        held.append(piece)
        if not mark:
            continue
        raw = b"".join(held)
        held = []
        element = raw.strip(_SPACE)
        lead = len(raw) - len(raw.lstrip(_SPACE))
        place = at + lead, line + raw.count(b"\n", 0, lead)
        if last == _END:
            break
        if last and (not element or mark not in b",]") and not (last == _BEGIN and mark == _END and not element):
            raise ValueError(f"{_place(name, place)}: the array's commas and brackets do not fit: mend it.")
        if last and element:
            yield *place, element
        at, line, last = at + len(raw) + 1, line + raw.count(b"\n"), mark
    if last != _END:
        raise ValueError(
            f"{_place(name, (at, line))}: the array has no end behind what begins here: the copy was cut short: copy it again."
        )
    if mark or b"".join(held).strip(_SPACE):
        raise ValueError(
            f"{_place(name, (at, line))}: something follows the end of the array, expected one array or an object on each line: `jq -c '.[]'` makes lines "
            "of arrays."
        )


def _pieces(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield (bytes, the mark behind them): [ and ] of the outermost array and its own commas, or 0 where a chunk ends."""
    depth = skip = 0  # skip: bytes of the next chunk that belong to an escape
    in_string = False
    while chunk := file.read(_CHUNK):
        place, start = skip, 0
        while place < len(chunk):
            if in_string:
                place = _end_of_string(chunk, place)
                in_string = place >= len(chunk)
                place += not in_string
                continue
            match = (_IN_ARRAY if depth == 1 else _ELSEWHERE).search(chunk, place)
            if match is None:
                break
            place, mark = match.end(), chunk[match.start()]
            if mark == _QUOTE:
                in_string = True
                continue
            opens = mark in b"[{"
            depth += opens - (mark in b"]}")
            if mark == _COMMA or depth == opens:
                yield chunk[start : match.start()], mark
                start = place
        skip = max(place - len(chunk), 0) if in_string else 0
        yield chunk[start:], 0


def _end_of_string(chunk: bytes, start: int) -> int:
    """Return where a string ends whose inside goes on at ``start``; the chunk's size where it does not, one more if the chunk ends within an escape."""
    at = start
    while (at := chunk.find(b'"', at)) >= 0:
        if not _is_escaped(chunk, start, at):
            return at
        at += 1
    return len(chunk) + _is_escaped(chunk, start, len(chunk))


def _is_escaped(chunk: bytes, start: int, at: int) -> bool:
    first = at
    while first > start and chunk[first - 1] == _BACKSLASH:
        first -= 1
    return (at - first) % 2 == 1


def _place(name: str, place: tuple[int, int]) -> str:
    return f"{name}: line {place[1]:,} (byte {place[0]:,})"
