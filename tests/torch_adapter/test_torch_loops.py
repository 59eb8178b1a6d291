"""examples/torch_loops.py, torch_huggingface.py and torch_lightning.py, with the libraries themselves: the plan's samples, once each, on 1 and 2 ranks."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gloo_ranks import on_ranks  # noqa: E402
from torch.distributed.checkpoint.stateful import Stateful  # noqa: E402

import neutral_core as nc  # noqa: E402
from torch_adapter import Loader, MapDataset, data_parallel_rank, megatron  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_LIBRARIES = pytest.mark.filterwarnings("ignore")  # their own
SAMPLES = 100  # eight batches of 12, and four samples


def example(name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def text_plan(**options: Any) -> nc.Plan:
    random = np.random.default_rng(3)
    corpus = nc.memory_corpus([random.integers(0, 64, n) for n in random.integers(1, 12, 80)], vocab_size=64)
    return nc.Plan(nc.Source(corpus), **({"seq_len": 15, "seed": 9, "documents": True} | options))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("loop", ["plain", "workers", "stateful", "torchtitan", "megatron"])
def test_a_loop_alone_sees_each_sample_once_in_the_plans_order(loop: str) -> None:
    if loop == "stateful":
        pytest.importorskip("torchdata.stateful_dataloader")
    run, options = example("torch_loops").LOOPS[loop], {}
    if loop in ("workers", "stateful"):
        options["num_workers"] = 0  # with workers: on two ranks, below
    assert run(text_plan(), SAMPLES, **options) == list(range(SAMPLES))


def loops_of_a_rank(rank: int) -> dict[str, list[int]]:
    warnings.simplefilter("ignore")
    multiprocessing.set_start_method("fork", force=True)
    return {name: run(text_plan(), SAMPLES) for name, run in example("torch_loops").LOOPS.items()}


def test_two_ranks_see_their_rows_of_each_batch_in_every_loop_with_workers_too(tmp_path: Path) -> None:
    """Rank r has rows 6 r … 6 r + 5 of each batch of 12; of the last four samples rank 0 has all and rank 1 padding."""
    pytest.importorskip("torchdata.stateful_dataloader")
    found = on_ranks(tmp_path, 2, loops_of_a_rank)
    for rank in (0, 1):
        mine = [sample for sample in range(SAMPLES) if sample % 12 // 6 == rank]
        assert found[rank] == dict.fromkeys(found[rank], mine)
    assert len(found[0]) == 5


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("num_samples", [0, 1, 11, 12, 13, 24, 100])
def test_a_padded_dataset_has_equally_many_whole_batches_on_every_rank_and_each_sample_once(
    ranks: int, num_samples: int
) -> None:
    dataset = MapDataset(text_plan(), num_samples, pad_to=12)
    steps = -(-num_samples // 12)
    assert len(dataset) == 12 * steps
    share, seen = 12 // ranks, []
    for rank in range(ranks):
        sampler = [range(first + rank * share, first + (rank + 1) * share) for first in range(0, len(dataset), 12)]
        batches = list(torch.utils.data.DataLoader(dataset, batch_sampler=sampler))
        assert len(batches) == steps
        for batch in batches:
            assert batch["tokens"].shape == (share, 16)
            assert (batch["sample"] >= 0).tolist() == batch["loss_mask"].all(dim=1).tolist()
            assert (batch["sample"] < 0).tolist() == (~batch["loss_mask"]).all(dim=1).tolist()
            seen += batch["sample"][batch["sample"] >= 0].tolist()
    assert sorted(seen) == list(range(num_samples))


def test_index_none_is_a_row_of_padding_in_every_shape_that_megatron_collates() -> None:
    """Megatron pads a batch with dataset[None]: the same keys and shapes, and no loss."""
    plan = text_plan()
    dataset = MapDataset(plan, 5, shape=megatron)
    alone = dataset[None]
    assert {key: rows.shape for key, rows in alone.items()} == {key: rows.shape for key, rows in dataset[0].items()}
    assert alone["loss_mask"].sum() == 0
    batch = torch.utils.data.default_collate(dataset.__getitems__([3, None, 1, None]))
    assert batch["tokens"][[0, 2]].tolist() == plan.read([3, 1])["tokens"][:, :15].tolist()
    assert batch["loss_mask"].sum(dim=1).tolist() == [15, 0, 15, 0]
    assert len(dataset) == 5
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="pad_to is"):
            MapDataset(plan, 5, pad_to=wrong)  # type: ignore[arg-type]


def test_a_loader_is_what_torch_calls_stateful() -> None:
    """torchtitan's and torch's checkpointers ask for this protocol."""
    with Loader(text_plan(), batch_size=2, device="cpu") as loader:
        assert isinstance(loader, Stateful)
        assert isinstance(example("torch_loops").TitanLoader(loader), Stateful)


def test_megatrons_provider_gives_three_datasets_and_none_where_there_are_no_samples() -> None:
    provider = example("torch_loops").train_valid_test_datasets
    assert provider.is_distributed
    assert [len(dataset) for dataset in provider(text_plan(), (10, 2, 0))] == [10, 2, 0]


# Hugging Face.


@OF_LIBRARIES
def test_huggingfaces_trainer_trains_on_the_plans_samples_in_order_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    plan, program = text_plan(), example("torch_huggingface")

    def train(steps: int, resume: bool) -> list[list[int]]:
        rows: list[list[int]] = program.train(
            plan, program.tiny_llama(64), num_samples=40, folder=str(tmp_path), resume=resume, max_steps=steps,
            per_device_train_batch_size=4, save_steps=3, use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        return rows

    expected = plan.read(np.arange(32))["tokens"].tolist()
    assert train(3, False) == expected[:12]
    assert train(8, True) == expected[12:]


def be_launched(rank: int) -> None:
    """Set what torchrun sets; the group is there already."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def accelerated(rank: int, folder: Path) -> tuple[list[list[int]], list[int], tuple[int, int]]:
    be_launched(rank)
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    program = example("torch_huggingface")
    dataset = MapDataset(text_plan(), 30, shape=program.causal_lm)
    loader = accelerator.prepare(torch.utils.data.DataLoader(dataset, batch_size=3, drop_last=True))
    rows = [batch["input_ids"].tolist() for batch in loader]
    torch.manual_seed(0)
    model = program.tiny_llama(64)
    seen = program.accelerated(text_plan(), model, num_samples=30, batch_size=6, folder=str(folder / "accelerate"))
    return rows, seen, data_parallel_rank()


