"""Run by test_jax_processes.py: one of some processes with four virtual devices each; prints its states and what its devices hold as JSON.

python one_of_the_processes.py PORT PROCESS COUNT FOLDER

Two processes serve seven layouts and save; one and four go on from what they saved: by hand, through grain, through Orbax.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_plans import mixed_plan
from jax_processes import devices_in_order, join

import neutral_core as nc
from jax_adapter import Loader, addressable_rows, unpack

BATCH = 16
EVEN, ODD = [0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]
LOW, HIGH, ALL = list(range(8)), list(range(8, 16)), list(range(16))
Layout = tuple[Any, tuple[str, ...], tuple[Any, ...], list[list[int]]]
# name → devices' places in the mesh, its axes, the spec, rows of each process
TWO: dict[str, Layout] = {
    "contiguous": (range(8), ("data",), ("data",), [LOW, HIGH]),
    "interleaved": ([0, 4, 1, 5, 2, 6, 3, 7], ("data",), ("data",), [EVEN, ODD]),
    "model axis in a process": ([[0, 1, 2, 3], [4, 5, 6, 7]], ("data", "model"), ("data",), [LOW, HIGH]),
    "model axis across processes": ([[0, 4], [1, 5], [2, 6], [3, 7]], ("data", "model"), ("data",), [ALL, ALL]),
    "replicated batch": (range(8), ("data",), (), [ALL, ALL]),
    "processes in reverse": ([7, 6, 5, 4, 3, 2, 1, 0], ("data",), ("data",), [HIGH, LOW]),
    "tokens cut across processes": (
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        ("data", "context"),
        ("data", "context"),
        [ALL, ALL],
    ),
}
FOUR: dict[str, Layout] = {
    "contiguous": (range(16), ("data",), ("data",), [ALL[i : i + 4] for i in (0, 4, 8, 12)]),
    "interleaved": (np.arange(16).reshape(4, 4).T.ravel(), ("data",), ("data",), [ALL[i::4] for i in range(4)]),
    "model axis in a process": (
        np.arange(16).reshape(4, 4),
        ("data", "model"),
        ("data",),
        [ALL[i : i + 4] for i in (0, 4, 8, 12)],
    ),
    "model axis across two processes": (
        np.arange(16).reshape(2, 2, 4).swapaxes(1, 2).reshape(8, 2),
        ("data", "model"),
        ("data",),
        [LOW, LOW, HIGH, HIGH],
    ),
    "model axis across all processes": (np.arange(16).reshape(4, 4).T, ("data", "model"), ("data",), [ALL] * 4),
    "replicated batch": (range(16), ("data",), (), [ALL] * 4),
    "processes in another order": (
        np.arange(16).reshape(4, 4)[[2, 0, 3, 1]],
        ("data", "model"),
        ("data",),
        [ALL[i : i + 4] for i in (4, 12, 0, 8)],
    ),
    "tokens cut across processes": (
        np.arange(16).reshape(2, 2, 4).swapaxes(1, 2).reshape(8, 2),
        ("data", "context"),
        ("data", "context"),
        [LOW, LOW, HIGH, HIGH],
    ),
    "rows and tokens cut, model axis": (
        np.arange(16).reshape(4, 2, 2),
        ("data", "context", "model"),
        ("data", "context"),
        [ALL[i : i + 4] for i in (0, 4, 8, 12)],
    ),
}
LAYOUTS = {2: TWO, 4: FOUR}
STEPS = 3


def main(port: str, number: str, count: str, folder: str) -> None:
    """Serve three batches under each layout, each from the state of the one before; then save, or go on from what was saved."""
    process = join(port, number, count)
    devices = devices_in_order()
    plan = mixed_plan(documents=True)
    states: list[dict[str, Any]] = []
    held: list[list[Any]] = []  # of each step
    read: list[int] = []  # of each step, tokens of a row
    for places, axes, spec, rows in LAYOUTS[int(count)].values():
        mesh = Mesh(np.vectorize(devices.__getitem__, otypes=[object])(np.array(places)), axes)
        with Loader(
            plan, batch_size=BATCH, sharding=NamedSharding(mesh, PartitionSpec(*spec)), check_every=1
        ) as loader:
            if states:
                loader.set_state(states[-1])
            assert loader.rows.tolist() == rows[process]
            for step in range(STEPS):
                first = (STEPS * len(states) + step) * BATCH
                batch = next(loader)
                check(batch, plan.read(np.arange(first, first + BATCH)), rows[process], loader.sharding)
                held.append(shards_of(batch["tokens"]))
                read.append(loader._reader.plan.row_length)
            states.append(loader.get_state())
    found: dict[str, Any] = {"states": states, "held": held, "read": read, "kept": {}}
    mesh = Mesh(np.array(devices), ("data",))
    if count == "2":
        found["kept"] = save(Path(folder), mesh, process)
    else:
        found["kept"] = go_on(Path(folder), mesh)
    print("FOUND " + json.dumps(found), flush=True)


def save(folder: Path, mesh: Mesh, process: int) -> dict[str, list[int]]:
    """Serve four batches by each way and save its state; return the samples that this process was served."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    model = jax.make_array_from_callback((16,), sharding, lambda index: np.arange(16, dtype=np.float32)[index])
    served: dict[str, list[int]] = {}
    with Loader(mixed_plan(), batch_size=BATCH, sharding=sharding) as loader:
        served["by hand"] = [sample for _ in range(4) for sample in next(loader)["sample"].tolist()]
        if process == 0:
            (folder / "by_hand.json").write_text(json.dumps(loader.get_state()))
        save_with_orbax(folder / "orbax", 4, model, loader.get_state())
    served["orbax"] = served["by hand"]
    batches = grain_batches(sharding)
    served["grain"] = [sample for _ in range(4) for sample in next(batches)["sample"].tolist()]
    if process == 0:
        (folder / "grain.json").write_text(json.dumps(batches.get_state()))
    return served


