"""Train a small GPT on a corpus in JAX with Optax, over a mesh with a data and a model axis; stop, and go on over another mesh.

    millstream prepare texts/ corpus --tokenizer byte --append-eos
    JAX_NUM_CPU_DEVICES=4 python examples/train_jax.py corpus --steps 300 --devices 4 --model 2 --checkpoint run.npz
    JAX_NUM_CPU_DEVICES=4 python examples/train_jax.py corpus --steps 600 --devices 3 --checkpoint run.npz --resume

JAX_NUM_CPU_DEVICES makes virtual devices of a CPU; leave it out where JAX finds real ones. One process; of several, each would read the rows of
its own devices by the same calls, and a checkpoint would need Orbax.

The checkpoint holds parameters, optimizer and the data's cursor together: none can be ahead of the others. train_torch.py is the same model on
the same rows; with --initial and --sgd their losses can be compared. The last line also says the loss of knowing only how often a token occurs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_map_with_path

import neutral_core as nc
from jax_adapter import Loader, unpack

LAYERS, WIDTH, HEADS = 2, 128, 4
LEARNING_RATE, WARMUP_STEPS = 2e-3, 20
SAVE_EVERY = 50  # steps
Tree = Any  # parameters, or all that a checkpoint keeps of a training

# Which axis of a weight, or of what the optimizer keeps of it, is cut over the mesh's model axis: heads, and the wide layer. All else is whole.
MODEL_AXIS = {"qkv": 2, "out": 0, "up": 1, "down": 0}


def main(given: Sequence[str] | None = None) -> None:
    """Make data, model and optimizer, go on where the checkpoint says, and train."""
    options = arguments(given)
    corpus = nc.open_corpus(options.corpus)
    plan = nc.Plan(nc.Source(corpus, name="corpus"), seq_len=options.seq_len, seed=17)
    counts = token_counts(corpus)
    devices = np.array(jax.devices()[: options.devices])
    mesh = Mesh(devices.reshape(-1, options.model), ("data", "model"))
    params = init(17, len(counts), options.seq_len)
    if options.initial is not None:
        params = load_arrays(options.initial, params)
    optimizer = optax.adam(warm_up, b1=0.9, b2=0.99) if options.sgd is None else optax.sgd(options.sgd)
    training = {"params": params, "optimizer": optimizer.init(params), "step": jnp.zeros((), jnp.int32)}
    by_rows = NamedSharding(mesh, PartitionSpec("data"))  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    with Loader(plan, batch_size=options.batch_size, sharding=by_rows) as loader:
        if options.resume:
            training = load_arrays(options.checkpoint, training)
            loader.set_state(load_cursor(options.checkpoint))
        losses = train(loader, optimizer, place(training, mesh), options)
    final = float(np.mean(losses[-20:])) if losses else float("nan")
    print(f"final loss {final:.4f}, unigram baseline {entropy(counts):.4f}")


def train(
    loader: Loader, optimizer: optax.GradientTransformation, training: Tree, options: argparse.Namespace
) -> list[float]:
    """Train until the steps are done; return the loss of each."""
    losses: list[float] = []
    step = int(training["step"])
    while step < options.steps:
        batch = next(loader)
        training, loss = train_step(optimizer, training, unpack(batch, seq_len=options.seq_len))
        step += 1
        losses.append(float(loss))
        log(options.log_steps, step, losses[-1], batch)
        if step % 20 == 0 or len(losses) == 1:
            print(f"step {step} loss {losses[-1]:.4f}", flush=True)
        if step % SAVE_EVERY == 0 or step == options.steps:
            save(options.checkpoint, training, loader.get_state())
    return losses


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_step(
    optimizer: optax.GradientTransformation, training: Tree, rows: dict[str, jax.Array]
) -> tuple[Tree, jax.Array]:
    """Return what a step leaves, and the loss before it; from the shardings of the arguments XLA finds what is to be summed over which axis."""
    loss, gradient = jax.value_and_grad(loss_of)(training["params"], rows)
    updates, state = optimizer.update(gradient, training["optimizer"], training["params"])
    params = optax.apply_updates(training["params"], updates)
    return {"params": params, "optimizer": state, "step": training["step"] + 1}, loss


def warm_up(count: jax.Array) -> jax.Array:
    """Return the learning rate of the step after ``count`` others."""
    return LEARNING_RATE * jnp.minimum((count + 1) / WARMUP_STEPS, 1.0)


# The model: embeddings, blocks, and a projection on the embeddings again. Norms have no weights.


def init(seed: int, vocab_size: int, seq_len: int) -> Tree:
    """Return parameters as a dict of arrays and a list of blocks; from numpy, which has nothing to compile for each shape."""
    heads = (HEADS, WIDTH // HEADS)
    shapes = {"qkv": (WIDTH, 3, *heads), "out": (*heads, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    random = np.random.default_rng(seed)

    def normal(shape: tuple[int, ...], scale: float) -> jax.Array:
        return jnp.asarray(random.normal(0, scale, shape), jnp.float32)

    blocks = [{name: normal(shape, WIDTH**-0.5) for name, shape in shapes.items()} for _ in range(LAYERS)]
    return {"embed": normal((vocab_size, WIDTH), 0.05), "place": normal((seq_len, WIDTH), 0.02), "blocks": blocks}


def predict(params: Tree, inputs: jax.Array) -> jax.Array:
    """Return logits float32[b, seq_len, vocab_size] of inputs int32[b, seq_len]."""
    x = params["embed"][inputs] + params["place"]
    for block in params["blocks"]:
        q, k, v = jnp.einsum("bsw,wthd->tbshd", norm(x), block["qkv"])
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + jnp.einsum("bshd,hdw->bsw", mixed, block["out"])
        x = x + jax.nn.gelu(norm(x) @ block["up"], approximate=True) @ block["down"]
    logits: jax.Array = norm(x) @ params["embed"].T
    return logits


def norm(x: jax.Array) -> jax.Array:
    """Return x with a mean square of 1 over its last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def loss_of(params: Tree, rows: dict[str, jax.Array]) -> jax.Array:
    """Return the mean loss in nats per token."""
    logits = predict(params, rows["inputs"])
    loss: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, rows["targets"]).mean()
    return loss


