"""LitData's chunks that are not read in place: compressed ones, and trees."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from foreign_files import (
    DOCUMENTS,
    change_json,
    chunk,
    documents,
    framed_chunk,
    run,
    tree_item,
    tree_spec,
    write_litdata,
)

import neutral_core as nc

U16 = "no_header_numpy:5"


def items(rows: list[list[int]], dtype: str = "<u2") -> list[bytes]:
    return [np.array(ids, dtype=dtype).tobytes() for ids in rows]


def compressed(folder: Path, data: bytes | None = None, **changes: Any) -> Path:
    """Two chunks of TokensLoader's, each one zstd frame: three documents and one."""
    chunks = []
    for number, rows in enumerate((DOCUMENTS[:3], DOCUMENTS[3:])):
        raw = chunk(items(rows))
        frame = zstandard.ZstdCompressor(4).compress(raw if data is None else data)
        chunks.append((f"chunk-0-{number}.zstd.bin", frame, len(raw), len(rows), sum(map(len, rows))))
    config = {"compression": "zstd", "compression_level": "chunk", "data_format": [U16], "item_loader": "TokensLoader"}
    return write_litdata(folder, chunks, **{**config, **changes})


def trees(folder: Path, **changes: Any) -> Path:
    """A chunk of PyTreeLoader's, plain: {"tokens": int64 tensor, "id": int, "s": str}."""
    made = [tree_item(ids, struct.pack("<q", n), b"s" * n) for n, ids in enumerate(items(DOCUMENTS, "<i8"))]
    raw = chunk(made)
    config = {
        "compression": None,
        "data_format": ["no_header_tensor:18", "int", "str"],
        "data_spec": tree_spec("tokens", "id", "s"),
        "item_loader": "PyTreeLoader",
    }
    return write_litdata(folder, [("chunk-0-0.bin", raw, len(raw), len(made), None)], **{**config, **changes})


def test_chunks_that_are_one_frame_each_become_their_items(tmp_path: Path) -> None:
    report = run(compressed(tmp_path / "lit"), tmp_path / "out")
    assert documents(tmp_path / "out") == DOCUMENTS
    assert nc.open_corpus(tmp_path / "out").dtype == np.uint16
    assert report["verified"]


def test_the_hexdump_of_the_real_writer_compressed_yields_its_documents(tmp_path: Path) -> None:
    raw = bytes.fromhex(
        "04000000 18000000 1e000000 28000000 2a000000 32000000 23a6687cd463 b134 1f3c 0008 b20e 3a03 3b22 d79e d67e 45b2 5d62"
    )
    frame = zstandard.ZstdCompressor().compress(raw)
    config = {"compression": "zstd:7", "data_format": [U16], "item_loader": "TokensLoader"}
    write_litdata(tmp_path / "lit", [("chunk-0-0.zstd:7.bin", frame, 50, 4, 13)], **config)
    run(tmp_path / "lit", tmp_path / "out")
    expected = [[42531, 31848, 25556], [13489, 15391, 2048, 3762, 826], [8763], [40663, 32470, 45637, 25181]]
    assert documents(tmp_path / "out") == expected


def test_bare_tokens_that_are_not_compressed_are_read_in_place(tmp_path: Path) -> None:
    raw = chunk(items(DOCUMENTS))
    config = {"compression": None, "data_format": [U16], "item_loader": "TokensLoader"}
    write_litdata(tmp_path / "lit", [("chunk-0-0.bin", raw, len(raw), 4, 11)], **config)
    assert nc.open_corpus(tmp_path / "lit").num_documents == 4
    for layout in (None, "litdata"):
        run(tmp_path / "lit", tmp_path / str(layout), layout=layout)
        assert documents(tmp_path / str(layout)) == DOCUMENTS
    run(compressed(tmp_path / "other"), tmp_path / "out", layout="litdata")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_trees_have_columns(tmp_path: Path) -> None:
    source = trees(tmp_path / "lit")
    with pytest.raises(ValueError, match=r"give --boundaries index .*The first 4 rows have 1 to 5 ids"):
        run(source, tmp_path / "out")
    report = run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS
    assert "columns left out: id, s." in report["notes"]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 100])
