"""A killed run leaves nothing that a rerun does not mend, and a reader never sees a part of a corpus."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import neutral_core as nc

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("MILLSTREAM_KILLS", "3"))
MANY = int(os.environ.get("MILLSTREAM_MANY_KILLS", "240"))  # of prepare, in all
EVERY_S = 0.005
SEED = 20_260

# The command reads 1 MiB a task and more; the same work is cut finer here, so that a second of it has many tasks.
PREPARE = """
import sys
from dataclasses import replace
from pathlib import Path
from prep.engines.ranks import Rank
from prep.pieces import Options
from prep.prepare import prepare
from prep.tokenizers import Settings
if __name__ == "__main__":
    asked = Options(inputs=(sys.argv[1],), destination=Path(sys.argv[2]), tokenizer=Settings(kind="byte", append_eos=True),
                    documents="line", tokens_per_shard=400_000, workers=2, task_bytes=60_000)
    try:
        {how}
    except FileExistsError as error:
        sys.exit(str(error))
"""
ENGINES = {
    "local": "prepare(asked)",
    "ray": "prepare(replace(asked, engine='ray'))",
    # Two processes: this one is rank 0, and starts rank 1, which ends with it.
    "ranks": """import os, subprocess, ctypes, signal
        if os.environ.get("RANK") == "1":
            sys.exit(prepare(replace(asked, workers=1, rank=Rank(rank=1, world_size=2))) is None)
        die = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": "1"}, preexec_fn=die)
        prepare(replace(asked, workers=1, rank=Rank(rank=0, world_size=2)))
        sys.exit(other.wait())""",
}
CONVERT = """
import sys
from prep.cli import main
if __name__ == "__main__":
    sys.exit(main(["convert", "--dtype", "uint16", "--boundaries", "eos:7", "--tokens-per-shard", "20000", "--workers", "2", *sys.argv[1:]]))
"""


@dataclass
class Case:
    """One command, its source, what it makes undisturbed, how long it takes, and whether several processes do it as ranks."""

    script: Path
    source: Path
    tokens: npt.NDArray[np.integer]
    tree: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    by_ranks: bool = False

    def start(self, destination: Path) -> subprocess.Popen[str]:
        command = [sys.executable, str(self.script), str(self.source), str(destination)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def undisturbed(self, destination: Path) -> None:
        begin = time.monotonic()
        with observed(destination, self.tokens, Counter()):  # which takes its share of the machine, as it will later
            process = self.start(destination)
            output, _ = process.communicate(timeout=120)
        self.seconds = 1.1 * (time.monotonic() - begin)
        assert process.returncode == 0, output
        self.tree = tree_of(destination)


def prepare_case(folder: Path, engine: str) -> Case:
    numbers = random.Random(SEED)
    source = folder / "text.txt"
    with source.open("wb") as file:
        for number in range(60_000):
            file.write(b"%d %s\n" % (number, b"abcdefgh" * numbers.randrange(1, 12)))
    expected = [np.frombuffer(line, dtype=np.uint8).astype(np.uint16) for line in source.read_bytes().splitlines()]
    tokens = np.concatenate([np.append(line, np.uint16(256)) for line in expected])
    script = folder / "run_prepare.py"
    script.write_text(PREPARE.replace("{how}", ENGINES[engine]))
    case = Case(script, source, tokens, by_ranks=engine == "ranks")
    case.undisturbed(folder / "undisturbed")
    return case


@pytest.fixture(scope="module")
def convert_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("convert")
    tokens = np.random.default_rng(SEED).integers(0, 400, 2_000_000).astype(np.uint16)
    source = folder / "old.bin"
    tokens.tofile(source)
    script = folder / "run_convert.py"
    script.write_text(CONVERT)
    case = Case(script, source, tokens)
    case.undisturbed(folder / "undisturbed")
    return case


@pytest.mark.parametrize("engine", ["local", "ranks"])
def test_a_killed_prepare_run_again_gives_the_bytes_of_an_undisturbed_run(engine: str, tmp_path: Path) -> None:
    kill_and_rerun(prepare_case(tmp_path, engine), tmp_path, KILLS if engine == "local" else (KILLS + 2) // 3)


def test_a_killed_convert_run_again_gives_the_bytes_of_an_undisturbed_run(convert_case: Case, tmp_path: Path) -> None:
    kill_and_rerun(convert_case, tmp_path, KILLS)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kills"), [("local", MANY // 2), ("ranks", MANY * 2 // 5), ("ray", -(-MANY // 10))])
def test_many_kills_over_all_engines_leave_nothing_that_a_rerun_does_not_mend(
    engine: str, kills: int, tmp_path: Path
) -> None:
    """A start of Ray takes as long as several of the others' runs, so that it has fewer of them."""
    if engine == "ray":
        pytest.importorskip("ray")
    print(f"\n{engine}:", kill_and_rerun(prepare_case(tmp_path, engine), tmp_path, kills))


