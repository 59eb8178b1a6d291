"""The whole path on real text, in one go: ``make demo``.

    python examples/demo.py [FOLDER]

1. prepares a corpus from the Python standard library's own sources (bytes and EOS), looks at it;
2. makes a pair as Megatron writes it and converts it; reads the same pair in place too;
3. reads a mixture of both at 1 and at 4 ranks: the same rows;
4. stops, resumes on 3 ranks: exactly the rows that were due come;
5. decodes one row back to text and names the file and line that it came from;
6. reads the same rows through PyTorch and JAX: bit for bit those of numpy;
7. trains examples/train_torch.py, kills it half-way, and resumes it at another number of ranks;
8. trains examples/train_jax.py, kills it half-way, and resumes it at another number of devices.

Every claim is checked: a difference ends the demonstration with an error. Steps 7 and 8 take half a minute to a minute each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from demo_training import Outcome, train_jax, train_torch

import neutral_core as nc
from prep.cli import main as millstream
from prep.inspect import origin_of
from prep.tokenizers import open_stored

SEQ_LEN = 1024
BATCH = 24  # divisible by 1, 2, 3 and 4
STEPS = 40
# Half a minute on 2 cores with nothing else to do; the halves are multiples of 50, when checkpoints are written.
TRAINING_STEPS = {"torch": 200, "jax": 200}


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("demo"), help="made anew (default: demo)")
    folder = parser.parse_args().folder
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)

    library_corpus, converted = make_corpora(folder)

    say("3. One order at 1 and at 4 ranks")
    sources = [nc.Source(library_corpus, name="library", weight=0.7), nc.Source(converted, name="legacy", weight=0.3)]
    plan = nc.Plan(sources, seq_len=SEQ_LEN, seed=17, documents=True)
    print(
        f"plan {plan.fingerprint}: windows in an epoch {dict(zip(plan.names, plan.num_windows.tolist(), strict=True))}"
    )
    whole, end = read_at_several_ranks(plan)

    say("5. Where a row came from")
    document, line, text = trace_back(plan, library_corpus, folder, whole["sample"][whole["source"] == 0])
    print(text)

    say("6. The same rows in PyTorch and in JAX")
    for framework, (rows, cursor) in {
        "PyTorch, 2 ranks": serve_torch(plan, ranks=2, steps=STEPS),
        "JAX, 2 devices": serve_jax(plan, devices=2, steps=STEPS),
    }.items():
        widths = ", ".join(f"{key} {column.dtype}" for key, column in rows.items())
        check(same(rows, whole), f"{framework}: the rows are those of numpy, bit for bit once as wide ({widths})")
        check(cursor == end, f"{framework}: the cursor is that of numpy")

    say("7. PyTorch learns, is killed, and goes on at another number of ranks")
    corpus, steps = folder / "library", TRAINING_STEPS
    in_torch = train_torch(corpus, folder / "torch", ranks=(2, 3), batch_size=BATCH, steps=steps["torch"])
    judge(in_torch, steps["torch"], "ranks")

    say("8. JAX learns, is killed, and goes on at another number of devices")
    in_jax = train_jax(corpus, folder / "jax", devices=(2, 4), batch_size=BATCH, steps=steps["jax"])
    judge(in_jax, steps["jax"], "devices")

    print(
        f"\nDone: {len(whole['sample']):,} rows of {SEQ_LEN:,} targets from {library_corpus.num_tokens + converted.num_tokens:,} tokens were the same "
        f"at 1, 4 and, resumed, 3 ranks, and bit for bit in numpy, PyTorch and JAX; one was traced back to {document}, line {line}; "
        f"PyTorch learned to {in_torch.loss:.2f} and JAX to {in_jax.loss:.2f} nats a token (unigram {in_torch.baseline:.2f}), "
        f"killed at {in_torch.parts[0]} ranks and {in_jax.parts[0]} devices, resumed at {in_torch.parts[1]} and {in_jax.parts[1]}, "
        f"with exactly the {in_torch.num_samples:,} and {in_jax.num_samples:,} samples that were due."
    )


def make_corpora(folder: Path) -> tuple[nc.Corpus, nc.Corpus]:
    """Return a corpus prepared from text, and one converted from a pair of Megatron's."""
    say("1. Text becomes a corpus: the standard library's own sources")
    library = copy_sources(folder / "text")
    command("prepare", str(library), str(folder / "library"), "--glob", "*.py", "--tokenizer", "byte", "--append-eos")
    command("inspect", str(folder / "library"))

    say("2. An old binary becomes a corpus: a pair as Megatron writes it")
    library_corpus = nc.open_corpus(folder / "library")
    write_megatron_pair(folder / "legacy_text_document", library_corpus)
    command("convert", str(folder / "legacy_text_document"), str(folder / "converted"), "--vocab-size", "257")
    in_place, converted = nc.open_corpus(folder / "legacy_text_document"), nc.open_corpus(folder / "converted")
    check(
        np.array_equal(in_place.tokens(0, in_place.num_tokens), converted.tokens(0, converted.num_tokens)),
        "the pair in place and its conversion hold the same tokens",
    )
    return library_corpus, converted


