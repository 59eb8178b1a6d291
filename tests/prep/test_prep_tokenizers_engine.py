"""The engine: gigatoken encodes where its ids proved to be those of the tokenizer's own library, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prep.extras import MissingExtraError
from prep.pieces import Options
from prep.prepare import prepare
from prep.tokenizers import Settings, gigatoken_engine, open_tokenizer
from prep.tokenizers.gigatoken_engine import GigatokenEncoder
from prep.tokenizers.proof import check_excerpts, choose_engine, difficult, excerpt, first

TEXTS = ["hello world, hello\n", "", "<|endoftext|>", "näïve ﬁ 漢字 👩‍👩‍👧"]


class Panic(BaseException):
    """As pyo3's PanicException is: no Exception."""


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A byte-level BPE with a special token, trained on a few words."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world end of text"] * 9, trainer)
    path = tmp_path / "words" / "tokenizer.json"
    path.parent.mkdir()
    tokenizer.save(str(path))
    return path


def settings(path: Path, **asked: Any) -> Settings:
    return Settings(kind="tokenizer.json", path=str(path), **asked)


def pretend(monkeypatch: pytest.MonkeyPatch, encode: Callable[[str], Any]) -> None:
    """Put another library in gigatoken's place."""
    made = SimpleNamespace(encode=encode)
    module = SimpleNamespace(Tokenizer=SimpleNamespace(from_json=lambda text: made))
    monkeypatch.setitem(sys.modules, "gigatoken", module)


def honest(path: Path) -> Callable[[str], Any]:
    reference = open_tokenizer(settings(path))
    return lambda text: reference.encode([text])[0]


@pytest.mark.parametrize("allow", [False, True])
def test_gigatoken_proves_itself_on_a_byte_level_tokenizer(words: Path, allow: bool) -> None:
    pytest.importorskip("gigatoken")
    own = open_tokenizer(settings(words, append_eos=True, allow_special=allow))
    fast, engine, note = choose_engine("auto", own, TEXTS, allow_special=allow)
    assert engine == "gigatoken"
    assert note is not None
    assert note.startswith("gigatoken encodes: its ids are those of the tokenizers library for ")
    assert fast.identity == own.identity
    for found, expected in zip(fast.encode(TEXTS), own.encode(TEXTS), strict=True):
        assert np.array_equal(found, expected)
    assert (0 in fast.encode(["a<|endoftext|>b"])[0]) is allow
    assert fast.encode([])[0].tolist() == []


def test_text_of_special_tokens_is_among_the_difficult_texts(words: Path) -> None:
    texts = difficult(open_tokenizer(settings(words)))
    assert {"", "\0", "<|endoftext|>", "a<|endoftext|>b", "ÿ", "\u0301\u0301 \u0300a"} <= set(texts)
    for text in texts:
        text.encode("utf-8")


