"""A plan in Lightning: a data module whose loader Lightning itself saves and restores with the model, also in mid-epoch.

millstream prepare texts/ corpus --tokenizer byte --append-eos
python examples/torch_lightning.py corpus --steps 20 --checkpoint run.ckpt
python examples/torch_lightning.py corpus --steps 40 --checkpoint run.ckpt --resume
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional

import neutral_core as nc
from torch_adapter import Loader, inputs_and_targets


class Pass:
    """A loader with the length of its whole pass: Lightning adds what a checkpoint has behind it, our ``len()`` says what is still to come."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.length = loader, len(loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.loader

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor; Lightning saves it in its checkpoints."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken."""
        self.loader.load_state_dict(state)


class Data(pl.LightningDataModule):
    """Batches of a plan. Lightning calls ``setup`` when torch.distributed is ready, so each rank gets its share without being told.

    The pass has an end, be it far away: without a length Lightning fetches one batch ahead, to know which is the last, and its checkpoints then
    say that this one was trained on. The order does not depend on the length.
    """

    def __init__(self, plan: nc.Plan, *, batch_size: int, num_samples: int = 1 << 40) -> None:
        super().__init__()
        self.plan, self.batch_size, self.num_samples = plan, batch_size, num_samples

    def setup(self, stage: str) -> None:
        """Make the loader, on the trainer's device, to which it sends ahead; Lightning then finds the batches there."""
        device = self.trainer.strategy.root_device if self.trainer else None
        self.loader = Loader(self.plan, batch_size=self.batch_size, num_samples=self.num_samples, device=device)

    def train_dataloader(self) -> Pass:
        """Return what has batches, a length and a state."""
        return Pass(self.loader)

    def teardown(self, stage: str) -> None:
        """Stop the reader's thread."""
        self.loader.close()


class Model(pl.LightningModule):
    """A model that knows the token before."""

    def __init__(self, plan: nc.Plan, vocab_size: int) -> None:
        super().__init__()
        self.plan = plan
        self.samples: list[int] = []
        self.layers = nn.Sequential(nn.Embedding(vocab_size, 16), nn.Linear(16, vocab_size))

    def training_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        self.samples += batch["sample"].tolist()
        inputs, targets = inputs_and_targets(batch, self.plan)
        return functional.cross_entropy(self.layers(inputs).flatten(0, 1), targets.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    plan: nc.Plan, data: Data, vocab_size: int, *, checkpoint: Path, save_every: int, resume: bool, **options: Any
) -> list[int]:
    """Train, save every so many steps, and return the samples that this rank saw; ``options`` are of Lightning's Trainer.

    Lightning's own callback saves in mid-epoch. After ``fit`` an epoch counts as done, and what is saved then may start the pass anew.
    """
    keep = ModelCheckpoint(
        checkpoint.parent, checkpoint.stem, every_n_train_steps=save_every, enable_version_counter=False
    )
    trainer = pl.Trainer(logger=False, callbacks=[keep], **options)
    model = Model(plan, vocab_size)
    trainer.fit(model, datamodule=data, ckpt_path=str(checkpoint) if resume else None)
    return model.samples


def main() -> None:
    """Train for some steps and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a corpus of millstream prepare --tokenizer byte")
    parser.add_argument("--steps", type=int, default=20, help="in all, those before a resume included")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.ckpt"), metavar="FILE.ckpt")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    plan = nc.Plan(nc.Source(nc.open_corpus(options.corpus)), seq_len=64, seed=17)
    seen = fit(
        plan, Data(plan, batch_size=8), 1 << 8 * plan.dtype.itemsize,
        checkpoint=options.checkpoint, save_every=5, resume=options.resume, max_steps=options.steps, max_epochs=-1,
    )  # fmt: skip
    print(f"samples {seen[0]} … {seen[-1]}")


if __name__ == "__main__":
    main()
