"""Pickles that hold nothing but dicts, lists, tuples, text and small whole numbers, read without unpickling.

The opcodes are walked one by one; each names a value or says into which container values go. An opcode that would import, call or build
anything (GLOBAL, REDUCE, BUILD, …) is refused as is any other kind of value, so that no code of the file's choosing is ever run. Size and
numbers of containers are bounded: a hostile file costs some 20 MB and a fraction of a second.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neutral_core.errors import FormatError

MAX_BYTES = 1 << 20
_MAX_CONTAINERS = 1000  # and marks: pickle writes one for 1,000 items
_MAX_MEMO = 1 << 17
_MARK = object()

_IGNORED = ("PROTO", "FRAME")
_VALUES = ("BININT", "BININT1", "BININT2", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_PUTS = ("BINPUT", "LONG_BINPUT")
_GETS = ("BINGET", "LONG_BINGET")
_CONTAINERS: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load_plain(path: Path) -> Any:
    """Return what a pickle of protocol 2 … 5 holds: dict, list, tuple, str, int, nested in one another.

    Raises:
        FormatError: it holds something else, is cut short, or has more than 1 MiB.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FormatError(f"{path}: it has more than {MAX_BYTES:,} bytes, too many for a table of characters.")
    try:
        return _Machine().run(data)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: it is no pickle of plain dicts, lists, text and numbers: {error}.") from None


class _Machine:
    """The stack and the memo of a pickle; each opcode that is admitted does one thing to them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0

    def run(self, data: bytes) -> Any:
        for opcode, argument, position in pickletools.genops(data):
            assert position is not None  # bytes have places
            if opcode.name == "STOP":
                if len(self._stack) != 1 or position + 1 != len(data):
                    raise ValueError(f"byte {position:,}: the end is not where it should be")
                return self._value(self._stack.pop())
            try:
                self._step(opcode.name, argument)
            except IndexError:
                raise ValueError(f"byte {position:,}: {opcode.name} finds too few values before it") from None
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ValueError(f"byte {position:,}: {error}") from None
        raise ValueError("it does not end")

    def _step(self, name: str, argument: Any) -> None:
        stack, memo = self._stack, self._memo
        if name in _VALUES:
            stack.append(argument)
        elif name == "MEMOIZE":
            self._put(len(memo))
        elif name in _PUTS:
            self._put(argument)
        elif name in _GETS:
            stack.append(memo[argument])
        elif name == "MARK":
            self._count()
            stack.append(_MARK)
        elif name in _CONTAINERS:
            self._count()
            stack.append(_CONTAINERS[name]())
        elif name in _TUPLES or name == "TUPLE":
            self._count()
            stack.append(tuple(self._last(_TUPLES[name]) if name in _TUPLES else self._marked()))
        elif name in ("APPEND", "APPENDS"):
            items = self._last(1) if name == "APPEND" else self._marked()
            self._into(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._last(2) if name == "SETITEM" else self._marked()
            self._set(self._into(dict), items)
        elif name not in _IGNORED:
            raise ValueError(f"{name} is refused: nothing is imported, called or built for a file")

    def _put(self, place: int) -> None:
        if len(self._memo) >= _MAX_MEMO:
            raise ValueError(f"it refers to more than {_MAX_MEMO:,} values")
        self._memo[place] = self._value(self._stack[-1])

    def _set(self, target: dict[Any, Any], items: list[Any]) -> None:
        if len(items) % 2:
            raise ValueError("a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, int):
                raise ValueError(f"a key is a {type(key).__name__}")
            target[key] = value

    def _into(self, kind: type) -> Any:
        if type(self._stack[-1]) is not kind:
            raise ValueError(f"values go into something that is no {kind.__name__}")
        return self._stack[-1]

    def _last(self, count: int) -> list[Any]:
        return [self._value(self._stack.pop()) for _ in range(count)][::-1]

    def _marked(self) -> list[Any]:
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def _value(self, item: Any) -> Any:
        if item is _MARK:
            raise ValueError("a mark stands where a value should")
        return item

    def _count(self) -> None:
        self._containers += 1
        if self._containers > _MAX_CONTAINERS:
            raise ValueError(f"it has more than {_MAX_CONTAINERS:,} dicts, lists, tuples and marks")
