"""TNTIDX pairs of fairseq and of Megatron's kin: bytes written out from the layout's facts; who counted from 1 is asked for."""

import itertools
import os
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import VALUES, checked_contents, contents, replaced

import neutral_core as nc

# Items of 2, 1 and 4 ids, int32 (code 4); the document index [0, 2, 2, 3] has an empty document in the middle.
HEAD = "544e544944580000 0100000000000000 0400000000000000 0400000000000000 0300000000000000 0300000000000000"
ARRAYS = (
    "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
    "0000000000000000 0200000000000000 0300000000000000 0700000000000000"
    "0200000000000000 0100000000000000 0400000000000000"
)
FAIRSEQ = bytes.fromhex(f"{HEAD} {ARRAYS}")
MEGATRON = bytes.fromhex(
    f"{HEAD} 0400000000000000 {ARRAYS} 0000000000000000 0200000000000000 0200000000000000 0300000000000000"
)
IDS = [10, 11, 50256, 7, 8, 9, 0]
BIN = np.array(IDS, "<i4").tobytes()
LUA = np.array([11, 12, 50257, 8, 9, 10, 1], "<i4").tobytes()
ITEMS = [[10, 11], [50256], [7, 8, 9, 0]]
GROUPED = [[10, 11, 50256], [], [7, 8, 9, 0]]
CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}


def index_bytes(
    lengths: Sequence[int],
    *,
    code: int = 4,
    size: int | None = None,
    dims: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    documents: Sequence[int] | None = None,
) -> bytes:
    size = np.dtype(CODES.get(code, "<i4")).itemsize if size is None else size
    count = len(lengths) if dims is None else len(dims) - 1
    found = b"TNTIDX\0\0" + struct.pack("<5Q", 1, code, size, count, len(lengths))
    if documents is not None:
        found += struct.pack("<Q", len(documents))
    starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)] if offsets is None else offsets
    for array in (range(count + 1) if dims is None else dims, starts, lengths, documents or []):
        found += np.array(array, "<i8").tobytes()
    return found


def write(folder: Path, index: bytes, tokens: bytes = BIN, name: str = "data") -> Path:
    (folder / f"{name}.idx").write_bytes(index)
    (folder / f"{name}.bin").write_bytes(tokens)
    return folder / name


def documents_of(path: Path, **how: Any) -> Any:
    found = contents(path, **how)
    return None if found is None else found["documents"]


def test_the_fixtures_have_the_sizes_of_the_layouts() -> None:
    assert (len(FAIRSEQ), len(MEGATRON)) == (136, 176)
    assert index_bytes([2, 1, 4]) == FAIRSEQ
    assert index_bytes([2, 1, 4], documents=[0, 2, 2, 3]) == MEGATRON


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("index", "tokens", "how", "expected"),
    [
        (FAIRSEQ, BIN, {"layout": "tntidx"}, ITEMS),
        (FAIRSEQ, LUA, {"layout": "tntidx-lua"}, ITEMS),
        (FAIRSEQ, LUA, {"layout": "tntidx"}, [[11, 12], [50257], [8, 9, 10, 1]]),
        (FAIRSEQ, LUA, {"layout": "tntidx-lua", "boundaries": "sequences"}, ITEMS),
        (MEGATRON, BIN, {}, GROUPED),
        (MEGATRON, BIN, {"layout": "tntidx"}, GROUPED),
        (MEGATRON, BIN, {"boundaries": "index"}, GROUPED),
        (MEGATRON, BIN, {"boundaries": "sequences"}, ITEMS),
    ],
    ids=["as-is", "lua", "as-is-wrongly", "lua-sequences", "megatron", "megatron-by-name", "by-index", "by-sequence"],
)
def test_documents_are_those_worked_out_by_hand(
    tmp_path: Path, index: bytes, tokens: bytes, how: Any, expected: Any, access: str
) -> None:
    prefix = write(tmp_path, index, tokens)
    corpus = nc.open_corpus(prefix, access=access, **how)
    assert documents_of(prefix, access=access, **how) == expected
    stream = list(itertools.chain(*expected))
    assert corpus.tokens(0, 7).tolist() == stream
    holder = [number for number, document in enumerate(expected) for _ in document]
    assert corpus.shards[0].offsets().find(np.arange(7)).tolist() == holder
    assert corpus.shards[0].rows(np.array([0, 4]), 3).tolist() == [stream[:3], stream[4:]]
    assert (corpus.dtype, corpus.num_tokens, corpus.notes) == (np.uint32, 7, ())
    assert not corpus.document(0).flags.writeable


