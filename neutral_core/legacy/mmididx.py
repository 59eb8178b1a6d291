"""Megatron's and fairseq's ``.idx``/``.bin`` pairs with the MMIDIDX magic, read in place.

Both makers write the same nine bytes and the same version; only the size of the ``.idx`` tells them apart (little-endian, no padding):

    0   "MMIDIDX\\0\\0"          9   u64 version = 1          17  u8 code of the dtype          18  u64 N, sequences
    Megatron:  26  u64 D, entries of the document index    34  i32 length[N]  i64 pointer[N]  i64 document_index[D]    = 34 + 12 N + 8 D bytes
               and i8 mode[N] where it was written multimodal, which nothing in the header says                       = 34 + 13 N + 8 D
    fairseq:                                               26  i32 length[N]  i64 pointer[N]                          = 26 + 12 N

Lengths are tokens, pointers bytes into the ``.bin``. Document d of Megatron's is sequences document_index[d] … document_index[d + 1]; an empty
document repeats an entry or has a sequence of length 0. Files that were split into sentences have several sequences in a document:
``boundaries="sequences"`` takes each as a document, as Megatron's own GPTDataset does. The arrays are unaligned in the file and are used where
they lie (under ``access="read"``: in memory, 20 bytes a document). What opening costs, infers and repairs: see sequences.py.

Versions 2 and 3 of this magic are Fast-LLM's: see fast_llm_pair.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.layout import Layout, Request
from neutral_core.legacy.pair import demand_pair, dtype_of, index_start, pair_of, raw_index
from neutral_core.legacy.sequences import Sequences, open_sequences, rule_of

MAGIC = b"MMIDIDX\0\0"
_HUFFMAN = b"HUFFIDX\0\0"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    """The arrays of an ``.idx``, each a view of what ``raw`` returns: asked for anew, so that the map can be let go and opened again."""

    path: Path
    raw: Callable[[], npt.NDArray[np.uint8]]
    layout: str
    dtype: np.dtype[Any]
    first: int  # byte at which the lengths begin
    count: int
    entries: int
    with_modes: bool

    def lengths(self) -> npt.NDArray[np.int32]:
        return self._array(0, 4 * self.count, "<i4")

    def pointers(self) -> npt.NDArray[np.int64]:
        return self._array(4 * self.count, 8 * self.count, "<i8")

    def documents(self) -> npt.NDArray[np.int64]:
        return self._array(12 * self.count, 8 * self.entries, "<i8")

    def modes(self) -> npt.NDArray[np.int8]:
        return self._array(12 * self.count + 8 * self.entries, self.count if self.with_modes else 0, "i1")

    def _array(self, start: int, num_bytes: int, dtype: str) -> npt.NDArray[Any]:
        return self.raw()[self.first + start : self.first + start + num_bytes].view(dtype)


def _recognises(path: Path) -> bool:
    return pair_of(path) is not None or any(index_start(path, magic, len(magic)) for magic in (MAGIC, _HUFFMAN))


def open_pair(request: Request) -> Corpus:
    """Open a pair in place, by its prefix, ``.idx`` or ``.bin``; ``layout`` is ``megatron`` or ``fairseq``, None to tell by size.

    Raises:
        FormatError: for every way in which the two files can be wrong; the message names file, field, found and expected.
        ValueError: ``boundaries`` is neither ``index`` nor ``sequences``.
    """
    index_path, bin_path = demand_pair(request.path)
    index = _read_index(index_path, request.access)
    if request.layout not in (None, index.layout):
        raise FormatError(f"{index_path}: by its size it is {index.layout}'s layout, not {request.layout}'s.")
    rule = rule_of(request, index.layout)
    if index.layout == "fairseq":  # its sequences are its documents
        rule = "index"
    sequences = Sequences(
        path=index_path,
        tokens_path=bin_path,
        stored=StoredTokens.of(index.dtype),
        count=index.count,
        lengths=index.lengths,
        pointers=index.pointers,
        documents=index.documents if index.layout == "megatron" and rule == "index" else None,
    )
    notes = (
        [f"{index_path.name} has one mode byte per sequence, all 0 (text); they are left out."]
        if index.with_modes
        else []
    )
    return open_sequences(request, sequences, layout=index.layout, rule=rule, notes=notes)


def _read_index(path: Path, access: str) -> _Index:
    num_bytes = path.stat().st_size
    file = FileBytes(path, num_bytes, access)
    header = file.read(0, min(34, num_bytes)).tobytes()
    _check_start(path, header, num_bytes)
    code, count = header[17], int.from_bytes(header[18:26], "little")
    dtype = dtype_of(code, path, 17)
    entries = int.from_bytes(header[26:34], "little") if num_bytes >= 34 else 0
    sizes = {
        34 + 13 * count + 8 * entries: ("megatron", 34, True),
        34 + 12 * count + 8 * entries: ("megatron", 34, False),  # later, so that it wins where there are no sequences
        26 + 12 * count: ("fairseq", 26, False),
    }
    if num_bytes not in sizes:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected for {count:,} sequences {26 + 12 * count:,} (fairseq), or with {entries:,} "
            f"entries of the document index {34 + 12 * count + 8 * entries:,} (Megatron) or {34 + 13 * count + 8 * entries:,} (with modes): "
            "it is damaged or the copy was cut short: copy it again."
        )
    layout, first, with_modes = sizes[num_bytes]
    index = _Index(
        path=path,
        raw=raw_index(file),
        layout=layout,
        dtype=dtype,
        first=first,
        count=count,
        entries=entries if layout == "megatron" else 0,
        with_modes=with_modes,
    )
    modes = index.modes()
    if modes.any():
        at = int(np.flatnonzero(modes)[0])
        raise FormatError(
            f"{path}: sequence {at:,} has mode {int(modes[at])}, expected 0 (text): it holds no tokens; images are not read."
        )
    return index


def _check_start(path: Path, header: bytes, num_bytes: int) -> None:
    if header[:9] == _HUFFMAN:
        raise FormatError(
            f"{path}: byte 0: {_HUFFMAN!r} begins an index of fairseq's Huffman-coded data, whose code is in a file of its own: it is not read: write "
            "the data again with fairseq-preprocess --dataset-impl mmap."
        )
    if header[:9] != MAGIC:
        raise FormatError(
            f"{path}: byte 0: found {header[:9]!r}, expected the magic {MAGIC!r}: it is no .idx of Megatron or fairseq."
        )
    if num_bytes < 26:
        raise FormatError(
            f"{path}: the file ends after {num_bytes:,} bytes, a header has at least 26; the copy was cut short: copy it again."
        )
    version = int.from_bytes(header[9:17], "little")
    if version != 1:
        known = (
            "Fast-LLM's: leave layout out, or give 'fast_llm'"
            if version in (2, 3, 4, 5)
            else "unknown: the file is damaged"
        )
        raise FormatError(
            f"{path}: byte 9: version is {version}, expected 1; version {version} of this magic is {known}."
        )


LAYOUT = Layout(names=("megatron", "fairseq"), recognises=_recognises, open=open_pair, boundaries=("sequences",))
