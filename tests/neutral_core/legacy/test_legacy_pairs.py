"""Megatron's and fairseq's pairs: bytes written out from the layout's facts, read in place."""

import os
import pickle
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

# Lengths [2, 1, 4]; document index [0, 2, 2, 3]: a document of two sentences, one without any, one of one sentence.
HEAD = "4d4d49444944580000 0100000000000000 08 0300000000000000"
ARRAYS = "020000000100000004000000 000000000000000004000000000000000600000000000000"
DOCUMENTS = "0000000000000000020000000000000002000000000000000300000000000000"
BIN = bytes.fromhex("0a000b0050c40700080009000000")
MEGATRON = bytes.fromhex(f"{HEAD} 0400000000000000 {ARRAYS} {DOCUMENTS}")
WITH_MODES = MEGATRON + b"\0\0\0"
WITH_IMAGE = MEGATRON + b"\0\1\0"
FAIRSEQ = bytes.fromhex(f"{HEAD} {ARRAYS}")
GROUPED = [[10, 11, 50256], [], [7, 8, 9, 0]]
SENTENCES = [[10, 11], [50256], [7, 8, 9, 0]]

CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}


def index_bytes(
    lengths: Sequence[int],
    *,
    documents: Iterable[int] | None = None,
    code: int = 8,
    pointers: Iterable[int] | None = None,
    fairseq: bool = False,
    version: int = 1,
) -> bytes:
    size = np.dtype(CODES.get(code, "u1")).itemsize
    starts = [sum(lengths[:n]) * size for n in range(len(lengths))] if pointers is None else list(pointers)
    entries = list(range(len(lengths) + 1) if documents is None else documents)
    found = b"MMIDIDX\0\0" + struct.pack("<QBQ", version, code, len(lengths))
    if not fairseq:
        found += struct.pack("<Q", len(entries))
    found += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *starts)
    return found if fairseq else found + struct.pack(f"<{len(entries)}q", *entries)


def write(folder: Path, index: bytes, tokens: bytes, name: str = "data") -> Path:
    (folder / f"{name}.idx").write_bytes(index)
    (folder / f"{name}.bin").write_bytes(tokens)
    return folder / name


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


# What is read


def test_the_fixtures_have_the_sizes_of_the_layouts() -> None:
    assert (len(MEGATRON), len(WITH_MODES), len(FAIRSEQ), len(BIN)) == (102, 105, 62, 14)
    assert index_bytes([2, 1, 4], documents=[0, 2, 2, 3]) == MEGATRON
    assert index_bytes([2, 1, 4], fairseq=True) == FAIRSEQ


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("index", "expected"), [(MEGATRON, GROUPED), (WITH_MODES, GROUPED), (FAIRSEQ, SENTENCES)], ids=["m", "modes", "f"]
)
def test_documents_are_those_worked_out_by_hand(tmp_path: Path, index: bytes, expected: Any, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, index, BIN), access=access)
    assert documents_of(corpus) == expected
    assert corpus.tokens(0, 7).tolist() == [10, 11, 50256, 7, 8, 9, 0]
    assert corpus.dtype == np.uint16
    assert (corpus.num_documents, corpus.num_tokens, corpus.num_shards) == (3, 7, 1)
    assert corpus.vocab_size is None
    corpus.verify()


def test_sentences_of_a_document_are_grouped_and_a_repeated_entry_is_an_empty_document(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, MEGATRON, BIN))
    assert corpus.document_offsets(0, 3).tolist() == [0, 3, 3, 7]
    assert corpus.notes == ()


def test_a_sequence_of_length_0_is_an_empty_document(tmp_path: Path) -> None:
    index = index_bytes([0, 2, 0, 0, 1, 0])
    corpus = nc.open_corpus(write(tmp_path, index, b"\1\0\2\0\3\0"))
    assert documents_of(corpus) == [[], [1, 2], [], [], [3], []]


def test_empty_documents_stand_at_the_start_and_the_end(tmp_path: Path) -> None:
    index = index_bytes([2, 1], documents=[0, 0, 0, 2, 2])
    assert documents_of(nc.open_corpus(write(tmp_path, index, b"\1\0\2\0\3\0"))) == [[], [], [1, 2, 3], []]


