"""LitData's chunks of tokens: bytes written out from the layout's facts, read in place."""

import json
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

# Documents of 3, 5, 1 and 4 ids of two bytes: 4 documents, offsets 24, 30, 40, 42, 50, and the ids.
DOCUMENTS = [[42531, 31848, 25556], [13489, 15391, 2048, 3762, 826], [8763], [40663, 32470, 45637, 25181]]
STREAM = [token for document in DOCUMENTS for token in document]
CHUNK = bytes.fromhex(
    "04000000 18000000 1e000000 28000000 2a000000 32000000 23a6687cd463 b1341f3c0008b20e3a03 3b22 d79ed67e45b25d62"
)
LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'
CONFIG = {
    "chunk_bytes": 64,
    "chunk_size": None,
    "compression": None,
    "compression_level": None,
    "data_format": ["no_header_numpy:5"],
    "data_spec": LEAF,
    "encryption": None,
    "item_loader": "TokensLoader",
    "types": "json",
    "of a version to come": {"x": 1.5},
}
ENTRY = {"chunk_bytes": 50, "chunk_size": 4, "dim": 13, "filename": "chunk-0-0.bin"}

# LitData's numbers of integer types: three of torch's have two names each.
CODES = [
    *((f"no_header_tensor:{code}", dtype) for code, dtype in {11: "u1", 12: "i1", 13: "<i2", 14: "<i2"}.items()),
    *((f"no_header_tensor:{code}", dtype) for code, dtype in {15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8"}.items()),
    ("no_header_tensor:20", "<u2"),
    *((f"no_header_numpy:{code}", d) for code, d in enumerate(["i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8"])),
]
VALUES = [0, 1, -1, 2**31, 2**63 - 1]


def chunk_of(documents: Sequence[Sequence[int]], dtype: str = "<u2") -> bytes:
    items = [np.array(document, dtype=dtype).tobytes() for document in documents]
    start = 4 * (len(items) + 2)
    ends = [start + sum(map(len, items[:number])) for number in range(len(items) + 1)]
    return struct.pack(f"<{len(items) + 2}I", len(items), *ends) + b"".join(items)


def write(
    folder: Path,
    chunks: Sequence[bytes] = (CHUNK,),
    *,
    entries: Sequence[Any] | None = None,
    config: dict[str, Any] | None = None,
    text: str | None = None,
) -> Path:
    folder.mkdir(exist_ok=True)
    for number, chunk in enumerate(chunks):
        (folder / f"chunk-0-{number}.bin").write_bytes(chunk)
    index = {"chunks": [ENTRY] if entries is None else entries, "config": CONFIG | (config or {}), "updated_at": "1.5"}
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True) if text is None else text)
    return folder


def entry_of(number: int, documents: Sequence[Sequence[int]], dtype: str = "<u2") -> dict[str, Any]:
    return {
        "chunk_bytes": len(chunk_of(documents, dtype)),
        "chunk_size": len(documents),
        "dim": sum(map(len, documents)),
        "filename": f"chunk-0-{number}.bin",
    }


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


# What is read


def test_the_fixture_is_what_the_layout_says() -> None:
    assert chunk_of(DOCUMENTS) == CHUNK
    assert entry_of(0, DOCUMENTS) == ENTRY


