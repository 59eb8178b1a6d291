"""What becomes of documents that are not as they should be: by kind of trouble, counted, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep.readers.documents import Tally, place_of, read_documents
from prep.readers.inputs import Range, find_inputs
from prep.readers.policies import ACTIONS, actions_of

LINES = {
    "encoding": b'{"text": "a\xffb"}',
    "json": b"{text}",
    "missing": b'{"body": "a"}',
    "type": b'{"text": 5}',
    "empty": b'{"text": ""}',
}


def read(path: Path, on_bad: str, rule: str = "line") -> tuple[list[tuple[str, int]], Tally, Range]:
    part = Range(input=find_inputs([str(path)])[0])
    tally = Tally()
    found = list(read_documents(part, rule=rule, text_key="text", on_bad=on_bad, tally=tally))
    return [(document.text, document.line) for document in found], tally, part


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Line 1 is good, then one line of each kind of trouble, the last is good."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b'{"text": "first"}', *LINES.values(), b'{"text": "last"}']))
    return path


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("error", {}),
        ("skip", dict.fromkeys(("encoding", "json", "missing", "type"), "skip")),
        ("encoding=keep,missing=skip,empty=skip", {"encoding": "keep", "missing": "skip", "empty": "skip"}),
        ("json=error, skip", dict.fromkeys(("encoding", "missing", "type"), "skip")),
        ("skip,empty=error", {**dict.fromkeys(("encoding", "json", "missing", "type"), "skip"), "empty": "error"}),
    ],
)
def test_an_action_alone_is_that_of_all_kinds_but_empty_and_what_is_named_wins(
    text: str, changed: dict[str, str]
) -> None:
    default = {"encoding": "error", "json": "error", "missing": "error", "type": "error", "empty": "keep"}
    assert actions_of(text) == {**default, **changed}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("skp", "'skp' is not an action without a kind, expected one of error, skip; did you mean skip?"),
        ("keep", "'keep' is not an action without a kind"),
        ("", "'' is not an action without a kind"),
        ("encodin=keep", "'encodin' is not a kind of trouble, .*; did you mean encoding?"),
        ("missing=keep", "'keep' is not an action of missing, expected one of error, skip."),
        ("empty=", "'' is not an action of empty"),
        ("empty=skip,empty=keep", "empty is named twice"),
        ("skip,error", "'skip' and 'error' both stand without a kind"),
    ],
)
def test_a_wrong_policy_is_refused_by_the_word_that_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("?", r"\?")):
        actions_of(text)


@pytest.mark.parametrize("kind", LINES)
def test_each_kind_is_skipped_alone_and_counted_by_its_name(lines: Path, kind: str) -> None:
    others = [f"{other}={'keep' if 'keep' in ACTIONS[other] else 'skip'}" for other in LINES if other != kind]
    place = 2 + list(LINES).index(kind)
    documents, tally, _ = read(lines, ",".join([*others, f"{kind}=skip"]))
    assert tally.skipped_by_kind[kind] == 1
    assert place not in [line for _, line in documents]
    with pytest.raises(ValueError, match=rf"^a\.jsonl: line {place} \(byte \d+\): .*--on-bad .*--restart"):
        read(lines, ",".join([*others, f"{kind}=error"]))


def test_skip_leaves_out_all_but_empty_texts(lines: Path) -> None:
    documents, tally, _ = read(lines, "skip")
    assert documents == [("first", 1), ("", 6), ("last", 7)]
    assert tally.num_skipped == 4
    assert tally.skipped_by_kind == {"encoding": 1, "json": 1, "missing": 1, "type": 1}


def test_kept_bytes_that_are_no_utf_8_become_replacement_characters_and_are_counted(lines: Path) -> None:
    documents, tally, part = read(lines, "skip,encoding=keep")
    assert documents == [("first", 1), ("a\ufffdb", 2), ("", 6), ("last", 7)]
    assert tally.num_mended == 1
    assert "encoding" not in tally.skipped_by_kind
    [(at, number, why)] = tally.mended
    assert place_of(part, at, number) == "a.jsonl: line 2 (byte 18)"
    assert why == "byte 11 of the document, 0xff, is not UTF-8"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb'{"text": "a\ud800b"}', "a\ufffdb"),
        (rb'{"text": "\udc00\ud83d\ude00"}', "\ufffd\U0001f600"),
        (b'{"text": "\xe2\x82", "id": "\xff"}', "\ufffd"),  # one character that was cut short
        (b'{"text": "fine", "id": "\xff"}', "fine"),
    ],
)
def test_half_a_surrogate_pair_and_a_cut_character_are_kept_as_one_replacement(
    tmp_path: Path, line: bytes, expected: str
) -> None:
    (tmp_path / "a.jsonl").write_bytes(line)
    documents, tally, _ = read(tmp_path / "a.jsonl", "encoding=keep")
    assert documents == [(expected, 1)]
    assert tally.num_mended == 1


@pytest.mark.parametrize("other", ["json", "missing", "type"])
def test_a_line_with_another_trouble_beside_its_encoding_is_no_kept_one(tmp_path: Path, other: str) -> None:
    line = {"json": b"{\xff}", "missing": b'{"body": "\xff"}', "type": b'{"text": ["\xff"]}'}[other]
    (tmp_path / "a.jsonl").write_bytes(line)
    documents, tally, _ = read(tmp_path / "a.jsonl", "skip,encoding=keep")
    assert documents == []
    assert tally.skipped_by_kind == {other: 1}
    assert tally.num_mended == 0


@pytest.mark.parametrize("rule", ["file", "line", "blank-line"])
def test_text_files_are_mended_too(tmp_path: Path, rule: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\xff\xfeb")
    assert read(tmp_path / "a.txt", "encoding=keep", rule)[0] == [("a\ufffd\ufffdb", 1)]


def test_an_empty_file_is_an_empty_document_that_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    assert read(tmp_path / "a.txt", "error", "file")[0] == [("", 1)]
    documents, tally, _ = read(tmp_path / "a.txt", "empty=skip", "file")
    assert documents == []
    assert tally.skipped == [(0, 1, "its text is empty")]


def test_rows_follow_the_same_policies(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = pa.array([b"a", None, b"", b"b\xff"], type=pa.binary()).view(pa.string())
    parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    documents, tally, part = read(tmp_path / "a.parquet", "skip,empty=skip,encoding=keep")
    assert documents == [("a", 1), ("b\ufffd", 4)]
    assert tally.skipped_by_kind == {"type": 1, "empty": 1}
    assert [place_of(part, at, number) for at, number, _ in tally.skipped] == ["a.parquet: row 2", "a.parquet: row 3"]
