"""TFRecord and ArrayRecord: records of tf.Example, or bare ids, become documents; every checksum is checked."""

from __future__ import annotations

import gzip
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import foreign_files
import numpy as np
import pytest
from foreign_files import DOCUMENTS, bytes_feature, documents, example, field, packed, run, tfrecord, unpacked
from hypothesis import given
from hypothesis import strategies as st

import neutral_core as nc
from prep.foreign.crc32c import crc32c, crc32c_many
from prep.foreign.example import NotExampleError, features_of, varints

MAXTEXT = "AI-Hypercomputer+maxtext/tests/assets/local_datasets/c4_en_dataset_minimal/c4/en"
DIGITS = "google+array_record/python/testdata"


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, appendix B.4, and the check value of the polynomial
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_crc32c_has_the_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert crc32c_many(data * 2, np.array([len(data)] * 2)).tolist() == [expected] * 2


@given(st.lists(st.integers(0, 1100), max_size=12), st.integers(0, 2**32 - 1))
def test_crc32c_of_many_records_is_that_of_each(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    records = [rng.bytes(length) for length in lengths]
    found = crc32c_many(b"".join(records), np.array(lengths, dtype=np.int64))
    assert found.tolist() == [foreign_files.crc32c(record) for record in records]


def test_crc32c_of_more_blocks_than_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from prep.foreign import crc32c as module

    monkeypatch.setattr(module, "_MOST_BLOCKS", 3)
    records = [bytes([n % 256]) * n for n in range(0, 2000, 97)]
    found = crc32c_many(b"".join(records), np.array([len(record) for record in records]))
    assert found.tolist() == [foreign_files.crc32c(record) for record in records]


def test_varints_of_every_width_are_read() -> None:
    values = [0, 1, 127, 128, 300, 2**14, 2**31, 2**32 - 1, 2**63 - 1, -1, -100, -(2**63)]
    stretches = [values[:4], [], values[4:7], values[7:]]
    encoded = [b"".join(map(foreign_files.varint, stretch)) for stretch in stretches]
    found, counts = varints(b"".join(encoded), np.array([len(part) for part in encoded]))
    assert found.tolist() == values
    assert counts.tolist() == [4, 0, 3, 5]


@pytest.mark.parametrize(
    ("stretches", "wrong", "message"),
    [
        ([b"\x01", b"\x80"], 1, "cut short"),
        ([b"\x80", b"\x01"], 0, "cut short"),
        ([b"\x01", b"\x80" * 10 + b"\x01"], 1, "more than 64 bits"),
        ([b"\x05\x06", b"", b"\x01" + b"\xff" * 9 + b"\x02"], 2, "more than 64 bits"),
    ],
)
def test_a_varint_that_cannot_be_is_refused_by_its_stretch(stretches: list[bytes], wrong: int, message: str) -> None:
    with pytest.raises(NotExampleError, match=message) as error:
        varints(b"".join(stretches), np.array([len(part) for part in stretches]))
    assert error.value.args[1] == wrong


def write(path: Path, features: list[bytes], *, name: str = "ids") -> Path:
    path.write_bytes(tfrecord([example(**{name: feature}) for feature in features]))
    return path


@pytest.mark.parametrize("kind", [packed, unpacked])
def test_packed_and_unpacked_lists_are_the_same(tmp_path: Path, kind: Any) -> None:
    write(tmp_path / "a.tfrecord", [kind(ids) for ids in [*DOCUMENTS, [], [2**32 - 1]]])
    run(tmp_path / "a.tfrecord", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [*DOCUMENTS, [], [2**32 - 1]]


def test_lists_that_are_partly_packed_are_read(tmp_path: Path) -> None:
    one, two = b"\x08\x07", field(1, b"\x01\xac\x02")  # 7, then 1 and 300
    mixed = [field(3, one + two), field(3, two + one), field(3, one + one + two + two), packed([8, 8])]
    write(tmp_path / "a.tfrecord", mixed)
    run(tmp_path / "a.tfrecord", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[7, 1, 300], [1, 300, 7], [7, 7, 1, 300, 1, 300], [8, 8]]


@pytest.mark.parametrize(
    "compress", [gzip.compress, zlib.compress, lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])]
)
def test_compressed_files_are_read(tmp_path: Path, compress: Any) -> None:
    plain = tfrecord([example(ids=packed(ids)) for ids in DOCUMENTS * 20])
    (tmp_path / "a.tfrecord").write_bytes(compress(plain))
    run(tmp_path / "a.tfrecord", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS * 20
    whole = (tmp_path / "a.tfrecord").read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2):
        (tmp_path / "b.tfrecord").write_bytes(whole[:cut])
        with pytest.raises(nc.FormatError, match=r"b\.tfrecord: record [\d,]+, byte [\d,]+: the compressed data are"):
            run(tmp_path / "b.tfrecord", tmp_path / "other", boundaries="index", restart=True)


