"""What datatrove itself writes, opened in place; skipped where it is not installed: pip install datatrove."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

pytest.importorskip("datatrove")
tokenizers = pytest.importorskip("tokenizers")

from datatrove.data import Document  # noqa: E402 - after the skip
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger  # noqa: E402 - after the skip

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to repair

TEXTS = ["w1 w2 w3", "w4", "w5 w6", "w7 w8 w9 w10", "w11 w12"]
IDS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11, 12]]
END = 0


def write_tokenizer(folder: Path, vocab_size: int) -> str:
    """Word w<n> has the id n; the text ends with id 0."""
    words = {"<end>": END} | {f"w{number}": number for number in range(1, vocab_size)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<end>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    path = folder / "tokenizer.json"
    made.save(str(path))
    return str(path)


def write(
    folder: Path,
    *,
    texts: Sequence[str] = TEXTS,
    ranges: Sequence[list[tuple[int, int]]] = (),
    rank: int = 0,
    vocab_size: int = 100,
    **options: Any,
) -> Path:
    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    for document, spans in zip(documents, ranges, strict=False):
        document.metadata["no_loss_ranges"] = spans
    step = DocumentTokenizer(str(folder / "set"), write_tokenizer(folder, vocab_size), seed=3, **options)
    step.run(iter(documents), rank=rank, world_size=2)
    return folder / "set"


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    corpus.verify()
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


@pytest.mark.parametrize("with_metadata", [True, False])
@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_documents_are_the_tokenizer_s(tmp_path: Path, vocab_size: int, dtype: Any, with_metadata: bool) -> None:
    options = {"shuffle_documents": False, "save_final_metadata": with_metadata, "vocab_size": vocab_size}
    corpus = nc.open_corpus(write(tmp_path, texts=[*TEXTS, f"w{vocab_size - 1}"], **options))
    assert documents_of(corpus) == [*IDS, [vocab_size - 1]]
    assert corpus.dtype == dtype


def test_an_end_of_text_belongs_to_its_document(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, shuffle_documents=False, eos_token="<end>"))
    assert documents_of(corpus) == [[*ids, END] for ids in IDS]


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranges_without_loss_are_masked(tmp_path: Path, shuffle: bool) -> None:
    # Characters 0 … 3 of a text are its first word and a blank; a range that reaches the end of the text drops what is in it.
    ranges = [[(0, 3)], [], [(3, 5)], [(0, 3), (6, 9)], []]
    corpus = nc.open_corpus(write(tmp_path, ranges=ranges, shuffle_documents=shuffle, save_loss_metadata=True))
    masks = [corpus.field("token.loss_mask", number).tolist() for number in range(corpus.num_documents)]
    expected = [
        ([1, 2, 3], [False, True, True]),
        ([4], [True]),
        ([5], [True]),
        ([7, 8, 9, 10], [False, True, False, True]),
        ([11, 12], [True, True]),
    ]
    found = list(zip(documents_of(corpus), masks, strict=True))
    assert (sorted(found) if shuffle else found) == expected


def test_files_without_an_index_ask_for_the_rule(tmp_path: Path) -> None:
    folder = write(tmp_path, shuffle_documents=False, eos_token="<end>", save_index=False)
    with pytest.raises(ValueError, match="give boundaries"):
        nc.open_corpus(folder)
    assert documents_of(nc.open_corpus(folder, boundaries=f"eos:{END}")) == [[*ids, END] for ids in IDS]


def test_shuffled_files_split_by_size_hold_each_document_once(tmp_path: Path) -> None:
    for rank in range(2):
        folder = write(tmp_path, rank=rank, max_tokens_per_file=4)
    write(tmp_path, rank=7, texts=[])  # a process without documents
    corpus = nc.open_corpus(folder)
    assert corpus.num_shards > 3
    assert sorted(documents_of(corpus)) == sorted(IDS * 2)


def test_chunk_shuffled_files_hold_the_pieces(tmp_path: Path) -> None:
    # 12 ids in chunks of 4; documents end after 3, 4, 6, 10 and 12, chunks after 4, 8 and 12.
    corpus = nc.open_corpus(write(tmp_path, shuffle_documents=False, shuffle_chunk_size=4))
    assert sorted(documents_of(corpus)) == [[1, 2, 3], [4], [5, 6], [7, 8], [9, 10], [11, 12]]


@pytest.mark.parametrize("max_tokens_per_file", [100, 5])
def test_merged_files_are_one_corpus_and_the_spare_metadata_are_left_out(
    tmp_path: Path, max_tokens_per_file: int
) -> None:
    for rank in range(2):
        folder = write(tmp_path, rank=rank)
    merger = DocumentTokenizerMerger(
        str(folder), str(tmp_path / "merged"), "all", max_tokens_per_file=max_tokens_per_file, seed=1, progress=False
    )
    merger.run()
    assert (tmp_path / "merged" / "all.ds.metadata").is_file()
    corpus = nc.open_corpus(tmp_path / "merged")
    assert sorted(documents_of(corpus)) == sorted(IDS * 2)
    assert any(note.startswith("all.ds.metadata is of no file here") for note in corpus.notes)


def test_datatrove_s_own_reader_reads_the_same_windows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from datatrove.utils.dataset import DatatroveFolderDataset

    for rank in range(2):
        folder = write(tmp_path, rank=rank)
    corpus = nc.open_corpus(folder)
    theirs = DatatroveFolderDataset(str(folder), seq_len=2, token_size=2)  # windows of three, not across files
    found = [theirs[number]["input_ids"].tolist() for number in range(len(theirs))]
    stream = corpus.tokens(0, corpus.num_tokens).tolist()
    assert found == [stream[start : start + 3] for start in range(0, 24, 3)]
