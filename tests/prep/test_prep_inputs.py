"""Which files are read, in which order, and how the work is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep.readers.inputs import cut as cut_inputs
from prep.readers.inputs import find_inputs


def make(folder: Path, *names: str, size: int = 3) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def names(paths: list[Path], glob: str | None = None) -> list[str]:
    return [item.name for item in find_inputs([str(path) for path in paths], glob)]


def test_files_below_a_folder_come_sorted_by_name(tmp_path: Path) -> None:
    make(tmp_path, "b.txt", "a/z.txt", "a.txt", "B.txt", "a/b/c.jsonl", "d.jsonl.gz", "e.txt.zst")
    assert names([tmp_path]) == ["B.txt", "a.txt", "a/b/c.jsonl", "a/z.txt", "b.txt", "d.jsonl.gz", "e.txt.zst"]


def test_hidden_files_and_those_in_hidden_folders_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", ".b.txt", ".git/c.txt", "d/.e/f.txt")
    assert names([tmp_path]) == ["a.txt"]


def test_a_folder_inside_a_hidden_one_is_read_when_it_is_named(tmp_path: Path) -> None:
    make(tmp_path, ".cache/a.txt")
    assert names([tmp_path / ".cache"]) == ["a.txt"]


def test_other_suffixes_below_a_folder_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.py", "c.bin", "d.gz")
    assert names([tmp_path]) == ["a.txt"]


def test_a_glob_reads_other_suffixes_as_text(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "b.txt", "c/d.py", "c/e.jsonl")
    found = find_inputs([str(tmp_path)], "*.py")
    assert [(item.name, item.kind) for item in found] == [("a.py", "text"), ("c/d.py", "text")]


def test_kind_and_compression_follow_the_name(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.txt.gz", "c.txt.zst", "d.jsonl", "e.jsonl.gz", "f.jsonl.zst")
    assert [(item.kind, item.compression) for item in find_inputs([str(tmp_path)])] == [
        ("text", ""),
        ("text", "gz"),
        ("text", "zst"),
        ("jsonl", ""),
        ("jsonl", "gz"),
        ("jsonl", "zst"),
    ]


def test_files_of_several_folders_are_named_with_their_folder_in_the_order_given(tmp_path: Path) -> None:
    make(tmp_path, "two/a.txt", "one/a.txt")
    assert names([tmp_path / "two", tmp_path / "one"]) == ["two/a.txt", "one/a.txt"]


def test_a_file_of_unknown_suffix_is_refused_with_the_way_to_read_it(tmp_path: Path) -> None:
    make(tmp_path, "a.csv")
    with pytest.raises(ValueError, match=r"a\.csv: the suffix is none of \.txt, .*--glob '\*' to read it as text"):
        find_inputs([str(tmp_path / "a.csv")])


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        find_inputs([str(tmp_path / "no")])


def test_a_folder_without_text_is_refused_with_the_hint(tmp_path: Path) -> None:
    make(tmp_path, "a.csv")
    with pytest.raises(FileNotFoundError, match=r"no file with a known suffix.*--glob PATTERN"):
        find_inputs([str(tmp_path)])
    with pytest.raises(FileNotFoundError, match=r"no file named '\*\.py'"):
        find_inputs([str(tmp_path)], "*.py")


def cut(folder: Path, rule: str, size: int) -> list[list[tuple[str, int, int | None]]]:
    return [
        [(p.input.name, p.start, p.stop) for p in task] for task in cut_inputs(find_inputs([str(folder)]), rule, size)
    ]


def test_small_files_are_put_together_and_large_ones_are_cut(tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "b.txt", "d.txt", "e.txt", size=4)
    make(tmp_path, "c.txt", size=25)
    assert cut(tmp_path, "line", 10) == [
        [("a.txt", 0, None), ("b.txt", 0, None)],
        [("c.txt", 0, 10)],
        [("c.txt", 10, 20)],
        [("c.txt", 20, None)],
        [("d.txt", 0, None), ("e.txt", 0, None)],
    ]


def test_a_compressed_file_counts_for_what_it_may_become(tmp_path: Path) -> None:
    make(tmp_path, "a.txt.gz", "b.txt.gz", "c.txt.gz", "d.txt", size=4)
    assert [[name for name, *_ in task] for task in cut(tmp_path, "line", 36)] == [
        ["a.txt.gz", "b.txt.gz"],
        ["c.txt.gz", "d.txt"],
    ]


@pytest.mark.parametrize(("name", "rule"), [("a.txt", "file"), ("a.txt.gz", "line"), ("a.jsonl.zst", "line")])
def test_what_cannot_be_entered_in_the_middle_is_one_task(tmp_path: Path, name: str, rule: str) -> None:
    make(tmp_path, name, size=25)
    assert cut(tmp_path, rule, 10) == [[(name, 0, None)]]


def test_json_lines_are_cut_whatever_the_rule_for_text_is(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl", size=11)
    assert cut(tmp_path, "file", 10) == [[("a.jsonl", 0, 10)], [("a.jsonl", 10, None)]]
