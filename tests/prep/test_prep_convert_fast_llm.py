"""``convert`` of Fast-LLM's files and of TNTIDX pairs: documents and fields before and after, the order too."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import contents
from fast_llm_file import file_bytes, patches, ranges, token_data, tokens

import neutral_core as nc
from prep.convert import Options, convert

DOCUMENTS = [[1, 2, 3], [], [258], [4, 5]]


def dataset(folder: Path) -> Path:
    scores = [np.arange(len(document), dtype="<f4") for document in DOCUMENTS]
    images = [np.full((count, 3, 2, 2), count, "u1") for count in (2, 0, 1, 0)]
    path = folder / "shard_0_0.fast_llm_dataset"
    path.write_bytes(
        file_bytes(
            {
                "tokens": tokens(DOCUMENTS),
                "loss_masking_spans": ranges([[(0, 1), (1, 3)], [], [], [(2, 2)]]),
                "image_patches": patches(
                    images, [[0, 2], [], [0], []], [[(0, 0), (0, 1)], [], [(3, 4)], []], [[2], [], [1], [0]]
                ),
                "advantages": token_data(scores),
            }
        )
    )
    return path


def fast_llm_pair(folder: Path) -> Path:
    """Version 3 with chosen and rejected spans; see test_legacy_fast_llm_pair.py for the bytes."""
    lengths = [3, 1]
    index = b"MMIDIDX\0\0" + struct.pack("<QBBBQQ", 3, 0, 1, 3, 2, 3) + np.array(lengths, "<i4").tobytes()
    index += np.array([0, 6], "<i8").tobytes() + np.array([[0, 1], [0, 0], [2, 2], [0, 0]], "<i4").tobytes()
    (folder / "pair.idx").write_bytes(index + np.arange(3, dtype="<i8").tobytes())
    (folder / "pair.bin").write_bytes(np.array([1, 2, 3, 4], "<i2").tobytes())
    return folder / "pair"


def tntidx(folder: Path) -> Path:
    """fairseq's, counted from 1; see test_legacy_tntidx.py for the bytes."""
    arrays = [[0, 1, 2, 3], [0, 2, 3, 7], [2, 1, 4]]
    index = b"TNTIDX\0\0" + struct.pack("<5Q", 1, 4, 4, 3, 3) + b"".join(np.array(a, "<i8").tobytes() for a in arrays)
    (folder / "lines.idx").write_bytes(index)
    (folder / "lines.bin").write_bytes(np.array([11, 12, 50257, 8, 9, 10, 1], "<i4").tobytes())
    return folder / "lines"


@pytest.mark.parametrize(
    ("write", "how", "fields"),
    [
        (dataset, {}, 6),
        (fast_llm_pair, {}, 2),
        (fast_llm_pair, {"boundaries": "sequences"}, 2),
        (tntidx, {"layout": "tntidx-lua"}, 0),
    ],
)
@pytest.mark.parametrize("tokens_per_shard", [2, 1000])
def test_documents_and_fields_come_over_as_they_are_in_the_source(
    tmp_path: Path, write: Any, how: Any, fields: int, tokens_per_shard: int
) -> None:
    source = write(tmp_path)
    options = Options(source=str(source), destination=tmp_path / "out", tokens_per_shard=tokens_per_shard, **how)
    report = convert(options)
    assert report["verified"]
    found = contents(tmp_path / "out")
    assert found is not None
    assert found == contents(source, **how)
    before, after = nc.open_corpus(source, **how), nc.open_corpus(tmp_path / "out")
    assert before.fields == after.fields
    assert len(after.fields) == fields
    assert set(before.notes) <= set(report["notes"])
