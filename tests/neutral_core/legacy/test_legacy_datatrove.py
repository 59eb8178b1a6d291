"""datatrove's ``.ds`` files and what stands beside them: bytes written out from the layout's facts, read in place."""

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import stream_of

import neutral_core as nc
from prep.convert import Options, convert

# Seven ids in four documents, the third of them empty: ends 3, 4, 4, 7.
DOCUMENTS = [[4, 5, 6], [7], [], [8, 9, 50256]]
MASKS = [[True, False, True], [True], [], [False, False, True]]
STREAM = [4, 5, 6, 7, 8, 9, 50256]
SHORT = bytes.fromhex("0400 0500 0600 0700 0800 0900 50c4")
LONG = bytes.fromhex("04000000 05000000 06000000 07000000 08000000 09000000 50c40000")
INDEX = bytes.fromhex("0300000000000000 0400000000000000 0400000000000000 0700000000000000")
LOSS = bytes.fromhex("010001 01 000001")
METADATA = b"gpt2|2\n7\n7 T"
LONG_METADATA = b"meta-llama/Meta-Llama-3-8B|4\n7\n7 T"

VALUES = [0, 1, -1, 2**31, 2**63 - 1]


def write(
    folder: Path,
    tokens: bytes = SHORT,
    index: bytes | None = INDEX,
    *,
    loss: bytes | None = None,
    metadata: bytes | None = None,
    name: str = "00000_unshuffled.ds",
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(tokens)
    for suffix, content in ((".index", index), (".loss", loss), (".metadata", metadata)):
        if content is not None:
            (folder / f"{name}{suffix}").write_bytes(content)
    return folder / name


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


def masks_of(corpus: nc.Corpus) -> list[list[bool]]:
    return [corpus.field("token.loss_mask", number).tolist() for number in range(corpus.num_documents)]


# What is read


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("tokens", "metadata", "dtype"),
    [(SHORT, None, np.uint16), (SHORT, METADATA, np.uint16), (LONG, None, np.uint32), (LONG, LONG_METADATA, np.uint32)],
)
def test_documents_are_those_worked_out_by_hand(
    tmp_path: Path, tokens: bytes, metadata: bytes | None, dtype: Any, access: str
) -> None:
    corpus = nc.open_corpus(write(tmp_path, tokens, metadata=metadata), access=access)
    assert documents_of(corpus) == DOCUMENTS
    assert corpus.tokens(0, 7).tolist() == STREAM
    assert (corpus.num_documents, corpus.num_tokens, corpus.num_shards, corpus.dtype) == (4, 7, 1, dtype)
    assert corpus.shards[0].offsets().find(np.arange(7)).tolist() == [0, 0, 0, 1, 3, 3, 3]
    assert (corpus.fields, corpus.vocab_size, corpus.tokenizer) == ({}, None, None)
    corpus.verify()


@pytest.mark.parametrize("access", ["map", "read"])
def test_the_loss_file_is_the_token_loss_mask(tmp_path: Path, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, loss=LOSS), access=access)
    assert {name: (field.dtype, field.shape) for name, field in corpus.fields.items()} == {
        "token.loss_mask": ("bool", ())
    }
    assert masks_of(corpus) == MASKS
    assert corpus.field_items("token.loss_mask", 1, 4).items.tolist() == [True, False, False, True]
    corpus.verify()


def test_a_folder_is_one_corpus_with_a_shard_a_file_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path / "set", loss=LOSS, name="00010_unshuffled.ds")
    write(tmp_path / "set", b"\1\0\2\0", struct.pack("<2Q", 1, 2), loss=b"\0\1", name="00002_unshuffled.ds")
    (tmp_path / "set" / "stats.json").write_text("{}")
    corpus = nc.open_corpus(tmp_path / "set")
    assert documents_of(corpus) == [[1], [2], *DOCUMENTS]
    assert masks_of(corpus) == [[False], [True], *MASKS]
    assert corpus.num_shards == 2


