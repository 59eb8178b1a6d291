"""dolma's and OLMo's ``.npy`` files without a header, with ``.csv.gz`` and masks: bytes written out from the layout's facts, read in place."""

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import stream_of

import neutral_core as nc
from prep.convert import Options, convert

DOCUMENTS = [[4, 5, 6], [7], [8, 9, 200]]
MASKS = [[False, True, True], [True], [False, False, True]]
STREAM = [4, 5, 6, 7, 8, 9, 200]
SHORT = bytes.fromhex("0400 0500 0600 0700 0800 0900 c800")
MASK = bytes.fromhex("000101 01 000001")
OLMO_CORE = b"0,3\n3,4\n4,7\n"
# What Python's csv.writer makes of five columns, one of them with a comma, a quote and a line break.
DOLMA = b'0,3,doc-0,s3://bucket/a.jsonl.gz,1\r\n3,4,"doc ""1"",\r\n5,6",s3://bucket/a.jsonl.gz,2\r\n4,7,doc-2,b,1\r\n'
QUOTED = b'"0","3"\r\n"3","4"\r\r\n"4","7"'
WIDTHS = {"u1": 1, "<u2": 2, "<u4": 4, "<u8": 8}

VALUES = [0, 1, -1, 2**31, 2**63 - 1]


def write(
    folder: Path,
    tokens: bytes = SHORT,
    table: bytes | None = OLMO_CORE,
    *,
    mask: bytes | None = None,
    name: str = "part-0-00000",
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.npy").write_bytes(tokens)
    if table is not None:
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(table, mtime=0))
    if mask is not None:
        (folder / f"{name.replace('token_ids', 'labels_mask')}.npy").write_bytes(mask)
    return folder / f"{name}.npy"


def with_mask(folder: Path, number: int = 0, **changes: Any) -> Path:
    return write(folder, **{"mask": MASK, "name": f"token_ids_part_{number:04d}", **changes})


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


def masks_of(corpus: nc.Corpus) -> list[list[bool]]:
    return [corpus.field("token.loss_mask", number).tolist() for number in range(corpus.num_documents)]


# What is read


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("table", [OLMO_CORE, DOLMA, QUOTED], ids=["olmo-core", "dolma", "quoted"])
@pytest.mark.parametrize("stored", WIDTHS)
def test_documents_are_those_worked_out_by_hand_in_each_width(
    tmp_path: Path, stored: str, table: bytes, access: str
) -> None:
    path = write(tmp_path, np.array(STREAM, dtype=stored).tobytes(), table)
    for arguments in ({}, {"dtype": stored}):
        corpus = nc.open_corpus(path, access=access, **arguments)  # type: ignore[arg-type]
        assert documents_of(corpus) == DOCUMENTS
        assert corpus.tokens(0, 7).tolist() == STREAM
        assert corpus.dtype.itemsize == min(WIDTHS[stored], 4)
        assert corpus.shards[0].offsets().find(np.arange(7)).tolist() == [0, 0, 0, 1, 2, 2, 2]
        corpus.verify()
        assert len(corpus.notes) == (not arguments)


@pytest.mark.parametrize("access", ["map", "read"])
def test_the_labels_mask_is_the_token_loss_mask(tmp_path: Path, access: str) -> None:
    corpus = nc.open_corpus(with_mask(tmp_path), access=access)
    assert (documents_of(corpus), masks_of(corpus)) == (DOCUMENTS, MASKS)
    assert corpus.fields["token.loss_mask"].dtype == "bool"
    corpus.verify()


def test_a_folder_is_one_corpus_with_a_shard_a_file_in_the_order_of_names(tmp_path: Path) -> None:
    with_mask(tmp_path, 11)
    with_mask(tmp_path, 2, tokens=b"\1\0\2\0", table=b"0,1\n1,2\n", mask=b"\1\0")
    (tmp_path / "tokenizer").mkdir()
    corpus = nc.open_corpus(tmp_path)
    assert (documents_of(corpus), masks_of(corpus)) == ([[1], [2], *DOCUMENTS], [[True], [False], *MASKS])
    assert corpus.num_shards == 2


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("document_shuffle", [False, True])
def test_plans_read_the_rows_that_they_read_from_memory(tmp_path: Path, document_shuffle: bool, access: str) -> None:
    for number in range(2):
        with_mask(tmp_path / "set", number)
    memory = nc.memory_corpus([np.array(document, dtype=np.uint16) for document in DOCUMENTS * 2], vocab_size=2**16)
    plans = [
        nc.Plan(nc.Source(corpus), seq_len=4, seed=5, documents=True, document_shuffle=document_shuffle)
        for corpus in (nc.open_corpus(tmp_path / "set", access=access), memory)
    ]
    rows = [plan.read(np.arange(20)) for plan in plans]
    for key in rows[1]:
        assert (rows[0][key] == rows[1][key]).all(), key


