"""Canonical JSON: one text for one value, so that equal inputs give equal bytes and equal fingerprints.

Keys sorted by code point, no spaces, strings escaped as RFC 8785 does and encoded in UTF-8, integers only. Reading refuses what a
sloppy reader lets through: a key that occurs twice, a number that is no integer.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_MAX_DEPTH = 64  # far below Python's own limit, which whoever walks the value next would meet


def dumps(value: Any) -> bytes:
    """Return the canonical text of plain data (dict with str keys, list, str, int, bool, None) as UTF-8 bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8")


def loads(text: bytes) -> Any:
    """Parse JSON in UTF-8; raise ValueError with the reason for anything that is not plain, unambiguous data.

    Raises:
        ValueError: bad UTF-8 or JSON, a duplicate key, a number that is not an integer, nesting beyond 64 levels.
    """
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_float=_refuse_number, parse_constant=_refuse_number
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_depth(value, _MAX_DEPTH)
    return value


def digest(value: Any, length: int = 16) -> str:
    """Return the first ``length`` hexadecimal digits of the SHA-256 of a value's canonical text."""
    return hashlib.sha256(dumps(value)).hexdigest()[:length]


def _check_depth(value: Any, levels: int) -> None:
    if isinstance(value, (dict, list)):
        if levels == 0:
            raise ValueError("it is nested too deeply")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, levels - 1)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} occurs twice")
            seen.add(key)
    return result


def _refuse_number(text: str) -> Any:
    raise ValueError(f"the number {text} is not an integer")
