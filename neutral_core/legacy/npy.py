"""NumPy's ``.npy`` files of token ids, versions 1.0, 2.0 and 3.0, read in place:

    0   "\\x93NUMPY"    6   u8 major, u8 minor    8   u16 (1.0) or u32 (2.0, 3.0) length of the header    then the header, a Python dict in text:
    {'descr': '<u2', 'fortran_order': False, 'shape': (2, 5), }, blanks, a line feed; then the array to the file's end

Of a 2-D array each row is a document; of a 1-D one nothing says where documents begin: a boundary rule is asked for. Integers in C order,
little-endian, are read; all else is refused. The header is matched, never evaluated, and numpy's own loader, which may unpickle, is not called.
Many ``.npy`` files of token ids are none (OLMo's): they lack the magic and are headerless.

Opening reads the header, and the file whole once by the rules ``eos`` and ``bos``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.boundaries import CHOICES, rows_of_tokens, rule_of
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.joined import Part, join
from neutral_core.legacy.layout import Layout, Request, first_bytes
from neutral_core.legacy.stretches import Stretch, open_by_rule

MAGIC = b"\x93NUMPY"

# version → bytes of the header's length, and the header's encoding
_VERSIONS = {(1, 0): (2, "latin-1"), (2, 0): (4, "latin-1"), (3, 0): (4, "utf-8")}
_MAX_HEADER = 10_000  # numpy's own limit for files that are not trusted
_ENTRY = re.compile(
    r"""\s*(?P<quote>['"])(?P<key>descr|fortran_order|shape)(?P=quote)\s*:\s*"""
    r"""(?P<value>'[^']*'|"[^"]*"|True|False|\([0-9,L ]*\)|\[.*\])\s*(?:,|$)""",
    re.DOTALL,
)
_ADVICE = "np.save(path, np.ascontiguousarray(array, dtype='<u2')), or another unsigned dtype, writes one that is read"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    descr: str
    fortran_order: bool
    shape: tuple[int, ...]
    num_bytes: int


def _recognises(path: Path) -> bool:
    return first_bytes(path, len(MAGIC)) == MAGIC


def open_npy(request: Request) -> Corpus:
    """Open a file in place.

    Raises:
        ValueError: boundaries is missing for a 1-D array (the message shows the evidence), is no rule, or is given for a 2-D one.
        FormatError: the header or the size is wrong, or the array is not one of integers in C order.
    """
    path = request.path
    num_bytes = path.stat().st_size
    header = _read_header(path, num_bytes)
    stored = _stored(path, header)
    total = math.prod(header.shape)
    expected = header.num_bytes + total * stored.dtype.itemsize
    if num_bytes != expected:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected {expected:,} for the shape {header.shape} of {stored.dtype}: it is damaged or the copy was "
            "cut short: copy it again."
        )
    file = FileBytes(path, num_bytes, request.access)
    stretch = Stretch(file=file, stored=stored, start_byte=header.num_bytes, num_tokens=total)
    if len(header.shape) == 1:
        return open_by_rule([stretch], rule_of(request.boundaries, stretch.shard(), path), request, layout="npy")
    if request.boundaries not in (None, "index"):
        raise ValueError(
            f"{path}: boundaries is {request.boundaries!r}, but the shape is {header.shape} and each row is a document: leave it out."
        )
    count, offsets = rows_of_tokens(total, max(header.shape[1], 1))
    part = Part(path=path, shard=stretch.shard(offsets, count), stored=stored, files=(path,), boundaries="rows")
    note = f"{path.name}: each of its {header.shape[0]:,} rows of {header.shape[1]:,} tokens is taken as a document."
    return join([part], layout="npy", tokenizer=request.tokenizer, notes=[note])


