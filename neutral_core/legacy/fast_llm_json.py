"""What the JSON of a ``.fast_llm_dataset`` file says: read, and its values checked; see fast_llm_dataset.py for the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.format.fields import Field, check_fields
from neutral_core.format.file_bytes import FileBytes

MAGIC = b"fast_llm_prepared_dataset"
BEGIN = len(MAGIC) + 8  # of the sections
_MAX_JSON = 1 << 20
_CUT = "it is damaged or the copy was cut short: copy it again."

# What each name of the JSON holds; those of development branches, which are left out.
TYPES = {
    "tokens": "token",
    "loss_masking_spans": "range",
    "chosen_spans": "range",
    "rejected_spans": "range",
    "image_patches": "patch",
    "advantages": "token_data",
    "old_log_probabilities": "token_data",
}
LEFT_OUT = ("audio", "teacher")


def read_json(file: FileBytes) -> tuple[dict[str, Any], int]:
    """Return the JSON, once it is whole, and the byte at which the sections end."""
    path, num_bytes = file.path, file.num_bytes
    start = file.read(0, min(BEGIN, num_bytes)).tobytes()
    if not start.startswith(MAGIC):
        raise FormatError(f"{path}: byte 0: found {start[:25]!r}, expected {MAGIC!r}: it is no .fast_llm_dataset file.")
    pointer = int.from_bytes(start[25:], "big")
    if len(start) == BEGIN and pointer == 0:
        raise FormatError(
            f"{path}: byte 25: the place of the JSON is 0: the file is torn, its writer was stopped before the end: prepare the data again."
        )
    if not BEGIN <= pointer <= num_bytes - 4:
        raise FormatError(
            f"{path}: byte 25: the JSON's length is said to be at byte {pointer:,}, but the file has {num_bytes:,} bytes: {_CUT}"
        )
    size = int.from_bytes(file.read(pointer, pointer + 4).tobytes(), "big")
    if pointer + 4 + size != num_bytes:
        raise FormatError(
            f"{path}: byte {pointer:,}: the JSON has {size:,} bytes, so the file should have {pointer + 4 + size:,}, but it has {num_bytes:,}: {_CUT}"
        )
    if size > _MAX_JSON:
        raise FormatError(
            f"{path}: byte {pointer:,}: the JSON has {size:,} bytes, more than 1 MiB: the file is damaged."
        )
    try:
        root = json.loads(file.read(pointer + 4, num_bytes).tobytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: byte {pointer + 4:,}: the JSON cannot be read ({error}): the file is damaged."
        ) from None
    if not isinstance(root, dict):
        raise FormatError(
            f"{path}: byte {pointer + 4:,}: the JSON is {short(root)}, expected an object: the file is damaged."
        )
    if root.get("type") != "language_model":
        raise FormatError(
            f"{path}: type is {short(root.get('type'))}, expected 'language_model': nothing else is read."
        )
    if (root.get("begin"), root.get("end")) != (BEGIN, pointer):
        raise FormatError(
            f"{path}: begin and end are {short(root.get('begin'))} and {short(root.get('end'))}, expected {BEGIN} and {pointer:,}: {_CUT}"
        )
    return root, pointer


def entries_of(root: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Return the sections that are there, by name."""
    entries = {}
    for name, entry in root.items():
        if name in ("type", "begin", "end", "preprocessing"):
            continue
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind == "none":
            continue
        if name not in TYPES and name not in LEFT_OUT:
            raise FormatError(
                f"{path}: the JSON names {short(name)}, a section that is not known: it is newer, or damaged."
            )
        if not isinstance(entry, dict) or (name in TYPES and kind != TYPES[name]):
            raise FormatError(
                f"{path}: {name}.type is {short(kind)}, expected {TYPES.get(name, 'a section')!r} or 'none': the file is damaged."
            )
        entries[name] = entry
    if "tokens" not in entries:
        raise FormatError(f"{path}: the JSON names no tokens: the file is damaged.")
    return entries


def check_places(path: Path, places: Mapping[str, tuple[int, int]], begin: int, end: int) -> None:
    """Check that sections follow one another from ``begin`` to ``end``, in whatever order."""
    at, before = begin, "the tag at its start"
    for name, (first, last) in sorted(places.items(), key=lambda place: place[1]):
        if first != at or last < first:
            raise FormatError(
                f"{path}: {name} lies at bytes {first:,} … {last:,}, expected to begin at {at:,}, after {before}: sections overlap, leave a gap, or one is "
                "missing: the file is damaged."
            )
        at, before = last, name
    if at != end:
        raise FormatError(
            f"{path}: {before}, the last section, ends at byte {at:,}, expected {end:,}: a section is missing, or the file is damaged."
        )


def count_of(path: Path, name: str, entry: Mapping[str, Any], key: str) -> int:
    """Return a number of a section's entry, 0 … 2^63 − 1; raise FormatError for anything else."""
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(
            f"{path}: {name}.{key} is {short(value)}, expected an integer from 0 on: the file is damaged."
        )
    return value


def shape_of(path: Path, name: str, dtype: str, entry: Mapping[str, Any], key: str) -> tuple[int, ...]:
    """Return the shape of an item of a section; raise FormatError for what no field can have."""
    value = entry.get(key)
    try:
        if not isinstance(value, list):
            raise ValueError
        check_fields({"ragged.items": Field(dtype=dtype, shape=tuple(value))})
    except ValueError:
        raise FormatError(
            f"{path}: {name}.{key} is {short(value)}, expected a few positive integers: the file is damaged."
        ) from None
    return tuple(value)


def vocab_size_of(root: Mapping[str, Any]) -> int | None:
    """Return how many ids the tokenizer had, where ``preprocessing`` says it, else None."""
    preprocessing = root.get("preprocessing")
    found = preprocessing.get("vocab_size") if isinstance(preprocessing, dict) else None
    return found if type(found) is int and 0 < found <= 2**32 else None


def short(value: Any) -> str:
    """Show a value of the JSON, however large or deep it is."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:60]
    return f"of type {type(value).__name__}"
