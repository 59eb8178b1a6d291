"""What rows say and what has to be told: which column holds ids, masks, labels, segments, and where documents begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import DOCUMENTS, documents, example, masks, packed, run, tfrecord
from hypothesis import given
from hypothesis import strategies as st

import neutral_core as nc
from prep.foreign.choice import Choice
from prep.foreign.columns import documents_of
from prep.foreign.layout import Column, Rows


def write(path: Path, **columns: list[list[int]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_bytes(tfrecord([example(**dict(zip(columns, map(packed, row), strict=True))) for row in rows]))
    return path


def rows_of(**columns: list[list[int]]) -> Rows:
    made = {
        name: Column(
            np.array([n for row in rows for n in row], dtype=np.int64),
            np.array([len(row) for row in rows], dtype=np.int64),
        )
        for name, rows in columns.items()
    }
    return Rows("file", 10, made)


def lists(tokens: Any, lengths: Any) -> list[list[int]]:
    edges = [0, *np.cumsum(lengths)]
    return [tokens[a:b].tolist() for a, b in zip(edges, edges[1:], strict=False)]


# --- which column


def test_two_columns_of_integers_are_not_chosen_between(tmp_path: Path) -> None:
    source = write(tmp_path / "a", inputs=[[1, 2]], targets=[[2, 3]])
    message = r"nothing says which column holds the ids; give --column with one of inputs, targets\. There are inputs \(integers, int64\)"
    with pytest.raises(ValueError, match=message):
        run(source, tmp_path / "out", boundaries="index")
    report = run(source, tmp_path / "out", boundaries="index", column="targets")
    assert documents(tmp_path / "out") == [[2, 3]]
    assert "columns left out: inputs." in report["notes"]


@pytest.mark.parametrize("option", ["column", "ignore"])
def test_a_column_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path, option: str) -> None:
    source = write(tmp_path / "a", input_ids=[[1, 2]])
    value: Any = "input_id" if option == "column" else ("input_id",)
    with pytest.raises(
        ValueError, match=r"there is no column 'input_id'; there are input_ids .* Did you mean 'input_ids'\?"
    ):
        run(source, tmp_path / "out", boundaries="index", **{option: value})


@pytest.mark.parametrize("name", ["position_ids", "token_type_ids", "ids_position", "other_segmentation"])
def test_columns_that_are_derived_are_no_candidates(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "a", **{"ids": [[5, 6]], name: [[0, 1]]})
    report = run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[5, 6]]
    assert f"columns left out: {name}." in report["notes"]


@pytest.mark.parametrize("option", ["column", "ignore"])
def test_columns_are_refused_where_a_layout_has_none(tmp_path: Path, option: str) -> None:
    np.array([1, 2], dtype="<u2").tofile(tmp_path / "a.bin")
    with pytest.raises(ValueError, match=f"--{option} is given, but its layout has no columns: leave it out"):
        run(tmp_path / "a.bin", tmp_path / "out", dtype="uint16", boundaries="none", **{option: ("x",)})


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("int32", "dtype is int32, but the column 'ids' holds int64: leave it out"),
        ("float32", "dtype is 'float32', expected one of numpy's little-endian integer types"),
        (">i8", "dtype is '>i8', expected one of"),
        ("nothing", "dtype is 'nothing', expected one of"),
    ],
)
def test_a_dtype_that_does_not_fit_is_refused(tmp_path: Path, dtype: str, message: str) -> None:
    source = write(tmp_path / "a", ids=[[1]])
    with pytest.raises(ValueError, match=message):
        run(source, tmp_path / "out", boundaries="index", dtype=dtype)
    run(source, tmp_path / "out", boundaries="index", dtype="int64")
    assert documents(tmp_path / "out") == [[1]]


# --- padding


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 9), max_size=5), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6
    )
)
def test_padding_before_and_behind_is_dropped(rows: list[tuple[list[int], int, int]]) -> None:
    ids = [[0] * before + row + [0] * behind for row, before, behind in rows]
    mask = [[0] * before + [1] * len(row) + [0] * behind for row, before, behind in rows]
    found = documents_of(rows_of(ids=ids, attention_mask=mask), Choice(tokens="ids", mask="attention_mask"))
    assert lists(found.tokens, found.lengths) == [row for row, _, _ in rows]
    assert found.dropped == sum(before + behind for _, before, behind in rows)


@pytest.mark.parametrize("mask", [[1, 0, 1], [0, 1, 0, 1], [1, 0, 0, 1]])
def test_a_mask_with_zeros_between_its_ones_is_refused_by_its_row(mask: list[int]) -> None:
    rows = rows_of(ids=[[], [1, 1], [3] * len(mask), [4]], attention_mask=[[], [0, 1], mask, [1]])
    with pytest.raises(
        nc.FormatError, match=r"file: row 12: attention_mask has zeros between its ones.* --ignore attention_mask"
    ):
        documents_of(rows, Choice(tokens="ids", mask="attention_mask"))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[1], [1, 2]], "row 11, position 1: attention_mask is 2, expected 0 or 1"),
        ([[1], [1]], "row 11: attention_mask has 1 values for 2 ids"),
    ],
)
def test_a_mask_that_is_none_is_refused_by_its_place(mask: list[list[int]], message: str) -> None:
    with pytest.raises(nc.FormatError, match=f"file: {message}"):
        documents_of(rows_of(ids=[[1], [2, 3]], attention_mask=mask), Choice(tokens="ids", mask="attention_mask"))


def test_a_mask_can_be_ignored(tmp_path: Path) -> None:
    source = write(tmp_path / "a", ids=[[1, 2, 3]], attention_mask=[[1, 0, 1]])
    with pytest.raises(nc.FormatError, match="zeros between its ones"):
        run(source, tmp_path / "out", boundaries="index")
    report = run(source, tmp_path / "out", boundaries="index", ignore=("attention_mask",), restart=True)
    assert documents(tmp_path / "out") == [[1, 2, 3]]
    assert "columns left out: attention_mask." in report["notes"]


def test_padding_may_be_no_id(tmp_path: Path) -> None:
    source = write(tmp_path / "a", ids=[[1, 2, -1]], attention_mask=[[1, 1, 0]], labels=[[-100, 2, -1]])
    run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[1, 2]]
    assert masks(tmp_path / "out") == [[False, True]]


# --- loss


@pytest.mark.parametrize("labels", [[[2, 3, 4]], [[1, 2, -1]], [[1, 0, 3]]])
def test_labels_of_another_meaning_are_refused_by_their_place(tmp_path: Path, labels: list[list[int]]) -> None:
    source = write(tmp_path / "a", ids=[[1, 2, 3]], labels=labels)
    with pytest.raises(
        nc.FormatError, match=r"row 0, position \d: the label is -?\d, expected the id \d or -100: .*--ignore labels"
    ):
        run(source, tmp_path / "out", boundaries="index")
    run(source, tmp_path / "out", boundaries="index", ignore=("labels",), restart=True)
    assert nc.open_corpus(tmp_path / "out").fields == {}


def test_labels_are_not_shifted(tmp_path: Path) -> None:
    """Label i is of id i, as transformers' models have it, which shift inside: so the mask is of the id, too."""
    run(write(tmp_path / "a", ids=[[5, 6, 7]], labels=[[-100, -100, 7]]), tmp_path / "out", boundaries="index")
    assert masks(tmp_path / "out") == [[False, False, True]]


