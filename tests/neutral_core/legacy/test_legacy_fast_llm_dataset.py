"""Fast-LLM's ``.fast_llm_dataset`` files: a file dumped from its writer, and every section written out from the facts."""

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import VALUES, checked_contents, contents, replaced
from fast_llm_file import RELEASES, TAGS, file_bytes, patches, ranges, starts, token_data, tokens

import neutral_core as nc

# As Fast-LLM wrote it: three int16 documents, [1, 2, 3], [] and [258].
GOLDEN_JSON = (
    '{"type": "language_model", "begin": 33, "end": 107, "tokens": {"type": "token", "begin": 41, "end": 101, "num_documents": 3, "num_tokens": 4, '
    '"data_type": "int16"}, "loss_masking_spans": {"type": "none"}, "chosen_spans": {"type": "none"}, "rejected_spans": {"type": "none"}, '
    '"image_patches": {"type": "none"}, "advantages": {"type": "none"}, "old_log_probabilities": {"type": "none"}}'
)
GOLDEN = (
    bytes.fromhex(
        "666173745f6c6c6d5f70726570617265645f64617461736574 000000000000006b 6c6d20626567696e 746f6b656e20626567696e"
        "0100 0200 0300 0201 0000000000000000 0300000000000000 0300000000000000 0400000000000000 746f6b656e20656e64 6c6d20656e64 00000180"
    )
    + GOLDEN_JSON.encode()
)
DOCUMENTS = [[1, 2, 3], [], [258]]

PATCHES = [np.arange(24, dtype="u1").reshape(2, 3, 2, 2), np.zeros((0, 3, 2, 2), "u1"), np.full((1, 3, 2, 2), 7, "u1")]
ADVANTAGES = [np.array([0.5, -1, 2], "<f4"), np.array([], "<f4"), np.array([np.inf], "<f4")]
LOGS = [np.array([-1, -2, -3], "<f4"), np.array([], "<f4"), np.array([-0.0], "<f4")]
SECTIONS = {
    "tokens": tokens(DOCUMENTS),
    "loss_masking_spans": ranges([[(0, 1), (2, 3)], [], [(0, 0)]]),
    "chosen_spans": ranges([[(0, 2)], [(0, 0)], [(0, 1)]]),
    "rejected_spans": ranges([[(2, 3)], [(0, 0)], [(1, 1)]]),
    "image_patches": patches(PATCHES, [[0, 2], [], [0]], [[(0, 0), (0, 1)], [], [(5, 6)]], [[1, 1], [0], [1]]),
    "advantages": token_data(ADVANTAGES),
    "old_log_probabilities": token_data(LOGS),
}
EXPECTED: dict[str, Any] = {
    "documents": DOCUMENTS,
    "ragged.loss_masking_spans": [[[0, 1], [2, 3]], [], [[0, 0]]],
    "ragged.chosen_spans": [[[0, 2]], [[0, 0]], [[0, 1]]],
    "ragged.rejected_spans": [[[2, 3]], [[0, 0]], [[1, 1]]],
    "ragged.image_patches": [document.tolist() for document in PATCHES],
    "ragged.image_patches_token_map": [[0, 2], [], [0]],
    "ragged.image_patches_positions": [[[0, 0], [0, 1]], [], [[5, 6]]],
    "ragged.image_patches_lengths": [[1, 1], [0], [1]],
    "token.advantages": [[0.5, -1, 2], [], [float("inf")]],
    "token.old_log_probabilities": [[-1, -2, -3], [], [-0.0]],
}
FIELDS = {
    "ragged.chosen_spans": nc.Field(dtype="int32", shape=(2,)),
    "ragged.image_patches": nc.Field(dtype="uint8", shape=(3, 2, 2)),
    "ragged.image_patches_lengths": nc.Field(dtype="int32"),
    "ragged.image_patches_positions": nc.Field(dtype="int32", shape=(2,)),
    "ragged.image_patches_token_map": nc.Field(dtype="int32"),
    "ragged.loss_masking_spans": nc.Field(dtype="int32", shape=(2,)),
    "ragged.rejected_spans": nc.Field(dtype="int32", shape=(2,)),
    "token.advantages": nc.Field(dtype="float32"),
    "token.old_log_probabilities": nc.Field(dtype="float32"),
}


