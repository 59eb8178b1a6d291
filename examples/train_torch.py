"""Train a small GPT on a corpus in PyTorch, alone or with several ranks; stop, and go on at another number of ranks.

    millstream prepare texts/ corpus --tokenizer byte --append-eos
    torchrun --nproc-per-node 2 examples/train_torch.py corpus --steps 300 --checkpoint run.pt
    torchrun --nproc-per-node 3 examples/train_torch.py corpus --steps 600 --checkpoint run.pt --resume

The checkpoint holds model, optimizer and the data's cursor together: none can be ahead of the others. train_jax.py is the same model on the same
rows; with --initial and --sgd their losses can be compared step by step. The last line compares the loss with that of a model that knows only
how often each token occurs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import neutral_core as nc
from torch_adapter import Loader

LAYERS, WIDTH, HEADS = 2, 128, 4
LEARNING_RATE, WARMUP_STEPS = 2e-3, 20
SAVE_EVERY = 50  # steps


def main() -> None:
    """Train as the command line says, as one of the launcher's ranks if there is one."""
    options = arguments()
    if "RANK" in os.environ:  # set by torchrun; the loader then asks torch.distributed which rows are this rank's
        if options.device.type != "cpu":
            options.device = torch.device(options.device.type, int(os.environ["LOCAL_RANK"]))
            torch.accelerator.set_device_index(options.device.index)
        dist.init_process_group(dist.get_default_backend_for_device(options.device))
    try:
        run(options)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run(options: argparse.Namespace) -> None:
    """Make data, model and optimizer, go on where the checkpoint says, and train."""
    corpus = nc.open_corpus(options.corpus)
    plan = nc.Plan(nc.Source(corpus, name="corpus"), seq_len=options.seq_len, seed=17)
    counts = token_counts(corpus)
    torch.manual_seed(17)  # the same first weights on every rank
    model = GPT(len(counts), options.seq_len)
    if options.initial is not None:
        model.load_arrays(options.initial)
    model.to(options.device)
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.99))
    optimizer = adam if options.sgd is None else torch.optim.SGD(model.parameters(), lr=options.sgd)
    with Loader(plan, batch_size=options.batch_size, device=options.device) as loader:
        step = restore(options.checkpoint, model, optimizer, loader) if options.resume else 0
        loader.check_ranks()  # all have the same plan, data and cursor, or all end with an error that names the rank
        losses = train(loader, model, optimizer, step, options)
    final = float(np.mean(losses[-20:])) if losses else float("nan")
    if rank() == 0:
        print(f"final loss {final:.4f}, unigram baseline {entropy(counts):.4f}")


