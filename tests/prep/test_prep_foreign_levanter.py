"""Levanter's caches, written here by tensorstore as Levanter writes them: "infinite" zarr3 arrays, the number of rows in offsets[0], the ledger last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import DOCUMENTS, change_json, documents, masks, run

import neutral_core as nc

ts = pytest.importorskip("tensorstore")

SIZE = 2**54


CRC32C = {"name": "crc32c"}


def create(
    path: Path, dtype: str, values: Sequence[int], *, outer: int, inner: int, more: Sequence[dict[str, str]] = ()
) -> None:
    """An array of 2^54 whose first items are the values: sharded, blosc inside, then ``more`` codecs; crc32c over the index in any case."""
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}},
        *more,
    ]
    sharding = {
        "chunk_shape": [inner],
        "codecs": codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    metadata = {
        "shape": [SIZE],
        "data_type": dtype,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [outer]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": metadata}
    array = ts.open(spec, create=True).result()
    if len(values):
        array[: len(values)].write(np.array(values, dtype=dtype)).result()


def write_cache(
    folder: Path,
    rows: Sequence[Sequence[int]],
    dtype: str = "int32",
    *,
    leaf: str = "input_ids",
    outer: int = 64,
    inner: int = 8,
    more: Sequence[dict[str, str]] = (),
) -> Path:
    flat = [n for row in rows for n in row]
    create(
        folder / leaf / "offsets",
        "int64",
        [len(rows), *np.cumsum([len(row) for row in rows])],
        outer=outer,
        inner=inner,
        more=more,
    )
    create(folder / leaf / "data", dtype, flat, outer=outer, inner=inner, more=more)
    ledger = {
        "total_num_rows": len(rows),
        "shard_rows": {"a": len(rows)},
        "is_finished": True,
        "finished_shards": ["a"],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": {"tokenizer": "gpt2", "vocab_size": 50257}},
    }
    (folder / "shard_ledger.json").write_text(json.dumps(ledger))
    return folder


@pytest.mark.parametrize("dtype", ["int32", "uint16", "int64", "uint32"])
def test_the_rows_of_a_cache_are_documents(tmp_path: Path, dtype: str) -> None:
    rows = [*DOCUMENTS, [], [1]]
    report = run(write_cache(tmp_path / "cache", rows, dtype), tmp_path / "out")
    assert documents(tmp_path / "out") == rows
    assert any('of its tokenizer: {"tokenizer": "gpt2", "vocab_size": 50257}' in note for note in report["notes"])


def test_arrays_with_a_crc32c_codec_are_read_and_a_flipped_byte_is_found(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache", DOCUMENTS, more=[CRC32C])
    run(folder, tmp_path / "out")
    assert documents(tmp_path / "out") == DOCUMENTS
    chunk = folder / "input_ids/data/c/0"
    raw = bytearray(chunk.read_bytes())
    raw[20] ^= 1  # behind the 16 bytes of blosc's header: a value
    chunk.write_bytes(raw)
    with pytest.raises(nc.FormatError, match=r"input_ids/data: items .*data/c/0.*Digest mismatch"):
        run(folder, tmp_path / "out2")


def test_a_cache_of_no_rows_has_no_chunks_as_levanter_writes_it(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache", [])
    shutil.rmtree(folder / "input_ids/offsets/c", ignore_errors=True)
    run(folder, tmp_path / "out", vocab_size=9)
    assert documents(tmp_path / "out") == []


def test_the_masks_of_levanters_chats_are_masks(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache", [[5, 6, 0], [7]])
    write_cache(folder, [[0, 1, 1], [0]], leaf="assistant_masks")
    report = run(folder, tmp_path / "out")
    assert masks(tmp_path / "out") == [[False, True, True], [False]]
    assert "assistant_masks became token.loss_mask." in report["notes"]
    write_cache(folder, [[1, 1, 1], [0]], leaf="loss_mask")
    with pytest.raises(
        ValueError, match="it has the columns loss_mask and assistant_masks: give --ignore for all but one"
    ):
        run(folder, tmp_path / "out2")


def test_a_chunk_that_levanter_did_not_store_is_refused_with_what_it_may_be(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache", [[1] * 8, [0] * 8, [1] * 8])
    with pytest.raises(nc.FormatError, match=r"lost; or it held zeros alone"):
        run(folder, tmp_path / "out")


def test_rows_may_be_joined_and_cut_all_the_same(tmp_path: Path) -> None:
    run(write_cache(tmp_path / "cache", DOCUMENTS), tmp_path / "out", boundaries="eos:3")
    assert documents(tmp_path / "out") == [[7, 1, 300, 2, 65535, 3], [3], [3], [9, 4, 5]]


@pytest.mark.parametrize("size", [1, 3, 20, 1000])
def test_pieces_and_batches_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    from prep.foreign import levanter

    for name in ("_PIECE_TOKENS", "_BATCH_TOKENS", "_BATCH_ROWS"):
        monkeypatch.setattr(levanter, name, size)
    rows = [list(range(n, n + n % 7)) for n in range(40)]
    run(write_cache(tmp_path / "cache", rows, outer=16, inner=4), tmp_path / "out")
    assert documents(tmp_path / "out") == rows


def test_a_second_leaf_is_a_mask_and_others_are_left_out(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache", [[5, 6, 0], [7]])
    write_cache(folder, [[1, 1, 0], [1]], leaf="attention_mask")
    write_cache(folder, [[0, 1, 1], [0]], "uint8", leaf="loss_mask")
    create(folder / "scores" / "offsets", "int64", [2, 3, 4], outer=64, inner=8)
    create(folder / "scores" / "data", "float32", [0, 0, 0, 0], outer=64, inner=8)
    report = run(folder, tmp_path / "out")
    assert documents(tmp_path / "out") == [[5, 6], [7]]
    assert masks(tmp_path / "out") == [[False, True], [False]]
    assert "columns left out: scores." in report["notes"]


def test_rows_of_more_dimensions_are_not_read(tmp_path: Path) -> None:
    folder = write_cache(tmp_path / "cache", DOCUMENTS)
    create(folder / "input_ids" / "shapes", "int64", [1], outer=64, inner=8)
    with pytest.raises(ValueError, match=r"input_ids \(rows of more than one dimension\)"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize(("finished", "shown"), [(False, "False"), (None, "None"), ("yes", "'yes'")])
def test_a_cache_that_is_not_finished_is_refused(tmp_path: Path, finished: Any, shown: str) -> None:
    folder = write_cache(tmp_path / "cache", DOCUMENTS)
    change_json(folder / "shard_ledger.json", lambda data: data.update(is_finished=finished))
    with pytest.raises(nc.FormatError, match=f"is_finished is {shown}, expected true"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize("rows", [0, 3, 5, 2**40])
def test_a_ledger_of_other_rows_is_refused(tmp_path: Path, rows: int) -> None:
    folder = write_cache(tmp_path / "cache", DOCUMENTS)
    change_json(folder / "shard_ledger.json", lambda data: data.update(total_num_rows=rows))
    with pytest.raises(nc.FormatError, match=f"it has 4 rows, but shard_ledger.json says {rows:,}"):
        run(folder, tmp_path / "out")


def test_a_missing_chunk_is_refused_and_not_read_as_zeros(tmp_path: Path) -> None:
    rows = [[n + 1] * 10 for n in range(30)]
    folder = write_cache(tmp_path / "cache", rows)
    (folder / "input_ids" / "data" / "c" / "2").unlink()
    with pytest.raises(nc.FormatError, match=r"data: items .*: the cache is damaged or was cut short"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize("end", [0, 1, -1, 2**31, 2**50, 2**62])
def test_offsets_that_cannot_be_are_refused(tmp_path: Path, end: int) -> None:
    folder = write_cache(tmp_path / "cache", DOCUMENTS)
    shutil.rmtree(folder / "input_ids" / "offsets")
    create(folder / "input_ids" / "offsets", "int64", [4, 3, end, 9, 11], outer=64, inner=8)
    with pytest.raises(nc.FormatError, match=r"ends before it begins|is damaged|are outside of"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(zarr_format=2), "expected the metadata of an array of zarr 3"),
        (lambda m: m.update(shape=[2, 2]), r"shape is \[2, 2\], expected one dimension"),
        (lambda m: m.update(data_type="int32"), "data_type is 'int32', expected int64"),
        (lambda m: m["codecs"][0]["configuration"].update(chunk_shape=[2**40]), "a chunk has 1,099,511,627,776 values"),
        (lambda m: m.update(chunk_grid=3), "a chunk has 0 values"),
    ],
)
def test_metadata_that_cannot_be_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    folder = write_cache(tmp_path / "cache", DOCUMENTS)
    change_json(folder / "input_ids" / "offsets" / "zarr.json", change)
    with pytest.raises(nc.FormatError, match=rf"zarr\.json: {message}"):
        run(folder, tmp_path / "out")


def test_a_ledger_without_leaves_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shard_ledger.json").write_text('{"is_finished": true, "total_num_rows": 1}')
    with pytest.raises(nc.FormatError, match="no folder in it holds 'offsets' and 'data'"):
        run(tmp_path, tmp_path / "out")
