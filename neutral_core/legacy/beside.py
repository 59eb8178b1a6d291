"""Bare files of tokens whose documents and loss masks stand in files beside them: what such layouts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from neutral_core.errors import FormatError
from neutral_core.format.fields import Field
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets, Offsets
from neutral_core.format.shard_like import FieldItems
from neutral_core.legacy.boundaries import cut, notes_of, rule_of
from neutral_core.legacy.flat import FlatShard, StoredTokens
from neutral_core.legacy.joined import Part
from neutral_core.legacy.layout import Request

_MASK = "token.loss_mask"


class Documents(NamedTuple):
    """The documents of a file.

    Attributes:
        offsets: where they begin.
        total: how many there are.
        told_by: what the fingerprint covers of that, beside the files' bytes.
    """

    offsets: Offsets
    total: int
    told_by: str = "index"


def part_of(
    tokens: FileBytes, stored: StoredTokens, documents: Documents, *, mask: Path | None, others: tuple[Path, ...] = ()
) -> Part:
    """Return one file of tokens as a part.

    Args:
        tokens: the file, which they fill.
        stored: how its ids are stored.
        documents: in it.
        mask: a file of one byte a token, 1 where it is trained on, else 0; None where there is none.
        others: files beside ``tokens`` and ``mask`` whose bytes the fingerprint covers.

    Raises:
        FormatError: the mask has not one byte a token.
    """
    num_tokens = tokens.num_bytes // stored.dtype.itemsize
    fields = {} if mask is None else {_MASK: _mask_items(mask, num_tokens, documents.offsets, tokens.access)}
    shard = FlatShard(tokens, stored, offsets=documents.offsets, num_documents=documents.total, fields=fields)
    return Part(
        path=tokens.path,
        shard=shard,
        stored=stored,
        files=(tokens.path, *others, *(() if mask is None else (mask,))),
        boundaries=documents.told_by,
        fields={name: Field(dtype="bool") for name in fields},
    )


def documents_by_rule(
    files: Sequence[FileBytes], stored: StoredTokens, request: Request, notes: list[str]
) -> list[Documents]:
    """Return the documents of files by the boundary rule in the request, and note what it did.

    Raises:
        ValueError: there is no rule, or it is none.
        FormatError: a size is no multiple of the ids', or the rule's id occurs in no file.
    """
    nothing = ArrayOffsets(np.zeros(1, dtype=np.int64))
    for file in files:
        check_multiple(file, stored)
    tokens = [FlatShard(file, stored, offsets=nothing, num_documents=0) for file in files]
    rule = rule_of(request.boundaries, max(tokens, key=lambda each: each.num_tokens), request.path)
    cuts = [cut(each, rule, file.path) for each, file in zip(tokens, files, strict=True)]
    notes.extend(notes_of(cuts, rule, request.path))
    return [Documents(each.offsets, each.num_documents, str(rule)) for each in cuts]


def check_multiple(file: FileBytes, stored: StoredTokens) -> None:
    """Raise FormatError where a file does not end on a whole id."""
    if file.num_bytes % stored.dtype.itemsize:
        raise FormatError(
            f"{file.path}: the file has {file.num_bytes:,} bytes, which is no multiple of {stored.dtype.itemsize}, the size of {stored.dtype}: the "
            "copy was cut short, or the width is wrong."
        )


def check_all_or_none(sides: Sequence[tuple[Path, Path]]) -> bool:
    """Return whether files of tokens have their side files, given as pairs; raise FormatError where only some have."""
    there = [side.is_file() for _, side in sides]
    if any(there) and not all(there):
        path, side = sides[there.index(False)]
        raise FormatError(
            f"{path}: {side.name} is not beside it, but {sides[there.index(True)][1].name} is there: the copy was cut short, or the files do not belong "
            "to one data set."
        )
    return any(there)


def _mask_items(path: Path, num_tokens: int, offsets: Offsets, access: str) -> Callable[[int, int], FieldItems]:
    """Return what reads the mask of documents first … last − 1 and checks it; its size is checked here, its bytes then."""
    num_bytes = path.stat().st_size
    if num_bytes != num_tokens:
        raise FormatError(
            f"{path}: the mask has {num_bytes:,} bytes, expected one for each of {num_tokens:,} tokens: one of the two files was cut short or belongs "
            "to another data set: copy both again."
        )
    file = FileBytes(path, num_bytes, access)

    def read(first: int, last: int) -> FieldItems:
        start, stop = offsets.at(np.array([first, last])).tolist()
        found = file.read(start, stop)
        if found.size and int(found.max()) > 1:
            at = int(np.flatnonzero(found > 1)[0])
            raise FormatError(
                f"{path}: byte {start + at:,} is {int(found[at])}, expected 0 or 1, whether the token is trained on: it is no mask, or is damaged."
            )
        return FieldItems(found.view(np.bool_))

    return read
