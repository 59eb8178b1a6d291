"""Fast-LLM's ``.idx``/``.bin`` pairs with the MMIDIDX magic in versions 2 and 3, read in place.

Version 1 is byte for byte Megatron's and is read as that. Versions 2 (February 2025) and 3 (May 2025) put flags before the dtype's code
(little-endian, no padding):

    0  "MMIDIDX\\0\\0"   9  u64 version   17  u8 has_loss_masking_spans   18  u8 has_preference_spans (version 3)
    then  u8 code of the dtype   u64 N, documents   u64 N + 1   i32 length[N]   i64 pointer[N]
          i32 num_spans[N]   i32 span[sum][2]                where loss-masking spans were given
          i32 chosen[N][2]   i32 rejected[N][2]              where has_preference_spans is 1
          i64 0 … N

Spans are (first, last) tokens of a document, *last included*; they are served half-open: [first, last + 1). The writer sets
has_loss_masking_spans only if there is at least one span, but writes num_spans wherever documents had lists of them, empty ones too: with the
flag 0 the file's size tells whether N zeros stand there. Fields: ``ragged.loss_masking_spans`` wherever num_spans stands,
``ragged.chosen_spans`` and ``ragged.rejected_spans``, each int32, (2,).

Opening costs what it does for every pair (see sequences.py), and a pass over num_spans that keeps 8 bytes per 1,024 documents; spans are checked
when they are read. Versions 4 and 5 (images, audio) come from development branches, in variants that contradict each other; they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.fields import Field
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.shard_like import FieldItems
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.layout import Layout, Request
from neutral_core.legacy.mmididx import MAGIC
from neutral_core.legacy.pair import demand_pair, dtype_of, index_start, raw_index
from neutral_core.legacy.sequences import PIECE, Sequences, open_sequences, rule_of
from neutral_core.legacy.spans import FIELD, checked_spans

_NAME = "fast_llm"
_FLAGS = {2: ("has_loss_masking_spans",), 3: ("has_loss_masking_spans", "has_preference_spans")}
_STRIDE = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    """Where the arrays of an ``.idx`` lie; each is a view of what ``raw`` returns, asked for anew so that the map can be let go."""

    path: Path
    raw: Callable[[], npt.NDArray[np.uint8]]
    dtype: np.dtype[Any]
    first: int  # byte at which the lengths begin
    count: int
    span_starts: (
        npt.NDArray[np.int64] | None
    )  # loss-masking spans before every 1,024th document, and all; None: no such section
    preference: bool

    def lengths(self) -> npt.NDArray[np.int32]:
        return self._array(self.first, (self.count,), "<i4")

    def pointers(self) -> npt.NDArray[np.int64]:
        return self._array(self.first + 4 * self.count, (self.count,), "<i8")

    def span_counts(self) -> npt.NDArray[np.int32]:
        return self._array(self.first + 12 * self.count, (self.count,), "<i4")

    def spans(self) -> npt.NDArray[np.int32]:
        return self._array(self.first + 16 * self.count, (self.num_spans, 2), "<i4")

    def preferences(self, which: int) -> npt.NDArray[np.int32]:
        """Return the chosen spans (0) or the rejected ones (1): int32[N, 2]."""
        return self._array(self._after_spans + 8 * self.count * which, (self.count, 2), "<i4")

    def documents(self) -> npt.NDArray[np.int64]:
        return self._array(self._after_spans + (16 * self.count if self.preference else 0), (self.count + 1,), "<i8")

    @property
    def num_spans(self) -> int:
        """Loss-masking spans in the file."""
        return 0 if self.span_starts is None else int(self.span_starts[-1])

    @property
    def _after_spans(self) -> int:
        section = 0 if self.span_starts is None else 4 * self.count + 8 * self.num_spans
        return self.first + 12 * self.count + section

    def _array(self, start: int, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self.raw()[start : start + num_bytes].view(dtype).reshape(shape)


def _recognises(path: Path) -> bool:
    start = index_start(path, MAGIC, 17)
    return start is not None and int.from_bytes(start[9:], "little") in (2, 3, 4, 5)


def open_fast_llm_pair(request: Request) -> Corpus:
    """Open a pair in place, by its prefix, ``.idx`` or ``.bin``; ``boundaries`` may only say what is so anyway: documents are sequences.

    Raises:
        FormatError: for every way in which the two files can be wrong; the message names file, field, found and expected.
    """
    index_path, bin_path = demand_pair(request.path)
    rule_of(request, _NAME)
    index = _read_index(index_path, request.access)
    fields: dict[str, tuple[Field, Callable[[int, int], FieldItems]]] = {}
    if index.span_starts is not None:
        fields["ragged.loss_masking_spans"] = FIELD, _loss_masking_spans(index)
    if index.preference:
        for which, name in enumerate(("ragged.chosen_spans", "ragged.rejected_spans")):
            fields[name] = FIELD, _preference_spans(index, which, name)
    sequences = Sequences(
        path=index_path,
        tokens_path=bin_path,
        stored=StoredTokens.of(index.dtype),
        count=index.count,
        lengths=index.lengths,
        pointers=index.pointers,
    )
    return open_sequences(request, sequences, layout=_NAME, fields=fields)


def _read_index(path: Path, access: str) -> _Index:
    num_bytes = path.stat().st_size
    file = FileBytes(path, num_bytes, access)
    header = file.read(0, min(36, num_bytes)).tobytes()
    flags = _flags(path, header)
    at = 17 + len(flags)
    dtype = dtype_of(header[at], path, at)
    count, entries = (int.from_bytes(header[start : start + 8], "little") for start in (at + 1, at + 9))
    if entries != count + 1:
        raise FormatError(
            f"{path}: byte {at + 9}: the document index has {entries:,} entries, expected {count + 1:,}, one more than there are documents: the "
            "file is damaged."
        )
    first, masked, preference = at + 17, flags[0], len(flags) == 2 and flags[1]
    expected = [first + 12 * count + (16 * count if preference else 0) + 8 * entries]
    starts = None
    if num_bytes != expected[0] or masked:
        expected = [expected[0]] * (not masked) + [expected[0] + 4 * count]
        if num_bytes == expected[-1] or (masked and num_bytes > expected[-1]):
            starts = _span_starts(path, file.read(first + 12 * count, first + 16 * count).view("<i4"))
            if masked:
                expected[-1] += 8 * int(starts[-1])
            elif starts[-1]:
                raise FormatError(
                    f"{path}: byte 17: has_loss_masking_spans is 0, but the documents have {int(starts[-1]):,} spans: the file is damaged."
                )
    if num_bytes not in expected:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected {' or '.join(f'{size:,}' for size in expected)} for {count:,} documents with the "
            "spans that it announces: it is damaged or the copy was cut short: copy it again."
        )
    index = _Index(
        path=path, raw=raw_index(file), dtype=dtype, first=first, count=count, span_starts=starts, preference=preference
    )
    documents = index.documents()
    for start in range(0, len(documents), PIECE):
        piece = documents[start : start + PIECE]
        wrong = np.flatnonzero(piece != np.arange(start, start + len(piece)))
        if len(wrong):
            at = start + int(wrong[0])
            raise FormatError(
                f"{path}: entry {at:,} of the document index is {int(documents[at]):,}, expected {at:,}: the file is damaged."
            )
    return index


def _flags(path: Path, header: bytes) -> tuple[bool, ...]:
    """Return has_loss_masking_spans and, in version 3, has_preference_spans, from the first 36 bytes, once they are a header's."""
    if header[:9] != MAGIC:
        raise FormatError(
            f"{path}: byte 0: found {header[:9]!r}, expected the magic {MAGIC!r}: it is no .idx of Fast-LLM."
        )
    version = int.from_bytes(header[9:17], "little")
    if version == 1:
        raise FormatError(
            f"{path}: byte 9: version 1 is Megatron's layout, also where Fast-LLM wrote it: leave layout out, or give 'megatron'."
        )
    if version in (4, 5):
        raise FormatError(
            f"{path}: byte 9: version {version} holds {'images' if version == 4 else 'images and audio'} as a development branch of Fast-LLM wrote them, "
            "in variants that contradict each other: it is not read: prepare the data again with a released Fast-LLM."
        )
    if version not in _FLAGS:
        raise FormatError(
            f"{path}: byte 9: version is {version}, expected 2 or 3 in Fast-LLM's layout: the file is damaged."
        )
    if len(header) < 33 + version:
        raise FormatError(
            f"{path}: the file ends after {len(header):,} bytes, a header has {33 + version}; the copy was cut short: copy it again."
        )
    for at, name in enumerate(_FLAGS[version], 17):
        if header[at] > 1:
            raise FormatError(f"{path}: byte {at}: {name} is {header[at]}, expected 0 or 1: the file is damaged.")
    return tuple(bool(header[at]) for at in range(17, 16 + version))


