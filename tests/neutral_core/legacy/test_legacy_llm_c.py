"""llm.c's files: documents worked out by hand, headers of both lengths, numbered files, and damage."""

import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

GPT2, LLAMA3, EVALUATION = 20240520, 20240801, 20240522
TOKENS = [50256, 11, 12, 50256, 13, 14, 15]
LLAMA = [128000, 11, 12, 128000, 13]
VALUES = [0, 1, -1, 2**31, 2**63 - 1]


def content(tokens: Any, magic: int = GPT2, *, header: int = 1024, dtype: str | None = None, spare: int = 0) -> bytes:
    version, width = {GPT2: (1, "<u2"), LLAMA3: (7, "<u4")}[magic]
    words = struct.pack("<4I", magic, version, len(tokens), spare)
    return words.ljust(header, b"\0")[:header] + np.array(tokens, dtype=dtype or width).tobytes()


def write(path: Path, tokens: Any, *arguments: Any, **options: Any) -> Path:
    path.write_bytes(content(tokens, *arguments, **options))
    return path


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


def stream_of(path: Path, **options: Any) -> list[int] | None:
    """Everything that a file yields; None where it is refused."""
    try:
        corpus = nc.open_corpus(path, boundaries="none", **options)
        corpus.verify()
        return list(corpus.tokens(0, corpus.num_tokens).tolist())
    except ValueError:
        return None


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("header", [1024, 12])
@pytest.mark.parametrize(
    ("magic", "tokens", "boundaries", "expected"),
    [
        (GPT2, TOKENS, "bos:50256", [[50256, 11, 12], [50256, 13, 14, 15]]),
        (GPT2, TOKENS, "eos:50256", [[50256], [11, 12, 50256], [13, 14, 15]]),
        (GPT2, TOKENS, "fixed:4", [TOKENS[:4], TOKENS[4:]]),
        (GPT2, TOKENS, "none", [TOKENS]),
        (LLAMA3, LLAMA, "bos:128000", [[128000, 11, 12], [128000, 13]]),
    ],
)
def test_documents_are_those_worked_out_by_hand(
    tmp_path: Path, magic: int, tokens: Any, boundaries: str, expected: Any, header: int, access: str
) -> None:
    path = write(tmp_path / "a_train_000001.bin", tokens, magic, header=header)
    corpus = nc.open_corpus(path, boundaries=boundaries, access=access)
    assert documents_of(corpus) == expected
    assert corpus.dtype == {GPT2: np.uint16, LLAMA3: np.uint32}[magic]
    assert corpus.tokens(0, len(tokens)).tolist() == tokens
    assert any("its header has 12 bytes" in note for note in corpus.notes) == (header == 12)
    corpus.verify()


def test_the_bytes_of_a_file_written_out() -> None:
    """What the tests write is what the layout's makers write: 256 words of 32 bits, then the ids."""
    head = bytes.fromhex("88d83401 01000000 02000000") + bytes(1012)
    assert content([50256, 7]) == head + bytes.fromhex("50c4 0700")
    head = bytes.fromhex("a1d93401 07000000 01000000") + bytes(1012)
    assert content([128000], LLAMA3) == head + bytes.fromhex("00f40100")


def test_the_sizes_are_those_of_the_files_that_llm_c_ships() -> None:
    assert len(content([0] * 32_768)) == 66_560
    assert len(content([0] * 32_768, LLAMA3)) == 132_096


def test_missing_boundaries_are_refused_with_the_evidence_and_the_makers_habit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", TOKENS)
    with pytest.raises(ValueError, match="give boundaries=eos:ID, bos:ID, fixed:N or none") as caught:
        nc.open_corpus(path)
    assert "the first id is 50,256, which occurs 2 times" in str(caught.value)
    assert "bos:50256 or bos:128000" in str(caught.value)
    with pytest.raises(ValueError, match="boundaries is 'index', expected eos:ID"):
        nc.open_corpus(path, boundaries="index")


def test_an_id_that_occurs_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="the id 128,000 does not occur in 7 tokens"):
        nc.open_corpus(write(tmp_path / "a.bin", TOKENS), boundaries="bos:128000")