def read_at_several_ranks(plan: nc.Plan) -> tuple[nc.Batch, dict[str, object]]:
    """Return the rows of STEPS global batches and the state behind them, after reading them at 1, 4 and, resumed, 3 ranks."""
    whole, end = serve(plan, ranks=1, steps=STEPS)
    four, state = serve(plan, ranks=4, steps=STEPS // 2)
    check(
        same(four, {key: rows[: len(four["sample"])] for key, rows in whole.items()}),
        "4 ranks together read what 1 reads",
    )
    shares = np.bincount(whole["source"], minlength=2) / len(whole["source"])
    print(f"shares served so far: library {shares[0]:.3f}, legacy {shares[1]:.3f}")

    say("4. Stop, and resume on 3 ranks")
    saved = json.dumps(state)
    print(f"state: {saved}")
    three, _ = serve(plan, ranks=3, steps=STEPS - STEPS // 2, state=json.loads(saved))
    due = {key: rows[len(four["sample"]) :] for key, rows in whole.items()}
    check(same(three, due), "the rows after the resume are exactly those that were due")
    return whole, end


def copy_sources(folder: Path) -> Path:
    """Copy the library's sources that are UTF-8: a stable folder, without its tests and installed packages."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(name.parts):
            continue
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    return folder


def write_megatron_pair(prefix: Path, corpus: nc.Corpus) -> None:
    """Write the corpus' first 100 documents, each twice as large as needed (uint16), as Megatron's tools write them."""
    documents = [corpus.document(number).astype("<u2") for number in range(100)]
    lengths = np.array([len(document) for document in documents], dtype="<i4")
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]).astype("<i8") * 2
    prefix.with_name(prefix.name + ".bin").write_bytes(b"".join(document.tobytes() for document in documents))
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
    index = lengths.tobytes() + pointers.tobytes() + np.arange(len(documents) + 1, dtype="<i8").tobytes()
    prefix.with_name(prefix.name + ".idx").write_bytes(header + index)


def serve(
    plan: nc.Plan, *, ranks: int, steps: int, state: dict[str, object] | None = None
) -> tuple[nc.Batch, dict[str, object]]:
    """Return the rows that ``ranks`` loaders read together in ``steps`` steps, in the order of the global batches, and the state behind them."""
    loaders = [nc.Loader(plan, batch_size=BATCH, dp_rank=rank, dp_world_size=ranks) for rank in range(ranks)]
    for loader in loaders:
        if state is not None:
            loader.set_state(state)
    rows = gather(loaders, steps)
    states = [loader.get_state() for loader in loaders]
    check(all(other == states[0] for other in states), f"all {ranks} ranks hold the same state")
    for loader in loaders:
        loader.close()
    return rows, states[0]


def serve_torch(plan: nc.Plan, *, ranks: int, steps: int) -> tuple[nc.Batch, dict[str, object]]:
    """Return, from PyTorch's loaders on the CPU, what ``serve`` returns."""
    import torch_adapter  # here, and JAX below, because the steps before need numpy alone

    loaders = [
        torch_adapter.Loader(plan, batch_size=BATCH, device="cpu", dp_rank=rank, dp_world_size=ranks)
        for rank in range(ranks)
    ]
    rows, states = gather(loaders, steps), [loader.state_dict() for loader in loaders]
    check(all(other == states[0] for other in states), f"all {ranks} ranks hold the same state")
    for loader in loaders:
        loader.close()
    return rows, states[0]


def serve_jax(plan: nc.Plan, *, devices: int, steps: int) -> tuple[nc.Batch, dict[str, object]]:
    """Return, from JAX's loader over virtual devices, what ``serve`` returns."""
    import jax

    import jax_adapter

    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    jax.config.update("jax_num_cpu_devices", devices)  # type: ignore[no-untyped-call]  # as above
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))  # type: ignore[no-untyped-call]  # as above
    with jax_adapter.Loader(plan, batch_size=BATCH, sharding=sharding) as loader:
        return gather([loader], steps), loader.get_state()


