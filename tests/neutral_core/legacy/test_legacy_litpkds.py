"""LITPKDS files: documents worked out by hand, the fill at the end of each writer's last file, and damage."""

import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<u2": 8}
VALUES = [0, 1, -1, 2**31, 2**63 - 1]

# Three files of one writer, 6 tokens each: documents [1 10 11 12 13], [1 14 15], [1 16 17 18 19], then 1 fills the last file up.
CHUNKS = [[1, 10, 11, 12, 13, 1], [14, 15, 1, 16, 17, 18], [19, 1, 1, 1, 1, 1]]
# The same where 2 ends documents and fills up.
ENDED = [[10, 11, 12, 13, 2, 14], [15, 2, 16, 17, 18, 19], [2, 2, 2, 2, 2, 2]]


def content(tokens: Any, dtype: str = "<u2") -> bytes:
    return b"LITPKDS" + struct.pack("<QBQ", 1, CODES[dtype], len(tokens)) + np.array(tokens, dtype=dtype).tobytes()


def write(folder: Path, chunks: Any = CHUNKS, prefix: str = "train_0", dtype: str = "<u2", first: int = 0) -> Path:
    for number, tokens in enumerate(chunks, first):
        (folder / f"{prefix}_{number:010d}.bin").write_bytes(content(tokens, dtype))
    return folder


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


def stream_of(path: Path) -> list[int] | None:
    """Everything that a file yields; None where it is refused."""
    try:
        corpus = nc.open_corpus(path, boundaries="none")
        corpus.verify()
        return list(corpus.tokens(0, corpus.num_tokens).tolist())
    except ValueError:
        return None


def test_the_bytes_of_a_file_written_out() -> None:
    """What the tests write is what the layout's makers write: seven letters, u64 1, u8 code, u64 chunk_size, the ids."""
    head = bytes.fromhex("4c4954504b4453 0100000000000000 08 0200000000000000")
    assert content([1, 258]) == head + bytes.fromhex("0100 0201")
    assert len(head) == 24


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("chunks", "boundaries", "expected"),
    [
        (CHUNKS, "bos:1", [[1, 10, 11, 12, 13], [1], [14, 15], [1, 16, 17, 18], [19]]),
        (CHUNKS, "eos:1", [[1], [10, 11, 12, 13, 1], [14, 15, 1], [16, 17, 18], [19, 1]]),
        (CHUNKS, "none", CHUNKS),
        (CHUNKS, "fixed:4", [tokens[at : at + 4] for tokens in CHUNKS for at in (0, 4)]),
        (CHUNKS, "bos:19", [CHUNKS[0], CHUNKS[1], CHUNKS[2]]),
        (ENDED, "eos:2", [[10, 11, 12, 13, 2], [14], [15, 2], [16, 17, 18, 19], [2]]),
        (ENDED, "bos:2", [[10, 11, 12, 13], [2, 14], [15], [2, 16, 17, 18, 19]]),
    ],
)
def test_documents_are_those_worked_out_by_hand(
    tmp_path: Path, chunks: Any, boundaries: str, expected: Any, access: str
) -> None:
    """A 1 at the end of a file that is not the writer's last begins a document that goes on in the next: it is kept."""
    corpus = nc.open_corpus(write(tmp_path, chunks), boundaries=boundaries, access=access)
    assert documents_of(corpus) == expected
    assert corpus.tokens(0, corpus.num_tokens).tolist() == [token for document in expected for token in document]
    assert (corpus.num_shards, corpus.dtype) == (3, np.uint16)
    corpus.verify()


@pytest.mark.parametrize(
    ("chunks", "boundaries", "note"),
    [
        (
            CHUNKS,
            "bos:1",
            "train_0_0000000002.bin: the last 5 tokens are left out: they are all 1, with which the writer fills",
        ),
        (CHUNKS, "eos:1", "train_0_0000000002.bin: the last 4 tokens are left out: they are all 1"),
        (ENDED, "eos:2", "the last 5 tokens are left out: they are all 2"),
        (ENDED, "bos:2", "the last 6 tokens are left out: they are all 2"),
        (
            CHUNKS,
            "none",
            "the last 5 tokens are all 1: the writer may have filled its last file up with it; they are kept",
        ),
        (CHUNKS, "fixed:4", "the last 5 tokens are all 1: the writer may"),
        (CHUNKS, "bos:19", "the last 5 tokens are all 1: the writer may"),
        (
            CHUNKS,
            "bos:1",
            "2 of 3 files, the first of them train_0_0000000001.bin, do not begin with 1: their 3 tokens before",
        ),
        (CHUNKS, "none", "3 files in the order of their numbers, from 1 writing processes"),
    ],
)
def test_what_was_left_out_or_kept_is_noted(tmp_path: Path, chunks: Any, boundaries: str, note: str) -> None:
    notes = nc.open_corpus(write(tmp_path, chunks), boundaries=boundaries).notes
    assert any(note in text for text in notes), notes


