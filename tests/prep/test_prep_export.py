"""Export: files that other tools read, byte for byte what those tools would have written where that is one thing."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep import export as module
from prep.cli import main
from prep.convert import Options as ConvertOptions
from prep.convert import convert
from prep.export import LAYOUTS, Options, export

DOCUMENTS = [[10, 11, 4], [], [50256 % 500, 4], [7, 8, 9, 4], [], [4]]


def corpus(folder: Path, documents: list[list[int]] = DOCUMENTS, vocab_size: int = 500, **options: Any) -> nc.Corpus:
    with nc.CorpusWriter(folder / "corpus", vocab_size=vocab_size, tokens_per_shard=5, **options) as writer:
        for document in documents:
            fields = {"token.loss_mask": [token != 4 for token in document]} if options.get("fields") else None
            writer.add(document, fields)
    return nc.open_corpus(folder / "corpus")


def test_a_pair_is_byte_for_byte_what_megatron_writes(tmp_path: Path) -> None:
    report = export(Options(source=corpus(tmp_path), destination=tmp_path / "v1.2_text", layout="megatron"))
    assert report["files"] == [str(tmp_path / "v1.2_text.idx"), str(tmp_path / "v1.2_text.bin")]
    flat = [token for document in DOCUMENTS for token in document]
    assert (tmp_path / "v1.2_text.bin").read_bytes() == struct.pack("<10H", *flat)
    # preprocess_data writes no sequence for an empty document and repeats the entry of the document index.
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 4, 7) + struct.pack("<4i", 3, 2, 4, 1)
    expected += struct.pack("<4q", 0, 6, 10, 18) + struct.pack("<7q", 0, 1, 1, 2, 3, 3, 4)
    assert (tmp_path / "v1.2_text.idx").read_bytes() == expected
    assert report["notes"] == ["2 empty documents have no sequence; the document index repeats an entry for each."]


@pytest.mark.parametrize(("dtype", "code", "letter"), [("uint16", 8, "H"), ("int32", 4, "i"), ("int64", 5, "q")])
def test_a_converted_pair_is_exported_as_it_was(tmp_path: Path, dtype: str, code: int, letter: str) -> None:
    lengths = [3, 1, 4]
    tokens = [1, 2, 3, 54321, 5, 6, 7, 0] if dtype == "uint16" else [1, 2, 3, 54_365_900, 5, 6, 7, 0]
    size = np.dtype(dtype).itemsize
    (tmp_path / "old.bin").write_bytes(struct.pack(f"<8{letter}", *tokens))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 3, 4) + struct.pack("<3i", *lengths)
    index += struct.pack("<3q", 0, 3 * size, 4 * size) + struct.pack("<4q", 0, 1, 2, 3)
    (tmp_path / "old.idx").write_bytes(index)
    convert(ConvertOptions(source=str(tmp_path / "old"), destination=tmp_path / "new"))
    asked = None if dtype != "int64" else dtype
    export(
        Options(source=nc.open_corpus(tmp_path / "new"), destination=tmp_path / "again", layout="megatron", dtype=asked)
    )
    for suffix in (".idx", ".bin"):
        assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"old{suffix}").read_bytes()


def test_public_pairs_come_back_byte_for_byte(tmp_path: Path, fixtures: Path) -> None:
    found = sorted(path.with_suffix("") for path in fixtures.rglob("*.idx") if path.with_suffix(".bin").exists())
    assert found
    for number, prefix in enumerate(found):
        convert(ConvertOptions(source=str(prefix), destination=tmp_path / f"{number}"))
        source = nc.open_corpus(tmp_path / f"{number}")
        export(Options(source=source, destination=tmp_path / f"out-{number}", layout="megatron"))
        for suffix in (".idx", ".bin"):
            assert (tmp_path / f"out-{number}{suffix}").read_bytes() == Path(f"{prefix}{suffix}").read_bytes(), prefix


def test_bare_ids_are_the_stream_and_how_to_read_them_is_said(tmp_path: Path) -> None:
    source = corpus(tmp_path)
    report = export(Options(source=source, destination=tmp_path / "train.bin", layout="nanogpt"))
    flat = [token for document in DOCUMENTS for token in document]
    assert (tmp_path / "train.bin").read_bytes() == struct.pack("<10H", *flat)
    assert report["notes"][0].startswith("where 6 documents begin is not stored")
    assert report["notes"][1].endswith("read it with --dtype uint16 --boundaries none.")


def test_an_end_of_text_id_that_marks_all_documents_is_named(tmp_path: Path) -> None:
    identity = nc.TokenizerIdentity(
        kind="byte", name="bytes", sha256="0" * 64, vocab_size=257, eos_id=256, bos_id=None, pad_id=None
    )
    documents = [[1, 2, 256], [256], [3, 256]]
    for number, (given, marked) in enumerate(
        ((documents, True), ([*documents, [256, 1, 256]], False), ([*documents, []], False))
    ):
        with nc.CorpusWriter(tmp_path / f"c{number}", vocab_size=257, tokenizer=identity) as writer:
            for document in given:
                writer.add(document)
        source = nc.open_corpus(tmp_path / f"c{number}")
        report = export(Options(source=source, destination=tmp_path / f"{number}.bin", layout="nanogpt"))
        assert report["notes"][-1].endswith("--boundaries eos:256." if marked else "--boundaries none.")
        if marked:
            again = nc.open_corpus(tmp_path / f"{number}.bin", dtype="uint16", boundaries="eos:256")
            assert [again.document(i).tolist() for i in range(again.num_documents)] == documents


def test_a_ds_file_has_its_index_mask_and_metadata(tmp_path: Path) -> None:
    source = corpus(tmp_path, fields={"token.loss_mask": nc.Field(dtype="bool")})
    export(Options(source=source, destination=tmp_path / "a", layout="datatrove"))
    flat = [token for document in DOCUMENTS for token in document]
    assert (tmp_path / "a.ds").read_bytes() == struct.pack("<10H", *flat)
    assert (tmp_path / "a.ds.index").read_bytes() == struct.pack("<6Q", 3, 3, 5, 9, 9, 10)
    assert (tmp_path / "a.ds.loss").read_bytes() == bytes(token != 4 for token in flat)
    assert (tmp_path / "a.ds.metadata").read_text() == "Unknown Tokenizer|2\n10\n10.0 T"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1.00 T"),
        (999, "999 T"),
        (1000, "1.00 kT"),
        (1_361_845, "1.36 MT"),
        (54_365_900, "54.4 MT"),
        (10**12, "1.00 TT"),
    ],
)
def test_counts_for_people_have_three_digits(count: int, text: str) -> None:
    assert module._human(count) == text


def test_olmos_files_are_bare_ids_and_a_packed_table(tmp_path: Path) -> None:
    source = corpus(tmp_path, fields={"token.loss_mask": nc.Field(dtype="bool")})
    export(Options(source=source, destination=tmp_path / "out", layout="olmo"))
    flat = [token for document in DOCUMENTS for token in document]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "labels_mask_part_0000.npy",
        "token_ids_part_0000.csv.gz",
        "token_ids_part_0000.npy",
    ]
    assert (tmp_path / "out/token_ids_part_0000.npy").read_bytes() == struct.pack("<10H", *flat)
    assert (tmp_path / "out/labels_mask_part_0000.npy").read_bytes() == bytes(token != 4 for token in flat)
    table = gzip.decompress((tmp_path / "out/token_ids_part_0000.csv.gz").read_bytes())
    assert table == b"0,3\n3,3\n3,5\n5,9\n9,9\n9,10\n"
    plain = corpus(tmp_path / "plain", [[1], [2]])
    export(Options(source=plain, destination=tmp_path / "plain-out", layout="olmo"))
    assert sorted(path.name for path in (tmp_path / "plain-out").iterdir()) == [
        "part-0-00000.csv.gz",
        "part-0-00000.npy",
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_exports_are_equal_bytes_and_nothing_is_overwritten(tmp_path: Path, layout: str) -> None:
    source = corpus(tmp_path)
    for name in ("one", "two"):
        export(Options(source=source, destination=tmp_path / name / "x", layout=layout))
    one, two = (
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
        for name in ("one", "two")
    )
    assert one == two
    with pytest.raises(FileExistsError, match="it is there already"):
        export(Options(source=source, destination=tmp_path / "one" / "x", layout=layout))
    after = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert after == set(one)  # no temporary file is left


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_documents_are_files_of_no_documents(tmp_path: Path, layout: str) -> None:
    export(Options(source=corpus(tmp_path, []), destination=tmp_path / "x", layout=layout))
    if layout == "megatron":
        assert nc.open_corpus(tmp_path / "x").num_documents == 0


@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if "uint16" in layout.dtypes])
def test_an_id_that_does_not_fit_is_named_and_leaves_nothing(tmp_path: Path, layout: str) -> None:
    source = corpus(tmp_path, [[1, 2], [3, 70_000]], vocab_size=70_001)
    with pytest.raises(ValueError, match="token 3 is the id 70,000, which uint16 cannot hold: give a wider --dtype"):
        export(Options(source=source, destination=tmp_path / "out" / "x", layout=layout, dtype="uint16"))
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_fields_without_a_place_are_said(tmp_path: Path) -> None:
    with nc.CorpusWriter(tmp_path / "c", vocab_size=9, fields={"document.score": nc.Field(dtype="int8")}) as writer:
        writer.add([1], {"document.score": 1})
    report = export(Options(source=nc.open_corpus(tmp_path / "c"), destination=tmp_path / "x", layout="datatrove"))
    assert report["notes"] == ["document.score is left out: the layout has no place for it."]


def test_the_command_exports_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus(tmp_path)
    arguments = ["export", str(tmp_path / "corpus"), str(tmp_path / "x"), "--layout", "megatron"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0] == "6 documents, 10 tokens as uint16:"
    assert main(arguments) == 1
    assert "x.idx: it is there already" in capsys.readouterr().err
    assert main([*arguments[:2], str(tmp_path / "y"), "--layout", "datatrove", "--dtype", "int64"]) == 1
    assert "--dtype is 'int64', expected one of uint16, uint32" in capsys.readouterr().err


def test_a_damaged_source_is_not_exported(tmp_path: Path) -> None:
    corpus(tmp_path)
    shard = tmp_path / "corpus" / "shard-00001.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[4096] ^= 1
    shard.write_bytes(raw)
    assert main(["export", str(tmp_path / "corpus"), str(tmp_path / "x"), "--layout", "nanogpt"]) == 1
    assert not (tmp_path / "x").exists()
