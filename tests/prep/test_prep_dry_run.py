"""``prepare --dry-run``: what would be read, and an estimate that comes near what is made."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import neutral_core as nc
from prep import cli
from prep.dry_run import dry_run
from prep.pieces import Options
from prep.prepare import prepare
from prep.tokenizers import Settings


def options(folder: Path, **changes: Any) -> Options:
    return Options(
        inputs=(str(folder / "in"),),
        destination=folder / "out",
        tokenizer=Settings(kind="byte", append_eos=True),
        **({"task_bytes": 1 << 20} | changes),
    )


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_bytes(data)


def lines(count: int, length: int) -> bytes:
    return b"".join(json.dumps({"text": f"{n} " + "x" * length}).encode() + b"\n" for n in range(count))


def test_of_a_small_input_the_estimate_is_exact(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"four")
    write(tmp_path, "b.txt", b"and seven")
    found = dry_run(options(tmp_path))
    assert (found["files"], found["bytes"], found["tasks"]) == (2, 13, 1)
    assert (found["documents"], found["tokens"]) == (2, 15)  # 4 + 9 bytes and two EOS
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rule", ["file", "line"])
def test_of_large_files_it_is_near_what_is_made(tmp_path: Path, rule: str) -> None:
    write(tmp_path, "a.jsonl", lines(20_000, 100))
    write(tmp_path, "b.jsonl", lines(5_000, 900))
    write(tmp_path, "c.txt", b"some line of text\n" * 100_000)
    asked = options(tmp_path, documents=rule)
    found = dry_run(asked)
    prepare(asked)
    corpus = nc.open_corpus(tmp_path / "out")
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert found["tokens"] == pytest.approx(corpus.num_tokens, rel=0.05)
    assert found["documents"] == pytest.approx(corpus.num_documents, rel=0.1)
    assert found["corpus_bytes"] == pytest.approx(size, rel=0.1)
    assert found["sample_text_bytes"] < 6_000_000  # of 9 MB


def test_many_files_are_as_many_documents(tmp_path: Path) -> None:
    for number in range(300):
        write(tmp_path, f"{number}.txt", b"x" * (number * 20))
    found = dry_run(options(tmp_path))
    assert found["documents"] == 300
    assert found["tokens"] == pytest.approx(300 * 299 * 10 + 300, rel=0.05)


def test_what_is_compressed_is_a_guess_and_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a.jsonl.gz", gzip.compress(lines(1000, 100)))
    assert cli.main(["prepare", str(tmp_path / "in"), str(tmp_path / "out"), "--tokenizer", "byte", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "nothing was written" in out
    assert "1 files are compressed and taken for 4 times as much text, which is no more than a guess" in out
    assert not (tmp_path / "out").exists()


def test_a_bad_document_of_the_sample_is_found(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", b'{"text": "fine"}\n{"body": "no"}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl: line 2 .*there is no key 'text'"):
        dry_run(options(tmp_path))


def test_an_empty_input_is_no_documents(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", b"")
    found = dry_run(options(tmp_path))
    assert (found["documents"], found["tokens"], found["bytes_per_token"]) == (0, 0, None)
