"""A plan in the loops that people write in PyTorch: plain, torch's DataLoader, torchdata's StatefulDataLoader, torchtitan's and Megatron's.

    millstream prepare texts/ corpus --tokenizer byte --append-eos
    python examples/torch_loops.py corpus plain           # or: workers, stateful, torchtitan, megatron
    torchrun --nproc-per-node 2 examples/torch_loops.py corpus workers

Each function trains a few steps on this rank's rows of each global batch and returns the samples that it saw; in each the order is the plan's.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import neutral_core as nc
from torch_adapter import Loader, MapDataset, data_parallel_rank, inputs_and_targets, megatron, torchtitan

BATCH_SIZE = 12  # rows of the global batch: 1, 2, 3, 4, 6 or 12 ranks divide it


def plain(plan: nc.Plan, num_samples: int) -> list[int]:
    """Our own loader: batches are on the device, and the rank comes from torch.distributed. Stopped half-way, and gone on with."""
    trainer, seen = Trainer(plan), []
    with Loader(plan, batch_size=BATCH_SIZE, num_samples=num_samples, last="pad", device="cpu") as loader:
        loader.check_ranks()  # an error that names the rank, if one has other files, another plan or another checkpoint
        for _ in range(len(loader) // 2):
            seen += trainer.step(next(loader))
        checkpoint = loader.state_dict()  # small, JSON-able, the same on every rank: belongs beside the model's
    with Loader(plan, batch_size=BATCH_SIZE, num_samples=num_samples, last="pad", device="cpu") as loader:
        loader.load_state_dict(checkpoint)
        for batch in loader:
            seen += trainer.step(batch)
    return seen


def workers(plan: nc.Plan, num_samples: int, num_workers: int = 2) -> list[int]:
    """torch's DataLoader, for code that wants one. It needs to be told which rows are this rank's; the last batch is padded."""
    trainer = Trainer(plan)
    dataset = MapDataset(plan, num_samples, pad_to=BATCH_SIZE)
    loader = DataLoader(dataset, batch_sampler=rows_of_this_rank(len(dataset)), num_workers=num_workers)
    return [sample for batch in loader for sample in trainer.step(batch)]


def stateful(plan: nc.Plan, num_samples: int, num_workers: int = 2) -> list[int]:
    """torchdata's StatefulDataLoader; its state counts batches, so it goes on with equally many workers and ranks only."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    trainer, seen = Trainer(plan), []
    dataset = MapDataset(plan, num_samples, pad_to=BATCH_SIZE)
    rows = rows_of_this_rank(len(dataset))
    loader = StatefulDataLoader(dataset, batch_sampler=rows, num_workers=num_workers)
    for batch in loader:
        seen += trainer.step(batch)
        if len(seen) >= len(rows) * len(rows[0]) // 2:
            break
    resumed = StatefulDataLoader(dataset, batch_sampler=rows, num_workers=num_workers)
    resumed.load_state_dict(loader.state_dict())
    return seen + [sample for batch in resumed for sample in trainer.step(batch)]


class TitanLoader:
    """What torchtitan asks of a data loader: an iterable of (inputs, labels) with a state; its checkpointer saves it under a key."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.samples: list[int] = []

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            self.samples += real(batch["sample"])
            yield torchtitan(batch, self.loader.plan)

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken."""
        self.loader.load_state_dict(state)


def titan(plan: nc.Plan, num_samples: int) -> list[int]:
    """torchtitan's step: labels are shifted already, −100 where there is no loss."""
    trainer = Trainer(plan)
    with Loader(plan, batch_size=BATCH_SIZE, num_samples=num_samples, last="pad", device="cpu") as loader:
        batches = TitanLoader(loader)
        for inputs, labels in batches:
            trainer.learn(functional.cross_entropy(trainer.model(inputs["input"]).flatten(0, 1), labels.flatten()))
    return batches.samples


def train_valid_test_datasets(plan: nc.Plan, num_samples: tuple[int, int, int]) -> list[MapDataset]:
    """Return three datasets, as Megatron's ``train_valid_test_datasets_provider`` does.

    Megatron's own sampler and ``consumed_train_samples`` do the rest: item i is a function of i alone, so a run goes on at another number of ranks
    without any state of ours. Give each split its own plan, of other documents: ``Source(corpus, documents=slice(a, b))``.
    """
    return [MapDataset(plan, number, shape=partial(megatron, cu_seqlens=plan.documents)) for number in num_samples]


train_valid_test_datasets.is_distributed = True  # type: ignore[attr-defined]  # Megatron: to be called on every rank


def megatron_loop(plan: nc.Plan, num_samples: int) -> list[int]:
    """Megatron's step: labels are shifted already, loss_mask is float; it pads the last batch with ``dataset[None]``."""
    trainer, seen = Trainer(plan), []
    dataset = train_valid_test_datasets(plan, (num_samples, 0, 0))[0]
    rank, ranks = data_parallel_rank()
    share = BATCH_SIZE // ranks
    for first in range(0, len(dataset), BATCH_SIZE):
        mine = range(first + rank * share, first + (rank + 1) * share)
        indices = [index if index < len(dataset) else None for index in mine]
        batch = torch.utils.data.default_collate(dataset.__getitems__(indices))
        logits = trainer.model(batch["tokens"])
        losses = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
        trainer.learn((losses * batch["loss_mask"].flatten()).sum() / batch["loss_mask"].sum().clamp(min=1))
        seen += [index for index in indices if index is not None]
    return seen


def rows_of_this_rank(num_rows: int) -> list[list[int]]:
    """Return the indices of each batch that are this rank's: equally many batches on every rank."""
    rank, ranks = data_parallel_rank()
    share = BATCH_SIZE // ranks
    return [[*range(first + rank * share, first + (rank + 1) * share)] for first in range(0, num_rows, BATCH_SIZE)]


class Trainer:
    """A model that knows the token before, and its optimizer; alone on each rank, for the data are the subject here."""

    def __init__(self, plan: nc.Plan) -> None:
        tokenizer = plan.sources[0].corpus.tokenizer
        size = (tokenizer.vocab_size if tokenizer else None) or 1 << 8 * plan.dtype.itemsize
        self.plan, self.model = plan, nn.Sequential(nn.Embedding(size, 16), nn.Linear(16, size))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: dict[str, Any]) -> list[int]:
        """Train on one batch; return its samples."""
        inputs, targets = inputs_and_targets(batch, self.plan)
        losses = functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
        counted = batch["loss_mask"].flatten()  # padding has no loss
        self.learn((losses * counted).sum() / counted.sum().clamp(min=1))
        return real(batch["sample"])

    def learn(self, loss: torch.Tensor) -> None:
        """Take one step down."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()


def real(samples: torch.Tensor) -> list[int]:
    """Return the samples of a batch without its padding."""
    found: list[int] = samples[samples >= 0].tolist()
    return found


LOOPS = {"plain": plain, "workers": workers, "stateful": stateful, "torchtitan": titan, "megatron": megatron_loop}


def main() -> None:
    """Run one loop and say what it saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a corpus of millstream prepare")
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--samples", type=int, default=100)
    options = parser.parse_args()
    if "RANK" in os.environ:  # a launcher such as torchrun says which rank this is
        dist.init_process_group("gloo")
    try:
        plan = nc.Plan(nc.Source(nc.open_corpus(options.corpus)), seq_len=64, seed=17, documents=True)
        seen = LOOPS[options.loop](plan, options.samples)
        print(f"rank {data_parallel_rank()[0]} saw {len(seen)} samples: {seen[:6]} …")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
