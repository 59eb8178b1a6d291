"""Steps 7 and 8 of demo.py: an example trains, is killed half-way, and goes on at another number of ranks.

Nothing of a run is left behind: its processes are killed together, also after an error, a time limit or Ctrl-C, and what it writes stays in the
given folder. A run that fails ends the demonstration with the last lines that it printed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parent
TIME_LIMIT = 300  # seconds, of one run; with 2 cores it takes about 30, or 100 when they are busy
VIRTUAL_DEVICES = 4  # of which each run takes the first few
Lines = list[dict[str, Any]]  # of a run's log of samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a killed run and the one that resumed it did together.

    Attributes:
        cursor: the sample at which the killed run's last checkpoint stood.
        parts: in how many parts each of the two runs cut its global batches, as their logs say: torch's ranks, JAX's devices.
        repeated: steps that the killed run did after its last checkpoint, and the other again.
        served: the samples of each step that counts: the killed run's up to its last checkpoint, all of the other's.
        loss, baseline: at the end, and of a model that knows only how often each token occurs; nats per token.
    """

    cursor: int
    parts: tuple[int, int]
    repeated: int
    served: dict[int, list[int]]
    loss: float
    baseline: float

    @property
    def num_samples(self) -> int:
        """How many samples were served, each counted as often as it was."""
        return sum(map(len, self.served.values()))


def train_torch(corpus: Path, folder: Path, *, ranks: tuple[int, int], batch_size: int, steps: int) -> Outcome:
    """Train train_torch.py under torch's own launcher, first with ``ranks[0]`` processes, then with ``ranks[1]``."""
    import torch  # here, because demo.py begins with what needs numpy alone

    def launch(number: int) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(number)]
        options = ["--device", "cpu", "--batch-size", str(batch_size)]
        return [*launcher, str(EXAMPLES / "train_torch.py"), str(corpus), *options]

    def cursor_in(checkpoint: Path) -> int:
        return int(torch.load(checkpoint, weights_only=True)["data"]["sample"])

    def ranks_in(log: Lines) -> int:
        return len({line["rank"] for line in log})

    return _train((launch(ranks[0]), launch(ranks[1])), folder, steps, cursor_in, ranks_in)


def train_jax(corpus: Path, folder: Path, *, devices: tuple[int, int], batch_size: int, steps: int) -> Outcome:
    """Train train_jax.py, first over ``devices[0]`` virtual devices, then over ``devices[1]``."""

    def launch(number: int) -> list[str]:
        options = ["--devices", str(number), "--batch-size", str(batch_size)]
        return [str(EXAMPLES / "train_jax.py"), str(corpus), *options]

    def cursor_in(checkpoint: Path) -> int:
        with np.load(checkpoint, allow_pickle=False) as stored:
            return int(json.loads(str(stored["cursor"]))["sample"])

    def devices_in(log: Lines) -> int:
        (number,) = {int(line["devices"]) for line in log}
        return number

    return _train((launch(devices[0]), launch(devices[1])), folder, steps, cursor_in, devices_in)


def _train(
    launches: tuple[list[str], list[str]],
    folder: Path,
    steps: int,
    cursor_in: Callable[[Path], int],
    parts_in: Callable[[Lines], int],
) -> Outcome:
    """Launch one run, kill it when it is over half of its steps, launch the other; return what their logs and the checkpoint say."""
    (folder / "temporary").mkdir(parents=True)
    checkpoint, logs = folder / "checkpoint", (folder / "killed.jsonl", folder / "resumed.jsonl")
    common = ["--steps", str(steps), "--checkpoint", str(checkpoint)]
    _run([*launches[0], *common, "--log-steps", str(logs[0])], folder / "temporary", kill_after=steps // 2)
    cursor = cursor_in(checkpoint)
    output = _run([*launches[1], *common, "--resume", "--log-steps", str(logs[1])], folder / "temporary")
    figures = re.search(r"final loss (\S+), unigram baseline (\S+)", output)
    assert figures is not None  # it is what an example prints last

    killed, resumed = map(_read_log, logs)
    batch_size = sum(len(line["samples"]) for line in resumed if line["step"] == steps)
    done = cursor // batch_size
    served: dict[int, list[int]] = {}
    for line in [line for line in killed if line["step"] <= done] + resumed:
        served.setdefault(line["step"], []).extend(line["samples"])
    return Outcome(
        cursor=cursor,
        parts=(parts_in(killed), parts_in(resumed)),
        repeated=max(line["step"] for line in killed) - done,
        served=served,
        loss=float(figures[1]),
        baseline=float(figures[2]),
    )


def _read_log(path: Path) -> Lines:
    """Return the lines of a log by step and rank; the kill may have cut the last one short."""
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return sorted(map(json.loads, whole), key=lambda line: (line["step"], line.get("rank", 0)))


# One run: a process, and those that it starts.


def _run(arguments: list[str], temporary: Path, *, kill_after: int | None = None) -> str:
    """Run a Python program, show its progress and return its output; with ``kill_after``, kill it at the first step shown beyond that."""
    # Torch's ranks compute on one thread each; JAX has virtual devices of the CPU, whatever XLA's flags ask for.
    inherited = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    chosen = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(VIRTUAL_DEVICES)}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=inherited | chosen | {"TMPDIR": str(temporary.resolve())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches the demonstration alone, which then kills all of the run
    )
    assert process.stdout is not None
    print("$ python " + " ".join(arguments), flush=True)
    begin, killed, lines = time.monotonic(), False, list[str]()
    timer = threading.Timer(TIME_LIMIT, _kill, [process])
    timer.start()
    with process:  # waits for it at the end
        try:
            for line in process.stdout:  # ends when the last process that could write has ended: none is left
                lines.append(line)
                if line.startswith(("step ", "final ")):
                    print("    " + line, end="", flush=True)
                if kill_after is not None and not killed and _step_shown(line) > kill_after:
                    killed = True
                    _kill(process)
                    print("    killed", flush=True)
        except BaseException:
            _kill(process)
            raise
        finally:
            timer.cancel()
    if time.monotonic() - begin >= TIME_LIMIT:
        problem = f"took more than {TIME_LIMIT} s and was killed: this machine is too slow, or too busy"
    elif process.returncode != (-signal.SIGKILL if killed else 0):
        problem = f"ended with {process.returncode}"
    elif kill_after is not None and not killed:
        problem = f"ended before it showed a step after {kill_after}"
    else:
        return "".join(lines)
    sys.exit(f"demo: {' '.join(arguments)}\n{problem}; it printed last:\n{''.join(lines[-100:])}")


def _step_shown(line: str) -> int:
    """Return the step of a line that an example prints, 0 for any other line."""
    found = re.match(r"step (\d+) ", line)
    return int(found[1]) if found else 0


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and all below it at once, by SIGKILL.

    Not by its group: torch's launcher gives each rank a session, hence a group, of its own.
    """
    for pid in _tree(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tree(root: int) -> list[int]:
    """Return a process and all below it: from /proc where there is one, for a small system may have no ps, else from ps."""
    if Path("/proc/self/stat").exists():
        stats = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has just ended
                stats.append(path.read_text(errors="replace"))
        # pid (name) state parent …, and a name may hold anything
        parents = {int(stat.split()[0]): int(stat.rpartition(")")[2].split()[1]) for stat in stats}
    else:
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
        parents = {int(pid): int(parent) for pid, parent in map(str.split, table.splitlines())}
    tree = [root]
    for above in tree:
        tree.extend(pid for pid, parent in parents.items() if parent == above)
    return tree