def write(folder: Path, data: bytes, name: str = "shard_0_0.fast_llm_dataset") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def sections(**changed: Any) -> bytes:
    """A file of three documents with the sections given, beside the tokens."""
    return file_bytes({"tokens": SECTIONS["tokens"], **changed})


def opened(folder: Path, data: bytes, **how: Any) -> nc.Corpus:
    return nc.open_corpus(write(folder, data), **how)


# What is read


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("layout", [None, "fast_llm_dataset"])
def test_the_file_that_fast_llm_wrote_holds_its_three_documents(tmp_path: Path, access: str, layout: Any) -> None:
    assert len(GOLDEN_JSON) == 0x180
    assert file_bytes({"tokens": tokens(DOCUMENTS)}) == GOLDEN
    path = write(tmp_path, GOLDEN)
    assert contents(path, access=access, layout=layout) == {"documents": DOCUMENTS}
    corpus = nc.open_corpus(path, access=access, layout=layout)
    assert (corpus.dtype, corpus.num_tokens, corpus.fields, corpus.notes) == (np.uint16, 4, {}, ())
    assert corpus.document_offsets(0, 3).tolist() == [0, 3, 3, 4]
    assert corpus.shards[0].offsets().find(np.arange(4)).tolist() == [0, 0, 0, 2]
    assert corpus.shards[0].rows(np.array([2, 0]), 2).tolist() == [[3, 258], [1, 2]]
    assert not corpus.document(0).flags.writeable


@pytest.mark.parametrize("access", ["map", "read"])
def test_every_section_becomes_a_field(tmp_path: Path, access: str) -> None:
    path = write(tmp_path, file_bytes(SECTIONS))
    assert contents(path, access=access) == EXPECTED
    corpus = nc.open_corpus(path, access=access)
    assert list(corpus.fields.items()) == list(FIELDS.items())
    for name, field in FIELDS.items():
        found = corpus.field_items(name, 0, 3)
        assert (found.items.dtype, found.items.shape[1:]) == (np.dtype(field.dtype), field.shape)
        assert (found.items.flags.aligned, found.items.flags.writeable) == (True, False)
        counts = None if name.startswith("token.") else [len(document) for document in EXPECTED[name]]
        assert (None if found.counts is None else found.counts.tolist()) == counts
    assert len(corpus.notes) == 1
    assert "the places of 3 image patches hold the id -100" in corpus.notes[0]


@pytest.mark.parametrize("release", list(RELEASES)[:-1])
def test_the_json_of_every_release_is_read(tmp_path: Path, release: str) -> None:
    written = {name: section for name, section in SECTIONS.items() if name in RELEASES[release]}
    path = write(tmp_path, file_bytes(written, release=release, vocab_size=300))
    fields = [name for name in EXPECTED if name.split(".")[-1].startswith(tuple(written)) or name == "documents"]
    assert contents(path) == {name: EXPECTED[name] for name in sorted(fields)}
    text = path.read_bytes()[-2000:].decode("latin-1")
    assert ("preprocessing" in text, "advantages" in text) == (release == "2025-12-09", release == "2026-03-20")
    assert nc.open_corpus(path).vocab_size == (300 if release == "2025-12-09" else None)