@pytest.mark.parametrize("access", ["map", "read"])
def test_documents_are_those_worked_out_by_hand(tmp_path: Path, access: str) -> None:
    for path in (write(tmp_path), tmp_path / "index.json"):
        corpus = nc.open_corpus(path, access=access)
        assert documents_of(corpus) == DOCUMENTS
        assert corpus.tokens(0, 13).tolist() == STREAM
        assert (corpus.num_documents, corpus.num_tokens, corpus.num_shards, corpus.dtype) == (4, 13, 1, np.uint16)
        assert corpus.shards[0].offsets().find(np.arange(13)).tolist() == [0] * 3 + [1] * 5 + [2] + [3] * 4
        assert (corpus.fields, corpus.notes, corpus.vocab_size) == ({}, (), None)
        corpus.verify()


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(("data_format", "dtype"), CODES)
def test_each_integer_type_is_read(tmp_path: Path, data_format: str, dtype: str, access: str) -> None:
    documents = [[1, 2, 3], [], [100]]
    write(
        tmp_path,
        [chunk_of(documents, dtype)],
        entries=[entry_of(0, documents, dtype)],
        config={"data_format": [data_format]},
    )
    corpus = nc.open_corpus(tmp_path, access=access)
    assert documents_of(corpus) == documents
    assert corpus.dtype == np.dtype(f"u{min(np.dtype(dtype).itemsize, 4)}")
    assert nc.Plan(nc.Source(corpus), seq_len=3, shuffle="none").read([0])["tokens"].tolist() == [[1, 2, 3, 100]]


def test_chunks_are_shards_in_the_order_of_the_index(tmp_path: Path) -> None:
    parts = [[[1], [2, 3]], [[4, 5, 6]], [[], [7]]]
    order = [2, 0, 1]
    entries = [entry_of(number, parts[number]) for number in order]
    entries[0]["dim"] = None  # as it is where a chunk's first document is empty
    corpus = nc.open_corpus(write(tmp_path, [chunk_of(part) for part in parts], entries=entries))
    assert documents_of(corpus) == [[], [7], [1], [2, 3], [4, 5, 6]]
    assert corpus.num_shards == 3


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("document_shuffle", [False, True])
def test_plans_read_the_rows_that_they_read_from_memory(tmp_path: Path, document_shuffle: bool, access: str) -> None:
    write(tmp_path, [CHUNK] * 2, entries=[ENTRY, ENTRY | {"filename": "chunk-0-1.bin"}])
    memory = nc.memory_corpus([np.array(document, dtype=np.uint16) for document in DOCUMENTS * 2], vocab_size=2**16)
    plans = [
        nc.Plan(nc.Source(corpus), seq_len=4, seed=5, documents=True, document_shuffle=document_shuffle)
        for corpus in (nc.open_corpus(tmp_path, access=access), memory)
    ]
    rows = [plan.read(np.arange(20)) for plan in plans]
    for key in rows[1]:
        assert (rows[0][key] == rows[1][key]).all(), key


def test_conversion_keeps_documents_and_tokens(tmp_path: Path) -> None:
    write(tmp_path / "set", [CHUNK] * 2, entries=[ENTRY, ENTRY | {"filename": "chunk-0-1.bin"}])
    convert(Options(source=str(tmp_path / "set"), destination=tmp_path / "ours", tokens_per_shard=9))
    assert documents_of(nc.open_corpus(tmp_path / "ours")) == DOCUMENTS * 2


def test_a_corpus_of_hundreds_of_chunks_pickles(tmp_path: Path) -> None:
    many = 300
    entries = [entry_of(number, [[number % 7]]) for number in range(many)]
    write(tmp_path, [chunk_of([[number % 7]]) for number in range(many)], entries=entries)
    corpus = pickle.loads(pickle.dumps(nc.open_corpus(tmp_path)))
    assert corpus.num_shards == many
    assert corpus.tokens(0, many).tolist() == [number % 7 for number in range(many)]
    assert corpus.document(299).tolist() == [299 % 7]