def test_a_process_without_documents_leaves_empty_files_that_change_nothing(tmp_path: Path) -> None:
    write(tmp_path / "set", loss=LOSS, metadata=METADATA, name="00000_00000_doc_shuffled.ds")
    write(tmp_path / "set", b"", b"", loss=b"", metadata=b"gpt2|2\n0\n0 T", name="00001_unshuffled.ds")
    corpus = nc.open_corpus(tmp_path / "set")
    assert (documents_of(corpus), masks_of(corpus)) == (DOCUMENTS, MASKS)
    corpus.verify()


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("document_shuffle", [False, True])
def test_plans_read_the_rows_that_they_read_from_memory(tmp_path: Path, document_shuffle: bool, access: str) -> None:
    write(tmp_path / "set", name="00000_unshuffled.ds")
    write(tmp_path / "set", name="00001_unshuffled.ds")
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
        write(tmp_path / "set", loss=LOSS, metadata=METADATA, name=f"{number:03d}_all.ds")
    convert(Options(source=str(tmp_path / "set"), destination=tmp_path / "ours", tokens_per_shard=8))
    ours = nc.open_corpus(tmp_path / "ours")
    assert (documents_of(ours), masks_of(ours)) == (DOCUMENTS * 3, MASKS * 3)


def test_a_corpus_pickles(tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(nc.open_corpus(write(tmp_path, loss=LOSS))))
    assert (documents_of(again), masks_of(again)) == (DOCUMENTS, MASKS)


def test_the_fingerprint_covers_tokens_ends_and_mask_and_no_name(tmp_path: Path) -> None:
    moved = struct.pack("<4Q", 2, 4, 4, 7)
    sets: Sequence[dict[str, Any]] = [
        {},
        {"tokens": LONG},
        {"tokens": SHORT[:-2] + b"\0\0"},
        {"index": moved},
        {"loss": LOSS},
        {"loss": LOSS[::-1]},
        {"metadata": METADATA, "name": "other.ds"},  # is the first again
    ]
    found = [nc.open_corpus(write(tmp_path / str(number), **each)).fingerprint for number, each in enumerate(sets)]
    assert len(set(found)) == 6
    assert found[-1] == found[0]


# Width and boundaries


def test_what_was_inferred_is_noted(tmp_path: Path) -> None:
    (note,) = nc.open_corpus(write(tmp_path / "a")).notes
    assert "the ids are uint16, because the number of tokens in the .index fits the size of the .ds" in note
    (note,) = nc.open_corpus(write(tmp_path / "b", metadata=METADATA)).notes
    assert "of the tokenizer 'gpt2'" in note
    assert nc.open_corpus(tmp_path / "a" / "00000_unshuffled.ds", dtype="uint16").notes == ()


def test_an_unknown_tokenizer_has_its_size_written_twice(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, metadata=b"Unknown Tokenizer|2|2\n7\n7 T"))
    assert documents_of(corpus) == DOCUMENTS
    assert "'Unknown Tokenizer|2'" in corpus.notes[0]


def test_without_an_index_width_and_rule_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, LONG, None)
    with pytest.raises(ValueError, match="give dtype: datatrove writes uint16 where"):
        nc.open_corpus(path, layout="datatrove", boundaries="eos:7")
    with pytest.raises(ValueError, match=r"give boundaries=eos:ID, .* The last id is 50,256"):
        nc.open_corpus(path, layout="datatrove", dtype="uint32")
    corpus = nc.open_corpus(path, layout="datatrove", dtype="uint32", boundaries="eos:7")
    assert documents_of(corpus) == [[4, 5, 6, 7], [8, 9, 50256]]


def test_metadata_alone_tells_layout_and_width(tmp_path: Path) -> None:
    path = write(tmp_path, LONG, None, metadata=LONG_METADATA, loss=LOSS)
    corpus = nc.open_corpus(path, boundaries="bos:7")
    assert documents_of(corpus) == [[4, 5, 6], [7, 8, 9, 50256]]
    assert masks_of(corpus) == [[True, False, True], [True, False, False, True]]
    assert any("2 documents by the rule bos:7" in note for note in corpus.notes)


def test_a_folder_without_indices_is_cut_by_the_rule_file_by_file(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "set", SHORT, None, metadata=METADATA, name=f"{number}.ds")
    write(tmp_path / "set", b"", None, metadata=b"gpt2|2\n0\n0 T", name="2.ds")
    write(tmp_path / "set", b"", None, metadata=b"gpt2|2\n0\n0 T", name="!.ds")
    with pytest.raises(ValueError, match="The last id is 50,256"):  # the evidence is of a file that has some
        nc.open_corpus(tmp_path / "set")
    corpus = nc.open_corpus(tmp_path / "set", boundaries="eos:50256")
    assert documents_of(corpus) == [STREAM, STREAM]
    assert nc.open_corpus(tmp_path / "set", boundaries="eos:7").num_documents == 4


