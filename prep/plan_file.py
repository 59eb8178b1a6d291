"""A plan file: a plan's plain data as JSON or YAML; what the keys mean, ``neutral_core.plan_data`` says. Or a mixture as another tool wrote it
down (``neutral_core.foreign_sources``), in JSON, YAML or text: then seq_len is given beside it.

Relative paths are relative to the file's own folder. A key that occurs twice is refused: readers differ on which one counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import neutral_core as nc
from prep.extras import require

SUFFIXES = (".json", ".yaml", ".yml", ".txt")


def open_plan(path: str | os.PathLike[str], *, seq_len: int | None = None, split: str | None = None) -> nc.Plan:
    """Return the plan that a file describes, its corpora opened.

    Args:
        path: of the file.
        seq_len, split: for a mixture of another tool's, which has no seq_len; a plan says them itself.

    Raises:
        ValueError: naming the file, the place in it, what was found and what was expected.
        FileNotFoundError, FormatError: as ``open_corpus``, naming the corpus. MissingExtraError: YAML without PyYAML.
    """
    place = Path(path)
    data = read(place)
    try:
        ours = isinstance(data, dict) and "sources" in data
        if seq_len is not None and not ours:
            data = {"sources": data, "seq_len": seq_len} | ({} if split is None else {"split": split})
        elif seq_len is not None or split is not None:
            raise ValueError("a plan says seq_len and split itself: leave --seq-len and --split out.")
        return nc.load_plan(data, folder=place.parent)
    except nc.FormatError:
        raise  # names its own file
    except (ValueError, TypeError) as error:
        hint = "" if ours or seq_len else " (If it is a mixture of another tool's: give --seq-len.)"
        raise ValueError(f"{place}: {error}{hint}") from None


def read(path: Path) -> Any:
    """Return a plan file's content as plain data; by the suffix JSON, YAML or text."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a plan file ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}: rename it.")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start:,} is not UTF-8: save the file as UTF-8.") from None
    if path.suffix == ".txt":
        return text
    return _json(path, text) if path.suffix == ".json" else _yaml(path, text)


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: line {error.lineno}, column {error.colno}: it is no JSON ({error.msg}).") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice in one object: keep one.")
        found[key] = value
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number that a plan can hold.")


def _yaml(path: Path, text: str) -> Any:
    """Parse YAML 1.1 as PyYAML does: 1e-9 without a point is text there, which the core takes for the number that it says."""
    yaml = require("yaml", extra="prep", purpose="a plan in YAML")
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            node = loader.get_single_node()
            _refuse_twice(node)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{path}: {line}it is no YAML ({error.problem or error.context}).") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: it is no YAML ({' '.join(str(error).split())}).") from None
    except RecursionError:
        raise ValueError(f"{path}: it is nested too deeply.") from None
    except ValueError as error:  # a key twice, or a scalar that looks like a date and is none
        raise ValueError(f"{path}: {error}") from None


def _refuse_twice(root: Any) -> None:
    """Raise ValueError for a mapping with a key twice; nodes that an alias repeats are looked at once."""
    left, seen = [root] if root is not None else [], set()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.id == "sequence":
            left.extend(node.value)
        elif node.id == "mapping":
            keys: set[tuple[str, str]] = set()
            for key, value in node.value:
                left.extend((key, value))
                if key.id != "scalar":
                    continue
                if (key.tag, key.value) in keys:
                    raise ValueError(
                        f"line {key.start_mark.line + 1}: the key {key.value!r} occurs twice in one mapping: keep one."
                    )
                keys.add((key.tag, key.value))
