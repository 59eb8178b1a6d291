"""nanoGPT's ``meta.pkl`` beside a headerless file: what it settles, what it does not, and that nothing is unpickled."""

import contextlib
import pickle
import pickletools
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core.legacy.nanogpt import read_meta
from neutral_core.legacy.plain_pickle import MAX_BYTES, load_plain

LETTERS = "\n ab"
TOKENS = [2, 3, 0, 1, 3, 2]


def meta_of(letters: Any = LETTERS, size: Any = None) -> dict[str, Any]:
    return {
        "vocab_size": len(letters) if size is None else size,
        "itos": dict(enumerate(letters)),
        "stoi": {letter: number for number, letter in enumerate(letters)},
    }


def write(folder: Path, meta: Any = None, tokens: Any = TOKENS, dtype: str = "<u2", name: str = "train.bin") -> Path:
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta_of() if meta is None else meta, protocol=4))
    path = folder / name
    path.write_bytes(np.array(tokens, dtype=dtype).tobytes())
    return path


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("name", ["train.bin", "val.bin"])
def test_the_table_settles_dtype_and_vocabulary_but_not_the_documents(tmp_path: Path, name: str, access: str) -> None:
    path = write(tmp_path, name=name)
    corpus = nc.open_corpus(path, boundaries="none", access=access)
    assert (corpus.document(0).tolist(), corpus.dtype, corpus.vocab_size) == (TOKENS, np.uint16, 4)
    assert corpus.tokenizer is None
    assert (
        f"{name}: dtype is taken for uint16: meta.pkl beside it says 4 ids, and read so the first 6 run up to 3"
        in corpus.notes[0]
    )
    with pytest.raises(ValueError, match=r"give boundaries=.* The last id is 2, which occurs 2 times"):
        nc.open_corpus(path)
    assert nc.open_corpus(path, boundaries="eos:0").num_documents == 2


def test_a_dtype_that_was_given_stays_and_the_vocabulary_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, dtype="<u4")
    corpus = nc.open_corpus(path, dtype="uint32", boundaries="none")
    assert (corpus.document(0).tolist(), corpus.vocab_size, corpus.notes) == (TOKENS, 4, ())


def test_the_fingerprint_is_the_same_with_and_without_the_table(tmp_path: Path) -> None:
    path = write(tmp_path)
    one = nc.open_corpus(path, boundaries="none")
    (tmp_path / "meta.pkl").unlink()
    other = nc.open_corpus(path, dtype="uint16", boundaries="none")
    assert one.fingerprint == other.fingerprint
    assert other.vocab_size is None


def test_a_corpus_pickles_without_a_dtype(tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(nc.open_corpus(write(tmp_path), boundaries="none")))
    assert (again.document(0).tolist(), again.vocab_size) == (TOKENS, 4)


@pytest.mark.parametrize(
    ("tokens", "dtype", "said"),
    [
        (TOKENS, "<u4", "says 4 ids, which fits uint16 and uint32 alike"),
        (TOKENS, "<i8", "says 4 ids, which fits uint16 and uint32 alike"),
        ([2, 0, 3, 0], "<u2", "says 4 ids, which fits uint16 and uint32 alike"),  # might be 2 3 as uint32
        ([2], "<u2", "says 4 ids, which fits uint16 and uint32 alike"),  # might be uint32 cut short
        (TOKENS, "<u1", "left aside: it says 4 ids, but the first 3 as uint16 run up to 770"),
        ([2, 3, 4, 1], "<u2", "left aside: it says 4 ids, but the first 4 as uint16 run up to 4"),
    ],
)
def test_what_the_table_does_not_settle_is_asked_for(tmp_path: Path, tokens: Any, dtype: str, said: str) -> None:
    with pytest.raises(ValueError, match="give dtype") as caught:
        nc.open_corpus(write(tmp_path, tokens=tokens, dtype=dtype), boundaries="none")
    assert said in str(caught.value)
    assert "as uint8 its first" in str(caught.value)


