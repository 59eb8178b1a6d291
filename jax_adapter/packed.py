"""What travels to the devices: one array of narrow integers a batch, with all that belongs to a row in that row, or in that part of a row.

    tokens · positions · segment_ids · loss_mask · source · zeros up to a multiple of 64 bytes

In words of the tokens' dtype, each key from a whole word on; segment ids and positions as narrow as the row's length allows. A transfer costs
more than what it carries: five of them are one here. Rows begin at multiples of 64 bytes, where JAX's CPU backend uses the memory as it lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jax_adapter.rows import Columns

ALIGNMENT = 64  # bytes
_COUNTS = ("segment_ids", "positions")  # never more than the tokens of a row
Arrays = dict[str, jax.Array]


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """A key of the batch: its first word, its items in a row or part of one, their dtype on the way and on the device."""

    key: str
    word: int
    items: int  # 0: one for the row, without an axis
    sent: str
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in a row, or part of one."""
        return max(self.items, 1) * np.dtype(self.sent).itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where the keys are: constant over a plan, and hashable, as jit's cache needs. ``cut``: rows are in parts, on an axis of their own."""

    fields: tuple[Field, ...]
    word: str
    width: int
    cut: bool


def stays(key: str, rows: npt.NDArray[Any]) -> bool:
    """Return whether a key stays on the host: 64 bits would be cut to 32 on a device, without a word."""
    return rows.dtype.itemsize > 4 or rows.ndim > 2


def layout_of(batch: Mapping[str, npt.NDArray[Any]], columns: Columns, row_length: int) -> Layout:
    """Return where the keys of a batch of numpy arrays go; ``row_length``: of the whole row, in tokens.

    A key of one number a row is not packed where rows are cut: each part would have to hold it.
    """
    word = batch["tokens"].dtype
    fields: list[Field] = []
    at = 0
    for key in sorted(batch, key=lambda key: (key != "tokens", key)):
        rows = batch[key]
        if stays(key, rows) or (rows.ndim == 1 and columns.cut):
            continue
        sent = np.min_scalar_type(row_length) if key in _COUNTS else rows.dtype
        items = 0 if rows.ndim == 1 else columns.targets if key == "loss_mask" else columns.tokens
        fields.append(Field(key=key, word=at, items=items, sent=sent.str, dtype=rows.dtype.str))
        at += -(-fields[-1].nbytes // word.itemsize)
    per_line = ALIGNMENT // word.itemsize
    return Layout(fields=tuple(fields), word=word.str, width=-(-at // per_line) * per_line, cut=columns.cut)


def pack(batch: Mapping[str, npt.NDArray[Any]], layout: Layout, columns: Columns) -> npt.NDArray[Any]:
    """Return [held parts, rows, words]: a batch's rows, in memory that nothing else uses."""
    num_rows = len(batch["tokens"])
    out = aligned_zeros((len(columns.parts), num_rows, layout.width), np.dtype(layout.word))
    for field in layout.fields:
        rows = batch[field.key]
        into = _place(out, field)
        for place, start in enumerate(columns.starts):
            first = place * columns.targets if field.key == "loss_mask" else start
            into[place] = rows[:, first : first + field.items] if field.items else rows[:, None]
    return out


def _place(out: npt.NDArray[Any], field: Field) -> npt.NDArray[Any]:
    """Return where a field's items go, as numbers of the dtype in which they travel."""
    if field.sent == out.dtype.str:
        return out[:, :, field.word : field.word + max(field.items, 1)]
    at = field.word * out.itemsize
    return out.view(np.uint8)[:, :, at : at + field.nbytes].view(field.sent)


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return zeros that begin at a multiple of 64 bytes."""
    size = math.prod(shape)
    memory = np.zeros(size + ALIGNMENT, dtype=dtype)  # of which numpy aligns the items
    start = -memory.__array_interface__["data"][0] % ALIGNMENT // dtype.itemsize
    return memory[start : start + size].reshape(shape)


def split(packed: jax.Array, layout: Layout) -> Arrays:
    """Return the keys that an array on the devices holds, [rows, words] or, cut, [rows, parts, words]; for use in a jitted function."""
    return {field.key: _items(packed, field, np.dtype(layout.word)) for field in layout.fields}


def _items(packed: jax.Array, field: Field, word: np.dtype[Any]) -> jax.Array:
    num_words = -(-field.nbytes // word.itemsize)
    sent = _bits(packed[..., field.word : field.word + num_words], np.dtype(field.sent))
    found = sent[..., : field.items] if field.items else sent[..., 0]
    whole = found.reshape(len(found), -1) if field.key == "loss_mask" else found
    return whole.astype(field.dtype)


def _bits(words: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Return the same bits as numbers of another dtype along the last axis, the lowest first.

    By shifts: bitcast_convert_type between widths is an operation that XLA's older partitioner gathers its argument for.
    """
    if dtype == np.bool_:
        return _bits(words, np.dtype(np.uint8)) != 0
    unsigned, width = np.dtype(f"u{dtype.itemsize}"), 8 * min(dtype.itemsize, words.dtype.itemsize)
    ratio = max(dtype.itemsize, words.dtype.itemsize) * 8 // width
    if dtype.itemsize > words.dtype.itemsize:
        each = words.reshape(*words.shape[:-1], -1, ratio).astype(unsigned)
        words = sum((each[..., i] << (width * i) for i in range(1, ratio)), each[..., 0])
    elif ratio > 1:
        each = jnp.stack([words >> (width * i) for i in range(ratio)], axis=-1).astype(unsigned)
        words = each.reshape(*words.shape[:-1], -1)
    return jax.lax.bitcast_convert_type(words, jnp.dtype(dtype))