def test_rows_of_a_plan_know_the_documents(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, MEGATRON, BIN))
    batch = nc.Plan(nc.Source(corpus), seq_len=6, shuffle="none", documents=True).read([0])
    assert batch["tokens"].tolist() == [[10, 11, 50256, 7, 8, 9, 0]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 2, 2]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0, 1, 2, 3]]


def test_zero_modes_are_left_out_with_a_note(tmp_path: Path) -> None:
    notes = nc.open_corpus(write(tmp_path, WITH_MODES, BIN)).notes
    assert len(notes) == 1
    assert "one mode byte per sequence" in notes[0]


def test_an_image_among_the_modes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match=r"data\.idx: sequence 1 has mode 1, expected 0 \(text\)"):
        nc.open_corpus(write(tmp_path, WITH_IMAGE, BIN))


def test_a_document_index_of_0_alone_means_one_sequence_a_document_and_is_said(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, index_bytes([2, 1, 4], documents=[0]), BIN))
    assert documents_of(corpus) == SENTENCES
    assert len(corpus.notes) == 1
    assert "the document index holds [0] alone" in corpus.notes[0]


@pytest.mark.parametrize("access", ["map", "read"])
def test_each_sentence_is_a_document_where_that_is_asked_for(tmp_path: Path, access: str) -> None:
    prefix = write(tmp_path, MEGATRON, BIN)
    corpus = nc.open_corpus(prefix, boundaries="sequences", access=access)
    assert documents_of(corpus) == SENTENCES
    assert corpus.document_offsets(0, 3).tolist() == [0, 2, 3, 7]
    assert corpus.notes == ()
    grouped = [nc.open_corpus(prefix, boundaries=rule, access=access) for rule in (None, "index")]
    assert [documents_of(other) for other in grouped] == [GROUPED, GROUPED]
    assert len({corpus.fingerprint, *(other.fingerprint for other in grouped)}) == 2
    assert documents_of(pickle.loads(pickle.dumps(corpus))) == SENTENCES


def test_by_sequences_the_document_index_does_not_matter(tmp_path: Path) -> None:
    for documents in ([0], [0, 2, 1, 3], [7], []):
        corpus = nc.open_corpus(
            write(tmp_path, index_bytes([2, 1, 4], documents=documents), BIN), boundaries="sequences"
        )
        assert documents_of(corpus) == SENTENCES
        assert corpus.notes == ()


def test_fairseq_s_sequences_are_its_documents_by_either_rule(tmp_path: Path) -> None:
    corpora = [nc.open_corpus(write(tmp_path, FAIRSEQ, BIN), boundaries=rule) for rule in (None, "index", "sequences")]
    assert [documents_of(corpus) for corpus in corpora] == [SENTENCES] * 3
    assert len({corpus.fingerprint for corpus in corpora}) == 1


@pytest.mark.parametrize("index", [index_bytes([]), index_bytes([], fairseq=True), index_bytes([0, 0])])
def test_a_pair_without_tokens_opens(tmp_path: Path, index: bytes) -> None:
    corpus = nc.open_corpus(write(tmp_path, index, b""))
    assert corpus.num_tokens == 0
    assert documents_of(corpus) == [[]] * corpus.num_documents
    corpus.verify()


@pytest.mark.parametrize(
    ("code", "served"), [(1, "u1"), (2, "u1"), (3, "u2"), (4, "u4"), (5, "u4"), (8, "u2"), (9, "u4"), (10, "u4")]
)
@pytest.mark.parametrize("access", ["map", "read"])
def test_each_code_of_integers_is_served_unsigned(tmp_path: Path, code: int, served: str, access: str) -> None:
    tokens = np.array([5, 0, 127, 1], dtype=CODES[code])
    corpus = nc.open_corpus(write(tmp_path, index_bytes([3, 1], code=code), tokens.tobytes()), access=access)
    assert corpus.dtype == np.dtype(served)
    assert corpus.document(0).dtype == np.dtype(served)
    assert documents_of(corpus) == [[5, 0, 127], [1]]
    assert corpus.shards[0].rows(np.array([1, 0]), 3).tolist() == [[0, 127, 1], [5, 0, 127]]
    corpus.verify()


