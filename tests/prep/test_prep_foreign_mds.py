"""MDS: shards of MosaicML's streaming become documents, whatever encoding and compression they have."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from foreign_files import DOCUMENTS, change_json, documents, ndarray, run, write_mds

import neutral_core as nc

FREE = ("ndarray:uint16", None)


def simple(folder: Path, **named: Any) -> Path:
    """Two shards with one column: the documents of DOCUMENTS, three and one."""
    samples = [{"tokens": ndarray(ids, "<u2")} for ids in DOCUMENTS]
    return write_mds(folder, {"tokens": FREE}, [samples[:3], samples[3:]], **named)


def test_the_worked_sample_of_five_columns_yields_its_three_tokens(tmp_path: Path) -> None:
    columns = {
        "d": ("ndarray", None),
        "j": ("json", None),
        "n": ("int", 8),
        "t": ("str", None),
        "tokens": FREE,
    }
    values = {
        "d": bytes.fromhex("21080203") + struct.pack("<6i", 0, 1, 2, 3, 4, 5),
        "j": b'{"a": 1}',
        "n": struct.pack("<q", 7),
        "t": b"hi",
        "tokens": bytes.fromhex("0403010002000300"),
    }
    write_mds(tmp_path / "mds", columns, [[values]])
    shard = (tmp_path / "mds" / "shard.00000.mds").read_bytes()
    sample = (
        "1c000000 08000000 02000000 08000000 21 08 02 03 00000000 01000000 02000000 03000000 04000000 05000000"
        "7b2261223a20317d 0700000000000000 6869 04 03 0100 0200 0300"
    )
    assert shard.endswith(bytes.fromhex(sample))  # the bytes that streaming itself writes
    report = run(tmp_path / "mds", tmp_path / "out", column="tokens", boundaries="index")
    assert documents(tmp_path / "out") == [[1, 2, 3]]
    assert "columns left out: d, j, n, t." in report["notes"]
    with pytest.raises(ValueError, match=r"give --column with one of d, tokens\. There are d \(integers\), j \(JSON\)"):
        run(tmp_path / "mds", tmp_path / "other", boundaries="index")
    with pytest.raises(nc.FormatError, match=r"sample 0: d has 2 dimensions, expected one"):
        run(tmp_path / "mds", tmp_path / "other", column="d", boundaries="index")


def test_an_array_of_70000_has_a_size_of_four_bytes(tmp_path: Path) -> None:
    ids = np.arange(70_000) % 50_000
    value = ndarray(ids.tolist(), "<u2")
    assert value[:5] == bytes.fromhex("0670110100")
    write_mds(tmp_path / "mds", {"tokens": FREE}, [[{"tokens": value}, {"tokens": ndarray([1], "<u2")}]])
    run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [ids.tolist(), [1]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_arrays_of_every_integer_dtype_are_read_with_and_without_it_in_the_encoding(tmp_path: Path, dtype: str) -> None:
    code = {"uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "uint32": 32, "int32": 33, "uint64": 64, "int64": 65}
    rows = [[0, 1, 127], [5]]
    said = [{"tokens": ndarray(ids, dtype)} for ids in rows]
    unsaid = [{"tokens": bytes([code[dtype]]) + ndarray(ids, dtype)} for ids in rows]
    write_mds(tmp_path / "said", {"tokens": (f"ndarray:{dtype}", None)}, [said])
    write_mds(tmp_path / "unsaid", {"tokens": ("ndarray", None)}, [unsaid])
    run(tmp_path / "said", tmp_path / "one", boundaries="index")
    run(tmp_path / "unsaid", tmp_path / "two", boundaries="index")
    assert documents(tmp_path / "one") == documents(tmp_path / "two") == rows
    served = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint32"}[np.dtype(dtype).itemsize]
    assert nc.open_corpus(tmp_path / "one").dtype == served
    assert nc.open_corpus(tmp_path / "two").dtype == np.uint32  # nothing says how wide the next array is


def test_arrays_whose_dtypes_differ_from_sample_to_sample_are_read(tmp_path: Path) -> None:
    samples = [{"tokens": b"\x10" + ndarray([1, 60000], "<u2")}, {"tokens": b"\x41" + ndarray([70000], "<i8")}]
    write_mds(tmp_path / "mds", {"tokens": ("ndarray", None)}, [samples])
    run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[1, 60000], [70000]]


def test_arrays_of_a_fixed_shape_have_no_header(tmp_path: Path) -> None:
    rows = [[1, 2, 3, 4], [5, 6, 7, 8]]
    samples = [{"tokens": np.array(ids, dtype="<i4").tobytes()} for ids in rows]
    write_mds(tmp_path / "mds", {"tokens": ("ndarray:int32:4", 16)}, [samples])
    run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == rows


def test_bytes_hold_ids_of_the_width_that_is_told(tmp_path: Path) -> None:
    samples = [{"tokens": np.array(ids, dtype="<i8").tobytes()} for ids in [*DOCUMENTS, []]]
    write_mds(tmp_path / "mds", {"tokens": ("bytes", None)}, [samples])
    message = r"nothing says how wide its ids are; give --dtype\. The first row has 24 bytes: as uint16 its 12 ids run from 0 to 300"
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    run(tmp_path / "mds", tmp_path / "out", boundaries="index", dtype="int64")
    assert documents(tmp_path / "out") == [*DOCUMENTS, []]


def test_bytes_that_end_inside_an_id_are_refused_by_their_row(tmp_path: Path) -> None:
    write_mds(tmp_path / "mds", {"tokens": ("bytes", None)}, [[{"tokens": bytes(8)}, {"tokens": bytes(7)}]])
    with pytest.raises(nc.FormatError, match=r"row 1: tokens has 7 bytes, no multiple of 4, the size of int32"):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index", dtype="int32")


def test_lists_of_json_are_read_where_they_are_named(tmp_path: Path) -> None:
    samples = [{"tokens": json.dumps(ids).encode()} for ids in [*DOCUMENTS, []]]
    write_mds(tmp_path / "mds", {"tokens": ("json", None)}, [samples])
    with pytest.raises(ValueError, match=r"no column holds a list of integers in each row; there are tokens \(JSON\)"):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    run(tmp_path / "mds", tmp_path / "out", boundaries="index", column="tokens")
    assert documents(tmp_path / "out") == [*DOCUMENTS, []]


@pytest.mark.parametrize("text", ["{}", "[1.5]", "[true]", '["1"]', "[1", "[18446744073709551616]", "[" * 10_000])
def test_json_that_is_no_list_of_integers_is_refused_by_its_sample(tmp_path: Path, text: str) -> None:
    write_mds(tmp_path / "mds", {"tokens": ("json", None)}, [[{"tokens": b"[1]"}, {"tokens": text.encode()}]])
    with pytest.raises(nc.FormatError, match=r"sample 1: tokens is .*, expected a list of integers"):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index", column="tokens")


def test_pickled_columns_are_never_unpickled(tmp_path: Path) -> None:
    harmful = b"cos\nsystem\n(S'touch harmed'\ntR."
    sample = {"tokens": ndarray([1, 2], "<u2"), "meta": harmful}
    write_mds(tmp_path / "mds", {"tokens": FREE, "meta": ("pkl", None)}, [[sample]])
    report = run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert "columns left out: meta." in report["notes"]
    with pytest.raises(ValueError, match="'meta' holds pickled objects, which are never unpickled"):
        run(tmp_path / "mds", tmp_path / "other", boundaries="index", column="meta")
    write_mds(tmp_path / "only", {"tokens": ("pkl", None)}, [[{"tokens": harmful}]])
    with pytest.raises(ValueError, match=r"tokens \(pickled objects, which are never unpickled\)"):
        run(tmp_path / "only", tmp_path / "other", boundaries="index")


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("zstd:7", lambda data: zstandard.ZstdCompressor(7).compress(data)),
        ("gz", gzip.compress),
        ("bz2:9", bz2.compress),
        ("br:11", lambda data: _arrow("brotli", data)),
        ("snappy", lambda data: _arrow("snappy", data)),
    ],
)
def test_compressed_shards_are_read_and_their_hashes_checked(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    simple(tmp_path / "mds", compression=name, compress=compress, hashes=["sha1", "sha256"])
    report = run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS
    assert "the shards' hashes were checked: sha1, sha256." in report["notes"]


def _arrow(codec: str, data: bytes) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    return bytes(arrow.compress(data, codec=codec, asbytes=True))


@pytest.mark.parametrize("place", ["raw_data", "zip_data"])
def test_a_hash_that_differs_is_refused(tmp_path: Path, place: str) -> None:
    simple(tmp_path / "mds", compression="gz", compress=gzip.compress, hashes=["sha1"])
    change_json(tmp_path / "mds" / "index.json", lambda data: data["shards"][1][place]["hashes"].update(sha1="0" * 40))
    with pytest.raises(nc.FormatError, match=r"shard\.00001\.mds\.gz: its sha1 is [0-9a-f]{40}, but index\.json says"):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index")


def test_hashes_that_hashlib_does_not_have_are_said_not_to_be_checked(tmp_path: Path) -> None:
    simple(tmp_path / "mds")
    change_json(tmp_path / "mds" / "index.json", lambda data: data["shards"][0]["raw_data"]["hashes"].update(xxh64="0"))
    report = run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert "hashes that hashlib does not have were not checked: xxh64." in report["notes"]


def test_more_than_was_declared_does_not_come_out(tmp_path: Path) -> None:
    simple(
        tmp_path / "mds", compression="zstd", compress=lambda data: zstandard.ZstdCompressor().compress(bytes(1 << 28))
    )
    with pytest.raises(nc.FormatError, match=r"more than the \d+ bytes that were declared come out of it"):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index")


def test_fewer_bytes_than_were_declared_are_refused(tmp_path: Path) -> None:
    simple(tmp_path / "mds", compression="gz", compress=gzip.compress)
    change_json(tmp_path / "mds" / "index.json", lambda data: data["shards"][0]["raw_data"].update(bytes=1000))
    with pytest.raises(nc.FormatError, match=r"\d+ bytes come out of it, but index\.json says 1,000"):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index")


def test_a_merged_index_names_shards_in_folders_in_its_own_order(tmp_path: Path) -> None:
    for name, ids in (("26", [1, 2]), ("25", [3])):
        write_mds(tmp_path / "mds" / name, {"tokens": FREE}, [[{"tokens": ndarray(ids, "<u2")}]])
    entries = []
    for name in ("26", "25"):
        entry = json.loads((tmp_path / "mds" / name / "index.json").read_text())["shards"][0]
        entry["raw_data"]["basename"] = f"{name}/shard.00000.mds"
        entries.append(entry)
    (tmp_path / "mds" / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[1, 2], [3]]


def test_a_shard_without_samples_is_none(tmp_path: Path) -> None:
    write_mds(tmp_path / "mds", {"tokens": FREE}, [[], [{"tokens": ndarray([4], "<u2")}], []])
    run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[4]]


def test_samples_of_many_batches_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prep.foreign import mds_shard

    monkeypatch.setattr(mds_shard, "_BATCH_BYTES", 20)
    rows = [[n] * (n % 4) for n in range(1, 30) if n % 4]
    samples = [{"id": struct.pack("<q", n), "tokens": ndarray(ids, "<u2")} for n, ids in enumerate(rows)]
    write_mds(tmp_path / "mds", {"id": ("int", 8), "tokens": FREE}, [samples])
    run(tmp_path / "mds", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(version=1), "version 1, expected 'mds' and 2"),
        (lambda s: s.update(format="csv"), "format 'csv' and version 2, expected 'mds' and 2"),
        (lambda s: s.update(samples=-1), r"shards\[1\]\.samples is -1, expected an integer"),
        (lambda s: s.update(samples=2**40), r"has 1 samples in \d+ bytes, but index\.json says 1,099,511,627,776"),
        (lambda s: s.update(column_names=["a", "a"]), "expected three lists of one length"),
        (lambda s: s.update(column_names=["other"]), r"shards\[1\] has other columns than shards\[0\]"),
        (lambda s: s.update(column_sizes=[0]), "expected three lists of one length"),
        (lambda s: s.update(column_sizes=[9]), "the columns of the shard are not those that index.json says"),
        (lambda s: s["raw_data"].update(bytes=2**32), "have 32 bits and have wrapped around"),
        (lambda s: s["raw_data"].update(bytes=1), r"bytes, but index\.json says 1: the copy was cut short"),
        (lambda s: s["raw_data"].update(basename="../index.json"), "expected the name of a file inside"),
        (lambda s: s["raw_data"].update(basename="/etc/passwd"), "expected the name of a file inside"),
        (lambda s: s["raw_data"].update(basename="a\\b"), "expected the name of a file inside"),
        (lambda s: s["raw_data"].update(basename="C:x"), "expected the name of a file inside"),
        (lambda s: s["raw_data"].update(basename=""), "expected the name of a file inside"),
        (lambda s: s["raw_data"].update(basename="shard.00009.mds"), "index.json names it, but it is not there"),
        (lambda s: s["raw_data"].update(hashes=[]), "expected an object of texts"),
        (lambda s: s.update(raw_data=None), "raw_data.basename is None"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    simple(tmp_path / "mds")
    change_json(tmp_path / "mds" / "index.json", lambda data: change(data["shards"][1]))
    with pytest.raises(nc.FormatError, match=message):
        run(tmp_path / "mds", tmp_path / "out", boundaries="index")


@pytest.mark.parametrize(
    "text", ['{"shards": [', '{"shards": [], "shards": []}', '{"version": 2, "shards": [' + "[" * 10**5]
)
def test_an_index_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(nc.FormatError, match=r"index\.json: it is not JSON"):
        run(tmp_path, tmp_path / "out", boundaries="index")


@pytest.mark.parametrize(
    "text", ['{"shards": [], "version": 2}', '{"shards": [1], "version": 2}', '{"shards": [{}], "version": 3}']
)
def test_an_index_of_nothing_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(nc.FormatError, match=r"lists no shards|shards\[0\] is 1, expected an object|'version' 2"):
        run(tmp_path, tmp_path / "out", boundaries="index")


def damaged(folder: Path, change: Callable[[bytearray], None]) -> Path:
    write_mds(folder, {"t": ("str", None), "tokens": FREE}, [[{"t": b"hi", "tokens": ndarray([1, 2], "<u2")}] * 2])
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 3, "byte 0: the shard has 3 samples"),
        (4, 3, "byte 4: the offsets of its samples run from 3 to"),
        (8, 0, "byte 4: the offsets"),
        (12, 2**32 - 1, "byte 4: the offsets"),
        (-32, 3, "sample 0: its columns have 9 bytes, but there are 8"),
        (-28, 2**32 - 1, "sample 0: its columns have 4,294,967,297 bytes"),
    ],
)
def test_a_shard_whose_numbers_cannot_be_is_refused(tmp_path: Path, at: int, value: int, message: str) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, at if at >= 0 else len(data) + at, value)

    folder = damaged(tmp_path / "mds", change)
    with pytest.raises(nc.FormatError, match=rf"shard\.00000\.mds: {message}"):
        run(folder, tmp_path / "out", boundaries="index")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"\x08\x02", "sample 0: tokens has 2 dimensions"),
        (b"\x00\x02", "sample 0: tokens has 0 dimensions"),
        (b"\x04\x03", "sample 0: tokens says that it has 3 values of 2 bytes, but there are 4 bytes"),
        (b"\x07\x02", "sample 0: tokens is shorter than its shape"),
        (b"\x06\x02", "sample 0: tokens says that it has"),
    ],
)
def test_an_array_whose_shape_is_not_its_own_is_refused(tmp_path: Path, head: bytes, message: str) -> None:
    def change(data: bytearray) -> None:
        data[-22:-20] = head

    folder = damaged(tmp_path / "mds", change)
    assert (folder / "shard.00000.mds").read_bytes()[-20:-16] == bytes([1, 0, 2, 0])
    with pytest.raises(nc.FormatError, match=rf"shard\.00000\.mds: {message}"):
        run(folder, tmp_path / "out", boundaries="index")


def test_the_real_writers_shards_hold_the_documents_of_their_readme(tmp_path: Path, fixtures: Path) -> None:
    rows = [[42531, 31848, 25556], [13489, 15391, 2048, 3762, 826], [8763], [40663, 32470, 45637, 25181]]
    run(fixtures / "streaming/mds_ndarray_u16", tmp_path / "one", boundaries="index")
    report = run(fixtures / "streaming/mds_bytes_i64_zstd", tmp_path / "two", boundaries="index", dtype="int64")
    assert documents(tmp_path / "one") == documents(tmp_path / "two") == rows
    assert "the shards' hashes were checked: sha1." in report["notes"]


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("scripts/joining/sample_dataset/color", "_id (int32, one value a sample), color (str, one value a sample)"),
        ("scripts/joining/sample_dataset/pet", "_id (int32, one value a sample), pet (str, one value a sample)"),
        ("scripts/joining/sample_dataset/y", "_id (int32, one value a sample), y (int64, one value a sample)"),
        ("tests/resources/naive_MDSdataset", "dept (str, one value a sample), id (str, one value a sample)"),
    ],
)
def test_public_shards_without_ids_are_refused_with_their_columns(
    tmp_path: Path, fixtures: Path, name: str, columns: str
) -> None:
    with pytest.raises(ValueError, match="no column holds a list of integers in each row; there are ") as error:
        run(fixtures / "mosaicml+streaming" / name, tmp_path / "out", boundaries="index")
    assert columns in str(error.value)


def test_public_shards_are_cut_into_samples_that_their_columns_fill(fixtures: Path) -> None:
    from prep.foreign import mds

    base = fixtures / "mosaicml+streaming/tests/resources/naive_MDSdataset"
    found = mds.LAYOUT.open(base)
    assert [shard.samples for shard in found.pieces] == [3, 2]
    assert [len(list(shard.read([]))) for shard in found.pieces] == [1, 1]  # each shard is one batch, checked
    with pytest.raises(nc.FormatError, match="it lists no shards"):
        mds.LAYOUT.open(base / "27")
