"""Headerless files of tokens, as nanoGPT's ``train.bin``: nothing in the file says what the bytes mean, so the caller must.

dtype and boundary rule (see boundaries) are asked for and never guessed; the refusal shows what speaks for which. One thing besides the file
may settle the dtype: a ``meta.pkl`` beside a ``.bin``, as nanoGPT's data sets of characters have it. It is taken for uint16, which their maker
writes, where the first MiB read so holds only ids below the table's vocab_size and read as uint32 does not; the note says so. The vocab_size
then is the corpus'. A ``meta.pkl`` that does not agree, or is none of nanoGPT's, is left aside, with a note. Nothing is unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.legacy.boundaries import CHOICES, rule_of
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.layout import Layout, Request
from neutral_core.legacy.nanogpt import META, read_meta
from neutral_core.legacy.stretches import Stretch, open_by_rule

_SEEN = 1 << 20

# Files that begin like this hold something else than bare tokens, and no layout asked before this one has taken them.
_MAGICS = {
    b"MMIDIDX\0\0": "the index of a Megatron or fairseq pair",
    b"TNTIDX\0\0": "a TNTIDX index of fairseq or Megatron",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"PK\x03\x04": "a zip or .npz file",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """The dtype, given or settled by a ``meta.pkl``, and the vocab_size, None where unknown; ``why`` is what to say of the ``meta.pkl``."""

    dtype: npt.DTypeLike | None
    vocab_size: int | None = None
    why: str = ""


def open_headerless(request: Request) -> Corpus:
    """Open a headerless file in place.

    ``layout="headerless"`` takes a file that begins with another format's magic for headerless all the same.

    Raises:
        ValueError: dtype or boundaries are missing (the message shows the evidence) or are not valid.
        FormatError: the size is no multiple of the dtype's, an ID does not occur, or the file is something else.
    """
    path = request.path
    num_bytes = path.stat().st_size
    if request.layout is None:
        _refuse_magic(path)
    known = _known(path, request.dtype)
    if known.dtype is None:
        said = f"{_evidence(path, num_bytes)} {known.why}".strip()
        raise ValueError(f"{path}: nothing in the file says how wide its ids are; give dtype. {said}")
    stored = StoredTokens.asked(known.dtype, path)
    if num_bytes % stored.dtype.itemsize:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, which is no multiple of {stored.dtype.itemsize}, the size of {stored.dtype}: the dtype is "
            "wrong or the copy was cut short."
        )
    file = FileBytes(path, num_bytes, request.access)
    stretch = Stretch(file=file, stored=stored, start_byte=0, num_tokens=num_bytes // stored.dtype.itemsize)
    rule = rule_of(request.boundaries, stretch.shard(), path)
    corpus = open_by_rule([stretch], rule, request, layout="headerless", notes=[known.why] if known.why else [])
    if request.tokenizer is None:
        corpus.vocab_size = known.vocab_size
    return corpus


def _known(path: Path, dtype: npt.DTypeLike | None) -> _Known:
    """Return what the caller and a ``meta.pkl`` beside the file say."""
    place = path.with_name(META)
    if path.suffix != ".bin" or not place.is_file():
        return _Known(dtype=dtype)
    try:
        size = read_meta(place).vocab_size
    except FormatError as error:
        return _Known(dtype=dtype, why=f"{META} beside it is left aside: {error}")
    wanted = np.dtype("<u2") if dtype is None else StoredTokens.asked(dtype, path).dtype
    with path.open("rb") as file:
        first = file.read(_SEEN)
    count, largest = _largest(first, wanted)
    if not count:
        return _Known(dtype=dtype)
    if largest >= size:
        return _Known(
            dtype=dtype,
            why=f"{META} beside it is left aside: it says {size:,} ids, but the first {count:,} as {wanted} run up to {largest:,}.",
        )
    if dtype is not None:
        return _Known(dtype=dtype, vocab_size=size)
    if _largest(first, np.dtype("<u4"))[1] < size:
        return _Known(dtype=None, why=f"{META} beside it says {size:,} ids, which fits uint16 and uint32 alike.")
    return _Known(
        dtype=wanted,
        vocab_size=size,
        why=f"{path.name}: dtype is taken for uint16: {META} beside it says {size:,} ids, and read so the first {count:,} run up to {largest:,}, as uint32 "
        "beyond that.",
    )


def _largest(first: bytes, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return how many whole ids the first bytes are, and the largest of them, −1 where there is none."""
    ids = np.frombuffer(first[: len(first) // dtype.itemsize * dtype.itemsize], dtype=dtype)
    return len(ids), int(ids.max()) if len(ids) else -1


def _refuse_magic(path: Path) -> None:
    with path.open("rb") as file:
        first = file.read(16)
    for magic, what in _MAGICS.items():
        if first.startswith(magic):
            raise FormatError(
                f"{path}: byte 0: {magic!r} begins {what}, not bare tokens; if it is bare tokens all the same, give layout='headerless'."
            )


def _evidence(path: Path, num_bytes: int) -> str:
    """Say what the first MiB would be under each width."""
    with path.open("rb") as file:
        first = file.read(_SEEN)
    views = []
    for name in ("uint8", "uint16", "uint32"):
        size = np.dtype(name).itemsize
        if num_bytes % size:
            views.append(f"as {name} it would not end on a whole id")
        elif num_bytes:
            ids: npt.NDArray[Any] = np.frombuffer(first, dtype=np.dtype(name).newbyteorder("<"))
            zeros = int((ids == 0).sum()) * 100 // len(ids)
            views.append(
                f"as {name} its first {len(ids):,} ids run from {int(ids.min()):,} to {int(ids.max()):,}, {zeros}% of them 0"
            )
    return f"Its {num_bytes:,} bytes say: " + "; ".join(views) + "."


LAYOUT = Layout(
    names=("headerless",), recognises=Path.is_file, open=open_headerless, boundaries=CHOICES, takes_dtype=True
)