def test_data_offsets_count_ids_and_not_bytes(tmp_path: Path) -> None:
    in_bytes = index_bytes([2, 1, 4], offsets=[0, 8, 12, 28])
    with pytest.raises(nc.FormatError, match=r"sequence 1 begins at token 8 of data\.bin, expected 2"):
        nc.open_corpus(write(tmp_path, in_bytes), layout="tntidx")


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("layout", ["tntidx", "tntidx-lua"])
def test_each_code_of_integers_is_served_unsigned_up_to_its_largest_id(tmp_path: Path, code: int, layout: str) -> None:
    most = min(int(np.iinfo(CODES[code]).max), 2**32 - 1)
    tokens = np.array([5, 1, most], dtype=CODES[code])
    prefix = write(tmp_path, index_bytes([1, 2], code=code), tokens.tobytes())
    less = 1 if layout == "tntidx-lua" else 0
    assert documents_of(prefix, layout=layout) == [[5 - less], [1 - less, most - less]]
    assert nc.open_corpus(prefix, layout=layout).dtype == np.dtype(f"u{min(tokens.itemsize, 4)}")


def test_counted_from_1_the_ids_of_64_bits_end_at_2_to_the_32(tmp_path: Path) -> None:
    prefix = write(tmp_path, index_bytes([1, 1], code=5), np.array([2**32, 2**32 + 1], "<i8").tobytes())
    corpus = nc.open_corpus(prefix, layout="tntidx-lua")
    assert corpus.document(0).tolist() == [2**32 - 1]
    with pytest.raises(nc.FormatError, match="token 1 is 4,294,967,297, expected an id from 1 to 4,294,967,296"):
        corpus.document(1)


@pytest.mark.parametrize("access", ["map", "read"])
def test_a_0_that_was_counted_from_1_is_no_id_wherever_it_is_read(tmp_path: Path, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, FAIRSEQ), layout="tntidx-lua", access=access)
    message = r"data\.bin: token 6 is 0, expected an id from 1 to 2,147,483,647"
    for touch in (lambda: corpus.document(2), lambda: corpus.shards[0].rows(np.array([4]), 3), corpus.verify):
        with pytest.raises(nc.FormatError, match=message):
            touch()
    assert corpus.document(0).tolist() == [9, 10]


def test_fairseq_s_are_refused_with_the_question_and_the_evidence(tmp_path: Path) -> None:
    lines = index_bytes([3, 2])  # ends of lines: </s>, which is 2, and 3 with 1 added
    prefix = write(tmp_path, lines, np.array([11, 8, 3, 9, 3], "<i4").tobytes())
    question = (
        r"data: fairseq stored ids .* with 1 added.*give layout='tntidx-lua' to take 1 off each id, or layout='tntidx' to take them as they are\. "
        r"The smallest of the first 5 ids is 3, and the first items end with 3; .*</s> 2"
    )
    with pytest.raises(ValueError, match=question):
        nc.open_corpus(prefix)
    with pytest.raises(ValueError, match="A 0 occurs in the first 7 ids, which no id is with 1 added: it is 'tntidx'"):
        nc.open_corpus(write(tmp_path, FAIRSEQ))
    with pytest.raises(ValueError, match="The file has no tokens"):
        nc.open_corpus(write(tmp_path, index_bytes([]), b""))
    with pytest.raises(ValueError, match=r"ids is 1, and the first items end with 1, 2, 3, 4 …;"):
        nc.open_corpus(write(tmp_path, index_bytes([1] * 5), np.array([1, 2, 3, 4, 5], "<i4").tobytes()))


def test_megatron_s_ids_are_as_they_are_and_cannot_be_counted_from_1(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="by its size it is Megatron's, whose ids are as they are"):
        nc.open_corpus(write(tmp_path, MEGATRON), layout="tntidx-lua")


def test_a_document_index_of_0_alone_means_one_item_a_document_and_is_said(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, index_bytes([2, 1, 4], documents=[0])))
    assert [corpus.document(number).tolist() for number in range(3)] == ITEMS
    assert "the document index holds [0] alone" in corpus.notes[0]


