"""Small files with each byte cut off and each number changed: refused, or the right ids, never wrong ones; quickly and in little memory."""

from __future__ import annotations

import gzip
import json
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import foreign_files
import numpy as np
import pytest
import zstandard
from foreign_files import (
    change_json,
    chunk,
    example,
    framed_chunk,
    ndarray,
    packed,
    tfrecord,
    tree_item,
    tree_spec,
    unpacked,
    write_litdata,
    write_mds,
)

import neutral_core as nc
from prep.foreign.columns import documents_of
from prep.foreign.found import find

ROWS = [[10, 11, 50256], [7], [8, 9]]
VALUES = [0, 1, 2**32 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 5, 2**61]
SECONDS, BYTES = 0.1, 50 << 20


def documents(path: Path) -> list[list[int]] | None:
    """Every document of a source; None where it is refused."""
    try:
        found = find(path, layout=None, dtype=None, boundaries="index", column=None, ignore=())
        if found is None:
            return None  # not recognised; the core refuses it or asks for a dtype
        rows = []
        for piece in found.foreign.pieces:
            for part in piece.read(found.choice.names):
                tokens, lengths, _, _ = documents_of(part, found.choice)
                edges = [0, *np.cumsum(lengths).tolist()]
                rows += [tokens[a:b].tolist() for a, b in zip(edges, edges[1:], strict=False)]
        return rows
    except (nc.FormatError, FileNotFoundError, ValueError):
        return None


def measured(path: Path) -> list[list[int]] | None:
    """The same, within the time of two tries on a busy machine, and the memory."""
    took = []
    for _ in range(2):
        start = time.process_time()
        tracemalloc.start()
        try:
            found = documents(path)
            assert tracemalloc.get_traced_memory()[1] < BYTES
        finally:
            tracemalloc.stop()
        took.append(time.process_time() - start)
        if took[-1] < SECONDS:
            return found
    raise AssertionError(f"{path}: it took {took} s")


def mds(folder: Path, **named: Any) -> Path:
    samples = [{"tokens": ndarray(row, "<u2")} for row in ROWS]
    return write_mds(folder, {"tokens": ("ndarray:uint16", None)}, [samples], **named)


def litdata(folder: Path, kind: str) -> Path:
    items = [np.array(row, dtype="<u2").tobytes() for row in ROWS]
    trees = [tree_item(item) for item in items]
    raw, total = chunk(items if kind == "chunk" else trees), sum(map(len, ROWS))
    data = {
        "chunk": lambda: zstandard.ZstdCompressor().compress(raw),
        "tree": lambda: raw,
        "batch": lambda: framed_chunk(trees, 2),
        "sample": lambda: chunk([zstandard.ZstdCompressor().compress(tree) for tree in trees]),
    }[kind]()
    config: dict[str, Any] = {"data_format": ["no_header_numpy:5"], "compression": None, "item_loader": "PyTreeLoader"}
    if kind != "tree":
        config |= {"compression": "zstd", "compression_level": kind}
    if kind == "chunk":
        config["item_loader"] = "TokensLoader"
    chunks = [("chunk-0-0.bin", data, len(raw), len(ROWS), total if kind == "chunk" else None)]
    return write_litdata(folder, chunks, data_spec=tree_spec("tokens"), **config)


SOURCES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "mds": (mds, "shard.00000.mds"),
    "mds zstd": (
        lambda f: mds(f, compression="zstd", compress=zstandard.ZstdCompressor().compress),
        "shard.00000.mds.zstd",
    ),
    "mds gz": (lambda f: mds(f, compression="gz", compress=gzip.compress), "shard.00000.mds.gz"),
    "litdata chunk": (lambda f: litdata(f, "chunk"), "chunk-0-0.bin"),
    "litdata tree": (lambda f: litdata(f, "tree"), "chunk-0-0.bin"),
    "litdata batch": (lambda f: litdata(f, "batch"), "chunk-0-0.bin"),
    "litdata sample": (lambda f: litdata(f, "sample"), "chunk-0-0.bin"),
}


