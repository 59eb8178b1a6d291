"""NPY files: rows and rules, what is refused, headers of every version, and damage."""

import io
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc

ROWS = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
STREAM = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
TEXT = "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 5), }"
DATA = np.array(ROWS, dtype="<u2").tobytes()


def content(text: str = TEXT, data: bytes = DATA, version: tuple[int, int] = (1, 0), width: int | None = None) -> bytes:
    header = text.encode() + b"\n"
    size = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}.get(version, "<H")
    length = len(header) if width is None else width
    return b"\x93NUMPY" + bytes(version) + struct.pack(size, length) + header.ljust(length) + data


def write(folder: Path, whole: bytes | None = None) -> Path:
    path = folder / "tokens.npy"
    path.write_bytes(content() if whole is None else whole)
    return path


def saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    """What numpy writes."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), version=version, allow_pickle=True)
    return buffer.getvalue()


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


def stream_of(path: Path, boundaries: str | None = None) -> list[int] | None:
    """Everything that a file yields; None where it is refused."""
    try:
        corpus = nc.open_corpus(path, boundaries=boundaries)
        corpus.verify()
        return list(corpus.tokens(0, corpus.num_tokens).tolist())
    except ValueError:
        return None


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_each_row_of_two_dimensions_is_a_document(tmp_path: Path, version: tuple[int, int], access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, content(version=version)), access=access)
    assert documents_of(corpus) == ROWS
    assert corpus.dtype == np.uint16
    assert corpus.shards[0].offsets().find(np.arange(10)).tolist() == [0] * 5 + [1] * 5
    assert "each of its 2 rows of 5 tokens is taken as a document" in corpus.notes[0]
    corpus.verify()


@pytest.mark.parametrize("version", [None, (1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8"])
def test_what_numpy_writes_is_read(tmp_path: Path, dtype: str, version: Any) -> None:
    corpus = nc.open_corpus(write(tmp_path, saved(np.array(ROWS, dtype=dtype), version)))
    assert documents_of(corpus) == ROWS
    assert corpus.dtype == np.dtype(f"u{min(np.dtype(dtype).itemsize, 4)}")
    rows = nc.Plan(nc.Source(corpus), seq_len=3, shuffle="none").read([0, 1])["tokens"].tolist()
    assert rows == [[1, 2, 3, 4], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("boundaries", "expected"),
    [
        ("eos:9", [[4, 9], [5, 6, 9], [7]]),
        ("bos:9", [[4], [9, 5, 6], [9, 7]]),
        ("fixed:4", [[4, 9, 5, 6], [9, 7]]),
        ("none", [[4, 9, 5, 6, 9, 7]]),
    ],
)
def test_one_dimension_is_cut_by_a_rule(tmp_path: Path, boundaries: str, expected: Any) -> None:
    path = write(tmp_path, saved(np.array([4, 9, 5, 6, 9, 7], dtype="<u2")))
    assert documents_of(nc.open_corpus(path, boundaries=boundaries)) == expected
    with pytest.raises(ValueError, match=r"give boundaries=.* The last id is 7, which occurs 1 times"):
        nc.open_corpus(path)


def test_a_rule_for_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the shape is \(2, 5\) and each row is a document: leave it out"):
        nc.open_corpus(write(tmp_path), boundaries="fixed:2")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 5), "f4"), "descr is '<f4', expected integers"),
        (np.zeros((2, 5), "f8"), "descr is '<f8', expected integers"),
        (np.zeros((2, 5), "?"), r"descr is '\|b1', expected integers"),
        (np.array(["a", "b"]), "descr is '<U1', expected integers"),
        (np.zeros(3, "M8[s]"), "descr is '<M8.*expected integers"),
        (np.array([{"a": 1}, None], dtype=object), r"descr is '\|O', expected integers"),
        (np.zeros(3, [("ids", "<u2"), ("mask", "?")]), r"descr is \[\('ids', '<u2'\).*expected integers"),
        (np.array(ROWS, ">u2"), "descr is '>u2', expected a little-endian dtype"),
        (np.asfortranarray(np.array(ROWS, "<u2")), "fortran_order is True"),
        (np.zeros((2, 2, 2), "<u2"), r"the shape is \(2, 2, 2\), expected one dimension or two"),
        (np.uint16(3), r"the shape is \(\), expected one dimension or two"),
        (np.zeros((3, 0), "<u2"), "its rows have no tokens"),
    ],
)
def test_an_array_that_is_none_of_ids_in_rows_is_refused_with_what_to_do(
    tmp_path: Path, array: Any, message: str
) -> None:
    with pytest.raises(nc.FormatError, match=message) as caught:
        nc.open_corpus(write(tmp_path, saved(array)), boundaries="none")
    assert "np.ascontiguousarray(array, dtype='<u2')" in str(caught.value) or "no tokens" in message


def test_no_rows_are_no_documents(tmp_path: Path) -> None:
    for shape in ((0, 5), (0, 0)):
        corpus = nc.open_corpus(write(tmp_path, saved(np.zeros(shape, "<u2"))))
        assert (corpus.num_documents, corpus.num_tokens) == (0, 0)
    path = write(tmp_path, content(TEXT.replace("(2, 5)", "(0, 9999999999999999999)"), b""))
    assert nc.open_corpus(path).num_documents == 0


@pytest.mark.parametrize(
    "text",
    [
        "{'shape': (2, 5), 'descr': '<u2', 'fortran_order': False}",
        '{"descr": "<u2", "fortran_order": False, "shape": (2, 5)}',
        "{'descr':'<u2','fortran_order':False,'shape':(2,5),}",
        "  { 'descr' : '<u2' , 'fortran_order' : False , 'shape' : ( 2 , 5 , ) , }   ",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (2L, 5L), }",  # Python 2
    ],
)
def test_a_header_may_be_spelled_otherwise(tmp_path: Path, text: str) -> None:
    assert documents_of(nc.open_corpus(write(tmp_path, content(text)))) == ROWS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        TEXT[:-1],
        TEXT[1:],
        TEXT + "}",
        TEXT.replace("'shape'", "'shape_'"),
        TEXT.replace("'descr': '<u2', ", ""),
        TEXT.replace("}", "'more': 1}"),
        TEXT.replace("}", "'descr': '<u2'}"),
        TEXT.replace("False", "0"),
        TEXT.replace("False", "None"),
        TEXT.replace("(2, 5)", "[2, 5]"),
        TEXT.replace("(2, 5)", "2"),
        TEXT.replace("(2, 5)", "(10)"),
        TEXT.replace("(2, 5)", "(2, 5.0)"),
        TEXT.replace("(2, 5)", "(-2, -5)"),
        TEXT.replace("(2, 5)", "(2 5)"),
        TEXT.replace("(2, 5)", "(,)"),
        TEXT.replace("(2, 5)", "(2,, 5)"),
        TEXT.replace("(2, 5)", "(2, 5, True)"),
        TEXT.replace("(2, 5)", "(1+1, 5)"),
        TEXT.replace("(2, 5)", "(2, " + "9" * 5000 + ")"),
        TEXT.replace("'<u2'", "'<' + 'u2'"),
        TEXT.replace("'<u2'", "'<u2"),
        TEXT.replace("'<u2'", "__import__('os')"),
        TEXT.replace("'<u2'", "'<u3'"),
        TEXT.replace("'<u2'", "'u2'"),
        TEXT.replace("'<u2'", "'<u2,<u2'"),
        "{" * 5000,
        "(" * 9000,
        "-" * 9000 + "1",
        "{'descr': " + "[" * 9000,
    ],
)
def test_a_header_that_is_none_is_refused_and_never_evaluated(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, content(text))
    start = time.process_time()
    with pytest.raises(nc.FormatError):
        nc.open_corpus(path)
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize("version", [(0, 0), (0, 1), (1, 1), (4, 0), (255, 255)])
def test_an_unknown_version_is_refused(tmp_path: Path, version: tuple[int, int]) -> None:
    with pytest.raises(nc.FormatError, match=rf"byte 6: version is {version[0]}.{version[1]}, expected 1.0, 2.0 or"):
        nc.open_corpus(write(tmp_path, content(version=version)))


def test_a_long_header_is_refused_as_by_numpy(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, content(version=(2, 0), width=10_000)))
    assert documents_of(corpus) == ROWS
    with pytest.raises(nc.FormatError, match="byte 8: the header has 10,001 bytes, expected at most 10,000"):
        nc.open_corpus(write(tmp_path, content(version=(2, 0), width=10_001)))


@pytest.mark.parametrize("width", [None, 118, 117])
@pytest.mark.parametrize("access", ["map", "read"])
def test_tokens_need_not_lie_on_multiples_of_their_size(tmp_path: Path, width: int | None, access: str) -> None:
    corpus = nc.open_corpus(write(tmp_path, content(width=width)), access=access)
    assert documents_of(corpus) == ROWS
    rows = nc.Plan(nc.Source(corpus), seq_len=3, seed=1).read(np.arange(6))["tokens"]
    steps = {tuple(np.diff(row.astype(int))) for row in rows}
    assert steps <= {(1, 1, 1), (-9, 1, 1), (1, -9, 1), (1, 1, -9)}  # 1 … 10 in a circle


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize(("array", "boundaries"), [(ROWS, None), (ROWS[0], "none")])
def test_a_file_cut_at_any_byte_or_longer_is_refused(
    tmp_path: Path, array: Any, boundaries: str | None, version: tuple[int, int]
) -> None:
    whole = saved(np.array(array, dtype="<u2"), version)
    for size in range(6, len(whole)):  # below 6 bytes there is no magic: a headerless file, which asks for its dtype
        start = time.process_time()
        assert stream_of(write(tmp_path, whole[:size]), boundaries) is None, size
        assert time.process_time() - start < 0.1, size
    assert stream_of(write(tmp_path, whole + b"\0"), boundaries) is None
    assert stream_of(write(tmp_path, whole), boundaries) == np.ravel(array).tolist()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_a_changed_length_of_the_header_is_refused(tmp_path: Path, version: tuple[int, int]) -> None:
    whole = content(version=version, width=118)
    size = 2 if version == (1, 0) else 4
    for value in [0, 1, -1, 2**31, 2**63 - 1, 117, 119, 116, 120, 60, 59]:
        changed = whole[:8] + (value % 256**size).to_bytes(size, "little") + whole[8 + size :]
        tracemalloc.start()
        assert stream_of(write(tmp_path, changed)) is None, value
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000


def test_a_changed_shape_is_refused_or_moves_joints_alone(tmp_path: Path) -> None:
    """Nothing in the file contradicts (5, 2) or (10, 1): the tokens are the same, the documents are not."""
    for first in (0, 1, -1, 2, 2**31, 2**63 - 1, 5, 10):
        for second in (0, 1, -1, 2, 5, 10, 2**31, 2**63 - 1):
            path = write(tmp_path, content(TEXT.replace("(2, 5)", f"({first}, {second})")))
            expected = STREAM if first * second == 10 and first > 0 else None
            assert stream_of(path) == expected, (first, second)


def test_a_changed_dtype_is_refused_or_changes_no_token(tmp_path: Path) -> None:
    for descr in ("|u1", "|i1", "<i2", "<u4", "<i4", "<u8", ">u2", "<f2", "|b1", "|O", "=u2"):
        path = write(tmp_path, content(TEXT.replace("<u2", descr)))
        assert stream_of(path) == (STREAM if descr == "<i2" else None), descr


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """An array of objects whose pickle would write a file, as numpy saves it."""
    trap = tmp_path / "trap"

    class Trap:
        def __reduce__(self) -> Any:
            return (open, (str(trap), "w"))

    whole = saved(np.array([Trap()], dtype=object))
    assert str(trap).encode() in whole
    with pytest.raises(nc.FormatError, match="expected integers"):
        nc.open_corpus(write(tmp_path, whole), boundaries="none")
    assert not trap.exists()