def test_a_length_beyond_the_file_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    head = struct.pack("<Q", 2**30)
    data = tfrecord([example(ids=packed([1]))])
    claim = head + struct.pack("<I", foreign_files.masked(foreign_files.crc32c(head)))
    said = {"plain": "it has 1,073,741,824 bytes, but there is room for 0", "gzip": "the file ends inside the record"}
    for name, content in (("plain", data + claim), ("gzip", gzip.compress(data + claim + bytes(64)))):
        (tmp_path / name).write_bytes(content)
        tracemalloc.start()
        with pytest.raises(nc.FormatError, match=rf"record 1, byte \d+: {said[name]}"):
            run(tmp_path / name, tmp_path / "out", boundaries="index", restart=True)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
        tracemalloc.stop()


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    data = tfrecord([example(ids=packed([1, 2])), example(ids=packed([300]))])
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(nc.FormatError, match=r"record [01]"):
            run(tmp_path / "a", tmp_path / "out", boundaries="index", layout="tfrecord", restart=True)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"ids": bytes_feature(b"x")}, "its feature 'ids' holds bytes, but integers in the first record"),
        ({"other": packed([1])}, "it has no feature 'ids', which the first record has"),
    ],
)
def test_a_record_unlike_the_first_is_refused_by_its_number(
    tmp_path: Path, features: dict[str, bytes], message: str
) -> None:
    (tmp_path / "a").write_bytes(tfrecord([example(ids=packed([1])), example(**features)]))
    with pytest.raises(nc.FormatError, match=rf"record 1: {message}\."):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")


def test_a_record_that_is_no_example_is_refused_by_its_number(tmp_path: Path) -> None:
    good = example(ids=packed([1]))
    for bad in (b"\xff", good[:-1], good + b"\x1a\x00", b"\x0a\x7f", good[:5] + b"\xff" + good[6:]):
        (tmp_path / "a").write_bytes(tfrecord([good, bad]))
        with pytest.raises(nc.FormatError, match="record 1: "):
            run(tmp_path / "a", tmp_path / "out", boundaries="index", restart=True)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (field(2, b""), "SequenceExample"),
        (field(3, b""), "field 3, expected field 1"),
        (field(1, field(2, b"")), "field 2, expected field 1, an entry"),
        (field(1, field(1, field(1, b"a") + field(2, packed([1]))) * 2), "'a' occurs twice"),
        (field(1, field(1, field(1, b"\xff"))), "not UTF-8"),
        (field(1, field(1, field(1, b"a") + field(2, field(4, b"")))), "not one list"),
        (field(1, field(1, field(1, b"a") + field(2, packed([1]) * 2))), "not one list"),
        (field(1, field(1, field(5, b"a"))), "expected a name and a feature"),
        (b"\x08\x01", "begins no field of bytes"),
        (b"\x0a\xff\xff\xff\xff\x0f", "does not fit"),
        (b"\x0a" + b"\xff" * 11, "more than 64 bits"),
    ],
)
def test_what_is_no_example_is_refused(record: bytes, message: str) -> None:
    with pytest.raises(NotExampleError, match=message):
        features_of(record)


def test_sequence_examples_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(tfrecord([field(1, b"") + field(2, b"")]))
    with pytest.raises(nc.FormatError, match="record 0: it is a SequenceExample, which is not read"):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")


