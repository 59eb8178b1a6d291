"""A plan over five corpora in five layouts in place gives the batches that it gives over their conversions."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep.convert import Options, convert

WORLD_SIZES = (1, 2, 3, 4, 8)


def documents(seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 60_000, length).astype("<u2") for length in random.integers(1, 90, 40)]


def write_pair(folder: Path, found: list[np.ndarray]) -> Path:
    lengths = [len(document) for document in found]
    starts = (np.cumsum([0, *lengths[:-1]]) * 2).tolist()
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(found), len(found) + 1)
    index += struct.pack(f"<{len(found)}i", *lengths) + struct.pack(f"<{len(found)}q", *starts)
    (folder / "pair.idx").write_bytes(index + np.arange(len(found) + 1, dtype="<i8").tobytes())
    (folder / "pair.bin").write_bytes(b"".join(document.tobytes() for document in found))
    return folder / "pair"


def write_ds(folder: Path, found: list[np.ndarray]) -> Path:
    (folder / "x.ds").write_bytes(b"".join(document.tobytes() for document in found))
    (folder / "x.ds.index").write_bytes(np.cumsum([len(document) for document in found]).astype("<u8").tobytes())
    return folder / "x.ds"


def write_olmo(folder: Path, found: list[np.ndarray]) -> Path:
    ends = np.cumsum([len(document) for document in found]).tolist()
    lines = "".join(f"{end - len(document)},{end}\n" for document, end in zip(found, ends, strict=True))
    (folder / "part-0-00000.csv.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "part-0-00000.npy").write_bytes(b"".join(document.tobytes() for document in found))
    return folder / "part-0-00000.npy"


def write_bare(folder: Path, found: list[np.ndarray]) -> Path:
    (folder / "train.bin").write_bytes(b"".join((document | 1).tobytes() + b"\0\0" for document in found))
    return folder / "train.bin"


def write_llm_c(folder: Path, found: list[np.ndarray]) -> Path:
    tokens = b"".join(b"\0\0" + (document | 1).tobytes() for document in found)
    header = np.zeros(256, dtype="<i4")
    header[:3] = 20240520, 1, len(tokens) // 2
    (folder / "c.bin").write_bytes(header.tobytes() + tokens)
    return folder / "c.bin"


LAYOUTS: dict[str, tuple[Any, dict[str, str]]] = {
    "megatron": (write_pair, {}),
    "datatrove": (write_ds, {}),
    "olmo": (write_olmo, {}),
    "headerless": (write_bare, {"dtype": "uint16", "boundaries": "eos:0"}),
    "llm.c": (write_llm_c, {"boundaries": "bos:0"}),
}


@pytest.mark.parametrize("shuffle", ["global", "blocks"])
def test_a_mixture_of_five_layouts_is_that_of_their_conversions(tmp_path: Path, shuffle: str) -> None:
    plans = []
    in_place, converted = [], []
    for seed, (name, (write, how)) in enumerate(LAYOUTS.items()):
        folder = tmp_path / str(seed)
        folder.mkdir()
        path = write(folder, documents(seed))
        convert(Options(source=str(path), destination=tmp_path / f"new-{seed}", tokens_per_shard=500, **how))
        in_place.append(nc.Source(nc.open_corpus(path, **how), name=name, weight=seed + 1))
        converted.append(nc.Source(nc.open_corpus(tmp_path / f"new-{seed}"), name=name, weight=seed + 1))
        assert converted[-1].corpus.num_documents == in_place[-1].corpus.num_documents == 40
    options: dict[str, Any] = {"chunk_windows": 3, "group_chunks": 2} if shuffle == "blocks" else {}
    for sources in (in_place, converted):
        plans.append(nc.Plan(sources, seq_len=16, seed=7, documents=True, shuffle=shuffle, **options))
    expected = plans[1].read(np.arange(24 * 30))
    for world_size in WORLD_SIZES:
        loaders = [
            nc.Loader(plans[0], batch_size=24, dp_rank=rank, dp_world_size=world_size) for rank in range(world_size)
        ]
        found = [next(loader) for _ in range(30) for loader in loaders]
        for loader in loaders:
            loader.close()
        for key, rows in expected.items():
            assert np.array_equal(np.concatenate([batch[key] for batch in found]), rows), (world_size, key)