@pytest.mark.parametrize(
    ("code", "most"),
    [
        (1, 2**8 - 1),
        (2, 2**7 - 1),
        (3, 2**15 - 1),
        (4, 2**31 - 1),
        (5, 2**32 - 1),
        (8, 2**16 - 1),
        (9, 2**32 - 1),
        (10, 2**32 - 1),
    ],
)
def test_the_largest_id_of_each_code_is_read(tmp_path: Path, code: int, most: int) -> None:
    corpus = nc.open_corpus(
        write(tmp_path, index_bytes([2], code=code), np.array([most, 0], dtype=CODES[code]).tobytes())
    )
    assert documents_of(corpus) == [[most, 0]]


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("code", "wrong"), [(2, -1), (3, -100), (4, -100), (4, -(2**31)), (5, -1), (5, 2**32), (10, 2**32), (10, 2**64 - 1)]
)
def test_an_id_that_is_no_token_is_refused_wherever_it_is_read(
    tmp_path: Path, code: int, wrong: int, access: str
) -> None:
    tokens = np.array([1, 2, 3, 4, wrong, 6], dtype=CODES[code])
    corpus = nc.open_corpus(write(tmp_path, index_bytes([3, 3], code=code), tokens.tobytes()), access=access)
    message = rf"data\.bin: token 4 is {wrong:,}, expected an id from 0 to"
    for touch in (
        lambda: corpus.document(1),
        lambda: corpus.tokens(3, 6),
        lambda: corpus.shards[0].rows(np.array([0, 3]), 3),
        corpus.verify,
    ):
        with pytest.raises(nc.FormatError, match=message):
            touch()
    assert corpus.document(0).tolist() == [1, 2, 3]
    assert corpus.shards[0].rows(np.array([0, 1]), 3).tolist() == [[1, 2, 3], [2, 3, 4]]


@pytest.mark.parametrize("name", ["data", "v1.2_text.document", "x.bin", "x.idx", ".hidden"])
@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_prefix_and_either_file_name_the_pair_also_with_dots(tmp_path: Path, name: str, suffix: str) -> None:
    prefix = write(tmp_path, MEGATRON, BIN, name)
    assert documents_of(nc.open_corpus(f"{prefix}{suffix}")) == GROUPED


def test_two_pairs_whose_names_differ_after_a_dot_are_not_confused(tmp_path: Path) -> None:
    write(tmp_path, MEGATRON, BIN, "data.a")
    write(tmp_path, FAIRSEQ, BIN, "data.b")
    assert documents_of(nc.open_corpus(tmp_path / "data.a")) == GROUPED
    assert documents_of(nc.open_corpus(tmp_path / "data.b")) == SENTENCES


def test_access_by_read_and_by_map_give_the_same_corpus(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 50, 300).tolist()
    tokens = rng.integers(0, 2**16, sum(lengths)).astype("<u2")
    prefix = write(tmp_path, index_bytes(lengths), tokens.tobytes())
    mapped, read = (nc.open_corpus(prefix, access=access) for access in ("map", "read"))
    assert mapped.fingerprint == read.fingerprint
    edges = np.cumsum([0, *lengths])
    for number in range(300):
        expected = tokens[edges[number] : edges[number + 1]]
        assert (mapped.document(number) == expected).all()
        assert (read.document(number) == expected).all()
    rows = [nc.Plan(nc.Source(c), seq_len=64, seed=1, documents=True).read(np.arange(200)) for c in (mapped, read)]
    for key in rows[0]:
        assert (rows[0][key] == rows[1][key]).all()


def test_tokens_cannot_be_written_to(tmp_path: Path) -> None:
    for access in ("map", "read"):
        corpus = nc.open_corpus(write(tmp_path, MEGATRON, BIN), access=access)
        assert not corpus.document(0).flags.writeable


