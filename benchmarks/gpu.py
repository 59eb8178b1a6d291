"""What a training step on an accelerator waits for its data: one command, one table, with the card's name.

    python benchmarks/gpu.py [--rows N] [--copy-rows N] [--rounds N] [--profile FILE]
    python benchmarks/gpu.py --dry-run          # the same code and table, small, on the CPU: shows that it runs, measures nothing

Three questions, each with its goal; times of copies are the device's own, from torch's profiler:

* Host to device: the copies of the Loader's batches of --copy-rows rows (ids as stored, source, sample) beside bare copies of as many bytes from one pinned
  buffer. Goal: ≥ 0.9 of their rate, all from pinned memory, none on the default stream. Beside it how fast batches come when no step hides them: this
  reads and gathers rows too, so it is no figure of the transfer.
* The wait for data in a step of a model of 100M weights (9 layers of 768, bf16, --rows rows): how much longer a step is with the Loader than with a
  batch that lies on the device already, and how long next() keeps the host. Goal: < 1 % of the step.
* Calls that wait for the device or a stream while batches are asked for. Goal: none.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import neutral_core as nc
from torch_adapter import Loader
from torch_adapter.loader import STREAMED

WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMemcpy")
VOCAB_SIZE = 50_304


def main() -> None:
    """Print a table."""
    options = arguments()
    device = device_of(options.dry_run)
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        plan = plan_of(Path(folder) / "corpus", options.tokens, options.seq_len)
        rows = [*copy_rows(plan, device, options), *step_rows(plan, device, options)]
    print(
        f"{name_of(device)}, torch {torch.__version__}; rows of {options.seq_len + 1} uint16 to int64, {options.rows} in a step"
    )
    print(f"| {'':62} | {'found':>12} | goal    |")
    print(f"|{'-' * 64}|{'-' * 14}|---------|")
    for name, found, goal in rows:
        print(f"| {name:62} | {found:>12} | {goal:7} |")


Row = tuple[str, str, str]  # what, found, goal


def copy_rows(plan: nc.Plan, device: torch.device, options: argparse.Namespace) -> list[Row]:
    """Compare copies of batches with bare ones, and look for what waits."""
    with Loader(plan, batch_size=options.copy_rows, device=device, threads=options.threads) as loader:
        num_bytes = sum(rows.nbytes for rows in plan.read(np.arange(options.copy_rows)).values())
        bare = copies_in(profiled(bare_copy(num_bytes, device), options.steps, device))
        events = profiled(lambda: next(loader)["tokens"].sum(), options.steps, device, options.profile)
        seconds = seconds_each(lambda: next(loader), options.steps, device)
    mark = profiled(
        lambda: torch.ones(1, device=device), 1, device
    )  # what is on the default stream, and what the profiler itself does
    default = {event.device_resource_id for event in mark if on_device(event)}
    ours = copies_in(events)
    elsewhere = sum("Pinned" in event.name and event.device_resource_id not in default for event in ours)
    return [
        (f"bare pinned copy of {num_bytes:,} bytes, µs", microseconds(bare, options.steps), ""),
        ("the Loader's copies of a batch of as many bytes, µs", microseconds(ours, options.steps), ""),
        ("the Loader's copies, of the bare copy's rate", ratio(bare, ours), "≥ 0.9"),
        ("copies from pinned memory and off the default stream, of all", f"{elsewhere} of {len(ours)}", "all"),
        ("calls that wait for the device or a stream", str(waits_in(events) - waits_in(mark)), "0"),
        ("batches as fast as they come, no step, GB/s as stored", f"{num_bytes / seconds / 1e9:.2f}", ""),
    ]


def profiled(run: Callable[[], Any], steps: int, device: torch.device, trace: Path | None = None) -> list[Any]:
    """Return the profiler's events of some calls; write a trace where asked."""
    kinds = torch.profiler.ProfilerActivity
    own = getattr(kinds, device.type.upper())
    run()
    synchronize(device)
    with torch.profiler.profile(activities=list({kinds.CPU, own})) as profile:
        for _ in range(steps):
            run()
        if device.type != "cpu":
            mark = torch.Event(device=device)  # not torch's synchronize, which would be counted as a call that waits
            mark.record()
            mark.synchronize()
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    return list(profile.events() or ())


def on_device(event: Any) -> bool:
    """Return whether an event is the device's, not the host's."""
    return bool(event.device_type != torch.profiler.DeviceType.CPU)


def copies_in(events: list[Any]) -> list[Any]:
    """Return copies to the device, as the device saw them."""
    return [event for event in events if on_device(event) and event.name.startswith("Memcpy HtoD")]


def waits_in(events: list[Any]) -> int:
    """Return how many calls wait for the device or for a stream."""
    return sum(event.name in WAITS for event in events)


def microseconds(copies: list[Any], steps: int) -> str:
    """Return how long the copies of one step took; nothing on a device that makes none."""
    return f"{total(copies) / steps:,.1f}" if copies else "–"


def ratio(bare: list[Any], ours: list[Any]) -> str:
    """Return the rate of our copies in that of the bare ones; they are of as many bytes."""
    return f"{total(bare) / total(ours):.2f}" if bare and ours else "–"


def total(copies: list[Any]) -> float:
    """Return the microseconds of all copies."""
    return float(sum(copy.time_range.elapsed_us() for copy in copies))


