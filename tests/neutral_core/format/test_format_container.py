"""The header ⇄ bytes, and every cause of FormatError in container, shard and manifest by its message."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_builder import arrays, build, canonical, metadata

from neutral_core import CorpusWriter, Field, FormatError, open_corpus
from neutral_core.format import container
from neutral_core.format.container import Array
from neutral_core.format.manifest import Manifest
from neutral_core.format.shard import Shard

W = "10000000000000000000"  # a number of 20 digits
# The header of a shard without fields, with every number 20 digits long and both paddings that could occur, written out by hand.
WIDEST = (
    '{"__metadata__":{"millstream":"{\\"fields\\":{},\\"format_version\\":' + W + ',\\"num_documents\\":' + W + ',\\"num_tokens\\":' + W
    + ',\\"provenance\\":{\\"note\\":\\"@\\"},\\"tokenizer\\":null,\\"vocab_size\\":' + W + '}"}'
    + "".join(
        f',"{name}":{{"data_offsets":[{W},{W}],"dtype":"{code}","shape":[{W}]}}'
        for name, code in [("checksums", "U32"), ("document_offsets", "I64"), ("padding.1", "U8"), ("padding.2", "U8"), ("tokens", "U8")]
    )
    + "}"
)  # fmt: skip


def own_arrays(num_tokens: int, num_documents: int) -> list[Array]:
    return [
        Array(name="tokens", code="U8", shape=(num_tokens,)),
        Array(name="document_offsets", code="I64", shape=(num_documents + 1,)),
        Array(name="checksums", code="U32", shape=(1 + num_tokens // 2**20,)),
    ]


def own_metadata(note: str, num_tokens: int = 0, num_documents: int = 0) -> dict[str, Any]:
    return metadata(
        fields={},
        num_tokens=num_tokens,
        num_documents=num_documents,
        provenance={"note": note},
        tokenizer=None,
        vocab_size=256,
    )


@pytest.mark.parametrize(
    ("note_bytes", "size"), [(1, 4096), (4088 - len(WIDEST) + 1, 4096), (4088 - len(WIDEST) + 2, 8192)]
)
def test_the_header_ends_on_the_first_page_that_holds_its_widest_text(note_bytes: int, size: int) -> None:
    assert container.header_size(own_arrays(0, 0), own_metadata("x" * note_bytes)) == size


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 9000))
def test_no_count_changes_the_header_size(num_tokens: int, num_documents: int, note: int) -> None:
    empty = container.header_size(own_arrays(0, 0), own_metadata("x" * note))
    full = container.header_size(
        own_arrays(num_tokens, num_documents), own_metadata("x" * note, num_tokens, num_documents)
    )
    assert empty == full
    assert full % 4096 == 0
    assert full == 4096 * -(-(8 + len(WIDEST) - 1 + note) // 4096)


@given(
    st.lists(
        st.tuples(st.sampled_from(["U8", "U16", "F32", "I64", "BF16"]), st.integers(0, 200)), min_size=1, max_size=9
    )
)
def test_decode_gives_back_what_encode_took(pairs: list[tuple[str, int]]) -> None:
    # an array without items shares its place with the next one, so the order of equal places is that of names
    given_arrays = [Array(name=f"a{index}", code=code, shape=(count,)) for index, (code, count) in enumerate(pairs)]
    raw = container.encode(given_arrays, {"note": "é\n", "n": 3})
    last = container.place(given_arrays)[-1].stop
    header = container.decode(raw, path="x", num_bytes=len(raw) + last)
    assert [(a.name, a.code, a.shape) for a in header.arrays.values()] == [
        (a.name, a.code, a.shape) for a in given_arrays
    ]
    assert header.metadata == {"note": "é\n", "n": 3}
    assert header.size == len(raw)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=9))
def test_every_array_begins_on_a_multiple_of_64_and_nothing_lies_between(counts: list[int]) -> None:
    placed = container.place([Array(name=f"a{i}", code="U8", shape=(count,)) for i, count in enumerate(counts)])
    at = 0
    for array in placed:
        assert array.start == at
        at = array.stop
        if array.name.startswith("padding."):
            assert 1 <= array.num_bytes <= 63
        else:
            assert array.start % 64 == 0


def test_padding_is_named_after_the_array_it_precedes() -> None:
    placed = container.place([Array(name=n, code="U8", shape=(c,)) for n, c in [("a", 64), ("b", 1), ("c", 5)]])
    assert [(a.name, a.start, a.stop) for a in placed] == [
        ("a", 0, 64),
        ("b", 64, 65),
        ("padding.2", 65, 128),
        ("c", 128, 133),
    ]


def test_a_shard_made_by_hand_from_the_rules_opens(tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path, build()))
    corpus.verify()
    assert [corpus.document(i).tolist() for i in range(3)] == [[1, 2, 299], [], [7, 0]]
    assert corpus.field("ragged.span", 2).tolist() == [[2, 3]]
    assert corpus.field("token.mask", 0).tolist() == [True, False, True]
    assert float(corpus.field("document.score", 1)) == -1.0


def test_the_writer_gives_the_bytes_made_by_hand(tmp_path: Path) -> None:
    from neutral_core import TokenizerIdentity

    fields = {
        "document.score": Field(dtype="float32"),
        "ragged.span": Field(dtype="int32", shape=(2,)),
        "token.mask": Field(dtype="bool"),
    }
    identity = TokenizerIdentity(kind="byte", name="bytes", sha256="ab" * 32, vocab_size=300, eos_id=256)
    with CorpusWriter(
        tmp_path / "c", vocab_size=300, tokenizer=identity, fields=fields, provenance={"source": "paper"}
    ) as writer:
        writer.add(
            [1, 2, 299], {"document.score": 0.5, "ragged.span": [[0, 1]], "token.mask": np.array([True, False, True])}
        )
        writer.add([], {"document.score": -1.0, "ragged.span": [], "token.mask": []})
        writer.add([7, 0], {"document.score": 2.0, "ragged.span": [[2, 3]], "token.mask": np.array([True, False])})
    assert (tmp_path / "c" / "shard-00000.safetensors").read_bytes() == build()


def write(folder: Path, raw: bytes) -> Path:
    path = folder / "x.safetensors"
    path.write_bytes(raw)
    return path


def set_in(name: str, key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda tree: tree[name].__setitem__(key, value)


def move(name: str, by: int) -> Callable[[dict[str, Any]], Any]:
    def edit(tree: dict[str, Any]) -> None:
        tree[name]["data_offsets"] = [at + by for at in tree[name]["data_offsets"]]

    return edit


def meta_text(text: str) -> Callable[[dict[str, Any]], Any]:
    return lambda tree: tree["__metadata__"].__setitem__("millstream", text)


def length_word(value: int) -> bytes:
    return struct.pack("<Q", value) + build()[8:]


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in metadata().items() if key not in keys}


def tokenizer(**changes: Any) -> dict[str, Any]:
    return metadata(tokenizer={**metadata()["tokenizer"], **changes})


def replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def edit(text: bytes) -> bytes:
        assert old in text
        return text.replace(old, new, 1)

    return edit


DEEP = "[" * 100_000 + "]" * 100_000
MEDIUM = "[" * 600 + "]" * 600
FIELDS = metadata()["fields"]

OPENING: dict[str, tuple[Callable[[], bytes], str]] = {
    "an empty file": (lambda: b"", r"the file has 0 bytes, a shard has at least 4,096"),
    "seven bytes": (lambda: build()[:7], r"the file has 7 bytes"),
    "length 0": (lambda: length_word(0), r"byte 0: the header's length is 0, expected 8 less than a multiple of 4,096"),
    "length -8 as u64": (lambda: length_word(2**64 - 8), r"the header's length is 18,446,744,073,709,551,608"),
    "length off the page": (lambda: length_word(4087), r"the header's length is 4,087"),
    "length beyond the file": (lambda: length_word(8184), r"promises 8,192 bytes but the file ends after 4,\d+; the copy was cut short"),
    "length 2^63": (lambda: length_word(2**63), r"the header's length is 9,223,372,036,854,775,808"),
    "length beyond the limit": (lambda: length_word(4096 * 30000 - 8), r"the header's length is 122,879,992, .* up to 100,000,000"),
    "not UTF-8": (lambda: build(edit_text=replace(b"paper", b"pa\xffer")), r"the header is not valid JSON \(.*utf-8"),
    "not JSON": (lambda: build(edit_text=lambda t: t[:-1]), r"the header is not valid JSON"),
    "a list": (lambda: build(edit_text=lambda t: b"[" + t + b"]"), r"the header is not canonical JSON"),
    "a key twice": (lambda: build(edit_text=replace(b'"tokens":', b'"token.mask":')), r"the key 'token.mask' occurs twice"),
    "a key twice inside": (lambda: build(edit_text=replace(b'"dtype":"U32"', b'"dtype":"U32","dtype":"U32"')), r"the key 'dtype' occurs twice"),
    "a float": (lambda: build(edit_text=replace(b'"shape":[5]', b'"shape":[5.0]')), r"the number 5\.0 is not an integer"),
    "an exponent": (lambda: build(edit_text=replace(b'"shape":[5]', b'"shape":[5e0]')), r"the number 5e0 is not an integer"),
    "NaN": (lambda: build(edit_text=replace(b'"shape":[5]', b'"shape":[NaN]')), r"the number NaN is not an integer"),
    "Infinity": (lambda: build(edit_text=replace(b'"shape":[5]', b'"shape":[-Infinity]')), r"the number -Infinity is not an integer"),
    "a huge number": (lambda: build(edit_tree=set_in("tokens", "shape", [10**400])), r"not at most 32 whole numbers from 0 to 2\^63 - 1"),
    "5,000 digits": (lambda: build(edit_text=replace(b'"shape":[5]', b'"shape":[' + b"9" * 5000 + b"]"), pages=3), r"not valid JSON"),
    "a nesting bomb": (lambda: build(edit_text=lambda t: DEEP.encode(), pages=50), r"nested too deeply"),
    "a smaller nesting bomb": (lambda: build(edit_text=lambda t: b'{"a":' + MEDIUM.encode() + b"}"), r"nested too deeply"),
    "a nesting bomb as dtype": (lambda: build(edit_text=replace(b'"BOOL"', MEDIUM.encode())), r"nested too deeply"),
    "a space": (lambda: build(edit_text=replace(b'"shape":[5]', b'"shape": [5]')), r"the header is not canonical JSON"),
    "keys not sorted": (lambda: build(edit_text=replace(b'"dtype":"U16","shape":[5]', b'"shape":[5],"dtype":"U16"')), r"not canonical JSON"),
    "an escape not needed": (lambda: build(edit_text=replace(b'"U16"', b'"\\u005516"')), r"not canonical JSON"),
    "a lone surrogate": (lambda: build(edit_text=replace(b'"U16"', b'"\\ud800"')), r"not valid JSON"),
    "a leading space": (lambda: build(edit_text=lambda t: b" " + t), r"not canonical JSON"),
    "zero bytes for spaces": (lambda: build(edit_text=lambda t: t + b"\0"), r"not valid JSON"),
    "no metadata": (lambda: build(edit_tree=lambda t: t.pop("__metadata__")), r"does not hold the one text 'millstream'"),
    "other metadata": (lambda: build(edit_tree=lambda t: t.update(__metadata__={"format": "pt"})), r"no shard of Millstream"),
    "metadata of numbers": (lambda: build(edit_tree=lambda t: t.update(__metadata__={"millstream": 1})), r"no shard of Millstream"),
    "metadata not JSON": (lambda: build(edit_tree=meta_text("{")), r"the metadata is not valid JSON"),
    "metadata with a key twice": (lambda: build(edit_tree=meta_text('{"a":1,"a":1}')), r"the metadata is not valid JSON .*'a' occurs twice"),
    "metadata no object": (lambda: build(edit_tree=meta_text("[]")), r"the metadata is not a canonical JSON object"),
    "metadata with a space": (lambda: build(edit_tree=meta_text('{"a": 1}')), r"the metadata is not a canonical JSON object"),
    "metadata nested": (lambda: build(edit_tree=meta_text('{"a":' + MEDIUM + "}")), r"the metadata is not valid JSON .*nested too deeply"),
    "an entry no object": (lambda: build(edit_tree=lambda t: t.update(tokens=[])), r"array 'tokens': expected an object"),
    "an entry with more": (lambda: build(edit_tree=set_in("tokens", "x", 1)), r"array 'tokens': expected an object with data_offsets"),
    "an unknown dtype": (lambda: build(edit_tree=set_in("tokens", "dtype", "U24")), r"array 'tokens': dtype is 'U24', expected one of BOOL"),
    "a dtype that is no text": (lambda: build(edit_tree=set_in("tokens", "dtype", 3)), r"array 'tokens': dtype is 3"),
    "a negative shape": (lambda: build(edit_tree=set_in("tokens", "shape", [-5])), r"'tokens': shape or data_offsets are not"),
    "a shape of true": (lambda: build(edit_tree=set_in("tokens", "shape", [True])), r"'tokens': shape or data_offsets are not"),
    "a shape that is no list": (lambda: build(edit_tree=set_in("tokens", "shape", 5)), r"'tokens': shape or data_offsets are not"),
    "33 dimensions": (lambda: build(edit_tree=set_in("tokens", "shape", [1] * 33)), r"not at most 32 whole numbers"),
    "three offsets": (lambda: build(edit_tree=set_in("tokens", "data_offsets", [0, 10, 10])), r"'tokens': shape or data_offsets are not"),
    "shape and offsets differ": (lambda: build(edit_tree=set_in("tokens", "shape", [6])), r"shape \[6\] of U16 needs 12 bytes but .* hold 10"),
    "a product of 2^64": (lambda: build(edit_tree=set_in("tokens", "shape", [2**32, 2**31, 5])), r"needs 92,233,\S+ bytes but"),
    "offsets backwards": (lambda: build(edit_tree=set_in("tokens", "data_offsets", [10, 0])), r"data_offsets \[10, 0\] hold -10"),
    "a hole": (lambda: build(edit_tree=lambda t: t.pop("padding.1")), r"'document_offsets' begins at byte 64 of the data, expected 10: .* hole"),
    "an overlap": (lambda: build(edit_tree=move("document_offsets", -1)), r"begins at byte 63 of the data, expected 64: arrays overlap"),
    "a trailing byte": (lambda: build() + b"\0", r"promises [\d,]+ bytes but the file has [\d,]+; something was appended"),
    "a missing byte": (lambda: build()[:-1], r"promises [\d,]+ bytes but the file has [\d,]+; the copy was cut short"),
    "a padding by another name": (
        lambda: build(edit_tree=lambda t: t.update({"padding.9": t.pop("padding.1")})), r"not where the rule of 64 puts them",
    ),
    "an array off 64": (
        lambda: build([(n, c, s, d) if n != "tokens" else (n, c, [32], bytes(64)) for n, c, s, d in arrays()],
                      edit_tree=lambda t: t.update({"padding.0": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]},
                                                    "tokens": {"dtype": "U8", "shape": [0], "data_offsets": [64, 64]}})),
        r"not where the rule of 64 puts them",
    ),
    "a page too many": (lambda: build(pages=2), r"the header has 8,192 bytes, expected 4,096 for its fields"),
    "a page too few": (lambda: build(meta=metadata(provenance={"x": "y" * 2000}), pages=1), r"the header has 4,096 bytes, expected 8,192"),
    "version 0": (lambda: build(meta=metadata(format_version=0)), r"format_version is 0, expected 1 to 1"),
    "version by text": (lambda: build(meta=metadata(format_version="1")), r"format_version is '1', expected"),
    "version true": (lambda: build(meta=metadata(format_version=True)), r"format_version is True, expected"),
    "a newer version": (lambda: build(meta={"format_version": 7, "all": "new"}), r"format version 7 is newer than 1, .*: update it"),
    "a key missing": (lambda: build(meta=without("tokenizer")), r"keys differ from those of format version 1 in tokenizer"),
    "a key more": (lambda: build(meta=metadata(extra=1)), r"keys differ from those of format version 1 in extra"),
    "vocab_size 0": (lambda: build(meta=metadata(vocab_size=0)), r"vocab_size is 0, expected an integer from 1"),
    "vocab_size beyond": (lambda: build(meta=metadata(vocab_size=2**32 + 1)), r"vocab_size is 4294967297, expected"),
    "num_tokens below 0": (lambda: build(meta=metadata(num_tokens=-1)), r"num_tokens is -1, expected an integer from 0"),
    "num_documents a text": (lambda: build(meta=metadata(num_documents="3")), r"num_documents is '3', expected an integer"),
    "provenance a list": (lambda: build(meta=metadata(provenance=[])), r"provenance is \[\], expected an object of texts"),
    "provenance of numbers": (lambda: build(meta=metadata(provenance={"a": 1})), r"provenance is \{'a': 1\}, expected an object of texts"),
    "tokenizer a text": (lambda: build(meta=metadata(tokenizer="gpt2")), r"the tokenizer is 'gpt2', expected an object"),
    "tokenizer keys": (lambda: build(meta=metadata(tokenizer={"kind": "x"})), r"the tokenizer's keys differ .* bos_id, eos_id, name"),
    "tokenizer kind": (lambda: build(meta=tokenizer(kind=3)), r"tokenizer kind is 3, expected text"),
    "tokenizer sha256": (lambda: build(meta=tokenizer(sha256="AB")), r"tokenizer sha256 is 'AB', expected 64 lower-case"),
    "tokenizer vocab_size": (lambda: build(meta=tokenizer(vocab_size=0)), r"tokenizer vocab_size is 0, expected"),
    "tokenizer eos_id": (lambda: build(meta=tokenizer(eos_id=300)), r"tokenizer eos_id is 300, expected an id below vocab_size 300"),
    "two vocab_sizes": (lambda: build(meta=tokenizer(vocab_size=299)), r"vocab_size is 300 but the tokenizer's is 299"),
    "fields a list": (lambda: build(meta=metadata(fields=[])), r"the fields are \[\], expected an object"),
    "a field no object": (lambda: build(meta=metadata(fields={"token.a": 1})), r"field 'token.a' is 1, expected an object with dtype"),
    "a field's dtype a list": (lambda: build(meta=metadata(fields={"token.a": {"dtype": [], "shape": []}})), r"dtype is \[\], expected text"),
    "a field's dtype": (lambda: build(meta=metadata(fields={"token.a": {"dtype": "int7", "shape": []}})), r"dtype is 'int7', expected one of"),
    "a field's shape": (lambda: build(meta=metadata(fields={"token.a": {"dtype": "int8", "shape": [0]}})), r"shape is \(0,\), expected pos"),
    "a field's name": (lambda: build(meta=metadata(fields={"x.a": {"dtype": "int8", "shape": []}})), r"field 'x.a': expected 'token.', 'doc"),
    "fewer tokens declared": (lambda: build(meta=metadata(num_tokens=4)), r"an array is \('tokens', 'U16', \(5,\)\), expected .*\(4,\)"),
    "more documents declared": (lambda: build(meta=metadata(num_documents=4)), r"'document_offsets', 'I64', \(4,\)\), expected .*\(5,\)"),
    "an undeclared array": (
        lambda: build(meta=metadata(fields={k: v for k, v in FIELDS.items() if k != "token.mask"})), r"an array is \('token.mask', .* expected \('checksums'",
    ),
    "a declared array missing": (
        lambda: build(meta=metadata(fields={**FIELDS, "token.z": {"dtype": "int8", "shape": []}})), r"an array is \('checksums'.* expected \('token.z'",
    ),
    "no arrays": (lambda: build([], metadata(fields={})), r"an array is \('checksums', .*expected \('tokens'"),
    "dtype wider than need be": (
        lambda: build(arrays(tokens=("U32", [5], bytes(20)))), r"an array is \('tokens', 'U32', \(5,\)\), expected \('tokens', 'U16'",
    ),
    "dtype too narrow": (lambda: build(arrays(tokens=("U8", [5], bytes(5)))), r"an array is \('tokens', 'U8', \(5,\)\), expected \('tokens', 'U16'"),
    "the header's checksum": (lambda: build(edit_sums=lambda s: s.__setitem__(0, s[0] ^ 1)), r"byte 0: the header's checksum is 0x\w+, expected 0x"),
    "offsets begin late": (
        lambda: build(arrays(document_offsets=("I64", [4], struct.pack("<4q", 1, 3, 3, 5)))), r"document_offsets begins with 1 .* expected 0 and 5",
    ),
    "offsets end early": (
        lambda: build(arrays(document_offsets=("I64", [4], struct.pack("<4q", 0, 3, 3, 4)))), r"ends with 4, expected 0 and 5",
    ),
    "ragged offsets end late": (
        lambda: build(arrays(ragged__span__offsets=("I64", [4], struct.pack("<4q", 0, 1, 1, 3)))),
        r"ragged\.span\.offsets begins with 0 and ends with 3, expected 0 and 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", OPENING)
def test_opening_refuses(cause: str, tmp_path: Path) -> None:
    make, words = OPENING[cause]
    with pytest.raises(
        FormatError, match=rf"^{tmp_path}/x\.safetensors: .*{words}|^{tmp_path}/x\.safetensors: {words}"
    ):
        open_corpus(write(tmp_path, make()))


VERIFYING: dict[str, tuple[Callable[[], bytes], str]] = {
    "decreasing offsets": (
        lambda: build(arrays(document_offsets=("I64", [4], struct.pack("<4q", 0, 4, 3, 5)))), r"document_offsets\[2\] is 3, after 4: offsets must",
    ),
    "decreasing ragged offsets": (
        lambda: build(arrays(ragged__span__offsets=("I64", [4], struct.pack("<4q", 0, 2, 1, 2)))), r"ragged\.span\.offsets\[2\] is 1, after 2",
    ),
    "an id beyond the vocabulary": (
        lambda: build(arrays(tokens=("U16", [5], struct.pack("<5H", 1, 2, 300, 7, 0)))),
        r"tokens 0 … 5 hold the id 300, expected ids below vocab_size 300",
    ),
    "a bool of 2": (lambda: build(arrays(token__mask=("BOOL", [5], bytes([1, 0, 2, 1, 0])))), r"token\.mask\[0:5\] holds a byte other than 0 and 1"),
    "a padding that is not 0": (lambda: build(edit_data=lambda d: d.__setitem__(63, 1)), r"the padding before document_offsets holds a byte other"),
    "a block's checksum": (lambda: build(edit_sums=lambda s: s.__setitem__(1, s[1] ^ 1)), r"bytes 4,096 … 4,\d+ have the checksum 0x\w+, expected"),
}  # fmt: skip


@pytest.mark.parametrize("cause", VERIFYING)
def test_verify_refuses(cause: str, tmp_path: Path) -> None:
    make, words = VERIFYING[cause]
    corpus = open_corpus(write(tmp_path, make()))
    with pytest.raises(FormatError, match=words):
        corpus.verify()


def test_reading_a_bool_of_2_is_refused_and_the_others_are_served(tmp_path: Path) -> None:
    corpus = open_corpus(write(tmp_path, VERIFYING["a bool of 2"][0]()))
    assert corpus.field("token.mask", 2).tolist() == [True, False]
    with pytest.raises(FormatError, match="which is no bool"):
        corpus.field("token.mask", 0)


@pytest.mark.parametrize("middle", [(4, 3), (6, 3), (-1, 3), (2**62, 3)])
def test_a_document_between_impossible_offsets_is_refused(middle: tuple[int, int], tmp_path: Path) -> None:
    corpus = open_corpus(
        write(tmp_path, build(arrays(document_offsets=("I64", [4], struct.pack("<4q", 0, *middle, 5)))))
    )
    with pytest.raises(FormatError, match=r"x\.safetensors: document 1: its offsets are .* must not decrease"):
        corpus.document(1)
    with pytest.raises(FormatError, match="must not decrease"):
        corpus.field("token.mask", 1)


def test_a_ragged_field_between_impossible_offsets_is_refused(tmp_path: Path) -> None:
    own = arrays(ragged__span__offsets=("I64", [4], struct.pack("<4q", 0, 5, 1, 2)))
    with pytest.raises(FormatError, match=r"ragged\.span\.offsets\[0:2\] runs from 0 to 5"):
        open_corpus(write(tmp_path, build(own))).field("ragged.span", 0)


def test_a_field_of_absurd_shape_without_items_is_no_other_error(tmp_path: Path) -> None:
    shape = [2**30, 2**30, 2**30]
    own = [
        ("tokens", "U16", [0], b""),
        ("document_offsets", "I64", [2], bytes(16)),
        ("ragged.x", "BOOL", [0, *shape], b""),
        ("ragged.x.offsets", "I64", [2], bytes(16)),
    ]
    meta = metadata(num_documents=1, num_tokens=0, fields={"ragged.x": {"dtype": "bool", "shape": shape}})
    with pytest.raises(FormatError, match=r"ragged\.x"):
        open_corpus(write(tmp_path, build(own, meta))).verify()


def test_check_blocks_finds_damage_in_the_touched_block_only(tmp_path: Path) -> None:
    tokens = np.arange(3 << 20, dtype=np.uint8)  # three blocks
    with CorpusWriter(tmp_path / "c", vocab_size=256) as writer:
        writer.add(tokens)
    shard = tmp_path / "c" / "shard-00000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[4096 + (1 << 20) + 5] ^= 1
    shard.write_bytes(raw)
    for access in ("map", "read"):
        corpus = open_corpus(tmp_path / "c", check="blocks", access=access)
        assert np.array_equal(corpus.tokens(0, 1 << 20), tokens[: 1 << 20])
        assert np.array_equal(corpus.tokens(2 << 20, 3 << 20), tokens[2 << 20 :])
        with pytest.raises(FormatError, match=r"bytes 1,052,672 … 2,101,248 have the checksum"):
            corpus.tokens((1 << 20) + 900_000, (1 << 20) + 900_001)
    assert len(open_corpus(tmp_path / "c").tokens(1 << 20, 2 << 20)) == 1 << 20  # check="headers" does not look


def corpus_of_two(folder: Path) -> Path:
    with CorpusWriter(folder, vocab_size=300, tokens_per_shard=2) as writer:
        writer.add([1, 2])
        writer.add([3, 4])
    return folder


def test_mixed_up_shards_are_refused_by_digest(tmp_path: Path) -> None:
    folder = corpus_of_two(tmp_path / "c")
    first, second = folder / "shard-00000.safetensors", folder / "shard-00001.safetensors"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    corpus = open_corpus(tmp_path / "c")
    with pytest.raises(
        FormatError, match=r"shard-00000\.safetensors: digest is '\w{64}', but dataset\.json expects '\w{64}'"
    ):
        corpus.document(0)


@pytest.mark.parametrize(
    ("documents", "words"),
    [([[1, 2, 3]], "num_tokens is 3, but"), ([[1], [2]], "num_documents is 2, but"), ([[1] * 40], "num_bytes is")],
)
def test_a_shard_of_other_counts_is_refused(documents: list[list[int]], words: str, tmp_path: Path) -> None:
    corpus_of_two(tmp_path / "c")
    with CorpusWriter(tmp_path / "other", vocab_size=300) as writer:
        for document in documents:
            writer.add(document)
    (tmp_path / "c/shard-00000.safetensors").write_bytes((tmp_path / "other/shard-00000.safetensors").read_bytes())
    with pytest.raises(FormatError, match=words):
        open_corpus(tmp_path / "c").document(0)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (corpus_of_two(tmp_path / "c") / "shard-00001.safetensors").unlink()
    with pytest.raises(
        FormatError, match=r"shard-00001\.safetensors: dataset\.json names this shard, but there is no such file"
    ):
        open_corpus(tmp_path / "c").document(1)


def test_a_gap_in_the_numbers_of_shards_without_a_manifest_is_refused(tmp_path: Path) -> None:
    folder = corpus_of_two(tmp_path / "c")
    (folder / "dataset.json").unlink()
    assert "no dataset.json" in open_corpus(folder).notes[0]
    (folder / "shard-00000.safetensors").unlink()
    with pytest.raises(FormatError, match=r"shard-00000\.safetensors is missing, and so is dataset\.json"):
        open_corpus(folder)


def test_shards_declared_differently_are_no_corpus(tmp_path: Path) -> None:
    for name, size in (("a", 300), ("b", 301)):
        with CorpusWriter(tmp_path / name, vocab_size=size) as writer:
            writer.add([1])
    folder = tmp_path / "all"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").write_bytes((tmp_path / name / "shard-00000.safetensors").read_bytes())
    with pytest.raises(
        FormatError, match=r"b\.safetensors: vocab_size is 301, but 300 in a\.safetensors: these shards do not belong"
    ):
        open_corpus(folder)


def test_a_manifest_of_no_shards_is_refused() -> None:
    with pytest.raises(FormatError, match="at least one shard, found none"):
        Manifest.of([])


def manifest_with(data: dict[str, Any], **changes: Any) -> bytes:
    """A manifest with changes and its checksum taken again, as FORMAT.md says: sha256 of the canonical JSON without the checksum."""
    data = {key: value for key, value in {**data, **changes}.items() if key != "checksum" and value is not ...}
    return canonical({**data, "checksum": hashlib.sha256(canonical(data)).hexdigest()}) + b"\n"


def shards_with(data: dict[str, Any], **changes: Any) -> bytes:
    """A manifest whose first shard is changed; fingerprint and totals fit again."""
    shards = [{**data["shards"][0], **changes}, *data["shards"][1:]]
    return manifest_with(data, shards=[{k: v for k, v in shard.items() if v is not ...} for shard in shards])


FIT = r"checksum, totals or fingerprint do not fit"
MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], bytes], str]] = {
    "empty": (lambda d: b"", r"Expecting value"),
    "cut short": (lambda d: canonical(d)[:-20], r"Expecting"),
    "not UTF-8": (lambda d: b"\xff", r"utf-8"),
    "nested": (lambda d: DEEP.encode(), r"nested too deeply"),
    "nested inside": (lambda d: canonical(d).replace(b'"fields":{}', b'"fields":' + MEDIUM.encode()), r"nested too deeply"),
    "a key twice": (lambda d: b'{"format":"millstream corpus","format":1}', r"the key 'format' occurs twice"),
    "a float": (lambda d: canonical(d).replace(b'"num_tokens":4', b'"num_tokens":4.0'), r"the number 4\.0 is not an integer"),
    "a list": (lambda d: b"[]\n", r"it is no manifest of Millstream's"),
    "another format": (lambda d: manifest_with(d, format="mosaic"), r"it is no manifest of Millstream's"),
    "version 0": (lambda d: manifest_with(d, format_version=0), r"format_version is 0, expected 1 to 1"),
    "a newer version": (lambda d: manifest_with(d, format_version=2, new=1), r"format version 2 is newer than 1, .*: update it"),
    "a key missing": (lambda d: manifest_with(d, tokenizer=...), r"its keys differ from those expected in tokenizer"),
    "a key more": (lambda d: manifest_with(d, extra=1), r"its keys differ from those expected in extra"),
    "vocab_size 0": (lambda d: manifest_with(d, vocab_size=0), r"vocab_size is 0, expected"),
    "shards a text": (lambda d: manifest_with(d, shards="x"), r"shards is not a list of at least one"),
    "no shards": (lambda d: manifest_with(d, shards=[]), r"shards is not a list of at least one"),
    "a shard of numbers": (lambda d: manifest_with(d, shards=[1]), r"a shard is 1, expected an object with name, num_bytes"),
    "a shard without digest": (lambda d: shards_with(d, digest=...), r"a shard is .* expected an object with name, num_bytes"),
    "a name that climbs": (lambda d: shards_with(d, name="../x"), r"a shard's name is '\.\./x', expected the name of a file in the same"),
    "a name that is ..": (lambda d: shards_with(d, name=".."), r"a shard's name is '\.\.'"),
    "an absolute name": (lambda d: shards_with(d, name="/etc/passwd"), r"a shard's name is '/etc/passwd'"),
    "a Windows path": (lambda d: shards_with(d, name="a\\b"), r"a shard's name is 'a\\\\b'"),
    "an empty name": (lambda d: shards_with(d, name=""), r"a shard's name is ''"),
    "a name with NUL": (lambda d: shards_with(d, name="a\0"), r"a shard's name is 'a\\x00'"),
    "a short digest": (lambda d: shards_with(d, digest="ab"), r"the digest of shard shard-00000\.safetensors is 'ab', expected 64"),
    "num_tokens below 0": (lambda d: shards_with(d, num_tokens=-1), r"num_tokens of shard shard-00000\.safetensors is -1, expected"),
    "num_bytes true": (lambda d: shards_with(d, num_bytes=True), r"num_bytes of shard shard-00000\.safetensors is True"),
    "a sum of 2^63": (
        lambda d: manifest_with(d, shards=[{**d["shards"][0], "num_tokens": 2**62 - 1}] * 3, num_tokens=3 * 2**62 - 3, num_documents=3),
        r"the sum of num_tokens of all shards is 2\^62 or more",
    ),
    "fields a list": (lambda d: manifest_with(d, fields=[]), r"the fields are \[\], expected an object"),
    "a field's shape of texts": (lambda d: manifest_with(d, fields={"token.a": {"dtype": "int8", "shape": ["x"]}}), r"shape is \('x',\)"),
    "tokenizer keys": (lambda d: manifest_with(d, tokenizer={}), r"the tokenizer's keys differ"),
    "changed total": (lambda d: manifest_with(d, num_tokens=5), FIT),
    "changed shard's count": (lambda d: shards_with(d, num_tokens=3), FIT),
    "changed digest": (lambda d: shards_with(d, digest="00" * 32), FIT),
    "changed fingerprint": (lambda d: manifest_with(d, fingerprint="00" * 32), FIT),
    "changed checksum": (lambda d: canonical({**d, "checksum": "00" * 32}) + b"\n", FIT),
    "no newline": (lambda d: canonical(d), FIT),
    "spaces": (lambda d: json.dumps(d).encode() + b"\n", FIT),
}  # fmt: skip


@pytest.mark.parametrize("cause", MANIFESTS)
def test_a_manifest_is_refused(cause: str, tmp_path: Path) -> None:
    path = corpus_of_two(tmp_path / "c") / "dataset.json"
    make, words = MANIFESTS[cause]
    path.write_bytes(make(json.loads(path.read_bytes())))
    with pytest.raises(
        FormatError, match=rf"{tmp_path}/c/dataset\.json: .*{words}|{tmp_path}/c/dataset\.json: {words}"
    ):
        open_corpus(tmp_path / "c")


def test_the_manifest_helper_reproduces_what_the_writer_wrote(tmp_path: Path) -> None:
    content = (corpus_of_two(tmp_path / "c") / "dataset.json").read_bytes()
    assert manifest_with(json.loads(content)) == content


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"vocab_size": 200}, "vocab_size"), ({"fields": {"token.a": {"dtype": "int8", "shape": []}}}, "fields"),
     ({"tokenizer": {**metadata()["tokenizer"]}}, "tokenizer")],
)  # fmt: skip
def test_a_manifest_that_declares_other_than_its_shards_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = corpus_of_two(tmp_path / "c") / "dataset.json"
    path.write_bytes(manifest_with(json.loads(path.read_bytes()), **changes))
    corpus = open_corpus(tmp_path / "c")
    with pytest.raises(FormatError, match=rf"shard-00000\.safetensors: {words} is .*, but dataset\.json expects"):
        corpus.document(0)


def test_documents_that_only_the_manifest_promises_are_refused_without_allocating(tmp_path: Path) -> None:
    path = corpus_of_two(tmp_path / "c") / "dataset.json"
    data = json.loads(path.read_bytes())
    data["shards"][0]["num_documents"] = 2**40
    path.write_bytes(manifest_with(data, num_documents=2**40 + 1))
    corpus = open_corpus(tmp_path / "c")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"num_documents is 1, but dataset\.json expects 1099511627776"):
            corpus.document_offsets(0, corpus.num_documents)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_fingerprint_of_another_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no run of its first shards has the fingerprint 00"):
        open_corpus(corpus_of_two(tmp_path / "c"), fingerprint="00" * 32)


def test_an_unknown_check_or_access_is_refused(tmp_path: Path) -> None:
    folder = corpus_of_two(tmp_path / "c")
    with pytest.raises(ValueError, match="check is 'all', expected 'headers' or 'blocks'"):
        open_corpus(folder, check="all")
    with pytest.raises(ValueError, match="access is 'mmap', expected 'map' or 'read'"):
        open_corpus(folder, access="mmap").document(0)
    with pytest.raises(ValueError, match="check is 'all'"):
        Shard(folder / "shard-00000.safetensors", check="all")


def test_a_header_beyond_the_limit_is_refused_when_writing() -> None:
    with pytest.raises(ValueError, match=r"the header would have [\d,]+ bytes, at most 100,000,000"):
        container.encode([], {"x": "y" * 100_000_000})
