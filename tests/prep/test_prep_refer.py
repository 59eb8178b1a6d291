"""A reference makes a foreign data set a corpus without copying it, and notices what changes behind it."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep.cli import main
from prep.convert import Options as ConvertOptions
from prep.convert import convert
from prep.refer import Options, lines_of, refer
from prep.tokenizers import Settings

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 256]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data" / "old"
    data.mkdir(parents=True)
    flat = [token for document in DOCUMENTS for token in document]
    (data / "pair.bin").write_bytes(struct.pack("<7H", *flat))
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4) + struct.pack("<3i", 3, 1, 3)
    (data / "pair.idx").write_bytes(index + struct.pack("<3q", 0, 6, 8) + struct.pack("<4q", 0, 1, 2, 3))
    (data / "bare.bin").write_bytes(struct.pack("<7H", *flat))
    return tmp_path / "data"


def make(folder: Path, **options: Any) -> dict[str, Any]:
    given = {"source": str(folder / "old" / "pair"), "destination": folder / "corpus.json"} | options
    return refer(Options(**given))


def test_a_reference_is_the_data_set_with_what_it_does_not_say(folder: Path) -> None:
    report = make(folder, tokenizer=Settings(kind="byte", append_eos=True))
    corpus, in_place = nc.open_corpus(folder / "corpus.json"), nc.open_corpus(folder / "old" / "pair")
    assert [corpus.document(i).tolist() for i in range(3)] == DOCUMENTS
    assert corpus.fingerprint == in_place.fingerprint
    assert (corpus.vocab_size, corpus.tokenizer and corpus.tokenizer.eos_id) == (257, 256)
    assert (in_place.vocab_size, in_place.tokenizer) == (None, None)
    corpus.verify()
    data = json.loads((folder / "corpus.json").read_bytes())
    assert [entry["name"] for entry in data["files"]] == ["old/pair.bin", "old/pair.idx"]
    for entry in data["files"]:
        raw = (folder / entry["name"]).read_bytes()
        assert (entry["num_bytes"], entry["sha256"]) == (len(raw), hashlib.sha256(raw).hexdigest())
    assert report["largest_id"] == 256
    assert "nothing was copied" in lines_of(report)[-1]


def test_a_reference_moves_with_its_files_and_pickles(folder: Path, tmp_path: Path) -> None:
    make(folder, vocab_size=300)
    fingerprint = nc.open_corpus(folder / "corpus.json").fingerprint
    shutil.move(folder, tmp_path / "elsewhere")
    corpus = nc.open_corpus(tmp_path / "elsewhere" / "corpus.json")
    assert corpus.fingerprint == fingerprint
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.vocab_size, again.document(2).tolist()) == (300, DOCUMENTS[2])


def test_what_the_files_do_not_say_is_in_the_reference(folder: Path) -> None:
    make(folder, source=str(folder / "old" / "bare.bin"), dtype="uint16", boundaries="fixed:3", vocab_size=257)
    corpus = nc.open_corpus(folder / "corpus.json")
    assert [corpus.document(i).tolist() for i in range(3)] == [[5, 6, 7], [8, 9, 10], [256]]
    plan = nc.Plan(nc.Source(corpus), seq_len=3, shuffle="none")
    assert plan.read([0, 1])["tokens"].tolist() == [[5, 6, 7, 8], [8, 9, 10, 256]]


def test_a_reference_is_converted_like_any_corpus(folder: Path, tmp_path: Path) -> None:
    make(folder, vocab_size=257)
    convert(ConvertOptions(source=str(folder / "corpus.json"), destination=tmp_path / "out"))
    copy = nc.open_corpus(tmp_path / "out")
    assert ([copy.document(i).tolist() for i in range(3)], copy.vocab_size) == (DOCUMENTS, 257)


def test_a_change_behind_it_is_noticed(folder: Path) -> None:
    make(folder)
    tokens = folder / "old" / "pair.bin"
    raw = tokens.read_bytes()
    tokens.write_bytes(raw[:-2])
    with pytest.raises(nc.FormatError, match=r"pair\.bin: it has 12 bytes, but corpus\.json expects 14"):
        nc.open_corpus(folder / "corpus.json")
    tokens.write_bytes(raw[:-2] + b"\1\0")  # within the blocks that the fingerprint samples
    with pytest.raises(nc.FormatError, match=r"the fingerprint is .* the data have changed"):
        nc.open_corpus(folder / "corpus.json")
    tokens.unlink()
    with pytest.raises(nc.FormatError, match=r"it names .*pair\.bin, but there is no such file"):
        nc.open_corpus(folder / "corpus.json")


def test_a_change_between_the_sampled_blocks_is_noticed_by_verify(tmp_path: Path) -> None:
    tokens = np.arange(3_000_000, dtype="<u4")
    tokens.tofile(tmp_path / "x.bin")
    make(tmp_path, source=str(tmp_path / "x.bin"), dtype="uint32", boundaries="none")
    tokens[40_000] += 1  # byte 160,000: the first blocks sampled are 0 … 4,095 and 190,410 …
    tokens.tofile(tmp_path / "x.bin")
    corpus = nc.open_corpus(tmp_path / "corpus.json")
    with pytest.raises(nc.FormatError, match=r"x\.bin: its sha256 is .* was recorded"):
        corpus.verify()


def test_what_cannot_be_referred_to_is_refused(folder: Path, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    with pytest.raises(ValueError, match=r"pair\.bin is not below .*: a reference lies in the folder"):
        make(folder, destination=aside / "r.json")
    with pytest.raises(ValueError, match="token 6 is the id 256, outside of the vocabulary of 256 ids"):
        make(folder, vocab_size=256)
    with nc.CorpusWriter(folder / "ours", vocab_size=9) as writer:
        writer.add([1])
    with pytest.raises(ValueError, match="it is a corpus already"):
        make(folder, source=str(folder / "ours"))
    assert not (folder / "corpus.json").exists()
    make(folder)
    with pytest.raises(FileExistsError, match="it is there already"):
        make(folder)
    with pytest.raises(ValueError, match=r"corpus\.json: it is a reference already"):
        make(folder, source=str(folder / "corpus.json"), destination=folder / "second.json")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        make(folder, destination=folder / "nowhere" / "r.json")


def test_every_change_of_a_byte_is_refused(folder: Path) -> None:
    make(folder)
    path = folder / "corpus.json"
    raw = path.read_bytes()
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises((nc.FormatError, ValueError)):
            nc.open_corpus(path)
        path.write_bytes(raw[:at])
        with pytest.raises((nc.FormatError, ValueError)):
            nc.open_corpus(path)
    path.write_bytes(raw)
    nc.open_corpus(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("path", "../old/pair", "it names '../old/pair', which is no path below its own folder"),
        ("path", "/etc/passwd", "it names '/etc/passwd', which is no path"),
        ("path", 7, "it names 7, which is no path"),
        ("files", [{"name": "a/../../b", "num_bytes": 1, "sha256": "0" * 64}], "which is no path below"),
        ("files", 7, "files is no list of objects"),
        ("format_version", 2, "format version 2 is newer than 1"),
        (
            "files",
            [{"name": "old/pair.bin", "num_bytes": 14}],
            "files is no list of objects with name, num_bytes and sha256",
        ),
        (
            "files",
            [{"name": "old/pair.bin", "num_bytes": "14", "sha256": "0" * 64}],
            "num_bytes is '14', expected a whole",
        ),
        ("files", [{"name": "old/pair.bin", "num_bytes": 14, "sha256": 7}], "sha256 is 7, expected text"),
        ("format_version", 0, "format_version is 0, expected 1 to 1"),
        ("format_version", "1", "format_version is '1', expected 1 to 1"),
        ("path", "old/pa\0ir", r"it names 'old/pa\\x00ir', which is no path"),
        ("path", "corpus.json", "it names .*corpus.json, which is a reference itself"),
        ("layout", "reference", "which is a reference itself"),
        ("layout", ["megatron"], r"layout is \['megatron'\], expected text"),
        ("layout", "fairsex", "what it names cannot be opened as it says: layout is 'fairsex'"),
        (
            "dtype",
            "nonsense",
            "what it names cannot be opened as it says: .*dtype is 'nonsense', expected one of numpy's",
        ),
        ("boundaries", "eos:5", "what it names cannot be opened as it says: .* stores its documents"),
        ("fingerprint", None, "fingerprint is None, expected text"),
        ("tokenizer", {"kind": "byte"}, "the tokenizer's keys differ"),
        ("vocab_size", 0, r"vocab_size is 0, expected 1 to 2\^32"),
        ("vocab_size", None, "vocab_size is None, expected a whole number"),
        ("num_tokens", 8, "num_tokens is 8, but .* has 7"),
        ("num_tokens", True, "num_tokens is True, expected a whole number"),
        ("more", 1, "its keys differ from those expected in more"),
    ],
)
def test_a_hostile_reference_is_refused_also_with_a_right_checksum(
    folder: Path, key: str, value: Any, message: str
) -> None:
    make(folder)
    path = folder / "corpus.json"
    data = json.loads(path.read_bytes()) | {key: value}
    del data["checksum"]
    dumped = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    data["checksum"] = hashlib.sha256(dumped).hexdigest()
    path.write_bytes(json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(path)


def test_the_command_refers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "convert",
        str(folder / "old" / "pair"),
        str(folder / "corpus.json"),
        "--reference",
        "--vocab-size",
        "300",
    ]
    assert main(arguments) == 0
    assert "refers to 2 files of 116 bytes: 3 documents, 7 tokens" in capsys.readouterr().out
    assert main(["verify", str(folder / "corpus.json")]) == 0
    assert "as they were when it was written: the sha256 of 2 files was checked" in capsys.readouterr().out
    assert main(arguments) == 1
    assert "it is there already" in capsys.readouterr().err
