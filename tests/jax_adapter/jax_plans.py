"""The plans that these tests serve; also imported by their subprocesses."""

from __future__ import annotations

from typing import Any

import numpy as np

import neutral_core as nc


def mixed_plan(**options: Any) -> nc.Plan:
    """Two sources, uint16 tokens, rows of 17 tokens."""
    random = np.random.default_rng(5)
    first = nc.memory_corpus([random.integers(0, 500, n) for n in random.integers(0, 40, 60)], vocab_size=500)
    second = nc.memory_corpus([random.integers(0, 200, n) for n in random.integers(0, 90, 30)], vocab_size=500)
    sources = [nc.Source(first, name="first", weight="0.7"), nc.Source(second, name="second", weight="0.3")]
    return nc.Plan(sources, **({"seq_len": 16, "seed": 11} | options))
