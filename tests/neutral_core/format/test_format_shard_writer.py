"""Writing one shard: the official safetensors library reads it, equal input gives equal bytes, and what does not fit is refused."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file

from neutral_core import Field, TokenizerIdentity
from neutral_core.format.shard import Shard
from neutral_core.format.shard_writer import Schema, ShardWriter

NUMPY_DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
BIT_PATTERNS = [("bfloat16", "BF16", "<u2"), ("float8_e4m3", "F8_E4M3", "u1"), ("float8_e5m2", "F8_E5M2", "u1")]


def write(path: Path, schema: Schema, documents: list[tuple[Any, dict[str, Any]]]) -> Path:
    with ShardWriter(path, schema) as writer:
        for tokens, fields in documents:
            writer.add(tokens, fields)
    return path


def extremes(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values up to the ends of a dtype's range."""
    if dtype == "bool":
        return np.resize(np.array([True, False]), shape)
    limits: Any = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    return np.resize(np.array([limits.min, limits.max, 1, 0], dtype=dtype), shape)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32"), (2**32, "uint32")],
)
def test_the_library_reads_tokens_in_the_narrowest_dtype(vocab_size: int, dtype: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.safetensors", Schema(vocab_size=vocab_size), [([0, vocab_size - 1], {}), ([], {}), ([0], {})]
    )
    found = load_file(path)
    assert found["tokens"].dtype == dtype
    assert found["tokens"].tolist() == [0, vocab_size - 1, 0]
    assert found["document_offsets"].dtype == np.int64
    assert found["document_offsets"].tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize("kind", ["token", "document", "ragged"])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_the_library_reads_fields_of_every_dtype(dtype: str, kind: str, tmp_path: Path) -> None:
    name = f"{kind}.a"
    values = [extremes(dtype, {"token": (n, 3), "document": (3,), "ragged": (2 * n, 3)}[kind]) for n in (4, 0, 1)]
    schema = Schema(vocab_size=10, fields={name: Field(dtype=dtype, shape=(3,))})
    path = write(
        tmp_path / "x.safetensors",
        schema,
        [(np.zeros(n, dtype=int), {name: v}) for n, v in zip((4, 0, 1), values, strict=True)],
    )
    found = load_file(path)[name]
    assert found.dtype == dtype
    assert np.array_equal(found, np.stack(values) if kind == "document" else np.concatenate(values))
    shard = Shard(path)
    shard.verify()
    for index, value in enumerate(values):
        found = shard.field(name, index, index + 1).items
        assert np.array_equal(found[0] if name.startswith("document.") else found, value)


@pytest.mark.parametrize(("dtype", "code", "stored"), BIT_PATTERNS)
def test_types_that_numpy_lacks_are_stored_as_bit_patterns_under_their_own_code(
    dtype: str, code: str, stored: str, tmp_path: Path
) -> None:
    patterns = np.array([0, 1, 0x7F, 0xFF], dtype=stored)
    path = write(
        tmp_path / "x.safetensors",
        Schema(vocab_size=10, fields={"token.a": Field(dtype=dtype)}),
        [([1, 2, 3, 4], {"token.a": patterns})],
    )
    with safe_open(path, framework="numpy") as file:
        assert file.get_slice("token.a").get_dtype() == code
        assert file.get_slice("token.a").get_shape() == [4]
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    first, last = json.loads(raw[8:start])["token.a"]["data_offsets"]
    assert raw[start + first : start + last] == patterns.tobytes()
    assert Shard(path).field("token.a", 0, 1).items.tolist() == patterns.tolist()