def test_a_pair_pickles_by_its_path(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, MEGATRON, BIN))
    again = pickle.loads(pickle.dumps(corpus))
    assert documents_of(again) == GROUPED
    assert again.fingerprint == corpus.fingerprint


def test_a_pair_that_changed_meanwhile_is_refused_when_unpickled(tmp_path: Path) -> None:
    pickled = pickle.dumps(nc.open_corpus(write(tmp_path, MEGATRON, BIN)))
    write(tmp_path, MEGATRON, BIN[:-1] + b"\1")
    with pytest.raises(nc.FormatError, match="the data have changed"):
        pickle.loads(pickled)


def test_the_fingerprint_knows_neither_path_nor_time(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, MEGATRON, BIN))
    (tmp_path / "elsewhere").mkdir()
    other = write(tmp_path / "elsewhere", MEGATRON, BIN, "other")
    os.utime(f"{other}.bin", (1, 1))
    assert nc.open_corpus(other).fingerprint == corpus.fingerprint


def test_the_fingerprint_changes_with_tokens_and_with_documents(tmp_path: Path) -> None:
    found = {nc.open_corpus(write(tmp_path, index, BIN)).fingerprint for index in (MEGATRON, WITH_MODES, FAIRSEQ)}
    found.add(nc.open_corpus(write(tmp_path, index_bytes([2, 1, 4]), BIN)).fingerprint)
    found.add(nc.open_corpus(write(tmp_path, MEGATRON, BIN[::-1])).fingerprint)
    assert len(found) == 5