@pytest.fixture(params=list(SOURCES))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A folder, and its file of data."""
    make, name = SOURCES[request.param]
    folder = make(tmp_path / "source")
    assert documents(folder) == ROWS
    return folder, folder / name


def agree(folder: Path, size: int) -> None:
    """Make the index agree with the size of a file that was cut."""

    def change(data: Any) -> None:
        for entry in data.get("shards", []):
            entry["zip_data" if entry["zip_data"] else "raw_data"]["bytes"] = size
        for entry in data.get("chunks", []):
            if data["config"]["compression"] is None:
                entry["chunk_bytes"] = size

    change_json(folder / "index.json", change)


@pytest.mark.parametrize("agreeing", [False, True], ids=["index says more", "index agrees"])
def test_data_cut_at_any_byte_are_refused(source: tuple[Path, Path], agreeing: bool) -> None:
    folder, path = source
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if agreeing:
            agree(folder, size)
        assert measured(folder) is None, size


def test_an_index_cut_at_any_byte_is_refused(source: tuple[Path, Path]) -> None:
    folder, _ = source
    whole = (folder / "index.json").read_bytes()
    for size in range(len(whole)):
        (folder / "index.json").write_bytes(whole[:size])
        assert measured(folder) is None, size


def test_a_number_of_the_index_that_is_changed_is_refused_or_changes_no_id(source: tuple[Path, Path]) -> None:
    folder, _ = source
    whole = json.loads((folder / "index.json").read_text())
    for place in places_of(whole):
        for value in (*VALUES, -1, None, "1", 1.0, True):
            changed = json.loads(json.dumps(whole))
            inner = changed
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            (folder / "index.json").write_text(json.dumps(changed))
            assert measured(folder) in (None, ROWS), (place, value)


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the numbers of a JSON value are."""
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_of(inner, (*path, key))
    elif type(value) is int:
        yield path


@pytest.mark.parametrize("name", ["mds", "litdata tree", "litdata sample", "litdata batch"])
def test_every_word_before_the_ids_that_is_changed_is_refused_or_changes_no_id(tmp_path: Path, name: str) -> None:
    make, file = SOURCES[name]
    folder = make(tmp_path / "source")
    path = folder / file
    whole = path.read_bytes()
    ids = np.array(ROWS[0], dtype="<u2").tobytes()
    last = whole.index(ids) if ids in whole else len(whole)
    for at in range(last - 3):
        for value in (0, 1, 2**31, 2**32 - 1):
            changed = bytearray(whole)
            struct.pack_into("<I", changed, at, value)
            path.write_bytes(changed)
            assert documents(folder) in (None, ROWS), (at, value)


def test_any_byte_of_shards_with_a_hash_that_is_changed_is_refused(tmp_path: Path) -> None:
    folder = mds(tmp_path / "source", hashes=["sha1"])
    path = folder / "shard.00000.mds"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert documents(folder) is None, at


RECORDS = [example(ids=kind(row)) for kind, row in zip((packed, unpacked, packed), ROWS, strict=True)]


def test_records_cut_at_any_byte_are_refused_but_between_two(tmp_path: Path) -> None:
    """A file of whole records is a TFRecord, however many there were: nothing in it says how many."""
    whole = tfrecord(RECORDS)
    edges = [sum(len(record) + 16 for record in RECORDS[:n]) for n in range(len(RECORDS) + 1)]
    for size in range(len(whole)):
        (tmp_path / "a").write_bytes(whole[:size])
        expected = ROWS[: edges.index(size)] if size in edges[1:] else None
        assert measured(tmp_path / "a") == expected, size


def test_compressed_records_cut_at_any_byte_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(tfrecord(RECORDS))
    for size in range(len(whole)):
        (tmp_path / "a").write_bytes(whole[:size])
        assert measured(tmp_path / "a") is None, size


@pytest.mark.parametrize("record", range(3))
def test_a_length_that_is_changed_with_its_checksum_is_refused(tmp_path: Path, record: int) -> None:
    whole = tfrecord(RECORDS)
    at = sum(len(each) + 16 for each in RECORDS[:record])
    for value in VALUES:
        length = struct.pack("<Q", value)
        head = length + struct.pack("<I", foreign_files.masked(foreign_files.crc32c(length)))
        (tmp_path / "a").write_bytes(whole[:at] + head + whole[at + 12 :])
        assert measured(tmp_path / "a") is None, value


def test_a_byte_of_an_example_that_is_changed_with_its_checksum_yields_no_other_number_of_ids(tmp_path: Path) -> None:
    """Names, tags and lengths contradict each other; an id that became another, and two ids that became one longer, cannot be noticed."""
    for at in range(len(RECORDS[0])):
        for change in (0x01, 0x02, 0x80, 0xFF):
            record = bytearray(RECORDS[0])
            record[at] ^= change
            (tmp_path / "a").write_bytes(tfrecord([example(ids=packed([1])), bytes(record)]))
            found = documents(tmp_path / "a")
            assert found is None or (len(found) == 2 and len(found[1]) <= 5), (at, change)