@pytest.mark.parametrize(
    "name", ["token.offsets", "document.offsets", "ragged.offsets", "token.byte_offsets", "document.document_offsets"]
)
def test_a_field_may_be_called_offsets(name: str, tmp_path: Path) -> None:
    schema = Schema(vocab_size=10, fields={name: Field(dtype="int64")})
    values: list[Any] = [7, 9] if name.startswith("document") else [[7, 8], [9]]
    path = write(tmp_path / "x.safetensors", schema, [([1, 2], {name: values[0]}), ([3], {name: values[1]})])
    shard = Shard(path)
    shard.verify()
    each = [shard.field(name, i, i + 1).items.tolist() for i in range(2)]
    assert each == ([[7], [9]] if name.startswith("document") else values)
    assert load_file(path)[name].tolist() == ([7, 9] if name.startswith("document") else [7, 8, 9])


def test_a_shard_without_documents_opens_everywhere(tmp_path: Path) -> None:
    fields = {
        "token.a": Field(dtype="bool"),
        "document.b": Field(dtype="float32", shape=(2,)),
        "ragged.c": Field(dtype="int8"),
    }
    path = write(tmp_path / "x.safetensors", Schema(vocab_size=300, fields=fields), [])
    found = load_file(path)
    assert {name: array.shape for name, array in found.items() if not name.startswith("padding.")} == {
        "tokens": (0,), "document_offsets": (1,), "token.a": (0,), "document.b": (0, 2), "ragged.c": (0,), "ragged.c.offsets": (1,), "checksums": (2,),
    }  # fmt: skip
    Shard(path).verify()


FIELDS = {
    "token.a": Field(dtype="bool"),
    "document.b": Field(dtype="float32", shape=(2,)),
    "ragged.c": Field(dtype="int64", shape=(2,)),
    "ragged.empty": Field(dtype="uint8"),
}
DOCUMENT = st.lists(st.integers(0, 299), max_size=30)


def with_fields(tokens: list[int]) -> tuple[list[int], dict[str, Any]]:
    n = len(tokens)
    return tokens, {
        "token.a": np.arange(n) % 2 == 0,
        "document.b": np.array([n, sum(tokens)], dtype=np.float32),
        "ragged.c": np.arange(2 * (n % 3)).reshape(-1, 2),
        "ragged.empty": [],
    }


def joined(documents: list[tuple[list[int], dict[str, Any]]]) -> tuple[Any, Any, dict[str, Any]]:
    lengths = [len(tokens) for tokens, _ in documents]
    fields: dict[str, Any] = {}
    for name, field in FIELDS.items():
        values = [np.asarray(f[name]) for _, f in documents]
        if name.startswith("document."):
            fields[name] = np.stack(values)
        else:
            items = np.concatenate([v.reshape(-1, *field.shape).astype(field.dtype) for v in values])
            fields[name] = (items, [len(v) for v in values]) if name.startswith("ragged.") else items
    return np.array([t for tokens, _ in documents for t in tokens], dtype=np.int64), lengths, fields


@settings(max_examples=60)
@given(st.lists(DOCUMENT, max_size=12), st.lists(st.integers(1, 12), max_size=12))
def test_equal_documents_give_equal_bytes_however_they_are_handed_over(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], cuts: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("equal")
    schema = Schema(vocab_size=300, fields=FIELDS)
    rich = [with_fields(tokens) for tokens in documents]
    one = write(folder / "one.safetensors", schema, rich).read_bytes()
    with ShardWriter(folder / "many.safetensors", schema) as writer:
        at = 0
        for step in [*cuts, len(rich)]:
            if rich[at : at + step]:
                writer.add_many(*joined(rich[at : at + step]))
            at += step
    assert (folder / "many.safetensors").read_bytes() == one
    found = load_file(folder / "one.safetensors")
    assert found["tokens"].tolist() == [t for tokens in documents for t in tokens]
    assert not [p for p in folder.iterdir() if p.suffix != ".safetensors"]


