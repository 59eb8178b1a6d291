"""llm.c's ``.bin`` files of tokens, also modded-nanogpt's and build-nanogpt's, read in place (little-endian):

    0    u32 magic       20240520: the ids are uint16        20240801: they are uint32
    4    u32 version     1                                   7
    8    u32 N           number of tokens
    12   0 … up to byte 1024; the tokens                     their relatives with a short header: the tokens at once

The header has 1,024 bytes or 12: the one with which N tokens end where the file does. A file of the long header that was cut short to the size
of one with the short header is told by its zeros, and refused. Where only the other width fits, dtype is asked for.

Documents begin at a delimiter, 50256 or 128000 with llm.c's own scripts, which nothing in the file says: a boundary rule is asked for. A
document that did not fit into a file goes on in the next, where its rest is a document of its own. A data set is one file, or the files
``<name>_<number>.bin`` of a folder or prefix in the order of their numbers; ``…_train`` and ``…_val`` are two.

Opening reads 1 KiB a file, and the files whole once by the rules ``eos`` and ``bos``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.boundaries import CHOICES, rule_of
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.layout import Layout, Request, first_bytes
from neutral_core.legacy.numbered import holds, numbered_files
from neutral_core.legacy.stretches import Stretch, open_by_rule

_LONG, _SHORT = 1024, 12
_EVALUATION = 20240522

# magic → version and dtype
_MAGICS = {20240520: (1, "<u2"), 20240801: (7, "<u4")}
_HINT = "llm.c's own scripts put 50256 (GPT-2) or 128000 (Llama 3) before each document: bos:50256 or bos:128000 where they made it."


def _belongs(path: Path) -> bool:
    return int.from_bytes(first_bytes(path, 4), "little") in _MAGICS


def _recognises(path: Path) -> bool:
    return int.from_bytes(first_bytes(path, 4), "little") == _EVALUATION or holds(path, _belongs)


def open_llm_c(request: Request) -> Corpus:
    """Open a file, or the numbered files of a folder or prefix, in place.

    Raises:
        ValueError: boundaries is missing (the message shows the evidence) or is no rule; a folder holds several data sets; the size asks for dtype.
        FormatError: a header or size is wrong, an ID does not occur, or a file is missing among the numbers.
    """
    files = numbered_files(request.path, _belongs, what="llm.c's layout")
    notes: list[str] = []
    stretches = [_stretch(path, request, notes) for path in files]
    if len(files) > 1:
        notes.append(f"{len(files):,} files in the order of their numbers: {files[0].name} … {files[-1].name}.")
    short = [stretch.path for stretch in stretches if stretch.start_byte == _SHORT]
    if short:
        notes.append(f"{short[0].name}: its header has {_SHORT} bytes, by the file's size{_others(len(short))}.")
    rule = rule_of(request.boundaries, stretches[0].shard(), request.path, _HINT)
    return open_by_rule(stretches, rule, request, layout="llm.c", notes=notes)


def _stretch(path: Path, request: Request, notes: list[str]) -> Stretch:
    """Check a header and return where the tokens lie."""
    num_bytes = path.stat().st_size
    head = first_bytes(path, _LONG)
    if len(head) < _SHORT:
        raise FormatError(
            f"{path}: the file ends after {num_bytes:,} bytes, a header has at least {_SHORT}; the copy was cut short: copy it again."
        )
    magic, version, count, spare = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4, 8, 12))
    if magic not in _MAGICS:
        what = (
            "that of an evaluation file of llm.c (examples with endings to choose from), which is not read"
            if magic == _EVALUATION
            else "unknown"
        )
        raise FormatError(f"{path}: byte 0: the magic is {magic}, {what}; expected 20240520 or 20240801.")
    if version != _MAGICS[magic][0]:
        raise FormatError(
            f"{path}: byte 4: version is {version:,}, expected {_MAGICS[magic][0]} with the magic {magic}: the file is damaged, or newer."
        )
    stored = StoredTokens.of(np.dtype(_MAGICS[magic][1]))
    if request.dtype is not None:
        given = StoredTokens.asked(request.dtype, path)
        stored = stored if given.dtype.itemsize == stored.dtype.itemsize else given
    start = _header_size(path, num_bytes, count, stored)
    if start == _SHORT and not any(head[16:]):
        raise FormatError(
            f"{path}: it has the size of {count:,} tokens after a header of {_SHORT} bytes, but zeros from byte 16 on, as the header of {_LONG:,} bytes "
            "has them: the copy was cut short: copy it again."
        )
    if start == _LONG and any(head[16:]):
        raise FormatError(
            f"{path}: byte {16 + next(at for at, byte in enumerate(head[16:]) if byte):,} of the header is not 0: the file is damaged."
        )
    if start == _LONG and spare:
        notes.append(
            f"{path.name}: word 3 of the header is {spare:,}, expected 0; some tools keep the vocabulary's size there; it is not used."
        )
    return Stretch(file=FileBytes(path, num_bytes, request.access), stored=stored, start_byte=start, num_tokens=count)


def _header_size(path: Path, num_bytes: int, count: int, stored: StoredTokens) -> int:
    """Return the header's size, with which the tokens end where the file does."""
    width = stored.dtype.itemsize
    for size in (_LONG, _SHORT):
        if num_bytes == size + width * count:
            return size
    other = {2: 4, 4: 2}.get(width)
    if other is not None and num_bytes in (_LONG + other * count, _SHORT + other * count):
        raise ValueError(
            f"{path}: the file has {num_bytes:,} bytes, which is {count:,} tokens of {other} bytes, while its magic says {width}: either the copy was cut "
            f"short, or its maker wrote uint{8 * other} under this magic: give dtype='uint{8 * other}' if so."
        )
    raise FormatError(
        f"{path}: the file has {num_bytes:,} bytes, expected for {count:,} tokens of {width} bytes {_LONG + width * count:,}, or "
        f"{_SHORT + width * count:,} with the short header: it is damaged or the copy was cut short: copy it again; if it is bare tokens all the same, "
        "give layout='headerless'."
    )


def _others(count: int) -> str:
    return "" if count == 1 else f"; so have {count - 1:,} more"


LAYOUT = Layout(names=("llm.c",), recognises=_recognises, open=open_llm_c, boundaries=CHOICES)
