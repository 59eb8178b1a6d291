"""Fast-LLM's pairs of versions 2 and 3: bytes written out from the layout's facts, spans served half-open."""

import itertools
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import VALUES, checked_contents, contents, replaced

import neutral_core as nc

# Documents [1, 2, 3] and [4] as int16.
BIN = bytes.fromhex("0100 0200 0300 0400")
HEAD = "4d4d49444944580000"
COUNTS = "0200000000000000 0300000000000000"
ARRAYS = "03000000 01000000 0000000000000000 0600000000000000"
DOCUMENTS = "0000000000000000 0100000000000000 0200000000000000"
VERSION_1 = bytes.fromhex(f"{HEAD} 0100000000000000 03 {COUNTS} {ARRAYS} {DOCUMENTS}")
# One span over tokens 0 and 1 of document 0.
VERSION_2 = bytes.fromhex(
    f"{HEAD} 0200000000000000 01 03 {COUNTS} {ARRAYS} 01000000 00000000 00000000 01000000 {DOCUMENTS}"
)
# Chosen: tokens 0 … 1 of document 0, token 0 of document 1. Rejected: token 2 of document 0, token 0 of document 1.
CHOSEN = "00000000 01000000 00000000 00000000"
REJECTED = "02000000 02000000 00000000 00000000"
VERSION_3 = bytes.fromhex(f"{HEAD} 0300000000000000 00 01 03 {COUNTS} {ARRAYS} {CHOSEN} {REJECTED} {DOCUMENTS}")

TOKENS = [[1, 2, 3], [4]]
MASKED = {"documents": TOKENS, "ragged.loss_masking_spans": [[[0, 2]], []]}
PREFERRED = {
    "documents": TOKENS,
    "ragged.chosen_spans": [[[0, 2]], [[0, 1]]],
    "ragged.rejected_spans": [[[2, 3]], [[0, 1]]],
}
NO_SPANS = {"documents": TOKENS, "ragged.loss_masking_spans": [[], []]}

Pairs = Sequence[tuple[int, int]]


def index_bytes(
    lengths: Sequence[int],
    *,
    version: int = 3,
    masks: Sequence[Pairs] | None = None,
    preferences: Sequence[Pairs] | None = None,
    masked: int | None = None,
) -> bytes:
    """An index of int16 tokens; ``masks`` are (first, last) per document, ``preferences`` the chosen and the rejected ones."""
    spans = [pair for document in masks or [] for pair in document]
    flags = [int(bool(spans)) if masked is None else masked, int(preferences is not None)][: version - 1]
    found = b"MMIDIDX\0\0" + struct.pack("<Q", version) + bytes(flags)
    found += struct.pack("<BQQ", 3, len(lengths), len(lengths) + 1)
    found += np.array(lengths, "<i4").tobytes()
    found += (2 * (np.cumsum([0, *lengths])[:-1])).astype("<i8").tobytes()
    if masks is not None:
        found += np.array([len(document) for document in masks], "<i4").tobytes() + np.array(spans, "<i4").tobytes()
    if preferences is not None:
        found += np.array(preferences, "<i4").tobytes()
    return found + np.arange(len(lengths) + 1, dtype="<i8").tobytes()


def write(folder: Path, index: bytes, tokens: bytes = BIN, name: str = "data") -> Path:
    (folder / f"{name}.idx").write_bytes(index)
    (folder / f"{name}.bin").write_bytes(tokens)
    return folder / name