def _span_starts(path: Path, counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return how many spans stand before documents 0, 1,024, 2,048 … and in total."""
    sums = [np.zeros(1, dtype=np.int64)]
    for start in range(0, len(counts), PIECE):
        piece = counts[start : start + PIECE].astype(np.int64)
        if piece.min() < 0:
            at = start + int(np.flatnonzero(piece < 0)[0])
            raise FormatError(
                f"{path}: document {at:,} has {int(counts[at]):,} loss-masking spans, expected 0 or more: the file is damaged."
            )
        sums.append(np.add.reduceat(piece, np.arange(0, len(piece), _STRIDE)))
    return np.cumsum(np.concatenate(sums))


def _loss_masking_spans(index: _Index) -> Callable[[int, int], FieldItems]:
    def read(first: int, last: int) -> FieldItems:
        assert index.span_starts is not None
        all_counts = index.span_counts()
        block = first // _STRIDE
        start = int(index.span_starts[block] + all_counts[block * _STRIDE : first].sum(dtype=np.int64))
        counts = all_counts[first:last].astype(np.int64)
        return _half_open(
            index, index.spans()[start : start + int(counts.sum())], counts, first, "ragged.loss_masking_spans"
        )

    return read


def _preference_spans(index: _Index, which: int, name: str) -> Callable[[int, int], FieldItems]:
    def read(first: int, last: int) -> FieldItems:
        return _half_open(
            index, index.preferences(which)[first:last], np.ones(last - first, dtype=np.int64), first, name
        )

    return read


def _half_open(
    index: _Index, spans: npt.NDArray[Any], counts: npt.NDArray[np.int64], first: int, name: str
) -> FieldItems:
    lengths = index.lengths()[first : first + len(counts)].astype(np.int64)
    half_open = spans.astype(np.int64) + np.array([0, 1])
    return FieldItems(checked_spans(half_open, counts, lengths, first=first, path=index.path, name=name), counts)


LAYOUT = Layout(names=(_NAME,), recognises=_recognises, open=open_fast_llm_pair, boundaries=("sequences",))