@OF_LIBRARIES
def test_accelerates_ranks_get_the_rows_that_ours_would_give_them_and_resume(tmp_path: Path) -> None:
    """2 ranks of 3 rows: global batches of 6, rank r has rows 3 r … 3 r + 2; through its DataLoader and through our Loader."""
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    found = on_ranks(tmp_path, 2, accelerated, tmp_path)
    rows = text_plan().read(np.arange(30))["tokens"].reshape(5, 2, 3, 16)
    for rank, (through_theirs, seen, share) in enumerate(found):
        assert through_theirs == rows[:, rank].tolist()
        assert seen == np.arange(30).reshape(5, 2, 3)[:, rank].ravel().tolist()
        assert share == (rank, 2)


# Lightning.


@OF_LIBRARIES
def test_lightning_trains_stops_and_resumes_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    assert fit(tmp_path, 3, resume=False) == list(range(12))
    assert fit(tmp_path, 7, resume=True) == list(range(12, 28))
    assert fit(tmp_path, -1, resume=True, max_epochs=1) == list(
        range(28, 40)
    )  # to the end of the pass, not three batches before


@OF_LIBRARIES
def test_lightning_resumes_without_a_gap_in_a_pass_whose_end_is_far_away(tmp_path: Path) -> None:
    """Without a length Lightning would fetch one batch more than it trains on, and save that."""
    pytest.importorskip("lightning.pytorch")
    assert fit(tmp_path, 3, resume=False, num_samples=1 << 40) == list(range(12))
    assert fit(tmp_path, 5, resume=True, num_samples=1 << 40) == list(range(12, 20))


def fit(folder: Path, steps: int, resume: bool, num_samples: int = 40, **options: Any) -> list[int]:
    program, plan = example("torch_lightning"), text_plan(documents=False)
    seen: list[int] = program.fit(
        plan, program.Data(plan, batch_size=4, num_samples=num_samples), 64, checkpoint=folder / "run.ckpt", save_every=1, resume=resume,
        max_steps=steps, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **options,
    )  # fmt: skip
    return seen


def fit_as_a_rank(rank: int, folder: Path) -> list[int]:
    warnings.simplefilter("ignore")
    be_launched(rank)
    os.environ["TORCHELASTIC_RUN_ID"] = "test"  # by this Lightning knows that it was launched
    return fit(folder, 5, resume=False, strategy="ddp", devices=2)


@OF_LIBRARIES
def test_lightnings_ranks_get_their_share_without_being_told(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    found = on_ranks(tmp_path, 2, fit_as_a_rank, tmp_path)
    assert found == np.arange(20).reshape(5, 2, 2).transpose(1, 0, 2).reshape(2, 10).tolist()
