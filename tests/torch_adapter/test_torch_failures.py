"""What goes wrong in a run ends it: an error on every rank, soon, with no thread, process or shared memory left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import neutral_core as nc

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("one_rank_that_fails.py")
SOON = 60  # seconds, on a busy machine; a rank that hangs waits for hours
SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Six shards of 600 tokens: a rank of three is in the fourth after 15 steps or so."""
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=60_000, tokens_per_shard=600) as writer:
        for number in range(36):
            writer.add(np.arange(number * 100, number * 100 + 100))
    return tmp_path / "corpus"


class Run:
    """Ranks of one run, as processes."""

    def __init__(self, corpus: Path, world_size: int, fault: str) -> None:
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), str(corpus), str(corpus.parent / "meeting"), str(rank), str(world_size), fault],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            )
            for rank in range(world_size)
        ]  # fmt: skip

    def end(self) -> list[tuple[int, str, str]]:
        """Return (exit status, output, errors) of each rank; a rank that does not end is an error."""
        begin = time.monotonic()
        found = []
        for rank in self.ranks:
            output, errors = rank.communicate(timeout=max(SOON - (time.monotonic() - begin), 1))
            found.append((rank.returncode, output, errors))
        return found

    def stop(self) -> None:
        for rank in self.ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)  # with its workers
            except ProcessLookupError:
                continue
            rank.wait()

    def left(self) -> list[str]:
        """Processes of the ranks' groups, and shared memory that bears their numbers."""
        groups = [f"a process of rank {number}" for number, rank in enumerate(self.ranks) if _group_lives(rank.pid)]
        names = [path.name for path in SHARED_MEMORY.iterdir()] if SHARED_MEMORY.exists() else []
        return groups + [name for name in names for rank in self.ranks if f"_{rank.pid}_" in f"_{name}_"]


def _group_lives(group: int) -> bool:
    for _ in range(50):  # a worker notices that its parent is gone within seconds
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.2)
    return True


@pytest.fixture
def runs(corpus: Path) -> Iterator[list[Run]]:
    found: list[Run] = []
    yield found
    for run in found:
        run.stop()


def damage(corpus: Path, shard: int) -> str:
    """Change one token of a shard; return its name."""
    path = sorted(corpus.glob("*.safetensors"))[shard]
    content = bytearray(path.read_bytes())
    content[5000] ^= 1  # tokens begin behind the header, at 4096
    path.write_bytes(content)
    return path.name


def last_word(errors: str) -> str:
    """The last line of a traceback, without the rank that torch puts before it."""
    return re.sub(r"^\[rank\d+\]: ", "", errors.strip().splitlines()[-1])


def closed(errors: str) -> bool:
    """Whether a rank's last word is gloo's, that another rank is gone."""
    last = last_word(errors)
    return "RuntimeError" in last or "DistNetworkError" in last or "DistBackendError" in last


def test_kill_9_of_one_rank_ends_the_others_with_an_error(corpus: Path, runs: list[Run]) -> None:
    runs.append(Run(corpus, 3, "kill"))
    (first, killed, last) = runs[0].end()
    assert killed[0] == -signal.SIGKILL
    for status, output, errors in (first, last):
        assert status == 1
        assert closed(errors), errors
        assert "threads left: []" in output
    assert runs[0].left() == []


def test_an_exception_on_one_rank_ends_all_and_is_told_where_it_was(corpus: Path, runs: list[Run]) -> None:
    runs.append(Run(corpus, 3, "exception"))
    (first, faulty, last) = runs[0].end()
    assert last_word(faulty[2]) == "ZeroDivisionError: the loss is no number"
    assert all(status == 1 and "threads left: []" in output for status, output, _ in (first, faulty, last))
    assert closed(first[2])
    assert closed(last[2])
    assert runs[0].left() == []


def test_ctrl_c_ends_every_rank(corpus: Path, runs: list[Run]) -> None:
    run = Run(corpus, 3, "interrupt")
    runs.append(run)
    for rank in run.ranks:
        while rank.stdout and (line := rank.stdout.readline()).strip() != "waiting":
            assert line, rank.stderr and rank.stderr.read()
    for rank in run.ranks:
        rank.send_signal(signal.SIGINT)
    for status, output, errors in run.end():
        assert status == -signal.SIGINT
        assert last_word(errors) == "KeyboardInterrupt"
        assert "threads left: []" in output
    assert run.left() == []


def test_a_damaged_shard_in_mid_epoch_ends_every_rank_and_is_named(corpus: Path, runs: list[Run]) -> None:
    name = damage(corpus, 3)
    runs.append(Run(corpus, 3, "none"))
    found = runs[0].end()
    last_words = [last_word(errors) for _, _, errors in found]
    assert all(status == 1 and "threads left: []" in output for status, output, _ in found)
    assert "step 5" in found[0][1]  # in mid-epoch
    told = [line for line in last_words if "FormatError" in line]
    assert told
    assert all(name in line and "checksum" in line.lower() for line in told)
    assert all("FormatError" in line or closed(errors) for line, (_, _, errors) in zip(last_words, found, strict=True))
    assert runs[0].left() == []


def test_a_damaged_shard_is_named_through_workers_too(corpus: Path, runs: list[Run]) -> None:
    name = damage(corpus, 3)
    runs.append(Run(corpus, 1, "worker reads damage"))
    [(status, _, errors)] = runs[0].end()
    assert status == 1
    assert "FormatError" in errors
    assert name in errors
    assert runs[0].left() == []


def test_kill_9_of_a_worker_ends_its_rank_with_an_error(corpus: Path, runs: list[Run]) -> None:
    runs.append(Run(corpus, 1, "worker killed"))
    [(status, _, errors)] = runs[0].end()
    assert status == 1
    assert "DataLoader worker (pid" in errors
    assert "Killed" in errors
    assert runs[0].left() == []


def test_kill_9_of_a_rank_leaves_none_of_its_workers_and_none_of_their_shared_memory(
    corpus: Path, runs: list[Run]
) -> None:
    runs.append(Run(corpus, 1, "workers' rank killed"))
    [(status, _, _)] = runs[0].end()
    assert status == -signal.SIGKILL
    assert runs[0].left() == []


def test_an_exception_ends_a_rank_that_never_closes_its_loader(corpus: Path, runs: list[Run]) -> None:
    """Its reader's threads do not keep the interpreter."""
    runs.append(Run(corpus, 1, "not closed"))
    [(status, _, errors)] = runs[0].end()
    assert status == 1
    assert last_word(errors) == "ZeroDivisionError: nobody closes the loader"
    assert runs[0].left() == []
