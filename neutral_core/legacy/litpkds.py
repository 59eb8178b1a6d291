"""LITPKDS files: the packed data sets of lit-llama, lit-gpt and TinyLlama, read in place (little-endian):

    0    "LITPKDS"          7    u64 version = 1          15   u8 code of the dtype          16   u64 chunk_size, tokens
    24   chunk_size tokens

A data set is one file, or the files ``<prefix>_<number>.bin`` of a folder or prefix in the order of their numbers; where several processes
wrote, ``<prefix>_<process>_<number>.bin``, process by process. The codes are 1 … 5 and 8; 6 and 7 are floats.

Documents are cut at the edges of files, and nothing in the files says where they begin: a boundary rule is asked for. Each process fills its last
file up with one id, which nothing names. Where a rule names the id with which such a file ends, the run of it is left out, under ``bos`` all of
it, under ``eos`` all but the first, which ends the document before it; ``corpus.notes`` says how many tokens that were. Under another rule the run
is kept, and notes say how long it is. A file is a process's last if the one with the next number is not there.

Opening reads 24 bytes a file and the run at the end of each last one, and the files whole once by the rules ``eos`` and ``bos``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.boundaries import CHOICES, Rule, rule_of
from neutral_core.legacy.flat import FlatShard, StoredTokens
from neutral_core.legacy.layout import Layout, Request, first_bytes
from neutral_core.legacy.numbered import holds, next_of, numbered_files
from neutral_core.legacy.stretches import Stretch, open_by_rule

MAGIC = b"LITPKDS"
_HEADER = 24
_LEVELS = 2
_PIECE = 1 << 16
_SHOWN = 3

CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """The same id over and over at the end of a process's last file."""

    number: int  # of the file among all
    path: Path
    token: int
    length: int


def _belongs(path: Path) -> bool:
    return first_bytes(path, len(MAGIC)) == MAGIC


def _recognises(path: Path) -> bool:
    return holds(path, _belongs, levels=_LEVELS)


def open_litpkds(request: Request) -> Corpus:
    """Open a file, or the numbered files of a folder or prefix, in place.

    Raises:
        ValueError: boundaries is missing (the message shows the evidence) or is no rule; a folder holds several data sets.
        FormatError: a header or size is wrong, an ID does not occur, or a file is missing among the numbers.
    """
    files = numbered_files(request.path, _belongs, what="LITPKDS", levels=_LEVELS)
    stretches = [_stretch(path, request.access) for path in files]
    _check_chunks(stretches)
    runs = [
        _run(number, stretch)
        for number, stretch in enumerate(stretches)
        if (after := next_of(stretch.path)) is None or not after.exists()
    ]
    hint = " ".join(
        f"The last {run.length:,} tokens of {run.path.name} are all {run.token:,}." for run in runs[:_SHOWN]
    )
    rule = rule_of(request.boundaries, stretches[0].shard(), request.path, hint)
    notes = []
    if len(files) > 1:
        notes.append(
            f"{len(files):,} files in the order of their numbers, from {len(runs):,} writing processes: {files[0].name} … {files[-1].name}."
        )
    spare = {run.number: run.length - (rule.kind == "eos") for run in runs if rule.by_id and run.token == rule.number}
    spare = {number: count for number, count in spare.items() if count}
    notes.extend(_notes(runs, spare, rule))
    for number, count in spare.items():
        stretches[number] = replace(stretches[number], num_tokens=stretches[number].num_tokens - count, left_out=count)
    return open_by_rule(stretches, rule, request, layout="litpkds", notes=notes)


def _stretch(path: Path, access: str) -> Stretch:
    """Check a header and return where the tokens lie."""
    num_bytes = path.stat().st_size
    head = first_bytes(path, _HEADER)
    if not head.startswith(MAGIC):
        raise FormatError(f"{path}: byte 0: found {head[:7]!r}, expected the magic {MAGIC!r}: it is no LITPKDS file.")
    if len(head) < _HEADER:
        raise FormatError(
            f"{path}: the file ends after {num_bytes:,} bytes, a header has {_HEADER}; the copy was cut short: copy it again."
        )
    version, code, count = int.from_bytes(head[7:15], "little"), head[15], int.from_bytes(head[16:24], "little")
    if version != 1:
        raise FormatError(f"{path}: byte 7: version is {version:,}, expected 1: the file is damaged, or newer.")
    if code not in CODES:
        why = f"means float{32 * (code - 5)}, and tokens are no floats" if code in (6, 7) else "is unknown"
        raise FormatError(
            f"{path}: byte 15: the dtype's code is {code}, expected one of {', '.join(map(str, CODES))}: it {why}."
        )
    stored = StoredTokens.of(np.dtype(CODES[code]))
    expected = _HEADER + count * stored.dtype.itemsize
    if num_bytes != expected:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected {expected:,} for chunk_size {count:,} tokens of {stored.dtype}: it is damaged or the "
            "copy was cut short: copy it again; if it is bare tokens all the same, give layout='headerless'."
        )
    return Stretch(file=FileBytes(path, num_bytes, access), stored=stored, start_byte=_HEADER, num_tokens=count)


def _check_chunks(stretches: Sequence[Stretch]) -> None:
    first = stretches[0]
    for stretch in stretches:
        if stretch.num_tokens != first.num_tokens:
            raise FormatError(
                f"{stretch.path}: byte 16: chunk_size is {stretch.num_tokens:,}, but {first.num_tokens:,} in {first.path.name}: the files do not belong "
                "to one data set: keep those of another one in a folder of their own."
            )


def _run(number: int, stretch: Stretch) -> _Run:
    """Return the run of one id with which a file ends; reads no more than it and a piece."""
    tokens, total = stretch.shard(), stretch.num_tokens
    token = int(tokens.read(total - 1, total)[0]) if total else -1
    return _Run(number=number, path=stretch.path, token=token, length=_length(tokens, total, token))


def _length(tokens: FlatShard, total: int, token: int) -> int:
    for stop in range(total, 0, -_PIECE):
        start = max(stop - _PIECE, 0)
        others = np.flatnonzero(tokens.read(start, stop) != token)
        if len(others):
            return total - start - int(others[-1]) - 1
    return total


def _notes(runs: Sequence[_Run], spare: dict[int, int], rule: Rule) -> list[str]:
    """Say of each last file what was left out, or what stands at its end; of the first few where there are many."""
    dropped = [run for run in runs if run.number in spare]
    kept = [run for run in runs if run.number not in spare and run.length > 1]
    notes = [
        f"{run.path.name}: the last {spare[run.number]:,} tokens are left out: they are all {run.token:,}, with which the writer fills its last file up, "
        f"as the rule {rule} names it."
        for run in dropped[:_SHOWN]
    ]
    if len(dropped) > _SHOWN:
        notes.append(
            f"The same in {len(dropped) - _SHOWN:,} more files: {sum(spare.values()):,} tokens are left out in all."
        )
    notes.extend(
        f"{run.path.name}: the last {run.length:,} tokens are all {run.token:,}: the writer may have filled its last file up with it; they are kept; the "
        f"rules bos:{run.token} and eos:{run.token} leave them out."
        for run in kept[:_SHOWN]
    )
    if len(kept) > _SHOWN:
        notes.append(
            f"The same in {len(kept) - _SHOWN:,} more files: {sum(run.length for run in kept):,} tokens at their ends in all."
        )
    return notes


LAYOUT = Layout(names=("litpkds",), recognises=_recognises, open=open_litpkds, boundaries=CHOICES)