def test_a_bare_ds_is_told_by_nothing_and_so_is_headerless(tmp_path: Path) -> None:
    path = write(tmp_path, SHORT, None)
    corpus = nc.open_corpus(path, dtype="uint16", boundaries="none")
    assert documents_of(corpus) == [STREAM]
    assert corpus.fingerprint != nc.open_corpus(path, layout="datatrove", dtype="uint16", boundaries="none").fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "uint32"}, "dtype is uint32, expected ids of 2 bytes, as the files beside it say"),
        ({"dtype": "float16"}, "expected an integer type"),
        ({"dtype": "words"}, "expected one of numpy's integer types"),
        ({"boundaries": "eos:9"}, r"00000_unshuffled.ds.index stores its documents: leave it out"),
    ],
)
def test_arguments_that_the_files_contradict_are_refused(
    tmp_path: Path, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        nc.open_corpus(write(tmp_path), **arguments)  # type: ignore[arg-type]


def test_a_width_that_datatrove_does_not_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype is int64, expected uint16 or uint32"):
        nc.open_corpus(write(tmp_path, LONG + LONG, None), layout="datatrove", dtype="int64", boundaries="none")


def test_a_file_that_does_not_end_on_a_whole_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="the file has 13 bytes, which is no multiple of 2"):
        nc.open_corpus(write(tmp_path, SHORT[:-1], None), layout="datatrove", dtype="uint16", boundaries="none")


# What is refused, by its message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": SHORT[:-2]}, r"the file has 12 bytes, but .*index promises 7 tokens, 14 bytes as uint16 or 28 as"),
        ({"index": INDEX[:-1]}, r"index: the file has 31 bytes, expected 8 for each document"),
        ({"index": struct.pack("<4Q", 5, 4, 4, 7)}, r"document 1 ends at token 4, the one before at 5"),
        ({"index": struct.pack("<4Q", 3, 9, 9, 7)}, r"document 3 ends at token 7, the one before at 9"),
        ({"index": b""}, r"promises 0 tokens"),
        ({"loss": LOSS[:-1]}, r"loss: the mask has 6 bytes, expected one for each of 7 tokens"),
        ({"metadata": b"gpt2|4\n7\n7 T"}, r"by its index in ids of 2 bytes, but .*metadata says 7 tokens of 4 bytes"),
        ({"metadata": b"gpt2|2\n8\n8 T"}, r"metadata says 8 tokens of 2 bytes"),
        ({"metadata": b"gpt2|3\n7\n7 T"}, r"it begins with .*expected two lines, '<tokenizer>\|<2 or 4 bytes"),
        ({"metadata": b"\xff\xfe\n7"}, r"expected two lines"),
        ({"metadata": b"gpt2|2\n\xd9\xa7"}, r"expected two lines"),  # an Arabic 7
    ],
)
def test_contradictions_are_refused_with_both_sides(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, **changes))


@pytest.mark.parametrize("access", ["map", "read"])
def test_a_mask_byte_that_is_neither_0_nor_1_is_refused_when_it_is_read(tmp_path: Path, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, loss=LOSS[:5] + b"\2\1"), access=access)
    assert corpus.field("token.loss_mask", 0).tolist() == [True, False, True]
    for touch in (lambda: corpus.field("token.loss_mask", 3), corpus.verify):
        with pytest.raises(nc.FormatError, match=r"loss: byte 5 is 2, expected 0 or 1"):
            touch()


def test_ends_are_checked_across_the_pieces_in_which_they_are_read(tmp_path: Path) -> None:
    many = 2**20 + 3  # 2^20 at a time
    ends = np.arange(1, many + 1, dtype="<u8")
    tokens = np.zeros(many, dtype="<u2").tobytes()
    assert nc.open_corpus(write(tmp_path, tokens, ends.tobytes())).num_documents == many
    ends[2**20] = 5
    with pytest.raises(nc.FormatError, match=r"document 1,048,576 ends at token 5, the one before at 1,048,576"):
        nc.open_corpus(write(tmp_path, tokens, ends.tobytes()))


def test_files_of_two_widths_are_no_corpus(tmp_path: Path) -> None:
    write(tmp_path, name="a.ds")
    write(tmp_path, LONG, name="b.ds")
    with pytest.raises(nc.FormatError, match=r"b\.ds: its ids have 4 bytes, but 2 in a\.ds"):
        nc.open_corpus(tmp_path)


@pytest.mark.parametrize("suffix", [".index", ".loss"])
def test_a_side_file_that_only_some_have_is_refused(tmp_path: Path, suffix: str) -> None:
    for name in ("a.ds", "b.ds", "c.ds"):
        write(tmp_path, loss=LOSS, metadata=METADATA, name=name)
    (tmp_path / f"b.ds{suffix}").unlink()
    with pytest.raises(nc.FormatError, match=rf"b\.ds: b\.ds{suffix} is not beside it, but a\.ds{suffix} is there"):
        nc.open_corpus(tmp_path)


