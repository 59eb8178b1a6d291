"""With torch's own machinery: gloo ranks, DataLoader with workers, torchdata's StatefulDataLoader."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from itertools import islice
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
    return plan_of(tmp_path)


def plan_of(folder: Path) -> nc.Plan:
    return nc.Plan(nc.Source(nc.open_corpus(folder / "corpus")), seq_len=16, seed=7, documents=True)


def serve(folder: Path, rank: int, world_size: int, steps: int, state: str) -> tuple[list[nc.Batch], dict[str, Any]]:
    """Be one rank: return its batches of some steps, and the state behind them."""
    meet, patience = f"file://{folder}/meet-{world_size}-{steps}", timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", meet, timeout=patience, rank=rank, world_size=world_size)
    with Loader(plan_of(folder), batch_size=24, device="cpu") as loader:
        if state:
            loader.load_state_dict(json.loads(state))
        batches = [{key: rows.numpy() for key, rows in next(loader).items()} for _ in range(steps)]
        after = loader.state_dict()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return batches, after


def served_by(folder: Path, world_size: int, steps: int, state: str = "") -> tuple[list[nc.Batch], str]:
    """Return the global batches that gloo ranks serve together, rank after rank, and their common state."""
    with ProcessPoolExecutor(world_size, mp_context=ALONE) as ranks:
        calls = [ranks.submit(serve, folder, rank, world_size, steps, state) for rank in range(world_size)]
        results = [call.result(timeout=120) for call in calls]
    assert all(after == results[0][1] for _, after in results)
    shares = zip(*(batches for batches, _ in results), strict=True)
    together = [{key: np.concatenate([share[key] for share in step]) for key in step[0]} for step in shares]
    return together, json.dumps(results[0][1])


def same(found: list[nc.Batch], expected: list[nc.Batch]) -> bool:
    return len(found) == len(expected) and all(
        set(a) == set(b) and all(np.array_equal(a[key], b[key]) for key in b)
        for a, b in zip(found, expected, strict=True)
    )


def test_gloo_ranks_from_2_to_4_to_3_through_two_resumes_are_one_uninterrupted_run(
    plan: nc.Plan, tmp_path: Path
) -> None:
    """The rank comes from torch.distributed; the uninterrupted run is that of one rank, and the order the core's."""
    uninterrupted, last = served_by(tmp_path, 1, 15)
    found, state = [], ""
    for world_size, steps in ((2, 5), (4, 3), (3, 7)):
        batches, state = served_by(tmp_path, world_size, steps, state)
        found.extend(batches)
    assert same(found, uninterrupted)
    assert state == last
    assert same(found, [plan.read(np.arange(24 * step, 24 * step + 24)) for step in range(15)])


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # fork in a process with threads: the case that is tested
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_torchs_own_loader_gives_the_cores_rows(plan: nc.Plan, workers: int, context: str | None) -> None:
    loader = torch.utils.data.DataLoader(
        MapDataset(plan, 100), batch_size=8, num_workers=workers, multiprocessing_context=context
    )
    batches = [{key: rows.numpy() for key, rows in batch.items()} for batch in loader]
    assert same(batches, cores_batches(plan))


def cores_batches(plan: nc.Plan) -> list[nc.Batch]:
    """Samples 0 … 99, eight at a time; four are left for the last."""
    return [plan.read(np.arange(first, min(first + 8, 100))) for first in range(0, 100, 8)]


def test_torchs_own_loader_has_no_state_and_goes_on_with_the_samples_that_it_is_given(plan: nc.Plan) -> None:
    rest = torch.utils.data.DataLoader(MapDataset(plan, 100), batch_size=8, sampler=range(40, 100))
    assert same([{key: rows.numpy() for key, rows in batch.items()} for batch in rest], cores_batches(plan)[5:])


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

    def rows_of(batches: Iterable[dict[str, Any]]) -> list[nc.Batch]:
        return [{key: rows.numpy() for key, rows in batch.items()} for batch in batches]

    uninterrupted = rows_of(make())
    loader = make()
    before = rows_of(islice(loader, 5))
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    assert same(before + rows_of(resumed), uninterrupted)
    assert same(uninterrupted, cores_batches(plan))


def test_a_dataset_leaves_skipped_samples_out(plan: nc.Plan) -> None:
    skipping = nc.Plan(plan.sources, seq_len=16, seed=7, skip=[(0, 5), (20, 31)])
    dataset = MapDataset(skipping, 40)
    assert [int(dataset[index]["sample"]) for index in range(len(dataset))] == [*range(5, 20), *range(31, 40)]
    assert [int(row["sample"]) for row in dataset.__getitems__([-1, 0])] == [39, 5]
    with pytest.raises(IndexError, match="index 24 is outside of the dataset's 24 samples"):
        dataset[24]


def test_a_dataset_beyond_max_epochs_is_refused(plan: nc.Plan) -> None:
    source = nc.Source(plan.sources[0].corpus, max_epochs=2)
    limited = nc.Plan(source, seq_len=16, seed=7)
    most = 2 * int(limited.num_windows[0])
    assert len(MapDataset(limited, most)) == most
    with pytest.raises(nc.ExhaustedError, match="max_epochs=2"):
        MapDataset(limited, most + 1)
