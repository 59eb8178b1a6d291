"""Slices of rows for context parallelism, against whole rows."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gloo_ranks import on_ranks  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import (  # noqa: E402
    Loader,
    causal_lm,
    context_slice,
    data_parallel_rank,
    inputs_and_targets,
    megatron,
    torchtitan,
)

SEQ_LEN = 16
OPTIONS = [{}, {"shuffle": "none"}, {"document_shuffle": True}, {"shuffle": "blocks", "chunk_windows": 3}]


def plan_of(folder: Path, **options: Any) -> nc.Plan:
    if not (folder / "corpus").exists():
        random = np.random.default_rng(2)
        with nc.CorpusWriter(folder / "corpus", vocab_size=60_000, tokens_per_shard=300) as writer:
            for length in random.integers(0, 40, 60):
                writer.add(random.integers(0, 60_000, length))
    return nc.Plan(
        nc.Source(nc.open_corpus(folder / "corpus")), **({"seq_len": SEQ_LEN, "seed": 7, "documents": True} | options)
    )


def columns_by_hand(rank: int, size: int, zigzag: bool) -> list[int]:
    """The input columns of a rank, chunk by chunk."""
    if not zigzag:
        return list(range(rank * SEQ_LEN // size, (rank + 1) * SEQ_LEN // size))
    half = SEQ_LEN // size // 2
    last = 2 * size - 1 - rank
    return [*range(rank * half, (rank + 1) * half), *range(last * half, (last + 1) * half)]


def test_a_zigzag_slice_is_one_early_and_one_late_chunk() -> None:
    assert columns_by_hand(1, 2, True) == [4, 5, 6, 7, 8, 9, 10, 11]
    corpus = nc.memory_corpus([np.arange(200)])
    plan = nc.Plan(nc.Source(corpus), seq_len=SEQ_LEN, shuffle="none")
    batch = context_slice(plan, 0, 2, zigzag=True).read([0])
    assert batch["tokens"].tolist() == [[0, 1, 2, 3, 4, 12, 13, 14, 15, 16]]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("size", "zigzag"), [(1, False), (2, False), (4, False), (2, True), (4, True)])
def test_a_slice_has_the_whole_rows_inputs_targets_documents_and_positions(
    tmp_path: Path, size: int, zigzag: bool, options: dict[str, Any]
) -> None:
    """Over two epochs, so that rows run across shards and over the end of the corpus."""
    whole = plan_of(tmp_path, **options)
    samples = np.arange(2 * int(whole.num_windows[0]))
    rows = {key: torch.from_numpy(value.astype(np.int64)) for key, value in whole.read(samples).items()}
    seen: list[int] = []
    for rank in range(size):
        plan = context_slice(whole, rank, size, zigzag=zigzag)
        batch = {key: torch.from_numpy(value.astype(np.int64)) for key, value in plan.read(samples).items()}
        inputs, targets = inputs_and_targets(batch, plan)
        columns = torch.tensor(columns_by_hand(rank, size, zigzag))
        assert torch.equal(inputs, rows["tokens"][:, columns])
        assert torch.equal(targets, rows["tokens"][:, columns + 1])
        shaped = megatron(batch, plan)
        assert torch.equal(shaped["position_ids"], rows["positions"][:, columns])
        at = torch.tensor([c for start, stop in plan.columns for c in range(start, stop)])
        assert torch.equal(batch["segment_ids"], rows["segment_ids"][:, at])
        assert torch.equal(batch["sample"], rows["sample"])
        seen.extend(columns.tolist())
        assert plan.cursor(7) == whole.cursor(7)
        assert plan.fingerprint == whole.fingerprint
    assert sorted(seen) == list(range(SEQ_LEN))


def test_positions_without_documents_are_the_columns_of_the_whole_row(tmp_path: Path) -> None:
    plan = context_slice(plan_of(tmp_path, documents=False), 1, 2, zigzag=True)
    batch = {key: torch.from_numpy(value.astype(np.int64)) for key, value in plan.read([3, 4]).items()}
    assert megatron(batch, plan)["position_ids"].tolist() == [columns_by_hand(1, 2, True)] * 2
    inputs, labels = torchtitan(batch, plan)
    assert inputs["positions"].tolist() == [columns_by_hand(1, 2, True)] * 2
    assert labels.shape == (2, 8)


def test_only_the_slice_is_read(tmp_path: Path) -> None:
    """Counted in the pieces that are fetched: of every row the chunk and one token."""
    whole = plan_of(tmp_path)
    located = whole.locate(np.arange(20))
    for rank in range(4):
        pieces = context_slice(whole, rank, 4).pieces(located)
        assert np.bincount(pieces.row, pieces.length).tolist() == [SEQ_LEN // 4 + 1] * 20


def test_a_slice_pickles_traces_and_finds_as_the_whole_plan(tmp_path: Path) -> None:
    whole = plan_of(tmp_path)
    part = context_slice(whole, 1, 2)
    again = pickle.loads(pickle.dumps(part))
    assert again.columns == part.columns == ((8, 17),)
    assert np.array_equal(again.read([5])["tokens"], whole.read([5])["tokens"][:, 8:])
    assert part.trace([5, 6]) == whole.trace([5, 6])
    assert np.array_equal(part.find(0, 30, stop=100), whole.find(0, 30, stop=100))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, 2), "cp_rank is 2 of cp_world_size 2"),
        ((-1, 2), "cp_rank is -1"),
        ((0, 3), "seq_len is 16, which 3 chunks"),
        ((0, 16, True), "which 32 chunks"),
    ],
)
def test_what_does_not_divide_is_refused(tmp_path: Path, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        context_slice(plan_of(tmp_path), *arguments[:2], zigzag=len(arguments) > 2)


def test_slices_of_slices_and_what_needs_whole_rows_are_refused(tmp_path: Path) -> None:
    plan = context_slice(plan_of(tmp_path), 1, 2)
    batch = {key: torch.from_numpy(value.astype(np.int64)) for key, value in plan.read([0]).items()}
    for call, message in (
        (lambda: context_slice(plan, 0, 2), "expected whole rows"),
        (lambda: context_slice(plan_of(tmp_path, extra_tokens=1), 0, 2), "without extra_tokens"),
        (lambda: causal_lm(batch, plan), "would lose the slice's last target"),
        (lambda: causal_lm(batch, context_slice(plan_of(tmp_path), 0, 2)), "would lose the slice's last target"),
        (lambda: megatron(batch, plan, cu_seqlens=True), "reads whole rows"),
        (lambda: Loader(plan, batch_size=2, cu_seqlens=True, device="cpu"), "a slice of each row"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("columns", [[], [(3, 3)], [(0, 18)], [(-1, 4)]])
def test_columns_outside_of_the_row_are_refused(tmp_path: Path, columns: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="columns"):
        plan_of(tmp_path).narrow(columns)


def served(rank: int, folder: Path, zigzag: bool) -> list[dict[str, np.ndarray]]:
    """Be a rank of a mesh of 2 shares, each of 2 slices, over a padded pass."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    dp_rank, dp_world_size = data_parallel_rank(mesh=mesh)
    plan = context_slice(plan_of(folder), *data_parallel_rank(mesh=mesh, dims="cp"), zigzag=zigzag)
    options = {"num_samples": 10, "last": "pad", "device": "cpu"}
    with Loader(plan, batch_size=4, dp_rank=dp_rank, dp_world_size=dp_world_size, **options) as loader:
        loader.check_ranks()
        return [{key: rows.numpy() for key, rows in megatron(batch, plan).items()} for batch in loader]


@pytest.mark.parametrize("zigzag", [False, True])
def test_a_mesh_of_2_shares_of_2_slices_reads_the_global_batch_together(tmp_path: Path, zigzag: bool) -> None:
    whole = plan_of(tmp_path)
    found = on_ranks(tmp_path, 4, served, tmp_path, zigzag)
    with nc.Loader(whole, batch_size=4, num_samples=10, last="pad") as loader:
        steps = list(loader)
    assert [len(each) for each in found] == [len(steps)] * 4
    for step, batch in enumerate(steps):
        for rank in range(4):
            dp, cp = divmod(rank, 2)
            columns, rows = np.array(columns_by_hand(cp, 2, zigzag)), slice(2 * dp, 2 * dp + 2)
            mine = found[rank][step]
            assert np.array_equal(mine["tokens"], batch["tokens"][rows][:, columns])
            assert np.array_equal(mine["labels"], batch["tokens"][rows][:, columns + 1])
            assert np.array_equal(mine["loss_mask"], batch["loss_mask"][rows][:, columns])