def test_items_without_ids_are_empty_documents(tmp_path: Path) -> None:
    tokens = np.array([1, 2, 3], "<i4").tobytes()
    expected = [[], [1, 2], [], [3], []]
    assert documents_of(write(tmp_path, index_bytes([0, 2, 0, 1, 0]), tokens), layout="tntidx") == expected
    index = index_bytes([0, 2, 0, 1, 0], documents=range(6))
    assert documents_of(write(tmp_path, index, tokens)) == expected
    assert documents_of(write(tmp_path, index_bytes([], documents=[0]), b"")) == []


def test_the_two_ways_of_counting_have_two_fingerprints_and_pickle_as_asked(tmp_path: Path) -> None:
    prefix = write(tmp_path, FAIRSEQ, LUA)
    plain, lua = (nc.open_corpus(prefix, layout=layout) for layout in ("tntidx", "tntidx-lua"))
    assert plain.fingerprint != lua.fingerprint
    assert pickle.loads(pickle.dumps(lua)).document(2).tolist() == ITEMS[2]
    megatron = write(tmp_path, MEGATRON, name="m")
    assert nc.open_corpus(megatron).fingerprint == nc.open_corpus(megatron, layout="tntidx").fingerprint
    assert nc.open_corpus(megatron).fingerprint != nc.open_corpus(megatron, boundaries="sequences").fingerprint


@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_prefix_and_either_file_name_the_pair_also_with_dots(tmp_path: Path, suffix: str) -> None:
    assert documents_of(Path(f"{write(tmp_path, MEGATRON, name='v1.2_text')}{suffix}")) == GROUPED


def test_an_index_whose_bin_is_missing_says_so(tmp_path: Path) -> None:
    write(tmp_path, MEGATRON)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"index of a pair, but data\.bin is not beside it"):
        nc.open_corpus(tmp_path / "data.idx")
    with pytest.raises(FileNotFoundError, match=r"no two files data\.idx and data\.bin"):
        nc.open_corpus(tmp_path / "data", layout="tntidx")


def test_a_rule_that_cuts_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the tntidx layout stores its documents: leave it out"):
        nc.open_corpus(write(tmp_path, MEGATRON), boundaries="eos:0")
    with pytest.raises(ValueError, match="dtype is uint16, but the tntidx layout says uint32"):
        nc.open_corpus(write(tmp_path, MEGATRON), dtype="uint16")


@pytest.mark.parametrize(
    ("index", "tokens", "message"),
    [
        (FAIRSEQ[:47], BIN, "ends after 47 bytes, a header has at least 48"),
        (replaced(MEGATRON, 8, 8, 2), BIN, "byte 8: version is 2, expected 1"),
        (index_bytes([1], code=6, documents=[0, 1]), BIN, "byte 16: the dtype's code is 6.*float32 in some tools"),
        (index_bytes([1], code=2**40, documents=[0, 1]), BIN, "byte 16: the dtype's code is 1099511627776.*unknown"),
        (replaced(MEGATRON, 24, 8, 8), BIN, r"byte 24: an id has 8 bytes, .* code 4 at byte 16 means int32, 4 bytes"),
        (FAIRSEQ + b"\0", BIN, r"has 137 bytes, expected for 3 items 136 \(fairseq\), or with 0 entries .* 144 \(Meg"),
        (MEGATRON[:-1], BIN, r"has 175 bytes, .* with 4 entries of the document index 176 \(Megatron\)"),
        (
            index_bytes([2, 1, 2, 2], dims=[0, 1, 2, 4], offsets=[0, 2, 3, 7], documents=[0, 3]),
            BIN,
            "byte 40: 3 items have 4 sizes, expected one each: items that are no sequences of tokens",
        ),
        (
            index_bytes([2, 1, 4], dims=[0, 0, 1, 3], documents=[0, 3]),
            BIN,
            "entry 1 of the dimension offsets is 0, expected 1: an item has another number of dimensions than one",
        ),
        (index_bytes([2, -1, 4], documents=[0, 3]), BIN, "sequence 1 has the length -1"),
        (index_bytes([2, 2**62, 4], documents=[0, 3]), BIN, r"sequence 1 has the length 4,611,.* but data\.bin has 28"),
        (index_bytes([2, 2**40, 4], documents=[0, 3]), BIN, r"sequence 1 has the length 1,099,511,627,776, but"),
        (
            index_bytes([2, 1, 4], offsets=[0, 2, 4, 7], documents=[0, 3]),
            BIN,
            "sequence 2 begins at token 4 .* expected 3",
        ),
        (index_bytes([2, 1, 4], offsets=[0, 2, 3, 8], documents=[0, 3]), BIN, "the last data offset is 8, expected 7"),
        (MEGATRON, BIN[:-4], r"data\.bin: the file has 24 bytes, but data\.idx promises 7 tokens of 4 bytes, 28 bytes"),
        (MEGATRON, BIN + b"\0", r"data\.bin: the file has 29 bytes"),
        (index_bytes([2, 1, 4], documents=[0, 2, 1, 3]), BIN, "entry 2 of the document index is 1, after 2.*sequences"),
        (index_bytes([2, 1, 4], documents=[0, 2]), BIN, "the document index runs from 0 to 2, expected 0 to 3"),
        (index_bytes([2, 1, 4], documents=[]), BIN, "the document index has no entries"),
    ],
    ids=itertools.count(),
)
def test_a_damaged_pair_is_refused_with_the_place(tmp_path: Path, index: bytes, tokens: bytes, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, index, tokens))