def test_a_loss_mask_is_taken_as_it_is(tmp_path: Path) -> None:
    run(write(tmp_path / "a", ids=[[5, 6], [7]], loss_mask=[[0, 1], [1]]), tmp_path / "out", boundaries="index")
    assert masks(tmp_path / "out") == [[False, True], [True]]
    both = write(tmp_path / "b", ids=[[5]], labels=[[5]], loss_mask=[[1]])
    with pytest.raises(ValueError, match="it has the columns labels and loss_mask: give --ignore for all but one"):
        run(both, tmp_path / "other", boundaries="index")


# --- segments


def test_packed_rows_are_cut_where_their_segments_change(tmp_path: Path) -> None:
    source = write(
        tmp_path / "a",
        inputs=[[5, 6, 7, 8, 0, 0], [9, 9, 9, 9, 9, 0], [0] * 6],
        inputs_segmentation=[[1, 1, 2, 3, 0, 0], [1, 1, 1, 1, 1, 0], [0] * 6],
        inputs_position=[[0, 1, 0, 0, 0, 0], [0, 1, 2, 3, 4, 0], [0] * 6],
        labels=[[5, -100, 7, 8, 0, 0], [9, 9, 9, 9, -100, 0], [0] * 6],
    )
    for told in (None, "index", "none"):
        with pytest.raises(
            ValueError, match="its rows are packed, as inputs_segmentation says: give --boundaries segments"
        ):
            run(source, tmp_path / "out", boundaries=told)
    run(source, tmp_path / "out", boundaries="segments")
    assert documents(tmp_path / "out") == [[5, 6], [7], [8], [9] * 5]
    assert masks(tmp_path / "out") == [[True, False], [True], [True], [True] * 4 + [False]]


