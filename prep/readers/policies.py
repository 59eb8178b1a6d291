"""What becomes of a document that is not as it should be, by the kind of trouble: ``error`` stops, ``skip`` leaves it out, ``keep`` takes it as it is.

encoding   not UTF-8, or half of a surrogate pair   error, skip, or keep with U+FFFD in the place of what is wrong
json       not JSON                                 error or skip
missing    no such key                              error or skip
type       null, or no text                         error or skip
empty      a text of no characters                  error, skip, or keep (the default)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "encoding": ("error", "skip", "keep"),
    "json": ("error", "skip"),
    "missing": ("error", "skip"),
    "type": ("error", "skip"),
    "empty": ("error", "skip", "keep"),
}


class DocumentError(ValueError):
    """A document in trouble; ``kind`` is one of ACTIONS."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def actions_of(text: str) -> dict[str, str]:
    """Return kind → action of ``error``, ``skip``, or a list such as ``skip,encoding=keep,empty=skip``.

    An action without a kind is that of all kinds but ``empty``, which is kept unless it is named. What is named wins, in any order.

    Raises:
        ValueError: an unknown kind or action, one that the kind does not have, or a kind named twice.
    """
    words = [word.strip() for word in text.split(",")]
    alone = [word for word in words if "=" not in word]
    if len(alone) > 1:
        raise ValueError(f"{text!r}: {alone[0]!r} and {alone[1]!r} both stand without a kind, expected one at most.")
    if alone:
        _check(alone[0], ("error", "skip"), text, "an action without a kind")
    found = dict.fromkeys(ACTIONS, alone[0] if alone else "error") | {"empty": "keep"}
    seen: set[str] = set()
    for word in words:
        kind, equals, action = word.partition("=")
        if not equals:
            continue
        _check(kind, tuple(ACTIONS), text, "a kind of trouble")
        _check(action, ACTIONS[kind], text, f"an action of {kind}")
        if kind in seen:
            raise ValueError(f"{text!r}: {kind} is named twice, expected once.")
        seen.add(kind)
        found[kind] = action
    return found


def _check(word: str, known: tuple[str, ...], text: str, what: str) -> None:
    if word in known:
        return
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]}?" if near else "."
    raise ValueError(f"{text!r}: {word!r} is not {what}, expected one of {', '.join(known)}{meant}")