def test_a_table_that_does_not_fit_a_dtype_that_was_given_is_left_aside(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, tokens=[2, 9]), dtype="uint16", boundaries="none")
    assert (corpus.document(0).tolist(), corpus.vocab_size) == ([2, 9], None)
    assert "meta.pkl beside it is left aside: it says 4 ids, but the first 2 as uint16 run up to 9" in corpus.notes[0]


def test_an_empty_file_has_nothing_that_a_table_could_settle(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give dtype"):
        nc.open_corpus(write(tmp_path, tokens=[]), boundaries="none")
    assert nc.open_corpus(write(tmp_path, tokens=[]), dtype="uint16", boundaries="none").vocab_size is None


def test_only_files_named_bin_are_taken_for_nanogpt_s(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give dtype"):
        nc.open_corpus(write(tmp_path, name="train.npy"), boundaries="none")


def test_a_file_cut_at_any_byte_asks_or_has_fewer_tokens(tmp_path: Path) -> None:
    """Nothing in a headerless file says how many tokens it has: cut between two ids it is a shorter one."""
    path = write(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size % 2 or size < 4:
            with pytest.raises(ValueError, match=r"give dtype|no multiple of 2"):
                nc.open_corpus(path, boundaries="none")
        else:
            assert nc.open_corpus(path, boundaries="none").document(0).tolist() == TOKENS[: size // 2]


def test_a_uint32_file_cut_inside_an_id_is_not_taken_for_uint16(tmp_path: Path) -> None:
    path = write(tmp_path, dtype="<u4")
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="fits uint16 and uint32 alike"):
        nc.open_corpus(path, boundaries="none")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ([1, 2], "it holds a list, expected a dict"),
        ({}, "vocab_size is 'None', expected a number"),
        (meta_of(size=0), "vocab_size is '0'"),
        (meta_of(size=65_537), "vocab_size is '65537'"),
        (meta_of(size="4"), "vocab_size is '4'"),
        (meta_of(size=5), "itos is no table of the ids 0 … 4"),
        (meta_of(size=3), "itos is no table"),
        (meta_of() | {"itos": list(LETTERS)}, "itos is no table"),
        (meta_of() | {"itos": {0: "a", 1: "b", 2: 3, 3: "d"}}, "itos has something else than text"),
        (meta_of() | {"stoi": {}}, "stoi is not the inverse"),
        (meta_of() | {"stoi": {"a": 1}}, "stoi is not the inverse"),
        ({"vocab_size": 4}, "itos is no table"),
    ],
)
def test_a_table_that_is_none_of_nanogpt_s_is_left_aside(tmp_path: Path, meta: Any, message: str) -> None:
    path = write(tmp_path, meta)
    with pytest.raises(nc.FormatError, match=message):
        read_meta(tmp_path / "meta.pkl")
    with pytest.raises(ValueError, match=f"give dtype.*left aside: .*{message}"):
        nc.open_corpus(path, boundaries="none")
    corpus = nc.open_corpus(path, dtype="uint16", boundaries="none")
    assert corpus.vocab_size is None
    assert message in corpus.notes[0]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        (),
        0,
        255,
        65_535,
        2**31 - 1,
        "",
        "ä𝄞",
        "x" * 300,
        "x" * 70_000,
        {"a": {1: [2, (3, "b", ()), (1,), (1, 2), (1, 2, 3, 4)]}},
        ["same", "same", ["same"]],
        [[]] * 3,
        {number: str(number) for number in range(1500)},
        list(range(1500)),
        meta_of(),
        meta_of([chr(number) for number in range(0x4E00, 0x4E00 + 5000)]),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_plain_values_are_what_pickle_would_read(tmp_path: Path, value: Any, protocol: int) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    assert load_plain(path) == value
    path.write_bytes(pickletools.optimize(pickle.dumps(value, protocol=protocol)))
    assert load_plain(path) == value


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


class _Plain:
    value = 1


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_is_imported_called_or_built(tmp_path: Path, protocol: int) -> None:
    trap, path = tmp_path / "trap", tmp_path / "p.pkl"
    values = [_Trap(trap), _Plain(), _Plain, open, np.arange(3), np.uint16(3), {"a": _Trap(trap)}, {1, 2}, 1j]
    for value in values:
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        with pytest.raises(nc.FormatError, match="it is no pickle of plain"):
            load_plain(path)
    assert not trap.exists()


@pytest.mark.parametrize("value", [None, True, 1.5, b"bytes", -(2**70), 2**40, {1.5: 2}, {(1, 2): 3}])
def test_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(pickle.dumps([value], protocol=4))
    with pytest.raises(nc.FormatError, match="it is no pickle of plain"):
        load_plain(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x04}",
        b"\x80\x04}(.",
        b"\x80\x04(.",
        b"\x80\x04K\x01K\x02.",
        b"\x80\x04K\x01.K",
        b"\x80\x04\x94.",
        b"\x80\x04h\x05.",
        b"\x80\x04K\x01a.",
        b"\x80\x04]u.",
        b"\x80\x04](K\x01u.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04}K\x01s.",
        b"\x80\x04((t.",
        b"\x80\x04(\x94t.",
        b"\x80\x04\x85.",
        b"\x80\x04X\xff\xff\xff\xffa.",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x04cos\nsystem\n(Vtrue\ntR.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fK\x01K\x01.",
        b"\x80\x04\x8b\xff\xff\xff\x7f.",
        b"\xff\xfe\xfd",
        b"no pickle at all",
    ],
)
def test_what_is_no_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(content)
    with pytest.raises(nc.FormatError, match="it is no pickle of plain"):
        load_plain(path)


