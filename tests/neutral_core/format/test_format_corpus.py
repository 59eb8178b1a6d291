"""Many shards as one corpus: the plain list of documents is the model."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutral_core import Corpus, CorpusWriter, Field, FormatError, TokenizerIdentity, memory_corpus, open_corpus
from neutral_core.format.publish import publish, shard_name

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6], [7, 8, 9, 10], []]


def write(folder: Path, documents: list[list[int]] = DOCUMENTS, tokens_per_shard: int = 5, **declared: Any) -> Path:
    with CorpusWriter(folder, vocab_size=300, tokens_per_shard=tokens_per_shard, **declared) as writer:
        for document in documents:
            writer.add(document)
    return folder


def agrees(corpus: Corpus, documents: list[list[int]], spans: list[tuple[int, int]]) -> None:
    stream = [token for document in documents for token in document]
    starts = np.cumsum([0, *map(len, documents)]).tolist()
    assert (corpus.num_documents, corpus.num_tokens) == (len(documents), len(stream))
    for index, document in enumerate(documents):
        assert corpus.document(index).tolist() == document
        assert corpus.document(index - len(documents)).tolist() == document
    for a, b in spans:
        start, stop = sorted((a % (len(stream) + 1), b % (len(stream) + 1)))
        found = corpus.tokens(start, stop)
        assert found.tolist() == stream[start:stop]
        assert found.dtype == corpus.dtype
        start, stop = sorted((a % (len(documents) + 1), b % (len(documents) + 1)))
        assert corpus.document_offsets(start, stop).tolist() == starts[start : stop + 1]


SPANS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12)


@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 299), max_size=7), max_size=12), st.integers(1, 10), SPANS)
def test_documents_tokens_and_offsets_are_those_of_the_list(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    tokens_per_shard: int,
    spans: list[tuple[int, int]],
) -> None:
    folder = write(tmp_path_factory.mktemp("model") / "c", documents, tokens_per_shard)
    for access in ("map", "read"):
        for check in ("headers", "blocks"):
            agrees(open_corpus(folder, access=access, check=check), documents, spans)
    open_corpus(folder).verify()


@given(st.lists(st.lists(st.integers(0, 299), max_size=7), max_size=12), SPANS)
def test_a_corpus_in_memory_is_the_same_thing(documents: list[list[int]], spans: list[tuple[int, int]]) -> None:
    agrees(memory_corpus(documents, vocab_size=300), documents, spans)


@pytest.mark.parametrize("index", [6, -7, 10**12])
def test_a_document_outside_of_the_corpus_is_an_index_error(index: int, tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path / "c"))
    with pytest.raises(IndexError, match=rf"document {index:,} is outside of the corpus' 6 documents"):
        corpus.document(index)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11)])
def test_tokens_outside_of_the_corpus_are_an_index_error(start: int, stop: int, tmp_path: Path) -> None:
    with pytest.raises(IndexError, match=rf"tokens {start} … {stop} are outside of the corpus' 10"):
        open_corpus(write(tmp_path / "c")).tokens(start, stop)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 7)])
def test_offsets_outside_of_the_corpus_are_an_index_error(start: int, stop: int, tmp_path: Path) -> None:
    with pytest.raises(IndexError, match=rf"documents {start} … {stop} are outside of the corpus' 6"):
        open_corpus(write(tmp_path / "c")).document_offsets(start, stop)


def test_an_empty_corpus_has_no_document_and_opens(tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path / "c", []))
    corpus.verify()
    assert (corpus.num_documents, corpus.num_tokens) == (0, 0)
    assert corpus.tokens(0, 0).tolist() == []
    assert corpus.document_offsets(0, 0).tolist() == [0]
    with pytest.raises(IndexError, match="document 0 is outside of the corpus' 0"):
        corpus.document(0)


@pytest.mark.parametrize("access", ["map", "read"])
def test_fields_come_with_their_document(access: str, tmp_path: Path) -> None:
    fields = {
        "token.a": Field(dtype="bool"),
        "document.b": Field(dtype="int32"),
        "ragged.c": Field(dtype="float64", shape=(2,)),
    }
    with CorpusWriter(tmp_path / "c", vocab_size=300, fields=fields, tokens_per_shard=4) as writer:
        for i, document in enumerate(DOCUMENTS):
            mask = np.array(document, dtype=int) % 2 == 0
            writer.add(document, {"token.a": mask, "document.b": -i, "ragged.c": [[i, j] for j in range(i)]})
    corpus = open_corpus(tmp_path / "c", access=access)
    assert corpus.fields == fields
    for i, document in enumerate(DOCUMENTS):
        assert corpus.field("token.a", i).tolist() == [t % 2 == 0 for t in document]
        assert corpus.field("document.b", i - len(DOCUMENTS)) == -i
        assert corpus.field("ragged.c", i).tolist() == [[i, j] for j in range(i)]
        assert corpus.field("ragged.c", i).shape == (i, 2)
    for start in range(7):  # over several shards, and of no documents
        for stop in range(start, 7):
            chosen = [DOCUMENTS[i] for i in range(start, stop)]
            mask, none = corpus.field_items("token.a", start, stop)
            assert (mask.tolist(), none) == ([t % 2 == 0 for document in chosen for t in document], None)
            assert corpus.field_items("document.b", start, stop).items.tolist() == [-i for i in range(start, stop)]
            items, counts = corpus.field_items("ragged.c", start, stop)
            assert items.tolist() == [[i, j] for i in range(start, stop) for j in range(i)]
            assert counts is not None
            assert counts.tolist() == list(range(start, stop))
    with pytest.raises(IndexError, match="documents 2 … 7 are outside of the corpus' 6"):
        corpus.field_items("token.a", 2, 7)
    with pytest.raises(KeyError, match=r"no field 'token\.z'; declared are: document\.b, ragged\.c, token\.a"):
        corpus.field("token.z", 0)
    with pytest.raises(IndexError, match="document 6 is outside"):
        corpus.field("token.a", 6)


@pytest.mark.parametrize("access", ["map", "read"])
def test_what_is_handed_out_is_read_only(access: str, tmp_path: Path) -> None:
    with CorpusWriter(
        tmp_path / "c", vocab_size=300, fields={"token.a": Field(dtype="int8")}, tokens_per_shard=2
    ) as writer:
        writer.add([1, 2], {"token.a": [1, 2]})
        writer.add([3, 4], {"token.a": [3, 4]})
    corpus = open_corpus(tmp_path / "c", access=access)
    for array in (corpus.document(0), corpus.tokens(0, 1), corpus.tokens(1, 3), corpus.field("token.a", 1)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_document_of_a_mapped_shard_is_a_view(tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path / "c"))
    assert np.shares_memory(corpus.document(0), corpus.tokens(1, 3))


def fingerprint_by_hand(folder: Path) -> list[str]:
    """f_i = sha256(f_(i-1) ‖ sha256(header ‖ checksums) of shard i), f_0 = 32 zero bytes."""
    links, link = [], bytes(32)
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        first, last = json.loads(raw[8:start])["checksums"]["data_offsets"]
        link = hashlib.sha256(link + hashlib.sha256(raw[:start] + raw[start + first : start + last]).digest()).digest()
        links.append(link.hex())
    return links


def test_the_fingerprint_is_a_chain_over_the_shards(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", tokens_per_shard=3)
    assert len(fingerprint_by_hand(folder)) == 4
    assert open_corpus(folder).fingerprint == fingerprint_by_hand(folder)[-1]


def test_a_corpus_that_grew_still_opens_as_it_was(tmp_path: Path) -> None:
    old = write(tmp_path / "old", DOCUMENTS[:3])
    new = write(tmp_path / "new", DOCUMENTS[3:])
    paths = []
    (tmp_path / "grown").mkdir()
    for index, path in enumerate([*sorted(old.glob("*.safetensors")), *sorted(new.glob("*.safetensors"))]):
        paths.append(tmp_path / "grown" / shard_name(index))
        paths[-1].write_bytes(path.read_bytes())
    publish(tmp_path / "grown", paths)
    assert open_corpus(tmp_path / "grown").num_documents == 6
    before = open_corpus(old)
    again = open_corpus(tmp_path / "grown", fingerprint=before.fingerprint)
    assert again.fingerprint == before.fingerprint
    agrees(again, DOCUMENTS[:3], [(0, 5), (1, 3)])
    assert pickle.loads(pickle.dumps(again)).num_documents == 3


def test_pickling_carries_no_data_and_opens_the_same_corpus(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", [list(range(200)) * 100], 10**6)
    corpus = open_corpus(folder, access="read", check="blocks")
    corpus.document(0)
    text = pickle.dumps(corpus)
    assert len(text) < 2000
    again = pickle.loads(text)
    assert again.fingerprint == corpus.fingerprint
    assert again.shards[0].access == "read"
    assert again.shards[0].check == "blocks"
    assert np.array_equal(again.document(0), corpus.document(0))


def test_a_corpus_in_memory_pickles(tmp_path: Path) -> None:
    corpus = memory_corpus(DOCUMENTS, vocab_size=300)
    again = pickle.loads(pickle.dumps(corpus))
    assert again.fingerprint == corpus.fingerprint
    agrees(again, DOCUMENTS, [(0, 10)])


def test_unpickling_refuses_data_that_have_changed(tmp_path: Path) -> None:
    text = pickle.dumps(open_corpus(write(tmp_path / "c")))
    for path in (tmp_path / "c").iterdir():
        path.unlink()
    write(tmp_path / "c", [[1, 2, 4], *DOCUMENTS[1:]])
    with pytest.raises(FormatError, match="no run of its first shards has the fingerprint"):
        pickle.loads(text)


def test_a_single_shard_opens(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    agrees(open_corpus(folder / "shard-00000.safetensors"), DOCUMENTS[:3], [(0, 4), (2, 3)])
    assert open_corpus(folder / "shard-00000.safetensors").fingerprint == fingerprint_by_hand(folder)[0]


def test_a_folder_of_shards_without_a_manifest_opens(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    expected = open_corpus(folder).fingerprint
    (folder / "dataset.json").unlink()
    agrees(open_corpus(folder), DOCUMENTS, [(0, 9), (3, 7)])
    assert open_corpus(folder).fingerprint == expected


def test_a_folder_without_a_corpus_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no corpus: no dataset\.json, no \*\.safetensors"):
        open_corpus(tmp_path)


def test_the_tokenizer_is_kept_and_another_is_refused(tmp_path: Path) -> None:
    identity = TokenizerIdentity(kind="byte", name="bytes", sha256="0" * 64, vocab_size=300, eos_id=299)
    folder = write(tmp_path / "c", tokenizer=identity)
    assert open_corpus(folder).tokenizer == identity
    assert open_corpus(folder, tokenizer=identity).tokenizer == identity
    other = TokenizerIdentity(kind="byte", name="bytes", sha256="1" * 64, vocab_size=300)
    with pytest.raises(ValueError, match=r"the tokenizer given is .*, but the corpus says"):
        open_corpus(folder, tokenizer=other)


@pytest.mark.parametrize("access", ["map", "read"])
def test_a_file_replaced_by_another_size_after_opening_is_refused(access: str, tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path / "c") / "shard-00000.safetensors", access=access)
    assert corpus.document(0).tolist() == [1, 2, 3]
    shard: Any = corpus.shards[0]
    shard._file.let_go()  # as when many others were opened
    write(tmp_path / "other", [[1] * 99], 100)
    (tmp_path / "other" / "shard-00000.safetensors").replace(tmp_path / "c" / "shard-00000.safetensors")
    with pytest.raises(OSError, match="it was replaced; open the corpus again"):
        corpus.document(0)


def test_a_file_truncated_after_opening_is_an_error_under_read(tmp_path: Path) -> None:
    path = write(tmp_path / "c", [[1] * 100_000], 10**6) / "shard-00000.safetensors"
    corpus = open_corpus(path, access="read")
    corpus.tokens(0, 1)
    with path.open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(OSError, match="the file ends after 5,000 bytes: it was truncated"):
        corpus.document(0)


def test_a_held_array_outlives_the_corpus(tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path / "c"))
    tokens = corpus.document(0)
    shard: Any = corpus.shards[0]
    shard._file.let_go()
    del corpus, shard
    assert tokens.tolist() == [1, 2, 3]


@pytest.mark.parametrize("documents", [[[-1]], [[300]], [[0, 1], [300]]])
def test_ids_outside_of_the_vocabulary_are_refused_in_memory(documents: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=re.escape("expected 0 ≤ id < vocab_size 300")):
        memory_corpus(documents, vocab_size=300)


def test_floats_are_no_documents() -> None:
    with pytest.raises(ValueError, match="tokens are float64"):
        memory_corpus([[0.5]])


SERVE = """
import resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from neutral_core import open_corpus
for access in ("map", "read"):
    corpus = open_corpus(sys.argv[1], access=access)
    order = np.random.default_rng(0).permutation(corpus.num_documents)
    for _ in range(2):
        for i in order.tolist():
            assert corpus.document(i).tolist() == [i % 251, i // 251], i
    kept = [corpus.document(i) for i in range(20)]
    corpus.verify()
    assert [k[0] for k in kept] == list(range(20))
print("served", corpus.num_documents)
"""


@pytest.mark.parametrize(("shards", "limit"), [(300, 64), (2000, 256)])
def test_more_shards_than_descriptors_serve_all_documents(shards: int, limit: int, tmp_path: Path) -> None:
    template = CorpusWriter(tmp_path / "c", vocab_size=251, tokens_per_shard=2)
    with pytest.MonkeyPatch.context() as monkeypatch, template as writer:
        monkeypatch.setattr("os.fsync", lambda descriptor: None)  # 2,000 times; durability is not what is tested
        for i in range(shards):
            writer.add([i % 251, i // 251])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SERVE, str(tmp_path / "c"), str(limit)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"served {shards}\n", "")


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc to see what is resident")
def test_released_pages_no_longer_count_and_are_read_again(tmp_path: Path) -> None:
    tokens = np.arange(20_000_000, dtype=np.uint32) % 60_000
    with CorpusWriter(tmp_path / "c", vocab_size=60_000) as writer:
        writer.add(tokens)
    corpus = open_corpus(tmp_path / "c")
    corpus.release()  # nothing is open yet

    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssFile")).split()[1])

    assert np.array_equal(corpus.tokens(0, 20_000_000), tokens)
    touched = resident()
    corpus.release()
    assert touched - resident() > 35_000  # of 40 MB, in kB
    assert np.array_equal(corpus.tokens(0, 20_000_000), tokens)
