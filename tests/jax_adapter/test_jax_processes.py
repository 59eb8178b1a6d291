"""Two and four real processes with four devices each: every shard holds the core's rows at every layout, and a run resumes at another count.

Two processes serve and save; four processes, and one (this one, with eight devices), go on from what they saved.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from jax_plans import mixed_plan
from jax_processes import run_processes
from one_of_the_processes import BATCH, LAYOUTS, STEPS, go_on

WAYS = ("by hand", "grain", "orbax")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("grain")
    pytest.importorskip("orbax.checkpoint")
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def two(folder: Path) -> list[Any]:
    """What two processes found, after which the folder holds their states."""
    return run_processes("one_of_the_processes.py", 2, str(folder))


@pytest.fixture(scope="module")
def four(folder: Path, two: list[Any]) -> list[Any]:
    """What four processes found, which went on from the states of two."""
    return run_processes("one_of_the_processes.py", 4, str(folder))


@pytest.mark.parametrize("count", [2, 4])
def test_the_processes_hold_the_cores_rows_and_equal_states_at_every_layout(
    count: int, request: pytest.FixtureRequest
) -> None:
    """Each layout resumes where the one before stopped, so that this is also resume at another mesh."""
    found = request.getfixturevalue({2: "two", 4: "four"}[count])
    layouts = len(LAYOUTS[count])
    assert layouts >= 6
    assert all(process["states"] == found[0]["states"] for process in found)
    assert [state["sample"] for state in found[0]["states"]] == [STEPS * BATCH * (n + 1) for n in range(layouts)]
    expected = mixed_plan().read(np.arange(STEPS * BATCH * layouts))["tokens"]
    steps = zip(*(process["held"] for process in found), strict=True)
    global_arrays = [union([shard for process in step for shard in process]) for step in steps]
    assert np.array_equal(np.concatenate(global_arrays), expected)


@pytest.mark.parametrize("count", [2, 4])
def test_a_process_reads_of_cut_rows_its_part_alone(count: int, request: pytest.FixtureRequest) -> None:
    """Half of 16 targets and one token more, where the context axis crosses processes; whole rows where it lies within one, or is none."""
    found = request.getfixturevalue({2: "two", 4: "four"}[count])
    across = "tokens cut across processes"
    assert across in LAYOUTS[count]
    for process in found:
        tokens = dict(zip(LAYOUTS[count], process["read"][::STEPS], strict=True))
        assert tokens == {name: 9 if name == across else 17 for name in LAYOUTS[count]}


@pytest.mark.parametrize("way", WAYS)
def test_what_two_processes_saved_goes_on_at_four_and_at_one_without_gap_or_repeat(
    folder: Path, two: list[Any], four: list[Any], devices: list[Any], way: str
) -> None:
    from jax.sharding import Mesh

    served = sorted(sample for process in two for sample in process["kept"][way])
    assert served == list(range(4 * BATCH))
    at_four = sorted(sample for process in four for sample in process["kept"][way])
    at_one = go_on(folder, Mesh(np.array(devices), ("data",)))[way]
    assert at_four == at_one == list(range(4 * BATCH, 7 * BATCH))


def test_the_cursor_in_an_orbax_checkpoint_is_one_file_by_one_process(folder: Path, two: list[Any]) -> None:
    """grain's own handler writes a file per process, named after the count, and fails at another count."""
    files = [path for path in (folder / "orbax" / "4" / "data").rglob("*") if path.is_file()]
    cursors = [path for path in files if path.read_bytes().startswith(b'{"version"')]
    assert len(cursors) == 1
    assert json.loads(cursors[0].read_text()) == mixed_plan().cursor(4 * BATCH)


def union(held: list[Any]) -> np.ndarray:
    """Return the global array of which the devices of all processes hold shards; what none holds is -1."""
    tokens = np.full((BATCH, 17), -1)
    for [(first, last), (left, right)], shard in held:
        tokens[first:last, left:right] = shard
    return tokens