def test_conversion_keeps_documents_tokens_and_masks(tmp_path: Path) -> None:
    for number in range(3):
        with_mask(tmp_path / "set", number)
    convert(Options(source=str(tmp_path / "set"), destination=tmp_path / "ours", tokens_per_shard=8))
    ours = nc.open_corpus(tmp_path / "ours")
    assert (documents_of(ours), masks_of(ours)) == (DOCUMENTS * 3, MASKS * 3)


def test_a_corpus_pickles(tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(nc.open_corpus(with_mask(tmp_path))))
    assert (documents_of(again), masks_of(again)) == (DOCUMENTS, MASKS)


def test_the_fingerprint_covers_tokens_documents_and_mask_and_no_name_or_time(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"tokens": SHORT[:-2] + b"\0\0"},
        {"table": b"0,2\n2,4\n4,7\n"},
        {"mask": MASK[::-1]},
        {"table": DOLMA, "number": 7},  # the first again
    ]
    found = [nc.open_corpus(with_mask(tmp_path / str(n), **each)).fingerprint for n, each in enumerate(changes)]
    table = tmp_path / "0" / "token_ids_part_0000.csv.gz"
    table.write_bytes(gzip.compress(OLMO_CORE, mtime=1_700_000_000))
    os.utime(table, (1, 1))
    found.append(nc.open_corpus(tmp_path / "0").fingerprint)
    assert len(set(found)) == 4
    assert found[0] == found[-1] == found[-2]


# Width and boundaries


def test_the_width_is_inferred_aloud(tmp_path: Path) -> None:
    (note,) = nc.open_corpus(write(tmp_path)).notes
    assert note.startswith(
        "part-0-00000.npy: the ids are uint16, because the number of tokens that part-0-00000.csv.gz"
    )


def test_a_dtype_that_the_files_contradict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype is uint32, but the file has 14 bytes for the 7 tokens .* ids of 2 by"):
        nc.open_corpus(write(tmp_path), dtype="uint32")
    with pytest.raises(ValueError, match=r"csv\.gz stores its documents: leave it out"):
        nc.open_corpus(write(tmp_path), boundaries="eos:7")


def test_a_mask_alone_tells_layout_and_width_and_the_rule_is_asked_for(tmp_path: Path) -> None:
    path = with_mask(tmp_path, table=None)
    with pytest.raises(ValueError, match=r"give boundaries=eos:ID, .* The last id is 200"):
        nc.open_corpus(path)
    corpus = nc.open_corpus(path, boundaries="eos:7")
    assert documents_of(corpus) == [[4, 5, 6, 7], [8, 9, 200]]
    assert masks_of(corpus) == [[False, True, True, True], [False, False, True]]
    assert "labels_mask_part_0000.npy tells" in corpus.notes[0]


def test_a_bare_npy_is_told_by_nothing_and_asks_for_dtype_and_rule(tmp_path: Path) -> None:
    path = write(tmp_path, table=None)
    with pytest.raises(ValueError, match="nothing says how wide the ids of its 14 bytes are; give dtype"):
        nc.open_corpus(path, layout="olmo", boundaries="eos:7")
    corpus = nc.open_corpus(path, layout="olmo", dtype="uint16", boundaries="eos:7")
    assert documents_of(corpus) == [[4, 5, 6, 7], [8, 9, 200]]
    assert documents_of(nc.open_corpus(path, dtype="uint16", boundaries="eos:7")) == documents_of(corpus)  # headerless


