"""SentencePiece models and .tiktoken files: ids are the library's own, nothing is guessed, and rows decode again."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc
from prep.cli import main
from prep.tokenizers import Settings, Tokenizer, first_outside, open_stored, open_tokenizer, stored_files
from prep.tokenizers.files import kind_of
from prep.tokenizers.tiktoken_ranks import known_encodings

# The bytes, then "he", "ll", "hell", "o ": ranks as byte-pair merging would find them.
PIECES = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"o "]
RANKS = b"".join(base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(PIECES))
SIDE = {"pattern": r"\S+\s*|\s+", "special_tokens": {"<|endoftext|>": 300, "<s>": 301}}


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    ids, lengths = tokenizer.encode(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def settings(path: Path, **asked: object) -> Settings:
    return Settings(kind="tokenizer.json", path=str(path), **asked)  # type: ignore[arg-type]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    pytest.importorskip("tiktoken")
    path = tmp_path / "mine" / "mine.tiktoken"
    path.parent.mkdir()
    path.write_bytes(RANKS)
    path.with_name("mine.tiktoken.json").write_text(json.dumps(SIDE))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    library = pytest.importorskip("sentencepiece")
    made = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "a b c d e f g"] * 20),
        model_writer=made,
        model_type="bpe",
        vocab_size=290,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = tmp_path / "model" / "tokenizer.model"
    path.parent.mkdir()
    path.write_bytes(made.getvalue())
    return path


def test_ranks_merge_the_lowest_first(ranks: Path) -> None:
    tokenizer = open_tokenizer(settings(ranks))
    assert ids_of(tokenizer, "hello h", "", "é") == [[258, 259, 104], [], [0xC3, 0xA9]]
    assert (tokenizer.identity.kind, tokenizer.identity.name, tokenizer.identity.vocab_size) == (
        "tiktoken",
        "mine",
        302,
    )


@pytest.mark.parametrize(("allow", "middle"), [(False, list(b"<|endoftext|>")), (True, [300])])
def test_text_that_spells_a_special_token_of_ranks_is_text_unless_allowed(
    ranks: Path, allow: bool, middle: list[int]
) -> None:
    assert ids_of(open_tokenizer(settings(ranks, allow_special=allow)), "a<|endoftext|>b") == [[97, *middle, 98]]


def test_eos_and_bos_of_ranks_are_the_ones_of_well_known_names(ranks: Path) -> None:
    tokenizer = open_tokenizer(settings(ranks, append_eos=True, prepend_bos=True))
    assert (tokenizer.identity.eos_id, tokenizer.identity.bos_id) == (300, 301)
    assert ids_of(tokenizer, "he") == [[256]], "edges are added once, by with_edges"


def test_ranks_without_a_pattern_are_refused_with_what_to_write(ranks: Path) -> None:
    ranks.with_name("mine.tiktoken.json").unlink()
    with pytest.raises(
        ValueError,
        match=r"mine\.tiktoken: it is none of the files that tiktoken knows .* write them into mine\.tiktoken\.json",
    ):
        open_tokenizer(settings(ranks))


@pytest.mark.parametrize(
    ("side", "sentence"),
    [
        ({}, "its keys are not those expected"),
        ({"pattern": "a", "specials": {}}, "its keys are not those expected"),
        ({"encoding": "cl100k"}, "the encoding 'cl100k' is none of .*cl100k_base"),
        ({"encoding": "cl100k_base"}, "cl100k_base has ranks of sha256 223921b7"),
        ({"pattern": "("}, "tiktoken cannot use it"),
        ({"pattern": "a", "special_tokens": {"<s>": 3}}, "a special token has the id of an ordinary one"),
        ({"pattern": "a", "special_tokens": {"<s>": "3"}}, "an id of a special token is no number"),
    ],
)
def test_a_side_file_that_says_something_else_is_refused(ranks: Path, side: object, sentence: str) -> None:
    ranks.with_name("mine.tiktoken.json").write_text(json.dumps(side))
    with pytest.raises(ValueError, match=sentence):
        open_tokenizer(settings(ranks))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[data.index(b"\n") + 1 :], "the byte 0 has no rank"),
        (lambda data: data + b"!! 7\n", "line 261 is '!! 7'"),
        (lambda data: data + b"aGVsbG8= 3\n", "two byte strings have the same rank"),
        (lambda data: data + b"aGVsbG8=\n", "line 261 is 'aGVsbG8='"),
    ],
)
def test_damaged_ranks_are_refused(ranks: Path, change: object, sentence: str) -> None:
    ranks.write_bytes(change(RANKS))  # type: ignore[operator]
    with pytest.raises(ValueError, match=sentence):
        open_tokenizer(settings(ranks))


def test_ranks_cut_anywhere_are_refused_or_are_fewer_whole_lines(ranks: Path) -> None:
    for size in range(0, len(RANKS), 97):
        ranks.write_bytes(RANKS[:size])
        with pytest.raises(ValueError, match=r"mine"):
            open_tokenizer(settings(ranks))


def test_a_known_file_has_the_pattern_and_special_tokens_that_tiktoken_gives_it(tokenizers: Path) -> None:
    pytest.importorskip("tiktoken")
    for name, size, eos, expected in (
        ("r50k_base", 50257, 50256, [15496, 995]),
        ("cl100k_base", 100277, 100257, [9906, 1917]),
        ("o200k_base", 200019, 199999, [13225, 2375]),
    ):
        tokenizer = open_tokenizer(settings(tokenizers / f"{name}.tiktoken", append_eos=True))
        identity = tokenizer.identity
        assert (identity.name, identity.vocab_size, identity.eos_id) == (name, size, eos)
        assert ids_of(tokenizer, "Hello world") == [expected]
        assert eos not in ids_of(tokenizer, "<|endoftext|>")[0]


def test_a_known_file_is_known_by_its_content_and_not_by_its_name(tokenizers: Path, tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    (tmp_path / "o200k_base.tiktoken").write_bytes((tokenizers / "cl100k_base.tiktoken").read_bytes())
    (tmp_path / "cl100k_base.tiktoken").write_bytes(RANKS)
    assert open_tokenizer(settings(tmp_path / "o200k_base.tiktoken")).identity.name == "cl100k_base"
    with pytest.raises(ValueError, match="none of the files that tiktoken knows"):
        open_tokenizer(settings(tmp_path / "cl100k_base.tiktoken"))


def test_the_library_is_asked_without_a_download() -> None:
    pytest.importorskip("tiktoken")
    assert {"r50k_base", "p50k_base", "cl100k_base", "o200k_base", "o200k_harmony"} <= set(known_encodings())
    assert "gpt2" not in known_encodings(), "it is made of two files of another form"


def test_a_model_gives_the_ids_of_its_library(model: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    own = library.SentencePieceProcessor(model_file=str(model))
    texts = ["hello world", "", "a\n\n b  é", "x</s><s>y"]
    assert ids_of(open_tokenizer(settings(model)), *texts) == own.encode(texts)


def test_a_models_own_eos_and_bos_are_taken_and_said_and_text_never_is_one(model: Path) -> None:
    tokenizer = open_tokenizer(settings(model, append_eos=True, prepend_bos=True))
    assert (tokenizer.identity.bos_id, tokenizer.identity.eos_id) == (1, 2)
    assert [note for note in tokenizer.notes if "as the model says" in note] == [
        "EOS is '</s>' (id 2), as the model says.",
        "BOS is '<s>' (id 1), as the model says.",
    ]
    assert not {1, 2} & set(ids_of(tokenizer, "<s>hello</s>")[0])
    assert tokenizer.decode(np.array([1, *ids_of(tokenizer, "hello")[0], 2])) == "hello"


def test_a_model_has_no_way_to_allow_special_tokens(model: Path) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        open_tokenizer(settings(model, allow_special=True))


def test_another_eos_of_a_model_is_one_of_its_pieces(model: Path) -> None:
    assert open_tokenizer(settings(model, append_eos=True, eos_token="<unk>")).identity.eos_id == 0
    with pytest.raises(ValueError, match="the token '<no>' that is to be EOS is not in its vocabulary"):
        open_tokenizer(settings(model, append_eos=True, eos_token="<no>"))


def test_a_model_that_loses_white_space_is_said_to(model: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    made = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world"] * 9), model_writer=made, vocab_size=16, model_type="bpe", minloglevel=2
    )
    (tmp_path / "lossy.model").write_bytes(made.getvalue())
    assert any("text does not come back" in note for note in open_tokenizer(settings(tmp_path / "lossy.model")).notes)
    assert not any("text does not come back" in note for note in open_tokenizer(settings(model)).notes)


def test_bytes_that_only_begin_like_a_model_are_refused(model: Path) -> None:
    model.write_bytes(b"\n\xff\xff no model")
    with pytest.raises(ValueError, match="it is no SentencePiece model"):
        open_tokenizer(settings(model))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
        (b"IQ== 0\r\n", "tiktoken"),
        (b'{"kind":"tiktoken","name":"x"}', "tiktoken"),
        (b"\n\x0e\n\x05<unk>\x15", "sentencepiece"),
        (b'{"version": "1.0"}', "tokenizer.json"),
        (b'\n{"version": "1.0"}', "tokenizer.json"),
        (b"", "tokenizer.json"),
    ],
)
def test_a_file_is_what_its_content_is(content: bytes, kind: str) -> None:
    assert kind_of(content) == kind


@pytest.mark.parametrize(("kind", "name"), [("ranks", "tokenizer.tiktoken.json"), ("model", "tokenizer.model")])
def test_a_corpus_decodes_by_what_is_stored_with_it(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    path: Path = request.getfixturevalue(kind)
    (tmp_path / "a.txt").write_text("hello world")
    corpus = tmp_path / "corpus"
    asked = ["--tokenizer", str(path), "--append-eos", "--prepend-bos", "--workers", "1"]
    assert main(["prepare", str(tmp_path / "a.txt"), str(corpus), *asked]) == 0
    identity = nc.open_corpus(corpus).tokenizer
    assert identity is not None
    assert identity.sha256 == hashlib.sha256((corpus / name).read_bytes()).hexdigest()
    path.unlink()
    stored = open_stored(corpus, identity)
    assert stored.decode(nc.open_corpus(corpus).document(0)) == "hello world"
    again = open_tokenizer(settings(corpus, append_eos=True, prepend_bos=True))
    assert (again.identity.sha256, again.identity.eos_id) == (identity.sha256, identity.eos_id)
    capsys.readouterr()
    assert main(["inspect", str(corpus)]) == 0
    assert "hello world" in capsys.readouterr().out
    (corpus / name).write_bytes((corpus / name).read_bytes() + b"\n")
    with pytest.raises(nc.FormatError, match="it is another tokenizer"):
        open_stored(corpus, identity)


def test_a_kind_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"x")
    identity = nc.TokenizerIdentity(kind="new", name="n", sha256=hashlib.sha256(b"x").hexdigest(), vocab_size=3)
    with pytest.raises(nc.FormatError, match="of the kind 'new'"):
        open_stored(tmp_path, identity)


def test_what_is_stored_has_one_name_a_kind(ranks: Path, model: Path) -> None:
    assert list(stored_files(open_tokenizer(settings(ranks)))) == ["tokenizer.tiktoken.json"]
    assert list(stored_files(open_tokenizer(settings(model)))) == ["tokenizer.model"]
    assert stored_files(open_tokenizer(Settings(kind="byte"))) == {}


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], None),
        ([0, 1, 2, 3, 4], None),
        ([0, 9, 2, 3, 5], (0, 1, 9)),
        ([0, 1, 5, 3, 9], (2, 0, 5)),
        ([0, 1, 2, 3, -1], (2, 2, -1)),
    ],
)
def test_the_first_id_outside_is_found_by_document_and_position(
    ids: list[int], expected: tuple[int, int, int] | None
) -> None:
    lengths = np.array([2, 0, 3] if ids else [0, 0], dtype=np.int64)
    assert first_outside(np.array(ids, dtype=np.int64), lengths, 5) == expected
