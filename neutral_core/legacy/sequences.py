"""The sequences that an index lists one after another: checked against the ``.bin``, and turned into documents.

One pass over lengths, pointers and document index (a second per 10^8 sequences) that keeps none of them, except where pointers have to be
recomputed. What is inferred or repaired is said in ``corpus.notes``: a document index of one entry (left by old merge tools: one sequence is
then one document) and pointers that wrapped around at 2^31 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.fields import Field
from neutral_core.format.offsets import ArrayOffsets, ComputedOffsets, Offsets
from neutral_core.format.shard_like import FieldItems
from neutral_core.legacy.flat import FlatShard, StoredTokens, fingerprint_of
from neutral_core.legacy.layout import Request
from neutral_core.legacy.split import token_bytes

PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """What an index says. Arrays are asked for anew each time, so that the index's map can be let go and opened again.

    Attributes:
        path: of the index.
        tokens_path: of the ``.bin``.
        stored: how its ids are stored.
        count: sequences.
        lengths: int[count], tokens.
        pointers: int64[count], where each begins in the ``.bin``: bytes, or tokens.
        in_bytes: which of the two.
        documents: int64[entries], the sequence with which each document begins, and count; None: each sequence is a document.
    """

    path: Path
    tokens_path: Path
    stored: StoredTokens
    count: int
    lengths: Callable[[], npt.NDArray[Any]]
    pointers: Callable[[], npt.NDArray[np.int64]]
    in_bytes: bool = True
    documents: Callable[[], npt.NDArray[np.int64]] | None = None

    @property
    def unit(self) -> int:
        """What a pointer advances by from one token to the next."""
        return self.stored.dtype.itemsize if self.in_bytes else 1


def rule_of(request: Request, layout: str) -> str:
    """Return ``index`` or ``sequences``, as ``boundaries`` asks; raise ValueError for another rule."""
    if request.boundaries not in (None, "index", "sequences"):
        raise ValueError(
            f"{request.path}: boundaries is {request.boundaries!r}, but the {layout} layout stores its documents: leave it out, or give 'sequences' "
            "to take each sequence as a document."
        )
    return request.boundaries or "index"


def open_sequences(
    request: Request,
    sequences: Sequences,
    *,
    layout: str,
    rule: str = "index",
    fields: Mapping[str, tuple[Field, Callable[[int, int], FieldItems]]] | None = None,
    notes: Sequence[str] = (),
) -> Corpus:
    """Return the corpus of one pair.

    Args:
        request: tokenizer and access are taken from it.
        sequences: what the index says.
        layout, rule: for the fingerprint.
        fields: name → what it is, and what returns its items for documents first … last − 1.
        notes: what was inferred before.

    Raises:
        FormatError: lengths, pointers, document index and ``.bin`` contradict each other.
    """
    notes, fields = list(notes), dict(sorted((fields or {}).items()))
    tokens, files = token_bytes(sequences.tokens_path, request.access)
    num_bytes = tokens.num_bytes
    if len(files) > 1:
        notes.append(
            f"{sequences.tokens_path.name} was split into {len(files):,} parts; they are read as one file, without a map."
        )
    num_tokens, wrapped = _check(sequences, num_bytes)
    offsets, num_documents = _offsets(sequences, num_tokens, wrapped, notes)
    shard = FlatShard(
        tokens,
        sequences.stored,
        offsets=offsets,
        num_documents=num_documents,
        fields={name: read for name, (_, read) in fields.items()},
    )
    return Corpus(
        [shard],
        dtype=sequences.stored.served,
        fingerprint=fingerprint_of(layout, str(sequences.stored.dtype), rule, [*files, sequences.path]),
        tokenizer=request.tokenizer,
        vocab_size=None if request.tokenizer is None else request.tokenizer.vocab_size,
        fields={name: field for name, (field, _) in fields.items()},
        notes=notes,
        files=[*files, sequences.path],
    )


def _check(sequences: Sequences, num_bytes: int) -> tuple[int, bool]:
    """Return the number of tokens, and whether the pointers wrapped around; one pass that keeps nothing."""
    path, name = sequences.path, sequences.tokens_path.name
    size, unit = sequences.stored.dtype.itemsize, sequences.unit
    all_lengths, pointers = sequences.lengths(), sequences.pointers()
    total = 0
    exact, wrapped = True, sequences.in_bytes
    odd: tuple[int, int, int] | None = None
    for start in range(0, sequences.count, PIECE):
        lengths = all_lengths[start : start + PIECE].astype(np.int64)
        if lengths.min() < 0:
            at = start + int(np.flatnonzero(lengths < 0)[0])
            raise FormatError(
                f"{path}: sequence {at:,} has the length {int(all_lengths[at]):,}, expected 0 or more: the file is damaged."
            )
        if lengths.max() > max(num_bytes, 2**31):  # sums of longer ones would not fit into int64
            at = start + int(lengths.argmax())
            raise FormatError(
                f"{path}: sequence {at:,} has the length {int(all_lengths[at]):,}, but {name} has {num_bytes:,} bytes: the file is damaged."
            )
        ends = np.cumsum(lengths)
        expected = (total + ends - lengths) * unit
        found = pointers[start : start + PIECE]
        different = found != expected
        if different.any():
            exact = False
            if odd is None:
                at = int(np.flatnonzero(different)[0])
                odd = (start + at, int(found[at]), int(expected[at]))
            wrapped = wrapped and bool((found == expected.astype(np.int32)).all())
        total += int(ends[-1])
    if total * size != num_bytes:
        raise FormatError(
            f"{sequences.tokens_path}: the file has {num_bytes:,} bytes, but {path.name} promises {total:,} tokens of {size} bytes, {total * size:,} "
            "bytes: one of the two was cut short or belongs to another data set: copy both again."
        )
    if not exact and not wrapped:
        assert odd is not None
        raise FormatError(
            f"{path}: sequence {odd[0]:,} begins at {'byte' if sequences.in_bytes else 'token'} {odd[1]:,} of {name}, expected {odd[2]:,}, where the "
            "one before ends: the pointers leave gaps or overlap: the file is damaged, or its sequences are not in order: write it again with "
            "its maker's tools."
        )
    return total, not exact


def _offsets(sequences: Sequences, num_tokens: int, wrapped: bool, notes: list[str]) -> tuple[Offsets, int]:
    """Return where documents begin, and how many there are."""
    count, unit, pointers, documents = sequences.count, sequences.unit, sequences.pointers, sequences.documents
    if documents is not None and count and np.array_equal(documents(), [0]):
        notes.append(
            f"{sequences.path.name}: the document index holds [0] alone, as old merge tools leave it: each sequence is taken as a document."
        )
        documents = None
    if documents is not None:
        _check_documents(documents(), count, sequences.path)
    if wrapped:
        notes.append(
            f"{sequences.path.name}: pointers wrapped around at 2^31 bytes, as old tools wrote them; they were recomputed from the lengths and fit the "
            "size of the .bin."
        )
        starts = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(sequences.lengths(), dtype=np.int64, out=starts[1:])
        table = starts if documents is None else starts[documents()]
        return ArrayOffsets(table), len(table) - 1

    def offset_of(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        at = numbers if documents is None else documents()[numbers]
        inside = np.minimum(at, max(count - 1, 0))
        begins = pointers()[inside] // unit if count else np.zeros(at.shape, dtype=np.int64)
        return np.where(at < count, begins, num_tokens).astype(np.int64)

    num_documents = count if documents is None else max(len(documents()) - 1, 0)
    return ComputedOffsets(num_documents, offset_of), num_documents


def _check_documents(documents: npt.NDArray[Any], count: int, path: Path) -> None:
    hint = "the file is damaged; boundaries='sequences' takes each sequence as a document."
    if not len(documents):
        raise FormatError(f"{path}: the document index has no entries, expected at least one: {hint}")
    if documents[0] != 0 or documents[-1] != count:
        raise FormatError(
            f"{path}: the document index runs from {int(documents[0]):,} to {int(documents[-1]):,}, expected 0 to {count:,}, the number of "
            f"sequences: {hint}"
        )
    for start in range(0, len(documents), PIECE):
        piece = documents[start : start + PIECE + 1]
        wrong = np.flatnonzero(piece[1:] < piece[:-1])
        if len(wrong):
            at = start + int(wrong[0])
            raise FormatError(
                f"{path}: entry {at + 1:,} of the document index is {int(documents[at + 1]):,}, after {int(documents[at]):,}: entries must not "
                f"decrease: {hint}"
            )
