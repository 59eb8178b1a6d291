"""docs/reports_torch.md: those of its reports that no other test covers, through torch's loaders. Expected values are worked out on paper.

A corpus here mostly holds the numbers 0, 1, 2, …, so that a row says itself where in the file it was.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gloo_ranks import on_ranks  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset, causal_lm, megatron  # noqa: E402

OF_FORK = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning", "ignore:os.fork:RuntimeWarning")


def counting(num_windows: int, seq_len: int = 8, **options: Any) -> nc.Plan:
    """A plan of one source that holds 0 … num_windows · seq_len, each once."""
    corpus = nc.memory_corpus([np.arange(num_windows * seq_len + 1)], vocab_size=60_000)
    return nc.Plan(nc.Source(corpus), seq_len=seq_len, **({"seed": 3} | options))


def loaders_of(plan: nc.Plan, world_size: int, **options: Any) -> list[Loader]:
    return [
        Loader(plan, device="cpu", threads=0, dp_rank=rank, dp_world_size=world_size, **options)
        for rank in range(world_size)
    ]


def together(loaders: list[Loader], steps: int) -> dict[str, Any]:
    """Return the rows of the next steps, rank after rank, step after step."""
    batches = [next(loader) for _ in range(steps) for loader in loaders]
    return {key: torch.cat([batch[key] for batch in batches]) for key in batches[0]}


def same(found: dict[str, Any], expected: nc.Batch) -> bool:
    return set(found) == set(expected) and all(np.array_equal(found[key], expected[key]) for key in expected)


# Resuming


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("steps", [0, 1, 5, 6])
def test_epochs_after_a_resume_are_whole_and_each_has_an_order_of_its_own(steps: int, world_size: int) -> None:
    plan = counting(24)  # an epoch is 6 steps, and has 192 targets
    loaders = loaders_of(plan, 2, batch_size=4)
    for loader in loaders * steps:
        next(loader)
    state = json.loads(json.dumps(loaders[1].state_dict()))
    before = plan.read(np.arange(4 * steps))["tokens"]
    resumed = loaders_of(plan, world_size, batch_size=4)
    for loader in resumed:
        loader.load_state_dict(state)  # before anything was taken
    after = together(resumed, 24 - steps)["tokens"].numpy()
    epochs = np.concatenate([before, after]).reshape(4, 24, 9)
    for rows in epochs:
        assert len(set(rows[:, 1:].ravel().tolist())) == 192
    assert len({rows[:, 0].tobytes() for rows in epochs}) == 4


def test_a_mixture_of_three_goes_on_after_more_than_two_epochs_and_again_a_few_steps_later() -> None:
    corpora = [nc.memory_corpus([1000 * n + np.arange(81)], vocab_size=60_000) for n in (1, 2, 3)]
    sources = [nc.Source(corpus, name=f"{n}") for n, corpus in enumerate(corpora)]
    plan = nc.Plan(sources, seq_len=8, seed=3)  # 30 windows an epoch, 69 samples are 2.3
    state = None
    for steps, world_size in ((23, 3), (1, 1), (6, 3)):
        loaders = loaders_of(plan, world_size, batch_size=3)
        start = 0 if state is None else state["sample"]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        assert same(together(loaders, steps), plan.read(np.arange(start, start + 3 * steps)))
        state = loaders[0].state_dict()
    assert state is not None
    assert state["sample"] == 90
    tokens = plan.read(np.arange(90))["tokens"]  # three epochs of 10 windows each
    assert max(Counter(tokens[:, 1:].ravel().tolist()).values()) == 3
    assert Counter((tokens[:, 0] // 1000).tolist()) == {1: 30, 2: 30, 3: 30}


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_a_batch_size_that_does_not_divide_the_place_goes_on_there(world_size: int) -> None:
    plan = counting(600)
    loaders = loaders_of(plan, 4, batch_size=16)
    together(loaders, 31)
    resumed = loaders_of(plan, world_size, batch_size=24)
    for loader in resumed:
        loader.load_state_dict(loaders[0].state_dict())
    assert together(resumed, 2)["sample"].tolist() == list(range(496, 544))


@pytest.mark.parametrize("sample", [39, 40, 41])
def test_weights_that_change_at_a_sample_do_so_after_a_resume_before_at_and_after_it(sample: int) -> None:
    corpora = [nc.memory_corpus([1000 * n + np.arange(8 * 40 + 1)], vocab_size=60_000) for n in (1, 2)]
    sources = [nc.Source(corpus, name=f"{n}", weight=1) for n, corpus in enumerate(corpora)]
    plan = nc.Plan(sources, seq_len=8, seed=3, phases=[nc.Phase(40, {"0": 0, "1": 1})])
    first, second = loaders_of(plan, 1, batch_size=1) + loaders_of(plan, 1, batch_size=1)
    before = together([first], sample)["tokens"]
    second.load_state_dict(first.state_dict())
    tokens = torch.cat([before, together([second], 60 - sample)["tokens"]])
    which = (tokens[:, 0] // 1000).tolist()
    assert Counter(which[:40]) == {1: 20, 2: 20}
    assert which[40:] == [2] * 20
    targets = tokens[:, 1:].flatten().tolist()  # 20 and 40 windows of 40: no epoch has ended, nothing comes twice
    assert len(set(targets)) == len(targets)


# Steps, lengths, ranks


@pytest.mark.parametrize("world_size", range(1, 9))
def test_all_ranks_take_the_same_steps_whatever_the_number_of_samples(world_size: int) -> None:
    """10 samples in batches of 2 at each of 3 ranks are among them."""
    plan = counting(24)
    batch_size = 2 * world_size
    for num_samples in (0, 1, 2, 7, 10, 23, 24, 25, 70, 100):
        for last, steps in (("drop", num_samples // batch_size), ("pad", -(-num_samples // batch_size))):
            loaders = loaders_of(plan, world_size, batch_size=batch_size, num_samples=num_samples, last=last)
            assert [len(loader) for loader in loaders] == [steps] * world_size
            batches = [list(loader) for loader in loaders]
            assert [len(each) for each in batches] == [steps] * world_size
            served = [n for step in zip(*batches, strict=True) for batch in step for n in batch["sample"].tolist()]
            assert [n for n in served if n >= 0] == list(range(min(num_samples, steps * batch_size)))


@pytest.mark.parametrize("world_size", range(1, 9))
def test_data_sets_of_a_few_rows_are_served_to_any_number_of_ranks(world_size: int) -> None:
    for num_windows in range(1, 11):
        plan = counting(num_windows, seq_len=3)
        loaders = loaders_of(plan, world_size, batch_size=world_size, num_samples=2 * num_windows, last="pad")
        rows = together(loaders, len(loaders[0]))
        real = rows["tokens"][rows["sample"] >= 0].reshape(2, num_windows, 4)
        for epoch in real:
            assert len(set(epoch[:, 1:].flatten().tolist())) == 3 * num_windows


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("drop_last", [True, False])
@OF_FORK
def test_dataloader_counts_what_it_serves_and_each_of_its_passes_is_the_same(
    workers: int, persistent: bool, drop_last: bool
) -> None:
    loader = torch.utils.data.DataLoader(
        MapDataset(counting(24), 22), batch_size=4, drop_last=drop_last, num_workers=workers,
        persistent_workers=persistent, multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    expected = [list(range(first, min(first + 4, 22))) for first in range(0, 22, 4)][: 5 if drop_last else 6]
    for _ in range(3):
        assert [batch["sample"].tolist() for batch in loader] == expected
        assert len(loader) == len(expected)


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2)])
@OF_FORK
def test_what_some_workers_began_others_finish(before: int, after: int) -> None:
    dataset = MapDataset(counting(24), 24)

    def load(start: int, workers: int) -> Any:
        context = "fork" if workers else None
        return torch.utils.data.DataLoader(
            dataset, batch_size=4, sampler=range(start, 24), num_workers=workers, multiprocessing_context=context
        )

    tokens = [batch["tokens"] for batch in islice(load(0, before), 3)] + [batch["tokens"] for batch in load(12, after)]
    assert len(set(torch.cat(tokens)[:, 1:].flatten().tolist())) == 192


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@OF_FORK
def test_the_stateful_loader_resumes_a_second_time_after_one_step(workers: int) -> None:
    """One step, which is fewer than there are workers."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    dataset, found, state = MapDataset(counting(24), 24), [], None
    for steps in (2, 1, 3):
        loader = stateful.StatefulDataLoader(
            dataset, batch_size=4, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        if state is not None:
            loader.load_state_dict(state)
        found.extend(batch["sample"].tolist() for batch in islice(loader, steps))
        state = loader.state_dict()
    assert found == [list(range(first, first + 4)) for first in range(0, 24, 4)]


# Files, nodes and users


def write_corpus(folder: Path) -> Path:
    with nc.CorpusWriter(folder / "corpus", vocab_size=60_000, tokens_per_shard=500) as writer:
        for start in range(0, 2000, 100):
            writer.add(np.arange(start, start + 100))
    return folder / "corpus"


def read_a_private_copy(rank: int, corpus: Path) -> list[list[int]]:
    shutil.copytree(corpus, corpus.parent / f"node {rank}" / "copy")
    plan = nc.Plan(nc.Source(nc.open_corpus(corpus.parent / f"node {rank}" / "copy")), seq_len=9, seed=1)
    with Loader(plan, batch_size=6, device="cpu") as loader:
        loader.check_ranks()
        return [next(loader)["tokens"].tolist() for _ in range(5)]


def test_nodes_that_share_no_files_read_one_order(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    found = on_ranks(tmp_path, 3, read_a_private_copy, corpus)
    rows = [row for step in zip(*found, strict=True) for share in step for row in share]
    plan = nc.Plan(nc.Source(nc.open_corpus(corpus)), seq_len=9, seed=1)
    assert rows == plan.read(np.arange(30))["tokens"].tolist()


def read_unless_the_first(rank: int, corpus: Path) -> list[int]:
    if rank == 0:
        return []
    plan = nc.Plan(nc.Source(nc.open_corpus(corpus)), seq_len=9, seed=1)
    with Loader(plan, batch_size=6, device="cpu") as loader:
        served: list[int] = next(loader)["sample"].tolist()
        loader.load_state_dict(loader.state_dict())
        return served + next(loader)["sample"].tolist()


def test_no_rank_waits_for_another_to_open_to_read_or_to_resume(tmp_path: Path) -> None:
    """The first rank makes nothing and calls nothing; a collective of the other would never end."""
    assert on_ranks(tmp_path, 2, read_unless_the_first, write_corpus(tmp_path)) == [[], [3, 4, 5, 9, 10, 11]]


WATCHED = """
import os, sys
import torch
import neutral_core as nc
from torch_adapter import Loader, MapDataset

changes = []
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

def watch(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        changes.append([event, str(arguments[0])])
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "socket.__new__"):
        changes.append([event, str(arguments[0])])

sys.addaudithook(watch)
plan = nc.Plan(nc.Source(nc.open_corpus(sys.argv[1])), seq_len=9, seed=1)
for _ in range(2):
    with Loader(plan, batch_size=6, device="cpu", num_samples=444) as loader:
        state = [loader.state_dict() for _ in loader][-1]
        loader.load_state_dict(state)
served = len([batch for batch in torch.utils.data.DataLoader(MapDataset(plan, 222), batch_size=6)])
print(served, changes)
open(sys.argv[2], "w").close()
print(changes)
"""


def test_reading_changes_and_makes_no_file_and_what_others_left_is_not_minded(tmp_path: Path) -> None:
    """No cache, lock, socket or shared memory, which another user or a dead process could own; the last line shows that a change is seen."""
    corpus = write_corpus(tmp_path)
    for name in ("corpus.lock", "0.cnt", "index.json.tmp", "000001_locals"):
        (corpus / name).write_bytes(b"")
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in corpus.iterdir()}
    command = [sys.executable, "-c", WATCHED, str(corpus), str(tmp_path / "seen")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["37 []", f"[['open', '{tmp_path / 'seen'}']]"]
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in corpus.iterdir()} == before


# Sizes


def test_until_and_with_the_first_batch_nothing_is_held_in_proportion_to_the_documents(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(2 * 10**10)  # 10^10 tokens, 10^8 documents, no bytes on the disk
    tracemalloc.start()
    try:
        corpus = nc.open_corpus(path, dtype="uint16", boundaries="fixed:100")
        plan = nc.Plan(nc.Source(corpus), seq_len=127, seed=1, documents=True)
        with Loader(plan, batch_size=8, device="cpu", threads=0) as loader:
            batch = next(loader)
        dataset = MapDataset(plan, 10**9)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert corpus.num_documents == 10**8
    assert set(batch["segment_ids"].amax(dim=1).tolist()) <= {2, 3}
    assert peak < 3_000_000
    assert len(pickle.dumps(dataset)) < 3_000


def private_memory() -> int:
    """Return the bytes of this process that are not pages of files."""
    [line] = [line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux alone tells the memory that is no page cache")
@pytest.mark.parametrize("access", ["map", "read"])
def test_a_pass_over_a_large_file_leaves_page_cache_alone(tmp_path: Path, access: str) -> None:
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(256 * 2**20)
    corpus = nc.open_corpus(path, dtype="uint16", boundaries="none", access=access)
    plan = nc.Plan(nc.Source(corpus), seq_len=4096, seed=1)
    with Loader(plan, batch_size=16, device="cpu", num_samples=int(plan.num_windows[0])) as loader:
        next(loader)
        before = private_memory()
        steps = sum(1 for _ in loader)
        after = private_memory()
    assert steps == 32767 // 16 - 1  # of floor((2^27 − 1) / 4096) windows, but the first batch
    assert after - before < 64 * 2**20


@pytest.mark.parametrize("weights", [["0.001", "0.999"], [f"{1 / rank}" for rank in range(1, 1001)]])
def test_sources_of_any_weight_and_number_are_served_by_it_however_small_they_are(weights: list[str]) -> None:
    """Of 20 windows each, the light ones are not served once and the heavy ones wrap around many times."""
    sources = [
        nc.Source(nc.memory_corpus([np.full(81, number)], vocab_size=1000), name=f"{number}", weight=weight)
        for number, weight in enumerate(weights)
    ]
    plan = nc.Plan(sources, seq_len=4, seed=1)
    shares = np.array(weights, dtype=float) / np.sum(np.array(weights, dtype=float))
    counts = np.zeros(len(weights))
    with Loader(plan, batch_size=500, device="cpu", num_samples=6000) as loader:
        for step, batch in enumerate(loader, 1):
            assert (batch["tokens"] == batch["tokens"][:, :1]).all()
            counts += np.bincount(batch["tokens"][:, 0], minlength=len(weights))
            assert np.abs(counts - 500 * step * shares).max() < 2


# Order


def test_rows_are_shuffled_unless_that_is_declined() -> None:
    with Loader(counting(1000), batch_size=1000, device="cpu") as loader:
        first = next(loader)["tokens"][:, 0]
    assert (first.diff() == 8).sum() < 10  # 1 in the mean of a random order
    with Loader(counting(1000, shuffle="none"), batch_size=1000, device="cpu") as loader:
        assert next(loader)["tokens"][:, 0].tolist() == list(range(0, 8000, 8))


def test_another_name_gives_one_source_another_order_and_the_others_keep_theirs() -> None:
    def rows(name: str) -> tuple[Any, Any]:
        corpora = [nc.memory_corpus([1000 * n + np.arange(161)], vocab_size=60_000) for n in (1, 2)]
        sources = [nc.Source(corpora[0], name="kept"), nc.Source(corpora[1], name=name)]
        tokens = together(loaders_of(nc.Plan(sources, seq_len=8, seed=3), 1, batch_size=40), 1)["tokens"]
        of_first = tokens[:, 0] < 2000
        return tokens[of_first].tolist(), tokens[~of_first].tolist()

    (kept, one), (kept_again, other) = rows("one"), rows("other")
    assert kept == kept_again
    assert one != other
    assert len(kept) == len(one) == len(other) == 20


def test_a_validation_pass_is_the_same_each_time_and_holds_each_target_once() -> None:
    corpus = nc.memory_corpus([np.arange(start, start + 50) for start in range(0, 1000, 50)], vocab_size=1000)
    plan = nc.Plan(nc.Source(corpus, documents=slice(0, 3)), seq_len=10)  # 150 tokens: 14 windows
    passes = []
    for _ in range(2):
        with Loader(plan, batch_size=4, device="cpu", num_samples=14, last="pad") as loader:
            passes.append(together([loader], 4))
    assert all(torch.equal(passes[0][key], passes[1][key]) for key in passes[0])
    targets = passes[0]["tokens"][:, 1:][passes[0]["loss_mask"]].tolist()
    assert len(set(targets)) == len(targets) == 140
    assert set(targets) < set(range(150))


# Masks and documents


def test_an_end_of_text_id_that_is_the_padding_too_keeps_its_loss() -> None:
    corpus = nc.memory_corpus([[5, 6, 0], [7, 0], [8, 9, 5, 0]], vocab_size=10)
    plan = nc.Plan(nc.Source(corpus), seq_len=4, shuffle="none", documents=True)
    with Loader(plan, batch_size=3, device="cpu", num_samples=2, last="pad") as loader:
        batch = next(loader)
    assert batch["tokens"].tolist() == [[5, 6, 0, 7, 0], [0, 8, 9, 5, 0], [0, 0, 0, 0, 0]]
    assert batch["loss_mask"].tolist() == [[True] * 4, [True] * 4, [False] * 4]
    assert causal_lm(batch, plan)["labels"].tolist() == [[-100, 6, 0, 7, 0], [-100, 8, 9, 5, 0], [-100] * 5]
    assert megatron(batch, plan)["loss_mask"].tolist() == [[1.0] * 4, [1.0] * 4, [0.0] * 4]


def test_what_is_written_into_an_item_is_in_no_other_item() -> None:
    dataset = MapDataset(counting(24), 24, shape=partial(megatron))
    expected = {key: rows.clone() for key, rows in dataset[5].items()}
    for index in (4, 5, 5):
        for rows in dataset[index].values():
            rows.zero_()
    assert all(torch.equal(rows, expected[key]) for key, rows in dataset[5].items())
    assert expected["loss_mask"].tolist() == [1.0] * 8


def test_a_document_of_ten_rows_is_served_in_rows_whose_positions_stay_below_their_length() -> None:
    corpus = nc.memory_corpus([np.arange(160), np.arange(160, 165)], vocab_size=1000)
    plan = nc.Plan(nc.Source(corpus), seq_len=16, shuffle="none", documents=True)
    with Loader(plan, batch_size=10, device="cpu", cu_seqlens=True) as loader:
        batch = next(loader)
    assert batch["tokens"].flatten().unique().tolist() == list(range(161))
    assert batch["positions"][:9].tolist() == [list(range(17))] * 9
    assert batch["positions"][9].tolist() == [*range(16), 0]
    assert batch["cu_seqlens"].tolist() == list(range(0, 161, 16))
    assert batch["max_seqlen"] == 16