# The checkpoint: one .npz with an array per leaf, under its name in the tree, and the cursor as JSON.


def save(path: Path | None, training: Tree, cursor: Mapping[str, Any]) -> None:
    """Write training state and cursor, whole or not at all."""
    if path is None:
        return
    leaves, _ = jax.tree.flatten_with_path(training)
    arrays: dict[str, Any] = {name(leaf_path): np.asarray(leaf) for leaf_path, leaf in leaves}
    draft = path.with_name(path.name + ".draft")
    with draft.open("wb") as file:
        np.savez(file, cursor=np.array(json.dumps(cursor)), **arrays)
    draft.replace(path)


def load_arrays(path: Path, tree: Tree) -> Tree:
    """Return a tree of the same structure, its leaves from an .npz."""
    with np.load(path, allow_pickle=False) as arrays:
        return tree_map_with_path(lambda leaf_path, _: arrays[name(leaf_path)], tree)


def load_cursor(path: Path) -> dict[str, Any]:
    """Return the cursor in a checkpoint."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(json.loads(str(arrays["cursor"])))


def place(training: Tree, mesh: Mesh) -> Tree:
    """Return the tree on the mesh's devices, cut as MODEL_AXIS says."""

    def place_leaf(leaf_path: Any, leaf: Any) -> jax.Array:
        axis = MODEL_AXIS.get(name(leaf_path).rpartition(".")[2])
        spec = () if axis is None else (*[None] * axis, "model")
        placed: jax.Array = jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec)))  # type: ignore[no-untyped-call]  # as above
        return placed

    return tree_map_with_path(place_leaf, training)


def name(leaf_path: Any) -> str:
    """Return a leaf's name: ``blocks.0.qkv``."""
    return keystr(leaf_path, simple=True, separator=".")


def log(path: Path | None, step: int, loss: float, batch: Mapping[str, Any]) -> None:
    """Append a step's loss, which samples it was served, and over how many devices."""
    if path is not None:
        devices, samples = len(batch["tokens"].devices()), batch["sample"].tolist()
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "loss": loss, "devices": devices, "samples": samples}) + "\n")


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
    parser.add_argument("--devices", type=int, metavar="N", help="take the first N (default: all)")
    parser.add_argument("--model", type=int, default=1, metavar="M", help="devices that share each row, a divisor of N")
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
