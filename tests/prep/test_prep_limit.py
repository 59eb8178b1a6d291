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
    standard: dict[str, Any] = {"destination": folder / f"{name}-out", "task_bytes": 2000, "tokens_per_shard": 3000, "workers": 1}
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