def test_special_tokens_that_are_taken_out_of_text_are_noticed(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gigatoken")
    monkeypatch.setattr(gigatoken_engine, "_without_special", lambda text: text)
    _, engine, note = choose_engine("auto", open_tokenizer(settings(words)), [])
    assert engine == "tokenizers"
    assert note is not None
    assert "gigatoken gives other ids than the tokenizers library for '" in note
    assert "<|endoftext|>" in note


def test_a_tokenizer_that_gigatoken_refuses_falls_back_and_that_is_said(tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.save(str(tmp_path / "t.json"))
    _, engine, note = choose_engine("auto", open_tokenizer(settings(tmp_path / "t.json")), ["a b"])
    assert engine == "tokenizers"
    assert note is not None
    assert note.startswith("the tokenizers library encodes: gigatoken does not take this tokenizer (")


@pytest.mark.parametrize("error", [Panic("index out of bounds"), RuntimeError("unsupported NFKC.")])
@pytest.mark.parametrize("rare", [False, True])
def test_a_panic_falls_back(words: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, rare: bool) -> None:
    right = honest(words)

    def encode(text: str) -> Any:
        if not rare or "漢" in text:
            raise error
        return right(text)

    pretend(monkeypatch, encode)
    _, engine, note = choose_engine("auto", open_tokenizer(settings(words)), TEXTS)
    assert engine == "tokenizers"
    assert note == (
        "the tokenizers library encodes: gigatoken does not take this tokenizer "
        f"({type(error).__name__}: {str(error).rstrip('.')})."
    )
    with pytest.raises(ValueError, match=r"--tokenizer-engine gigatoken: gigatoken does not take .* leave it out"):
        choose_engine("gigatoken", open_tokenizer(settings(words)), TEXTS)


def test_control_c_is_no_refusal(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(text: str) -> Any:
        raise KeyboardInterrupt

    pretend(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        choose_engine("auto", open_tokenizer(settings(words)), TEXTS)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text, ids: ids[:-1] if "own words" in text else ids,
        lambda text, ids: ids + (text == "\0"),
        lambda text, ids: ids[:0] if text.endswith("\u0301") else ids,
    ],
)
def test_other_ids_for_one_text_are_enough(
    words: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str, Any], Any]
) -> None:
    right = honest(words)
    pretend(monkeypatch, lambda text: wrong(text, right(text)))
    texts = [*TEXTS, "the corpus's own words"]
    _, engine, note = choose_engine("auto", open_tokenizer(settings(words)), texts)
    assert engine == "tokenizers"
    assert note is not None
    assert "gigatoken gives other ids than the tokenizers library for " in note
    with pytest.raises(ValueError, match=r"gigatoken gives other ids .*: leave it out, and the tokenizers library"):
        choose_engine("gigatoken", open_tokenizer(settings(words)), texts)


