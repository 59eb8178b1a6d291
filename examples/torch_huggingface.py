"""A plan in Hugging Face's Trainer, and in a loop of accelerate.

millstream prepare texts/ corpus --tokenizer byte --append-eos
python examples/torch_huggingface.py corpus trainer      # or: accelerate
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import torch
import transformers
from accelerate import Accelerator

import neutral_core as nc
from torch_adapter import Loader, MapDataset, causal_lm


class SequentialTrainer(transformers.Trainer):
    """Trainer, taking note of the samples that it saw; with ``train_sampling_strategy="sequential"``, for the plan has shuffled already."""

    seen: list[list[int]]

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        """Note the rows, then do as always."""
        self.seen.extend(inputs["input_ids"].tolist())
        return super().compute_loss(model, inputs, *rest, **options)


def train(plan: nc.Plan, model: Any, *, num_samples: int, folder: str, resume: bool, **options: Any) -> list[list[int]]:
    """Train with Hugging Face's Trainer, whose checkpoints go on where they stopped; return this rank's rows, in order.

    Args:
        num_samples: of the whole run; a longer run has the same samples first.
        options: of TrainingArguments.
    """
    arguments = transformers.TrainingArguments(
        output_dir=folder, train_sampling_strategy="sequential", dataloader_drop_last=True, report_to=[], **options
    )
    trainer = SequentialTrainer(model, arguments, train_dataset=MapDataset(plan, num_samples, shape=causal_lm))
    trainer.seen = []
    trainer.train(resume_from_checkpoint=resume)
    return trainer.seen


def accelerated(plan: nc.Plan, model: Any, *, num_samples: int, batch_size: int, folder: str) -> list[int]:
    """Train with accelerate and our own loader, which finds the rank that accelerate set up; stop half-way, save, and go on.

    The loader is not given to ``prepare``: its batches are on the device already, this rank's rows only.
    """
    accelerator, seen = Accelerator(cpu=True), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)

    def run(loader: Loader, steps: int) -> None:
        for _, batch in zip(range(steps), loader, strict=False):
            loss = model(**causal_lm(batch, plan)).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.extend(batch["sample"].tolist())

    options: dict[str, Any] = {"batch_size": batch_size, "num_samples": num_samples, "device": accelerator.device}
    with Loader(plan, **options) as loader:
        accelerator.register_for_checkpointing(loader)
        run(loader, len(loader) // 2)
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()  # rank 0 writes the model
        next(loader)  # what came after the checkpoint comes again
        accelerator.load_state(folder)  # model, optimizer and cursor together
        run(loader, len(loader))
    return seen


def tiny_llama(vocab_size: int, **options: Any) -> Any:
    """Return a model of a few thousand weights."""
    config = transformers.LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=1024, use_cache=False, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def main() -> None:
    """Run one of both and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a corpus of millstream prepare --tokenizer byte")
    parser.add_argument("loop", choices=["trainer", "accelerate"])
    options = parser.parse_args()
    # 64 tokens for the model: 63 inputs with a target. Documents are kept apart by position_ids.
    plan = nc.Plan(nc.Source(nc.open_corpus(options.corpus)), seq_len=63, seed=17, documents=True)
    model = tiny_llama(1 << 8 * plan.dtype.itemsize)
    with tempfile.TemporaryDirectory() as folder:
        if options.loop == "trainer":
            rows = train(plan, model, num_samples=80, folder=folder, resume=False, use_cpu=True, max_steps=10)
            print(f"{len(rows)} rows")
        else:
            print(f"samples {accelerated(plan, model, num_samples=80, batch_size=8, folder=folder)}")


if __name__ == "__main__":
    main()
