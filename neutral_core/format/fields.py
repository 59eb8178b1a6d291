"""Declared fields: what a corpus stores beside the tokens, and the arrays that hold it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neutral_core.format.container import BLOCK, CODES, MAX_RANK, Array

_NAME = re.compile(r"(token|document|ragged)\.[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """What is stored under one name: the dtype of an element and the trailing shape of an item.

    A field named ``token.<name>`` has one item per token, ``document.<name>`` one per document, ``ragged.<name>`` any number per document.

    Args:
        dtype: ``bool``, ``int8`` … ``int64``, ``uint8`` … ``uint64``, ``float16``, ``float32``, ``float64``, or ``bfloat16``,
            ``float8_e4m3``, ``float8_e5m2``, whose bit patterns the core takes and returns as uint16 and uint8.
        shape: of one item, () for a single number.
    """

    dtype: str
    shape: tuple[int, ...] = ()


def check_fields(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields sorted by name; raise ValueError for a name, dtype or shape that cannot be stored."""
    for name, field in fields.items():
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"field {name!r}: expected 'token.', 'document.' or 'ragged.' and a name of up to 100 letters, digits, '_' or '-'."
            )
        if field.dtype not in CODES:
            raise ValueError(f"field {name!r}: dtype is {field.dtype!r}, expected one of {', '.join(CODES)}.")
        if len(field.shape) >= MAX_RANK or any(type(n) is not int or not 0 < n < 2**31 for n in field.shape):
            raise ValueError(f"field {name!r}: shape is {field.shape}, expected positive integers below 2^31.")
        if math.prod(field.shape) >= 2**48:  # numpy refuses arrays whose sizes overflow, even without items
            raise ValueError(f"field {name!r}: an item of shape {field.shape} has more than 2^48 numbers.")
    return dict(sorted(fields.items()))


def arrays_of(
    token_code: str, fields: Mapping[str, Field], *, num_tokens: int, num_documents: int, ragged: Mapping[str, int]
) -> list[Array]:
    """Return the arrays of a shard's data before the checksums, in file order.

    Args:
        token_code: code of the tokens' dtype.
        fields: sorted by name.
        num_tokens, num_documents: of the shard.
        ragged: number of items of each ragged field in the whole shard; 0 where it is left out.
    """
    arrays = [
        Array(name="tokens", code=token_code, shape=(num_tokens,)),
        Array(name="document_offsets", code="I64", shape=(num_documents + 1,)),
    ]
    for name, field in fields.items():
        kind = name.partition(".")[0]
        items = {"token": num_tokens, "document": num_documents}.get(kind)
        items = ragged.get(name, 0) if items is None else items
        arrays.append(Array(name=name, code=CODES[field.dtype], shape=(items, *field.shape)))
        if kind == "ragged":
            arrays.append(Array(name=f"{name}.offsets", code="I64", shape=(num_documents + 1,)))
    return arrays


def counted_by(name: str) -> str | None:
    """Return the name of the array whose items an array of offsets counts, or None for any other array.

    By the place of the dots, not by the ending: ``token.offsets`` and ``ragged.offsets`` are fields like any other.
    """
    if name == "document_offsets":
        return "tokens"
    return name.removesuffix(".offsets") if name.startswith("ragged.") and name.count(".") == 2 else None


def checksums_of(num_bytes: int) -> Array:
    """Return the array of checksums for ``num_bytes`` bytes of data before it: one of the header, one per 1 MiB block."""
    return Array(name="checksums", code="U32", shape=(1 + -(-num_bytes // BLOCK),))


def fields_to_json(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the fields as plain data, as they stand in a header."""
    return {name: {"dtype": field.dtype, "shape": list(field.shape)} for name, field in fields.items()}


def fields_from_json(data: Any) -> dict[str, Field]:
    """Build fields from plain data; raise ValueError for what cannot be one."""
    if not isinstance(data, dict):
        raise ValueError(f"the fields are {data!r}, expected an object.")
    fields = {}
    for name, entry in data.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape"} or not isinstance(entry["shape"], list):
            raise ValueError(f"field {name!r} is {entry!r}, expected an object with dtype and shape.")
        if not isinstance(entry["dtype"], str):
            raise ValueError(f"field {name!r}: dtype is {entry['dtype']!r}, expected text.")
        fields[name] = Field(dtype=entry["dtype"], shape=tuple(entry["shape"]))
    return check_fields(fields)