def test_a_vocabulary_that_is_not_said_is_not_known(tmp_path: Path) -> None:
    for value in (None, "many", -1, 2**40, True):
        data = file_bytes({"tokens": SECTIONS["tokens"]}, release="2025-12-09", vocab_size=value)  # type: ignore[arg-type]
        assert opened(tmp_path, data).vocab_size is None


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("access", ["map", "read"])
def test_each_integer_type_is_served_unsigned(tmp_path: Path, name: str, access: str) -> None:
    most = min(int(np.iinfo(name).max), 2**32 - 1)
    path = write(tmp_path, file_bytes({"tokens": tokens([[5, most], [0]], name)}))
    assert contents(path, access=access) == {"documents": [[5, most], [0]]}
    assert nc.open_corpus(path).dtype == np.dtype(f"u{min(np.dtype(name).itemsize, 4)}")


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("float16", "<f2"),
        ("float32", "<f4"),
        ("float64", "<f8"),
        ("bfloat16", "<u2"),
        ("int64", "<i8"),
        ("uint8", "u1"),
    ],
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_numbers_per_token_have_any_type_and_shape(tmp_path: Path, name: str, stored: str, shape: Any) -> None:
    values = [np.arange(n * np.prod(shape, dtype=int)).reshape((n, *shape)).astype(stored) for n in (3, 0, 1)]
    corpus = opened(tmp_path, sections(advantages=token_data(values, name, shape)))
    assert corpus.fields == {"token.advantages": nc.Field(dtype=name, shape=shape)}
    for number, expected in enumerate(values):
        found = corpus.field("token.advantages", number)
        assert (found.dtype, found.tolist()) == (np.dtype(stored), expected.tolist())


def test_sections_without_items_and_files_without_tokens_open(tmp_path: Path) -> None:
    assert contents(write(tmp_path, sections(loss_masking_spans=ranges([[], [], []])))) == {
        "documents": DOCUMENTS,
        "ragged.loss_masking_spans": [[], [], []],
    }
    empty = {
        "tokens": tokens([[], []]),
        "loss_masking_spans": ranges([[], [(0, 0)]]),
        "advantages": token_data([ADVANTAGES[1]] * 2),
    }
    assert contents(write(tmp_path, file_bytes(empty))) == {
        "documents": [[], []],
        "ragged.loss_masking_spans": [[], [[0, 0]]],
        "token.advantages": [[], []],
    }
    assert contents(write(tmp_path, file_bytes({"tokens": tokens([])}))) == {"documents": []}
    no_images = patches([PATCHES[1]] * 3, [[]] * 3, [[]] * 3, [[0], [], [0, 0]])
    found = contents(write(tmp_path, sections(image_patches=no_images)))
    assert found is not None
    assert found["ragged.image_patches_lengths"] == [[0], [], [0, 0]]
    assert opened(tmp_path, sections(image_patches=no_images)).notes == ()


def test_sections_may_stand_in_another_order(tmp_path: Path) -> None:
    path = write(tmp_path, file_bytes(SECTIONS, order=RELEASES["2026-03-20"][::-1]))
    assert contents(path) == EXPECTED


@pytest.mark.parametrize(("first", "free"), [("tokens", True), ("advantages", False)])
def test_tokens_that_do_not_lie_on_multiples_of_their_size_are_read_one_by_one(
    tmp_path: Path, first: str, free: bool
) -> None:
    order = (first, *(name for name in RELEASES["2026-03-20"] if name != first))
    path = write(tmp_path, file_bytes({**SECTIONS, "tokens": tokens(DOCUMENTS, "uint32")}, order=order))
    assert contents(path) == EXPECTED
    shard = nc.open_corpus(path).shards[0]
    assert (shard.token_memory() is not None) == free
    assert shard.rows(np.array([2, 0]), 2).tolist() == [[3, 258], [1, 2]]


@pytest.mark.parametrize("access", ["map", "read"])
def test_any_run_of_documents_has_its_own_items(tmp_path: Path, access: str) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 6, 300).tolist()
    documents = [rng.integers(0, 2**15, length).tolist() for length in lengths]
    spans = [[(0, length)] * int(rng.integers(0, 3)) for length in lengths]
    values = [rng.standard_normal(length).astype("<f4") for length in lengths]
    data = file_bytes(
        {"tokens": tokens(documents), "loss_masking_spans": ranges(spans), "advantages": token_data(values)}
    )
    corpus = opened(tmp_path, data, access=access)
    for first, last in [(0, 300), (0, 0), (17, 18), (100, 250), (299, 300), (300, 300)]:
        items, counts = corpus.field_items("ragged.loss_masking_spans", first, last)
        assert counts is not None
        assert counts.tolist() == [len(document) for document in spans[first:last]]
        assert [tuple(span) for span in items.tolist()] == list(itertools.chain(*spans[first:last]))
        expected = list(itertools.chain(*(value.tolist() for value in values[first:last])))
        assert corpus.field_items("token.advantages", first, last).items.tolist() == expected
    rows = nc.Plan(nc.Source(corpus), seq_len=32, seed=1, documents=True).read(np.arange(20))
    other = nc.memory_corpus(documents, vocab_size=2**15)
    same = nc.Plan(nc.Source(other), seq_len=32, seed=1, documents=True).read(np.arange(20))
    assert all((rows[key] == same[key]).all() for key in ("tokens", "segment_ids", "positions"))