def test_the_fixtures_have_the_sizes_of_the_layout() -> None:
    assert (len(VERSION_1), len(VERSION_2), len(VERSION_3)) == (82, 35 + 24 + 8 + 8 + 24, 36 + 24 + 32 + 24)
    assert index_bytes([3, 1], version=2, masks=[[(0, 1)], []]) == VERSION_2
    assert index_bytes([3, 1], preferences=[[(0, 1), (0, 0)], [(2, 2), (0, 0)]]) == VERSION_3


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (VERSION_2, MASKED),
        (VERSION_3, PREFERRED),
        (index_bytes([3, 1], masks=[[(0, 1)], []]), MASKED),
        (index_bytes([3, 1], version=2), {"documents": TOKENS}),
        (index_bytes([3, 1]), {"documents": TOKENS}),
        (
            index_bytes([3, 1], masks=[[(1, 1)], [(0, 0)]], preferences=[[(0, 1), (0, 0)], [(2, 2), (0, 0)]]),
            {**PREFERRED, "ragged.loss_masking_spans": [[[1, 2]], [[0, 1]]]},
        ),
    ],
    ids=["masks-2", "preferences", "masks-3", "none-2", "none-3", "both"],
)
def test_spans_that_include_their_last_token_are_served_half_open(
    tmp_path: Path, index: bytes, expected: Any, access: str
) -> None:
    corpus = nc.open_corpus(write(tmp_path, index), access=access)
    assert contents(tmp_path / "data", access=access) == expected
    assert list(corpus.fields) == sorted(set(expected) - {"documents"})
    assert set(corpus.fields.values()) <= {nc.Field(dtype="int32", shape=(2,))}
    for name in corpus.fields:
        found = corpus.field(name, 0)
        assert (found.dtype, found.shape[1:], found.flags.writeable) == (np.int32, (2,), False)
    assert (corpus.dtype, corpus.notes) == (np.uint16, ())


@pytest.mark.parametrize(
    ("version", "preferences"),
    [(2, None), (3, None), (3, [[(0, 1), (0, 0)], [(2, 2), (0, 0)]])],
    ids=["2", "3", "both"],
)
def test_zeros_are_written_for_spans_though_the_flag_is_0_and_move_what_follows(
    tmp_path: Path, version: int, preferences: Any
) -> None:
    index = index_bytes([3, 1], version=version, masks=[[], []], preferences=preferences)
    assert index[17] == 0
    assert len(index) == len(index_bytes([3, 1], version=version, preferences=preferences)) + 8
    found = contents(write(tmp_path, index))
    assert found == ({**PREFERRED, **NO_SPANS} if preferences else NO_SPANS)


def test_a_flag_of_1_without_any_span_is_read_all_the_same(tmp_path: Path) -> None:
    assert contents(write(tmp_path, index_bytes([3, 1], masks=[[], []], masked=1))) == NO_SPANS


@pytest.mark.parametrize("access", ["map", "read"])
def test_spans_of_any_run_of_many_documents_are_those_that_were_written(tmp_path: Path, access: str) -> None:
    rng = np.random.default_rng(5)
    lengths = rng.integers(1, 9, 3000).tolist()
    masks = []
    for length in lengths:
        begins = rng.integers(0, length, rng.integers(0, 4)).tolist()
        masks.append([(begin, int(rng.integers(begin, length))) for begin in begins])
    tokens = rng.integers(0, 2**15, sum(lengths)).astype("<i2")
    corpus = nc.open_corpus(write(tmp_path, index_bytes(lengths, masks=masks), tokens.tobytes()), access=access)
    for first, last in [
        (0, 3000),
        (0, 0),
        (1023, 1025),
        (1024, 1024),
        (1024, 2048),
        (2047, 2049),
        (2999, 3000),
        (5, 9),
    ]:
        items, counts = corpus.field_items("ragged.loss_masking_spans", first, last)
        expected = [(begin, end + 1) for begin, end in itertools.chain(*masks[first:last])]
        assert counts is not None
        assert counts.tolist() == [len(document) for document in masks[first:last]]
        assert list(map(tuple, items.tolist())) == expected
    corpus.verify()


def test_an_empty_span_is_kept_and_no_document_at_all_opens(tmp_path: Path) -> None:
    found = contents(write(tmp_path, index_bytes([3, 1], masks=[[(2, 1), (3, 2)], [(0, 0)]])))
    assert found == {"documents": TOKENS, "ragged.loss_masking_spans": [[[2, 2], [3, 3]], [[0, 1]]]}
    assert contents(write(tmp_path, index_bytes([]), b"", "none")) == {"documents": []}


