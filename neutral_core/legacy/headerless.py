"""Headerless files of tokens, as nanoGPT's ``train.bin``: nothing in the file says what the bytes mean, so the caller must.

dtype and boundary rule are asked for and never guessed; the refusal shows what speaks for which. Rules:

    eos:ID    a document ends after each ID; tokens after the last one are a document too
    bos:ID    a document begins at each ID; tokens before the first one are a document too
    fixed:N   each N tokens are a document; the last may be shorter
    none      the file is one document

``eos`` and ``bos`` read the whole file once on opening and hold 8 bytes a document; an ID that does not occur is an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets, ComputedOffsets, Offsets
from neutral_core.legacy.flat import FlatShard, StoredTokens, fingerprint_of
from neutral_core.legacy.layout import Layout, Request

_PIECE = 1 << 22
_RULES = "eos:ID, bos:ID, fixed:N or none"

# Files that begin like this hold something else than bare tokens.
_MAGICS = {
    b"MMIDIDX\0\0": "the index of a Megatron or fairseq pair",
    b"TNTIDX\0\0": "a TNTIDX index of fairseq or Megatron",
    b"\x93NUMPY": "a NumPy .npy file with its header",
    b"LITPKDS": "a packed file of lit-gpt",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    (20240520).to_bytes(4, "little"): "a file of llm.c with its header",
    (20240801).to_bytes(4, "little"): "a file of llm.c with its header",
    (20240522).to_bytes(4, "little"): "an evaluation file of llm.c",
    b"PK\x03\x04": "a zip or .npz file",
    b"\x1f\x8b": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}


def open_headerless(request: Request) -> Corpus:
    """Open a headerless file in place.

    ``layout="headerless"`` takes a file that begins with another format's magic for headerless all the same.

    Raises:
        ValueError: dtype or boundaries are missing (the message shows the evidence) or are not valid.
        FormatError: the size is no multiple of the dtype's, an ID does not occur, or the file is something else.
    """
    path, dtype, boundaries, tokenizer = request.path, request.dtype, request.boundaries, request.tokenizer
    access, insist = request.access, request.layout is not None
    num_bytes = path.stat().st_size
    if not insist:
        _refuse_magic(path)
    if dtype is None:
        raise ValueError(
            f"{path}: nothing in the file says how wide its ids are; give dtype. {_evidence(path, num_bytes)}"
        )
    try:
        stored = StoredTokens.of(np.dtype(dtype))
    except TypeError:
        raise ValueError(
            f"{path}: dtype is {dtype!r}, expected one of numpy's integer types, such as uint16."
        ) from None
    if num_bytes % stored.dtype.itemsize:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, which is no multiple of {stored.dtype.itemsize}, the size of {stored.dtype}: the dtype is "
            "wrong or the copy was cut short."
        )
    file = FileBytes(path, num_bytes, access)
    whole = FlatShard(file, stored, offsets=ArrayOffsets(np.zeros(1, dtype=np.int64)), num_documents=0)
    if boundaries is None:
        raise ValueError(
            f"{path}: nothing in the file says where documents begin; give boundaries={_RULES}. {_last_id(whole)}"
        )
    notes: list[str] = []
    rule, _, number = boundaries.partition(":")
    boundaries = (
        f"{rule}:{int(number)}" if number.isdecimal() else boundaries
    )  # eos:09 is eos:9, also in the fingerprint
    offsets, num_documents = _offsets(whole, boundaries, path, notes)
    return Corpus(
        [FlatShard(file, stored, offsets=offsets, num_documents=num_documents)],
        dtype=stored.served,
        fingerprint=fingerprint_of("headerless", str(stored.dtype), boundaries, [path]),
        tokenizer=tokenizer,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        notes=notes,
    )


def _offsets(tokens: FlatShard, boundaries: str, path: Path, notes: list[str]) -> tuple[Offsets, int]:
    rule, _, text = boundaries.partition(":")
    total = tokens.num_tokens
    if boundaries == "none":
        return ArrayOffsets(np.array([0, total], dtype=np.int64)), 1
    if rule not in ("eos", "bos", "fixed") or not text.isdecimal() or (rule == "fixed" and int(text) == 0):
        raise ValueError(f"boundaries is {boundaries!r}, expected {_RULES}.")
    number = int(text)
    if rule == "fixed":
        if total % number:
            notes.append(f"{path.name}: the last document has {total % number:,} tokens instead of {number:,}.")
        length = min(number, max(total, 1))  # a longer one is the same, and would not fit into int64
        return ComputedOffsets(-(-total // length), lambda n: np.minimum(n * length, total)), -(-total // length)
    found = _positions(tokens, number)
    if not len(found):
        raise FormatError(
            f"{path}: the id {number:,} does not occur in {total:,} tokens: the tokenizer, the dtype or the rule {boundaries!r} is wrong."
        )
    edges = found + 1 if rule == "eos" else found
    table = np.unique(np.concatenate([[0], edges, [total]])).astype(np.int64)
    if rule == "eos" and edges[-1] != total:
        notes.append(
            f"{path.name}: {total - int(edges[-1]):,} tokens after the last {number:,} are taken as a document of their own."
        )
    if rule == "bos" and edges[0] != 0:
        notes.append(
            f"{path.name}: {int(edges[0]):,} tokens before the first {number:,} are taken as a document of their own."
        )
    notes.append(
        f"{path.name}: {len(table) - 1:,} documents by the rule {boundaries}; the id occurs {len(found):,} times."
    )
    return ArrayOffsets(table), len(table) - 1


def _positions(tokens: FlatShard, number: int) -> npt.NDArray[np.int64]:
    found = [np.empty(0, dtype=np.int64)]
    for start in range(0, tokens.num_tokens, _PIECE):
        piece = tokens.read(start, min(start + _PIECE, tokens.num_tokens))
        found.append(start + np.flatnonzero(piece == number))
    return np.concatenate(found)


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
        first = file.read(1 << 20)
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


def _last_id(tokens: FlatShard) -> str:
    """Say what could be an end-of-text id."""
    if not tokens.num_tokens:
        return "The file is empty."
    last = int(tokens.read(tokens.num_tokens - 1, tokens.num_tokens)[0])
    first = tokens.read(0, min(_PIECE, tokens.num_tokens))
    times = int((first == last).sum())
    return f"The last id is {last:,}, which occurs {times:,} times in the first {len(first):,} tokens."


LAYOUT = Layout(
    names=("headerless",),
    recognises=Path.is_file,
    open=open_headerless,
    boundaries=("eos:ID", "bos:ID", "fixed:N", "none"),
    takes_dtype=True,
)
