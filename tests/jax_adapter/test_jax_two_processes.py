"""Two real processes with four devices each: every shard of either holds the core's rows, at seven layouts of the mesh."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # jax_plans.py

from jax_plans import mixed_plan  # noqa: E402 - after importorskip


def test_two_processes_hold_the_cores_rows_and_equal_states_at_every_layout() -> None:
    """Each layout resumes where the one before stopped, so that this is also resume at another mesh."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "one_of_two_processes.py"), str(port), str(number)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (0, 1)
    ]
    try:
        results = [process.communicate(timeout=80) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors[-3000:]
    found = [json.loads(output.split("FOUND ", 1)[1].splitlines()[0]) for output, _ in results]
    assert found[0]["states"] == found[1]["states"]
    assert [state["sample"] for state in found[0]["states"]] == [48, 96, 144, 192, 240, 288, 336]
    expected = mixed_plan(extra_tokens=1).read(np.arange(336))["tokens"]
    steps = zip(found[0]["held"], found[1]["held"], strict=True)
    assert np.array_equal(np.concatenate([union(held + others) for held, others in steps]), expected)


def union(held: list[Any]) -> np.ndarray:
    """Return the global array of which the devices of both processes hold shards; what none holds is -1."""
    tokens = np.full((16, 18), -1)
    for [(first, last), (left, right)], shard in held:
        tokens[first:last, left:right] = shard
    return tokens
