"""Plans from plain data: every key means the argument of its name, and what is no key is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("books", 900), ("web", 1500)):
        with nc.CorpusWriter(tmp_path / name, vocab_size=2000) as writer:
            for start in range(0, count, 30):
                writer.add(np.arange(start, start + 30))
    (tmp_path / "old.bin").write_bytes(np.arange(700, dtype="<u2").tobytes())
    return tmp_path


FULL: dict[str, Any] = {
    "seq_len": 8,
    "seed": 3,
    "shuffle": "blocks",
    "chunk_windows": 4,
    "group_chunks": 2,
    "document_shuffle": True,
    "documents": True,
    "extra_tokens": 1,
    "sources": [
        {"path": "books", "name": "books", "weight": "0.7", "max_epochs": 30},
        {"path": "web", "name": "web", "weight": 0.3, "documents": [10, 40]},
        {"path": "old.bin", "name": "old", "weight": 0, "dtype": "uint16", "boundaries": "fixed:7"},
    ],
    "phases": [{"sample": 100, "weights": {"web": 1, "old": "1e-1"}}],
    "skip": [[10, 20], [150, 160]],
}


def test_each_key_is_the_argument_of_its_name(folder: Path) -> None:
    plan = nc.load_plan(json.loads(json.dumps(FULL)), folder=folder)
    by_hand = nc.Plan(
        [
            nc.Source(nc.open_corpus(folder / "books"), name="books", weight="0.7", max_epochs=30),
            nc.Source(nc.open_corpus(folder / "web"), name="web", weight="0.3", documents=slice(10, 40)),
            nc.Source(nc.open_corpus(folder / "old.bin", dtype="uint16", boundaries="fixed:7"), name="old", weight=0),
        ],
        seq_len=8,
        seed=3,
        shuffle="blocks",
        chunk_windows=4,
        group_chunks=2,
        document_shuffle=True,
        documents=True,
        extra_tokens=1,
        phases=[nc.Phase(100, {"web": 1, "old": 0.1})],
        skip=[(10, 20), (150, 160)],
    )
    assert plan.fingerprint == by_hand.fingerprint
    assert plan.skips.runs == ((10, 20), (150, 160))
    assert plan.sources[0].max_epochs == 30
    rows, expected = plan.read(np.arange(400)), by_hand.read(np.arange(400))
    assert all(np.array_equal(rows[key], expected[key]) for key in expected)


def test_a_corpus_named_twice_is_opened_once(folder: Path) -> None:
    sources = [{"path": "web", "name": name, "documents": part} for name, part in (("a", [0, 25]), ("b", [25, None]))]
    plan = nc.load_plan({"seq_len": 4, "sources": sources}, folder=folder)
    assert plan.sources[0].corpus is plan.sources[1].corpus
    assert plan.sources[1].documents == (25, 50)


WRONG: list[tuple[Any, str]] = [
    ([], r"the plan is \[\], expected an object with sources, seq_len"),
    ({"sources": []}, "the plan: 'seq_len' is missing"),
    ({"seq_len": 8}, "the plan: 'sources' is missing"),
    (FULL | {"seqlen": 8}, "the plan: 'seqlen' is no key of it.*Did you mean 'seq_len'"),
    (FULL | {"sources": 7}, "the mixture is 7, which is no mixture of any tool that is known"),
    (FULL | {"sources": ["books", {}]}, r"sources\[0\] is 'books', expected an object with path"),
    (FULL | {"split": "train"}, "split is 'train', but sources has no splits"),
    (FULL | {"open": {"layot": "olmo"}}, "open: 'layot' is no key of it.*'layout'"),
    (FULL | {"sources": [{"name": "books"}]}, r"sources\[0\]: 'path' is missing"),
    (FULL | {"sources": [{"path": "books", "wieght": 1}]}, r"sources\[0\]: 'wieght' is no key.*'weight'"),
    (FULL | {"sources": [{"path": 7}]}, r"sources\[0\]: path is 7, expected text"),
    (FULL | {"sources": [{"path": "books", "documents": [1]}]}, r"sources\[0\]: documents is \[1\], expected"),
    (FULL | {"sources": [{"path": "books", "documents": "all"}]}, r"sources\[0\]: documents is 'all', expected a list"),
    (FULL | {"phases": [{"sample": 5}]}, r"phases\[0\]: 'weights' is missing"),
    (FULL | {"phases": [{"sample": 5, "weights": {"wbe": 1}}]}, "from sample 5 on names the source 'wbe'.*'web'"),
    (FULL | {"phases": [{"sample": 5, "weights": 1}]}, "from sample 5 on: weights is int, expected a dict"),
    (FULL | {"skip": [[5]]}, r"skip holds \(5,\), expected a pair"),
    (FULL | {"skip": 5}, "skip is 5, expected a list"),
    (FULL | {"seq_len": "8"}, "seq_len is '8', expected an integer"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_wrong_is_named_with_its_place(folder: Path, number: int) -> None:
    data, message = WRONG[number]
    with pytest.raises((ValueError, TypeError), match=message):
        nc.load_plan(data, folder=folder)


def test_a_missing_corpus_is_named(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        nc.load_plan({"seq_len": 8, "sources": [{"path": "nowhere"}]}, folder=folder)