def test_offsets_are_checked_across_the_pieces_in_which_they_are_read(tmp_path: Path) -> None:
    many = 2**20 + 3  # 2^20 at a time; each document is one id of one byte
    start = 4 * (many + 2)
    head = np.concatenate([[many], np.arange(start, start + many + 1)]).astype("<u4")
    chunk = bytes(range(251)) * (many // 251) + bytes(many % 251)
    entry = {"chunk_bytes": start + many, "chunk_size": many, "dim": many, "filename": "chunk-0-0.bin"}
    config = {"data_format": ["no_header_numpy:4"]}
    corpus = nc.open_corpus(write(tmp_path, [head.tobytes() + chunk], entries=[entry], config=config))
    assert (corpus.document_offsets(0, many) == np.arange(many + 1)).all()
    head[2 + 2**20] = start  # decreases exactly where the next piece begins
    with pytest.raises(nc.FormatError, match="offsets leave gaps or decrease"):
        nc.open_corpus(write(tmp_path, [head.tobytes() + chunk], entries=[entry], config=config))


def test_a_version_that_did_not_name_the_loader_is_told_by_dim(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key in ("chunk_bytes", "chunk_size", "data_format")}
    text = json.dumps({"chunks": [ENTRY], "config": config})
    assert documents_of(nc.open_corpus(write(tmp_path, text=text))) == DOCUMENTS
    with pytest.raises(nc.FormatError, match=r"config\.item_loader is None, expected 'TokensLoader'"):
        nc.open_corpus(write(tmp_path, text=json.dumps({"chunks": [ENTRY | {"dim": None}], "config": config})))


def test_chunks_that_the_index_does_not_list_are_left_out_aloud(tmp_path: Path) -> None:
    corpus = nc.open_corpus(write(tmp_path, [CHUNK, b"", b"x"]))
    assert documents_of(corpus) == DOCUMENTS
    assert corpus.notes == ("chunk-0-1.bin and 1 more: not in index.json, left out.",)


def test_the_fingerprint_covers_documents_and_dtype_and_neither_time_nor_name(tmp_path: Path) -> None:
    moved = [STREAM[:4], *DOCUMENTS[1:]]
    moved[1] = STREAM[4:8]
    sets: list[dict[str, Any]] = [
        {},
        {"chunks": [CHUNK[:-1] + b"\0"]},
        {"chunks": [chunk_of(moved)]},
        {"config": {"data_format": ["no_header_numpy:1"]}},
        {"config": {"chunk_bytes": 1, "later": 2}},  # the first again
    ]
    found = []
    for number, each in enumerate(sets):
        found.append(nc.open_corpus(write(tmp_path / str(number), **each)).fingerprint)
    assert len(set(found)) == 4
    assert found[0] == found[-1]


def test_offsets_that_wrapped_around_at_4_gib_are_computed_again_aloud(tmp_path: Path) -> None:
    # Documents of 2^31, 2^31 and 10 ids of one byte: the third begins at 2^32 + 20 and ends at 2^32 + 30, modulo 2^32. The file is sparse.
    total = 2**32 + 30
    path = tmp_path / "chunk-0-0.bin"
    with path.open("wb") as file:
        file.write(struct.pack("<5I", 3, 20, 2**31 + 20, 20, 30))
        file.truncate(total)
        file.seek(total - 10)
        file.write(bytes(range(1, 11)))
    entry = {"chunk_bytes": total, "chunk_size": 3, "dim": total - 20, "filename": path.name}
    write(tmp_path, [], entries=[entry], config={"data_format": ["no_header_tensor:11"]})
    corpus = nc.open_corpus(tmp_path)
    assert corpus.document_offsets(0, 3).tolist() == [0, 2**31, 2**32, 2**32 + 10]
    assert corpus.document(2).tolist() == list(range(1, 11))
    assert "chunk-0-0.bin: offsets wrapped around at 2^32 bytes" in corpus.notes[0]
    with path.open("r+b") as file:
        file.write(struct.pack("<5I", 3, 20, 20, 20, 30))  # ten tokens in all: they do not fill the file
    with pytest.raises(nc.FormatError, match="the documents end at byte"):
        nc.open_corpus(tmp_path)


# What is refused, by its message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compression": "zstd"}, r"config\.compression is 'zstd', expected null: .*millstream convert reads it"),
        ({"encryption": {"algorithm": "fernet"}}, r"config\.encryption is .*millstream convert"),
        ({"item_loader": "PyTreeLoader"}, r"config\.item_loader is 'PyTreeLoader', .*millstream convert"),
        ({"item_loader": "ParquetLoader"}, r"config\.item_loader is 'ParquetLoader'"),
        (
            {"item_loader": None, "data_format": ["int", "str"]},
            r"config\.data_format is \['int', 'str'\], expected one",
        ),
        ({"data_format": ["no_header_tensor:19"]}, r"expected the code of an integer type, one of 11, 12"),
        ({"data_format": ["no_header_numpy:9"]}, r"expected the code of an integer type, one of 0, 1, 2"),
        ({"data_format": ["tensor:16"]}, r"config\.data_format is .*millstream convert"),
        ({"data_format": None}, r"config\.data_format is None"),
    ],
)
def test_what_is_not_read_in_place_is_refused_by_name(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, config=config))


