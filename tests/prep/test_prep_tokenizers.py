"""Tokenizers: ids are those of the definition, nothing is added that was not asked for, and rows decode again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc
from prep.tokenizers import Settings, Tokenizer, open_stored, open_tokenizer, stored_files, with_edges

LLAMA = "allenai+dolma/tests/data/tokenizer/llama-test-tokenizer.json"
GPT_NEO = "allenai+dolma/tests/data/tokenizer/gpt-neo-test-tokenizer.json"
PYTHIA = "EleutherAI+pythia/utils/20B_tokenizer.json"
NANOGPT = "karpathy+nanoGPT/data/shakespeare_char"


def ids_of(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    ids, lengths = tokenizer.encode(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize(
    ("eos", "bos", "size", "eos_id", "bos_id"),
    [
        (False, False, 256, None, None),
        (True, False, 257, 256, None),
        (False, True, 257, None, 256),
        (True, True, 258, 256, 257),
    ],
)
def test_bytes_have_256_ids_then_eos_then_bos(
    eos: bool, bos: bool, size: int, eos_id: int | None, bos_id: int | None
) -> None:
    identity = open_tokenizer(Settings(kind="byte", append_eos=eos, prepend_bos=bos)).identity
    assert (identity.vocab_size, identity.eos_id, identity.bos_id) == (size, eos_id, bos_id)


def test_byte_ids_are_the_bytes_of_the_text() -> None:
    tokenizer = open_tokenizer(Settings(kind="byte"))
    assert ids_of(tokenizer, "a", "", "é€") == [[97], [], [0xC3, 0xA9, 0xE2, 0x82, 0xAC]]


def test_bytes_decode_without_eos_and_bos_and_show_a_cut_character() -> None:
    tokenizer = open_tokenizer(Settings(kind="byte", append_eos=True, prepend_bos=True))
    assert tokenizer.decode(np.array([257, 97, 0xC3, 0xA9, 256, 0xC3], dtype=np.uint16)) == "aé\ufffd"


def test_byte_tokenizers_with_other_edges_are_told_apart() -> None:
    settings = [
        Settings(kind="byte", append_eos=eos, prepend_bos=bos) for eos in (False, True) for bos in (False, True)
    ]
    assert len({open_tokenizer(setting).identity.sha256 for setting in settings}) == 4


def test_characters_are_numbered_by_their_sorted_code_points() -> None:
    tokenizer = open_tokenizer(
        Settings(kind="char", characters="\n ab\uffee\U0001f600", append_eos=True, prepend_bos=True)
    )
    assert ids_of(tokenizer, "b\U0001f600", "", "a\n\uffee") == [[3, 5], [], [2, 0, 4]]
    assert (tokenizer.identity.vocab_size, tokenizer.identity.eos_id, tokenizer.identity.bos_id) == (8, 6, 7)


def test_characters_decode_to_the_text_without_the_edges() -> None:
    tokenizer = open_tokenizer(Settings(kind="char", characters="ab\U0001f600", append_eos=True))
    assert tokenizer.decode(np.array([2, 0, 3, 1], dtype=np.uint8)) == "\U0001f600ab"


@pytest.mark.parametrize("text", ["c", "A", "\U0001f600"])
def test_a_character_outside_of_the_list_is_refused(text: str) -> None:
    tokenizer = open_tokenizer(Settings(kind="char", characters="abd"))
    with pytest.raises(ValueError, match="is not one of the tokenizer's 3"):
        tokenizer.encode(["ab", text])


def test_no_characters_at_all_is_a_tokenizer_for_empty_documents() -> None:
    assert ids_of(open_tokenizer(Settings(kind="char", characters="")), "", "") == [[], []]


@pytest.mark.parametrize("characters", ["ba", "aab"])
def test_characters_that_are_not_sorted_once_each_are_refused(characters: str) -> None:
    with pytest.raises(ValueError, match="not sorted, or one occurs twice"):
        open_tokenizer(Settings(kind="char", characters=characters))


def test_nanogpts_text_becomes_the_ids_that_nanogpt_wrote(fixtures: Path) -> None:
    text = (fixtures / NANOGPT / "input.txt").read_bytes().decode()
    expected = np.concatenate(
        [np.fromfile(fixtures / NANOGPT / name, dtype="<u2") for name in ("train.bin", "val.bin")]
    )
    tokenizer = open_tokenizer(Settings(kind="char", characters="".join(sorted(set(text)))))
    ids, _ = tokenizer.encode([text])
    assert tokenizer.identity.vocab_size == 65
    assert np.array_equal(ids, expected)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A word tokenizer whose post-processor adds BOS and EOS by itself, with an added token that is not special and holes in its ids."""
    library = pytest.importorskip("tokenizers")
    model = library.models.WordLevel(
        {"[UNK]": 0, "hello": 1, "world": 2, "<s>": 3, "</s>": 4, "<": 5, "s": 6, ">": 7}, unk_token="[UNK]"
    )
    tokenizer = library.Tokenizer(model)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens(["newword"])
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 3), ("</s>", 4)]
    )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9, pad_id=0)
    assert tokenizer.encode("hello").ids == [3, 4] + [0] * 7, "the library adds, cuts and pads by itself"
    path = tmp_path / "tiny" / "tokenizer.json"
    path.parent.mkdir()
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_file_adds_cuts_and_pads_nothing_by_itself(tiny: Path) -> None:
    tokenizer = open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny)))
    assert ids_of(tokenizer, "hello world hello", "", "newword") == [[1, 2, 1], [], [8]]