SHARDS = [[50256, 1, 2, 50256, 3], [4, 5, 50256, 6], [7, 8]]


def write_shards(folder: Path, name: str = "web_train", numbers: Any = (9, 10, 11)) -> Path:
    for number, tokens in zip(numbers, SHARDS, strict=True):
        write(folder / f"{name}_{number}.bin", tokens)
    return folder


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("given", ["", "web_train", "web_train_"])
def test_the_files_of_a_folder_or_prefix_are_joined_in_the_order_of_their_numbers(
    tmp_path: Path, given: str, access: str
) -> None:
    """9 before 10: by number, not by name."""
    corpus = nc.open_corpus(write_shards(tmp_path) / given, boundaries="bos:50256", access=access)
    assert documents_of(corpus) == [[50256, 1, 2], [50256, 3], [4, 5], [50256, 6], [7, 8]]
    assert corpus.tokens(0, 11).tolist() == [50256, 1, 2, 50256, 3, 4, 5, 50256, 6, 7, 8]
    assert corpus.num_shards == 3
    corpus.verify()


@pytest.mark.parametrize(
    ("boundaries", "note"),
    [
        (
            "bos:50256",
            "2 of 3 files, the first of them web_train_10.bin, do not begin with 50,256: their 4 tokens before the first one are taken",
        ),
        ("bos:50256", "5 documents by the rule bos:50256; the id occurs 3 times"),
        ("bos:50256", "3 files in the order of their numbers: web_train_9.bin … web_train_11.bin"),
        ("eos:50256", "3 of 3 files, the first of them web_train_9.bin, do not end with 50,256: their 4 tokens after"),
        (
            "fixed:4",
            "2 of 3 files, the first of them web_train_9.bin, end with a document shorter than 4, 3 tokens in all",
        ),
        ("none", "each of the 3 files is taken as one document"),
    ],
)
def test_what_a_rule_did_to_several_files_is_noted(tmp_path: Path, boundaries: str, note: str) -> None:
    notes = nc.open_corpus(write_shards(tmp_path), boundaries=boundaries).notes
    assert any(note in text for text in notes), notes


def test_one_of_several_files_is_opened_alone_by_its_path(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write_shards(tmp_path) / "web_train_10.bin", boundaries="bos:50256")
    assert documents_of(corpus) == [[4, 5], [50256, 6]]


def test_train_and_val_of_one_folder_are_two_data_sets(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write(tmp_path / "web_val_000000.bin", [50256, 9])
    with pytest.raises(
        ValueError, match=r"2 data sets of llm.c's layout: web_train, web_val; give the path of one"
    ) as caught:
        nc.open_corpus(tmp_path, boundaries="bos:50256")
    assert str(tmp_path / "web_train") in str(caught.value)
    assert documents_of(nc.open_corpus(tmp_path / "web_val", boundaries="bos:50256")) == [[50256, 9]]
    assert nc.open_corpus(tmp_path / "web_train", boundaries="bos:50256").num_tokens == 11


def test_files_without_numbers_are_data_sets_of_their_own(tmp_path: Path) -> None:
    for name in ("tiny_train.bin", "tiny_val.bin"):
        write(tmp_path / name, TOKENS)
    with pytest.raises(ValueError, match=r"2 data sets of llm.c's layout: tiny_train.bin, tiny_val.bin"):
        nc.open_corpus(tmp_path, boundaries="none")
    (tmp_path / "tiny_val.bin").write_bytes(b"of another layout")
    assert nc.open_corpus(tmp_path, boundaries="none").num_tokens == 7


def test_a_prefix_takes_no_names_that_go_on_otherwise(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write(tmp_path / "web_train_new_1.bin", [50256, 9])
    assert nc.open_corpus(tmp_path / "web_train", boundaries="none").num_tokens == 11
    with pytest.raises(FileNotFoundError, match="there is no such folder or file"):
        nc.open_corpus(tmp_path / "web", boundaries="none")
    with pytest.raises(FileNotFoundError, match=r"there is no file of llm.c's layout"):
        nc.open_corpus(tmp_path / "web", layout="llm.c", boundaries="none")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1, 2, 4), "web_train_4.bin: it comes after web_train_2.bin: number 3 is missing"),
        ((1, 3, 4), "number 2 is missing"),
        ((1, "01", 2), "it has the same number as web_train_0"),
    ],
)
def test_a_number_that_is_missing_or_occurs_twice_is_refused(tmp_path: Path, numbers: Any, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write_shards(tmp_path, numbers=numbers), boundaries="none")


