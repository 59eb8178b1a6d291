"""Documents that are ids already: from lines of JSON, arrays of JSON, Parquet and Arrow; what is no list of ids is refused by its place, or left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep.readers.documents import Tally
from prep.readers.ids import read_id_batches
from prep.readers.inputs import cut, find_inputs

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
LISTS = [[n, 2 * n, 70_000 + n][: n % 4] for n in range(300)]
KINDS = [pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.uint32()), pa.list_(pa.uint64())]


def read(path: Path, task_bytes: int = 1 << 20, on_bad: str = "error", **more: Any) -> list[list[int]]:
    """Return the ids of all documents, in order."""
    parts = [part for task in cut(find_inputs([str(path)]), "file", task_bytes) for part in task]
    batches = [
        batch
        for part in parts
        for batch in read_id_batches(part, key="ids", on_bad=on_bad, **({"tally": Tally()} | more))
    ]
    assert all(ids.dtype.kind in "iu" for batch in batches for ids in batch.texts)
    return [ids.tolist() for batch in batches for ids in batch.texts]


def write(path: Path, lists: Any, kind: Any = None) -> Path:
    """Write lists as the suffix says."""
    if path.suffix == ".parquet":
        parquet.write_table(_table(lists, kind), path, row_group_size=37)
    elif path.suffix == ".arrow":
        content = _table(lists, kind)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
            writer.write_table(content, max_chunksize=37)
    elif path.suffix == ".json":
        path.write_text(json.dumps([{"ids": ids} for ids in lists], indent=1))
    else:
        text = "".join(json.dumps({"ids": ids}) + "\n" for ids in lists).encode()
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def _table(lists: Any, kind: Any) -> Any:
    return pa.table({"n": pa.array(range(len(lists))), "ids": pa.array(lists, type=kind or KINDS[0])})


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("task_bytes", [500, 1 << 20])
def test_ids_are_read_as_they_are_however_a_file_is_cut(tmp_path: Path, name: str, task_bytes: int) -> None:
    assert read(write(tmp_path / name, LISTS), task_bytes) == LISTS


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_lists_may_be_of_any_integers(tmp_path: Path, name: str, kind: Any) -> None:
    assert read(write(tmp_path / name, LISTS, kind)) == LISTS


def test_lists_may_be_of_a_fixed_size(tmp_path: Path) -> None:
    lists = [[n, n + 1, n + 2] for n in range(100)]
    assert read(write(tmp_path / "a.arrow", lists, pa.list_(pa.int32(), 3))) == lists
    some = [lists[0], None, *lists[2:]]
    assert read(write(tmp_path / "a.arrow", some, pa.list_(pa.int32(), 3)), on_bad="skip") == [lists[0], *lists[2:]]


@pytest.mark.parametrize("task_bytes", [100, 1 << 20])
def test_lines_are_those_of_the_range_and_places_those_of_the_file(tmp_path: Path, task_bytes: int) -> None:
    path = write(tmp_path / "a.arrow", LISTS)
    places = []
    for (part,) in cut(find_inputs([str(path)]), "file", task_bytes):
        tally = Tally()
        batches = list(read_id_batches(part, key="ids", on_bad="error", tally=tally))
        assert [line for batch in batches for line in batch.lines] == list(range(1, tally.num_lines + 1))
        places += [place for batch in batches for place in batch.places]
    assert places == list(range(300))


BAD = [
    ("null", "the value of 'ids' is NoneType, expected a list of ids"),
    ('"1 2"', "the value of 'ids' is str, expected a list of ids"),
    ("7", "the value of 'ids' is int, expected a list of ids"),
    ("[1, 2.0]", r"'ids'\[1\] is 2\.0, expected an id"),
    ("[true]", r"'ids'\[0\] is true, expected an id"),
    ("[1, null]", r"'ids'\[1\] is null, expected an id"),
    ("[[1]]", r"'ids'\[0\] is \[1\], expected an id"),
    ('[3, "4"]', r"'ids'\[1\] is '4', expected an id"),
    ("[1, 9223372036854775808]", r"'ids'\[1\] is 9223372036854775808, expected an id"),
    ("[99999999999999999999999]", r"'ids'\[0\] is 99999999999999999999999, expected an id"),
]


@pytest.mark.parametrize(("value", "message"), BAD, ids=[value for value, _ in BAD])
@pytest.mark.parametrize("with_orjson", [True, False])
def test_what_is_no_list_of_ids_is_an_error_by_its_line_and_position_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str, with_orjson: bool
) -> None:
    if not with_orjson:
        monkeypatch.setitem(__import__("sys").modules, "orjson", None)
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"ids": [5]}}\r\n\r\n{{"ids": {value}}}\r\n{{"ids": [6]}}')
    with pytest.raises(ValueError, match=rf"a\.jsonl: line 3 \(byte 16\): ({message})\. Mend it"):
        read(path)
    tally = Tally()
    assert read(path, on_bad="skip", tally=tally) == [[5], [6]]
    assert tally.skipped_by_kind == {"type": 1}


def test_other_trouble_with_a_line_has_its_own_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"ids": [1]}\n{"tokens": [1]}\n{"ids": [1\n\xff\n{"ids": []}\n')
    with pytest.raises(
        ValueError, match=r"line 2 .*there is no key 'ids': its keys are tokens; name .* with --ids-key"
    ):
        read(path)
    tally = Tally()
    assert read(path, on_bad="skip", tally=tally) == [[1], []]
    assert tally.skipped_by_kind == {"missing": 1, "json": 1, "encoding": 1}
    assert read(path, on_bad="skip,empty=skip") == [[1]]
    with pytest.raises(ValueError, match=r"line 5 .*its list of ids is empty"):
        read(path, on_bad="skip,empty=error")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_nulls_of_rows_and_in_lists_are_errors_by_row_and_position_or_left_out(tmp_path: Path, name: str) -> None:
    lists: list[Any] = [list(ids) for ids in LISTS]
    lists[40], lists[43], lists[119] = None, [1, 2, None, None], [None]
    path = write(tmp_path / name, lists)
    with pytest.raises(ValueError, match=rf"{name}: row 41: 'ids' is null, expected a list of ids"):
        read(path)
    tally = Tally()
    taken = [ids for ids in LISTS if ids not in (LISTS[40], LISTS[43], LISTS[119])]
    assert [ids for ids in read(path, on_bad="skip", tally=tally) if ids] == [ids for ids in taken if ids]
    assert tally.skipped_by_kind == {"type": 3}
    assert [why for _, _, why in tally.skipped][1:] == [
        "'ids'[2] is null, expected an id",
        "'ids'[0] is null, expected an id",
    ]
    lists[40] = [9]
    write(tmp_path / name, lists)
    with pytest.raises(ValueError, match=rf"{name}: row 44: 'ids'\[2\] is null, expected an id"):
        read(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_empty_lists_follow_their_policy(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [[1], [], [2]])
    assert read(path) == [[1], [], [2]]
    assert read(path, on_bad="empty=skip") == [[1], [2]]
    with pytest.raises(ValueError, match=rf"{name}: row 2: its list of ids is empty"):
        read(path, on_bad="empty=error")


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.list_(pa.bool_()), pa.list_(pa.list_(pa.int32())), pa.int64(), pa.string()],
    ids=str,
)
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_column_of_something_else_is_refused_with_those_that_hold_ids(tmp_path: Path, name: str, kind: Any) -> None:
    path = write(tmp_path / name, [None], kind)
    with pytest.raises(
        ValueError,
        match=r"its column 'ids' holds .*, no lists of integers; columns of lists of integers: none: .*--ids-key",
    ):
        read(path, on_bad="skip")


def test_text_has_no_ids(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1 2 3")
    with pytest.raises(
        ValueError, match=r"a\.txt: it is text, but ids \(--ids-key\) are read from JSON, Parquet and Arrow"
    ):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("count", [1, 2, 37, 38, 299, 300, 301])
def test_a_limit_looks_at_nothing_behind_it(tmp_path: Path, name: str, count: int) -> None:
    lists: list[Any] = [*LISTS[:count], None, *LISTS[count:]]
    tally = Tally()
    path = write(tmp_path / name, lists)
    assert read(path, limit=min(count, 300), tally=tally) == LISTS[:count]
    assert not tally.num_skipped


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_cut_short_at_any_byte_is_refused(tmp_path: Path, name: str) -> None:
    data = write(tmp_path / name, LISTS[:9]).read_bytes()
    for size in range(0, len(data), 3):
        (tmp_path / name).write_bytes(data[:size])
        with pytest.raises(nc.FormatError, match=name):
            read(tmp_path / name)


def test_offsets_of_a_damaged_arrow_file_are_refused(tmp_path: Path) -> None:
    """A list that ends before it begins, or beyond the data, reads memory that is not its own if it is believed."""
    data = write(tmp_path / "a.arrow", [[1, 2], [3, 4]]).read_bytes()
    right = np.array([0, 2, 4], dtype="<i4").tobytes()
    assert data.count(right) == 1
    for wrong in ([0, 5, 4], [0, 2, 1 << 30], [0, -1, 4]):
        (tmp_path / "a.arrow").write_bytes(data.replace(right, np.array(wrong, dtype="<i4").tobytes()))
        with pytest.raises(nc.FormatError, match=r"a\.arrow"):
            read(tmp_path / "a.arrow")
