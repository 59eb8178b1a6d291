"""Reading ahead: the system is asked for the rows of coming chunks while chunks are slow, for nothing else, and rows never change by it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core import loader as loader_module
from neutral_core.order.windows import Pieces
from neutral_core.read_ahead import Pace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with nc.CorpusWriter(tmp_path / "c", vocab_size=60_000, tokens_per_shard=30_000) as writer:
        for start in range(0, 60_000, 300):
            writer.add(np.arange(start, start + 300))
    return tmp_path / "c"


def test_a_chunk_is_cold_beyond_nine_microseconds_a_row_and_three_seconds_a_gigabyte() -> None:
    pace = Pace(4098)
    assert pace.cold  # until shown otherwise
    allowed = 256 * (9e-6 + 4098 * 3e-9)
    pace.took(allowed * 0.99, 256)
    assert not pace.cold
    pace.took(allowed * 1.01, 256)
    assert pace.cold


def test_after_a_slow_chunk_64_are_asked_for_and_each_slow_probe_doubles_that() -> None:
    pace = Pace(4098)
    pace.took(0, 256)
    assert not pace.cold
    for expected in (128, 256, 512, 1024, 2048, 4096, 4096):
        pace.took(1, 256)  # the probe
        asked = 0
        while pace.cold:
            pace.took(0, 256)
            asked += 1
        assert asked == expected
    first = Pace(4098)
    first.took(1, 256)  # asked for, and slow all the same
    asked = 0
    while first.cold:
        first.took(0, 256)
        asked += 1
    assert asked == 64


class Slow(Pace):
    """Storage that stays cold."""

    def took(self, seconds: float, num_rows: int) -> None:
        self.cold = True


class Fast(Pace):
    """Storage that is warm from its first chunk on."""

    def took(self, seconds: float, num_rows: int) -> None:
        self.cold = False


def asked(monkeypatch: pytest.MonkeyPatch, plan: nc.Plan, pace: type[Pace], batches: int) -> list[tuple[int, int]]:
    """Return the (segment, start) of the pieces that the system was asked for while batches were read."""
    found: list[tuple[int, int]] = []

    def advise(pieces: Pieces) -> None:
        found.extend(zip(pieces.segment.tolist(), pieces.start.tolist(), strict=True))

    monkeypatch.setattr(plan, "advise", advise)
    monkeypatch.setattr(loader_module, "Pace", pace)
    with nc.Loader(plan, batch_size=8, threads=0) as loader:
        for _ in range(batches):
            next(loader)
    return found


def test_while_storage_is_cold_all_rows_are_asked_for_once_and_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = nc.Plan(nc.Source(nc.open_corpus(folder)), seq_len=64, seed=2)
    found = asked(monkeypatch, plan, Slow, 40)
    due = plan.pieces(plan.locate(np.arange(8 * 40)))
    assert {*zip(due.segment.tolist(), due.start.tolist(), strict=True)} < {*found}
    assert len({*found}) == len(found)  # 937 windows an epoch: none has come twice


def test_when_storage_is_warm_only_the_first_chunk_and_the_next_are_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = nc.Plan(nc.Source(nc.open_corpus(folder)), seq_len=64, seed=2)
    due = plan.pieces(plan.locate(np.arange(24)))
    found = asked(monkeypatch, plan, Fast, 100)
    assert found == list(zip(due.segment.tolist(), due.start.tolist(), strict=True))  # one batch, and the two after it


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the platform has no madvise")
def test_a_map_is_advised_by_whole_pages_that_hold_the_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = nc.open_corpus(folder)
    shard: Any = corpus.shards[0]
    tokens = shard.token_memory()
    calls: list[tuple[int, int, int]] = []

    class Map:
        def madvise(self, option: int, start: int, length: int) -> None:
            calls.append((option, start, length))

    monkeypatch.setattr(shard._file, "_mmap", Map())
    first = tokens.address - shard._file.map().__array_interface__["data"][0]
    shard.advise(np.array([0, 5000]), np.array([65, 65]))
    assert [option for option, _, _ in calls] == [mmap.MADV_WILLNEED] * 2
    for (_, start, length), token in zip(calls, (0, 5000), strict=True):
        assert start % mmap.PAGESIZE == 0
        assert start <= first + 2 * token < start + mmap.PAGESIZE
        assert start + length == first + 2 * (token + 65)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the platform has no posix_fadvise")
def test_without_a_map_the_descriptor_is_advised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, start, length, advice: calls.append((start, length)))
    corpus = nc.open_corpus(folder, access="read")
    corpus.shards[0].advise(np.array([7]), np.array([65]))
    assert [length for _, length in calls] == [130]


@pytest.mark.parametrize("access", ["map", "read"])
def test_rows_are_the_same_however_slow_storage_is(folder: Path, monkeypatch: pytest.MonkeyPatch, access: str) -> None:
    plan = nc.Plan(nc.Source(nc.open_corpus(folder, access=access)), seq_len=64, seed=2, documents=True)
    expected = plan.read(np.arange(8 * 200))
    for pace in (Slow, Fast):
        monkeypatch.setattr(loader_module, "Pace", pace)
        for world_size in (1, 2, 4, 8):
            ranks = [
                nc.Loader(plan, batch_size=8, dp_rank=rank, dp_world_size=world_size, threads=2)
                for rank in range(world_size)
            ]
            batches = [next(rank) for _ in range(200) for rank in ranks]
            for rank in ranks:
                rank.close()
            for key, rows in expected.items():
                assert np.array_equal(np.concatenate([batch[key] for batch in batches]), rows)