def test_version_1_is_megatron_s_also_where_fast_llm_wrote_it(tmp_path: Path) -> None:
    prefix = write(tmp_path, VERSION_1)
    assert contents(prefix) == contents(prefix, layout="megatron") == {"documents": TOKENS}
    with pytest.raises(nc.FormatError, match=r"data\.idx: byte 9: version 1 is Megatron's layout"):
        nc.open_corpus(prefix, layout="fast_llm")


def test_a_layout_that_is_insisted_on_must_be_the_files(tmp_path: Path) -> None:
    prefix = write(tmp_path, VERSION_2)
    assert contents(prefix, layout="fast_llm") == MASKED
    for layout in ("megatron", "fairseq"):
        with pytest.raises(
            nc.FormatError, match="byte 9: version is 2, expected 1; version 2 of this magic is Fast-LLM's"
        ):
            nc.open_corpus(prefix, layout=layout)
    with pytest.raises(nc.FormatError, match="expected the magic b'TNTIDX"):
        nc.open_corpus(prefix, layout="tntidx")


@pytest.mark.parametrize("suffix", ["", ".idx", ".bin"])
def test_prefix_and_either_file_name_the_pair_also_with_dots(tmp_path: Path, suffix: str) -> None:
    assert contents(Path(f"{write(tmp_path, VERSION_2, name='v1.2_text')}{suffix}")) == MASKED


def test_a_pair_pickles_and_its_documents_are_its_sequences_by_any_rule(tmp_path: Path) -> None:
    prefix = write(tmp_path, VERSION_2)
    corpus = nc.open_corpus(prefix)
    again = pickle.loads(pickle.dumps(corpus))
    assert again.field("ragged.loss_masking_spans", 0).tolist() == [[0, 2]]
    assert nc.open_corpus(prefix, boundaries="sequences").fingerprint == corpus.fingerprint
    with pytest.raises(ValueError, match="the fast_llm layout stores its documents: leave it out"):
        nc.open_corpus(prefix, boundaries="none")


def test_two_indexes_that_differ_in_a_span_have_two_fingerprints(tmp_path: Path) -> None:
    other = index_bytes([3, 1], version=2, masks=[[(1, 1)], []])
    found = {nc.open_corpus(write(tmp_path, index)).fingerprint for index in (VERSION_2, other)}
    assert len(found) == 2


# What is refused


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"MMIDIDX\0\0" + struct.pack("<Q", 4) + VERSION_2[17:], "version 4 holds images .* development branch"),
        (b"MMIDIDX\0\0" + struct.pack("<Q", 5) + VERSION_2[17:], "version 5 holds images and audio .* development"),
        (VERSION_2[:34], "ends after 34 bytes, a header has 35"),
        (VERSION_3[:35], "ends after 35 bytes, a header has 36"),
        (index_bytes([3, 1], masks=[[], []], masked=2), "byte 17: has_loss_masking_spans is 2, expected 0 or 1"),
        (replaced(VERSION_3, 18, 1, 255), "byte 18: has_preference_spans is 255, expected 0 or 1"),
        (replaced(VERSION_2, 18, 1, 6), "byte 18: the dtype's code is 6.*float32 in some tools"),
        (replaced(VERSION_3, 19, 1, 11), "byte 19: the dtype's code is 11.*unknown"),
        (replaced(VERSION_2, 27, 8, 2), "byte 27: the document index has 2 entries, expected 3"),
        (replaced(VERSION_3, 28, 8, 9), "byte 28: the document index has 9 entries, expected 3"),
        (VERSION_2 + b"\0", "has 100 bytes, expected 99 for 2 documents"),
        (VERSION_3[:-1], "has 115 bytes, expected 116 or 124 for 2 documents"),
        (VERSION_2[:-1], "has 98 bytes, expected 99 for 2"),
        (index_bytes([3, 1], masks=[[(0, 1)], []], masked=0), r"has 100 bytes, expected 84 or 92"),
        (replaced(index_bytes([3, 1], masks=[[], []]), 60, 4, 1), "has_loss_masking_spans is 0, but .* 1 spans"),
        (replaced(VERSION_2, 59, 4, -1), "document 0 has -1 loss-masking spans"),
        (replaced(VERSION_2, 91, 8, 7), "entry 2 of the document index is 7, expected 2"),
        (replaced(VERSION_2, 35, 4, -3), "sequence 0 has the length -3"),
        (replaced(VERSION_2, 51, 8, 5), r"sequence 1 begins at byte 5 of data\.bin, expected 6"),
    ],
    ids=itertools.count(),
)
def test_a_damaged_index_is_refused_with_the_place(tmp_path: Path, index: bytes, message: str) -> None:
    with pytest.raises(nc.FormatError, match=message):
        nc.open_corpus(write(tmp_path, index))