def test_chunks_compressed_some_items_at_a_time_become_their_items(tmp_path: Path, rows: int) -> None:
    made = [tree_item(ids) for ids in items(DOCUMENTS, "<i8")]
    config = {"compression": "zstd", "compression_level": "batch", "data_format": ["no_header_tensor:18"]}
    chunks = [("chunk-0-0.bin", framed_chunk(made, rows), len(chunk(made)), 4, None)]
    write_litdata(tmp_path / "lit", chunks, data_spec=tree_spec("tokens"), item_loader="PyTreeLoader", **config)
    run(tmp_path / "lit", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_items_that_are_one_frame_each_are_read(tmp_path: Path) -> None:
    made = [zstandard.ZstdCompressor().compress(tree_item(ids)) for ids in items(DOCUMENTS, "<i8")]
    raw = chunk(made)
    config = {"compression": "zstd", "compression_level": "sample", "data_format": ["no_header_tensor:18"]}
    chunks = [("chunk-0-0.bin", raw, len(raw), 4, None)]
    write_litdata(tmp_path / "lit", chunks, data_spec=tree_spec("tokens"), item_loader="PyTreeLoader", **config)
    run(tmp_path / "lit", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_bytes_in_trees_are_ids_of_the_width_that_is_told(tmp_path: Path) -> None:
    made = [tree_item(ids) for ids in items(DOCUMENTS, "<i4")]
    raw = chunk(made)
    config = {"compression": None, "data_format": ["bytes"], "data_spec": tree_spec("ids")}
    write_litdata(tmp_path / "lit", [("c.bin", raw, len(raw), 4, None)], item_loader="PyTreeLoader", **config)
    with pytest.raises(ValueError, match="nothing says how wide its ids are; give --dtype"):
        run(tmp_path / "lit", tmp_path / "out", boundaries="index")
    run(tmp_path / "lit", tmp_path / "out", boundaries="index", dtype="int32")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_pickled_leaves_are_passed_over_unread(tmp_path: Path) -> None:
    source = trees(tmp_path / "lit", data_format=["no_header_tensor:18", "pickle", "str"])
    run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS
    with pytest.raises(ValueError, match="'id' holds pickled objects, which are never unpickled"):
        run(source, tmp_path / "other", boundaries="index", column="id")


def test_a_size_that_counts_the_items_alone_is_taken_too(tmp_path: Path) -> None:
    source = trees(tmp_path / "lit")
    change_json(
        source / "index.json", lambda data: data["chunks"][0].update(chunk_bytes=data["chunks"][0]["chunk_bytes"] - 24)
    )
    run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compression": "lz4"}, "config.compression is 'lz4', expected zstd"),
        ({"compression_level": "row"}, "config.compression_level is 'row', expected chunk, batch or sample"),
        ({"encryption": {"algorithm": "fernet"}}, "encrypted chunks are not read"),
        ({"ipc_compression": "zstd"}, "config.ipc_compression is 'zstd', expected null"),
        (
            {"item_loader": "ParquetLoader"},
            "config.item_loader is 'ParquetLoader', expected TokensLoader or PyTreeLoader",
        ),
        ({"data_format": ["no_header_numpy:9"]}, "expected one integer array of TokensLoader's"),
        ({"data_format": []}, "config.data_format is .*, expected a list of texts"),
        ({"item_loader": "PyTreeLoader", "data_spec": "[1"}, "config.data_spec is .*, expected the names of 1 leaves"),
        ({"item_loader": "PyTreeLoader", "data_spec": "[" * 10**5}, "config.data_spec is"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        run(compressed(tmp_path / "lit", **changes), tmp_path / "out", boundaries="index")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(filename="../index.json"), "expected the name of a file inside"),
        (lambda c: c.update(filename="chunk-0-0.zstd.bin"), "a second time"),
        (lambda c: c.update(filename="chunk-0-9.zstd.bin"), "index.json names it, but it is not there"),
        (lambda c: c.update(chunk_size=2), r"has 1 items in \d+ bytes, but index.json says 2"),
        (lambda c: c.update(chunk_size=2**40), "has 1 items in"),
        (lambda c: c.update(chunk_size=-1), r"chunk_size is -1, expected an integer"),
        (lambda c: c.update(dim=3), "has 2 tokens, but index.json says 3"),
        (lambda c: c.update(chunk_bytes=15), "has 16 bytes, but index.json says 15: the copy was cut short"),
        (lambda c: c.update(chunk_bytes=1), "more than the 13 bytes that were declared"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    source = compressed(tmp_path / "lit")
    change_json(source / "index.json", lambda data: change(data["chunks"][1]))
    with pytest.raises(nc.FormatError, match=message):
        run(source, tmp_path / "out")


def test_more_than_was_declared_does_not_come_out(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match=r"more than the \d+ bytes that were declared"):
        run(compressed(tmp_path / "lit", data=bytes(1 << 28)), tmp_path / "out")


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 3, "byte 0: the chunk has 3 items"),
        (4, 20, "byte 4: the offsets of its items run from 20 to"),
        (8, 10**6, "byte 4: the offsets of its items"),
        (20, 9, "byte 4: the offsets of its items"),
        (24, 25, "item 0: its leaves do not fill its 44 bytes"),
        (24, 2**32 - 1, "item 0: its leaves do not fill its 44 bytes"),
    ],
)
def test_a_chunk_whose_numbers_cannot_be_is_refused(tmp_path: Path, at: int, value: int, message: str) -> None:
    source = trees(tmp_path / "lit")
    data = bytearray((source / "chunk-0-0.bin").read_bytes())
    struct.pack_into("<I", data, at, value)
    (source / "chunk-0-0.bin").write_bytes(data)
    with pytest.raises(nc.FormatError, match=message):
        run(source, tmp_path / "out", boundaries="index")


