"""Writing a corpus: equal input gives equal bytes, and what is not finished is not there, whatever stops the writer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from neutral_core import CorpusWriter, Field, open_corpus
from neutral_core.format import files, publish, shard_writer
from neutral_core.format.shard_writer import Schema, ShardWriter

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6], [7, 8, 9, 10]]


def write(folder: Path, documents: list[list[int]] = DOCUMENTS, tokens_per_shard: int = 5) -> Path:
    with CorpusWriter(folder, vocab_size=300, tokens_per_shard=tokens_per_shard) as writer:
        for document in documents:
            writer.add(document)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_shard_is_closed_before_the_document_that_would_exceed_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    assert sorted(content(folder)) == ["dataset.json", "shard-00000.safetensors", "shard-00001.safetensors"]
    tokens = [load_file(folder / f"shard-0000{i}.safetensors")["tokens"].tolist() for i in (0, 1)]
    assert tokens == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


@pytest.mark.parametrize(
    ("documents", "tokens_per_shard", "expected"),
    [
        ([[1], [2, 3, 4], [5]], 2, [[1], [2, 3, 4], [5]]),  # a document larger than a shard has one of its own
        ([[1, 2], [], [], [3]], 2, [[1, 2], [3]]),
        ([[], []], 1, [[]]),
        ([], 1, [[]]),
    ],
)
def test_documents_are_never_split(
    documents: list[list[int]], tokens_per_shard: int, expected: list[list[int]], tmp_path: Path
) -> None:
    folder = write(tmp_path / "c", documents, tokens_per_shard)
    shards = sorted(folder.glob("*.safetensors"))
    assert [load_file(path)["tokens"].tolist() for path in shards] == expected
    corpus = open_corpus(folder)
    assert [corpus.document(i).tolist() for i in range(corpus.num_documents)] == documents


def test_the_manifest_sums_up_the_shards(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    data = json.loads((folder / "dataset.json").read_bytes())
    assert (data["num_documents"], data["num_tokens"], data["vocab_size"]) == (5, 10, 300)
    for entry in data["shards"]:
        raw = (folder / entry["name"]).read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        first, last = json.loads(raw[8:start])["checksums"]["data_offsets"]
        assert entry["num_bytes"] == len(raw)
        assert entry["digest"] == hashlib.sha256(raw[:start] + raw[start + first : start + last]).hexdigest()
    assert [(entry["num_documents"], entry["num_tokens"]) for entry in data["shards"]] == [(3, 5), (2, 5)]


FIELDS = {"token.a": Field(dtype="uint8"), "document.b": Field(dtype="int32"), "ragged.c": Field(dtype="uint8")}


@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(0, 255), max_size=9), max_size=12), st.integers(1, 12), st.integers(1, 5))
def test_add_and_add_many_give_equal_corpora(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], tokens_per_shard: int, chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("equal")
    with CorpusWriter(folder / "one", vocab_size=300, fields=FIELDS, tokens_per_shard=tokens_per_shard) as writer:
        for i, d in enumerate(documents):
            writer.add(d, {"token.a": d, "document.b": i, "ragged.c": d[::2]})
    with CorpusWriter(folder / "many", vocab_size=300, fields=FIELDS, tokens_per_shard=tokens_per_shard) as writer:
        for at in range(0, len(documents), chunk):
            part = documents[at : at + chunk]
            flat = [t for d in part for t in d]
            ragged = [t for d in part for t in d[::2]], [len(d[::2]) for d in part]
            writer.add_many(
                flat,
                [len(d) for d in part],
                {"token.a": flat, "document.b": range(at, at + len(part)), "ragged.c": ragged},
            )
    assert content(folder / "one") == content(folder / "many")


@pytest.mark.parametrize("tokens_per_shard", [3, 100])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token.a": [1] * 7}, r"token\.a: shape is \(7,\), expected \(6,\)"),
        ({"document.b": [1] * 4}, r"document\.b: shape is \(4,\), expected \(3,\)"),
        ({"ragged.c": ([1, 2, 3, 4], [1, 1, 1])}, r"ragged\.c add up to 3 but there are 4 items"),
        ({"ragged.c": ([1, 2, 3], [1, 1, 1, 0])}, r"ragged\.c: 4 numbers of items for 3 documents"),
        ({"token.z": [1] * 6}, r"differ from those declared in token\.z"),
    ],
)
def test_fields_of_many_documents_that_do_not_add_up_are_refused(
    change: dict[str, Any], words: str, tokens_per_shard: int, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"token.a": [1] * 6, "document.b": [1] * 3, "ragged.c": ([1, 2, 3], [1, 1, 1])}
    with CorpusWriter(tmp_path / "c", vocab_size=300, fields=FIELDS, tokens_per_shard=tokens_per_shard) as writer:
        with pytest.raises(ValueError, match=words):
            writer.add_many([1, 2, 3, 4, 5, 6], [2, 2, 2], {**fields, **change})
        writer.add_many([1, 2, 3, 4, 5, 6], [2, 2, 2], fields)
    assert open_corpus(tmp_path / "c").tokens(0, 6).tolist() == [1, 2, 3, 4, 5, 6]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), CorpusWriter(tmp_path / "c", vocab_size=300, tokens_per_shard=1) as writer:
        writer.add([1])
        writer.add([2])
        raise KeyError
    assert not (tmp_path / "c").exists()


def test_a_refused_document_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="position 1: the id 300"),
        CorpusWriter(tmp_path / "c", vocab_size=300) as writer,
    ):
        writer.add([1, 300])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"tokens_per_shard": 0}, "tokens_per_shard is 0, expected a positive"), ({"vocab_size": 0}, "vocab_size is 0")],
)
def test_a_refused_declaration_leaves_nothing(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        CorpusWriter(tmp_path / "c", **{"vocab_size": 300, **arguments})
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "c")


def test_until_it_is_finished_a_corpus_is_not_there(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path / "c", vocab_size=300, tokens_per_shard=1) as writer:
        for _ in range(3):
            writer.add([1])
            with pytest.raises(FileNotFoundError, match="the corpus is not finished"):
                open_corpus(tmp_path / "c")
    assert open_corpus(tmp_path / "c").num_documents == 3


def test_two_writers_at_once_are_refused(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path / "c", vocab_size=300) as writer:
        writer.add([1])
        with pytest.raises(BlockingIOError, match="another process is writing there now"):
            CorpusWriter(tmp_path / "c", vocab_size=300)
    assert open_corpus(tmp_path / "c").num_documents == 1


def test_a_corpus_is_never_overwritten(tmp_path: Path) -> None:
    before = content(write(tmp_path / "c"))
    with pytest.raises(FileExistsError, match="a corpus is never overwritten"):
        write(tmp_path / "c")
    assert content(tmp_path / "c") == before


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="the folder is not empty"):
        write(tmp_path)
    assert content(tmp_path) == {"notes.txt": b"mine"}


KILLED = """
import sys
from neutral_core import CorpusWriter
writer = CorpusWriter(sys.argv[1], vocab_size=300, tokens_per_shard=1)
for _ in range(4):
    writer.add([9, 9, 9])
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_writer_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "c")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(BlockingIOError):
            CorpusWriter(tmp_path / "c", vocab_size=300)
        process.send_signal(signal.SIGKILL)
    assert len(list((tmp_path / "c" / ".partial").iterdir())) >= 4
    with pytest.raises(FileNotFoundError, match="not finished"):
        open_corpus(tmp_path / "c")
    assert content(write(tmp_path / "c")) == content(write(tmp_path / "undisturbed"))


