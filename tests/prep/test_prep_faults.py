"""Disks that are full, closed or broken: one sentence, no part of a corpus, and a rerun that makes the same bytes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import neutral_core as nc

ROOT = Path(__file__).parents[2]
ASKED = ["--tokenizer", "byte", "--append-eos", "--documents", "line", "--tokens-per-shard", "100000", "--workers", "1"]
RUN = "import sys; from prep.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of about 1.3 MB."""
    numbers = random.Random(11)
    path = tmp_path_factory.mktemp("source") / "a.txt"
    path.write_text("\n".join(f"{n} {'abcdefgh' * numbers.randrange(1, 12)}" for n in range(24_000)))
    return path


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    destination = tmp_path_factory.mktemp("whole") / "out"
    assert prepare(source, destination).returncode == 0
    return tree_of(destination)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.name != "posix" or os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def prepare(source: Path, destination: Path, *before: str) -> subprocess.CompletedProcess[str]:
    # The interpreter itself: a shim would fork, and strace count its calls too. It knows the environment by its prefix only.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [*before, os.path.realpath(sys.executable), "-c", RUN, "prepare", str(source), str(destination), *ASKED]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def tree_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def assert_nothing_half_done(destination: Path, ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("millstream prepare: "), ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(destination)


def test_a_full_disk_is_said_and_a_rerun_with_room_makes_the_same_bytes(
    source: Path, whole: dict[str, bytes], small_disk: Path
) -> None:
    destination = small_disk / "out"
    ended = prepare(source, destination)
    assert_nothing_half_done(destination, ended)
    assert "No space left on device; free some space and run the same command again." in ended.stderr
    subprocess.run(["mount", "-o", "remount,size=40m", str(small_disk)], check=True)
    assert prepare(source, destination).returncode == 0
    assert tree_of(destination) == whole


def test_an_output_that_cannot_be_written_is_said(source: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = prepare(source, small_disk / "out")
    assert ended.returncode == 1
    assert ended.stderr == f"millstream prepare: {small_disk}/out: Read-only file system.\n"


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_an_error_of_any_call_that_matters_leaves_nothing_that_a_rerun_does_not_mend(
    source: Path, whole: dict[str, bytes], tmp_path: Path, call: str
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    calls = "fsync,fdatasync" if call == "fsync" else "rename,renameat,renameat2"
    counted = prepare(
        source, tmp_path / "counted", "strace", "-f", "-qq", "-o", str(tmp_path / "calls"), "-e", f"trace={calls}"
    )
    if counted.returncode:
        pytest.skip("strace may not trace here")
    number = len((tmp_path / "calls").read_text().splitlines())
    assert number > 10
    failed = 0
    for at in (1, 3, number // 2):
        destination = tmp_path / f"out-{at}"
        error = "EIO" if call == "fsync" else "ENOSPC"
        ended = prepare(
            source, destination, "strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={at}"
        )  # fmt: skip
        if ended.returncode == 0:  # strace counts the calls of each thread by itself: none came so far
            assert tree_of(destination) == whole, at
            continue
        failed += 1
        if (destination / "dataset.json").exists():  # the last sync comes when the corpus is whole
            assert tree_of(destination).keys() >= whole.keys(), at
        else:
            assert_nothing_half_done(destination, ended)
        again = prepare(source, destination)
        assert again.returncode == 0, (at, again.stderr)
        assert tree_of(destination) == whole, at
    assert failed >= 2