def test_missing_boundaries_are_refused_with_the_fill_as_evidence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give boundaries=eos:ID, bos:ID, fixed:N or none") as caught:
        nc.open_corpus(write(tmp_path))
    assert "The last 5 tokens of train_0_0000000002.bin are all 1." in str(caught.value)


@pytest.mark.parametrize("given", ["", "train", "train_"])
def test_each_writing_process_has_a_fill_of_its_own(tmp_path: Path, given: str) -> None:
    write(tmp_path, CHUNKS, "train_0")
    write(tmp_path, [[1, 20, 21, 22, 1, 23], [24, 1, 25, 1, 1, 1]], "train_1")
    corpus = nc.open_corpus(tmp_path / given, boundaries="bos:1")
    expected = [[1, 10, 11, 12, 13], [1], [14, 15], [1, 16, 17, 18], [19], [1, 20, 21, 22], [1, 23], [24], [1, 25]]
    assert documents_of(corpus) == expected
    assert sum("are left out" in note for note in corpus.notes) == 2
    alone = nc.open_corpus(tmp_path / "train_1", boundaries="bos:1")
    assert documents_of(alone) == expected[5:]


def test_many_writers_are_noted_in_a_few_sentences(tmp_path: Path) -> None:
    for number in range(11):
        write(tmp_path, [[1, 5, 1, 1]], f"train_{number}")
    notes = nc.open_corpus(tmp_path, boundaries="bos:1").notes
    assert any("The same in 8 more files: 22 tokens are left out in all" in note for note in notes)
    assert len(notes) == 6
    notes = nc.open_corpus(tmp_path, boundaries="none").notes
    assert any("The same in 8 more files: 22 tokens at their ends in all" in note for note in notes)


def test_writers_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9):
        write(tmp_path, [[number, 3]], f"train_{number}")
    assert nc.open_corpus(tmp_path, boundaries="none").tokens(0, 4).tolist() == [9, 3, 10, 3]


def test_a_file_alone_has_a_fill_only_where_none_follows_it(tmp_path: Path) -> None:
    write(tmp_path)
    first, last = (tmp_path / f"train_0_{number:010d}.bin" for number in (0, 2))
    assert documents_of(nc.open_corpus(first, boundaries="bos:1")) == [[1, 10, 11, 12, 13], [1]]
    assert documents_of(nc.open_corpus(last, boundaries="eos:1")) == [[19, 1]]
    (tmp_path / "b").mkdir()
    copy = tmp_path / "b" / first.name
    copy.write_bytes(first.read_bytes())
    corpus = nc.open_corpus(copy, boundaries="bos:1")  # where nothing follows, its last token is taken for a fill of 1
    assert documents_of(corpus) == [[1, 10, 11, 12, 13]]
    assert any("the last 1 tokens are left out" in note for note in corpus.notes)
    assert corpus.fingerprint != nc.open_corpus(first, boundaries="bos:1").fingerprint


def test_two_data_sets_of_a_folder_are_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("train_slim_0", "train_star_0"):
        write(tmp_path, prefix=name)
    with pytest.raises(ValueError, match="2 data sets of LITPKDS: train_slim, train_star; give the path of one"):
        nc.open_corpus(tmp_path, boundaries="bos:1")
    assert nc.open_corpus(tmp_path / "train_star", boundaries="none").num_tokens == 18


@pytest.mark.parametrize("dtype", CODES)
def test_each_integer_dtype_is_served_unsigned(tmp_path: Path, dtype: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, dtype=dtype), boundaries="bos:1")
    assert corpus.dtype == np.dtype(f"u{min(np.dtype(dtype).itemsize, 4)}")
    assert documents_of(corpus) == [[1, 10, 11, 12, 13], [1], [14, 15], [1, 16, 17, 18], [19]]


