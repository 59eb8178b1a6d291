"""Damage to a small shard, byte by byte and value by value: it is refused, and never yields tokens."""

from __future__ import annotations

import json
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_builder import DOCUMENTS, build, resum

from neutral_core import FormatError, open_corpus
from neutral_core.format.canonical import dumps, loads
from neutral_core.format.manifest import Manifest

RAW = build()
SIZE = 8 + struct.unpack("<Q", RAW[:8])[0]
TREE = json.loads(RAW[8:SIZE])
SUM_AT = SIZE + TREE["checksums"]["data_offsets"][0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 60


def test_the_whole_file_serves(path: Path) -> None:
    path.write_bytes(RAW)
    corpus = open_corpus(path)
    corpus.verify()
    assert [corpus.document(i).tolist() for i in range(corpus.num_documents)] == DOCUMENTS


def test_a_shard_truncated_at_any_byte_is_refused(path: Path) -> None:
    path.write_bytes(RAW)
    for length in range(len(RAW) - 1, -1, -1):
        with path.open("r+b") as file:
            file.truncate(length)
        with pytest.raises(FormatError, match=r"x\.safetensors: "):
            open_corpus(path)


@pytest.mark.parametrize("bits", [1, 8])
def test_a_shard_with_any_header_byte_changed_is_refused(bits: int, path: Path) -> None:
    path.write_bytes(RAW)
    with path.open("r+b", buffering=0) as file:
        for at in range(SIZE):
            mask = 0xFF if bits == 8 else 1 << at % 8
            os.pwrite(file.fileno(), bytes([RAW[at] ^ mask]), at)
            with pytest.raises(FormatError, match=r"x\.safetensors: "):
                open_corpus(path)
            os.pwrite(file.fileno(), RAW[at : at + 1], at)


def test_a_shard_with_any_header_byte_changed_and_the_checksum_taken_again_is_refused_or_serves_the_same(
    path: Path,
) -> None:
    # What is left means nothing to the layout: the provenance and the tokenizer's kind, name, sha256 and eos_id.
    path.write_bytes(RAW)
    served = 0
    with path.open("r+b", buffering=0) as file:
        for at in range(SIZE):
            raw = RAW[:at] + bytes([RAW[at] ^ 1]) + RAW[at + 1 : SIZE]
            os.pwrite(file.fileno(), raw[at : at + 1], at)
            os.pwrite(file.fileno(), struct.pack("<I", zlib.crc32(raw)), SUM_AT)
            found = serve(path)
            assert found in (None, DOCUMENTS)
            served += found is not None
            os.pwrite(file.fileno(), RAW[at : at + 1], at)
    # 32 of the sha256's digits (b becomes c, a no digit), "bytes", "byte", "source", "paper", and two digits of eos_id 256 (257, 246)
    assert served == 32 + 5 + 4 + 6 + 5 + 2


def serve(path: Path) -> list[list[int]] | None:
    """The documents after ``verify``, or None where a FormatError was raised."""
    try:
        corpus = open_corpus(path)
        corpus.verify()
        for name in corpus.fields:
            for index in range(corpus.num_documents):
                corpus.field(name, index)
        return [corpus.document(index).tolist() for index in range(corpus.num_documents)]
    except FormatError:
        return None


def numbers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all numbers in plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if type(item) is int:
            yield (*place, key)
        yield from numbers(item, (*place, key))


def changed(tree: Any, place: tuple[Any, ...], number: int) -> Any:
    copy = json.loads(json.dumps(tree))
    at = copy
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = number
    return copy


METADATA = json.loads(TREE["__metadata__"]["millstream"])
VALUES = [0, 1, -1, 2**31, 2**63 - 1]
CASES = [
    (part, place, number)
    for part, tree in (("arrays", TREE), ("metadata", METADATA))
    for place in numbers(tree)
    for number in VALUES
]
# The one number that is free: which id ends a document is the tokenizer's affair, any id of the vocabulary will do.
CONSISTENT = {(("tokenizer", "eos_id"), 0), (("tokenizer", "eos_id"), 1)}


def value_at(tree: Any, place: tuple[Any, ...]) -> int:
    for key in place:
        tree = tree[key]
    return int(tree)


def test_every_number_of_the_header_is_among_the_cases() -> None:
    assert len({(part, place) for part, place, _ in CASES}) == len(re.findall(rb"(?<=[\[:,])\d+", RAW[8:SIZE]))


@pytest.mark.parametrize("fixed_sum", [False, True])
def test_a_shard_with_any_number_of_its_header_changed_is_refused(fixed_sum: bool, path: Path) -> None:
    for part, place, number in CASES:
        tree, metadata = TREE, METADATA
        if value_at(tree if part == "arrays" else metadata, place) == number:
            continue
        if part == "arrays":
            tree = changed(tree, place, number)
        else:
            metadata = changed(metadata, place, number)
        tree = {**tree, "__metadata__": {"millstream": dumps(metadata).decode()}}
        raw = RAW[:8] + dumps(tree).ljust(SIZE - 8) + RAW[SIZE:]
        path.write_bytes(resum(raw, SIZE, SUM_AT) if fixed_sum else raw)
        if fixed_sum and (place, number) in CONSISTENT:
            assert serve(path) == DOCUMENTS
            continue
        with pytest.raises(FormatError, match=r"x\.safetensors: "):
            open_corpus(path)


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**63 - 1, 2**64 - 1, SIZE - 7, SIZE - 9, SIZE, 2 * SIZE - 8])
def test_a_shard_with_another_length_word_is_refused(number: int, path: Path) -> None:
    path.write_bytes(resum(struct.pack("<Q", number) + RAW[8:], SIZE, SUM_AT))
    with pytest.raises(FormatError, match=r"x\.safetensors: "):
        open_corpus(path)


