"""Train a small transformer on a corpus, in plain JAX, data-parallel over a mesh; stop, and go on at another number of devices.

    millstream prepare texts/ corpus --tokenizer byte --append-eos
    python examples/train_jax.py corpus --seconds 60 --devices 2 --checkpoint run.npz
    python examples/train_jax.py corpus --seconds 60 --devices 1 --checkpoint run.npz --resume

The checkpoint holds parameters, optimizer state and the data's cursor together: none can be ahead of the others. The last line compares the loss
with that of a model that knows only how often each token occurs.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neutral_core as nc
from jax_adapter import Loader, unpack

LAYERS, WIDTH, HEADS = 2, 128, 4
LEARNING_RATE, WARMUP_STEPS = 2e-3, 20
SAVE_EVERY = 50  # steps
Tree = Any  # parameters and whatever is shaped as they are


def main() -> None:
    """Train, print the loss, and compare it with the unigram baseline."""
    options = arguments()
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    jax.config.update("jax_num_cpu_devices", options.devices)  # type: ignore[no-untyped-call]  # as above
    corpus = nc.open_corpus(options.corpus)
    plan = nc.Plan(nc.Source(corpus, name="corpus"), seq_len=options.seq_len, seed=17)
    counts = token_counts(corpus)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    by_rows = NamedSharding(mesh, PartitionSpec("data"))  # type: ignore[no-untyped-call]  # as above
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]  # as above
    params = init(jax.random.key(17), len(counts), options.seq_len)
    training = {"params": params, "mean": zeros(params), "square": zeros(params), "step": jnp.zeros((), jnp.int32)}
    with Loader(plan, batch_size=options.batch_size, sharding=by_rows) as loader:
        if options.resume:
            training, cursor = restore(options.checkpoint, training)
            loader.set_state(cursor)
        training = jax.device_put(training, everywhere)
        losses = train(loader, training, options)
    final = float(np.mean(losses[-20:])) if losses else float("nan")
    print(f"final loss {final:.4f}, unigram baseline {entropy(counts):.4f}")


def train(loader: Loader, training: Tree, options: argparse.Namespace) -> list[float]:
    """Train until the steps or the seconds are over; return the loss of each step."""
    losses: list[float] = []
    begin, step = time.monotonic(), int(training["step"])
    while step < options.steps and time.monotonic() - begin < options.seconds:
        batch = next(loader)
        training, loss = train_step(training, unpack(batch, seq_len=options.seq_len))
        losses.append(float(loss))
        step += 1
        log_samples(options.log_samples, step, batch)
        if step % 20 == 0 or len(losses) == 1:
            print(f"step {step} loss {losses[-1]:.4f} ({time.monotonic() - begin:.1f} s)", flush=True)
        if step % SAVE_EVERY == 0:
            save(options.checkpoint, training, loader.get_state())
    save(options.checkpoint, training, loader.get_state())
    return losses


# The model: embeddings, two blocks, a normalised projection on the embeddings again.


def init(key: jax.Array, vocab_size: int, seq_len: int) -> Tree:
    """Return parameters as a dict of arrays and a list of blocks."""
    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = iter(jax.random.split(key, 2 + LAYERS * len(shapes)))

    def normal(shape: tuple[int, ...], scale: float) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape)

    blocks = [{name: normal(shape, shape[0] ** -0.5) for name, shape in shapes.items()} for _ in range(LAYERS)]
    return {"embed": normal((vocab_size, WIDTH), 0.05), "place": normal((seq_len, WIDTH), 0.02), "blocks": blocks}


def predict(params: Tree, inputs: jax.Array) -> jax.Array:
    """Return logits float32[b, seq_len, vocab_size]."""
    x = params["embed"][inputs] + params["place"]
    for block in params["blocks"]:
        x = x + attend(norm(x) @ block["qkv"]) @ block["out"]
        x = x + jax.nn.gelu(norm(x) @ block["up"]) @ block["down"]
    logits: jax.Array = norm(x) @ params["embed"].T
    return logits


def attend(qkv: jax.Array) -> jax.Array:
    """Return causal attention, heads side by side."""
    rows, length, _ = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(rows, length, 3, HEADS, WIDTH // HEADS), 2, 0)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(rows, length, WIDTH)


def norm(x: jax.Array) -> jax.Array:
    """Return x with a mean square of 1 over its last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def loss_of(params: Tree, rows: dict[str, jax.Array]) -> jax.Array:
    """Return the mean loss in nats per token."""
    scores = jax.nn.log_softmax(predict(params, rows["inputs"]))
    return -jnp.take_along_axis(scores, rows["targets"][..., None], axis=-1).mean()


@partial(jax.jit, donate_argnums=0)
def train_step(training: Tree, rows: dict[str, jax.Array]) -> tuple[Tree, jax.Array]:
    """Return what an Adam step leaves, and the loss before it; rows are sharded, so JAX sums the gradients over the devices."""
    loss, gradient = jax.value_and_grad(loss_of)(training["params"], rows)
    step = training["step"] + 1
    rate = LEARNING_RATE * jnp.minimum(step / WARMUP_STEPS, 1.0)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, training["mean"], gradient)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, training["square"], gradient)

    def adam(p: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        stepped: jax.Array = p - rate * (m / (1 - 0.9**step)) / (jnp.sqrt(s / (1 - 0.99**step)) + 1e-8)
        return stepped

    params = jax.tree.map(adam, training["params"], mean, square)
    return {"params": params, "mean": mean, "square": square, "step": step}, loss


def zeros(tree: Tree) -> Tree:
    """Return zeros shaped as the tree's arrays."""
    return jax.tree.map(jnp.zeros_like, tree)


# The checkpoint: one .npz with an array per leaf, and the cursor as JSON.


def save(path: Path | None, training: Tree, cursor: dict[str, Any]) -> None:
    """Write training state and cursor, whole or not at all."""
    if path is None:
        return
    arrays: dict[str, Any] = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(training))}
    draft = path.with_name(path.name + ".draft")
    with draft.open("wb") as file:
        np.savez(file, cursor=np.array(json.dumps(cursor)), **arrays)
    draft.replace(path)


def restore(path: Path, training: Tree) -> tuple[Tree, dict[str, Any]]:
    """Return training state, shaped as ``training``, and the cursor."""
    with np.load(path, allow_pickle=False) as stored:
        leaves, structure = jax.tree.flatten(training)
        restored = jax.tree.unflatten(structure, [stored[str(number)] for number in range(len(leaves))])
        return restored, json.loads(str(stored["cursor"]))


def log_samples(path: Path | None, step: int, batch: dict[str, Any]) -> None:
    """Append which samples a step was served, and over how many devices."""
    if path is not None:
        line = {"step": step, "devices": len(batch["tokens"].devices()), "samples": batch["sample"].tolist()}
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


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
    parser.add_argument("--devices", type=int, default=1, help="virtual devices that share each batch")
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