def test_more_pairs_than_the_process_may_open_files_are_served(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        pairs = [nc.open_corpus(write(tmp_path, MEGATRON, BIN, str(number))) for number in range(300)]
        for corpus in [*pairs, *pairs[::-1]]:
            assert documents_of(corpus) == GROUPED
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_access_by_read_never_maps_the_index_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_map(*_: Any, **__: Any) -> None:
        raise AssertionError("mapped")

    monkeypatch.setattr("mmap.mmap", no_map)
    corpus = nc.open_corpus(write(tmp_path, MEGATRON, BIN), access="read")
    assert documents_of(corpus) == GROUPED
    assert nc.Plan(nc.Source(corpus), seq_len=6, documents=True).read([0])["tokens"].shape == (1, 7)


# What is repaired


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("documents", [None, [0, 2, 2, 5]])
def test_pointers_beyond_2_gib_are_read_right_wrapped_or_not(
    tmp_path: Path, wrapped: bool, documents: Any, access: str
) -> None:
    lengths = [
        600_000_000,
        500_000_000,
        400_000_000,
        700_000_000,
        3,
    ]  # of 2 bytes: starts at 0, 1.2, 2.2, 3.0 and 4.4 GB
    starts = [0, 1_200_000_000, 2_200_000_000, 3_000_000_000, 4_400_000_000]
    pointers = [wrap(start) if wrapped else start for start in starts]
    assert not wrapped or pointers == [0, 1_200_000_000, -2_094_967_296, -1_294_967_296, 105_032_704]
    prefix = write(tmp_path, index_bytes(lengths, pointers=pointers, documents=documents), b"")
    with open(f"{prefix}.bin", "r+b") as file:
        os.truncate(file.fileno(), 4_400_000_006)
        for number, start in enumerate(starts):
            file.seek(start)
            file.write(bytes([number + 1, 0]))
    corpus = nc.open_corpus(prefix, access=access)
    assert corpus.num_tokens == 2_200_000_003
    firsts = [corpus.tokens(start // 2, start // 2 + 2).tolist() for start in starts]
    assert firsts == [[1, 0], [2, 0], [3, 0], [4, 0], [5, 0]]
    offsets = corpus.document_offsets(0, corpus.num_documents).tolist()
    if documents is None:
        assert offsets == [0, 600_000_000, 1_100_000_000, 1_500_000_000, 2_200_000_000, 2_200_000_003]
        assert corpus.document(4).tolist() == [5, 0, 0]
    else:
        assert offsets == [0, 1_100_000_000, 1_100_000_000, 2_200_000_003]
    found = corpus.shards[0].offsets().find(np.array([0, 1_099_999_999, 1_100_000_000, 2_200_000_002]))
    assert found.tolist() == ([0, 1, 2, 4] if documents is None else [0, 0, 2, 2])
    assert bool(corpus.notes) == wrapped
    assert not wrapped or "pointers wrapped around at 2^31 bytes" in corpus.notes[0]


# What is refused


@pytest.mark.parametrize(
    ("index", "tokens", "message"),
    [
        (index_bytes([1], code=6), b"\0" * 8, r"byte 17: the dtype's code is 6.*float32 in some tools"),
        (index_bytes([1], code=7), b"\0" * 4, r"byte 17: the dtype's code is 7.*float32 in some tools"),
        (index_bytes([1], code=11), b"\0", "byte 17: the dtype's code is 11.*is unknown"),
        (index_bytes([1], code=0), b"\0", "byte 17: the dtype's code is 0.*is unknown"),
        (index_bytes([1], version=6), b"\0\0", "byte 9: version is 6.*unknown"),
        (index_bytes([1], version=0), b"\0\0", "byte 9: version is 0, expected 1"),
        (b"MMIDIDX\0\1" + MEGATRON[9:], BIN, "byte 0: found .* expected the magic"),
        (b"", BIN, "byte 0"),
        (MEGATRON[:20], BIN, "ends after 20 bytes, a header has at least 26"),
        (MEGATRON + b"\0", BIN, r"has 103 bytes, expected for 3 sequences 62 \(fairseq\)"),
        (MEGATRON[:-1], BIN, r"has 101 bytes, .* 102 \(Megatron\) or 105 \(with modes\)"),
        (WITH_MODES + b"\0", BIN, "has 106 bytes"),
        (FAIRSEQ + b"\0", BIN, "has 63 bytes"),
        (MEGATRON, BIN[:-2], r"data\.bin: the file has 12 bytes, but data\.idx promises 7 tokens of 2 bytes, 14 bytes"),
        (MEGATRON, BIN[:-1], r"data\.bin: the file has 13 bytes"),
        (MEGATRON, BIN + b"\0\0", r"data\.bin: the file has 16 bytes"),
        (MEGATRON, b"", r"data\.bin: the file has 0 bytes"),
        (index_bytes([2, -1, 4]), BIN, "sequence 1 has the length -1, expected 0 or more"),
        (index_bytes([2, 1, 4], pointers=[0, 4, 8]), BIN, r"sequence 2 begins at byte 8 of data\.bin, expected 6"),
        (index_bytes([2, 1, 4], pointers=[2, 6, 8]), BIN, r"sequence 0 begins at byte 2 of data\.bin, expected 0"),
        (index_bytes([2, 1, 4], pointers=[0, 0, 6]), BIN, "sequence 1 begins at byte 0"),
        (index_bytes([2, 1, 4], pointers=[10, 8, 0]), BIN, "the pointers leave gaps or overlap"),
        (index_bytes([2, 1, 4], documents=[1, 2, 3]), BIN, "the document index runs from 1 to 3, expected 0 to 3"),
        (index_bytes([2, 1, 4], documents=[0, 1, 2]), BIN, "the document index runs from 0 to 2, expected 0 to 3"),
        (index_bytes([2, 1, 4], documents=[0, 4]), BIN, "the document index runs from 0 to 4, expected 0 to 3"),
        (index_bytes([2, 1, 4], documents=[3]), BIN, "the document index runs from 3 to 3"),
        (index_bytes([2, 1, 4], documents=[0, 2, 1, 3]), BIN, "entry 2 of the document index is 1, after 2"),
        (index_bytes([2, 1, 4], documents=[0, -1, 3]), BIN, "entry 1 of the document index is -1, after 0"),
        (index_bytes([2, 1, 4], documents=[0, 9, 3]), BIN, "entry 2 of the document index is 3, after 9"),
        (index_bytes([2, 1, 4], documents=[]), BIN, "the document index has no entries"),
        (
            MEGATRON[:18] + struct.pack("<Q", 2**63) + MEGATRON[26:],
            BIN,
            "9,223,372,036,854,775,808 seq",
        ),
    ],
)
def test_a_damaged_pair_is_refused_with_the_place(tmp_path: Path, index: bytes, tokens: bytes, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, index, tokens))


def test_an_index_of_huffman_codes_is_refused_by_name(tmp_path: Path) -> None:
    index = b"HUFFIDX\0\0" + struct.pack("<QQQ", 1, 4, 3) + b"\0" * 36
    message = r"data\.idx: byte 0: b'HUFFIDX\\x00\\x00' begins an index of fairseq's Huffman-coded data.*it is not read"
    for layout in (None, "megatron"):
        with pytest.raises(nc.FormatError, match=message):
            nc.open_corpus(write(tmp_path, index, BIN), layout=layout)


def test_a_decrease_of_the_document_index_is_found_at_the_edge_of_a_piece_too(tmp_path: Path) -> None:
    count = 2**20 + 5  # entries are checked 2^20 at a time
    documents = np.arange(count + 1)
    documents[2**20] = 3
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 1, count, count + 1)
    arrays = (
        np.ones(count, "<i4").tobytes() + np.arange(count, dtype="<i8").tobytes() + documents.astype("<i8").tobytes()
    )
    with pytest.raises(nc.FormatError, match="entry 1,048,576 of the document index is 3, after 1,048,575"):
        nc.open_corpus(write(tmp_path, head + arrays, b"\0" * count))


@pytest.mark.parametrize("missing", [".idx", ".bin"])
def test_half_a_pair_is_not_found(tmp_path: Path, missing: str) -> None:
    prefix = write(tmp_path, MEGATRON, BIN)
    os.unlink(f"{prefix}{missing}")  # noqa: PTH108 - the suffix is appended, not replaced
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(prefix)
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(prefix, layout="megatron")


def test_an_index_whose_bin_is_missing_says_so(tmp_path: Path) -> None:
    write(tmp_path, MEGATRON, BIN)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"index of a pair, but data\.bin is not beside it"):
        nc.open_corpus(tmp_path / "data.idx")


