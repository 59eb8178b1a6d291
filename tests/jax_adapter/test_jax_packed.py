"""What travels: every key comes out of the packed array as it went in, whatever the widths of words and items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax_adapter.packed import aligned_zeros, layout_of, pack, split  # noqa: E402 - after importorskip
from jax_adapter.rows import Columns  # noqa: E402 - after importorskip

WHOLE = {"cut": False, "num_parts": 1, "parts": (0,), "starts": (0,), "tokens": 9, "targets": 8, "stretches": ((0, 9),)}
# parts 0, 1 and 3 of four: 0 and 1 share a token
CUT = {
    "cut": True, "num_parts": 4, "parts": (0, 1, 3), "starts": (0, 4, 9), "tokens": 5, "targets": 4,
    "stretches": ((0, 9), (12, 17)),
}  # fmt: skip


def a_batch(word: str, columns: Columns, row_length: int) -> dict[str, np.ndarray]:
    random, info = np.random.default_rng(3), np.iinfo(word)
    tokens = random.integers(0, info.max, (6, 14 if columns.cut else 9), dtype=word, endpoint=True)
    tokens[0, :2] = 0, info.max
    counts = random.integers(0, row_length, tokens.shape, dtype=np.int32, endpoint=True)
    counts[0, :2] = row_length, 0
    return {
        "tokens": tokens,
        "segment_ids": counts,
        "positions": counts[::-1],
        "loss_mask": random.integers(0, 2, (6, len(columns.parts) * columns.targets)).astype(bool),
        "source": np.array([-1, 0, 1, 2**31 - 1, -(2**31), 77], dtype=np.int32),
        "token.score": random.normal(size=tokens.shape).astype(np.float32),
        "token.half": random.normal(size=tokens.shape).astype(np.float16),
        "sample": np.arange(2**40, 2**40 + 6),
    }


@pytest.mark.parametrize("kind", [WHOLE, CUT])
@pytest.mark.parametrize("word", ["u1", "u2", "u4"])
@pytest.mark.parametrize("row_length", [200, 60000, 70000])
def test_every_key_comes_out_as_it_went_in(kind: dict[str, Any], word: str, row_length: int) -> None:
    columns = Columns(**kind)
    batch = a_batch(word, columns, row_length)
    layout = layout_of(batch, columns, row_length)
    held = pack(batch, layout, columns)
    assert held.dtype == word
    assert held.shape[:2] == (len(columns.parts), 6)
    assert held.strides[1] % 64 == 0
    packed = held.swapaxes(0, 1) if columns.cut else held[0]
    found = jax.jit(split, static_argnums=1)(packed, layout)
    assert set(found) == set(batch) - {"sample"} - ({"source"} if columns.cut else set())
    for key, rows in found.items():
        expected = batch[key]
        if columns.cut and key != "loss_mask":
            expected = np.stack([expected[:, start : start + 5] for start in columns.starts], axis=1)
        assert rows.dtype == expected.dtype
        assert np.array_equal(np.asarray(rows), expected)


def test_ids_and_positions_travel_as_narrow_as_the_rows_length_allows_and_gaps_are_zero() -> None:
    columns = Columns(**WHOLE)
    for row_length, sent in ((255, "|u1"), (256, "<u2"), (65535, "<u2"), (65536, "<u4")):
        batch = a_batch("u2", columns, 9)
        layout = layout_of(batch, columns, row_length)
        assert {field.sent for field in layout.fields if field.key in ("segment_ids", "positions")} == {sent}
        ends = max(field.word + -(-field.nbytes // 2) for field in layout.fields)
        assert not pack(batch, layout, columns)[:, :, ends:].any()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4"])
def test_the_memory_begins_at_a_multiple_of_64_bytes(dtype: str) -> None:
    for rows in range(1, 200):
        memory = aligned_zeros((1, rows, 3), np.dtype(dtype))
        assert memory.ctypes.data % 64 == 0
        assert memory.shape == (1, rows, 3)
        assert not memory.any()
