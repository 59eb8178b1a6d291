"""Engines: the same bytes whoever does the tasks, and in whatever order."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

import neutral_core as nc
from neutral_core.format.publish import Workplace
from prep import engines, tasks
from prep.engines.ranks import Rank, rank_of
from prep.pieces import Options
from prep.prepare import lines_of, prepare
from prep.tokenizers import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def asked(tmp_path: Path) -> Options:
    """Of two files, some twenty tasks."""
    numbers = random.Random(7)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        lines = [f"{number} {'abcdefgh' * numbers.randrange(1, 12)}" for number in range(300)]
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    return Options(
        inputs=(str(folder),), destination=tmp_path / "out", tokenizer=Settings(kind="byte", append_eos=True), documents="line",
        tokens_per_shard=9000, task_bytes=2000,
    )  # fmt: skip


def tree_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def alone(asked: Options) -> dict[str, bytes]:
    destination = asked.destination.with_name("alone")
    prepare(replace(asked, destination=destination))
    return tree_of(destination)


@pytest.mark.parametrize("world", [1, 2, 3, 64])
@pytest.mark.parametrize("validation", [None, "0.3"])
def test_ranks_one_after_another_make_the_bytes_of_one_process(
    asked: Options, world: int, validation: str | None
) -> None:
    asked = replace(asked, validation=validation)
    order = list(range(world))
    random.Random(world).shuffle(order)
    for number, rank in enumerate(order):
        report = prepare(replace(asked, rank=Rank(rank=rank, world_size=world)))
        last = world < 64 and number == world - 1
        if not last and world < 64:
            assert report["corpora"] == []
            assert "other ranks' and not done yet" in lines_of(report)[0]
    assert tree_of(asked.destination) == alone(asked)


def test_any_of_the_ranks_may_be_the_last(asked: Options) -> None:
    expected = alone(asked)
    for order in permutations(range(3)):
        out = asked.destination.with_name("".join(map(str, order)))
        reports = [
            prepare(replace(asked, destination=out, rank=Rank(rank=rank, world_size=3), workers=1)) for rank in order
        ]
        assert [len(report["corpora"]) for report in reports] == [0, 0, 1]
        assert tree_of(out) == expected


def test_a_rank_that_comes_when_the_corpus_is_there_is_content(asked: Options) -> None:
    asked = replace(asked, task_bytes=1 << 20)  # one task: rank 0 has done all of it before rank 1 looks
    prepare(replace(asked, rank=Rank(rank=0, world_size=2)))
    before = tree_of(asked.destination)
    report = prepare(replace(asked, rank=Rank(rank=1, world_size=2)))
    assert lines_of(report) == ["rank 1 of 2: its tasks are done; the corpus is there: another rank put it together."]
    assert tree_of(asked.destination) == before


def test_a_rank_refuses_a_corpus_of_other_inputs_or_settings(asked: Options) -> None:
    prepare(replace(asked, tokens_per_shard=7000))
    with pytest.raises(FileExistsError, match="there is a corpus already"):
        prepare(replace(asked, rank=Rank(rank=1, world_size=2)))


def test_a_rank_of_another_number_of_ranks_goes_on_with_what_is_done(asked: Options) -> None:
    prepare(replace(asked, rank=Rank(rank=1, world_size=3)))
    for rank in range(2):
        prepare(replace(asked, rank=Rank(rank=rank, world_size=2)))
    assert tree_of(asked.destination) == alone(asked)


def test_one_process_goes_on_with_what_ranks_have_done(asked: Options) -> None:
    prepare(replace(asked, rank=Rank(rank=1, world_size=3)))
    prepare(asked)
    assert tree_of(asked.destination) == alone(asked)


def test_ranks_with_other_settings_are_refused_naming_them(asked: Options) -> None:
    prepare(replace(asked, rank=Rank(rank=0, world_size=2)))
    with pytest.raises(FileExistsError, match="with other tokens_per_shard"):
        prepare(replace(asked, tokens_per_shard=7000, rank=Rank(rank=1, world_size=2)))


def test_several_ranks_may_work_at_once_and_nobody_else(asked: Options) -> None:
    with Workplace(asked.destination, shared=True), Workplace(asked.destination, shared=True):
        with pytest.raises(BlockingIOError, match="another process is writing there now"):
            prepare(asked)
        assert prepare(replace(asked, rank=Rank(rank=0, world_size=2)))["corpora"] == []
    with Workplace(asked.destination), pytest.raises(BlockingIOError, match="another process is writing there now"):
        prepare(replace(asked, rank=Rank(rank=1, world_size=2)))


def test_a_rank_leaves_the_assembly_to_the_one_that_is_at_it(asked: Options) -> None:
    prepare(replace(asked, rank=Rank(rank=0, world_size=2)))
    with tasks.held(asked.destination / ".partial" / "assembly", wait=False) as mine:
        assert mine
        report = prepare(replace(asked, rank=Rank(rank=1, world_size=2)))
    assert lines_of(report) == ["rank 1 of 2: its tasks are done; another rank puts the corpus together."]
    assert len(prepare(replace(asked, rank=Rank(rank=1, world_size=2)))["corpora"]) == 1


RANK = """
import sys
from dataclasses import replace
from prep.engines.ranks import Rank
from prep.prepare import prepare
import pickle
asked, rank = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2])
print(len(prepare(replace(asked, rank=Rank(rank=rank, world_size=3)))["corpora"]))
"""


def test_ranks_at_the_same_time_make_the_bytes_of_one_process(asked: Options) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, pickle.dumps(asked).hex(), str(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    assert sorted(outputs) == ["0\n", "0\n", "1\n"]
    assert tree_of(asked.destination) == alone(asked)


def test_restart_is_refused_of_several_ranks(asked: Options) -> None:
    with pytest.raises(ValueError, match="--rank 0/1 --restart"):
        prepare(replace(asked, restart=True, rank=Rank(rank=0, world_size=2)))


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (3, 8)),
        ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_COUNT": "4"}, (2, 4)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "4",
                "SLURM_ARRAY_TASK_COUNT": "3",
            },
            (2, 3),
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (1, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),  # a batch script, which is alone
        (
            {
                "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "2",
                "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3",
            },
            (4, 6),
        ),
    ],
)  # fmt: skip
def test_the_rank_is_what_the_launcher_says(environment: dict[str, str], rank: tuple[int, int]) -> None:
    found = rank_of(environment)
    assert (found.rank, found.world_size) == rank


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2"},
        {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3"},
    ],
)
def test_numbers_that_do_not_fit_together_are_refused_with_what_to_give(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give --rank R/W"):
        rank_of(environment)


def test_ranks_of_one_machine_share_its_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert Rank(rank=0, world_size=2, on_this_host=2).workers() == max(cores // 2, 1)
    assert Rank().workers() == cores


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of local, ray"):
        engines.run("dask", abs, [1], 1)


@pytest.mark.slow
def test_ray_makes_the_bytes_of_one_process(asked: Options) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        prepare(replace(asked, engine="ray"))
        with pytest.raises(ValueError, match=r"invalid literal for int.*'x'"):
            list(engines.run("ray", int, ["1", "x", "2"], 1))
    finally:
        ray.shutdown()
    assert tree_of(asked.destination) == alone(asked)
    assert nc.open_corpus(asked.destination).num_documents == 600