@pytest.mark.parametrize(
    ("code", "message"),
    [(6, "means float32, and tokens are no floats"), (7, "means float64"), (9, "is unknown"), (0, "is unknown")],
)
def test_a_code_that_is_no_integer_s_is_refused(tmp_path: Path, code: int, message: str) -> None:
    path = tmp_path / "a_0000000000.bin"
    path.write_bytes(b"LITPKDS" + struct.pack("<QBQ", 1, code, 2) + bytes(8))
    with pytest.raises(nc.FormatError, match=f"byte 15: the dtype's code is {code}, expected one of .* it {message}"):
        nc.open_corpus(path, boundaries="none")


def test_a_dtype_that_the_file_contradicts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the litpkds layout says uint16: leave it out"):
        nc.open_corpus(write(tmp_path), boundaries="none", dtype="uint32")


def test_a_negative_id_is_refused_with_its_position(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="token 1 is -100"):  # found while the fill is looked for
        nc.open_corpus(write(tmp_path, [[5, -100, 6]], dtype="<i4"), boundaries="none")
    corpus = nc.open_corpus(write(tmp_path, [[5, -100, 6], [1, 2, 3]], dtype="<i4"), boundaries="none")
    with pytest.raises(nc.FormatError, match="token 1 is -100"):
        corpus.document(0)


def test_files_of_two_chunk_sizes_or_dtypes_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "train_0_0000000001.bin"
    path.write_bytes(content([1, 2]))
    with pytest.raises(nc.FormatError, match=r"0001.bin: byte 16: chunk_size is 2, but 6 in train_0_0000000000.bin"):
        nc.open_corpus(tmp_path, boundaries="none")
    path.write_bytes(content([1, 2, 3, 4, 5, 6], "<i4"))
    with pytest.raises(nc.FormatError, match=r"0001.bin: its tokens are int32, but uint16"):
        nc.open_corpus(tmp_path, boundaries="none")


def test_a_missing_number_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train_0_0000000001.bin").unlink()
    with pytest.raises(nc.FormatError, match="number 1 is missing"):
        nc.open_corpus(tmp_path, boundaries="none")


def test_a_fill_longer_than_a_piece_is_found_whole(tmp_path: Path) -> None:
    """The end of a file is looked at 2^16 tokens at a time."""
    for length in (2**16 - 1, 2**16, 2**16 + 1, 150_000):
        write(tmp_path, [[7] + [1] * length], "a")
        corpus = nc.open_corpus(tmp_path / "a", boundaries="eos:1")
        assert documents_of(corpus) == [[7, 1]]
        assert any(f"the last {length - 1:,} tokens are left out" in note for note in corpus.notes)


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = content(CHUNKS[1])
    path = tmp_path / "a_0000000000.bin"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        start = time.process_time()
        assert stream_of(path) is None, size
        assert time.process_time() - start < 0.1, size


FIELDS = {"magic": (0, 7), "version": (7, 8), "code": (15, 1), "chunk_size": (16, 8)}


@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_field_is_refused_or_changes_no_token(tmp_path: Path, field: str) -> None:
    at, size = FIELDS[field]
    whole = content(CHUNKS[1])
    path = tmp_path / "a_0000000000.bin"
    for value in [*VALUES, 3, 12, 6 + 2**63, 2**61]:
        changed = whole[:at] + (value % 256**size).to_bytes(size, "little") + whole[at + size :]
        path.write_bytes(changed)
        tracemalloc.start()
        found = stream_of(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5_000_000
        # Code 3, int16, is as wide as uint16, and these ids are the same in both.
        same = changed == whole or (field == "code" and value == 3)
        assert found == (CHUNKS[1] if same else None), value


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_ranks_of_a_loader_share_out_all_rows(tmp_path: Path, world: int) -> None:
    corpus = nc.open_corpus(write(tmp_path), boundaries="bos:1")
    plan = nc.Plan(nc.Source(corpus), seq_len=3, shuffle="none")
    rows: list[Any] = []
    for rank in range(world):
        with nc.Loader(plan, batch_size=4, dp_rank=rank, dp_world_size=world, num_samples=4) as loader:
            rows.extend(next(loader)["tokens"].tolist())
    assert rows == [[1, 10, 11, 12], [12, 13, 1, 14], [14, 15, 1, 16], [16, 17, 18, 19]]


def test_a_corpus_pickles(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path), boundaries="bos:1")
    again = pickle.loads(pickle.dumps(corpus))
    assert (documents_of(again), again.fingerprint) == (documents_of(corpus), corpus.fingerprint)