def test_a_file_pickles_by_its_path_and_its_fingerprint_covers_its_fields(tmp_path: Path) -> None:
    corpus = opened(tmp_path, file_bytes(SECTIONS))
    again = pickle.loads(pickle.dumps(corpus))
    assert again.field("token.advantages", 0).tolist() == [0.5, -1, 2]
    other = opened(tmp_path, file_bytes({**SECTIONS, "advantages": token_data(LOGS)}))
    assert other.fingerprint != corpus.fingerprint
    with pytest.raises(ValueError, match="the fast_llm_dataset layout stores its documents: leave it out"):
        nc.open_corpus(write(tmp_path, GOLDEN), boundaries="sequences")


def test_sections_of_development_branches_are_left_out_with_a_note(tmp_path: Path) -> None:
    audio = (
        {"type": "audio", "num_documents": 3, "num_clips": 1, "num_samples": 2},
        b"\0" * 8 + b"\2\0\0\0" * 2 + starts([0, 1, 0], "<i4"),
    )
    teacher = {"type": "language_model"}, b"".join(TAGS["token"])
    data = file_bytes({"tokens": SECTIONS["tokens"], "audio": audio, "teacher": teacher}, release="branch")
    corpus = opened(tmp_path, data)
    assert contents(tmp_path / "shard_0_0.fast_llm_dataset") == {"documents": DOCUMENTS}
    assert len(corpus.notes) == 2
    for name, note in zip(("audio", "teacher"), corpus.notes, strict=True):
        assert f"the section '{name}', which no released Fast-LLM writes, is left out" in note


# What is repaired


@pytest.mark.parametrize("access", ["map", "read"])
def test_a_rejected_span_that_ends_after_the_document_is_cut_with_a_note(tmp_path: Path, access: str) -> None:
    rejected = ranges([[(2, 4)], [], [(0, 1), (1, 2)]])  # one more than 3 tokens, and than 1
    corpus = opened(tmp_path, sections(rejected_spans=rejected), access=access)
    assert [corpus.field("ragged.rejected_spans", n).tolist() for n in range(3)] == [[[2, 3]], [], [[0, 1], [1, 1]]]
    assert len(corpus.notes) == 1
    assert "2 rejected spans end one token after their document" in corpus.notes[0]
    chosen = opened(tmp_path, sections(chosen_spans=rejected))
    with pytest.raises(nc.FormatError, match=r"ragged\.chosen_spans of document 0: a span is \[2, 4\), .* 3 tokens"):
        chosen.verify()


# What is refused


