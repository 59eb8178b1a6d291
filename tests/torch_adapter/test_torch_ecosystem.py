"""With torch's own machinery: gloo ranks, DataLoader with workers, torchdata's StatefulDataLoader."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset  # noqa: E402

ALONE = multiprocessing.get_context("forkserver")  # ranks of their own, which share one import of torch
ALONE.set_forkserver_preload(["torch.distributed"])


@pytest.fixture
def plan(tmp_path: Path) -> nc.Plan:
    random = np.random.default_rng(1)
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=60_000, tokens_per_shard=2000) as writer:
        for length in random.integers(0, 200, 60):
            writer.add(random.integers(0, 60_000, length))
    return nc.Plan(nc.Source(nc.open_corpus(tmp_path / "corpus")), seq_len=16, seed=7)


def serve(folder: Path, rank: int, world_size: int, state: str) -> tuple[list[Any], dict[str, Any]]:
    """Be one rank: return the rows of four steps, and the state behind them."""
    meet, patience = f"file://{folder}/meet-{world_size}", timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", meet, timeout=patience, rank=rank, world_size=world_size)
    plan = nc.Plan(nc.Source(nc.open_corpus(folder / "corpus")), seq_len=16, seed=7)
    with Loader(plan, batch_size=24, device="cpu") as loader:
        if state:
            loader.load_state_dict(json.loads(state))
        rows = [next(loader)["tokens"].tolist() for _ in range(4)]
        after = loader.state_dict()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return rows, after


def test_1_2_3_and_4_gloo_ranks_one_after_another_are_one_run(plan: nc.Plan, tmp_path: Path) -> None:
    """The rank comes from torch.distributed; each run resumes where the one before stopped, at another number of ranks."""
    state = ""
    for number, world_size in enumerate((1, 2, 3, 4)):
        with ProcessPoolExecutor(world_size, mp_context=ALONE) as ranks:
            served = [ranks.submit(serve, tmp_path, rank, world_size, state) for rank in range(world_size)]
            results = [future.result(timeout=120) for future in served]
        assert all(after == results[0][1] for _, after in results)
        state = json.dumps(results[0][1])
        rows = [row for step in range(4) for steps, _ in results for row in steps[step]]
        first = 4 * 24 * number
        assert rows == plan.read(np.arange(first, first + 4 * 24))["tokens"].tolist()


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # fork in a process with threads: the case that is tested
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_torchs_own_loader_gives_the_cores_rows(plan: nc.Plan, workers: int, context: str | None) -> None:
    loader = torch.utils.data.DataLoader(
        MapDataset(plan, 100), batch_size=8, num_workers=workers, multiprocessing_context=context
    )
    batches = list(loader)
    expected = plan.read(np.arange(100))
    assert [len(batch["tokens"]) for batch in batches] == [8] * 12 + [4]
    for key in expected:
        assert np.array_equal(np.concatenate([batch[key].numpy() for batch in batches]), expected[key])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork, as above
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_the_stateful_loader_resumes_to_the_uninterrupted_stream(plan: nc.Plan, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        context = "fork" if workers else None
        return stateful.StatefulDataLoader(
            MapDataset(plan, 100), batch_size=8, num_workers=workers, multiprocessing_context=context
        )

    whole = [batch["sample"].tolist() for batch in make()]
    loader = make()
    stream = iter(loader)
    before = [next(stream)["sample"].tolist() for _ in range(5)]
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert before + [batch["sample"].tolist() for batch in resumed] == whole
    assert [sample for batch in whole for sample in batch] == list(range(100))