@pytest.mark.parametrize("dtype", ["uint8", ">u2", "int16", "uint32", ">i8", "uint64"])
def test_the_dtype_that_ids_come_in_changes_no_byte(dtype: str, tmp_path: Path) -> None:
    schema = Schema(vocab_size=300)
    expected = write(tmp_path / "a.safetensors", schema, [([1, 2, 200], {})]).read_bytes() if dtype != "int8" else b""
    assert (
        write(tmp_path / "b.safetensors", schema, [(np.array([1, 2, 200], dtype=dtype), {})]).read_bytes() == expected
    )


@pytest.mark.parametrize("step", [1, 3, -1])
def test_strided_tokens_are_written_as_they_read(step: int, tmp_path: Path) -> None:
    tokens = np.arange(30)[::step]
    assert (
        load_file(write(tmp_path / "x.safetensors", Schema(vocab_size=30), [(tokens, {})]))["tokens"].tolist()
        == tokens.tolist()
    )


def test_several_blocks_and_spooled_fields_are_written_right(tmp_path: Path) -> None:
    tokens = np.arange(700_001, dtype=np.uint32) % 70_000
    values = np.arange(700_001, dtype=np.float32)
    schema = Schema(vocab_size=70_000, fields={"token.a": Field(dtype="float32")})
    path = write(tmp_path / "x.safetensors", schema, [(tokens, {"token.a": values})])
    found = load_file(path)
    assert np.array_equal(found["tokens"], tokens)
    assert np.array_equal(found["token.a"], values)
    assert found["checksums"].shape == (1 + -(-(4 * 700_001 * 2) // 2**20),)
    Shard(path).verify()


@pytest.mark.parametrize(
    ("many", "lengths", "words"),
    [
        (
            [1, 2, 300, 4],
            [2, 0, 2],
            r"document 3 of the shard, position 0: the id 300 is outside of the vocabulary of 300 ids",
        ),
        ([1, 2, 3, -1], [2, 0, 2], r"document 3 of the shard, position 1: the id -1 is outside"),
        ([2**40], [1], r"document 1 of the shard, position 0: the id 1,099,511,627,776 is outside"),
        ([1, 2], [1], r"lengths add up to 1 but there are 2 tokens"),
        ([1, 2], [3, -1], r"lengths\[1\] is -1, expected at least 0"),
        ([1, 2], [[2]], r"lengths are int64 of shape \(1, 1\), expected integers in one dimension"),
        ([1, 2], [2.0], r"lengths are float64"),
        ([1.0], [1], r"tokens are float64 of shape \(1,\), expected integers in one dimension"),
        ([[1]], [1], r"tokens are int64 of shape \(1, 1\)"),
        (["a"], [1], r"tokens are <U1"),
        ([True], [1], r"tokens are bool"),
    ],
)
def test_documents_that_do_not_fit_are_refused_and_leave_the_shard_as_it_was(
    many: Any, lengths: Any, words: str, tmp_path: Path
) -> None:
    with ShardWriter(tmp_path / "x.safetensors", Schema(vocab_size=300)) as writer:
        writer.add([7])
        with pytest.raises(ValueError, match=words):
            writer.add_many(many, lengths)
        writer.add([8])
    assert load_file(tmp_path / "x.safetensors")["tokens"].tolist() == [7, 8]


GOOD: dict[str, Any] = {"token.a": [1, 2], "document.b": 3, "ragged.c": [[1, 2]]}
DECLARED = {
    "token.a": Field(dtype="int32"),
    "document.b": Field(dtype="float32"),
    "ragged.c": Field(dtype="uint8", shape=(2,)),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token.a": ...}, r"the fields given differ from those declared in token\.a"),
        ({"token.z": [1, 2]}, r"the fields given differ from those declared in token\.z"),
        ({"token.a": [1]}, r"token\.a: shape is \(1,\), expected \(2,\)"),
        ({"token.a": [[1], [2]]}, r"token\.a: shape is \(2, 1\), expected \(2,\)"),
        ({"token.a": np.array([1, 2**31])}, r"token\.a: int64 values do not fit the declared dtype int32"),
        ({"token.a": np.array([-(2**31) - 1, 0])}, r"token\.a: int64 values do not fit the declared dtype int32"),
        ({"token.a": [1.0, 2.0]}, r"token\.a: float64 values do not fit the declared dtype int32"),
        ({"document.b": [1, 2]}, r"document\.b: shape is \(1, 2\), expected \(1,\)"),
        ({"document.b": "x"}, r"document\.b: <U1 values do not fit"),
        ({"document.b": 1e300}, r"document\.b: float64 values do not fit the declared dtype float32"),
        ({"ragged.c": [1, 2]}, r"ragged\.c: shape is \(2,\), expected \(2, 2\)"),
        ({"ragged.c": 5}, r"ragged\.c: shape is \(\), expected"),
        ({"ragged.c": [[1, 256]]}, r"ragged\.c: int64 values do not fit the declared dtype uint8"),
        ({"ragged.c": [[1, -1]]}, r"ragged\.c: int64 values do not fit the declared dtype uint8"),
    ],
)
def test_fields_that_do_not_fit_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    fields = {name: value for name, value in {**GOOD, **change}.items() if value is not ...}
    with ShardWriter(tmp_path / "x.safetensors", Schema(vocab_size=300, fields=DECLARED)) as writer:
        with pytest.raises(ValueError, match=words):
            writer.add([7, 8], fields)
        writer.add([7, 8], {**GOOD, "document.b": np.float64(3)})
    assert load_file(tmp_path / "x.safetensors")["token.a"].tolist() == [1, 2]


def test_infinities_that_were_given_are_kept(tmp_path: Path) -> None:
    schema = Schema(vocab_size=300, fields={"document.b": Field(dtype="float32")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write(
            tmp_path / "x.safetensors",
            schema,
            [([1], {"document.b": np.float64(value)}) for value in ("inf", "-inf", "nan", 0.1)],
        )
    assert np.array_equal(
        load_file(path)["document.b"], np.array([np.inf, -np.inf, np.nan, 0.1], dtype=np.float32), equal_nan=True
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"vocab_size": 0}, "vocab_size is 0, expected an integer from 1"),
        ({"vocab_size": 2**32 + 1}, "vocab_size is 4294967297"),
        ({"vocab_size": 300.0}, r"vocab_size is 300\.0"),
        (
            {"vocab_size": 300, "tokenizer": TokenizerIdentity(kind="a", name="b", sha256="0" * 64, vocab_size=299)},
            "the tokenizer's is 299",
        ),
        (
            {"vocab_size": 300, "fields": {"loss": Field(dtype="bool")}},
            "field 'loss': expected 'token.', 'document.' or 'ragged.'",
        ),
        (
            {"vocab_size": 300, "fields": {"token.a.offsets": Field(dtype="bool")}},
            r"field 'token\.a\.offsets': expected",
        ),
        (
            {"vocab_size": 300, "fields": {"token.a": Field(dtype="float128")}},
            "dtype is 'float128', expected one of bool",
        ),
        (
            {"vocab_size": 300, "fields": {"token.a": Field(dtype="bool", shape=(0,))}},
            r"shape is \(0,\), expected positive",
        ),
        (
            {"vocab_size": 300, "fields": {"token.a": Field(dtype="bool", shape=(2**30, 2**30))}},
            r"has more than 2\^48 numbers",
        ),
        ({"vocab_size": 300, "provenance": {"a": "x" * (1 << 20)}}, "provenance holds more than 1 MiB of text"),
    ],
)
def test_declarations_outside_their_range_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Schema(**arguments)


def test_a_shard_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="a shard is never overwritten"):
        ShardWriter(tmp_path / "x.safetensors", Schema(vocab_size=2))
    assert (tmp_path / "x.safetensors").read_bytes() == b"mine"


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ShardWriter(tmp_path / "x.safetensors", Schema(vocab_size=2)) as writer:
        writer.add([1])
        raise KeyError
    assert list(tmp_path.iterdir()) == []