def train(
    loader: Loader, model: GPT, optimizer: torch.optim.Optimizer, step: int, options: argparse.Namespace
) -> list[float]:
    """Train until the steps are done; return the loss of each, over the global batch."""
    losses: list[float] = []
    # The ranks have equally many rows, so the mean of their gradients, which DDP makes, is that of the global batch.
    parallel = DistributedDataParallel(model) if dist.is_initialized() else model
    while step < options.steps:
        batch = next(loader)
        inputs, targets = batch["tokens"][:, : options.seq_len], batch["tokens"][:, 1 : options.seq_len + 1]
        loss = functional.cross_entropy(parallel(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        step += 1
        if options.sgd is None:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(step / WARMUP_STEPS, 1.0)
        optimizer.step()
        losses.append(mean_over_ranks(loss.detach()))
        log(options.log_steps, step, losses[-1], batch["sample"])
        if rank() == 0 and (step % 20 == 0 or len(losses) == 1):
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)
        if step % SAVE_EVERY == 0 or step == options.steps:
            save(options.checkpoint, step, model, optimizer, loader)
    return losses


# The model: embeddings, blocks, and a projection on the embeddings again. Norms have no weights.


class Block(nn.Module):
    """Causal attention, then two layers on each token alone; both add to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32[b, seq_len, WIDTH], as x."""
        qkv = self.qkv(norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [b, HEADS, seq_len, WIDTH / HEADS] each
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        added: torch.Tensor = self.down(functional.gelu(self.up(norm(x)), approximate="tanh"))
        return x + added


class GPT(nn.Module):
    """A small one."""

    def __init__(self, vocab_size: int, seq_len: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab_size, WIDTH), nn.Embedding(seq_len, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits float32[b, seq_len, vocab_size] of inputs int64[b, seq_len]."""
        x = self.embed(inputs) + self.place.weight
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = norm(x) @ self.embed.weight.T
        return logits

    @torch.no_grad()
    def load_arrays(self, path: Path) -> None:
        """Take weights from an .npz with an array each, named and shaped as train_jax.py has them: [in, …] where torch has [out, in]."""
        with np.load(path, allow_pickle=False) as arrays:
            for name, module in self.named_modules():
                if isinstance(module, nn.Linear):
                    module.weight.copy_(torch.from_numpy(arrays[name].reshape(module.in_features, -1).T))
                elif isinstance(module, nn.Embedding):
                    module.weight.copy_(torch.from_numpy(arrays[name]))


def norm(x: torch.Tensor) -> torch.Tensor:
    """Return x with a mean square of 1 over its last axis."""
    return functional.rms_norm(x, (WIDTH,), eps=1e-6)


def save(path: Path | None, step: int, model: GPT, optimizer: torch.optim.Optimizer, loader: Loader) -> None:
    """Write training state and cursor to one file, whole or not at all; rank 0 does, because all ranks hold the same."""
    if path is None or rank() != 0:
        return
    training = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    draft = path.with_name(path.name + ".draft")
    torch.save({**training, "data": loader.state_dict()}, draft)
    draft.replace(path)


def restore(path: Path, model: GPT, optimizer: torch.optim.Optimizer, loader: Loader) -> int:
    """Bring model, optimizer and data to where they were saved; return the steps done."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["data"])
    return int(state["step"])


def rank() -> int:
    """Return this process' rank, 0 when it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def mean_over_ranks(loss: torch.Tensor) -> float:
    """Return the loss over the global batch from the loss over each rank's rows."""
    if dist.is_initialized():
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    return loss.item()


def log(path: Path | None, step: int, loss: float, samples: torch.Tensor) -> None:
    """Append a step's loss and which samples this rank was served."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "rank": rank(), "samples": samples.tolist()}) + "\n")


def token_counts(corpus: nc.Corpus) -> np.ndarray:
    """Return int64[vocab_size]: how often each token occurs."""
    counts = np.zeros((corpus.tokenizer and corpus.tokenizer.vocab_size) or 0, dtype=np.int64)
    for start in range(0, corpus.num_tokens, 1 << 24):
        found = np.bincount(corpus.tokens(start, min(start + (1 << 24), corpus.num_tokens)), minlength=len(counts))
        counts = found + np.pad(counts, (0, len(found) - len(counts)))
    return counts


def entropy(counts: np.ndarray) -> float:
    """Return the loss, in nats per token, of predicting each token with its frequency."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line, or those given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a corpus of millstream prepare")
    parser.add_argument("--steps", type=int, default=300, help="in all, those before a resume included")
    parser.add_argument("--batch-size", type=int, default=16, help="of the global batch, in rows")
    parser.add_argument("--seq-len", type=int, default=128, help="targets in a row")
    best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    parser.add_argument("--device", type=torch.device, default=best or torch.device("cpu"), help="of model and batches")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help=f"written every {SAVE_EVERY} steps and last")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--initial", type=Path, metavar="FILE", help="first weights, an .npz")
    parser.add_argument("--sgd", type=float, metavar="RATE", help="plain SGD, in the place of Adam with a warm-up")
    parser.add_argument(
        "--log-steps", type=Path, metavar="FILE", help="append each step's loss and samples, as JSON lines"
    )
    options = parser.parse_args(given)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE: where to go on from.")
    return options


if __name__ == "__main__":
    main()
