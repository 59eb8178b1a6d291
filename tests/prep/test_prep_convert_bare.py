"""Layouts that do not say where documents begin, converted: the same documents come out; nanoGPT's table of characters as a tokenizer."""

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep import convert, inspect
from prep.tokenizers import Settings, open_tokenizer

TEXT = "to be, or not to be"
LETTERS = sorted(set(TEXT))
IDS = [LETTERS.index(letter) for letter in TEXT]


def ids(tokens: Any, dtype: str = "<u2") -> bytes:
    return np.array(tokens, dtype=dtype).tobytes()


def llm_c(folder: Path) -> tuple[Path, str]:
    for number, tokens in enumerate([[50256, 1, 2, 50256, 3], [4, 5, 50256, 6]]):
        head = struct.pack("<3I", 20240520, 1, len(tokens)).ljust(1024, b"\0")
        (folder / f"web_train_{number:06d}.bin").write_bytes(head + ids(tokens))
    return folder, "bos:50256"


def litpkds(folder: Path) -> tuple[Path, str]:
    for number, tokens in enumerate([[1, 5, 6, 1], [7, 8, 1, 1]]):
        head = b"LITPKDS" + struct.pack("<QBQ", 1, 8, 4)
        (folder / f"train_0_{number:010d}.bin").write_bytes(head + ids(tokens))
    return folder, "bos:1"


def npy(folder: Path) -> tuple[Path, None]:
    np.save(folder / "a.npy", np.array([[1, 2, 3], [4, 5, 6]], dtype="<u4"))
    return folder / "a.npy", None


def nanogpt(folder: Path) -> tuple[Path, str]:
    table = {
        "vocab_size": len(LETTERS),
        "itos": dict(enumerate(LETTERS)),
        "stoi": {letter: number for number, letter in enumerate(LETTERS)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(table))
    (folder / "train.bin").write_bytes(ids(IDS))
    return folder / "train.bin", "none"


EXPECTED: dict[Any, Any] = {
    llm_c: [[50256, 1, 2], [50256, 3], [4, 5], [50256, 6]],
    litpkds: [[1, 5, 6], [1], [7, 8]],
    npy: [[1, 2, 3], [4, 5, 6]],
    nanogpt: [IDS],
}


@pytest.mark.parametrize("write", EXPECTED, ids=lambda write: write.__name__)
def test_the_same_documents_come_out_in_the_same_order(tmp_path: Path, write: Any) -> None:
    (tmp_path / "source").mkdir()
    source, boundaries = write(tmp_path / "source")
    options = convert.Options(source=str(source), destination=tmp_path / "c", boundaries=boundaries, tokens_per_shard=4)
    report = convert.convert(options)
    corpus = nc.open_corpus(tmp_path / "c")
    assert [corpus.document(number).tolist() for number in range(corpus.num_documents)] == EXPECTED[write]
    corpus.verify()
    assert set(nc.open_corpus(source, boundaries=boundaries).notes) <= set(report["notes"])


def test_nanogpt_s_table_decodes_what_was_converted(tmp_path: Path) -> None:
    source, _ = nanogpt(tmp_path)
    settings = Settings(kind="tokenizer.json", path=str(tmp_path / "meta.pkl"))
    options = convert.Options(source=str(source), destination=tmp_path / "c", boundaries="none", tokenizer=settings)
    convert.convert(options)
    corpus = nc.open_corpus(tmp_path / "c")
    assert (corpus.dtype, corpus.vocab_size) == (np.uint8, len(LETTERS))
    assert corpus.tokenizer == open_tokenizer(Settings(kind="char", characters="".join(LETTERS))).identity
    assert inspect.inspect(corpus, tmp_path / "c")["first_documents"][0]["text"] == TEXT
    assert json.loads((tmp_path / "c" / "tokenizer.json").read_bytes())["characters"] == "".join(LETTERS)


@pytest.mark.parametrize(
    ("letters", "message"),
    [("ba", "the characters are not sorted"), (["a", "bc"], "itos holds texts that are no single")],
)
def test_a_table_that_is_no_tokenizer_of_characters_is_refused(tmp_path: Path, letters: Any, message: str) -> None:
    table = {"vocab_size": 2, "itos": dict(enumerate(letters)), "stoi": {text: n for n, text in enumerate(letters)}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(table))
    settings = Settings(kind="tokenizer.json", path=str(tmp_path / "meta.pkl"))
    with pytest.raises(ValueError, match=rf"meta.pkl: {message}"):
        open_tokenizer(settings)
    with pytest.raises(ValueError, match="leave --eos-token and --bos-token out"):
        open_tokenizer(Settings(kind="tokenizer.json", path=str(tmp_path / "meta.pkl"), eos_token="</s>"))


def test_inspect_and_verify_do_not_claim_more_of_a_foreign_file_that_says_its_vocabulary(tmp_path: Path) -> None:
    source, _ = nanogpt(tmp_path)
    corpus = nc.open_corpus(source, boundaries="none")
    assert inspect.inspect(corpus, source)["why_dtype"] == f"uint16, for {len(LETTERS)} ids"
    assert "such files carry no checksums" in inspect.verify(corpus, "train")[0]
