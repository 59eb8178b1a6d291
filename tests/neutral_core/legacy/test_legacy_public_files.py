"""Files that other people made and published, opened in place; they are not part of the project and are skipped where they are not at hand."""

from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc

BIGSCIENCE = "bigscience-workshop+Megatron-DeepSpeed/tests/data"


def check_stream(corpus: nc.Corpus, expected: np.ndarray) -> None:
    assert corpus.num_tokens == len(expected)
    assert (corpus.tokens(0, corpus.num_tokens) == expected).all()
    joined = np.concatenate([corpus.document(number) for number in range(corpus.num_documents)])
    assert (joined == expected).all()
    corpus.verify()


@pytest.mark.parametrize("access", ["map", "read"])
def test_bigscience_s_megatron_pair_has_1000_documents_that_all_end_with_4999(fixtures: Path, access: str) -> None:
    prefix = fixtures / BIGSCIENCE / "gpt2/meg-gpt2-openwebtext_text_document"
    corpus = nc.open_corpus(prefix, access=access)
    assert (corpus.num_documents, corpus.num_tokens, corpus.dtype) == (1000, 1_361_845, np.uint16)
    assert corpus.notes == ()
    check_stream(corpus, np.fromfile(f"{prefix}.bin", dtype="<u2"))
    assert {int(corpus.document(number)[-1]) for number in range(1000)} == {4999}
    assert not any((corpus.document(number)[:-1] == 4999).any() for number in range(1000))
    lengths = np.diff(corpus.document_offsets(0, 1000))
    assert (lengths == np.fromfile(f"{prefix}.idx", dtype="<i4", count=1000, offset=34)).all()


def test_the_same_tokens_read_headerless_by_their_last_id_have_the_same_documents(fixtures: Path) -> None:
    prefix = fixtures / BIGSCIENCE / "gpt2/meg-gpt2-openwebtext_text_document"
    pair = nc.open_corpus(prefix)
    bare = nc.open_corpus(f"{prefix}.bin", layout="headerless", dtype="uint16", boundaries="eos:4999")
    assert (bare.document_offsets(0, 1000) == pair.document_offsets(0, 1000)).all()


def test_nvidia_s_int32_pair_keeps_the_id_54_365_900(fixtures: Path) -> None:
    prefix = fixtures / "NVIDIA+Megatron-LM/assets/datasets/train/test_text_document"
    corpus = nc.open_corpus(prefix)
    assert (corpus.num_documents, corpus.num_tokens, corpus.dtype) == (1000, 5000, np.uint32)
    assert corpus.document(0).tolist() == corpus.document(999).tolist() == [111214, 343, 54_365_900, 77, 131072]
    check_stream(corpus, np.fromfile(f"{prefix}.bin", dtype="<i4"))


def test_ag_news_has_100_documents_that_end_with_4999(fixtures: Path) -> None:
    prefix = fixtures / BIGSCIENCE / "t0/ag_news_prompt_text_document"
    corpus = nc.open_corpus(prefix)
    assert (corpus.num_documents, corpus.num_tokens, corpus.dtype) == (100, 9247, np.uint16)
    check_stream(corpus, np.fromfile(f"{prefix}.bin", dtype="<u2"))
    assert {int(corpus.document(number)[-1]) for number in range(100)} == {4999}


def test_nanogpt_s_characters_are_the_first_nine_tenths_of_the_text(fixtures: Path) -> None:
    folder = fixtures / "karpathy+nanoGPT/data/shakespeare_char"
    corpus = nc.open_corpus(folder / "train.bin", dtype="uint16", boundaries="none")
    assert (corpus.num_documents, corpus.num_tokens) == (1, 1_003_854)
    check_stream(corpus, np.fromfile(folder / "train.bin", dtype="<u2"))
    text = (folder / "input.txt").read_text(encoding="utf-8")
    letters = sorted(set(text))
    assert "".join(letters[token] for token in corpus.document(0).tolist()) == text[: int(len(text) * 0.9)]


def test_nanogpt_s_file_without_its_table_asks_for_its_dtype_and_shows_that_as_bytes_half_are_0(
    fixtures: Path, tmp_path: Path
) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes((fixtures / "karpathy+nanoGPT/data/shakespeare_char/train.bin").read_bytes())
    with pytest.raises(ValueError, match=r"as uint8 its first 1,048,576 ids run from 0 to 64, \d+% of them 0"):
        nc.open_corpus(path)


@pytest.mark.parametrize(("name", "count"), [("train", 1_003_854), ("val", 111_540)])
def test_nanogpt_s_table_of_characters_says_the_dtype_of_the_files_beside_it(
    fixtures: Path, name: str, count: int
) -> None:
    path = fixtures / f"karpathy+nanoGPT/data/shakespeare_char/{name}.bin"
    corpus = nc.open_corpus(path, boundaries="none")
    assert (corpus.num_tokens, corpus.dtype, corpus.vocab_size) == (count, np.uint16, 65)
    assert any("dtype is taken for uint16: meta.pkl beside it says 65 ids" in note for note in corpus.notes)
    check_stream(corpus, np.fromfile(path, dtype="<u2"))
    with pytest.raises(ValueError, match="nothing in the file says where documents begin"):
        nc.open_corpus(path)


def test_olmo_s_npy_of_one_row_is_one_document_of_10_to_50_over_and_over(fixtures: Path) -> None:
    corpus = nc.open_corpus(fixtures / "allenai+OLMo/test_fixtures/minimal_data.npy")
    assert (corpus.num_documents, corpus.num_tokens, corpus.dtype) == (1, 10_240, np.uint16)
    check_stream(corpus, np.tile([10, 20, 30, 40, 50], 2048))


def test_olmo_s_npy_of_int64_asks_for_its_documents(fixtures: Path) -> None:
    path = fixtures / "allenai+OLMo/test_fixtures/random_data.npy"
    with pytest.raises(ValueError, match="nothing in the file says where documents begin"):
        nc.open_corpus(path)
    corpus = nc.open_corpus(path, boundaries="fixed:1024")
    assert (corpus.num_documents, corpus.num_tokens, corpus.dtype) == (64, 65_536, np.uint32)
    assert int(corpus.tokens(0, 65_536).max()) == 99
    check_stream(corpus, np.fromfile(path, dtype="<i8", offset=128))


def test_gpt_2_tokens_without_an_end_of_text_refuse_the_rule_that_needs_it(fixtures: Path) -> None:
    path = fixtures / "vishwasg217+nanogpt/data/shakespeare/train.bin"
    corpus = nc.open_corpus(path, dtype="uint16", boundaries="none")
    assert corpus.num_tokens == 407_387
    assert int(corpus.document(0).max()) < 50_256
    check_stream(corpus, np.fromfile(path, dtype="<u2"))
    with pytest.raises(nc.FormatError, match="the id 50,256 does not occur in 407,387 tokens"):
        nc.open_corpus(path, dtype="uint16", boundaries="eos:50256")


def test_an_index_without_its_bin_is_not_found(fixtures: Path) -> None:
    with pytest.raises(FileNotFoundError, match="index of a pair"):
        nc.open_corpus(fixtures / "bigscience-workshop+Megatron-DeepSpeed/data/zhihu_100000_text_document.idx")