def test_the_vocabulary_counts_added_tokens(tiny: Path) -> None:
    assert open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny))).identity.vocab_size == 9


def test_text_that_spells_a_special_token_stays_text(tiny: Path) -> None:
    tokenizer = open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny)))
    assert not {3, 4} & set(ids_of(tokenizer, "hello <s> world </s>")[0])


def test_text_that_spells_a_special_token_becomes_it_where_that_is_allowed(tiny: Path) -> None:
    tokenizer = open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny), allow_special=True))
    assert ids_of(tokenizer, "hello <s> world </s>") == [[1, 3, 2, 4]]


def test_the_folder_of_a_tokenizer_file_serves_as_its_path(tiny: Path) -> None:
    identity = open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny.parent))).identity
    assert identity == nc.TokenizerIdentity(
        kind="tokenizer.json", name="tiny", sha256=hashlib.sha256(tiny.read_bytes()).hexdigest(), vocab_size=9
    )


def test_the_one_token_of_a_well_known_name_is_eos_and_that_is_said(tiny: Path) -> None:
    tokenizer = open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny), append_eos=True, prepend_bos=True))
    assert (tokenizer.identity.eos_id, tokenizer.identity.bos_id) == (4, 3)
    assert [note[:14] for note in tokenizer.notes] == ["EOS is '</s>' ", "BOS is '<s>' ("]


@pytest.mark.parametrize("value", ["newword", {"content": "newword", "lstrip": False}])
def test_the_files_beside_a_tokenizer_say_which_token_is_eos(tiny: Path, value: object) -> None:
    (tiny.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
    assert open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny), append_eos=True)).identity.eos_id == 8


def test_an_eos_that_is_asked_for_goes_before_what_files_say(tiny: Path) -> None:
    (tiny.parent / "tokenizer_config.json").write_text('{"eos_token": "newword"}')
    settings = Settings(kind="tokenizer.json", path=str(tiny), append_eos=True, eos_token="</s>")
    assert open_tokenizer(settings).identity.eos_id == 4


def test_an_ambiguous_eos_is_refused_with_the_candidates(tiny: Path) -> None:
    data = json.loads(tiny.read_bytes())
    data["added_tokens"].append({**data["added_tokens"][0], "id": 9, "content": "<|endoftext|>"})
    tiny.write_text(json.dumps(data))
    with pytest.raises(
        ValueError, match=r"which token is EOS; name it with --eos-token\. Candidates: <\|endoftext\|>, </s>\."
    ):
        open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny), append_eos=True))


