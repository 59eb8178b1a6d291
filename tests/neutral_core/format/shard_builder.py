"""Shards made byte by byte from FORMAT.md's rules, without the code under test, so that each rule can be broken on its own."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

Tree = dict[str, Any]
ArrayBytes = tuple[str, str, list[int], bytes]  # name, dtype code, shape, data

DOCUMENTS = [[1, 2, 299], [], [7, 0]]


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def metadata(**changes: Any) -> Tree:
    data = {
        "fields": {
            "document.score": {"dtype": "float32", "shape": []},
            "ragged.span": {"dtype": "int32", "shape": [2]},
            "token.mask": {"dtype": "bool", "shape": []},
        },
        "format_version": 1,
        "num_documents": 3,
        "num_tokens": 5,
        "provenance": {"source": "paper"},
        "tokenizer": {
            "kind": "byte", "name": "bytes", "sha256": "ab" * 32, "vocab_size": 300, "eos_id": 256, "bos_id": None, "pad_id": None,
        },
        "vocab_size": 300,
    }  # fmt: skip
    return {**data, **changes}


def arrays(**changes: tuple[str, list[int], bytes]) -> list[ArrayBytes]:
    """The small shard's arrays in file order; a change replaces one by its name with '.' written '__'."""
    own: dict[str, tuple[str, list[int], bytes]] = {
        "tokens": ("U16", [5], struct.pack("<5H", 1, 2, 299, 7, 0)),
        "document_offsets": ("I64", [4], struct.pack("<4q", 0, 3, 3, 5)),
        "document__score": ("F32", [3], struct.pack("<3f", 0.5, -1.0, 2.0)),
        "ragged__span": ("I32", [2, 2], struct.pack("<4i", 0, 1, 2, 3)),
        "ragged__span__offsets": ("I64", [4], struct.pack("<4q", 0, 1, 1, 2)),
        "token__mask": ("BOOL", [5], bytes([1, 0, 1, 1, 0])),
    }
    own.update(changes)
    return [(name.replace("__", "."), *value) for name, value in own.items()]


def build(
    own: list[ArrayBytes] | None = None,
    meta: Tree | None = None,
    *,
    edit_tree: Callable[[Tree], Any] | None = None,
    edit_text: Callable[[bytes], bytes] | None = None,
    edit_data: Callable[[bytearray], Any] | None = None,
    edit_sums: Callable[[list[int]], Any] | None = None,
    pages: int | None = None,
) -> bytes:
    """A whole file. ``edit_data`` acts before the checksums are taken, ``edit_sums`` after; the header's own sum is always right unless
    ``edit_sums`` changes it."""
    own = arrays() if own is None else own
    data, tree = bytearray(), {}
    for index, (name, code, shape, content) in enumerate(own):
        _pad(index, data, tree)
        tree[name] = {"dtype": code, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    _pad(len(own), data, tree)
    if edit_data is not None:
        edit_data(data)
    sums = [0] + [zlib.crc32(data[at : at + 2**20]) for at in range(0, len(data), 2**20)]
    tree["checksums"] = {"dtype": "U32", "shape": [len(sums)], "data_offsets": [len(data), len(data) + 4 * len(sums)]}
    tree["__metadata__"] = {"millstream": canonical(metadata() if meta is None else meta).decode()}
    longest = widest([*(name for name, *_ in own), "checksums"], tree, metadata() if meta is None else meta)
    size = 4096 * -(-(8 + len(longest)) // 4096) if pages is None else 4096 * pages
    if edit_tree is not None:
        edit_tree(tree)
    text = canonical(tree)
    if edit_text is not None:
        text = edit_text(text)
    header = struct.pack("<Q", size - 8) + text.ljust(size - 8)
    sums[0] = zlib.crc32(header)
    if edit_sums is not None:
        edit_sums(sums)
    return header + bytes(data) + struct.pack(f"<{len(sums)}I", *sums)


def widest(names: list[str], tree: Tree, meta: Tree) -> bytes:
    """The header with every number of 20 digits and every padding that could occur."""
    wide: Tree = {"__metadata__": {"millstream": canonical(_wide(meta)).decode()}}
    for index, name in enumerate(names):
        wide[name] = _wide(tree[name])
        if index:
            wide[f"padding.{index}"] = _wide({"data_offsets": [0, 0], "dtype": "U8", "shape": [0]})
    return canonical(wide)


def resum(raw: bytes, size: int, sum_at: int) -> bytes:
    """The file with the header's checksum taken again; ``size`` of the header, ``sum_at`` the byte where that sum stands."""
    return raw[:sum_at] + struct.pack("<I", zlib.crc32(raw[:size])) + raw[sum_at + 4 :]


def _pad(index: int, data: bytearray, tree: Tree) -> None:
    gap = -len(data) % 64
    if gap:
        tree[f"padding.{index}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [len(data), len(data) + gap]}
        data += bytes(gap)


def _wide(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _wide(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_wide(item) for item in value]
    return 10**19 if type(value) is int else value
