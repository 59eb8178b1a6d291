"""``inspect`` shows documents token by token: which text each token is, and which tokens are masked."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc
from prep import cli
from prep.inspect import inspect
from prep.token_edges import masked_of, pieces_of
from prep.tokenizers.byte import ByteTokenizer


def ids_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), dtype=np.uint8)


def test_a_character_of_several_tokens_is_one_piece() -> None:
    pieces = pieces_of(ByteTokenizer(append_eos=False, prepend_bos=False), ids_of("aé€😀b"), np.zeros(11, dtype=bool))
    assert [(piece.text, len(piece.ids)) for piece in pieces] == [("a", 1), ("é", 2), ("€", 3), ("😀", 4), ("b", 1)]


def test_bytes_that_are_no_text_are_shown_as_what_they_decode_to() -> None:
    ids = np.array([97, 0xFF, 98], dtype=np.uint8)
    pieces = pieces_of(ByteTokenizer(append_eos=False, prepend_bos=False), ids, np.zeros(3, dtype=bool))
    assert sum((piece.ids for piece in pieces), []) == [97, 0xFF, 98]  # noqa: RUF017 - three lists
    assert pieces[0].text == "a"


def test_a_special_token_is_shown_by_its_id() -> None:
    tokenizer = ByteTokenizer(append_eos=True, prepend_bos=False)
    pieces = pieces_of(tokenizer, np.array([104, 105, 256], dtype=np.uint16), np.zeros(3, dtype=bool))
    assert [(piece.text, piece.special) for piece in pieces] == [("h", False), ("i", False), ("⟨256⟩", True)]


def test_a_mask_ends_a_piece() -> None:
    masked = np.array([False, True, True])
    pieces = pieces_of(ByteTokenizer(append_eos=False, prepend_bos=False), ids_of("abc"), masked)
    assert [(piece.text, piece.masked) for piece in pieces] == [("a", False), ("b", True), ("c", True)]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("token.loss_mask", nc.Field(dtype="uint8"), np.array([1, 0, 0, 1], dtype=np.uint8)),
        ("ragged.loss_masking_spans", nc.Field(dtype="int64", shape=(2,)), np.array([[1, 3]])),
    ],
)
def test_masked_tokens_are_those_that_the_fields_say(
    tmp_path: Path, name: str, field: nc.Field, value: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = ByteTokenizer(append_eos=False, prepend_bos=False)
    with nc.CorpusWriter(tmp_path / "c", vocab_size=256, tokenizer=tokenizer.identity, fields={name: field}) as writer:
        writer.add(ids_of("wxyz"), {name: value})
    corpus = nc.open_corpus(tmp_path / "c")
    assert masked_of(corpus, 0, 4).tolist() == [False, True, True, False]
    assert [piece["masked"] for piece in inspect(corpus, tmp_path / "c")["first_documents"][0]["pieces"]] == [
        False,
        True,
        True,
        False,
    ]
    assert cli.main(["inspect", str(tmp_path / "c")]) == 0
    assert "4 tokens (2 of the 4 shown are masked): 'wxyz'" in capsys.readouterr().out


def test_colour_is_for_terminals_and_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = ByteTokenizer(append_eos=False, prepend_bos=False)
    with nc.CorpusWriter(tmp_path / "c", vocab_size=256, tokenizer=tokenizer.identity) as writer:
        writer.add(ids_of("a\x1b[2Jb"))  # a text that would clear the screen
    assert cli.main(["inspect", str(tmp_path / "c")]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert cli.main(["inspect", str(tmp_path / "c"), "--color", "always"]) == 0
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert re.sub(r"\x1b\[[\d;]*m", "", out).count("a\\x1b[2Jb") == 1
    assert len(set(re.findall(r"\x1b\[[\d;]+m", out))) >= 2  # two shades at least
