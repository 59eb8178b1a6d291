"""Whole plans against the frozen values: source, epoch, window and first token of samples up to 2^62, of corpora up to 10^18 tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import order_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neutral_core as nc

ORDER: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "order.json").read_text(encoding="ascii"))


class Promised:
    """A shard that only says how large it is: where rows are is arithmetic on that alone."""

    num_documents = 1

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens


def plan_of(case: Any) -> nc.Plan:
    sources = [
        nc.Source(
            nc.Corpus([Promised(source["num_tokens"])], dtype=np.dtype("<u2"), fingerprint="x"),  # type: ignore[list-item]
            weight=source["weight"],
            name=source["name"],
        )
        for source in case["sources"]
    ]
    return nc.Plan(
        sources,
        seq_len=case["seq_len"],
        seed=case["seed"],
        shuffle=case["shuffle"],
        extra_tokens=case["extra_tokens"],
    )


def rows(located: Any) -> list[list[int]]:
    columns = (located.source, located.epoch, located.window, located.start)
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@pytest.mark.parametrize("number", range(len(ORDER["plans"])))
def test_located_samples_are_the_golden_ones(number: int) -> None:
    case = ORDER["plans"][number]
    assert rows(plan_of(case).locate(case["samples"])) == case["located"]


@pytest.mark.parametrize("number", range(len(ORDER["plans"])))
def test_the_golden_windows_are_found_back(number: int) -> None:
    case = ORDER["plans"][number]
    plan = plan_of(case)
    for sample, (source, epoch, window, _) in zip(case["samples"], case["located"], strict=True):
        assert plan.sample_of(source, [epoch], [window]).tolist() == [sample]


@pytest.mark.parametrize("number", range(len(ORDER["plans"])))
def test_samples_near_the_golden_ones_are_located_as_the_page_says(number: int) -> None:
    case = ORDER["plans"][number]
    samples = sorted({min(max(k + d, 0), 2**62 - 1) for k in case["samples"][-8:] for d in (-5, 7)})
    expected = [list(reference.locate(case, sample)) for sample in samples]
    assert rows(plan_of(case).locate(samples)) == expected


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**64 - 1),
    seq_len=st.integers(1, 2**20),
    extra=st.integers(0, 3),
    shuffle=st.sampled_from(["global", "none"]),
    sizes=st.lists(st.integers(2**20 + 4, 2**60), min_size=1, max_size=4),
    weighted=st.booleans(),
    samples=st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=4),
)
def test_any_plan_is_located_as_the_page_says(
    seed: int, seq_len: int, extra: int, shuffle: str, sizes: list[int], weighted: bool, samples: list[int]
) -> None:
    sources: list[reference.Source] = [
        {"name": f"s{n}", "num_tokens": size, "weight": str(n + 1) if weighted else None}
        for n, size in enumerate(sizes)
    ]
    case: reference.Plan = {
        "seed": seed,
        "seq_len": seq_len,
        "extra_tokens": extra,
        "shuffle": shuffle,
        "sources": sources,
    }
    plan = plan_of(case)
    located = plan.locate(samples)
    assert rows(located) == [list(reference.locate(case, sample)) for sample in samples]
    for sample, (source, epoch, window, _) in zip(samples, rows(located), strict=True):
        assert plan.sample_of(source, [epoch], [window]).tolist() == [sample]


def test_a_single_source_may_leave_its_name_out() -> None:
    case = {"seed": 17, "seq_len": 128, "extra_tokens": 0, "shuffle": "global"}
    unnamed = plan_of({**case, "sources": [{"name": None, "num_tokens": 10**6, "weight": None}]})
    empty = plan_of({**case, "sources": [{"name": "", "num_tokens": 10**6, "weight": None}]})
    assert rows(unnamed.locate(range(50))) == rows(empty.locate(range(50)))  # type: ignore[arg-type]
