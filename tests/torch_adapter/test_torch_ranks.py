"""Ranks from a device mesh, and the check that all of them hold the same: with gloo, 4 processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gloo_ranks import on_ranks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, data_parallel_rank  # noqa: E402


def plan_of(seed: int = 3, first: int = 0, **options: Any) -> nc.Plan:
    documents = [np.arange(first + 40 * k, first + 40 * k + 40) for k in range(20)]
    return nc.Plan(nc.Source(nc.memory_corpus(documents, vocab_size=4096)), seq_len=8, seed=seed, **options)


def ranks_of_meshes(rank: int) -> dict[str, tuple[int, int]]:
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    turned = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "dp"))
    hybrid = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    outer, inner = "dp_replicate", "dp_shard"
    found = {
        "dp, tp": data_parallel_rank(mesh=two),
        "cp, dp": data_parallel_rank(mesh=turned),
        "cp of cp, dp": data_parallel_rank(mesh=turned, dims="cp"),
        "hybrid": data_parallel_rank(mesh=hybrid, dims=(outer, inner)),
        "hybrid turned": data_parallel_rank(mesh=hybrid, dims=(inner, outer)),
        "part of a mesh": data_parallel_rank(mesh=hybrid[outer, inner], dims=(outer, inner)),
        "explicit": data_parallel_rank(5, 7, mesh=two),
        "default": data_parallel_rank(),
    }
    for dims, message in (
        ("dp_shart", "no dimension 'dp_shart'.*Did you mean 'dp_shard'"),
        ((), "at least one name"),
        ((inner, inner), "each once"),
    ):
        with pytest.raises(ValueError, match=message):
            data_parallel_rank(mesh=hybrid, dims=dims)
    return found


def test_a_mesh_gives_the_same_share_to_ranks_that_differ_in_other_dimensions_only(tmp_path: Path) -> None:
    """Expected by hand: rank = 2 · (first coordinate) + (second coordinate)."""
    found = on_ranks(tmp_path, 4, ranks_of_meshes)
    assert {name: [each[name] for each in found] for name in found[0]} == {
        "dp, tp": [(0, 2), (0, 2), (1, 2), (1, 2)],
        "cp, dp": [(0, 2), (1, 2), (0, 2), (1, 2)],
        "cp of cp, dp": [(0, 2), (0, 2), (1, 2), (1, 2)],
        "hybrid": [(0, 4), (1, 4), (2, 4), (3, 4)],
        "hybrid turned": [(0, 4), (2, 4), (1, 4), (3, 4)],
        "part of a mesh": [(0, 4), (1, 4), (2, 4), (3, 4)],
        "explicit": [(5, 7)] * 4,
        "default": [(0, 4), (1, 4), (2, 4), (3, 4)],
    }


def samples_on_a_mesh(rank: int, names: tuple[str, str]) -> list[list[int]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    dp_rank, dp_world_size = data_parallel_rank(mesh=mesh)
    with Loader(plan_of(), batch_size=6, device="cpu", dp_rank=dp_rank, dp_world_size=dp_world_size) as loader:
        loader.check_ranks()
        served = [next(loader)["sample"].tolist() for _ in range(3)]
        loader.check_ranks()
    return served


@pytest.mark.parametrize("names", [("dp", "tp"), ("dp", "cp"), ("pp", "dp")])
def test_ranks_of_a_tensor_pipeline_or_context_group_get_identical_rows_and_the_groups_together_all(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    found = on_ranks(tmp_path, 4, samples_on_a_mesh, names)
    groups = ((0, 1), (2, 3)) if names[0] == "dp" else ((0, 2), (1, 3))
    assert all(found[first] == found[second] for first, second in groups)
    rows = [found[groups[0][0]][step] + found[groups[1][0]][step] for step in range(3)]
    assert rows == [list(range(6 * step, 6 * step + 6)) for step in range(3)]


def refusals(rank: int) -> dict[str, str]:
    """Make rank 2 differ in one thing after the other."""
    odd = rank == 2
    cases: dict[str, tuple[nc.Plan, dict[str, Any]]] = {
        "data": (plan_of(first=1 if odd else 0), {}),
        "seed": (plan_of(seed=4 if odd else 3), {}),
        "skip": (plan_of(skip=[(0, 4)] if odd else ()), {}),
        "documents": (plan_of(documents=odd), {}),
        "batch_size": (plan_of(), {"batch_size": 12 if odd else 8}),
        "schedule": (plan_of(), {"batch_size": [(0, 8), (80 if odd else 160, 16)]}),
        "num_samples": (plan_of(), {"num_samples": 80 if odd else 88}),
        "share": (plan_of(), {"dp_rank": 0 if odd else rank, "dp_world_size": 4}),
        "alone": (plan_of(), {"dp_rank": 0, "dp_world_size": 4}),
        "world": (plan_of(), {"dp_rank": 0, "dp_world_size": 1} if odd else {}),
        "place": (plan_of(), {}),
    }
    found = {}
    for name, (plan, options) in cases.items():
        with Loader(plan, **({"batch_size": 8, "device": "cpu"} | options)) as loader:
            if name == "place" and odd:
                next(loader)
            with pytest.raises(nc.StateError) as caught:
                loader.check_ranks()
            found[name] = str(caught.value)
    return found


def test_every_rank_is_told_which_rank_differs_in_what(tmp_path: Path) -> None:
    found = on_ranks(tmp_path, 4, refusals)
    assert all(each == found[0] for each in found)
    messages = found[0]
    for name, said in (
        ("data", "rank 2 differs in data ("),
        ("seed", "rank 2 differs in seed ("),
        ("skip", "rank 2 differs in skip ([[0, 4]], theirs []), next sample (4, theirs 0)"),
        ("documents", "rank 2 differs in documents (True, theirs False)"),
        ("batch_size", "rank 2 differs in batch_size (12, theirs 8)"),
        ("schedule", "rank 2 differs in batch_size ([[0, 8], [80, 16]], theirs [[0, 8], [160, 16]])"),
        ("num_samples", "rank 2 differs in num_samples (80, theirs 88)"),
        ("share", "of dp_world_size 4, dp_rank 1, 2, 3 is held by fewer processes than the others (2 each)"),
        ("alone", "of dp_world_size 4, dp_rank 1, 2, 3 is held by fewer processes than the others (4 each)"),
        ("world", "rank 2 differs in dp_world_size (1, theirs 4)"),
        ("place", "rank 2 differs in next sample (8, theirs 0)"),
    ):
        assert said in messages[name]
        assert "rank 1 differs" not in messages[name]


def check_in_halves(rank: int) -> str:
    halves = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    with Loader(plan_of(seed=rank % 3), batch_size=4, device="cpu", dp_rank=rank % 2, dp_world_size=2) as loader:
        try:
            loader.check_ranks(halves[rank // 2])
        except nc.StateError as error:
            return str(error)
    return ""


def test_a_group_is_checked_alone_and_names_global_ranks(tmp_path: Path) -> None:
    found = on_ranks(tmp_path, 4, check_in_halves)
    assert "rank 1 differs in seed" in found[0]
    assert "rank 3 differs in seed" in found[2]
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_alone_there_is_nothing_to_compare_and_torch_distributed_stays_uninitialised() -> None:
    with Loader(plan_of(), batch_size=4, device="cpu") as loader:
        loader.check_ranks()
        next(loader)
    assert not torch.distributed.is_initialized()


def test_a_launched_rank_that_torch_distributed_does_not_know_is_refused_and_explicit_numbers_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match=r"4 ranks .* not initialised.*init_process_group"):
        Loader(plan_of(), batch_size=4, device="cpu")
    assert data_parallel_rank(1, 2) == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert data_parallel_rank() == (0, 1)