def test_files_of_two_widths_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a_1.bin", TOKENS)
    write(tmp_path / "a_2.bin", LLAMA, LLAMA3)
    with pytest.raises(nc.FormatError, match=r"a_2.bin: its tokens are uint32, but uint16 in a_1.bin"):
        nc.open_corpus(tmp_path, boundaries="none")


def test_a_file_of_another_kind_among_the_numbers_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a_1.bin", TOKENS)
    (tmp_path / "a_2.bin").write_bytes(b"something else")
    with pytest.raises(nc.FormatError, match=r"a_2.bin: byte 0: the magic is .* unknown"):
        nc.open_corpus(tmp_path, boundaries="none")


def test_an_evaluation_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "hellaswag_val.bin"
    path.write_bytes(struct.pack("<4I", EVALUATION, 1, 1, 24).ljust(1024, b"\0") + bytes(24))
    with pytest.raises(nc.FormatError, match=r"byte 0: the magic is 20240522, that of an evaluation file of llm.c"):
        nc.open_corpus(path, dtype="uint16", boundaries="none")
    write(tmp_path / "web_train_1.bin", TOKENS)  # beside tokens it is passed over
    assert nc.open_corpus(tmp_path, boundaries="none").num_tokens == 7


@pytest.mark.parametrize("header", [1024, 12])
@pytest.mark.parametrize(("magic", "other"), [(GPT2, "uint32"), (LLAMA3, "uint16")])
def test_the_other_width_is_asked_for_and_taken_when_given(tmp_path: Path, magic: int, other: str, header: int) -> None:
    path = write(tmp_path / "a.bin", TOKENS, magic, header=header, dtype=other)
    with pytest.raises(ValueError, match=rf"7 tokens of \d bytes, while its magic says \d: .* give dtype='{other}'"):
        nc.open_corpus(path, boundaries="none")
    corpus = nc.open_corpus(path, boundaries="none", dtype=other)
    assert (corpus.dtype, documents_of(corpus)) == (np.dtype(other), [TOKENS])


@pytest.mark.parametrize(("magic", "wrong"), [(GPT2, "uint32"), (LLAMA3, "uint16"), (GPT2, "uint8"), (GPT2, "int64")])
def test_a_dtype_that_does_not_fit_the_size_is_refused(tmp_path: Path, magic: int, wrong: str) -> None:
    path = write(tmp_path / "a.bin", TOKENS, magic)
    with pytest.raises(ValueError, match="the file has"):
        nc.open_corpus(path, boundaries="none", dtype=wrong)


def test_a_vocabulary_s_size_in_the_header_is_noted(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path / "a.bin", TOKENS, spare=256), boundaries="none")
    assert documents_of(corpus) == [TOKENS]
    assert any("word 3 of the header is 256" in note for note in corpus.notes)


def test_no_tokens_are_one_document_of_none(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path / "a.bin", []), boundaries="none")
    assert (corpus.num_documents, corpus.num_tokens) == (1, 0)


def test_506_tokens_are_not_taken_for_half_as_many_with_the_other_header(tmp_path: Path) -> None:
    """1024 + 2·506 = 12 + 4·506: the one size that fits both headers, with different widths."""
    tokens = [50256, *range(1, 506)]
    corpus = nc.open_corpus(write(tmp_path / "a.bin", tokens), boundaries="none")
    assert corpus.document(0).tolist() == tokens