def test_a_last_document_that_is_not_listed_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, table=b"0,3\n3,4\n")
    with pytest.raises(nc.FormatError, match=r"so 3 of uint16 are in no document, .* move the \.csv\.gz files away"):
        nc.open_corpus(path, dtype="uint16")
    with pytest.raises(nc.FormatError, match=r"counts 4 tokens, and ids of 1, 2, 4 or 8 bytes do not fill it"):
        nc.open_corpus(path)


# What is refused, by its message


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"start,end\n0,3\n", r"row 1 begins with b'start' and b'end', expected two numbers"),
        (b"0,3\n4,7\n", r"row 2 is a document from token 4 to 7, expected it to begin at 3"),
        (b"0,3\n2,7\n", r"row 2 is a document from token 2 to 7, expected it to begin at 3"),
        (b"1,3\n3,7\n", r"row 1 is a document from token 1 to 3, expected it to begin at 0"),
        (b"0,3\n3,2\n", r"row 2 is a document from token 3 to 2"),
        (b"0,3\n3,15\n", r"row 2 ends at token 15, but the file of tokens has 14 bytes"),
        (b"0,3\n3\n", r"row 2 begins with b'3' and b'', expected two numbers"),
        (b"0,3\n3,7.0\n", r"row 2 begins with b'3' and b'7.0'"),
        (b"0,3\n3, 7\n", r"row 2 begins with"),
        (b"0,3\n3,\xd9\xa7\n", r"row 2 begins with"),  # an Arabic 7
        (b"0,3\n3,7" + b"7" * 30, r"row 2 begins with"),
        (b"0,3\n\n3,7\n", r"row 2 begins with b'' and b''"),
        (b'0,3,"a\n3,7\n', r"after row 0: a quoted column does not end"),
        (b'0,3\n3,7,"a' + b"\n" * 200, r"after row 1: a quoted column does not end"),
        (b"0,3\n3,7," + b"x" * 200_000, r"after row 1: a line has more than 65,536 bytes"),
    ],
)
def test_a_list_of_documents_that_is_none_is_refused(tmp_path: Path, table: bytes, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, table=table), dtype="uint16")


def test_a_list_that_is_no_gzip_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    for content in (OLMO_CORE, b"\x1f\x8b", gzip.compress(OLMO_CORE) + b"more", b"\x1f\x8b\x08\0" + b"x" * 60):
        (tmp_path / "part-0-00000.csv.gz").write_bytes(content)
        with pytest.raises(nc.FormatError, match=r"csv\.gz: after row \d+: .*damaged or was cut short"):
            nc.open_corpus(path)


def test_a_mask_of_another_length_or_of_other_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        nc.FormatError, match=r"labels_mask_part_0000\.npy: the mask has 6 bytes, expected one for each"
    ):
        nc.open_corpus(with_mask(tmp_path / "a", mask=MASK[:-1]))
    corpus = nc.open_corpus(with_mask(tmp_path / "b", mask=MASK[:-1] + b"\xff"))
    for touch in (lambda: corpus.field("token.loss_mask", 2), corpus.verify):
        with pytest.raises(nc.FormatError, match=r"labels_mask_part_0000\.npy: byte 6 is 255, expected 0 or 1"):
            touch()


def test_a_numpy_file_with_a_header_is_not_this_layout(tmp_path: Path) -> None:
    path = write(tmp_path)
    np.save(path, np.array(STREAM, dtype=np.uint16))
    with pytest.raises(nc.FormatError, match=r"begins a NumPy \.npy file with its header"):
        nc.open_corpus(path, layout="olmo")
    assert nc.open_corpus(path, boundaries="none").tokens(0, 7).tolist() == STREAM  # read as what it is


def test_a_numpy_file_among_the_others_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path)
    np.save(write(tmp_path, name="part-1-00000"), np.array(STREAM, dtype=np.uint16))
    with pytest.raises(nc.FormatError, match=r"part-1-00000\.npy: byte 0: .* begins a NumPy \.npy file"):
        nc.open_corpus(tmp_path)


def test_files_of_two_widths_are_no_corpus(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, np.array(STREAM, dtype="<u4").tobytes(), name="part-1-00000")
    with pytest.raises(nc.FormatError, match=r"part-1-00000\.npy: its ids have 4 bytes, but 2 in part-0-00000\.npy"):
        nc.open_corpus(tmp_path)