@pytest.mark.parametrize(
    "name", ["../chunk-0-0.bin", "/etc/passwd", "a/b", "a\\b", "C:x", "..", ".x", "", "x\0", 7, None]
)
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    (tmp_path / "chunk-0-0.bin").write_bytes(CHUNK)
    with pytest.raises(nc.FormatError, match=r"chunks\[0\]\.filename is .*, expected the name of a file in the same"):
        nc.open_corpus(write(tmp_path / "set", entries=[ENTRY | {"filename": name}]))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([ENTRY, ENTRY], r"chunks\[1\]\.filename is 'chunk-0-0.bin' a second time"),
        ([ENTRY | {"filename": "chunk-9-9.bin"}], r"chunk-9-9\.bin: index\.json names it, but it is not there"),
        ([ENTRY | {"chunk_bytes": 49}], r"the file has 50 bytes, but index\.json says 49"),
        ([ENTRY | {"chunk_size": 3}], r"byte 0: the file has 4 documents, but index\.json says 3"),
        ([ENTRY | {"chunk_size": 40}], r"the 40 documents that index\.json says have offsets of 168"),
        ([ENTRY | {"dim": 12}], r"the file has 13 tokens of uint16, but index\.json says 12 \(dim\)"),
        ([ENTRY | {"chunk_size": "4"}], r"chunks\[0\]\.chunk_size is '4', expected an integer"),
        ([ENTRY | {"chunk_size": True}], r"chunks\[0\]\.chunk_size is True, expected an integer"),
        ([ENTRY | {"dim": 13.0}], r"chunks\[0\]\.dim is 13\.0, expected an integer"),
        (["chunk-0-0.bin"], r"chunks\[0\] is 'chunk-0-0\.bin', expected an object"),
        ([], r"expected an object with 'chunks', a list of at least one"),
    ],
)
def test_an_index_that_the_chunks_contradict_is_refused(tmp_path: Path, entries: list[Any], message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, entries=entries))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([20, 30, 40, 42, 50], "byte 4: the first document begins at byte 20, expected 24, after the offsets"),
        ([24, 30, 40, 42, 48], "by its offsets the documents end at byte 48, but the file has 50"),
        ([24, 30, 28, 42, 50], "the documents end at byte 4,294,967,346, but the file has 50: offsets leave gaps or"),
        ([24, 31, 40, 42, 50], "document 0 has 7 bytes, which is no multiple of 2"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(tmp_path: Path, offsets: list[int], message: str) -> None:
    chunk = struct.pack("<6I", 4, *offsets) + CHUNK[24:]
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, [chunk]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"chunks": [', "it is not JSON"),
        ('{"chunks": ' + "[" * 100_000, "it is not JSON"),
        ('{"chunks": [], "chunks": []}', "a key occurs twice"),
        ('{"chunks": {}, "config": {}}', "expected an object with 'chunks'"),
        ('{"chunks": [1], "config": []}', "'config', an object"),
        ('{"chunks": [' + "9" * 5000 + '], "config": {}}', "it is not JSON"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, text=text))


def test_an_index_of_another_streaming_format_is_not_taken_for_litdata_s(tmp_path: Path) -> None:
    for text in ('{"shards": [], "version": 2}', '["chunks"]', "", '{"x": {"chunks": []}}'):
        with pytest.raises((nc.FormatError, FileNotFoundError)) as caught:
            nc.open_corpus(write(tmp_path, text=text))
        assert "config" not in str(caught.value)


def test_chunks_that_were_never_joined_are_not_found(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "index.json").rename(tmp_path / "0.index.json")
    with pytest.raises(FileNotFoundError, match=r"there are 0\.index\.json and chunks, but no index\.json"):
        nc.open_corpus(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"dtype": "uint32"}, "litdata layout says uint16"), ({"boundaries": "eos:1"}, "litdata layout stores its doc")],
)
def test_arguments_that_the_files_contradict_are_refused(
    tmp_path: Path, arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        nc.open_corpus(write(tmp_path), **arguments)  # type: ignore[arg-type]


# Damage


@pytest.mark.parametrize("name", ["chunk-0-0.bin", "index.json"])
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path)
    content = (path / name).read_bytes()
    for size in range(len(content)):
        (path / name).write_bytes(content[:size])
        assert stream_of(path) is None, size
    (path / name).write_bytes(content)
    assert stream_of(path) == STREAM


