"""Run by test_jax_check.py: one of two processes, of which the second differs in some way from the first; prints what each loader raised as JSON.

python one_that_differs.py PORT PROCESS COUNT
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_plans import mixed_plan
from jax_processes import devices_in_order, join

from jax_adapter import Loader


def serve(mesh: Mesh, spec: PartitionSpec, *, steps: int, seed: int = 11, first: int = 0, **options: Any) -> list[str]:
    """Return what the iteration raised, and how many batches came before it."""
    plan = mixed_plan(documents=True, seed=seed, skip=options.pop("skip", ()))
    damaged_from, failing = options.pop("damaged_from", None), options.pop("failing", False)
    found = 0
    options = {"batch_size": 16, "check_every": 3} | options
    with Loader(plan, sharding=NamedSharding(mesh, spec), **options) as loader:
        loader.set_state(plan.cursor(first))
        if damaged_from is not None:
            damage(loader, damaged_from, failing)
        try:
            for _ in range(steps):
                next(loader)
                found += 1
        except (RuntimeError, OSError) as error:
            return [str(error), str(found), str(loader.get_state()["sample"])]
    return ["", str(found), ""]


def damage(loader: Loader, first: int, failing: bool) -> None:
    """Let the loader's reader return another token in the row of sample ``first`` and in all behind it, or raise in their place."""
    original = loader._reader

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

        def __next__(self) -> Any:
            batch = next(original)
            rows = batch["sample"] >= first
            if failing and rows.any():
                raise OSError("the disk is gone")
            batch["tokens"][rows, 3] ^= 1
            return batch

    loader._reader = Damaged()  # type: ignore[assignment]


def main(port: str, number: str, count: str) -> None:
    """Serve under each difference; where nothing may differ, all steps come."""
    process = join(port, number, count)
    devices = np.array(devices_in_order())
    split = Mesh(devices, ("data",))
    crossing = Mesh(devices.reshape(2, 4).T, ("data", "model"))  # each row on both processes
    by_rows, second = PartitionSpec("data"), process == 1
    found = {
        "nothing": serve(crossing, by_rows, steps=10),
        "nothing, rows split": serve(split, by_rows, steps=10),
        "plan": serve(split, by_rows, steps=10, seed=12 if second else 11),
        "skips": serve(split, by_rows, steps=10, skip=[(500, 501)] if second else ()),
        "cursor": serve(split, by_rows, steps=10, first=48 if second else 32),
        "num_samples": serve(split, by_rows, steps=10, num_samples=320 if second else 336),
        "batch size": serve(split, by_rows, steps=10, batch_size=32 if second else 16),
        # rows 96 … are in step 6, which is checked; 69 in step 4, which is not, and its followers are seen at step 6
        "rows": serve(crossing, by_rows, steps=10, damaged_from=100 if second else 10**6),
        "rows, depth 0": serve(crossing, by_rows, steps=10, damaged_from=69 if second else 10**6, depth=0),
        "rows of one process only": serve(split, by_rows, steps=10, damaged_from=0 if second else 10**6),
        # at a step that is compared: the one that fails joins, and no process waits for another; asked again, all try that batch again
        "a failing reader": serve(split, by_rows, steps=10, damaged_from=96 if second else 10**6, failing=True),
        "a failing reader, each step checked": serve(
            split, by_rows, steps=10, damaged_from=32 if second else 10**6, failing=True, check_every=1
        ),
        # each row in two parts, one on each process: its parts are compared with nobody's; with a third axis, each part is on both
        "nothing, rows cut": serve(crossing, PartitionSpec("data", "model"), steps=10),
        "a part of cut rows": serve(
            Mesh(devices.reshape(2, 2, 2), ("model", "data", "context")),
            PartitionSpec("data", "context"),
            steps=10,
            damaged_from=100 if second else 10**6,
        ),
        "unchecked": serve(crossing, by_rows, steps=10, damaged_from=0 if second else 10**6, check_every=0),
    }
    print("FOUND " + json.dumps(found), flush=True)
    jax.effects_barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
