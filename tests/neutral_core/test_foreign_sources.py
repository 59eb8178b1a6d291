"""Mixtures that other tools wrote down: the shapes of their files, and what is wrong with some."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core.foreign_sources import foreign_sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("books", 90), ("web", 150)):
        with nc.CorpusWriter(tmp_path / name, vocab_size=2000) as writer:
            for number in range(count):
                writer.add(np.full(10, number))
    return tmp_path


def found(data: Any, **options: Any) -> list[tuple[str, Any]]:
    return [(each.name, each.weight) for each in foreign_sources(data, **options)]


HALF = Fraction(1, 2)
MEMMAP_A = {"type": "memmap", "path": "a"}
MEMMAP_B = {"type": "memmap", "path": "b", "num_documents": 5, "num_tokens": 50}
BLEND = {"type": "blended", "datasets": [MEMMAP_A, MEMMAP_B], "weights": [30, 70]}

SHAPES: list[tuple[Any, list[tuple[str, Any]]]] = [
    ("0.3 a 0.7 b", [("a", Fraction(3, 10)), ("b", Fraction(7, 10))]),
    (["0.3", "a", "0.7", "b"], [("a", Fraction(3, 10)), ("b", Fraction(7, 10))]),
    ([30, "a", 70, "b"], [("a", 30), ("b", 70)]),
    (["a", "b"], [("a", None), ("b", None)]),
    ("a", [("a", None)]),
    ("a\nsub/b\n\n", [("a", None), ("sub/b", None)]),
    ("# a mix\nweb,x/part-0.npy\nweb , x/part-1.npy # the last\n", [("x/part-0.npy", None), ("x/part-1.npy", None)]),
    (
        {
            "datasets": [
                {"prefix": "a", "num_documents": 1, "num_tokens": 9, "weight": 0.25},
                {"prefix": "b", "weight": 1},
            ]
        },
        [("a", Fraction(1, 4)), ("b", 1)],
    ),
    (MEMMAP_A, [("a", None)]),
    ({"config": BLEND, "metadata": {"num_tokens": 7}}, [("a", 30), ("b", 70)]),
    (BLEND, [("a", 30), ("b", 70)]),
    (
        {"type": "blended", "datasets": [BLEND, {"type": "memmap", "path": "c"}], "weights": [0.5, 0.5]},
        [("a", Fraction(15, 100)), ("b", Fraction(35, 100)), ("c", HALF)],
    ),
    ({"type": "slice", "dataset": MEMMAP_A, "begin": 0, "end": 0.5}, [("a [0.0:0.5]", None)]),
    (
        {"type": "slice", "dataset": {"type": "slice", "dataset": MEMMAP_A, "begin": 0.5}, "begin": 0.5, "end": 0.75},
        [("a [0.75:0.875]", None)],
    ),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_each_shape_gives_its_paths_and_exact_weights(number: int) -> None:
    data, expected = SHAPES[number]
    assert found(data) == expected


def test_splits_are_asked_for() -> None:
    data = {"train": ["1", "a", "3", "b"], "valid": ["c"], "test": None}
    assert found(data, split="train") == [("a", 1), ("b", 3)]
    assert found(data, split="valid") == [("c", None)]
    with pytest.raises(
        ValueError, match="the mixture has the splits train, valid, test: say which, split=None is none"
    ):
        foreign_sources(data)
    with pytest.raises(ValueError, match="split is 'train', but the mixture has no splits"):
        foreign_sources(["a"], split="train")


WRONG: list[tuple[Any, str]] = [
    ([], "the mixture has no sources"),
    ("", "the mixture has no sources"),
    ({"datasets": []}, "the mixture has no sources"),
    (None, "the mixture is None, which is no mixture of any tool"),
    (["0.3", "a", "0.7"], "the blend has 3 words, expected pairs of a weight and a path"),
    (["0.3", "a", "b", "c"], "the weight of c: weight 'b' is not a finite number"),
    (["1", "a", "-1", "b"], "the weight of b: weight '-1' is negative"),
    ({"datasets": [{"weight": 1}]}, r"datasets\[0\] is .*, expected an object with prefix"),
    ({"datasets": [{"prefix": "a", "weight": "much"}]}, r"datasets\[0\]: weight: weight 'much' is not a finite number"),
    ({"datasets": [{"prefix": "a", "num_tokens": "9"}]}, r"datasets\[0\]: num_tokens is '9', expected a whole number"),
    ({"type": "memmap"}, "the config: path is None, expected text"),
    ({"type": "random"}, "the config: type 'random' is not read: it holds no data that was prepared"),
    ({"type": "concatenated", "datasets": [MEMMAP_A]}, "type 'concatenated' is not read: give each of its datasets"),
    ({"type": "file", "path": "x.yaml"}, "type 'file' is not read: give that file's content"),
    ({"kind": "memmap"}, "the config is .*, expected an object with type"),
    (BLEND | {"weights": [1]}, "datasets and weights are no lists of one length"),
    (BLEND | {"datasets": [MEMMAP_A, {"type": "x"}]}, r"the config: datasets\[1\]: type 'x' is not read"),
    ({"type": "slice", "dataset": BLEND}, "a slice of several datasets is not read"),
    ({"type": "slice", "dataset": MEMMAP_A, "begin": 0.5, "end": 0.5}, "begin and end are 0.5 and 0.5, expected"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_is_wrong_is_named_with_its_place(number: int) -> None:
    data, message = WRONG[number]
    with pytest.raises(ValueError, match=message):
        foreign_sources(data)


def test_a_plan_serves_the_mixture_of_fast_llms_file(folder: Path) -> None:
    entries = [
        {"prefix": "books", "num_documents": 90, "num_tokens": 900, "weight": 0.25},
        {"prefix": "web", "num_documents": 150, "num_tokens": 1500, "weight": 0.75},
    ]
    plan = nc.load_plan({"seq_len": 8, "seed": 5, "sources": {"datasets": entries}}, folder=folder)
    by_hand = nc.Plan(
        [
            nc.Source(nc.open_corpus(folder / "books"), name="books", weight="0.25"),
            nc.Source(nc.open_corpus(folder / "web"), name="web", weight="0.75"),
        ],
        seq_len=8,
        seed=5,
    )
    assert plan.fingerprint == by_hand.fingerprint
    blend = nc.load_plan({"seq_len": 8, "seed": 5, "sources": "0.25 books 0.75 web"}, folder=folder)
    assert blend.fingerprint == by_hand.fingerprint


@pytest.mark.parametrize(("key", "found"), [("num_documents", "90"), ("num_tokens", "900")])
def test_counts_that_the_data_do_not_have_are_refused(folder: Path, key: str, found: str) -> None:
    sources = {"datasets": [{"prefix": "books", key: 7}]}
    with pytest.raises(ValueError, match=f"books: the mixture promises 7 {key[4:]}, but there are {found}"):
        nc.load_plan({"seq_len": 8, "sources": sources}, folder=folder)


def test_slices_take_the_nearest_documents_and_do_not_overlap(folder: Path) -> None:
    parts = [
        {"type": "slice", "dataset": {"type": "memmap", "path": "books"}, "begin": begin, "end": end}
        for begin, end in ((0, 0.911), (0.911, 1))
    ]
    config = {"type": "blended", "datasets": parts, "weights": [1, 1]}
    plan = nc.load_plan({"seq_len": 8, "sources": config}, folder=folder)
    assert [source.documents for source in plan.sources] == [(0, 82), (82, 90)]  # 81.99
    assert plan.sources[0].corpus is plan.sources[1].corpus
    with pytest.raises(ValueError, match="no document of 90 lies in that share"):
        nc.load_plan({"seq_len": 8, "sources": parts[0] | {"begin": 0.9105, "end": 0.911}}, folder=folder)


def test_what_open_corpus_must_be_told_is_told_of_all(folder: Path) -> None:
    for name in ("x.bin", "y.bin"):
        (folder / name).write_bytes(np.arange(40, dtype="<u2").tobytes())
    data = {"seq_len": 8, "sources": ["x.bin", "y.bin"], "open": {"dtype": "uint16", "boundaries": "fixed:10"}}
    plan = nc.load_plan(data, folder=folder)
    assert [source.corpus.num_documents for source in plan.sources] == [4, 4]
