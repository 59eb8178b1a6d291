"""The survey of a corpus, and the page that shows it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc
from prep import cli
from prep.pieces import ORIGIN_FIELDS
from prep.report_page import page
from prep.survey import survey


def corpus_of(folder: Path, documents: list[tuple[str, list[int]]]) -> nc.Corpus:
    """Write documents with the file that each came from."""
    with nc.CorpusWriter(folder, vocab_size=300, fields=ORIGIN_FIELDS) as writer:
        for path, ids in documents:
            origin = np.frombuffer(path.encode(), dtype=np.uint8)
            writer.add(ids, {"document.line": np.int64(1), "ragged.path": origin})
    return nc.open_corpus(folder)


class Page(HTMLParser):
    """Collect what a page loads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "onload", "onclick")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_lengths_are_counted_by_powers_of_two_at_their_edges(tmp_path: Path) -> None:
    lengths = [0, 1, 2, 3, 4, 7, 8, 8, 15, 16]
    found = survey(corpus_of(tmp_path / "c", [("a", [1] * length) for length in lengths]))
    assert found["lengths"] == [1, 1, 2, 2, 3, 1]  # 0 | 1 | 2, 3 | 4, 7 | 8, 8, 15 | 16


def test_frequencies_begin_with_the_most_frequent_id(tmp_path: Path) -> None:
    found = survey(corpus_of(tmp_path / "c", [("a", [7] * 5 + [9] * 3 + [200])]))
    assert found["frequencies"] == [[1, 5], [2, 3], [3, 1]]
    assert (found["ids"], found["frequencies_over_tokens"]) == (3, 9)


def test_sources_are_the_files_that_documents_came_from(tmp_path: Path) -> None:
    found = survey(corpus_of(tmp_path / "c", [("a.txt", [1, 2]), ("b.txt", [3] * 9), ("a.txt", [4])]))
    assert found["sources"] == [
        {"source": "b.txt", "documents": 1, "tokens": 9},
        {"source": "a.txt", "documents": 2, "tokens": 3},
    ]


def test_very_many_files_are_counted_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prep.survey._SOURCES", 4)
    monkeypatch.setattr("prep.survey._DOCUMENTS", 5)  # files are folded before all have been seen
    documents = [(f"{folder}/{name}.txt", [1]) for folder in ("x/deep", "y") for name in range(9)]
    found = survey(corpus_of(tmp_path / "c", documents))
    assert found["sources"] == [
        {"source": "x", "documents": 9, "tokens": 9},
        {"source": "y", "documents": 9, "tokens": 9},
    ]


def test_the_page_loads_nothing_and_escapes_names(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    corpus = corpus_of(tmp_path / "c", [(name, [1, 2, 3])])
    entry = {"path": name, "documents": 1, "tokens": 3, "lines": [name], **survey(corpus)}
    found = Page(page([entry], name, skipped={name: 4}))
    assert found.loads == []
    assert sum(name in text for text in found.texts) >= 4


def test_bytes_per_token_are_shown_where_they_are_known(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "c", [("a", [1, 2, 3, 4]), ("b", [1])])
    entry = {"path": "c", "documents": 2, "tokens": 5, "lines": [], **survey(corpus)}
    entry["sources"][0]["text_bytes"] = 10
    texts = Page(page([entry], "c")).texts
    assert "bytes per token" in texts
    assert "2.500" in texts
    assert "–" in texts


def test_inspect_writes_the_page_also_of_an_empty_corpus(tmp_path: Path) -> None:
    for name, documents in (("full", [("a", [5, 6, 6])]), ("empty", [])):
        corpus_of(tmp_path / name, documents)
        assert cli.main(["inspect", str(tmp_path / name), "--report", str(tmp_path / f"{name}.html")]) == 0
        found = Page((tmp_path / f"{name}.html").read_text("utf-8"))
        assert any(
            f"{len(documents)} documents, {sum(len(ids) for _, ids in documents)} tokens, " in text
            for text in found.texts
        )
        assert not found.loads


def test_prepare_writes_the_page_with_bytes_per_token_and_what_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b'{"text": "four"}\n{"text": "\xff"}\n{"body": 1}\n')
    (tmp_path / "in" / "b.txt").write_text("some text")
    arguments = ["prepare", str(tmp_path / "in"), str(tmp_path / "out"), "--tokenizer", "byte", "--on-bad"]
    page_file = tmp_path / "page.html"
    assert cli.main([*arguments, "skip,encoding=keep", "--append-eos", "--report", str(page_file)]) == 0
    found = Page(page_file.read_text("utf-8"))
    assert found.loads == []
    assert {"a.jsonl", "b.txt", "missing", "bytes per token"} <= set(found.texts)
    assert "0.900" in found.texts  # of b.txt: 9 bytes, 10 tokens with EOS
    assert "0.778" in found.texts  # of a.jsonl: 4 bytes and the 3 of U+FFFD, 9 tokens with two EOS


def test_policies_by_kind_are_said_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\xff"}\nno\n{"body": 1}\n{"text": 3}\n{"text": ""}\n{"text": "x"}\n')
    arguments = ["prepare", str(tmp_path / "a.jsonl"), str(tmp_path / "out"), "--tokenizer", "byte"]
    assert cli.main([*arguments, "--on-bad", "skip,encoding=keep,empty=skip"]) == 0
    out = capsys.readouterr().out
    assert "1 documents kept with U+FFFD" in out
    assert "4 bad documents left out (empty 1, json 1, missing 1, type 1)" in out
    assert nc.open_corpus(tmp_path / "out").num_documents == 2
