"""Processes that differ are found, and the error names them, the step and what differs: on real processes, and on numbers by hand."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402 - after importorskip
from jax_plans import mixed_plan  # noqa: E402 - after importorskip
from jax_processes import run_processes  # noqa: E402 - after importorskip

from jax_adapter import Loader, check  # noqa: E402 - after importorskip
from jax_adapter.packed import Layout  # noqa: E402 - after importorskip
from jax_adapter.rows import Columns  # noqa: E402 - after importorskip


@pytest.fixture(scope="module")
def raised() -> list[dict[str, list[str]]]:
    """Of each of two processes: difference → (what its loader raised, batches before it, the state's sample after it)."""
    return run_processes("one_that_differs.py", 2)


@pytest.mark.parametrize(
    ("difference", "message", "batches", "sample"),
    [
        (
            "plan",
            "step 0, sample 0: the processes differ: process 1 serves another plan than process 0: compare plan.fingerprint and plan.skips.",
            0,
            (0, 0),
        ),
        (
            "skips",
            "step 0, sample 0: the processes differ: process 1 serves another plan than process 0: compare plan.fingerprint and plan.skips.",
            0,
            (0, 0),
        ),
        (
            "cursor",
            "step 0, sample 32: the processes differ: process 1 is at another sample than process 0 (32 on process 0, 48 on process 1): "
            "restore the same state on all, and take a batch on each in turn.",
            0,
            (32, 48),
        ),
        (
            "num_samples",
            "step 0, sample 0: the processes differ: process 1 was made with another batch_size, num_samples or last than process 0.",
            0,
            (0, 0),
        ),
        (
            "batch size",
            "step 0, sample 0: the processes differ: process 1 was made with another batch_size, num_samples or last than process 0.",
            0,
            (0, 0),
        ),
        (
            "rows",
            "step 6, sample 96: the processes differ: process 1 read other data for rows 4 … 7 of the global batch than process 0: "
            "one of them reads a damaged or changed file; run millstream verify there.",
            6,
            (96, 96),
        ),
        (
            "rows, depth 0",
            "step 6, sample 96: the processes differ: process 1 read other data for rows 0 … 3 of the global batch than process 0: "
            "one of them reads a damaged or changed file; run millstream verify there.",
            6,
            (96, 96),
        ),
        (
            "a part of cut rows",
            "step 6, sample 96: the processes differ: process 1 read other data for rows 0 … 7, part 0 of 2, of the global batch than process 0: "
            "one of them reads a damaged or changed file; run millstream verify there.",
            6,
            (96, 96),
        ),
    ],
)
def test_both_processes_say_which_one_differs_and_at_which_step(
    raised: list[dict[str, list[str]]], difference: str, message: str, batches: int, sample: tuple[int, int]
) -> None:
    for process in (0, 1):
        assert raised[process][difference] == [message, str(batches), str(sample[process])]


@pytest.mark.parametrize(("difference", "step"), [("a failing reader", 6), ("a failing reader, each step checked", 2)])
def test_a_process_that_cannot_read_tells_the_others_before_it_raises_its_own_error(
    raised: list[dict[str, list[str]]], difference: str, step: int
) -> None:
    message = f"step {step}, sample {16 * step}: the processes differ: process 1 could not read its rows, and says why in an error of its own."
    assert raised[0][difference] == [message, str(step), str(16 * step)]
    assert raised[1][difference] == ["the disk is gone", str(step), str(16 * step)]


@pytest.mark.parametrize(
    "none", ["nothing", "nothing, rows split", "nothing, rows cut", "rows of one process only", "unchecked"]
)
def test_where_no_two_processes_hold_different_rows_or_nothing_is_checked_all_batches_come(
    raised: list[dict[str, list[str]]], none: str
) -> None:
    """Damage in rows that one process alone holds can't be seen by comparing; ``check="blocks"`` of open_corpus finds it."""
    assert [process[none] for process in raised] == [["", "10", ""]] * 2


def gathered(*processes: list[int]) -> Any:
    return np.array(processes, dtype=np.uint64)


def test_of_many_processes_those_that_are_not_as_most_are_named() -> None:
    numbers = gathered(*([0, 7, 1, 64, 1, *parts] for parts in ([5, 0], [0, 6], [5, 0], [4, 0])))
    with pytest.raises(
        RuntimeError, match=r"^step 7, sample 64: .*: process 9 read other data for rows 0 … 7 .* than process 3, 5: "
    ):
        check.compare([3, 4, 5, 9], numbers, batch_size=16)
    with pytest.raises(
        RuntimeError, match=r"process 0, 1, 2, 3, 4, 5, 6, 7, … serves another plan than process 9, 10, "
    ):
        plans = [[0, 0, 1 + process, 0, 1, 1] if process < 9 else [0, 0, 99, 0, 1, 1] for process in range(20)]
        check.compare(range(20), gathered(*plans), batch_size=8)
    with pytest.raises(
        RuntimeError, match=r"process 0 is at another step than process 1, 2 \(4 on process 0, 5 on process 1, "
    ):
        check.compare(range(3), gathered([0, 4, 1, 0, 1], [0, 5, 1, 0, 1], [0, 5, 1, 0, 1]), batch_size=8)
    with pytest.raises(
        RuntimeError, match=r"^step 4, sample 16: the processes differ: process 1, 2 could not read its rows"
    ):
        failed = [[0, 4, 1, 16, 1, 5], [1, 4, 1, 16, 1, 0], [1, 5, 2, 0, 1, 0]]
        check.compare(range(3), gathered(*failed), batch_size=8)


def test_parts_that_one_process_holds_alone_are_not_compared() -> None:
    check.compare([0, 1], gathered([0, 0, 1, 0, 1, 5, 0, 7], [0, 0, 1, 0, 1, 0, 6, 7]), batch_size=9)


@pytest.mark.parametrize("parts", [(0, 1), (1,)])
def test_a_digest_is_blake2b_of_layout_numbers_of_rows_and_packed_bytes_of_each_part(parts: tuple[int, ...]) -> None:
    columns = Columns(
        cut=True, num_parts=2, parts=parts, starts=(0, 4)[: len(parts)], tokens=5, targets=4, stretches=((0, 9),)
    )
    layout = Layout(fields=(), word="<u2", width=3, cut=True)
    packed = np.arange(len(parts) * 12, dtype="<u2").reshape(len(parts), 4, 3)
    batch = {"sample": np.arange(4, dtype="<i8"), "source": np.arange(4, dtype="<i4")}
    held = check.Held(packed, layout, np.array([2, 3, 6, 7]), columns)
    found = check.digests_of_parts(batch, held, 8, 4).reshape(4, 2)
    assert found[[0, 2]].tolist() == [[0, 0]] * 2
    assert (found[[1, 3]] > 0).tolist() == [[0 in parts, True]] * 2
    text = repr(layout).encode() + batch["sample"][2:].tobytes() + batch["source"][2:].tobytes()
    last = text + packed[-1, 2:].tobytes()
    assert int(found[3, 1]) == int.from_bytes(hashlib.blake2b(last, digest_size=8).digest(), "little")
    assert len(set(found[found > 0].tolist())) == 2 * len(parts)


def test_one_process_gathers_its_own_numbers_without_jax_narrowing_them(devices: list[Any]) -> None:
    mine = np.array([2**63 + 5, 1], dtype=np.uint64)
    processes, numbers = check.gather(mine, Mesh(np.array(devices), ("data",)))
    assert processes == [0]
    assert numbers.tolist() == [[2**63 + 5, 1]]


def test_one_process_compares_nothing(devices: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "gather", None)
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    with Loader(mixed_plan(), batch_size=8, sharding=sharding, check_every=1) as loader:
        assert loader.check_every == 0
        assert next(loader)["sample"].tolist() == list(range(8))


def test_a_negative_check_every_is_refused(devices: list[Any]) -> None:
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
    with pytest.raises(ValueError, match=r"check_every is -1, expected an integer from 0 on\."):
        Loader(mixed_plan(), batch_size=8, sharding=sharding, check_every=-1)
