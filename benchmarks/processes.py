"""Run commands as processes from start to exit: seconds, CPU seconds and memory of all that they start. Linux only: /proc says it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLED_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a run took; memory in bytes: the most of the tree's resident sets, of the first process, of one of the others, of the tree's PSS."""

    seconds: float
    cpu_seconds: float
    tree: int
    first: int
    other: int
    shares: int


class FailedError(Exception):
    """A process ended with another status than 0: the last line that it said."""


def run(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], log: Path, *, shares: bool = False
) -> Measured:
    """Run commands at the same time and wait for all; ``shares``: measure the PSS too, which costs some milliseconds a look."""
    environment = os.environ | environment
    with open(log, "wb") as said:
        start = time.perf_counter()
        children = [
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)
            for command in commands
        ]
        peak = _Peak([child.pid for child in children], shares=shares)
        ended = [os.wait4(child.pid, 0) for child in children]
        seconds = time.perf_counter() - start
        peak.stop()
    for child, (_, status, _) in zip(children, ended, strict=True):
        child.returncode = os.waitstatus_to_exitcode(status)
    if any(child.returncode for child in children):
        raise FailedError((log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1])
    return Measured(
        seconds=seconds,
        # The system's sum leaves out what nobody waited for, such as a fork server's processes; what was seen, all that ends between two looks.
        cpu_seconds=max(sum(usage.ru_utime + usage.ru_stime for _, _, usage in ended), sum(peak.cpu_seconds.values())),
        tree=peak.tree,
        first=peak.first,
        other=peak.other,
        shares=peak.shares,
    )


class _Peak:
    """The most memory of processes and their descendants, in bytes, looked at now and then until ``stop``."""

    def __init__(self, processes: list[int], *, shares: bool) -> None:
        self.tree = self.first = self.other = self.shares = 0
        self.cpu_seconds: dict[int, float] = {}
        self._processes, self._shares = processes, shares
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLED_SECONDS):
            tree = [each for process in self._processes for each in _family(process)]
            found = {each: _memory_of(each, "status") for each in tree}
            for each in tree:
                self.cpu_seconds[each] = max(self.cpu_seconds.get(each, 0.0), _cpu_seconds_of(each))
            self.tree = max(self.tree, sum(told.get("VmRSS:", 0) for told in found.values()))
            for process, told in found.items():  # its own peak, so that none between two looks is missed
                if process == self._processes[0]:
                    self.first = max(self.first, told.get("VmHWM:", 0))
                else:
                    self.other = max(self.other, told.get("VmHWM:", 0))
            if self._shares:
                self.shares = max(self.shares, sum(_memory_of(each, "smaps_rollup").get("Pss:", 0) for each in tree))


def _family(process: int) -> list[int]:
    """Return a process and all that descend from it."""
    found = [process]
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _family(int(child))
    except OSError:  # it has ended
        pass
    return found


def _cpu_seconds_of(process: int) -> float:
    """Return what a process has used so far, without its children; 0 once it has ended."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _memory_of(process: int, file: str) -> dict[str, int]:
    """Return what one of the system's files says of a process, in bytes; nothing once it has ended."""
    try:
        lines = [line.split() for line in Path(f"/proc/{process}/{file}").read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) * 1024 for line in lines if line[-1:] == ["kB"]}