@pytest.mark.parametrize("suffix", [".index", ".loss"])
def test_a_side_file_without_its_tokens_is_refused(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, loss=LOSS)
    (tmp_path / f"b.ds{suffix}").write_bytes(b"")
    with pytest.raises(nc.FormatError, match=rf"b\.ds{suffix}: b\.ds is not beside it"):
        nc.open_corpus(tmp_path)


def test_the_metadata_that_the_merger_leaves_without_tokens_is_left_out_aloud(tmp_path: Path) -> None:
    write(tmp_path, metadata=METADATA, name="000_all.ds")
    (tmp_path / "all.ds.metadata").write_bytes(b"gpt2|2\n7\n7 T")
    corpus = nc.open_corpus(tmp_path)
    assert documents_of(corpus) == DOCUMENTS
    assert any(note.startswith("all.ds.metadata is of no file here and is left out") for note in corpus.notes)


def test_a_stopped_shuffle_that_left_documents_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path, name="run_00003_unshuffled.ds")
    write(tmp_path, name="run_00003_00000_chunk_shuffled.ds")
    with pytest.raises(nc.FormatError, match=r"chunk_shuffled\.ds beside it holds the same documents"):
        nc.open_corpus(tmp_path)


def test_an_empty_set_asks_for_its_width(tmp_path: Path) -> None:
    path = write(tmp_path, b"", b"")
    with pytest.raises(ValueError, match="give dtype"):
        nc.open_corpus(path)
    assert nc.open_corpus(path, dtype="uint16").num_documents == 0


def test_a_folder_without_any_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no \*\.ds in it"):
        nc.open_corpus(tmp_path, layout="datatrove")


# Damage


@pytest.mark.parametrize("suffix", ["", ".index", ".loss"])
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, loss=LOSS, metadata=METADATA)
    cut = tmp_path / f"{path.name}{suffix}"
    content = cut.read_bytes()
    for size in range(len(content)):
        cut.write_bytes(content[:size])
        assert stream_of(path) is None, size
    cut.write_bytes(content)
    assert stream_of(path) == STREAM


def test_metadata_cut_at_any_byte_are_refused_or_still_say_the_same(tmp_path: Path) -> None:
    path = write(tmp_path)
    for size in range(len(METADATA) + 1):
        (tmp_path / f"{path.name}.metadata").write_bytes(METADATA[:size])
        assert stream_of(path) == (STREAM if size >= len(b"gpt2|2\n7") else None), size


def test_what_is_cut_to_half_reads_as_the_other_width_unless_something_says_the_width(tmp_path: Path) -> None:
    # The one cut that sizes alone cannot show: 7 ids of 4 bytes, cut to 14 bytes, are 7 ids of 2 bytes. It is noted that sizes alone decided.
    path = write(tmp_path, LONG[:14])
    assert stream_of(path) == np.frombuffer(LONG[:14], "<u2").tolist()
    assert "no .metadata says it" in nc.open_corpus(path).notes[0]
    assert stream_of(path, dtype="uint32") is None
    assert stream_of(write(tmp_path, LONG[:14], metadata=LONG_METADATA)) is None


@pytest.mark.parametrize("number", range(4))
def test_a_changed_end_is_refused_or_moves_a_joint_at_most(tmp_path: Path, number: int) -> None:
    # An end between its neighbours is as good as another: nothing in the files contradicts it. No token changes.
    path = write(tmp_path)
    for value in [*VALUES, 2, 3, 5, 14, 28]:
        changed = INDEX[: 8 * number] + (value % 2**64).to_bytes(8, "little") + INDEX[8 * number + 8 :]
        (tmp_path / f"{path.name}.index").write_bytes(changed)
        ends = np.frombuffer(changed, "<u8").tolist()
        expected = STREAM if ends == sorted(ends) and ends[-1] == 7 else None
        assert stream_of(path) == expected, (number, value)


@pytest.mark.parametrize("line", ["gpt2|{}\n7\n7 T", "gpt2|2\n{}\n7 T"])
def test_changed_metadata_are_refused(tmp_path: Path, line: str) -> None:
    for value in [*VALUES, 4, 10**400, "", "x", "2 ", "+2"]:
        assert stream_of(write(tmp_path, metadata=line.format(value).encode())) is None, value
