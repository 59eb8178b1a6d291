"""Writers of foreign layouts, by their byte layouts alone: nothing here is read from the code under test."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

import neutral_core as nc
from prep.convert import Options, convert

DOCUMENTS = [[7, 1, 300], [2], [65535, 3, 3, 3, 9], [4, 5]]


def run(source: Path, destination: Path, **changes: Any) -> dict[str, Any]:
    return convert(Options(source=str(source), destination=destination, **changes))


def documents(folder: Path) -> list[list[int]]:
    corpus = nc.open_corpus(folder)
    return [corpus.document(index).tolist() for index in range(corpus.num_documents)]


def masks(folder: Path) -> list[list[bool]]:
    corpus = nc.open_corpus(folder)
    return [corpus.field("token.loss_mask", index).tolist() for index in range(corpus.num_documents)]


def ndarray(ids: Sequence[int], dtype: str) -> bytes:
    """An MDS value of the encoding ndarray:<dtype>: one dimension, its size in the fewest bytes."""
    width = next(s for s in range(4) if len(ids) < 2 ** (8 * 2**s))
    return bytes([4 | width]) + len(ids).to_bytes(2**width, "little") + np.array(ids, dtype=dtype).tobytes()


def mds_shard(columns: Mapping[str, tuple[str, int | None]], samples: Sequence[Mapping[str, bytes]]) -> bytes:
    """u32 n, u32 offset[n + 1], configuration, samples; columns: name → (encoding, fixed size or None), sorted by name."""
    names = sorted(columns)
    configuration = {
        "column_encodings": [columns[name][0] for name in names],
        "column_names": names,
        "column_sizes": [columns[name][1] for name in names],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 67108864,
        "version": 2,
    }
    text = json.dumps(configuration, sort_keys=True).encode()
    bodies = []
    for sample in samples:
        free = [name for name in names if columns[name][1] is None]
        head = b"".join(struct.pack("<I", len(sample[name])) for name in free)
        bodies.append(head + b"".join(sample[name] for name in names))
    first = 4 + 4 * (len(samples) + 1) + len(text)
    offsets = [first + sum(map(len, bodies[:n])) for n in range(len(bodies) + 1)]
    return struct.pack(f"<I{len(offsets)}I", len(samples), *offsets) + text + b"".join(bodies)


def write_mds(
    folder: Path,
    columns: Mapping[str, tuple[str, int | None]],
    shards: Sequence[Sequence[Mapping[str, bytes]]],
    *,
    compression: str | None = None,
    compress: Callable[[bytes], bytes] = bytes,
    hashes: Sequence[str] = (),
) -> Path:
    folder.mkdir(parents=True)
    names = sorted(columns)
    entries = []
    for number, samples in enumerate(shards):
        raw = mds_shard(columns, samples)
        packed = None if compression is None else compress(raw)
        name = f"shard.{number:05}.mds"
        extension = "" if compression is None else "." + compression.partition(":")[0]
        (folder / (name + extension)).write_bytes(raw if packed is None else packed)

        def described(data: bytes, basename: str) -> dict[str, Any]:
            sums = {algorithm: hashlib.new(algorithm, data).hexdigest() for algorithm in hashes}
            return {"basename": basename, "bytes": len(data), "hashes": sums}

        entries.append(
            {
                "column_encodings": [columns[column][0] for column in names],
                "column_names": names,
                "column_sizes": [columns[column][1] for column in names],
                "compression": compression,
                "format": "mds",
                "hashes": list(hashes),
                "raw_data": described(raw, name),
                "samples": len(samples),
                "size_limit": 67108864,
                "version": 2,
                "zip_data": None if packed is None else described(packed, name + extension),
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}, sort_keys=True))
    return folder


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def chunk(items: Sequence[bytes]) -> bytes:
    """A chunk of LitData: u32 N, u32 offset[N + 1], items."""
    first = 4 + 4 * (len(items) + 1)
    offsets = [first + sum(map(len, items[:n])) for n in range(len(items) + 1)]
    return struct.pack(f"<I{len(offsets)}I", len(items), *offsets) + b"".join(items)


def framed_chunk(items: Sequence[bytes], rows: int) -> bytes:
    """A chunk of LitData compressed some rows at a time: magic, directory, zstd frames."""
    groups = [items[at : at + rows] for at in range(0, len(items), rows)]
    frames = [zstandard.ZstdCompressor().compress(b"".join(group)) for group in groups]
    offsets = [sum(map(len, items[:n])) for n in range(len(items) + 1)]
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(items), rows, len(groups))
    head += struct.pack(f"<{len(offsets)}I", *offsets)
    at = len(head) + 24 * len(groups)
    table = b""
    for number, (group, frame) in enumerate(zip(groups, frames, strict=True)):
        raw = sum(map(len, group))
        table += struct.pack("<IIQII", number * rows, len(group), at, len(frame), raw)
        at += len(frame)
    return head + table + b"".join(frames)


def tree_item(*leaves: bytes) -> bytes:
    return struct.pack(f"<{len(leaves)}I", *map(len, leaves)) + b"".join(leaves)


def write_litdata(folder: Path, chunks: Sequence[tuple[str, bytes, int, int, int | None]], **config: Any) -> Path:
    """chunks: (file name, its bytes, bytes before compression, items, tokens or None)."""
    folder.mkdir(parents=True)
    entries = []
    for name, data, raw_bytes, items, dim in chunks:
        (folder / name).write_bytes(data)
        entries.append({"chunk_bytes": raw_bytes, "chunk_size": items, "dim": dim, "filename": name})
    leaf = '{"type": null, "context": null, "children_spec": []}'
    base = {"chunk_bytes": 64, "chunk_size": None, "data_spec": f"[1, {leaf}]", "encryption": None}
    content = {"chunks": entries, "config": {**base, **config}, "updated_at": "1"}
    (folder / "index.json").write_text(json.dumps(content, sort_keys=True))
    return folder


def tree_spec(*names: str) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
    return json.dumps([1, tree])


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, reflected: polynomial 0x1EDC6F41."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


def masked(remainder: int) -> int:
    return ((remainder >> 15 | remainder << 17) + 0xA282EAD8) % 2**32


def tfrecord(records: Sequence[bytes]) -> bytes:
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, struct.pack("<I", masked(crc32c(length))), record, struct.pack("<I", masked(crc32c(record)))]
    return b"".join(parts)


def varint(value: int) -> bytes:
    value %= 2**64
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(content)) + content


def packed(values: Sequence[int]) -> bytes:
    """Feature of an Int64List: all numbers in one field 1; an empty list has none."""
    return field(3, field(1, b"".join(map(varint, values))) if values else b"")


def unpacked(values: Sequence[int]) -> bytes:
    """Feature of an Int64List: each number in a field 1 of its own."""
    return field(3, b"".join(b"\x08" + varint(value) for value in values))


def bytes_feature(content: bytes) -> bytes:
    return field(1, field(1, content))


def example(**features: bytes) -> bytes:
    entries = (field(1, field(1, name.encode()) + field(2, content)) for name, content in features.items())
    return field(1, b"".join(entries))