def test_an_image_s_place_holds_no_id_and_is_refused_when_it_is_read(tmp_path: Path) -> None:
    placeholders = tokens([[7, -100, -100], [], [258]])
    corpus = opened(tmp_path, file_bytes({**SECTIONS, "tokens": placeholders}))
    assert corpus.document(2).tolist() == [258]
    with pytest.raises(nc.FormatError, match=r"token 1 is -100, expected an id from 0 to 32,767"):
        corpus.document(0)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"loss_masking_spans": ranges([[(0, 4)], [], []])}, r"loss_masking_spans of document 0: a span is \[0, 4\)"),
        ({"loss_masking_spans": ranges([[], [], [(0, 1), (1, 0)]])}, r"of document 2: a span is \[1, 0\)"),
        ({"loss_masking_spans": ranges([[], [(-1, 0)], []])}, r"of document 1: a span is \[-1, 0\)"),
        ({"rejected_spans": ranges([[(0, 5)], [], []])}, r"rejected_spans of document 0: a span is \[0, 5\)"),
        ({"rejected_spans": ranges([[], [(2, 1)], []])}, r"rejected_spans of document 1: a span is \[2, 0\)"),
        (
            {"image_patches": patches(PATCHES, [[0, 3], [], [0]], [[(0, 0)] * 2, [], [(0, 0)]], [[2], [], [1]])},
            r"the token of a patch of documents 0 … 3 is 3, expected one of 3",
        ),
        (
            {"image_patches": patches(PATCHES, [[0, 1], [], [-1]], [[(0, 0)] * 2, [], [(0, 0)]], [[2], [], [1]])},
            r"the token of a patch of documents 0 … 3 is -1",
        ),
        (
            {"image_patches": patches(PATCHES, [[0, 1], [], [0]], [[(0, 0)] * 2, [], [(0, 0)]], [[1], [1], [1]])},
            "the images of documents 0 … 3 have other numbers of patches than their documents",
        ),
        (
            {"image_patches": patches(PATCHES, [[0, 1], [], [0]], [[(0, 0)] * 2, [], [(0, 0)]], [[3, -1], [], [1]])},
            "the images of documents 0 … 3 have other numbers",
        ),
    ],
    ids=itertools.count(),
)
def test_items_that_contradict_their_documents_are_refused_by_verify(tmp_path: Path, what: Any, message: str) -> None:
    corpus = opened(tmp_path, sections(**what))
    with pytest.raises(nc.FormatError, match=message):
        corpus.verify()


def in_json(**values: Any) -> bytes:
    """The file with every section, values of its JSON replaced: ``tokens__end=3`` is root["tokens"]["end"] = 3."""

    def change(root: dict[str, Any]) -> None:
        for key, value in values.items():
            section, _, name = key.rpartition("__")
            (root[section] if section else root)[name] = value

    return file_bytes(SECTIONS, change=change)