@pytest.mark.slow
def test_fifty_kills_of_convert_leave_nothing_that_a_rerun_does_not_mend(convert_case: Case, tmp_path: Path) -> None:
    print("\nconvert:", kill_and_rerun(convert_case, tmp_path, 50))


def kill_and_rerun(case: Case, folder: Path, kills: int) -> str:
    """Kill ``kills`` runs, two thirds at moments spread over the run time and the others while it publishes; run each again; return figures."""
    numbers = random.Random(SEED)
    phases: Counter[str] = Counter()
    looks: Counter[str] = Counter()
    for number in range(kills):
        destination = folder / f"corpus-{number}"
        with observed(destination, case.tokens, looks):
            if number % 3 == 2:
                was_killed = killed_in_publication(case, destination, numbers.random() * 0.03)
            else:
                was_killed = killed_after(case, destination, (number + numbers.random()) / kills * case.seconds)
            phase = phase_of(destination)
            again = case.start(destination)
            output, _ = again.communicate(timeout=120)
        phases[phase if was_killed else "ended before"] += 1
        where = f"kill {number}, {phase}: {output}"
        if phase == "finished" and not case.by_ranks:  # a rank is content with the corpus of its own run
            assert again.returncode == 1, where
            assert "there is a corpus already" in output, where
        else:
            assert again.returncode == 0, where
        left = tree_of(destination)
        assert left.keys() == case.tree.keys(), where
        assert [name for name in left if left[name] != case.tree[name]] == [], where
        shutil.rmtree(destination)
    return f"{kills - phases['ended before']} kills over {case.seconds:.2f} s; landed: {dict(phases)}; opened: {dict(looks)}"


def killed_after(case: Case, destination: Path, moment: float) -> bool:
    """Kill the command's own process and see its workers out; return False if it had ended by itself."""
    process = case.start(destination)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=moment)
    return killed(process)


def killed_in_publication(case: Case, destination: Path, delay: float) -> bool:
    """The same, some time after the first shard has come to its place."""
    process = case.start(destination)
    first = destination / "shard-00000.safetensors"
    while process.poll() is None and not first.exists():
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.001)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=delay)
    return killed(process)


def killed(process: subprocess.Popen[str]) -> bool:
    process.kill()
    output, _ = process.communicate(timeout=30)  # ends when the last process that holds its output has: the workers too
    assert process.returncode in (-signal.SIGKILL, 0), output
    return process.returncode != 0


def phase_of(destination: Path) -> str:
    partial = destination / ".partial"
    manifest = (destination / "dataset.json").exists()
    if not partial.exists():
        return "finished" if manifest else "starting"
    if manifest:
        # The record goes last but one; without it nothing tells this run from a finished one.
        return "cleaning up" if (partial / "run.json").exists() else "finished"
    if any(destination.glob("shard-*")):
        return "publishing"
    return "working" if (partial / "run.json").exists() else "starting"


@contextmanager
def observed(destination: Path, tokens: npt.NDArray[np.integer], looks: Counter[str]) -> Iterator[None]:
    """Open the destination every 5 ms meanwhile: it is not there, or it is whole; anything else fails the test."""
    done = threading.Event()
    wrong: list[BaseException] = []

    def look() -> None:
        while not done.wait(EVERY_S):
            try:
                corpus = nc.open_corpus(destination)
                assert corpus.num_tokens == len(tokens)
                assert np.array_equal(corpus.tokens(0, corpus.num_tokens), tokens)
                looks["whole"] += 1
            except FileNotFoundError:
                looks["FileNotFoundError"] += 1
            except BaseException as error:
                wrong.append(error)
                return

    thread = threading.Thread(target=look, name="observer")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if wrong:
        raise wrong[0]


def tree_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