def test_ids_shifted_between_two_documents_are_noticed(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = honest(words)
    pretend(monkeypatch, lambda text: {"hello": right("hello "), " x": right("x")}.get(text, right(text)))
    if right("hello ").tolist() + right("x").tolist() != right("hello").tolist() + right(" x").tolist():
        pytest.fail("the two cuts have to give the same stream for this test to mean something")
    assert choose_engine("auto", open_tokenizer(settings(words)), ["hello", " x"])[1] == "tokenizers"


def test_without_gigatoken_the_library_encodes_and_it_is_said_what_to_install(
    words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    _, engine, note = choose_engine("auto", open_tokenizer(settings(words)), TEXTS)
    assert engine == "tokenizers"
    assert note is not None
    assert note.endswith("pip install 'millstream[fast]'.")
    with pytest.raises(MissingExtraError, match=r"the engine gigatoken needs gigatoken: pip install"):
        choose_engine("gigatoken", open_tokenizer(settings(words)), TEXTS)


def test_bytes_and_characters_have_no_engine_to_choose() -> None:
    for asked in (Settings(kind="byte"), Settings(kind="char", characters="ab")):
        tokenizer = open_tokenizer(asked)
        assert choose_engine("auto", tokenizer, ["ab"]) == (tokenizer, "tokenizers", None)
    with pytest.raises(ValueError, match="gigatoken has nothing to do for a byte tokenizer"):
        choose_engine("gigatoken", open_tokenizer(Settings(kind="byte")), ["ab"])


def test_an_engine_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of auto, tokenizers, gigatoken"):
        choose_engine("giga", open_tokenizer(Settings(kind="byte")), [])


def test_the_library_asked_for_is_taken_unproved(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    tokenizer = open_tokenizer(settings(words))
    assert choose_engine("tokenizers", tokenizer, TEXTS) == (tokenizer, "tokenizers", None)


def test_a_quarter_of_a_mebibyte_of_documents_is_tried() -> None:
    texts = ["é" * 75_000, "b" * 100_000, "c" * 100_000, "d"]
    assert [len(text) for text in first(texts)] == [75_000, 100_000, (1 << 18) - 250_000]
    assert list(first(["é" * (1 << 18)])) == ["é" * (1 << 17)]
    assert list(first(["", "a"])) == ["", "a"]


def test_text_that_the_proof_had_not_seen_is_still_compared(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = honest(words)
    pretend(monkeypatch, lambda text: right(text)[::-1] if "unseen" in text else right(text))
    (tmp_path / "a.txt").write_text("\n".join(["seen words and others"] * 20_000 + ["unseen words"] * 20_000))
    options = Options(
        inputs=(str(tmp_path / "a.txt"),),
        destination=tmp_path / "out",
        documents="line",
        tokenizer=settings(words),
        workers=1,
    )
    for _ in range(2):  # what a rerun finds is not trusted either
        with pytest.raises(
            ValueError, match=r"gigatoken gives other ids for 'unseen words' .*--tokenizer-engine token"
        ):
            prepare(options)
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_an_excerpt_is_a_piece_of_one_of_the_texts_and_the_number_decides_of_which(words: Path) -> None:
    tokenizer = open_tokenizer(settings(words))
    texts = ["short", "a long text of which a piece is enough, wherever it may stand in it, for as long as it is one"]
    found = [excerpt(tokenizer, texts, number) for number in range(8)]
    assert {len(text) for text, _ in found} == {5, 48}
    assert all(text in texts[0] or text in texts[1] for text, _ in found)
    assert len({text for text, _ in found}) > 2
    assert excerpt(tokenizer, [""], 3) == ("", [])
    check_excerpts(tokenizer, found)
    with pytest.raises(ValueError, match="gigatoken gives other ids for 'short'"):
        check_excerpts(tokenizer, [["short", [1, 2]]])


def test_the_library_is_loaded_anew_once_the_process_has_grown(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[int] = []
    right = honest(words)
    made = SimpleNamespace(encode=right)
    module = SimpleNamespace(Tokenizer=SimpleNamespace(from_json=lambda text: loads.append(1) or made))
    monkeypatch.setitem(sys.modules, "gigatoken", module)
    size = [0]
    monkeypatch.setattr(gigatoken_engine, "_resident", lambda: size[0])
    monkeypatch.setattr(gigatoken_engine, "_LOOK_CHARACTERS", 10)
    reference = open_tokenizer(settings(words))
    assert reference.definition is not None
    tokenizer = GigatokenEncoder(reference.definition, reference.identity, allow_special=False)
    tokenizer.encode(["hello world"])
    assert len(loads) == 1, "it has not grown"
    size[0] = (256 << 20) + 1
    tokenizer.encode(["hello"])
    assert len(loads) == 1, "it is too early to look"
    tokenizer.encode(["hello world"])
    assert len(loads) == 2
    tokenizer.encode(["hello world"])
    assert len(loads) == 2, "growth is counted from the last load"


def test_encoding_loads_neither_torch_nor_transformers_nor_awkward(words: Path) -> None:
    pytest.importorskip("gigatoken")
    program = (
        "import sys\n"
        "from prep.tokenizers import Settings, open_tokenizer\n"
        "from prep.tokenizers.proof import choose_engine\n"
        "assert not {'tokenizers', 'tiktoken', 'sentencepiece', 'gigatoken'} & set(sys.modules)\n"
        f"own = open_tokenizer(Settings(kind='tokenizer.json', path={str(words)!r}))\n"
        "encoder, engine, _ = choose_engine('auto', own, ['a', 'b'])\n"
        "assert engine == 'gigatoken'\n"
        "encoder.encode(['a', 'b'])\n"
        "print(sorted({'torch', 'transformers', 'awkward', 'tiktoken', 'sentencepiece'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "name", ["gpt2", "cl100k_base", "o200k_base", "r50k_base.tiktoken", "cl100k_base.tiktoken", "o200k_base.tiktoken"]
)
@pytest.mark.slow
def test_public_vocabularies_are_encoded_by_gigatoken_with_identical_ids(tokenizers: Path, name: str) -> None:
    pytest.importorskip("gigatoken")
    sources = sorted(Path(subprocess.__file__).parent.rglob("*.py"))[:3000]
    texts = [path.read_text(encoding="utf-8", errors="ignore")[:20_000] for path in sources]
    own = open_tokenizer(settings(tokenizers / name))
    fast, engine, _ = choose_engine("auto", own, texts)
    assert engine == "gigatoken"
    for found, expected in zip(fast.encode(texts), own.encode(texts), strict=True):
        assert np.array_equal(found, expected)