def test_a_layout_that_is_insisted_on_must_be_the_files(tmp_path: Path) -> None:
    write(tmp_path, MEGATRON, BIN, "m")
    write(tmp_path, FAIRSEQ, BIN, "f")
    assert documents_of(nc.open_corpus(tmp_path / "m", layout="megatron")) == GROUPED
    assert documents_of(nc.open_corpus(tmp_path / "f", layout="fairseq")) == SENTENCES
    with pytest.raises(nc.FormatError, match="by its size it is megatron's layout, not fairseq's"):
        nc.open_corpus(tmp_path / "m", layout="fairseq")
    with pytest.raises(nc.FormatError, match="by its size it is fairseq's layout, not megatron's"):
        nc.open_corpus(tmp_path / "f", layout="megatron")


def test_arguments_that_the_pair_answers_itself_are_refused_where_they_differ(tmp_path: Path) -> None:
    prefix = write(tmp_path, MEGATRON, BIN)
    with pytest.raises(ValueError, match="stores its documents: leave it out"):
        nc.open_corpus(prefix, boundaries="eos:0")
    with pytest.raises(ValueError, match="dtype is uint8, but the megatron layout says uint16"):
        nc.open_corpus(prefix, dtype="uint8")
    with pytest.raises(ValueError, match="data: dtype is 'words', expected one of numpy's integer types"):
        nc.open_corpus(prefix, dtype="words")
    assert documents_of(nc.open_corpus(prefix, dtype="uint16")) == GROUPED


def test_a_pair_with_another_fingerprint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="expected abc: the data have changed"):
        nc.open_corpus(write(tmp_path, MEGATRON, BIN), fingerprint="abc")


def test_a_file_cut_short_after_it_was_opened_is_an_error_and_never_tokens(tmp_path: Path) -> None:
    prefix = write(tmp_path, MEGATRON, BIN)
    corpus = nc.open_corpus(prefix, access="read")
    os.truncate(f"{prefix}.bin", 6)
    with pytest.raises(OSError, match=r"data\.bin"):
        corpus.document(2)