class StopError(Exception):
    """The crash."""


def counting(real: Callable[..., Any], state: dict[str, int], *, after: bool) -> Callable[..., Any]:
    """A function that raises at call number state['at'], before or after doing its work, and at every later one: the process is gone."""

    def call(*args: Any, **kwargs: Any) -> Any:
        state["calls"] += 1
        if state["calls"] > state["at"] or (state["calls"] == state["at"] and not after):
            raise StopError
        result = real(*args, **kwargs)
        if state["calls"] == state["at"]:
            raise StopError
        return result

    return call


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, after: bool) -> dict[str, int]:
    """Let the calls that change what is visible fail from number ``step`` on."""
    state = {"calls": 0, "at": step}
    monkeypatch.setattr(os, "replace", counting(os.replace, state, after=after))
    for module in (files, publish, shard_writer):
        monkeypatch.setattr(module, "fsync_folder", counting(files.fsync_folder, state, after=after))
    return state


@pytest.mark.parametrize("after", [False, True])
def test_an_error_at_any_step_leaves_nothing_or_the_whole_corpus(after: bool, tmp_path: Path) -> None:
    expected = content(write(tmp_path / "undisturbed"))
    outcomes = set()
    for step in range(1, 100):
        folder = tmp_path / f"c{step}"
        with pytest.MonkeyPatch.context() as monkeypatch:
            state = crash_at(monkeypatch, step, after)
            with contextlib.suppress(StopError):
                write(folder)
        if state["calls"] < step:
            break
        if folder.exists():
            assert content(folder) == expected
            outcomes.add("whole")
        else:
            outcomes.add("nothing")
            assert content(write(folder)) == expected
    assert outcomes == {"nothing", "whole"}
    assert step > 8


