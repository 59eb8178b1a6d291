"""What a shard's header says: its metadata, checked against its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.format.container import Header
from neutral_core.format.fields import Field, arrays_of, checksums_of, fields_from_json
from neutral_core.format.tokenizer import TokenizerIdentity

FORMAT_VERSION = 1
_KEYS = {"fields", "format_version", "num_documents", "num_tokens", "provenance", "tokenizer", "vocab_size"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What a shard's header says, checked."""

    vocab_size: int
    num_documents: int
    num_tokens: int
    fields: dict[str, Field]
    tokenizer: TokenizerIdentity | None
    provenance: dict[str, str]


def content_of(header: Header, path: str) -> Content:
    """Check the metadata against the arrays and return what it says."""
    data = header.metadata
    version = data.get("format_version")
    if type(version) is not int or version < 1:
        raise FormatError(
            f"{path}: format_version is {version!r}, expected 1 to {FORMAT_VERSION}: the file is damaged."
        )
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{path}: format version {version} is newer than {FORMAT_VERSION}, the newest that this Millstream reads: update it."
        )
    if set(data) != _KEYS:
        odd = ", ".join(sorted(set(data) ^ _KEYS))
        raise FormatError(
            f"{path}: the metadata's keys differ from those of format version {version} in {odd}: the file is damaged."
        )
    try:
        content = _parse(data)
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: {error}") from None
    expected = arrays_of(
        code_of(content.vocab_size),
        content.fields,
        num_tokens=content.num_tokens,
        num_documents=content.num_documents,
        ragged={name: array.shape[0] if array.shape else 0 for name, array in header.arrays.items()},
    )
    end = header.arrays["checksums"].start if "checksums" in header.arrays else 0
    expected.append(checksums_of(end))
    found = [(a.name, a.code, a.shape) for a in header.arrays.values()]
    wanted = [(a.name, a.code, a.shape) for a in expected]
    if found != wanted:
        first = next((f, w) for f, w in zip([*found, None], [*wanted, None], strict=False) if f != w)
        raise FormatError(
            f"{path}: an array is {first[0]}, expected {first[1]} for the counts and fields of the header: the file is damaged."
        )
    return content


def _parse(data: dict[str, Any]) -> Content:
    for key, least, most in (("num_documents", 0, 2**62), ("num_tokens", 0, 2**62), ("vocab_size", 1, 2**32)):
        if type(data[key]) is not int or not least <= data[key] <= most:
            raise ValueError(f"{key} is {data[key]!r}, expected an integer from {least} to {most:,}.")
    provenance = data["provenance"]
    if not isinstance(provenance, dict) or not all(isinstance(value, str) for value in provenance.values()):
        raise ValueError(f"provenance is {provenance!r}, expected an object of texts.")
    tokenizer = None if data["tokenizer"] is None else TokenizerIdentity.from_json(data["tokenizer"])
    if tokenizer is not None and tokenizer.vocab_size != data["vocab_size"]:
        raise ValueError(f"vocab_size is {data['vocab_size']:,} but the tokenizer's is {tokenizer.vocab_size:,}.")
    fields = fields_from_json(data["fields"])
    return Content(
        vocab_size=data["vocab_size"],
        num_documents=data["num_documents"],
        num_tokens=data["num_tokens"],
        fields=fields,
        tokenizer=tokenizer,
        provenance=provenance,
    )


def code_of(vocab_size: int) -> str:
    """Return the code of the narrowest dtype for ids below ``vocab_size``: U8, U16 or U32."""
    return "U8" if vocab_size <= 2**8 else "U16" if vocab_size <= 2**16 else "U32"
