"""``prepare --limit N``: the corpus is that of a file of the first N documents alone, whatever the inputs are and whoever does the work."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep import cli, prepare
from prep.dry_run import dry_run
from prep.engines.ranks import Rank
from prep.pieces import Options
from prep.tokenizers import Settings

TEXTS = [f"{n} " + "word é " * (n % 13) for n in range(500)]
COUNTS = [1, 2, 37, 249, 250, 251, 499, 500]


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def options(folder: Path, name: str = "in", **changes: Any) -> Options:
    standard: dict[str, Any] = {
        "destination": folder / f"{name}-out",
        "task_bytes": 2000,
        "tokens_per_shard": 3000,
        "workers": 1,
    }
    settings = Settings(kind="byte", append_eos=True)
    return Options(**({"inputs": (str(folder / name),), "tokenizer": settings} | standard | changes))


def make(folder: Path, content: dict[str, bytes], name: str = "in") -> Path:
    (folder / name).mkdir(parents=True)
    for file, data in content.items():
        (folder / name / file).write_bytes(data)
    return folder / name


def content_of(path: Path) -> list[Any]:
    """Return all that shards hold but what they say of their making."""
    corpus = nc.open_corpus(path)
    corpus.verify()
    found: list[Any] = [corpus.num_shards, corpus.vocab_size]
    for number in range(corpus.num_documents):
        found.append((corpus.document(number).tolist(), int(corpus.field("document.line", number))))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path, {"a.jsonl": lines(TEXTS)})
    return tmp_path


@pytest.mark.parametrize("count", COUNTS)
def test_the_corpus_is_that_of_a_file_of_the_first_documents(folder: Path, count: int) -> None:
    make(folder, {"a.jsonl": lines(TEXTS[:count])}, "few")
    report = prepare.prepare(options(folder, limit=count))
    prepare.prepare(options(folder, "few"))
    assert content_of(folder / "in-out") == content_of(folder / "few-out")
    assert report["corpora"][0]["documents"] == count
    assert f"--limit: the first {count:,} documents of the inputs alone." in report["notes"]


@pytest.mark.parametrize("count", [1, 60, 499])
@pytest.mark.parametrize("rule", ["line", "blank-line", "file"])
def test_text_is_limited_by_documents_of_its_rule(tmp_path: Path, rule: str, count: int) -> None:
    texts = [text.replace("\n", " ") for text in TEXTS]
    end = {"line": "\n", "blank-line": "\r\n\r\n", "file": ""}[rule]
    names = [f"{number:03}.txt" for number in range(500)] if rule == "file" else ["a.txt"] * 500

    def files(number: int) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, text in zip(names[:number], texts, strict=False):
            found[name] = found.get(name, b"") + f"{text}{end}".encode()
        return found

    make(tmp_path, files(500))
    make(tmp_path, files(count), "few")
    prepare.prepare(options(tmp_path, documents=rule, limit=count))
    prepare.prepare(options(tmp_path, "few", documents=rule))
    assert content_of(tmp_path / "in-out") == content_of(tmp_path / "few-out")


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("count", [1, 250, 499])
def test_other_kinds_of_files_are_limited_likewise(tmp_path: Path, name: str, count: int) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines(TEXTS)))
    elif name.endswith(".json"):
        path.write_text(json.dumps([{"text": text} for text in TEXTS]))
    elif name.endswith(".parquet"):
        parquet.write_table(pa.table({"text": TEXTS}), path, row_group_size=30)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema({"text": pa.string()})) as writer:
            writer.write_table(pa.table({"text": TEXTS}), max_chunksize=30)
    prepare.prepare(options(tmp_path, limit=count))
    corpus = nc.open_corpus(tmp_path / "in-out")
    found = [corpus.document(n)[:-1].astype(np.uint8).tobytes().decode() for n in range(corpus.num_documents)]
    assert found == TEXTS[:count]


def test_what_is_left_out_does_not_count_and_what_is_behind_is_not_looked_at(tmp_path: Path) -> None:
    bad = b'{"text": 7}\n'
    make(tmp_path, {"a.jsonl": lines(TEXTS[:3]) + bad + b"\n" + lines(TEXTS[3:5]) + bad + b"\n" + lines(TEXTS[5:])})
    report = prepare.prepare(options(tmp_path, on_bad="skip", limit=5))
    assert (report["corpora"][0]["documents"], report["skipped"], report["empty_lines"]) == (5, 1, 1)
    prepare.prepare(options(tmp_path, limit=3, destination=tmp_path / "three"))  # the bad line is behind them
    with pytest.raises(ValueError, match=r"a\.jsonl: line 4 .*'text' is int"):
        prepare.prepare(options(tmp_path, limit=4, destination=tmp_path / "four"))


def test_fewer_documents_than_the_limit_are_all_and_it_is_said(folder: Path) -> None:
    report = prepare.prepare(options(folder, limit=501))
    assert report["corpora"][0]["documents"] == 500
    assert "--limit is 501, but the inputs have no more than 500 documents." in report["notes"]


def test_the_limit_is_of_both_sides_of_a_split_and_of_the_characters_that_occur(tmp_path: Path) -> None:
    make(tmp_path, {"a.jsonl": lines(["ab", "cd", "ef", "gh" * 5000])})
    report = prepare.prepare(options(tmp_path, limit=3, validation="0.5", tokenizer=Settings(kind="char")))
    assert sum(entry["documents"] for entry in report["corpora"]) == 3
    assert nc.open_corpus(tmp_path / "in-out" / "train").vocab_size == 6


@pytest.mark.parametrize("count", [100, 499])
def test_ranks_and_workers_make_the_same_bytes(folder: Path, count: int) -> None:
    prepare.prepare(options(folder, limit=count))
    prepare.prepare(options(folder, limit=count, workers=2, destination=folder / "two"))
    for rank in (2, 0, 1):
        prepare.prepare(options(folder, limit=count, destination=folder / "ranks", rank=Rank(rank=rank, world_size=3)))
    fingerprints = {nc.open_corpus(folder / name).fingerprint for name in ("in-out", "two", "ranks")}
    assert len(fingerprints) == 1


def test_a_rerun_with_another_limit_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prepare, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare(options(folder, limit=7))
    with pytest.raises(FileExistsError, match="with other limit"):
        prepare.prepare(options(folder, limit=8))
    prepare.prepare(options(folder, limit=7))
    assert nc.open_corpus(folder / "in-out").num_documents == 7


def test_a_dry_run_estimates_what_the_limit_leaves(folder: Path) -> None:
    whole, some = dry_run(options(folder)), dry_run(options(folder, limit=50))
    assert some["documents"] == 50
    assert some["tokens"] == pytest.approx(whole["tokens"] / 10, rel=0.05)


def test_a_limit_is_positive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="limit is 0, expected a positive number of documents"):
        prepare.prepare(options(folder, limit=0))
    arguments = ["prepare", str(folder / "in"), str(folder / "out"), "--tokenizer", "byte"]
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--limit", "0"])
    assert cli.main([*arguments, "--limit", "5"]) == 0
    assert "5 documents" in capsys.readouterr().out
