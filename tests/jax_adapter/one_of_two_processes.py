"""Run by test_jax_two_processes.py: one of two processes with four virtual devices each; prints its states and what its devices hold as JSON.

python one_of_two_processes.py PORT PROCESS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_plans import mixed_plan

import neutral_core as nc
from jax_adapter import Loader, unpack

BATCH = 16
# name → devices' places in the mesh, its axes, the spec, rows of process 0, rows of process 1
LAYOUTS: dict[str, tuple[Any, tuple[str, ...], tuple[Any, ...], list[int], list[int]]] = {
    "contiguous": (range(8), ("data",), ("data",), list(range(8)), list(range(8, 16))),
    "interleaved": (
        [0, 4, 1, 5, 2, 6, 3, 7],
        ("data",),
        ("data",),
        [0, 1, 4, 5, 8, 9, 12, 13],
        [2, 3, 6, 7, 10, 11, 14, 15],
    ),
    "model axis in a process": (
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        ("data", "model"),
        ("data",),
        list(range(8)),
        list(range(8, 16)),
    ),
    "model axis across processes": (
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        ("data", "model"),
        ("data",),
        list(range(16)),
        list(range(16)),
    ),
    "replicated batch": (range(8), ("data",), (), list(range(16)), list(range(16))),
    "processes in reverse": (
        [7, 6, 5, 4, 3, 2, 1, 0],
        ("data",),
        ("data",),
        list(range(8, 16)),
        list(range(8)),
    ),
    "tokens cut across processes": (
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        ("data", "context"),
        ("data", "context"),
        list(range(16)),
        list(range(16)),
    ),
}


def main(port: str, process: int) -> None:
    """Serve three batches under each layout, each from the state of the one before."""
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process, initialization_timeout=30)
    devices = sorted(jax.devices(), key=lambda device: device.id)
    by_process = [[device for device in devices if device.process_index == p] for p in (0, 1)]
    devices = by_process[0] + by_process[1]
    plan = mixed_plan(documents=True, extra_tokens=1)
    states: list[dict[str, Any]] = []
    held: list[list[Any]] = []  # of each step
    for places, axes, spec, *rows in LAYOUTS.values():
        mesh = Mesh(np.vectorize(devices.__getitem__, otypes=[object])(np.array(places)), axes)
        with Loader(plan, batch_size=BATCH, sharding=NamedSharding(mesh, PartitionSpec(*spec))) as loader:
            if states:
                loader.set_state(states[-1])
            assert loader.rows.tolist() == rows[process]
            for step in range(3):
                first = (3 * len(states) + step) * BATCH
                batch = next(loader)
                check(batch, plan.read(np.arange(first, first + BATCH)), rows[process])
                held.append(shards_of(batch["tokens"]))
            states.append(loader.get_state())
    print("FOUND " + json.dumps({"states": states, "held": held}), flush=True)


def shards_of(tokens: jax.Array) -> list[Any]:
    """Return of each device of this process ((first row, last row + 1), (first column, last column + 1)) of its shard, and what is in it."""
    return [
        (
            [part.indices(length)[:2] for part, length in zip(shard.index, tokens.shape, strict=True)],
            np.asarray(shard.data).tolist(),
        )
        for shard in tokens.addressable_shards
    ]


def check(batch: dict[str, Any], expected: nc.Batch, rows: list[int]) -> None:
    """Each shard of this process holds the rows of its index, also after unpack, and a sum over all processes is that of the global batch."""
    assert batch["sample"].tolist() == expected["sample"][rows].tolist()
    unpacked = unpack(batch, seq_len=16)
    wide = {"inputs": expected["tokens"][:, :16], "targets": expected["tokens"][:, 1:17]}
    for key, array in (batch | {key: unpacked[key] for key in wide}).items():
        if key != "sample":
            want = (expected | wide)[key]
            assert array.shape == want.shape
            assert len(array.addressable_shards) == 4
            for shard in array.addressable_shards:
                assert np.array_equal(np.asarray(shard.data), want[shard.index])
    total = jax.jit(lambda rows: rows.sum())(unpacked["targets"])
    assert int(np.asarray(total.addressable_shards[0].data)) == int(wide["targets"].astype(np.int64).sum())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
