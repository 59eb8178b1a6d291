"""Fast-LLM's ``.fast_llm_dataset`` files (since November 2025), read in place.

    0         "fast_llm_prepared_dataset", 25 bytes, no version
    25        u64 big-endian J; 0 in a file whose writing was interrupted
    33 … J    one section, language_model; what it holds is little-endian
    J         u32 big-endian L
    J + 4     L bytes of JSON, which end the file

The JSON names the sections inside language_model, each with ``begin`` and ``end`` in the file, tags included. A section is a tag, arrays without
padding, and a tag (D documents, T tokens):

    token        items[T]   i64 offsets[D + 1]
    range        i32 items[R][2]   i32 offsets[D + 1]
    patch        items[P][*patch_shape]   i32 token_map[P]   i32 positions[P][len(patch_shape) - 1]   i32 offsets[D + 1]
                 i32 lengths[G]   i32 group_offsets[D + 1]
    token_data   items[T][*shape]   i64 offsets[D + 1]

No key says which Fast-LLM wrote it; sections that a release did not know are missing, those that a data set lacks are of the type ``none``, and
``preprocessing`` (December 2025 to March 2026) says how many ids the vocabulary has. Fields, in the file's own widths:

    ragged.loss_masking_spans, ragged.chosen_spans, ragged.rejected_spans         int32 (2,), half-open as in the file
    ragged.image_patches, …_token_map, …_positions, …_lengths (patches an image)  as in the file
    token.advantages, token.old_log_probabilities                                 as in the file

Opening passes over all offsets (16 bytes a document and section at most) and keeps none; under ``access="read"`` 8 bytes a document stay in
memory. Arrays lie at any byte: items of fields are copied where they are not aligned. Said in ``corpus.notes``: sections of development branches
that are left out (audio, teacher), rejected spans that end one token after their document (Fast-LLM's, where it adds no EOS), which are cut,
and images: their places hold the id −100, which is none, so that tokens of such documents are refused when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.fields import Field
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets, ComputedOffsets, Offsets
from neutral_core.format.shard_like import FieldItems
from neutral_core.legacy.fast_llm_json import MAGIC
from neutral_core.legacy.fast_llm_sections import Section, Sections, read_sections
from neutral_core.legacy.flat import FlatShard, StoredTokens, fingerprint_of
from neutral_core.legacy.layout import Layout, Request, first_bytes
from neutral_core.legacy.spans import FIELD as SPAN
from neutral_core.legacy.spans import checked_spans

_NAME = "fast_llm_dataset"
_PIECE = 1 << 20

_Read = Callable[[int, int], FieldItems]


def _recognises(path: Path) -> bool:
    return first_bytes(path, len(MAGIC)) == MAGIC


def open_fast_llm_dataset(request: Request) -> Corpus:
    """Open one file in place.

    Raises:
        FormatError: for every way in which it can be wrong; the message names file, place or key, found and expected.
    """
    path = request.path
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file; give one .fast_llm_dataset file.")
    file = FileBytes(path, path.stat().st_size, request.access)
    sections = read_sections(file)
    notes: list[str] = []
    fields = _fields(path, sections, notes)
    tokens = sections.sections["tokens"]
    if "float" in tokens.dtype:
        raise FormatError(
            f"{path}: tokens.data_type is {tokens.dtype!r}, expected an integer type: tokens are integers."
        )
    stored = StoredTokens.of(tokens.arrays["items"].dtype)
    shard = FlatShard(
        file,
        stored,
        offsets=_offsets(tokens, sections.num_documents, request.access),
        num_documents=sections.num_documents,
        start_byte=tokens.arrays["items"].start,
        num_tokens=tokens.num_items,
        fields={name: read for name, (_, read) in fields.items()},
    )
    tokenizer = request.tokenizer
    return Corpus(
        [shard],
        dtype=stored.served,
        fingerprint=fingerprint_of(_NAME, str(stored.dtype), "index", [path]),
        tokenizer=tokenizer,
        vocab_size=sections.vocab_size if tokenizer is None else tokenizer.vocab_size,
        fields={name: field for name, (field, _) in fields.items()},
        notes=notes,
        files=[path],
    )


def _offsets(tokens: Section, num_documents: int, access: str) -> Offsets:
    stored = tokens.arrays["offsets"]
    if access == "map":
        return ComputedOffsets(num_documents, stored.take)
    return ArrayOffsets(stored.read(0, num_documents + 1))  # never mapped then: in memory


def _fields(path: Path, sections: Sections, notes: list[str]) -> dict[str, tuple[Field, _Read]]:
    """Return name → what it is, and what reads it, sorted by name; notes what is left out or repaired."""
    fields: dict[str, tuple[Field, _Read]] = {}
    tokens = sections.sections["tokens"]
    for name, section in sections.sections.items():
        items = section.arrays["items"]
        if name.endswith("_spans"):
            fields[f"ragged.{name}"] = SPAN, _spans(path, name, section, tokens)
        elif name == "image_patches":
            for part, read in _patches(path, section, tokens).items():
                array = section.arrays[part or "items"]
                field = Field(dtype="int32" if part else section.dtype, shape=array.shape[1:])
                fields["_".join(filter(None, ("ragged.image_patches", part)))] = field, read
            if section.num_items:
                notes.append(
                    f"{path.name}: the places of {section.num_items:,} image patches hold the id -100, which is none: tokens of documents with images "
                    "are refused when they are read."
                )
        elif name != "tokens":
            fields[f"token.{name}"] = Field(dtype=section.dtype, shape=items.shape[1:]), _token_data(section)
    for name in sections.left_out:
        notes.append(f"{path.name}: the section {name!r}, which no released Fast-LLM writes, is left out.")
    if "rejected_spans" in sections.sections:
        _note_overruns(path, sections, notes)
    return dict(sorted(fields.items()))


def _edges(section: Section, first: int, last: int, name: str = "offsets") -> npt.NDArray[np.int64]:
    return section.arrays[name].read(first, last + 1).astype(np.int64)


def _spans(path: Path, name: str, section: Section, tokens: Section) -> _Read:
    def read(first: int, last: int) -> FieldItems:
        edges = _edges(section, first, last)
        counts, lengths = np.diff(edges), np.diff(_edges(tokens, first, last))
        spans = section.arrays["items"].read(int(edges[0]), int(edges[-1]))
        if name == "rejected_spans":
            spans = spans - _overruns(spans, counts, lengths)[:, None] * np.array([0, 1], dtype=np.int32)
        return FieldItems(checked_spans(spans, counts, lengths, first=first, path=path, name=f"ragged.{name}"), counts)

    return read


def _overruns(
    spans: npt.NDArray[Any], counts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which spans end one token after their document."""
    return np.asarray(spans[:, 1] == np.repeat(lengths, counts) + 1)


