"""What OLMo-core writes beside tokens, opened in place; skipped where it is not installed: pip install ai2-olmo-core."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    utils = pytest.importorskip("olmo_core.data.utils")

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to repair

END = 9
DOCUMENTS = [[5, 6, 7, END], [8, END], [1, 2, 3, END]]


def write(folder: Path, documents: list[list[int]], dtype: str) -> Path:
    path = folder / "part-0-00000.npy"
    tokens = [token for document in documents for token in document]
    with utils.memmap_to_write(path, dtype=np.dtype(dtype).type, shape=(len(tokens),)) as memory:
        memory[:] = tokens
    utils.write_document_indices(path, dtype=np.dtype(dtype).type, eos_token_id=END)
    return path


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    corpus.verify()
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_documents_are_those_that_it_lists(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path, DOCUMENTS, dtype)
    corpus = nc.open_corpus(tmp_path)
    assert documents_of(corpus) == DOCUMENTS
    theirs = utils.iter_document_indices(path, eos_token_id=END, dtype=np.dtype(dtype).type)
    offsets = corpus.document_offsets(0, 3).tolist()
    assert list(theirs) == list(zip(offsets[:-1], offsets[1:], strict=True))


def test_a_last_document_that_it_does_not_list_is_refused_and_read_by_the_rule(tmp_path: Path) -> None:
    path = write(tmp_path, [*DOCUMENTS, [4, 4]], "uint16")
    with pytest.raises(nc.FormatError, match="so 2 of uint16 are in no document"):
        nc.open_corpus(path, dtype="uint16")
    path.with_suffix(".csv.gz").unlink()
    assert documents_of(nc.open_corpus(path, dtype="uint16", boundaries=f"eos:{END}")) == [*DOCUMENTS, [4, 4]]