@pytest.mark.parametrize(
    "span", [(-1, 0), (0, 3), (3, 3), (2, 0), (0, 2**31 - 1), (-(2**31), 0)], ids=lambda span: str(span)
)
def test_a_span_outside_of_its_document_is_refused_when_it_is_read_and_by_verify(
    tmp_path: Path, span: tuple[int, int]
) -> None:
    corpus = nc.open_corpus(write(tmp_path, index_bytes([3, 1], masks=[[(0, 0)], [(0, 0)]])))
    corpus.verify()
    wrong = nc.open_corpus(write(tmp_path, index_bytes([1, 3], masks=[[(0, 0)], [(0, 1), span]])))
    message = r"data\.idx: ragged\.loss_masking_spans of document 1: a span is \[.*inside of its 3 tokens"
    for touch in (wrong.verify, lambda: wrong.field("ragged.loss_masking_spans", 1)):
        with pytest.raises(nc.FormatError, match=message):
            touch()
    assert wrong.field("ragged.loss_masking_spans", 0).tolist() == [[0, 1]]
    preferred = index_bytes([1, 3], preferences=[[(0, 0), span], [(0, 0), (0, 0)]])
    with pytest.raises(nc.FormatError, match=r"ragged\.chosen_spans of document 1"):
        nc.open_corpus(write(tmp_path, preferred)).verify()


WHOLE = {"masks": (VERSION_2, MASKED), "preferences": (VERSION_3, PREFERRED)}


@pytest.mark.parametrize("which", WHOLE)
def test_either_file_cut_at_any_byte_is_refused(tmp_path: Path, which: str) -> None:
    index, expected = WHOLE[which]
    assert checked_contents(write(tmp_path, index)) == expected
    for size in range(len(index)):
        assert checked_contents(write(tmp_path, index[:size])) is None, size
    for size in range(len(BIN)):
        assert checked_contents(write(tmp_path, index, BIN[:size])) is None, size


@pytest.mark.parametrize("which", WHOLE)
def test_a_changed_header_is_refused_or_changes_nothing(tmp_path: Path, which: str) -> None:
    index, expected = WHOLE[which]
    shift = 0 if which == "masks" else 1
    fields = {
        "version": (9, 8),
        "flag": (17, 1),
        "code": (18 + shift, 1),
        "count": (19 + shift, 8),
        "entries": (27 + shift, 8),
    }
    if shift:
        fields["preference"] = (18, 1)
    for name, (at, size) in fields.items():
        for value in VALUES:
            changed = replaced(index, at, size, value)
            found = checked_contents(write(tmp_path, changed))
            assert found == (expected if changed == index else None), (name, value)


@pytest.mark.parametrize("which", WHOLE)
def test_any_one_byte_of_the_index_changed_yields_no_other_tokens(tmp_path: Path, which: str) -> None:
    # Spans may move inside of their document, which nothing in the files contradicts; the dtype may become uint16, which holds the same ids.
    index, _ = WHOLE[which]
    for at, change in itertools.product(range(len(index)), (0x0B, 0x80)):
        found = contents(write(tmp_path, index[:at] + bytes([index[at] ^ change]) + index[at + 1 :]))
        assert found is None or found["documents"] == TOKENS, (at, change)


def test_counts_that_promise_exabytes_are_refused_without_allocating(tmp_path: Path) -> None:
    for count in (2**63, 2**61, 2**40, 2 + 2**62):
        changed = replaced(replaced(VERSION_2, 19, 8, count), 27, 8, count + 1)
        assert checked_contents(write(tmp_path, changed)) is None
    assert checked_contents(write(tmp_path, replaced(VERSION_2, 59, 4, 2**31 - 1))) is None
