"""Train a small transformer on a corpus, in plain PyTorch, alone or with several ranks; stop, and go on at another number of ranks.

    millstream prepare texts/ corpus --tokenizer byte --append-eos
    torchrun --nproc-per-node 2 examples/train_torch.py corpus --seconds 60 --checkpoint run.pt
    python examples/train_torch.py corpus --seconds 60 --checkpoint run.pt --resume

The checkpoint holds model, optimizer and the data's cursor together: none can be ahead of the others. The last line compares the loss with that of
a model that knows only how often each token occurs.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import neutral_core as nc
from torch_adapter import Loader

LAYERS, WIDTH, HEADS = 2, 128, 4
LEARNING_RATE, WARMUP_STEPS = 2e-3, 20
SAVE_EVERY = 50  # steps


def main() -> None:
    """Train, print the loss, and compare it with the unigram baseline."""
    options = arguments()
    if (
        "RANK" in os.environ
    ):  # a launcher such as torchrun says which rank this is; the loader then asks torch.distributed
        dist.init_process_group("gloo")
    try:
        corpus = nc.open_corpus(options.corpus)
        plan = nc.Plan(nc.Source(corpus, name="corpus"), seq_len=options.seq_len, seed=17)
        counts = token_counts(corpus)
        torch.manual_seed(17)  # the same first weights on every rank
        model = Model(len(counts), options.seq_len).to(options.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
        with Loader(plan, batch_size=options.batch_size, device=options.device) as loader:
            step = restore(options.checkpoint, model, optimizer, loader) if options.resume else 0
            losses = train(loader, model, optimizer, step, options)
        final = float(np.mean(losses[-20:])) if losses else float("nan")
        say(f"final loss {final:.4f}, unigram baseline {entropy(counts):.4f}")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def train(
    loader: Loader, model: Model, optimizer: torch.optim.Optimizer, step: int, options: argparse.Namespace
) -> list[float]:
    """Train until the steps or the seconds are over; return the loss of each step over the global batch."""
    losses: list[float] = []
    begin, seconds = time.monotonic(), 0.0
    while step < options.steps and seconds < options.seconds:
        batch = next(loader)
        loss = loss_of(model, batch["tokens"], options.seq_len)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        clock = torch.tensor([time.monotonic() - begin], device=loss.device)
        average([loss.detach(), clock, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
        step += 1
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(step / WARMUP_STEPS, 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds = clock.item()  # an average: every rank stops at the same step
        log_samples(options.log_samples, step, batch["sample"])
        if step % 20 == 0 or len(losses) == 1:
            say(f"step {step} loss {losses[-1]:.4f} ({seconds:.1f} s)")
        if step % SAVE_EVERY == 0:
            save(options.checkpoint, step, model, optimizer, loader)
    save(options.checkpoint, step, model, optimizer, loader)
    return losses


# The model: embeddings, two blocks, a normalised projection on the embeddings again.


class Block(nn.Module):
    """Causal attention, then two layers on each token alone; both add to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32[b, seq_len, WIDTH], as x."""
        rows, length, _ = x.shape
        heads = self.qkv(self.before_attention(x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # [b, HEADS, seq_len, WIDTH / HEADS] each
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        added: torch.Tensor = self.down(functional.gelu(self.up(self.before_layers(x))))
        return x + added


class Model(nn.Module):
    """A small GPT."""

    def __init__(self, vocab_size: int, seq_len: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab_size, WIDTH), nn.Embedding(seq_len, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits float32[b, seq_len, vocab_size] of inputs int64[b, seq_len]."""
        x = self.embed(inputs) + self.place.weight[: inputs.shape[1]]
        logits: torch.Tensor = self.norm(self.blocks(x)) @ self.embed.weight.T
        return logits


def loss_of(model: Model, tokens: torch.Tensor, seq_len: int) -> torch.Tensor:
    """Return the mean loss in nats per token of rows int64[b, seq_len + 1]."""
    logits = model(tokens[:, :seq_len])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1 : seq_len + 1].flatten())


def average(tensors: Sequence[torch.Tensor]) -> None:
    """Replace the tensors by their means over the ranks, which have equally many rows; one message for all."""
    if not dist.is_initialized():
        return
    together = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    for tensor, mean in zip(tensors, torch.split(together, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


# The checkpoint: one file of torch.save.


def save(path: Path | None, step: int, model: Model, optimizer: torch.optim.Optimizer, loader: Loader) -> None:
    """Write training state and cursor, whole or not at all; rank 0 does, because all ranks hold the same."""
    if path is None or rank() != 0:
        return
    draft = path.with_name(path.name + ".draft")
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "data": loader.state_dict(),
    }
    torch.save(state, draft)
    draft.replace(path)


def restore(path: Path, model: Model, optimizer: torch.optim.Optimizer, loader: Loader) -> int:
    """Bring model, optimizer and data to where they were saved; return the steps done."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.load_state_dict(state["data"])
    return int(state["step"])


def rank() -> int:
    """Return this process' rank, 0 when it is alone."""
    return dist.get_rank() if dist.is_initialized() else 0


def say(line: str) -> None:
    """Print a line once, whatever the number of ranks."""
    if rank() == 0:
        print(line, flush=True)


def log_samples(path: Path | None, step: int, samples: torch.Tensor) -> None:
    """Append which samples a step was served on this rank."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "rank": rank(), "samples": samples.tolist()}) + "\n")


def token_counts(corpus: nc.Corpus) -> np.ndarray:
    """Return int64[vocab_size]: how often each token occurs."""
    tokenizer = corpus.tokenizer
    size = 0 if tokenizer is None or tokenizer.vocab_size is None else tokenizer.vocab_size
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, corpus.num_tokens, 1 << 24):
        found = np.bincount(corpus.tokens(start, min(start + (1 << 24), corpus.num_tokens)), minlength=len(counts))
        counts = found + np.pad(counts, (0, len(found) - len(counts)))
    return counts


def entropy(counts: np.ndarray) -> float:
    """Return the loss, in nats per token, of predicting each token with its frequency."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="a corpus of millstream prepare")
    parser.add_argument("--steps", type=int, default=10**9, help="in all, those before a resume included")
    parser.add_argument("--seconds", type=float, default=60.0, help="of this run")
    parser.add_argument("--batch-size", type=int, default=16, help="of the global batch, in rows")
    parser.add_argument("--seq-len", type=int, default=128, help="targets in a row")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="of the model and the batches")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help=f"written every {SAVE_EVERY} steps and at the end"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--log-samples", type=Path, metavar="PATH", help="append each step's samples, as JSON lines")
    options = parser.parse_args()
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE: where to go on from.")
    return options


if __name__ == "__main__":
    main()
