"""What LitData itself writes, opened in place; skipped where it is not installed: pip install --no-deps litdata (its needs bring CUDA)."""

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    litdata = pytest.importorskip("litdata")

from litdata.streaming.cache import Cache  # noqa: E402 - after the skip
from litdata.streaming.item_loader import TokensLoader  # noqa: E402 - after the skip

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to repair

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14], [15]]


def write(folder: Path, items: Iterable[Any], *, loader: Any = None, **options: Any) -> Path:
    cache = Cache(str(folder), item_loader=loader or TokensLoader(block_size=2), **options)
    for number, item in enumerate(items):
        cache[number] = item
    cache.done()
    cache.merge()
    return folder


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    corpus.verify()
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "int64"])
def test_documents_of_tensors_are_those_that_were_written(tmp_path: Path, dtype: str, access: str) -> None:
    items = [torch.tensor(document, dtype=getattr(torch, dtype)) for document in DOCUMENTS]
    corpus = nc.open_corpus(write(tmp_path, items, chunk_size=4), access=access)
    assert documents_of(corpus) == DOCUMENTS
    assert corpus.num_shards > 1


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_documents_of_arrays_are_those_that_were_written(tmp_path: Path, dtype: str) -> None:
    items = [np.array(document, dtype=dtype) for document in DOCUMENTS]
    corpus = nc.open_corpus(write(tmp_path, items, chunk_bytes=40))
    assert documents_of(corpus) == DOCUMENTS


def test_a_chunk_that_begins_with_an_empty_document_has_no_dim_and_is_read(tmp_path: Path) -> None:
    documents = [[], [1, 2], [], [3]]
    folder = write(tmp_path, [torch.tensor(each, dtype=torch.int32) for each in documents], chunk_size=100)
    assert '"dim": null' in (folder / "index.json").read_text()
    assert documents_of(nc.open_corpus(folder)) == documents


def test_litdata_s_own_reader_reads_the_same_blocks(tmp_path: Path) -> None:
    folder = write(tmp_path, [torch.tensor(each, dtype=torch.int32) for each in DOCUMENTS], chunk_size=100)
    theirs = litdata.StreamingDataset(str(folder), item_loader=TokensLoader(block_size=3))
    found = [theirs[number].tolist() for number in range(len(theirs))]
    stream = nc.open_corpus(folder).tokens(0, 11).tolist()
    assert found == [stream[start : start + 3] for start in (0, 3, 6)]


def test_compressed_chunks_are_refused_by_name(tmp_path: Path) -> None:
    from litdata.streaming.compression import _COMPRESSORS

    if "zstd" not in _COMPRESSORS:
        pytest.skip("LitData has no zstd here: pip install zstd")
    items = [torch.tensor(document, dtype=torch.int32) for document in DOCUMENTS]
    folder = write(tmp_path, items, chunk_size=100, compression="zstd", compression_level="chunk")
    with pytest.raises(nc.FormatError, match=r"config\.compression is 'zstd', expected null: .* millstream convert"):
        nc.open_corpus(folder)


def test_trees_are_refused_by_name(tmp_path: Path) -> None:
    from litdata.streaming.item_loader import PyTreeLoader

    folder = write(
        tmp_path,
        [{"tokens": torch.tensor(each)} for each in DOCUMENTS],
        chunk_size=2,
        loader=PyTreeLoader(),
    )
    with pytest.raises(nc.FormatError, match=r"config\.item_loader is 'PyTreeLoader'.* millstream convert"):
        nc.open_corpus(folder)
