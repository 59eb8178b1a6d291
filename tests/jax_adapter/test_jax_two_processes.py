"""Two real processes with four devices each: every shard of either holds the core's rows, at seven layouts of the mesh."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

HERE = Path(__file__).parent


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
    states = [json.loads(output.split("STATES ", 1)[1].splitlines()[0]) for output, _ in results]
    assert states[0] == states[1]
    assert [state["sample"] for state in states[0]] == [48, 96, 144, 192, 240, 288, 336]