def test_segments_need_their_column(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="boundaries is 'segments', but there is no column ids_segmentation"):
        run(write(tmp_path / "a", ids=[[1]]), tmp_path / "out", boundaries="segments")


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=8), min_size=1, max_size=5))
def test_segments_are_runs_of_equal_numbers_in_a_row(rows: list[list[tuple[int, int]]]) -> None:
    expected = []
    for row in rows:
        before = 0
        for segment, token in row:
            if segment and segment != before:
                expected.append([token])
            elif segment:
                expected[-1].append(token)
            before = segment
    found = documents_of(
        rows_of(ids=[[t for _, t in row] for row in rows], s=[[s for s, _ in row] for row in rows]),
        Choice(tokens="ids", segments="s"),
    )
    kept = [s for row in rows for s, _ in row if s]
    if all(
        a == 0 or b != 0 for row in rows for (a, _), (b, _) in zip(row[1:], row, strict=False)
    ):  # padding at the end
        assert lists(found.tokens, found.lengths) == expected
    assert len(found.tokens) == len(kept)


# --- where documents begin


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("index", DOCUMENTS),
        ("eos:3", [[7, 1, 300, 2, 65535, 3], [3], [3], [9, 4, 5]]),
        ("bos:3", [[7, 1, 300, 2, 65535], [3], [3], [3, 9, 4, 5]]),
        ("eos:300", [[7, 1, 300], [2, 65535, 3, 3, 3, 9, 4, 5]]),
        ("bos:7", [[7, 1, 300, 2, 65535, 3, 3, 3, 9, 4, 5]]),
        ("eos:05", [[7, 1, 300, 2, 65535, 3, 3, 3, 9, 4, 5]]),
        ("fixed:4", [[7, 1, 300, 2], [65535, 3, 3, 3], [9, 4, 5]]),
        ("none", [[7, 1, 300, 2, 65535, 3, 3, 3, 9, 4, 5]]),
    ],
)
@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("files", [1, 4])
def test_rows_are_documents_or_joined_and_cut_by_the_rule_that_is_told(
    tmp_path: Path, rule: str, expected: list[list[int]], size: int, files: int
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    share = len(DOCUMENTS) // files
    for number in range(files):
        rows = DOCUMENTS[number * share : (number + 1) * share]
        labels = [[token if token != 3 else -100 for token in row] for row in rows]
        write(folder / f"part-{number}", ids=rows, labels=labels)
    run(folder, tmp_path / "out", boundaries=rule, tokens_per_shard=size)
    assert documents(tmp_path / "out") == expected
    assert masks(tmp_path / "out") == [[token != 3 for token in row] for row in expected]


def test_a_rule_that_finds_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(nc.FormatError, match="the id 8 does not occur in 3 tokens"):
        run(write(tmp_path / "a", ids=[[1, 2, 3]]), tmp_path / "out", boundaries="eos:8")


@pytest.mark.parametrize("rule", ["eos", "fixed:0", "every:3", "eos:-1"])
def test_a_rule_that_is_none_is_refused(tmp_path: Path, rule: str) -> None:
    with pytest.raises(ValueError, match=f"boundaries is '{rule}', expected one of index, segments, eos:ID, bos:ID"):
        run(write(tmp_path / "a", ids=[[1, 2, 3]]), tmp_path / "out", boundaries=rule)


def test_a_rule_that_is_not_told_is_asked_for_with_the_evidence(tmp_path: Path) -> None:
    source = write(tmp_path / "a", ids=[[1, 2, 9], [1, 3, 9], [1, 4, 4], []])
    message = (
        r"nothing says whether a row is a document or a packed block; give --boundaries index .*"
        r"The first 4 rows have 0 to 3 ids, the id 9 ends 2 of them, the id 1 begins 3 of them\."
    )
    with pytest.raises(ValueError, match=message):
        run(source, tmp_path / "out")
    with pytest.raises(ValueError, match=r"The first 2 rows all have 2 ids"):
        run(write(tmp_path / "b", ids=[[1, 2], [3, 4]]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_document_that_fills_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from prep.foreign import joined

    monkeypatch.setattr(joined, "_MOST_IN_ONE", 2)
    with pytest.raises(
        ValueError, match=r"boundaries is 'none', but one document of 3 tokens would be held in memory: give fixed:N"
    ):
        run(write(tmp_path / "a", ids=[[1, 2, 3]]), tmp_path / "out", boundaries="none")


def test_an_id_outside_of_the_vocabulary_is_refused_by_its_place(tmp_path: Path) -> None:
    source = write(tmp_path / "a", ids=[[1], [1, 2, 50]])
    with pytest.raises(
        ValueError,
        match=r"a: document 1 of those from row 0 on, position 2: the id 50 is outside of the vocabulary of 50 ids",
    ):
        run(source, tmp_path / "out", boundaries="index", vocab_size=50)