def without(name: str) -> bytes:
    return file_bytes(SECTIONS, change=lambda root: root.pop(name))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (replaced(GOLDEN, 25, 8, 0), "byte 25: the place of the JSON is 0: the file is torn, its writer was stopped"),
        (GOLDEN[:33], r"byte 25: the JSON's length is said to be at byte 107, but the file has 33 bytes"),
        (GOLDEN[:-1], "byte 107: the JSON has 384 bytes, so the file should have 495, but it has 494"),
        (GOLDEN + b"\0", "byte 107: the JSON has 384 bytes, so the file should have 495, but it has 496"),
        (
            replaced(GOLDEN, 25, 8, 2**63, "big"),
            "byte 25: the JSON's length is said to be at byte 9,223,372,036,854,775,808",
        ),
        (replaced(GOLDEN, 107, 4, 384, "little"), r"byte 107: the JSON has 2,147,549,184 bytes"),
        (GOLDEN[:-1] + b"!", "byte 111: the JSON cannot be read"),
        (GOLDEN[:107] + b"\0\0\0\2[]", r"byte 111: the JSON is of type list, expected an object"),
        (GOLDEN[:107] + (200_000).to_bytes(4, "big") + b"[" * 200_000, "the JSON cannot be read"),
        (GOLDEN[:107] + (2**20 + 1).to_bytes(4, "big") + b" " * (2**20 + 1), "has 1,048,577 bytes, more than 1 MiB"),
        (GOLDEN[:107] + (5000).to_bytes(4, "big") + b"9" * 5000, "the JSON cannot be read"),
        (in_json(type="other"), "type is 'other', expected 'language_model'"),
        (in_json(begin=34), "begin and end are 34 and .*, expected 33 and"),
        (in_json(tokens__end=None), r"tokens\.end is None, expected an integer from 0 on"),
        (in_json(tokens__num_tokens=True), r"tokens\.num_tokens is True, expected an integer"),
        (in_json(tokens__num_tokens=4.0), r"tokens\.num_tokens is 4\.0, expected an integer"),
        (in_json(tokens__num_tokens=5), r"tokens has \d+ bytes by its begin and end, but \d+ by its counts"),
        (in_json(tokens__num_tokens=2**62), r"tokens has \d+ bytes by its begin and end, but 9,223,.* by its counts"),
        (in_json(tokens__num_documents=4), r"tokens has|num_documents"),
        (in_json(tokens__data_type="int128"), r"tokens\.data_type is 'int128', expected one of"),
        (in_json(tokens__data_type="float16"), r"tokens\.data_type is 'float16', expected an integer type"),
        (in_json(tokens__data_type="bfloat16"), r"tokens\.data_type is 'bfloat16', expected an integer type"),
        (in_json(tokens__data_type=["int16"]), r"tokens\.data_type is of type list"),
        (in_json(tokens__type="range"), r"tokens\.type is 'range', expected 'token'"),
        (in_json(tokens={"type": "none"}), "the JSON names no tokens"),
        (in_json(advantages=3), r"advantages\.type is None, expected 'token_data' or 'none'"),
        (
            in_json(advantages__type="none"),
            r"old_log_probabilities lies at bytes .*, expected to begin at .*, after image_pat",
        ),
        (without("old_log_probabilities"), "advantages, the last section, ends at byte .*: a section is missing"),
        (
            without("loss_masking_spans"),
            "chosen_spans lies at bytes .*, after tokens: sections overlap, leave a gap, or one",
        ),
        (in_json(rejected_spans__begin=41), "rejected_spans|tokens lies at"),
        (in_json(chosen_spans__num_documents=2), r"chosen_spans\.num_documents is 2, but tokens\.num_documents is 3"),
        (in_json(image_patches__patch_shape=[3, 2, -2]), r"image_patches\.patch_shape is of type list, expected a few"),
        (
            in_json(image_patches__patch_shape=[12]),
            r"image_patches\.patch_shape is \[12\], expected two numbers or more",
        ),
        (in_json(image_patches__patch_shape=[3] * 70), r"image_patches\.patch_shape is of type list"),
        (in_json(image_patches__patch_shape=7), r"image_patches\.patch_shape is 7"),
        (in_json(advantages__shape=[0]), r"advantages\.shape is of type list, expected a few positive"),
        (in_json(images={"type": "patch"}), "the JSON names 'images', a section that is not known"),
    ],
    ids=itertools.count(),
)
def test_a_file_that_contradicts_itself_is_refused_with_the_place(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        opened(tmp_path, data)


@pytest.mark.parametrize(
    ("lengths", "counted", "dtype", "message"),
    [
        ([1, 2, 0], 3, "<i4", None),
        ([2, -1, 2], 3, "<i4", "entry 2 of loss_masking_spans's offsets is 1, after 2: they must not decrease"),
        ([1, 1, 0], 3, "<i4", "loss_masking_spans's offsets run from 0 to 2, expected 0 to 3"),
    ],
)
def test_offsets_begin_with_0_do_not_decrease_and_end_with_the_count(
    tmp_path: Path, lengths: Any, counted: int, dtype: str, message: Any
) -> None:
    entry, body = ranges([[(0, 0)], [(0, 0)] * 2, []])
    data = sections(loss_masking_spans=(entry, body[: 8 * counted] + starts(lengths, dtype)))
    if message is None:
        opened(tmp_path, data).verify()
        return
    with pytest.raises(nc.FormatError, match=message):
        opened(tmp_path, data)


def test_offsets_of_tokens_images_and_numbers_are_checked_too(tmp_path: Path) -> None:
    entry, body = tokens(DOCUMENTS)
    for lengths, message in [
        ([3, -1, 2], "entry 2 of tokens's offsets is 2, after 3"),
        ([3, 0, 2], "tokens's offsets run from 0 to 5, expected 0 to 4"),
        ([2**62, 2**62, 0], "tokens's offsets run from"),
    ]:
        with pytest.raises(nc.FormatError, match=message):
            opened(tmp_path, file_bytes({"tokens": (entry, body[:8] + starts(lengths, "<i8"))}))
    entry, body = token_data(ADVANTAGES)
    shifted = entry, body[:16] + starts([2, 1, 1], "<i8")
    with pytest.raises(nc.FormatError, match="advantages has other lengths than the documents' tokens"):
        opened(tmp_path, sections(advantages=shifted))
    entry, body = SECTIONS["image_patches"]
    for at, name in (
        (16, "group offsets"),
        (16 + 16 + 16, "offsets"),
    ):  # the last array, and the one before the lengths
        start = len(body) - at
        with pytest.raises(nc.FormatError, match=f"image_patches's {name} run from 1 to"):
            opened(tmp_path, sections(image_patches=(entry, replaced(body, start, 4, 1))))


@pytest.mark.parametrize("tag", [b"lm begin", b"lm end", *itertools.chain(*list(TAGS.values())[:4])])
def test_every_tag_is_checked(tmp_path: Path, tag: bytes) -> None:
    data = file_bytes(SECTIONS)
    at = data.index(tag)
    changed = data[:at] + tag[:-1] + b"?" + data[at + len(tag) :]
    with pytest.raises(nc.FormatError, match=rf"byte {at}: found .*\?', expected {tag!r} of"):
        opened(tmp_path, changed)


def test_a_folder_of_such_files_is_not_guessed_at(tmp_path: Path) -> None:
    write(tmp_path, GOLDEN)
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"give one \.fast_llm_dataset file"):
        nc.open_corpus(tmp_path, layout="fast_llm_dataset")


