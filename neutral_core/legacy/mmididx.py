"""Megatron's and fairseq's ``.idx``/``.bin`` pairs with the MMIDIDX magic, read in place.

Both makers write the same nine bytes and the same version; only the size of the ``.idx`` tells them apart (little-endian, no padding):

    0   "MMIDIDX\\0\\0"          9   u64 version = 1          17  u8 code of the dtype          18  u64 N, sequences
    Megatron:  26  u64 D, entries of the document index    34  i32 length[N]  i64 pointer[N]  i64 document_index[D]    = 34 + 12 N + 8 D bytes
               and i8 mode[N] where it was written multimodal, which nothing in the header says                       = 34 + 13 N + 8 D
    fairseq:                                               26  i32 length[N]  i64 pointer[N]                          = 26 + 12 N

Lengths are tokens, pointers bytes into the ``.bin``. Document d of Megatron's is sequences document_index[d] … document_index[d + 1]; an empty
document repeats an entry or has a sequence of length 0. The arrays are unaligned in the file and are used where they lie
(under ``access="read"``: in memory, 20 bytes a document).

Opening passes once over lengths, pointers and document index (a second per 10^8 sequences) and keeps none of them, except where pointers
have to be recomputed. What is inferred or repaired is said in ``corpus.notes``: a document index of one entry (left by old merge tools: one
sequence is then one document) and pointers that wrapped around at 2^31 bytes.
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
from neutral_core.format.offsets import ArrayOffsets, ComputedOffsets, Offsets
from neutral_core.legacy.flat import FlatShard, StoredTokens, fingerprint_of
from neutral_core.legacy.layout import Layout, Request, first_bytes

MAGIC = b"MMIDIDX\0\0"
_PIECE = 1 << 20

# The codes on which all makers agree; 6 and 7 are float32 and float64 in one order or the other.
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Index:
    """The arrays of an ``.idx``, each a view of what ``raw`` returns: asked for anew, so that the map can be let go and opened again."""

    path: Path
    raw: Callable[[], npt.NDArray[np.uint8]]
    layout: str
    code: int
    first: int  # byte at which the lengths begin
    count: int
    entries: int
    with_modes: bool

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        return self._array(0, 4 * self.count, "<i4")

    @property
    def pointers(self) -> npt.NDArray[np.int64]:
        return self._array(4 * self.count, 8 * self.count, "<i8")

    @property
    def documents(self) -> npt.NDArray[np.int64] | None:
        return self._array(12 * self.count, 8 * self.entries, "<i8") if self.layout == "megatron" else None

    @property
    def modes(self) -> npt.NDArray[np.int8] | None:
        return self._array(12 * self.count + 8 * self.entries, self.count, "i1") if self.with_modes else None

    def _array(self, start: int, num_bytes: int, dtype: str) -> npt.NDArray[Any]:
        return self.raw()[self.first + start : self.first + start + num_bytes].view(dtype)


def pair_of(path: Path) -> tuple[Path, Path] | None:
    """Return (``.idx``, ``.bin``) for a prefix or either file, or None where there are no two such files.

    The suffixes are appended to the name as it is: a prefix may hold dots.
    """
    name = str(path)
    prefix = name[:-4] if name.endswith((".idx", ".bin")) else name
    for stem in dict.fromkeys((prefix, name)):
        index, tokens = Path(stem + ".idx"), Path(stem + ".bin")
        if index.is_file() and tokens.is_file():
            return index, tokens
    return None


def _recognises(path: Path) -> bool:
    if pair_of(path) is not None:
        return True
    if first_bytes(path, len(MAGIC)) == MAGIC:
        raise FileNotFoundError(
            f"{path}: it is the index of a pair, but {path.with_suffix('.bin').name} is not beside it."
        )
    return False


def open_pair(request: Request) -> Corpus:
    """Open a pair in place, by its prefix, ``.idx`` or ``.bin``; ``layout`` is ``megatron`` or ``fairseq``, None to tell by size.

    Raises:
        FormatError: for every way in which the two files can be wrong; the message names file, field, found and expected.
    """
    path, layout, tokenizer, access = request.path, request.layout, request.tokenizer, request.access
    pair = pair_of(path)
    if pair is None:
        raise FileNotFoundError(f"{path}: there are no two files {path.name}.idx and {path.name}.bin.")
    index_path, bin_path = pair
    index = _read_index(index_path, access)
    if layout not in (None, index.layout):
        raise FormatError(f"{index_path}: by its size it is {index.layout}'s layout, not {layout}'s.")
    stored = StoredTokens.of(np.dtype(CODES[index.code]))
    num_bytes = bin_path.stat().st_size
    notes: list[str] = []
    num_tokens, wrapped = _check_sequences(index, stored.dtype.itemsize, num_bytes, bin_path)
    offsets, num_documents = _offsets(index, stored.dtype.itemsize, num_tokens, wrapped, notes)
    if index.modes is not None:
        notes.append(f"{index_path.name} has one mode byte per sequence, all 0 (text); they are left out.")
    shard = FlatShard(
        FileBytes(bin_path, num_bytes, access), stored, offsets=offsets, num_documents=num_documents, start_byte=0
    )
    return Corpus(
        [shard],
        dtype=stored.served,
        fingerprint=fingerprint_of(index.layout, str(stored.dtype), "index", [bin_path, index_path]),
        tokenizer=tokenizer,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        notes=notes,
    )


def _read_index(path: Path, access: str) -> _Index:
    num_bytes = path.stat().st_size
    file = FileBytes(path, num_bytes, access)
    header = file.read(0, min(34, num_bytes)).tobytes()
    if header[:9] != MAGIC:
        raise FormatError(
            f"{path}: byte 0: found {header[:9]!r}, expected the magic {MAGIC!r}: it is no .idx of Megatron or fairseq."
        )
    if num_bytes < 26:
        raise FormatError(
            f"{path}: the file ends after {num_bytes:,} bytes, a header has at least 26; the copy was cut short: copy it again."
        )
    version, code, count = int.from_bytes(header[9:17], "little"), header[17], int.from_bytes(header[18:26], "little")
    if version != 1:
        known = "Fast-LLM's, which is not read yet" if version in (2, 3) else "unknown"
        raise FormatError(
            f"{path}: byte 9: version is {version}, expected 1; version {version} of this magic is {known}."
        )
    if code not in CODES:
        why = (
            "means float32 in some tools and float64 in others, and tokens are no floats"
            if code in (6, 7)
            else "is unknown"
        )
        raise FormatError(
            f"{path}: byte 17: the dtype's code is {code}, expected one of {', '.join(map(str, CODES))}: it {why}."
        )
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
    held = None if access == "map" else file.read(0, num_bytes)  # never mapped then: in memory
    index = _Index(
        path=path,
        raw=file.map if held is None else lambda: held,
        layout=layout,
        code=code,
        first=first,
        count=count,
        entries=entries if layout == "megatron" else 0,
        with_modes=with_modes,
    )
    modes = index.modes
    if modes is not None and modes.any():
        at = int(np.flatnonzero(modes)[0])
        raise FormatError(
            f"{path}: sequence {at:,} has mode {int(modes[at])}, expected 0 (text): it holds no tokens; images are not read."
        )
    return index


def _check_sequences(index: _Index, itemsize: int, num_bytes: int, bin_path: Path) -> tuple[int, bool]:
    """Return the number of tokens, and whether the pointers wrapped around; one pass that keeps nothing."""
    total = 0
    all_lengths, pointers = index.lengths, index.pointers
    exact = wrapped = True
    odd: tuple[int, int, int] | None = None
    for start in range(0, index.count, _PIECE):
        lengths = all_lengths[start : start + _PIECE].astype(np.int64)
        if lengths.min() < 0:
            at = start + int(np.flatnonzero(lengths < 0)[0])
            raise FormatError(
                f"{index.path}: sequence {at:,} has the length {int(all_lengths[at]):,}, expected 0 or more: the file is damaged."
            )
        ends = np.cumsum(lengths)
        expected = (total + ends - lengths) * itemsize
        found = pointers[start : start + _PIECE]
        different = found != expected
        if different.any():
            exact = False
            if odd is None:
                at = int(np.flatnonzero(different)[0])
                odd = (start + at, int(found[at]), int(expected[at]))
            wrapped = wrapped and bool((found == expected.astype(np.int32)).all())
        total += int(ends[-1])
    if total * itemsize != num_bytes:
        raise FormatError(
            f"{bin_path}: the file has {num_bytes:,} bytes, but {index.path.name} promises {total:,} tokens of {itemsize} bytes, {total * itemsize:,} "
            "bytes: one of the two was cut short or belongs to another data set: copy both again."
        )
    if not exact and not wrapped:
        assert odd is not None
        raise FormatError(
            f"{index.path}: sequence {odd[0]:,} begins at byte {odd[1]:,} of {bin_path.name}, expected {odd[2]:,}, where the one before ends: the "
            "pointers leave gaps or overlap: the file is damaged, or its sequences are not in order: write it again with Megatron's tools."
        )
    return total, not exact


def _offsets(index: _Index, itemsize: int, num_tokens: int, wrapped: bool, notes: list[str]) -> tuple[Offsets, int]:
    """Return where documents begin, and how many there are."""
    count = index.count
    documents = index.documents
    if documents is not None and count and len(documents) == 1 and documents[0] == 0:
        notes.append(
            f"{index.path.name}: the document index holds [0] alone, as old merge tools leave it: each sequence is taken as a document."
        )
        documents = None
    if documents is not None:
        _check_documents(documents, count, index.path)
    if wrapped:
        notes.append(
            f"{index.path.name}: pointers wrapped around at 2^31 bytes, as old tools wrote them; they were recomputed from the lengths and fit the "
            "size of the .bin."
        )
        starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(index.lengths, dtype=np.int64, out=starts[1:])
        table = starts if documents is None else starts[documents]
        return ArrayOffsets(table), len(table) - 1
    num_documents = count if documents is None else max(len(documents) - 1, 0)

    grouped = documents is not None
    del documents  # a view: it would keep the map

    def offset_of(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        table = index.documents if grouped else None
        sequences = numbers if table is None else table[numbers]
        inside = np.minimum(sequences, max(count - 1, 0))
        begins = index.pointers[inside] // itemsize if count else np.zeros(sequences.shape, dtype=np.int64)
        return np.where(sequences < count, begins, num_tokens).astype(np.int64)

    return ComputedOffsets(num_documents, offset_of), num_documents


def _check_documents(documents: npt.NDArray[Any], count: int, path: Path) -> None:
    if not len(documents):
        raise FormatError(
            f"{path}: byte 26: the document index has no entries, expected at least one: the file is damaged."
        )
    if documents[0] != 0 or documents[-1] != count:
        raise FormatError(
            f"{path}: the document index runs from {int(documents[0]):,} to {int(documents[-1]):,}, expected 0 to {count:,}, the number of "
            "sequences: the file is damaged."
        )
    for start in range(0, len(documents), _PIECE):
        piece = documents[start : start + _PIECE + 1]
        wrong = np.flatnonzero(piece[1:] < piece[:-1])
        if len(wrong):
            at = start + int(wrong[0])
            raise FormatError(
                f"{path}: entry {at + 1:,} of the document index is {int(documents[at + 1]):,}, after {int(documents[at]):,}: entries must not "
                "decrease: the file is damaged."
            )


LAYOUT = Layout(names=("megatron", "fairseq"), recognises=_recognises, open=open_pair)
