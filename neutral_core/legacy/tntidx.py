"""``.idx``/``.bin`` pairs with the TNTIDX magic, fairseq's and Megatron's ``lazy`` and ``cached`` data sets, read in place.

Only the size of the ``.idx`` tells the makers apart (little-endian, no padding; all after the magic are 64-bit):

    0  "TNTIDX\\0\\0"   8  u64 version = 1   16  u64 code of the dtype   24  u64 bytes an id   32  u64 N, items   40  u64 S, sizes
    fairseq:               48  dim_offset[N + 1]  data_offset[N + 1]  size[S]                             = 48 + 8 (2 (N + 1) + S) bytes
    Megatron:  48  u64 D   56  dim_offset[N + 1]  data_offset[N + 1]  size[S]  document_index[D]          = 56 + 8 (2 (N + 1) + S + D)

Old Megatron-LM, GPT-NeoX and their kin write Megatron's. Item n has the shape size[dim_offset[n] … dim_offset[n + 1]]; only items of one dimension
are sequences of tokens. Data offsets count ids, not bytes. What opening costs, infers and repairs: see sequences.py.

**fairseq counted ids from 1** in these files, as Lua does: it stored id + 1, unless its data were made without that. The file does not say which, so
the caller must: ``layout="tntidx-lua"`` takes 1 off each, ``layout="tntidx"`` takes them as they are. Megatron's are as they are.
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
from neutral_core.legacy.pair import demand_pair, dtype_of, index_start, raw_index
from neutral_core.legacy.sequences import PIECE, Sequences, open_sequences, rule_of

MAGIC = b"TNTIDX\0\0"
_LUA = "tntidx-lua"
_LOOKED_AT = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    """The arrays of an ``.idx``, int64, each a view of what ``raw`` returns, asked for anew so that the map can be let go."""

    path: Path
    raw: Callable[[], npt.NDArray[np.uint8]]
    dtype: np.dtype[Any]
    count: int
    entries: int | None  # of the document index; None: fairseq's, which has none

    def dims(self) -> npt.NDArray[np.int64]:
        return self._array(0, self.count + 1)

    def offsets(self) -> npt.NDArray[np.int64]:
        return self._array(self.count + 1, self.count + 1)

    def pointers(self) -> npt.NDArray[np.int64]:
        return self._array(self.count + 1, self.count)

    def lengths(self) -> npt.NDArray[np.int64]:
        return self._array(2 * self.count + 2, self.count)

    def documents(self) -> npt.NDArray[np.int64]:
        return self._array(3 * self.count + 2, self.entries or 0)

    def _array(self, start: int, count: int) -> npt.NDArray[np.int64]:
        first = 48 if self.entries is None else 56
        return self.raw()[first + 8 * start : first + 8 * (start + count)].view("<i8")


def _recognises(path: Path) -> bool:
    return index_start(path, MAGIC, len(MAGIC)) is not None


def open_tntidx(request: Request) -> Corpus:
    """Open a pair in place, by its prefix, ``.idx`` or ``.bin``; ``layout`` is ``tntidx`` or ``tntidx-lua``, which fairseq's need.

    Raises:
        FormatError: for every way in which the two files can be wrong; the message names file, field, found and expected.
        ValueError: they are fairseq's and ``layout`` is not given (the message shows the evidence); ``boundaries`` is no rule of theirs.
    """
    index_path, bin_path = demand_pair(request.path)
    index = _read_index(index_path, request.access)
    fairseq = index.entries is None
    if not fairseq and request.layout == _LUA:
        raise FormatError(
            f"{index_path}: by its size it is Megatron's, whose ids are as they are; only fairseq's may count from 1: give layout='tntidx'."
        )
    rule = rule_of(request, "tntidx")
    if fairseq:  # its items are its documents
        rule = "index"
    sequences = Sequences(
        path=index_path,
        tokens_path=bin_path,
        stored=StoredTokens.of(index.dtype, least=1 if request.layout == _LUA else 0),
        count=index.count,
        lengths=index.lengths,
        pointers=index.pointers,
        in_bytes=False,
        documents=None if fairseq or rule == "sequences" else index.documents,
    )
    name = request.layout or "tntidx"
    corpus = open_sequences(request, sequences, layout=name, rule=rule)
    if int(index.offsets()[-1]) != corpus.num_tokens:
        raise FormatError(
            f"{index_path}: the last data offset is {int(index.offsets()[-1]):,}, expected {corpus.num_tokens:,}, the end of the last item: the file is "
            "damaged."
        )
    if fairseq and request.layout is None:
        raise ValueError(
            f"{request.path}: fairseq stored ids in files like this with 1 added, as Lua counts, unless told otherwise, and nothing in the file says so; "
            f"give layout='tntidx-lua' to take 1 off each id, or layout='tntidx' to take them as they are. {_evidence(corpus)}"
        )
    return corpus


def _read_index(path: Path, access: str) -> _Index:
    num_bytes = path.stat().st_size
    file = FileBytes(path, num_bytes, access)
    header = file.read(0, min(56, num_bytes)).tobytes()
    if header[:8] != MAGIC:
        raise FormatError(f"{path}: byte 0: found {header[:8]!r}, expected the magic {MAGIC!r}: it is no TNTIDX index.")
    if num_bytes < 48:
        raise FormatError(
            f"{path}: the file ends after {num_bytes:,} bytes, a header has at least 48; the copy was cut short: copy it again."
        )
    version, code, size, count, sizes, entries = (
        int.from_bytes(header[at : at + 8], "little") for at in (8, 16, 24, 32, 40, 48)
    )
    if version != 1:
        raise FormatError(f"{path}: byte 8: version is {version:,}, expected 1: the file is damaged or newer.")
    dtype = dtype_of(code, path, 16)
    if size != dtype.itemsize:
        raise FormatError(
            f"{path}: byte 24: an id has {size:,} bytes, but the dtype's code {code} at byte 16 means {dtype}, {dtype.itemsize} bytes: the file is damaged."
        )
    fairseq = 48 + 8 * (2 * (count + 1) + sizes)
    megatron = 8 + fairseq + 8 * entries
    if num_bytes not in (fairseq, megatron):
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected for {count:,} items {fairseq:,} (fairseq), or with {entries:,} entries of the document "
            f"index {megatron:,} (Megatron): it is damaged or the copy was cut short: copy it again."
        )
    if sizes != count:
        raise FormatError(
            f"{path}: byte 40: {count:,} items have {sizes:,} sizes, expected one each: items that are no sequences of tokens are not read."
        )
    index = _Index(
        path=path, raw=raw_index(file), dtype=dtype, count=count, entries=entries if num_bytes == megatron else None
    )
    dims = index.dims()
    for start in range(0, count + 1, PIECE):
        piece = dims[start : start + PIECE]
        wrong = np.flatnonzero(piece != np.arange(start, start + len(piece)))
        if len(wrong):
            at = start + int(wrong[0])
            raise FormatError(
                f"{path}: entry {at:,} of the dimension offsets is {int(dims[at]):,}, expected {at:,}: an item has another number of dimensions than "
                "one, which is no sequence of tokens, or the file is damaged."
            )
    return index


def _evidence(corpus: Corpus) -> str:
    """Say what speaks for either way of counting, from the first ids."""
    ids = corpus.tokens(0, min(corpus.num_tokens, _LOOKED_AT))
    if not len(ids):
        return "The file has no tokens: either will do."
    smallest = int(ids.min())
    if smallest == 0:
        return f"A 0 occurs in the first {len(ids):,} ids, which no id is with 1 added: it is 'tntidx'."
    ends = corpus.document_offsets(0, min(corpus.num_documents, 1024))[1:]
    lasts = sorted({int(ids[end - 1]) for end in ends.tolist() if 0 < end <= len(ids)})
    shown = ", ".join(f"{last:,}" for last in lasts[:4]) + (" …" if len(lasts) > 4 else "")
    return (
        f"The smallest of the first {len(ids):,} ids is {smallest:,}, and the first items end with {shown}; fairseq's dictionaries begin with <s> 0, "
        "<pad> 1, </s> 2, <unk> 3, and its lines end with </s>, which is 3 with 1 added."
    )


LAYOUT = Layout(names=("tntidx", _LUA), recognises=_recognises, open=open_tntidx, boundaries=("sequences",))