@pytest.mark.parametrize("word", range(6))
def test_a_changed_word_of_a_chunk_is_refused_or_moves_a_joint_at_most(tmp_path: Path, word: int) -> None:
    # An even offset between its neighbours is as good as another: nothing in the files contradicts it. No token changes.
    for value in [*VALUES, 2**32 - 1, 24, 26, 32, 36, 40, 42, 50]:
        words = [4, 24, 30, 40, 42, 50]
        words[word] = value % 2**32
        ends = words[1:]
        whole = words[0] == 4 and ends[0] == 24 and ends[-1] == 50 and ends == sorted(ends)
        chunk = struct.pack("<6I", *words) + CHUNK[24:]
        assert stream_of(write(tmp_path, [chunk])) == (STREAM if whole and not any(end % 2 for end in ends) else None)


@pytest.mark.parametrize("key", ["chunk_bytes", "chunk_size", "dim"])
def test_a_changed_number_of_the_index_is_refused(tmp_path: Path, key: str) -> None:
    for value in [*VALUES, 10**400, 1e300, "4", [], {}]:
        assert stream_of(write(tmp_path, entries=[ENTRY | {key: value}])) is None, value


def test_another_type_of_the_same_width_is_all_that_a_changed_code_can_bring_about(tmp_path: Path) -> None:
    # int16 for uint16: ids beyond 32,767 are then negative, and refused. Of other widths, dim differs.
    for code in (*VALUES, *range(40)):
        for maker in ("tensor", "numpy"):
            found = stream_of(write(tmp_path, config={"data_format": [f"no_header_{maker}:{code}"]}))
            assert found == (STREAM if (maker, code) in (("tensor", 20), ("numpy", 5)) else None), (maker, code)


# Files that LitData 0.2.76 wrote


@pytest.mark.parametrize(
    ("name", "dtype", "shards"), [("lit_tokens_np_u16", "u2", 1), ("lit_tokens_torch_i32", "u4", 2)]
)
def test_public_files_hold_the_documents_that_their_readme_lists(
    fixtures: Path, name: str, dtype: str, shards: int
) -> None:
    corpus = nc.open_corpus(fixtures / "streaming" / name)
    assert documents_of(corpus) == DOCUMENTS
    assert (corpus.dtype, corpus.num_shards, corpus.notes) == (np.dtype(dtype), shards, ())
    corpus.verify()


def test_public_files_of_trees_are_refused_by_name(fixtures: Path) -> None:
    with pytest.raises(nc.FormatError, match=r"config\.item_loader is 'PyTreeLoader', .*millstream convert"):
        nc.open_corpus(fixtures / "streaming" / "lit_pytree")