def test_another_file_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match=r"byte 0: found .*: it is no \.fast_llm_dataset file"):
        nc.open_corpus(write(tmp_path, b"x" * 100), layout="fast_llm_dataset")


# Damage


@pytest.mark.parametrize(("access", "step"), [("map", 1), ("read", 5)])
def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path, access: str, step: int) -> None:
    assert checked_contents(write(tmp_path, GOLDEN), access=access) == {"documents": DOCUMENTS}
    for size in range(0, len(GOLDEN), step):
        assert checked_contents(write(tmp_path, GOLDEN[:size]), access=access) is None, size


def test_a_file_with_every_section_cut_at_some_bytes_is_refused(tmp_path: Path) -> None:
    data = file_bytes(SECTIONS)
    for size in range(0, len(data), 7):
        assert checked_contents(write(tmp_path, data[:size])) is None, size


def test_every_number_of_the_json_and_the_header_changed_is_refused(tmp_path: Path) -> None:
    whole = file_bytes(SECTIONS)
    path = write(tmp_path, whole)
    stop = int.from_bytes(whole[25:33], "big")
    root = json.loads(whole[stop + 4 :])
    keys = [(name, key) for name, entry in root.items() if isinstance(entry, dict) for key in entry if key != "type"]
    for name, key in [*keys, ("", "begin"), ("", "end")]:
        for value in VALUES:
            changed = json.loads(json.dumps(root))
            entry = changed[name] if name else changed
            if entry[key] == value:
                continue
            entry[key] = value
            text = json.dumps(changed).encode()
            path.write_bytes(whole[:stop] + len(text).to_bytes(4, "big") + text)
            assert checked_contents(path) is None, (name, key, value)
    for at, size in ((25, 8), (stop, 4)):
        for value in VALUES:
            path.write_bytes(replaced(whole, at, size, value, "big"))
            assert checked_contents(path) is None, (at, value)


def test_any_one_byte_before_the_json_changed_yields_no_other_documents(tmp_path: Path) -> None:
    # Nothing in the file contradicts another id, another score or another pixel; all else is refused, or is where a document ends.
    stop = GOLDEN.index(b"{") - 4
    for at in (at for at in range(stop + 4) if not 52 <= at < 60):
        for change in (0x01, 0x80):
            path = write(tmp_path, GOLDEN[:at] + bytes([GOLDEN[at] ^ change]) + GOLDEN[at + 1 :])
            found = contents(path)
            assert found is None or list(itertools.chain(*found["documents"])) == [1, 2, 3, 258], (at, change)