@pytest.mark.parametrize("after", [False, True])
def test_publication_that_stopped_at_any_step_is_not_visible_and_goes_on(after: bool, tmp_path: Path) -> None:
    expected = content(write(tmp_path / "undisturbed"))
    for step in range(1, 100):
        folder = tmp_path / f"c{step}"
        (folder / ".partial").mkdir(parents=True)
        paths = []
        for index, documents in enumerate((DOCUMENTS[:3], DOCUMENTS[3:])):
            paths.append(folder / ".partial" / f"piece-{index}")
            with ShardWriter(paths[-1], Schema(vocab_size=300)) as writer:
                for document in documents:
                    writer.add(document)
        with pytest.MonkeyPatch.context() as monkeypatch:
            state = crash_at(monkeypatch, step, after)
            with contextlib.suppress(StopError):
                publish.publish(folder, paths, {"tokenizer.json": b"{}"})
        if (folder / "dataset.json").exists():
            assert open_corpus(folder).num_documents == 5
        else:
            with pytest.raises(FileNotFoundError, match="not finished"):
                open_corpus(folder)
        publish.publish(folder, paths, {"tokenizer.json": b"{}"})
        assert content(folder) == {**expected, "tokenizer.json": b"{}"}
        if state["calls"] < step:
            break
    assert step > 6


def test_a_writer_after_a_publication_that_was_killed_leaves_no_shard_of_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", [[1], [2], [3]], 1)
    (folder / "dataset.json").unlink()  # as a process leaves it that is killed after it has moved its shards
    (folder / ".partial").mkdir()
    with pytest.raises(KeyError), CorpusWriter(folder, vocab_size=300):
        raise KeyError
    assert not folder.exists()


def test_a_corpus_that_was_finished_while_the_lock_was_awaited_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = content(write(tmp_path / "other"))["dataset.json"]
    monkeypatch.setattr(publish.fcntl, "flock", lambda *_: (tmp_path / "c" / "dataset.json").write_bytes(finished))
    with pytest.raises(FileExistsError, match="a corpus is never overwritten"):
        CorpusWriter(tmp_path / "c", vocab_size=300)
    assert (tmp_path / "c" / "dataset.json").read_bytes() == finished


def test_publishing_a_missing_shard_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="piece-0"):
        publish.publish(tmp_path / "c", [tmp_path / "piece-0"])


def test_numpy_documents_and_lists_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a")
    with CorpusWriter(tmp_path / "b", vocab_size=300, tokens_per_shard=5) as writer:
        for document in DOCUMENTS:
            writer.add(np.array(document, dtype=np.int32))
    assert content(tmp_path / "a") == content(tmp_path / "b")