def _read_header(path: Path, num_bytes: int) -> _Header:
    head = first_bytes(path, 12 + _MAX_HEADER)
    short = (
        f"{path}: the file ends after {num_bytes:,} bytes, within its header; the copy was cut short: copy it again."
    )
    if not head.startswith(MAGIC):
        raise FormatError(f"{path}: byte 0: found {head[:6]!r}, expected the magic {MAGIC!r}: it is no .npy file.")
    if len(head) < 8:
        raise FormatError(short)
    version = (head[6], head[7])
    if version not in _VERSIONS:
        raise FormatError(
            f"{path}: byte 6: version is {version[0]}.{version[1]}, expected 1.0, 2.0 or 3.0: the file is damaged, or newer."
        )
    size, encoding = _VERSIONS[version]
    start = 8 + size
    length = int.from_bytes(head[8:start], "little")
    if len(head) < start or num_bytes < start + length:
        raise FormatError(short)
    if length > _MAX_HEADER:
        raise FormatError(
            f"{path}: byte 8: the header has {length:,} bytes, expected at most {_MAX_HEADER:,}: the file is damaged."
        )
    text = head[start : start + length].decode(encoding, errors="replace")
    entries = _entries(text)
    if set(entries) != {"descr", "fortran_order", "shape"} or entries["fortran_order"] not in ("True", "False"):
        raise FormatError(
            f"{path}: byte {start}: the header is {text.strip()[:80]!r}, expected a dict of descr, fortran_order and shape: the file is damaged."
        )
    shape = _shape(entries["shape"])
    if shape is None:
        raise FormatError(f"{path}: shape is {entries['shape'][:80]}, expected a tuple of sizes: the file is damaged.")
    return _Header(
        descr=entries["descr"],
        fortran_order=entries["fortran_order"] == "True",
        shape=shape,
        num_bytes=start + length,
    )


def _entries(text: str) -> dict[str, str]:
    """Return the texts of a header's values by key; {} where it is no dict of the three keys, each once."""
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return {}
    entries: dict[str, str] = {}
    text, at = text[1:-1].strip(), 0
    while at < len(text):
        match = _ENTRY.match(text, at)
        if match is None or match["key"] in entries:
            return {}
        entries[match["key"]] = match["value"]
        at = match.end()
    return entries


def _shape(text: str) -> tuple[int, ...] | None:
    """Return the sizes that a tuple's text names, such as ``(2, 5)`` or ``(5,)``, None where it is no tuple of sizes."""
    if not text.startswith("("):
        return None
    *sizes, last = text[1:-1].split(",")
    if last.strip():
        sizes = [*sizes, last] if sizes else []  # (5) is no tuple
    elif not sizes:
        return ()
    found = [re.fullmatch(r" *(\d{1,19})L? *", size) for size in sizes]
    return tuple(int(match[1]) for match in found if match) if sizes and all(found) else None


def _stored(path: Path, header: _Header) -> StoredTokens:
    """Return how the ids are stored; raise FormatError for an array that is not one of ids in C order with one or two dimensions."""
    found = re.fullmatch(r"""(['"])(\|[iu]1|[<>=][iu][1248])\1""", header.descr)
    if found is None:
        raise FormatError(
            f"{path}: descr is {header.descr[:80]}, expected integers of 1, 2, 4 or 8 bytes: tokens are integers; {_ADVICE}."
        )
    if found[2][0] in ">=":
        raise FormatError(f"{path}: descr is {header.descr}, expected a little-endian dtype; {_ADVICE}.")
    if len(header.shape) not in (1, 2):
        raise FormatError(f"{path}: the shape is {header.shape}, expected one dimension or two; {_ADVICE}.")
    if header.fortran_order:
        raise FormatError(f"{path}: fortran_order is True: its rows do not lie one after another; {_ADVICE}.")
    if len(header.shape) == 2 and header.shape[0] and not header.shape[1]:
        raise FormatError(f"{path}: the shape is {header.shape}: its rows have no tokens.")
    return StoredTokens.of(np.dtype(found[2]))


LAYOUT = Layout(names=("npy",), recognises=_recognises, open=open_npy, boundaries=CHOICES)
