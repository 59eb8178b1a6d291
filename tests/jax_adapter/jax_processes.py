"""Runs a script in several real processes of one JAX run, four virtual CPU devices each; a mismatch hangs JAX, so all are killed in the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def run_processes(script: str, count: int, *arguments: str, timeout: float = 110) -> list[Any]:
    """Run ``script PORT PROCESS COUNT *arguments`` ``count`` times; return what each printed as JSON behind FOUND, in the processes' order."""
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
            [sys.executable, str(HERE / script), str(port), str(number), str(count), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        results = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [json.loads(output.split("FOUND ", 1)[1].splitlines()[0]) for output, _ in results]


def join(port: str, process: str, count: str) -> int:
    """In the script: join the others; return this process' number."""
    import jax

    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=int(count), process_id=int(process), initialization_timeout=60
    )
    return int(process)


def devices_in_order() -> list[Any]:
    """In the script: return all devices, those of process 0 first."""
    import jax

    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
