"""A file that is one array of JSON: its elements are those that the standard library reads, wherever chunks end."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prep.readers import json_array
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