def step_rows(plan: nc.Plan, device: torch.device, options: argparse.Namespace) -> list[Row]:
    """Time training steps with data that lie there, and with the Loader's."""
    step, num_weights = training_step(device, options)
    still = torch.randint(0, VOCAB_SIZE, (options.rows, options.seq_len + 1), device=device)
    without, with_loader, held = [], [], []
    with Loader(plan, batch_size=options.rows, device=device, threads=options.threads) as loader:

        def loaded() -> None:
            begin = time.perf_counter()
            batch = next(loader)
            held.append(time.perf_counter() - begin)
            step(batch["tokens"])

        for run in (lambda: step(still), loaded):  # warm up: allocators, kernels, the reader's first chunks
            seconds_each(run, max(options.model_steps // 4, 1), device)
        held.clear()
        for _ in range(options.rounds):
            without.append(seconds_each(lambda: step(still), options.model_steps, device))
            with_loader.append(seconds_each(loaded, options.model_steps, device))
    middle = statistics.median(without)
    share = statistics.median(b / a - 1 for a, b in zip(without, with_loader, strict=True))
    return [
        (f"a step of {num_weights / 1e6:,.0f}M weights, data lie on the device, ms", f"{middle * 1e3:,.2f}", ""),
        ("the same with the Loader, longer by, of the step", f"{share:.2%}", "< 1 %"),
        ("next() keeps the host for, of the step", f"{statistics.median(held) / middle:.2%}", "< 1 %"),
    ]


def training_step(device: torch.device, options: argparse.Namespace) -> tuple[Callable[[torch.Tensor], None], int]:
    """Return a step of a GPT, and how many weights it has."""
    layers, width = (1, 32) if options.dry_run else (9, 768)
    model = Gpt(VOCAB_SIZE, layers, width, options.seq_len).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    half = torch.autocast(device.type, torch.bfloat16) if device.type != "cpu" else nullcontext()

    def step(tokens: torch.Tensor) -> None:
        with half:
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()

    return step, sum(weight.numel() for weight in model.parameters())


class Gpt(nn.Module):
    """Embeddings, torch's own layers, the embeddings again."""

    def __init__(self, vocab_size: int, layers: int, width: int, seq_len: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocab_size, width), nn.Embedding(seq_len, width)
        layer = nn.TransformerEncoderLayer(width, width // 16, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits [b, seq_len, vocab_size] of inputs int64[b, seq_len]."""
        length = inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=inputs.device)
        x = self.layers(self.embed(inputs) + self.place.weight[:length], mask=mask, is_causal=True)
        logits: torch.Tensor = x @ self.embed.weight.T
        return logits


def bare_copy(num_bytes: int, device: torch.device) -> Callable[[], Any]:
    """Return what copies so many bytes from pinned memory, on a stream of its own."""
    pinned = device.type in STREAMED
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
    if not pinned:
        return host.clone
    stream, target = torch.Stream(device=device), torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def copy() -> None:
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(stream)
        target.copy_(host, non_blocking=True)
        torch.accelerator.set_stream(before)

    return copy


def seconds_each(run: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Return the seconds that one call takes, with what it left to do on the device."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        run()
    synchronize(device)
    return (time.perf_counter() - begin) / steps


def synchronize(device: torch.device) -> None:
    """Wait until the device has nothing to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def device_of(dry_run: bool) -> torch.device:
    """Return the accelerator, or the CPU for a dry run."""
    if dry_run:
        return torch.device("cpu")
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type not in STREAMED:
        raise SystemExit(
            f"torch sees no {' or '.join(STREAMED)} device here ({found}): use a machine with one, or --dry-run."
        )
    return torch.device(found.type, torch.accelerator.current_device_index())


def name_of(device: torch.device) -> str:
    """Return the card's name."""
    if device.type == "cpu":
        return "CPU, a dry run: these figures say nothing of a device"
    return str(torch.get_device_module(device).get_device_name(device))


def plan_of(folder: Path, num_tokens: int, seq_len: int) -> nc.Plan:
    """Write a corpus of random ids and plan over it."""
    random = np.random.default_rng(0)
    with nc.CorpusWriter(folder, vocab_size=VOCAB_SIZE) as writer:
        for piece in pieces(num_tokens, 1 << 20):
            writer.add(random.integers(0, VOCAB_SIZE, piece, dtype=np.uint16))
    return nc.Plan(nc.Source(nc.open_corpus(folder)), seq_len=seq_len, seed=1)


def pieces(total: int, size: int) -> Iterator[int]:
    """Yield sizes that make a total."""
    for start in range(0, total, size):
        yield min(size, total - start)


def arguments() -> argparse.Namespace:
    """Return the options; a dry run's are small."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8, help="of a batch of the training step")
    parser.add_argument("--copy-rows", type=int, default=512, help="of a batch where copies are timed")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=100_000_000, help="of the corpus")
    parser.add_argument("--steps", type=int, default=200, help="that are profiled without a model")
    parser.add_argument("--model-steps", type=int, default=40, help="that are timed with one, in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the Loader")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="write the profile, as Chrome's trace viewer reads it"
    )
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU")
    options = parser.parse_args()
    if options.dry_run:
        small = {
            "rows": 2,
            "copy_rows": 4,
            "seq_len": 64,
            "tokens": 200_000,
            "steps": 20,
            "model_steps": 2,
            "rounds": 2,
        }
        vars(options).update(small)
    return options


if __name__ == "__main__":
    main()