@pytest.mark.parametrize("pages", [1, 3])
def test_a_header_of_another_length_with_everything_else_right_is_refused(pages: int, path: Path) -> None:
    path.write_bytes(build(pages=pages) if pages * 4096 != SIZE else build(pages=2))
    with pytest.raises(FormatError, match="for its fields"):
        open_corpus(path)


def test_verify_finds_one_changed_bit_in_any_byte_of_the_data(path: Path) -> None:
    raw = bytearray(RAW)
    for at in range(SIZE, len(RAW)):
        raw[at] ^= 1 << at % 8
        path.write_bytes(raw)
        assert serve(path) is None, f"byte {at}"
        raw[at] ^= 1 << at % 8


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(RAW) - 1), st.integers(0, 255)), max_size=6), st.booleans())
def test_any_edit_of_bytes_is_refused_or_leaves_the_tokens(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], fixed: bool
) -> None:
    raw = bytearray(RAW)
    for at, value in edits:
        raw[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(resum(bytes(raw), SIZE, SUM_AT) if fixed else raw)
    assert serve(path) in (None, DOCUMENTS)


@settings(max_examples=300)
@given(st.integers(8, SIZE - 1), st.integers(0, 60), st.binary(max_size=60))
def test_any_splice_of_the_header_is_refused_or_leaves_the_tokens(
    tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, new: bytes
) -> None:
    text = (RAW[8:at] + new + RAW[at + cut : SIZE]).ljust(SIZE - 8)[: SIZE - 8]
    path = tmp_path_factory.getbasetemp() / "splice.safetensors"
    path.write_bytes(resum(RAW[:8] + text + RAW[SIZE:], SIZE, SUM_AT))
    assert serve(path) in (None, DOCUMENTS)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_are_no_manifest(content: bytes) -> None:
    with pytest.raises(FormatError, match=r"^dataset\.json: "):
        Manifest.from_bytes(content, "dataset.json")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_canonical_text_reads_back_as_the_value(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert dumps(loads(dumps(value))) == dumps(value)