@pytest.mark.parametrize("magic", [GPT2, LLAMA3])
@pytest.mark.parametrize("header", [1024, 12])
@pytest.mark.parametrize("count", [5, 600])
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path, magic: int, header: int, count: int) -> None:
    whole = content([50256, *range(1, count)], magic, header=header)
    path = tmp_path / "a.bin"
    for size in range(0, len(whole), 1 if count == 5 else 31):
        path.write_bytes(whole[:size])
        start = time.process_time()
        assert stream_of(path) is None, size
        assert time.process_time() - start < 0.1, size
    for size in (12 + 2 * count, 12 + 4 * count, 1024 + 2 * count):  # those at which the size alone would fit
        path.write_bytes(whole[:size])
        assert size >= len(whole) or stream_of(path) is None, size


@pytest.mark.parametrize("header", [1024, 12])
@pytest.mark.parametrize("at", [0, 4, 8, 12])
def test_a_changed_field_is_refused_or_changes_no_token(tmp_path: Path, header: int, at: int) -> None:
    whole = content(TOKENS, header=header)
    path = tmp_path / "a.bin"
    for value in VALUES:
        changed = whole[:at] + (value % 2**32).to_bytes(4, "little") + whole[at + 4 :]
        path.write_bytes(changed)
        tracemalloc.start()
        found = stream_of(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5_000_000
        if at == 12 and header == 1024:  # word 3 is not used: some keep the vocabulary's size there
            assert found == TOKENS
        elif at == 12:  # there the tokens lie, and nothing contradicts others
            assert found == [value % 2**16, value % 2**32 >> 16, *TOKENS[2:]]
        else:
            assert found == (TOKENS if changed == whole else None), value


def test_any_byte_of_the_unused_header_is_refused_where_it_is_not_0(tmp_path: Path) -> None:
    whole = content(TOKENS)
    for at in (16, 17, 500, 1023):
        (tmp_path / "a.bin").write_bytes(whole[:at] + b"\1" + whole[at + 1 :])
        with pytest.raises(nc.FormatError, match=f"byte {at:,} of the header is not 0"):
            nc.open_corpus(tmp_path / "a.bin", boundaries="none")


@pytest.mark.parametrize("shuffle", ["global", "none", "blocks"])
def test_every_plan_reads_several_files_as_one_corpus_in_memory(tmp_path: Path, shuffle: str) -> None:
    corpus = nc.open_corpus(write_shards(tmp_path), boundaries="bos:50256")
    memory = nc.memory_corpus([[50256, 1, 2], [50256, 3], [4, 5], [50256, 6], [7, 8]], vocab_size=50257)
    found, expected = (
        nc.Plan(nc.Source(each, name="s"), seq_len=4, seed=3, shuffle=shuffle, documents=True)
        for each in (corpus, memory)
    )
    assert int(found.num_windows[0]) == int(expected.num_windows[0]) > 0
    rows, other = (plan.read(np.arange(2 * int(plan.num_windows[0]))) for plan in (found, expected))
    assert rows.keys() == other.keys()
    for key in rows:
        assert (rows[key] == other[key]).all(), key


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_ranks_of_a_loader_share_out_all_rows(tmp_path: Path, world: int) -> None:
    corpus = nc.open_corpus(write_shards(tmp_path), boundaries="bos:50256")
    plan = nc.Plan(nc.Source(corpus), seq_len=2, shuffle="none")
    rows: list[Any] = []
    for rank in range(world):
        with nc.Loader(plan, batch_size=4, dp_rank=rank, dp_world_size=world, num_samples=4) as loader:
            rows.extend(next(loader)["tokens"].tolist())
    assert rows == [[50256, 1, 2], [2, 50256, 3], [3, 4, 5], [5, 50256, 6]]


def test_a_corpus_pickles_and_knows_its_files_again(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write_shards(tmp_path), boundaries="bos:50256")
    assert documents_of(pickle.loads(pickle.dumps(corpus))) == documents_of(corpus)
    pickled = pickle.dumps(corpus)
    write(tmp_path / "web_train_11.bin", [7, 9])
    with pytest.raises(nc.FormatError, match="the data have changed"):
        pickle.loads(pickled)


def test_the_fingerprint_knows_files_and_rule_and_no_path(tmp_path: Path) -> None:
    found = set()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_shards(tmp_path / folder, name=folder)
        found |= {
            nc.open_corpus(tmp_path / folder, boundaries=rule).fingerprint for rule in ("none", "fixed:2", "bos:7")
        }
    assert len(found) == 3
