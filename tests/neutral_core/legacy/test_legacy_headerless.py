"""Headerless files of tokens: what must be said, what is refused, and documents worked out by hand."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

TOKENS = [4, 5, 9, 9, 6, 7, 9, 8]  # 9 ends a text


def write(folder: Path, tokens: Any = TOKENS, dtype: str = "<u2", name: str = "train.bin") -> Path:
    path = folder / name
    path.write_bytes(np.array(tokens, dtype=dtype).tobytes())
    return path


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("boundaries", "expected"),
    [
        ("eos:9", [[4, 5, 9], [9], [6, 7, 9], [8]]),
        ("bos:9", [[4, 5], [9], [9, 6, 7], [9, 8]]),
        ("eos:8", [TOKENS]),
        ("bos:4", [TOKENS]),
        ("eos:4", [[4], TOKENS[1:]]),
        ("bos:8", [TOKENS[:-1], [8]]),
        ("fixed:3", [[4, 5, 9], [9, 6, 7], [9, 8]]),
        ("fixed:4", [[4, 5, 9, 9], [6, 7, 9, 8]]),
        ("fixed:8", [TOKENS]),
        ("fixed:100", [TOKENS]),
        ("fixed:1", [[token] for token in TOKENS]),
        ("none", [TOKENS]),
    ],
)
def test_documents_are_those_worked_out_by_hand(tmp_path: Path, boundaries: str, expected: Any, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path), dtype="uint16", boundaries=boundaries, access=access)
    assert documents_of(corpus) == expected
    assert corpus.tokens(0, 8).tolist() == TOKENS
    holder = [number for number, document in enumerate(expected) for _ in document]
    assert corpus.shards[0].offsets().find(np.arange(8)).tolist() == holder
    corpus.verify()


@pytest.mark.parametrize(
    ("boundaries", "note"),
    [
        ("eos:9", "1 tokens after the last 9 are taken as a document of their own"),
        ("bos:9", "2 tokens before the first 9 are taken as a document of their own"),
        ("eos:9", "4 documents by the rule eos:9; the id occurs 3 times"),
        ("fixed:3", "the last document has 2 tokens instead of 3"),
    ],
)
def test_what_a_rule_did_is_noted(tmp_path: Path, boundaries: str, note: str) -> None:
    notes = nc.open_corpus(write(tmp_path), dtype="uint16", boundaries=boundaries).notes
    assert any(note in text for text in notes)


@pytest.mark.parametrize(
    ("stored", "served"),
    [("u1", "u1"), ("i1", "u1"), ("u2", "u2"), ("i2", "u2"), ("u4", "u4"), ("i4", "u4"), ("i8", "u4"), ("u8", "u4")],
)
def test_each_integer_dtype_is_served_unsigned(tmp_path: Path, stored: str, served: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, dtype=f"<{stored}"), dtype=stored, boundaries="eos:9")
    assert corpus.dtype == np.dtype(served)
    assert corpus.document(2).tolist() == [6, 7, 9]
    assert nc.Plan(nc.Source(corpus), seq_len=3, shuffle="none").read([0])["tokens"].tolist() == [[4, 5, 9, 9]]


def test_a_missing_dtype_is_refused_with_what_each_width_would_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give dtype") as caught:
        nc.open_corpus(write(tmp_path), boundaries="none")
    message = str(caught.value)
    assert "Its 16 bytes say" in message
    assert "as uint8 its first 16 ids run from 0 to 9, 50% of them 0" in message
    assert "as uint16 its first 8 ids run from 4 to 9, 0% of them 0" in message
    assert (
        "as uint32 its first 4 ids run from 327,684 to 589,833" in message
    )  # 4 + 5·2^16 and 9 + 9·2^16; 458,758 and 524,297 between


def test_a_width_that_does_not_divide_the_size_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as uint32 it would not end on a whole id"):
        nc.open_corpus(write(tmp_path, [1, 2, 3]))


def test_missing_boundaries_are_refused_with_the_last_id(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"give boundaries=eos:ID, bos:ID, fixed:N or none. The last id is 9, which occurs 2 times"
    ):
        nc.open_corpus(write(tmp_path, [9, 1, 9]), dtype="uint16")


@pytest.mark.parametrize("arguments", [{}, {"dtype": "uint16"}, {"boundaries": "none"}])
def test_an_empty_file_asks_for_the_same(tmp_path: Path, arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give"):
        nc.open_corpus(write(tmp_path, []), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("boundaries", "count"), [("none", 1), ("fixed:4", 0)])
def test_an_empty_file_has_no_tokens(tmp_path: Path, boundaries: str, count: int) -> None:
    corpus = nc.open_corpus(write(tmp_path, []), dtype="uint16", boundaries=boundaries)
    assert (corpus.num_documents, corpus.num_tokens) == (count, 0)


@pytest.mark.parametrize("rule", ["eos", "bos"])
def test_an_id_that_does_not_occur_is_refused(tmp_path: Path, rule: str) -> None:
    for number in (3, 70_000):
        with pytest.raises(nc.FormatError, match=f"the id {number:,} does not occur in 8 tokens"):
            nc.open_corpus(write(tmp_path), dtype="uint16", boundaries=f"{rule}:{number}")


@pytest.mark.parametrize(
    "boundaries",
    [
        "",
        "eos",
        "eos:",
        "eos:-1",
        "eos:x",
        "fixed:0",
        "fixed:-3",
        "None",
        "doc:1",
        "none:1",
        "eos:1:2",
        "eos: 9",
        "EOS:9",
        "eos:9.0",
    ],
)
def test_a_rule_that_is_none_is_refused(tmp_path: Path, boundaries: str) -> None:
    with pytest.raises(ValueError, match=r"boundaries is .* expected eos:ID, bos:ID, fixed:N or none"):
        nc.open_corpus(write(tmp_path), dtype="uint16", boundaries=boundaries)


@pytest.mark.parametrize(("dtype", "cut"), [("uint16", 1), ("uint32", 1), ("uint32", 2), ("uint32", 3)])
def test_a_size_that_is_no_multiple_of_the_dtypes_is_refused(tmp_path: Path, dtype: str, cut: int) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(nc.FormatError, match=f"the file has {16 - cut} bytes, which is no multiple of"):
        nc.open_corpus(path, dtype=dtype, boundaries="none")


@pytest.mark.parametrize("dtype", ["float32", "bool", "S2", "complex64"])
def test_a_dtype_of_something_else_than_integers_is_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ValueError, match="expected an integer type: tokens are integers"):
        nc.open_corpus(write(tmp_path), dtype=dtype, boundaries="none")


def test_a_big_endian_dtype_is_refused_and_not_read_as_little_endian(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype is >u2, expected a little-endian one"):
        nc.open_corpus(write(tmp_path, dtype=">u2"), dtype=">u2", boundaries="none")


def test_a_negative_id_is_refused_with_its_position(tmp_path: Path) -> None:
    path = write(tmp_path, [1, 2, -100, 3], "<i4")
    corpus = nc.open_corpus(path, dtype="int32", boundaries="none")
    for touch in (lambda: corpus.document(0), corpus.verify, lambda: corpus.shards[0].rows(np.array([1]), 3)):
        with pytest.raises(nc.FormatError, match=r"train\.bin: token 2 is -100, expected an id from 0"):
            touch()
    with pytest.raises(nc.FormatError, match="token 2 is -100"):
        nc.open_corpus(path, dtype="int32", boundaries="eos:3")


FOREIGN = [
    (b"MMIDIDX\0\0", "index of a Megatron or fairseq pair"),
    (b"TNTIDX\0\0", "TNTIDX index"),
    (b"PAR1", "Parquet file"),
    (b"ARROW1\0\0", "Arrow file"),
    (b"\xff\xff\xff\xff", "Arrow stream"),
    (b"PK\3\4", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
]


@pytest.mark.parametrize(("magic", "what"), FOREIGN, ids=[what for _, what in FOREIGN])
def test_a_file_that_begins_with_a_foreign_magic_is_refused_unless_insisted_on(
    tmp_path: Path, magic: bytes, what: str
) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(magic + bytes(32 - len(magic)))
    with pytest.raises((nc.FormatError, FileNotFoundError), match=r"byte 0|index of a pair"):
        nc.open_corpus(path, dtype="uint8", boundaries="none")
    insisted = nc.open_corpus(path, layout="headerless", dtype="uint8", boundaries="none")
    assert bytes(insisted.document(0)) == magic + bytes(32 - len(magic))


@pytest.mark.parametrize(("magic", "what"), FOREIGN[2:], ids=[what for _, what in FOREIGN[2:]])
def test_the_refusal_of_a_magic_says_whose_it_is_and_how_to_insist(tmp_path: Path, magic: bytes, what: str) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(magic + bytes(32 - len(magic)))
    with pytest.raises(nc.FormatError, match=rf"begins .*{what}.*give layout='headerless'"):
        nc.open_corpus(path, dtype="uint8", boundaries="none")


@pytest.mark.parametrize(
    ("magic", "message"),
    [
        (b"\x93NUMPY\1\0", "byte 10: the header is ''"),
        (b"LITPKDS", "byte 7: version is 0"),
        (bytes.fromhex("88d83401"), "byte 4: version is 0"),  # 20240520
        (bytes.fromhex("a1d93401"), "byte 4: version is 0"),  # 20240801
        (bytes.fromhex("8ad83401"), "evaluation file of llm.c"),  # 20240522
    ],
)
def test_a_file_that_begins_with_the_magic_of_a_layout_that_is_read_is_that_layout_s_unless_insisted_on(
    tmp_path: Path, magic: bytes, message: str
) -> None:
    content = magic + bytes(32 - len(magic))
    path = tmp_path / "tokens.bin"
    path.write_bytes(content)
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(path, dtype="uint8", boundaries="none")
    insisted = nc.open_corpus(path, layout="headerless", dtype="uint8", boundaries="none")
    assert bytes(insisted.document(0)) == content


def test_the_fingerprint_knows_neither_path_nor_time(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one, other = write(tmp_path), write(tmp_path / "b", name="other.bin")
    os.utime(other, (1, 1))
    found = {nc.open_corpus(path, dtype="uint16", boundaries="eos:9").fingerprint for path in (one, other)}
    assert len(found) == 1


def test_the_fingerprint_changes_with_content_and_dtype_and_boundaries(tmp_path: Path) -> None:
    path = write(tmp_path)
    found = {
        nc.open_corpus(path, dtype=dtype, boundaries=boundaries).fingerprint
        for dtype in ("uint16", "int16", "uint32")
        for boundaries in ("none", "fixed:3", "fixed:4")
    }
    other = write(tmp_path, [*TOKENS[:-1], 7], name="other.bin")
    longer = write(tmp_path, [*TOKENS, 7], name="longer.bin")
    found |= {nc.open_corpus(p, dtype="uint16", boundaries="none").fingerprint for p in (other, longer)}
    assert len(found) == 3 * 3 + 2


def test_one_byte_in_any_block_of_a_small_file_changes_the_fingerprint(tmp_path: Path) -> None:
    content = np.arange(5000, dtype="<u2")
    found = set()
    for at in (None, 0, 2500, 4999):
        changed = content.copy()
        if at is not None:
            changed[at] ^= 1
        path = write(tmp_path, changed)
        found.add(nc.open_corpus(path, dtype="uint16", boundaries="none").fingerprint)
    assert len(found) == 4


def test_a_corpus_pickles_with_its_arguments(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path), dtype="uint16", boundaries="eos:9", access="read")
    again = pickle.loads(pickle.dumps(corpus))
    assert documents_of(again) == documents_of(corpus) == [[4, 5, 9], [9], [6, 7, 9], [8]]
    assert again.fingerprint == corpus.fingerprint


def test_a_file_that_changed_meanwhile_is_refused_when_unpickled(tmp_path: Path) -> None:
    pickled = pickle.dumps(nc.open_corpus(write(tmp_path), dtype="uint16", boundaries="none"))
    write(tmp_path, TOKENS[::-1])
    with pytest.raises(nc.FormatError, match="the data have changed"):
        pickle.loads(pickled)


def test_access_by_read_and_by_map_give_the_same_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for stored in ("<u1", "<u2", "<i4", "<i8"):
        path = write(tmp_path, rng.integers(0, 100, 3000), stored)
        both = [nc.open_corpus(path, dtype=stored, boundaries="eos:7", access=a) for a in ("map", "read")]
        assert both[0].fingerprint == both[1].fingerprint
        rows = [nc.Plan(nc.Source(c), seq_len=31, seed=1, documents=True).read(np.arange(300)) for c in both]
        for key in rows[0]:
            assert (rows[0][key] == rows[1][key]).all()


@pytest.mark.parametrize(
    ("given", "near"),
    [("megatrn", "megatron"), ("headless", "headerless"), ("fairsec", "fairseq"), ("milstream", "millstream")],
)
def test_an_unknown_layout_offers_the_nearest(tmp_path: Path, given: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"layout is '{given}', expected one of .* Did you mean '{near}'"):
        nc.open_corpus(write(tmp_path), layout=given)


def test_an_unknown_access_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="access is 'mapp', expected 'map' or 'read'"):
        nc.open_corpus(write(tmp_path), dtype="uint16", boundaries="none", access="mapp")


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**20])
def test_documents_may_be_longer_than_any_file(tmp_path: Path, number: int) -> None:
    corpus = nc.open_corpus(write(tmp_path), dtype="uint16", boundaries=f"fixed:{number}")
    assert documents_of(corpus) == [TOKENS]
    assert f"the last document has 8 tokens instead of {number:,}" in corpus.notes[0]


@pytest.mark.parametrize("access", ["map", "read"])
def test_no_rows_are_an_array_of_none(tmp_path: Path, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path), dtype="uint16", boundaries="none", access=access)
    rows = corpus.shards[0].rows(np.empty(0, dtype=np.int64), 3)
    assert (rows.shape, rows.dtype) == ((0, 3), np.uint16)


@pytest.mark.parametrize("access", ["map", "read"])
def test_rows_beyond_the_end_are_refused(tmp_path: Path, access: str) -> None:
    shard = nc.open_corpus(write(tmp_path), dtype="uint16", boundaries="none", access=access).shards[0]
    for start, stop in ((6, 9), (-1, 2), (9, 9), (3, 2)):
        with pytest.raises(IndexError):
            shard.read(start, stop)
    for start in (6, -1):
        with pytest.raises(IndexError):
            shard.rows(np.array([start]), 3)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such folder or file"):
        nc.open_corpus(tmp_path / "none.bin", dtype="uint16", boundaries="none")
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(tmp_path / "none.bin", layout="headerless", dtype="uint16", boundaries="none")


def test_documents_are_found_across_the_pieces_in_which_a_file_is_read(tmp_path: Path) -> None:
    total = 2**22 + 10  # ids are sought 2^22 at a time
    tokens = np.zeros(total, dtype="u1")
    tokens[[5, 2**22 - 1, 2**22, total - 1]] = 1
    corpus = nc.open_corpus(write(tmp_path, tokens, "u1"), dtype="uint8", boundaries="eos:1")
    assert corpus.document_offsets(0, 4).tolist() == [0, 6, 2**22, 2**22 + 1, total]
