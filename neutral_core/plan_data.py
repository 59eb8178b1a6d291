"""A plan from plain data: what a YAML or JSON file holds, as the command and a training script's configuration read it.

    seq_len: 2048
    seed: 17
    sources:
      - {path: corpora/books, name: books, weight: 0.7, max_epochs: 4}
      - {path: corpora/web, name: web, weight: 0.3}
      - {path: corpora/code, name: code, weight: 0}
    phases:
      - {sample: 1000000, weights: {books: 0.2, web: 0.3, code: 0.5}}
    skip: [[895000, 905000]]

Every key is an argument of the same name: of ``Plan`` at the top, of ``Source`` and ``open_corpus`` in a source, of ``Phase`` in a phase. ``sources``
may also be a mixture as another tool wrote it down (see ``foreign_sources``), with ``split`` beside it where that has splits, and ``open``: what
``open_corpus`` is to be told of all of its corpora.

    seq_len: 2048
    sources: 0.3 data/books_text_document 0.7 data/web_text_document
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neutral_core.foreign_sources import ForeignSource, foreign_sources
from neutral_core.format.corpus import Corpus
from neutral_core.layouts import open_corpus
from neutral_core.order.phases import Phase
from neutral_core.order.plan import Plan
from neutral_core.order.source import Source


def _arguments(function: Any, *left_out: str) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name not in ("self", *left_out))


_PLAN = _arguments(Plan.__init__)
_SOURCE = ("path", *_arguments(Source.__init__, "corpus"))
_OPEN = _arguments(open_corpus, "path", "tokenizer")
_PHASE = ("sample", "weights")


def load_plan(data: Mapping[str, Any], *, folder: str | os.PathLike[str] = ".") -> Plan:
    """Return the plan that plain data describe.

    Args:
        data: dicts, lists, numbers and texts as above; a source's ``documents`` is a pair [start, stop], stop may be null. Weights are numbers or
            decimal texts.
        folder: that relative paths are relative to: the plan file's own.

    Raises:
        ValueError: naming the place in the data, what was found and what was expected.
        FileNotFoundError, FormatError: as ``open_corpus``.
    """
    top = _object(data, "the plan", (*_PLAN, "open", "split"), required=("sources", "seq_len"))
    sources, split = top.pop("sources"), top.pop("split", None)
    how = _object(top.pop("open", {}), "open", _OPEN, required=())
    phases = _list(top.pop("phases", []), "phases")
    skip = _list(top.pop("skip", []), "skip")
    opened: dict[tuple[Any, ...], Corpus] = {}
    if _is_ours(sources):
        if split is not None:
            raise ValueError(f"split is {split!r}, but sources has no splits: leave it out.")
        made = [
            _source(how | dict(each) if isinstance(each, Mapping) else each, f"sources[{number}]", Path(folder), opened)
            for number, each in enumerate(_list(sources, "sources"))
        ]
    else:
        made = [_foreign(each, how, Path(folder), opened) for each in foreign_sources(sources, split=split)]
    return Plan(
        made,
        phases=[_phase(each, f"phases[{number}]") for number, each in enumerate(phases)],
        skip=[tuple(_list(each, f"skip[{number}]")) for number, each in enumerate(skip)],
        **top,
    )


def _is_ours(sources: Any) -> bool:
    """Return whether sources is a list of objects, as this module has it; another tool's lists hold texts and numbers."""
    ours = isinstance(sources, Sequence) and not isinstance(sources, str)
    return ours and (not sources or any(isinstance(each, Mapping) for each in sources))


def _foreign(
    found: ForeignSource, how: Mapping[str, Any], folder: Path, opened: dict[tuple[Any, ...], Corpus]
) -> Source:
    corpus = _open(found.path, how, folder, opened)
    return Source(corpus, name=found.name, weight=found.weight, documents=found.documents(corpus))


def _open(path: str, how: Mapping[str, Any], folder: Path, opened: dict[tuple[Any, ...], Corpus]) -> Corpus:
    """Return a corpus, opened once however many sources it has."""
    key = (path, *sorted(how.items()))
    if key not in opened:
        opened[key] = open_corpus(folder / Path(path).expanduser(), **how)
    return opened[key]


def _source(data: Any, where: str, folder: Path, opened: dict[tuple[Any, ...], Corpus]) -> Source:
    found = _object(data, where, (*_SOURCE, *_OPEN), required=("path",))
    how = {key: found.pop(key) for key in _OPEN if key in found}
    path = found.pop("path")
    if not isinstance(path, str):
        raise ValueError(f"{where}: path is {path!r}, expected text.")
    corpus = _open(path, how, folder, opened)
    if found.get("documents") is not None:
        pair = _list(found["documents"], f"{where}: documents")
        if len(pair) != 2 or not all(edge is None or type(edge) is int for edge in pair):
            raise ValueError(f"{where}: documents is {pair!r}, expected [start, stop].")
        found["documents"] = slice(*pair)
    return Source(corpus, **found)


def _phase(data: Any, where: str) -> Phase:
    return Phase(**_object(data, where, _PHASE, required=_PHASE))


def _object(data: Any, where: str, known: Sequence[str], *, required: Sequence[str]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} is {data!r}, expected an object with {', '.join(required)}.")
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            raise ValueError(
                f"{where}: {key!r} is no key of it, expected some of {', '.join(known)}."
                + (f" Did you mean {near[0]!r}?" if near else "")
            )
    missing = [key for key in required if key not in data]
    if missing:
        raise ValueError(f"{where}: {missing[0]!r} is missing.")
    return dict(data)


def _list(data: Any, where: str) -> list[Any]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise ValueError(f"{where} is {data!r}, expected a list.")
    return list(data)
