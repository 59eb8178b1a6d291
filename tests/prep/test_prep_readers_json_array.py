"""A file that is one array of JSON: its elements are those that the standard library reads, wherever chunks end."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.readers import json_array
from prep.readers.documents import Tally, read_documents
from prep.readers.inputs import cut, find_inputs
from prep.readers.json_array import elements, is_array

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{},"\\\n\té😀 a') | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='],"\\}x'), inner, max_size=3),
    max_leaves=8,
)
NASTY = [{"text": 'a\\"],[{'}, {"text": "\\"}, {}, [], [[]], "],", "\\\\", {"a": {"b": ["}"]}}, 1, None, "é\n"]


def read(data: bytes, chunk: int) -> list[tuple[int, int, bytes]]:
    before, json_array._CHUNK = json_array._CHUNK, chunk
    try:
        return list(elements(io.BytesIO(data), "a.json"))
    finally:
        json_array._CHUNK = before


@given(
    values=st.lists(VALUES, max_size=5),
    indent=st.sampled_from([None, 0, 2]),
    ascii=st.booleans(),
    bom=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_elements_are_those_of_the_standard_library(values: list[Any], indent: int | None, ascii: bool, bom: bool, chunk: int) -> None:  # fmt: skip
    text = json.dumps(values, indent=indent, ensure_ascii=ascii)
    data = b"\xef\xbb\xbf" * bom + text.encode() + b" \r\n" * (chunk % 2)
    assert is_array(io.BytesIO(data))
    found = read(data, chunk)
    assert [json.loads(element) for _, _, element in found] == values
    for at, line, element in found:
        assert data[at : at + len(element)] == element
        assert line == data[:at].count(b"\n") + 1


def test_chunks_may_end_anywhere() -> None:
    data = json.dumps(NASTY, indent=1, ensure_ascii=False).encode()
    for chunk in range(1, len(data) + 1):
        assert [json.loads(element) for _, _, element in read(data, chunk)] == NASTY


@pytest.mark.parametrize("data", [b"[]", b" \n[ ]\n", b"\xef\xbb\xbf[\n]"])
def test_an_empty_array_has_no_elements(data: bytes) -> None:
    assert read(data, 1) == read(data, 100) == []


@pytest.mark.parametrize("data", [b"", b" \n", b'{"a": []}', b'"["', b"\xef\xbb\xbf", b"\xef\xbb\xbf {}"])
def test_what_does_not_begin_with_a_bracket_is_none(data: bytes) -> None:
    assert not is_array(io.BytesIO(data))


def test_an_array_cut_short_at_any_byte_is_refused() -> None:
    data = json.dumps(NASTY, indent=1).encode()
    for size in range(1, len(data)):
        for chunk in (3, 1000):
            with pytest.raises(ValueError, match=r"a\.json: line [0-9]+ \(byte [0-9]+\): the array has no end"):
                read(data[:size], chunk)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[{},]", r"line 1 \(byte 4\): the array's commas"),
        (b"[,{}]", r"byte 1\): the array's commas"),
        (b"[\n{},\n\n,{}]", r"line 4 \(byte 7\): the array's commas"),
        (b"[{}}", r"byte 1\): the array's commas"),
        (b"[{}]\n[{}]", r"line 1 \(byte 4\): something follows the end of the array, .*jq -c"),
        (b"[{}]]", r"byte 4\): something follows"),
        (b"[{}],", r"byte 4\): something follows"),
        (b"[] x", r"byte 2\): something follows"),
    ],
)
def test_commas_and_brackets_that_do_not_fit_are_refused(data: bytes, message: str) -> None:
    for chunk in (1, 2, 100):
        with pytest.raises(ValueError, match=rf"a\.json: .*{message}"):
            read(data, chunk)


def test_brackets_of_the_wrong_kind_are_the_elements_own_trouble() -> None:
    assert read(b"[{], 1]", 2) == [(1, 1, b"{]"), (5, 1, b"1")]


def test_memory_stays_at_the_largest_element() -> None:
    one = json.dumps({"text": "some words\n" * 5000}).encode()
    file = io.BytesIO(b"[" + b",\n".join([one] * 200) + b"]")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        assert sum(1 for _ in elements(file, "a.json")) == 200
        assert tracemalloc.get_traced_memory()[1] - before < 4 << 20  # of 12 MB
    finally:
        tracemalloc.stop()


def read_file(path: Path, task_bytes: int = 1 << 20, on_bad: str = "error") -> tuple[list[tuple[str, int]], Tally]:
    """Return the documents of a file with their lines, and the tally of its last range."""
    found = []
    tallies = []
    for task in cut(find_inputs([str(path)]), "file", task_bytes):
        for part in task:
            tallies.append(Tally())
            found += read_documents(part, rule="file", text_key="text", on_bad=on_bad, tally=tallies[-1])
    return [tuple(document) for document in found], tallies[0]  # type: ignore[misc]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("task_bytes", [10, 1 << 20])
def test_a_file_of_an_array_gives_its_texts_once_however_it_is_cut(tmp_path: Path, name: str, task_bytes: int) -> None:
    texts = ["one", "", "two\nlines", '"]},']
    data = json.dumps([{"text": text, "n": [1]} for text in texts], indent=1).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found, _ = read_file(tmp_path / name, task_bytes)
    assert found == [(text, 2 + 6 * number) for number, text in enumerate(texts)]  # an object is six lines


def test_a_bad_element_is_an_error_by_its_line_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"},\n{"text": 1}, 7,\n {"text" "b"},{"text": "c"}]\n')
    with pytest.raises(ValueError, match=r"a\.json: line 2 \(byte 16\): the value of 'text' is int, expected a text"):
        read_file(tmp_path / "a.json")
    found, tally = read_file(tmp_path / "a.json", on_bad="skip")
    assert found == [("a", 1), ("c", 3)]
    assert tally.skipped_by_kind == {"type": 1, "missing": 1, "json": 1}


def test_a_broken_array_is_an_error_whatever_the_policy(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"},\n{"text": "b"')
    with pytest.raises(ValueError, match=r"a\.json: line 1 \(byte 15\): the array has no end"):
        read_file(tmp_path / "a.json", on_bad="skip")


def test_lines_of_objects_and_an_empty_file_are_no_array(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf\r\n{"text": "a"}\r\n{"text": "b"}')
    assert read_file(tmp_path / "a.json")[0] == [("a", 2), ("b", 3)]
    (tmp_path / "a.json").write_bytes(b"")
    assert read_file(tmp_path / "a.json")[0] == []
