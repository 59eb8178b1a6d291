"""A pair whose .bin was split by bytes for upload reads as the whole one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc

DOCUMENTS = [list(range(start, start + length)) for start, length in ((1, 7), (300, 0), (400, 90), (9, 1), (50, 33))]


def write(folder: Path, sizes: list[int], *, last: int, name: str = "document") -> Path:
    """Write a Megatron pair of uint16 whose .bin is cut into parts of these sizes (bytes), numbered … of ``last``."""
    folder.mkdir(exist_ok=True)
    lengths = [len(document) for document in DOCUMENTS]
    raw = struct.pack(f"<{sum(lengths)}H", *(token for document in DOCUMENTS for token in document))
    starts = np.cumsum([0, *lengths[:-1]]) * 2
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 5, 6) + struct.pack("<5i", *lengths)
    index += struct.pack("<5q", *starts.tolist()) + struct.pack("<6q", *range(6))
    (folder / f"{name}.idx").write_bytes(index)
    assert sum(sizes) == len(raw) == 262
    for number, size in enumerate(sizes):
        at = sum(sizes[:number])
        (folder / f"{name}-{number:05}-of-{last:05}.bin").write_bytes(raw[at : at + size])
    (folder / "whole.bin").write_bytes(raw)
    (folder / "whole.idx").write_bytes(index)
    return folder / name


@pytest.mark.parametrize("access", ["map", "read"])
@pytest.mark.parametrize("sizes", [[262], [131, 131], [100, 100, 62], [1, 13, 3, 200, 45], [262, 0]])
def test_parts_are_read_as_the_whole(tmp_path: Path, sizes: list[int], access: str) -> None:
    path = write(tmp_path / "d", sizes, last=len(sizes) - 1)
    split, whole = nc.open_corpus(path, access=access), nc.open_corpus(tmp_path / "d" / "whole")
    assert [split.document(i).tolist() for i in range(5)] == DOCUMENTS
    assert split.tokens(0, 131).tolist() == whole.tokens(0, 131).tolist()
    split.verify()
    plans = [nc.Plan(nc.Source(corpus), seq_len=10, seed=3, documents=True) for corpus in (split, whole)]
    rows, expected = (plan.read(np.arange(40)) for plan in plans)
    assert all(np.array_equal(rows[key], expected[key]) for key in expected)
    for world_size in (1, 2, 4, 8):
        ranks = [
            nc.Loader(plans[0], batch_size=8, dp_rank=rank, dp_world_size=world_size, num_samples=40, threads=0)
            for rank in range(world_size)
        ]
        found = np.concatenate([batch["tokens"] for step in zip(*ranks, strict=True) for batch in step])
        assert np.array_equal(found, expected["tokens"])
    if len(sizes) > 1:
        assert split.notes == (
            f"document.bin was split into {len(sizes)} parts; they are read as one file, without a map.",
        )


def test_makers_number_the_parts_or_the_last_of_them(tmp_path: Path) -> None:
    for folder, last in (("a", 1), ("b", 2)):
        corpus = nc.open_corpus(write(tmp_path / folder, [100, 162], last=last))
        assert corpus.num_tokens == 131


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "d", [100, 100, 62], last=2)
    for number in range(3):
        part = tmp_path / "d" / f"document-{number:05}-of-00002.bin"
        raw = part.read_bytes()
        part.unlink()
        if number == 2:  # 0 and 1 of 2 could be all there are: the index's size says otherwise
            with pytest.raises(nc.FormatError, match=r"the file has 200 bytes, but document\.idx promises 131 tokens"):
                nc.open_corpus(path)
        else:
            with pytest.raises(nc.FormatError, match=rf"2 of which are here, but number {number} of 2 is not"):
                nc.open_corpus(path)
        part.write_bytes(raw)
    part.with_name("document-00001-of-00009.bin").write_bytes(b"")
    with pytest.raises(nc.FormatError, match=r"it was split into parts more than once, of \[2, 9\]"):
        nc.open_corpus(path)


def test_a_truncated_part_is_noticed_at_every_length(tmp_path: Path) -> None:
    path = write(tmp_path / "d", [100, 162], last=1)
    part = tmp_path / "d" / "document-00001-of-00001.bin"
    raw = part.read_bytes()
    for length in range(len(raw)):
        part.write_bytes(raw[:length])
        with pytest.raises(nc.FormatError, match="promises 131 tokens of 2 bytes"):
            nc.open_corpus(path)