def test_an_item_that_ends_inside_an_id_is_refused(tmp_path: Path) -> None:
    raw = chunk([tree_item(bytes(8)), tree_item(bytes(9))])
    config = {"compression": None, "data_format": ["no_header_tensor:18"], "data_spec": tree_spec("ids")}
    write_litdata(tmp_path / "lit", [("c.bin", raw, len(raw), 2, None)], item_loader="PyTreeLoader", **config)
    with pytest.raises(nc.FormatError, match="item 1: ids has 9 bytes, no multiple of 8, the size of int64"):
        run(tmp_path / "lit", tmp_path / "out", boundaries="index")


@pytest.mark.parametrize("at", range(0, 24 + 20 + 48, 4))
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1])
def test_a_directory_of_frames_with_another_number_is_refused(tmp_path: Path, at: int, value: int) -> None:
    made = [tree_item(ids) for ids in items(DOCUMENTS, "<i8")]
    data = bytearray(framed_chunk(made, 2))
    before = bytes(data)
    struct.pack_into("<I", data, at, value)
    config = {"compression": "zstd", "compression_level": "batch", "data_format": ["no_header_tensor:18"]}
    chunks = [("c.bin", bytes(data), len(chunk(made)), 4, None)]
    write_litdata(tmp_path / "lit", chunks, data_spec=tree_spec("tokens"), item_loader="PyTreeLoader", **config)
    unread = at in (8, 16) or bytes(data) == before  # version and flags, rows a frame: see below
    if at == 8 and value & 0xFFFF != 1:
        unread = False
    if unread:  # flags, and how many rows a frame has at most, say nothing that the frames' own entries do not
        run(tmp_path / "lit", tmp_path / "out", boundaries="index")
        assert documents(tmp_path / "out") == DOCUMENTS
    else:
        with pytest.raises(nc.FormatError, match=r"c\.bin"):
            run(tmp_path / "lit", tmp_path / "out", boundaries="index")


def test_the_real_writers_trees_hold_the_documents_of_their_readme(tmp_path: Path, fixtures: Path) -> None:
    run(fixtures / "streaming/lit_pytree", tmp_path / "out", boundaries="index")
    expected = [[42531, 31848, 25556], [13489, 15391, 2048, 3762, 826], [8763], [40663, 32470, 45637, 25181]]
    assert documents(tmp_path / "out") == expected
