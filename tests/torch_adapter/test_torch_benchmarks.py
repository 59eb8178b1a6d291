"""The benchmark for a GPU runs as far as a CPU can take it; and ranks on one host have a corpus' pages once."""

from __future__ import annotations

import importlib.util
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gloo_ranks import ALONE  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader  # noqa: E402

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_a_gpu", BENCHMARKS / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_a_dry_run_on_the_cpu_prints_the_table_and_says_that_it_is_none(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dry-run"])
    gpu.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("CPU, a dry run: these figures say nothing of a device, torch ")
    goals = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in lines[3:]}
    assert [goal for goal in goals.values() if goal] == ["≥ 0.9", "all", "0", "< 1 %", "< 1 %"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_the_command_says_what_to_do(gpu: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"no cuda or xpu device here \(None\): use a machine with one, or --dry-run"):
        gpu.device_of(False)


def event(name: str, micros: float, stream: int, kind: str = "CUDA") -> Any:
    device = getattr(torch.autograd.DeviceType, kind)
    return SimpleNamespace(
        name=name, device_type=device, device_resource_id=stream, time_range=SimpleNamespace(elapsed_us=lambda: micros)
    )


def test_copies_are_those_that_the_device_tells_of_and_their_rate_is_that_of_as_many_bytes(gpu: ModuleType) -> None:
    """On paper: 4 µs bare beside 4 + 0.5 + 0.5 µs in three pieces."""
    pinned = "Memcpy HtoD (Pinned -> Device)"
    bare = [event(pinned, 4.0, 20)]
    events = [
        event("aten::to", 90.0, 1, "CPU"), event("cudaMemcpyAsync", 8.0, 1, "CPU"), event("widen", 3.0, 20),
        *(event(pinned, micros, 20) for micros in (4.0, 0.5, 0.5)),
    ]  # fmt: skip
    ours = gpu.copies_in(events)
    assert len(ours) == 3
    assert gpu.ratio(bare, ours) == "0.80"
    assert gpu.microseconds(ours, 1) == "5.0"
    assert gpu.ratio(bare, []) == "–"


def anonymous_and_file() -> Any:
    """Bytes of this process: its own, and those of files."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    held = {line[0]: int(line[1]) * 1024 for line in lines if line and line[0].startswith("Rss")}
    return np.array([held["RssAnon:"], held["RssFile:"]])


def grown(folder: Path, rank: int, ranks: int) -> list[int]:
    """Read every row of the corpus that is this rank's; return by how much the process grew."""
    plan = nc.Plan(nc.Source(nc.open_corpus(folder)), seq_len=2047, seed=1)
    next(Loader(plan, batch_size=8 * ranks, dp_rank=rank, dp_world_size=ranks, device="cpu"))  # what a first use costs
    before = anonymous_and_file()
    options: dict[str, Any] = {"dp_rank": rank, "dp_world_size": ranks, "device": "cpu"}
    with Loader(plan, batch_size=8 * ranks, num_samples=int(plan.num_windows[0]), **options) as loader:
        for _batch in loader:
            pass
        growth: list[int] = (anonymous_and_file() - before).tolist()
    return growth


@pytest.mark.skipif(
    not Path("/proc/self/status").exists() or os.uname().sysname != "Linux", reason="reads Linux's /proc"
)
def test_ranks_on_one_host_grow_by_their_buffers_and_share_the_pages_of_the_corpus(tmp_path: Path) -> None:
    """Three chunks of 256 rows of 4 kB, read and joined, are 3 to 6 MB; the corpus is 96 MB, which each of four ranks maps."""
    random = np.random.default_rng(0)
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=50_000) as writer:
        for _ in range(12):
            writer.add(random.integers(0, 50_000, 4_000_000, dtype=np.uint16))
    with ProcessPoolExecutor(4, mp_context=ALONE) as pool:
        calls = [pool.submit(grown, tmp_path / "corpus", rank, 4) for rank in range(4)]
        growth = [call.result(timeout=120) for call in calls]
    for anonymous, of_files in growth:
        assert anonymous < 16e6, growth
        assert of_files > 20e6, growth  # it did read its quarter through the map