def _note_overruns(path: Path, sections: Sections, notes: list[str]) -> None:
    section, tokens = sections.sections["rejected_spans"], sections.sections["tokens"]
    found = 0
    for first in range(0, sections.num_documents, _PIECE):
        last = min(first + _PIECE, sections.num_documents)
        edges = _edges(section, first, last)
        spans = section.arrays["items"].read(int(edges[0]), int(edges[-1]))
        found += int(_overruns(spans, np.diff(edges), np.diff(_edges(tokens, first, last))).sum())
    if found:
        notes.append(
            f"{path.name}: {found:,} rejected spans end one token after their document, as Fast-LLM writes them where it adds no EOS; they are cut."
        )


def _token_data(section: Section) -> _Read:
    def read(first: int, last: int) -> FieldItems:
        edges = _edges(section, first, last)
        return FieldItems(section.arrays["items"].read(int(edges[0]), int(edges[-1])))

    return read


def _patches(path: Path, section: Section, tokens: Section) -> dict[str, _Read]:
    """Return what reads the patches, '', and what belongs to them: their tokens, their places in their image, and the images' numbers of patches."""
    arrays = section.arrays

    def patches(name: str) -> _Read:
        def read(first: int, last: int) -> FieldItems:
            edges = _edges(section, first, last)
            return FieldItems(arrays[name].read(int(edges[0]), int(edges[-1])), np.diff(edges))

        return read

    def token_map(first: int, last: int) -> FieldItems:
        found = patches("token_map")(first, last)
        assert found.counts is not None
        limits = np.repeat(np.diff(_edges(tokens, first, last)), found.counts)
        wrong = (found.items < 0) | (found.items >= limits)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise FormatError(
                f"{path}: the token of a patch of documents {first:,} … {last:,} is {int(found.items[at]):,}, expected one of {int(limits[at]):,}: the file "
                "is damaged."
            )
        return found

    def lengths(first: int, last: int) -> FieldItems:
        edges = _edges(section, first, last, "group_offsets")
        found = arrays["lengths"].read(int(edges[0]), int(edges[-1]))
        sums = np.concatenate([[0], np.cumsum(found, dtype=np.int64)])[edges - edges[0]]
        if (found < 0).any() or not np.array_equal(np.diff(sums), np.diff(_edges(section, first, last))):
            raise FormatError(
                f"{path}: the images of documents {first:,} … {last:,} have other numbers of patches than their documents: the file is damaged."
            )
        return FieldItems(found, np.diff(edges))

    return {"": patches("items"), "token_map": token_map, "positions": patches("positions"), "lengths": lengths}


LAYOUT = Layout(names=(_NAME,), recognises=_recognises, open=open_fast_llm_dataset)