def test_offsets_beyond_2_to_the_31_are_read_right_and_not_repaired(tmp_path: Path) -> None:
    lengths = [2**31 + 5, 3]
    for start, right in ((2**31 + 5, True), (5 - 2**31, False)):
        index = index_bytes(lengths, code=1, offsets=[0, start, 2**31 + 8], documents=[0, 1, 2])
        prefix = write(tmp_path, index, b"")
        with open(f"{prefix}.bin", "r+b") as file:
            os.truncate(file.fileno(), 2**31 + 8)
            file.seek(2**31 + 5)
            file.write(b"\1\2\3")
        if right:
            assert nc.open_corpus(prefix).document(1).tolist() == [1, 2, 3]
        else:
            with pytest.raises(nc.FormatError, match="sequence 1 begins at token -2,147,483,643"):
                nc.open_corpus(prefix)


def test_a_document_index_that_is_wrong_does_not_matter_by_sequences(tmp_path: Path) -> None:
    prefix = write(tmp_path, index_bytes([2, 1, 4], documents=[0, 2, 1, 3]))
    assert documents_of(prefix, boundaries="sequences") == ITEMS


WHOLE = {
    "fairseq": (FAIRSEQ, LUA, {"layout": "tntidx-lua"}, {"documents": ITEMS}),
    "megatron": (MEGATRON, BIN, {}, {"documents": GROUPED}),
}


@pytest.mark.parametrize("which", WHOLE)
def test_either_file_cut_at_any_byte_is_refused(tmp_path: Path, which: str) -> None:
    index, tokens, how, expected = WHOLE[which]
    assert checked_contents(write(tmp_path, index, tokens), **how) == expected
    for size in range(len(index)):
        assert checked_contents(write(tmp_path, index[:size], tokens), **how) is None, size
    for size in range(len(tokens)):
        assert checked_contents(write(tmp_path, index, tokens[:size]), **how) is None, size


@pytest.mark.parametrize("which", WHOLE)
def test_a_changed_header_is_refused_or_changes_nothing(tmp_path: Path, which: str) -> None:
    index, tokens, how, expected = WHOLE[which]
    for at in range(8, 48 if which == "fairseq" else 56, 8):
        for value in (*VALUES, 2**61, 2**62 + 3, 2**63):
            changed = replaced(index, at, 8, value)
            found = checked_contents(write(tmp_path, changed, tokens), **how)
            assert found == (expected if changed == index else None), (at, value)


@pytest.mark.parametrize("which", WHOLE)
def test_any_one_byte_of_the_index_changed_yields_no_other_stream(tmp_path: Path, which: str) -> None:
    index, tokens, how, _ = WHOLE[which]
    for at in range(len(index)):
        # Code 4 becomes 9, uint32, which holds the same ids; an entry of the document index may move.
        for change in (0x0D, 0x80):
            changed = index[:at] + bytes([index[at] ^ change]) + index[at + 1 :]
            found = contents(write(tmp_path, changed, tokens), **how)
            assert found is None or list(itertools.chain(*found["documents"])) == IDS, (at, change)