def test_bare_ids_are_a_column_named_record(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(tfrecord([np.array(ids, dtype="<u2").tobytes() for ids in DOCUMENTS]))
    run(tmp_path / "a", tmp_path / "out", boundaries="index", dtype="uint16")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_ids_in_a_feature_of_bytes_are_read_with_the_width_that_is_told(tmp_path: Path) -> None:
    write(tmp_path / "a", [bytes_feature(np.array(ids, dtype="<i4").tobytes()) for ids in DOCUMENTS])
    run(tmp_path / "a", tmp_path / "out", boundaries="index", dtype="int32")
    assert documents(tmp_path / "out") == DOCUMENTS
    (tmp_path / "b").write_bytes(tfrecord([example(ids=field(1, field(1, b"ab") * 2))]))
    with pytest.raises(nc.FormatError, match="record 0: a list of bytes has 2 items, expected one"):
        run(tmp_path / "b", tmp_path / "other", boundaries="index", dtype="int16")


@pytest.mark.parametrize("most", [1, 3, 100])
def test_records_of_many_batches_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    from prep.foreign import tfrecord as module

    monkeypatch.setattr(module, "_BATCH_BYTES", most)
    write(tmp_path / "a", [packed([n] * n) for n in range(40)])
    run(tmp_path / "a", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[n] * n for n in range(40)]


def test_numbered_files_of_a_folder_or_prefix_are_one_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in (1, 0, 2):
        write(folder / f"train-{number:05}-of-00003", [packed([number, 9])])
    (folder / "_SUCCESS").touch()
    (folder / "features.json").write_text("{}")
    report = run(folder, tmp_path / "one", boundaries="index")
    assert documents(tmp_path / "one") == [[0, 9], [1, 9], [2, 9]]
    assert "left out of data: _SUCCESS, features.json." in report["notes"]
    assert (
        "3 files in the order of the numbers in their names: train-00000-of-00003 … train-00002-of-00003."
        in report["notes"]
    )
    write(folder / "test-00000-of-00001", [packed([5])])
    with pytest.raises(
        ValueError, match=r"holds 2 data sets of TFRecord, by the names .*: test-00000-of-00001, train-0"
    ):
        run(folder, tmp_path / "two", boundaries="index")
    run(folder / "train", tmp_path / "two", boundaries="index")
    assert documents(tmp_path / "two") == [[0, 9], [1, 9], [2, 9]]
    (folder / "train-00001-of-00003").unlink()
    with pytest.raises(nc.FormatError, match=r"train-00001-of-00003: it is missing: the copy was cut short"):
        run(folder / "train", tmp_path / "three", boundaries="index")
    (folder / "train-00001-of-00003").write_bytes(b"")
    with pytest.raises(nc.FormatError, match=r"train-00001-of-00003: it does not begin as a file of TFRecord does"):
        run(folder / "train", tmp_path / "three", boundaries="index")


def test_files_of_two_versions_are_refused(tmp_path: Path) -> None:
    for name in ("a-00000-of-00002", "a-00001-of-00003"):
        write(tmp_path / name, [packed([1])])
    with pytest.raises(nc.FormatError, match="numbered of 2 and of 3: they are of two versions"):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")


def test_the_numbers_in_names_and_not_their_letters_are_the_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in (10, 9, 100):
        write(folder / f"part-{number}", [packed([number])])
    run(folder, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[9], [10], [100]]


def test_maxtexts_tokenized_records_come_over(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / MAXTEXT / "3.0.5"
    with pytest.raises(ValueError, match=r"The first 1,000 rows all have 64 ids, the id 2 ends 34 of them"):
        run(source, tmp_path / "out")
    run(source, tmp_path / "out", boundaries="index", vocab_size=31)
    corpus = nc.open_corpus(tmp_path / "out")
    assert (corpus.num_documents, corpus.num_tokens) == (1024, 65_536)
    assert {len(ids) for ids in documents(tmp_path / "out")} == {64}
    assert int(corpus.tokens(0, 65_536).max()) == 30


def test_maxtexts_records_of_text_are_refused_with_their_columns(tmp_path: Path, fixtures: Path) -> None:
    for name in ("__local_c4_builder-validation.tfrecord-00000-of-00002", "c4-train.array_record-00000-of-00008"):
        if name.startswith("c4"):
            pytest.importorskip("array_record")
        with pytest.raises(ValueError, match=r"give --column with one of .*text \(bytes\)"):
            run(fixtures / MAXTEXT / "3.0.1" / name, tmp_path / "out", boundaries="index")


def test_torchdatas_examples_come_over(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / "pytorch+data/test/_fakedata/tfrecord/example.tfrecord"
    report = run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[100 * n + 10 * i for i in range(10)] for n in range(4)]  # as xxd shows
    assert "columns left out: x_float, x_byte." in report["notes"]


def test_digits_are_array_records_of_one_byte_each(tmp_path: Path, fixtures: Path) -> None:
    pytest.importorskip("array_record")
    source = fixtures / DIGITS
    with pytest.raises(ValueError, match="the column 'record' holds bytes, and nothing says how wide"):
        run(source, tmp_path / "out", boundaries="index")
    run(source, tmp_path / "out", boundaries="index", dtype="uint8")
    assert documents(tmp_path / "out") == [[ord("0") + n] for n in range(10)]


def test_array_records_that_were_cut_short_are_refused(tmp_path: Path, fixtures: Path) -> None:
    pytest.importorskip("array_record")
    whole = (fixtures / DIGITS / "digits.array_record-00000-of-00002").read_bytes()
    for cut in (8, 100, 65_535, 65_536, 65_537, 131_071):
        (tmp_path / "a").write_bytes(whole[:cut])
        with pytest.raises(nc.FormatError, match=r"expected a multiple of 65,536|holds no postscript"):
            run(tmp_path / "a", tmp_path / "out", boundaries="index", dtype="uint8")


def test_array_records_with_a_changed_byte_are_refused(tmp_path: Path, fixtures: Path) -> None:
    pytest.importorskip("array_record")
    whole = bytearray((fixtures / MAXTEXT / "3.0.1/c4-train.array_record-00000-of-00008").read_bytes())
    whole[70_000] ^= 1
    (tmp_path / "a").write_bytes(whole)
    with pytest.raises(nc.FormatError, match=r"hash mismatch.*the file is damaged"):
        run(tmp_path / "a", tmp_path / "out", boundaries="index", column="text", dtype="uint8")


def test_array_records_need_their_library(tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from prep.extras import MissingExtraError

    shutil.copy(fixtures / DIGITS / "digits.array_record-00000-of-00002", tmp_path / "a")
    monkeypatch.setitem(sys.modules, "array_record", None)
    monkeypatch.delitem(sys.modules, "array_record.python.array_record_module", raising=False)
    monkeypatch.delitem(sys.modules, "array_record.python", raising=False)
    with pytest.raises(
        MissingExtraError, match=r"reading ArrayRecord needs array_record.*: pip install 'millstream\[jax\]'"
    ):
        run(tmp_path / "a", tmp_path / "out", boundaries="index", dtype="uint8")