def gather(loaders: Sequence[Iterator[Mapping[str, Any]]], steps: int) -> nc.Batch:
    """Return the rows that ``loaders`` read together, in the order of the global batches, as numpy arrays."""
    batches = [next(loader) for _ in range(steps) for loader in loaders]
    return {key: np.concatenate([np.asarray(batch[key]) for batch in batches]) for key in batches[0]}


def judge(outcome: Outcome, steps: int, parts: str) -> None:
    """Check that a training's two runs were served what was due, and that it learned."""
    first, second = outcome.parts
    check(first != second, f"the first run had {first} {parts}, the second {second}")
    check(
        outcome.cursor == steps // 2 * BATCH,
        f"it was killed half-way: its last checkpoint's cursor is sample {outcome.cursor:,}; {outcome.repeated} steps more died with it and were done again",
    )
    due = {step: list(range((step - 1) * BATCH, step * BATCH)) for step in range(1, steps + 1)}
    check(
        outcome.served == due,
        f"all {parts} together were served, in each step, the whole global batch: samples 0 to {outcome.num_samples - 1:,} once each, in order",
    )
    check(
        outcome.loss < outcome.baseline,
        f"the last loss, {outcome.loss:.3f} nats a token, is below that of token frequencies alone, {outcome.baseline:.3f}",
    )


def trace_back(plan: nc.Plan, corpus: nc.Corpus, folder: Path, samples: np.ndarray) -> tuple[str, int, str]:
    """Return file, line and decoded text of the first row that begins inside a file, compared with the file itself."""
    row, piece = next((row, row.pieces[0]) for row in plan.trace(samples) if row.pieces[0].start > 0)
    sample = row.sample
    origin = origin_of(corpus, piece.document)
    assert origin is not None
    assert corpus.tokenizer is not None
    tokenizer = open_stored(folder / "library", corpus.tokenizer)
    document = corpus.document(piece.document)
    text = tokenizer.decode(plan.read([sample])["tokens"][0, piece.column : piece.column + piece.stop - piece.start])
    line = origin[1] + tokenizer.decode(document[: piece.start]).count("\n")
    stored = (folder / "text" / origin[0]).read_bytes()[piece.start : piece.stop].decode("utf-8", errors="replace")
    check(
        text == stored,
        f"sample {sample}, epoch {row.epoch} of {row.source!r}, is bytes {piece.start:,} to {piece.stop:,} of {origin[0]}",
    )
    return origin[0], line, "    " + "\n    ".join(text.splitlines()[:6])


def same(left: nc.Batch, right: nc.Batch) -> bool:
    """Return whether two batches are equal, bit for bit."""
    return set(left) == set(right) and all(np.array_equal(left[key], right[key]) for key in left)


def command(*arguments: str) -> None:
    """Run the command as a user would."""
    print("$ millstream " + " ".join(arguments))
    if millstream(arguments):
        sys.exit("demo: the command failed.")


def check(holds: bool, claim: str) -> None:
    """Say what holds, or end."""
    if not holds:
        sys.exit(f"demo: it does not hold that {claim}.")
    print(f"✓ {claim}")


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n=== {title} ===", flush=True)


if __name__ == "__main__":
    main()