@pytest.mark.parametrize("name", ["token_ids_part_0001.csv.gz", "labels_mask_part_0001.npy"])
def test_a_side_file_that_only_some_have_is_refused(tmp_path: Path, name: str) -> None:
    for number in range(3):
        with_mask(tmp_path, number)
    (tmp_path / name).unlink()
    with pytest.raises(nc.FormatError, match=rf"token_ids_part_0001\.npy: {name} is not beside it, but .*0000"):
        nc.open_corpus(tmp_path)


def test_side_files_without_tokens_are_refused(tmp_path: Path) -> None:
    for number in range(2):
        with_mask(tmp_path, number)
    (tmp_path / "token_ids_part_0001.npy").unlink()
    with pytest.raises(nc.FormatError, match=r"0001\.csv\.gz: token_ids_part_0001\.npy is not beside it"):
        nc.open_corpus(tmp_path)
    (tmp_path / "token_ids_part_0001.csv.gz").unlink()
    with pytest.raises(nc.FormatError, match=r"labels_mask_part_0001\.npy: token_ids_part_0001\.npy is not beside it"):
        nc.open_corpus(tmp_path)


def test_files_with_and_without_masks_are_no_corpus(tmp_path: Path) -> None:
    with_mask(tmp_path)
    write(tmp_path, name="part-0-00000")
    with pytest.raises(
        nc.FormatError, match=r"token_ids_part_0000\.npy: its fields are token\.loss_mask .* but none in"
    ):
        nc.open_corpus(tmp_path)


def test_a_file_that_dolma_left_at_its_full_size_without_a_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="counts 0 tokens"):
        nc.open_corpus(write(tmp_path, bytes(1024), b""))


def test_a_folder_without_any_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no \*\.npy in it"):
        nc.open_corpus(tmp_path, layout="olmo")


# Damage


@pytest.mark.parametrize("name", ["token_ids_part_0000.npy", "token_ids_part_0000.csv.gz", "labels_mask_part_0000.npy"])
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path, name: str) -> None:
    path = with_mask(tmp_path)
    content = (tmp_path / name).read_bytes()
    for size in range(len(content)):
        (tmp_path / name).write_bytes(content[:size])
        assert stream_of(path, dtype="uint16") is None, size
    (tmp_path / name).write_bytes(content)
    assert stream_of(path) == STREAM


def test_tokens_cut_to_half_read_as_a_narrower_width_unless_the_dtype_is_given(tmp_path: Path) -> None:
    # The one cut that sizes alone cannot show: 7 ids of 2 bytes, cut to 7 bytes, are 7 ids of 1 byte. It is noted that sizes alone decided.
    path = write(tmp_path)
    for size in range(14):
        path.write_bytes(SHORT[:size])
        assert stream_of(path) == (list(SHORT[:7]) if size == 7 else None), size
    path.write_bytes(SHORT[:7])
    assert "the ids are uint8, because" in nc.open_corpus(path).notes[0]
    assert stream_of(path, dtype="uint16") is None


@pytest.mark.parametrize("row", range(3))
@pytest.mark.parametrize("column", range(2))
def test_a_changed_start_or_end_is_refused(tmp_path: Path, row: int, column: int) -> None:
    # Each joint stands there twice, as an end and as a start, so that one of the two alone cannot move unnoticed.
    for value in [*VALUES, 2, 5, 6, 10**400]:
        rows = [[0, 3], [3, 4], [4, 7]]
        if rows[row][column] != value:
            rows[row][column] = value
            table = "".join(f"{start},{end}\n" for start, end in rows).encode()
            assert stream_of(write(tmp_path, table=table)) is None, value


@pytest.mark.parametrize("line", [b"0,0\n", b"x", b'0,0,"', b"\n"], ids=["rows", "line", "quotes", "empty"])
def test_a_list_that_unpacks_to_gigabytes_is_refused_soon_without_holding_them(tmp_path: Path, line: bytes) -> None:
    # 64 MiB stand for gigabytes: what is read of them is bounded by the size of the tokens, or by that of a line.
    path = write(tmp_path, table=line * ((1 << 26) // len(line)))
    assert stream_of(path) is None