def test_a_tokenizer_without_a_known_eos_is_refused_with_its_added_tokens(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.add_special_tokens(["<stop>"])
    tokenizer.save(str(tmp_path / "t.json"))
    with pytest.raises(ValueError, match=r"Candidates: <stop>\."):
        open_tokenizer(Settings(kind="tokenizer.json", path=str(tmp_path / "t.json"), append_eos=True))


def test_any_token_of_the_vocabulary_can_be_named_as_eos(tiny: Path) -> None:
    settings = Settings(kind="tokenizer.json", path=str(tiny), append_eos=True, eos_token="world")
    assert open_tokenizer(settings).identity.eos_id == 2


def test_eos_is_found_in_a_unigram_vocabulary_which_is_a_list(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    path = tmp_path / "t.json"
    library.Tokenizer(library.models.Unigram([("<unk>", 0.0), ("a", -1.0), ("</s>", -2.0)], 0, False)).save(str(path))
    assert open_tokenizer(Settings(kind="tokenizer.json", path=str(path), append_eos=True)).identity.eos_id == 2


def test_an_eos_that_the_tokenizer_does_not_have_is_refused(tiny: Path) -> None:
    with pytest.raises(
        ValueError, match=r"the token '<no>' that is to be EOS is not in its vocabulary; candidates: .*newword"
    ):
        open_tokenizer(Settings(kind="tokenizer.json", path=str(tiny), append_eos=True, eos_token="<no>"))


def test_a_path_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"--tokenizer is byte, char, or the path of a tokenizer\.json"):
        open_tokenizer(Settings(kind="tokenizer.json", path=str(tmp_path / "no.json")))
    for content in (b"no json", b"[]", b'{"model": {}}'):
        (tmp_path / "t.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"it is no tokenizer\.json"):
            open_tokenizer(Settings(kind="tokenizer.json", path=str(tmp_path / "t.json")))


def test_gpt2_gives_the_ids_that_are_known(tokenizers: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer = open_tokenizer(Settings(kind="tokenizer.json", path=str(tokenizers / "gpt2"), append_eos=True))
    assert ids_of(tokenizer, "Hello world", "Hello world, a bc 1 2345") == [
        [15496, 995],
        [15496, 995, 11, 257, 47125, 352, 2242, 2231],
    ]
    assert (tokenizer.identity.vocab_size, tokenizer.identity.eos_id) == (50257, 50256)


def test_gpt2_takes_its_eos_for_text_unless_it_is_allowed(tokenizers: Path) -> None:
    pytest.importorskip("tokenizers")
    path = str(tokenizers / "gpt2" / "tokenizer.json")
    text = "a<|endoftext|>b"
    plain, special = (
        open_tokenizer(Settings(kind="tokenizer.json", path=path, allow_special=allow)) for allow in (False, True)
    )
    assert 50256 not in ids_of(plain, text)[0]
    assert ids_of(special, text) == [[64, 50256, 65]]
    assert plain.decode(np.array(ids_of(plain, text)[0])) == text


def test_a_tokenizer_that_adds_bos_by_itself_adds_none(fixtures: Path) -> None:
    library = pytest.importorskip("tokenizers")
    path = fixtures / LLAMA
    assert library.Tokenizer.from_file(str(path)).encode("Hello").ids[0] == 1, "the library adds it"
    tokenizer = open_tokenizer(Settings(kind="tokenizer.json", path=str(path)))
    assert 1 not in ids_of(tokenizer, "Hello")[0]
    assert tokenizer.identity.vocab_size == 32003


@pytest.mark.parametrize(("name", "size", "eos"), [(PYTHIA, 50277, 0), (GPT_NEO, 50280, 50279)])
def test_eos_is_where_the_tokenizer_has_it_not_where_gpt2_does(fixtures: Path, name: str, size: int, eos: int) -> None:
    pytest.importorskip("tokenizers")
    settings = Settings(kind="tokenizer.json", path=str(fixtures / name), append_eos=True, eos_token="<|endoftext|>")
    identity = open_tokenizer(settings).identity
    assert (identity.vocab_size, identity.eos_id) == (size, eos)


IDS = np.array([1, 2, 3, 4, 5], dtype=np.uint32)
LENGTHS = np.array([2, 0, 3, 0], dtype=np.int64)


@pytest.mark.parametrize(
    ("bos", "eos", "tokens", "lengths"),
    [
        (None, None, [1, 2, 3, 4, 5], [2, 0, 3, 0]),
        (None, 9, [1, 2, 9, 9, 3, 4, 5, 9, 9], [3, 1, 4, 1]),
        (8, None, [8, 1, 2, 8, 8, 3, 4, 5, 8], [3, 1, 4, 1]),
        (8, 9, [8, 1, 2, 9, 8, 9, 8, 3, 4, 5, 9, 8, 9], [4, 2, 5, 2]),
    ],
)
def test_edges_stand_around_each_document(
    bos: int | None, eos: int | None, tokens: list[int], lengths: list[int]
) -> None:
    found, found_lengths = with_edges(IDS, LENGTHS, bos=bos, eos=eos, dtype=np.dtype(np.uint16))
    assert found.tolist() == tokens
    assert found_lengths.tolist() == lengths
    assert found.dtype == np.uint16


@pytest.mark.parametrize(("bos", "eos"), [(None, None), (1, 2)])
def test_no_documents_have_no_edges(bos: int | None, eos: int | None) -> None:
    found, lengths = with_edges(IDS[:0], LENGTHS[:0], bos=bos, eos=eos, dtype=np.dtype(np.uint8))
    assert (found.tolist(), lengths.tolist()) == ([], [])


@pytest.mark.parametrize("kind", ["byte", "char", "tokenizer.json"])
def test_the_stored_tokenizer_decodes_what_the_first_one_encoded(tmp_path: Path, tiny: Path, kind: str) -> None:
    path, characters = (str(tiny) if kind == "tokenizer.json" else None), " dehlorw"
    settings = Settings(kind=kind, path=path, characters=characters, append_eos=True, prepend_bos=True)
    tokenizer = open_tokenizer(settings)
    for name, content in stored_files(tokenizer).items():
        (tmp_path / name).write_bytes(content)
    stored = open_stored(tmp_path, tokenizer.identity)
    assert stored.identity == tokenizer.identity
    ids, lengths = tokenizer.encode(["hello world"])
    tokens, _ = with_edges(
        ids, lengths, bos=tokenizer.identity.bos_id, eos=tokenizer.identity.eos_id, dtype=np.dtype(np.uint16)
    )
    assert stored.decode(tokens) == "hello world"


def test_another_definition_than_the_corpus_was_made_with_is_refused(tmp_path: Path) -> None:
    identity = open_tokenizer(Settings(kind="char", characters="ab")).identity
    other = open_tokenizer(Settings(kind="char", characters="abc"))
    (tmp_path / "tokenizer.json").write_bytes(other.definition or b"")
    with pytest.raises(nc.FormatError, match=r"tokenizer\.json: its sha256 is .* it is another tokenizer"):
        open_stored(tmp_path, identity)


def test_a_definition_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_stored(tmp_path, open_tokenizer(Settings(kind="char", characters="ab")).identity)
