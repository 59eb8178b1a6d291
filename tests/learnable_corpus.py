"""A corpus from which a small model learns within few steps, so that a training that lost or repeated something is seen to differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import neutral_core as nc


def write_learnable_corpus(path: Path) -> Path:
    """Write 200 documents of 50 ids, about 8,500 tokens, where each id is four times in five followed by one that belongs to it."""
    random = np.random.default_rng(3)
    follows = random.permutation(50)
    with nc.CorpusWriter(path, vocab_size=50) as writer:
        for length in random.integers(5, 80, 200):
            ids = [int(random.integers(50))]
            while len(ids) < length:
                ids.append(int(follows[ids[-1]]) if random.random() < 0.8 else int(random.integers(50)))
            writer.add(ids)
    return path