def test_a_pickle_cut_at_any_byte_or_changed_in_any_is_refused_or_plain(tmp_path: Path) -> None:
    whole = pickle.dumps(meta_of(), protocol=4)
    path = tmp_path / "p.pkl"
    rng = np.random.default_rng(0)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(nc.FormatError, match="it is no pickle of plain"):
            load_plain(path)
    for at in range(len(whole)):
        for byte in (0, 255, *rng.integers(0, 256, 3).tolist()):
            path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            with contextlib.suppress(nc.FormatError):
                read_meta(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"](K\x01eK\x00K\x05s.", "byte 11: values go into something that is no dict"),
        (b"}K\x01a.", "values go into something that is no list"),
        (b"}(K\x01u.", "a key has no value"),
        (b"]" * 2000 + b".", "byte 1,002: it has more than 1,000 dicts, lists, tuples and marks"),
        (b"(" * 2000 + b".", "it has more than 1,000 dicts, lists, tuples and marks"),
        (b"]" + b"\x94" * 140_000 + b".", "it refers to more than 131,072 values"),
        (b"a.", "APPEND finds too few values before it"),
        (b"cos\nsystem\n.", "byte 2: GLOBAL is refused: nothing is imported, called or built for a file"),
        (b"K\x01", "pickle exhausted before seeing STOP"),
    ],
)
def test_a_refusal_says_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(b"\x80\x04" + content)
    with pytest.raises(nc.FormatError, match=f"it is no pickle of plain dicts, lists, text and numbers: .*{message}"):
        load_plain(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04" + b"]" * 500_000 + b".",
        b"\x80\x04" + b"(" * 500_000 + b".",
        b"\x80\x04]" + b"\x94" * 500_000 + b".",
        b"\x80\x04](" + b"K\x01" * 250_000 + b"e.",
        b"\x80\x04" + b"K\x01r\xff\xff\xff\xff" * 80_000 + b".",
        b"\x80\x04]" + b"\x8a\xff" + b"\x01" * 255 + b".",
    ],
    ids=["lists", "marks", "memo", "numbers", "places", "long"],
)
def test_a_hostile_pickle_costs_little(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.pkl"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    with contextlib.suppress(nc.FormatError):
        load_plain(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000
    assert time.process_time() - start < 3


def test_a_table_of_more_than_a_mebibyte_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "p.pkl"
    with path.open("wb") as file:
        file.truncate(2**40)
    tracemalloc.start()
    with pytest.raises(nc.FormatError, match="it has more than 1,048,576 bytes"):
        load_plain(path)
    assert tracemalloc.get_traced_memory()[1] < 5 * MAX_BYTES
    tracemalloc.stop()