def go_on(folder: Path, mesh: Mesh) -> dict[str, list[int]]:
    """Serve three more batches by each way, from its saved state; return the samples that this process was served."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    served: dict[str, list[int]] = {}
    model, cursor = restore_with_orbax(folder / "orbax", sharding)
    for shard in model.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), np.arange(16, dtype=np.float32)[shard.index])
    for way, state in (("by hand", json.loads((folder / "by_hand.json").read_text())), ("orbax", cursor)):
        with Loader(mixed_plan(), batch_size=BATCH, sharding=sharding) as loader:
            loader.set_state(state)
            served[way] = [sample for _ in range(3) for sample in next(loader)["sample"].tolist()]
    batches = grain_batches(sharding)
    batches.set_state(json.loads((folder / "grain.json").read_text()))
    served["grain"] = [sample for _ in range(3) for sample in next(batches)["sample"].tolist()]
    return served


def grain_batches(sharding: NamedSharding) -> Any:
    """Return the iterator of a grain pipeline over this process' rows."""
    from jax_adapter import GrainDataset

    dataset = GrainDataset(mixed_plan(), batch_size=BATCH, rows=addressable_rows(sharding, BATCH))
    return iter(dataset.map(lambda batch: {"sample": batch["sample"]}))


def save_with_orbax(folder: Path, step: int, model: jax.Array, cursor: dict[str, Any]) -> None:
    """Save model state and cursor as one checkpoint; called by all processes, the cursor is written by one."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder) as manager:
        arguments = ocp.args.Composite(model=ocp.args.StandardSave({"w": model}), data=ocp.args.JsonSave(cursor))
        assert manager.save(step, args=arguments)
        manager.wait_until_finished()


def restore_with_orbax(folder: Path, sharding: NamedSharding) -> tuple[jax.Array, dict[str, Any]]:
    """Return model state, under this run's sharding, and cursor of the last checkpoint."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder) as manager:
        model = {"w": jax.ShapeDtypeStruct((16,), np.float32, sharding=sharding)}
        arguments = ocp.args.Composite(model=ocp.args.StandardRestore(model), data=ocp.args.JsonRestore())
        restored = manager.restore(manager.latest_step(), args=arguments)
    return restored["model"]["w"], restored["data"]


def shards_of(tokens: jax.Array) -> list[Any]:
    """Return of each device of this process ((first row, last row + 1), (first column, last column + 1)) of its shard, and what is in it."""
    found = []
    for shard in tokens.addressable_shards:
        rows, column, length = shard.index[0].indices(tokens.shape[0])[:2], 0, tokens.shape[-1]
        if tokens.ndim == 3:
            column = shard.index[1].indices(tokens.shape[1])[0] * (length - 1)
        found.append(((rows, (column, column + length)), np.asarray(shard.data).reshape(-1, length).tolist()))
    return found


def check(batch: dict[str, Any], expected: nc.Batch, rows: list[int], sharding: NamedSharding) -> None:
    """Each shard of this process holds the rows of its index, also after unpack, and a sum over all processes is that of the global batch."""
    assert batch["sample"].tolist() == expected["sample"][rows].tolist()
    unpacked = unpack(batch, seq_len=16, sharding=sharding)
    wide = {"inputs": expected["tokens"][:, :16], "targets": expected["tokens"][:, 1:17]}
    wide |= {key: expected[key][:, :16] for key in ("segment_ids", "positions")}
    for key, array in ({"source": batch["source"]} | unpacked).items():
        want = (expected | wide)[key]
        assert array.shape == want.shape
        assert len(array.addressable_shards) == 4
        for shard in array.addressable_shards:
            assert np.array_equal(np.asarray(shard.data), want[shard.index])
    total = sum_of(unpacked["targets"])
    assert int(np.asarray(total.addressable_shards[0].data)) == int(wide["targets"].astype(np.int64).sum())


@jax.jit
def sum_of(rows: jax.Array) -> jax.Array:
    """Over all processes, so that one that is at another batch, or stays away, shows."""
    return rows.sum()


if __name__ == "__main__":
    main(*sys.argv[1:])
