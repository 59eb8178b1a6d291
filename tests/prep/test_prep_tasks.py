"""Tasks: results in order, errors that reach the caller, workers that never outlive it."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from prep.engines import local


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_the_order_of_the_jobs(workers: int) -> None:
    assert list(local.run(abs, list(range(-30, 0)), workers)) == list(range(30, 0, -1))


@pytest.mark.parametrize("workers", [1, 2])
def test_no_jobs_are_no_results(workers: int) -> None:
    assert list(local.run(abs, [], workers)) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_job_raises_reaches_the_caller(workers: int) -> None:
    with pytest.raises(ValueError, match=r"invalid literal for int.*'x'"):
        list(local.run(int, ["1", "x", "2"], workers))


def test_a_worker_that_is_ended_from_outside_is_said_in_one_sentence() -> None:
    with pytest.raises(ChildProcessError, match=r"one of 2 worker processes was ended from outside.*fewer --workers"):
        list(local.run(os._exit, [9, 9, 9], 2))


LONG = "__import__('time').sleep(600)"  # a job that nobody waits for


def test_a_job_that_fails_stops_the_others_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        list(local.run(eval, ["1/0", LONG, LONG, LONG], 2))
    assert time.monotonic() - begin < 100


def test_a_run_that_is_stopped_waits_for_no_job() -> None:
    begin = time.monotonic()
    results: Any = local.run(eval, ["7", LONG, LONG], 2)
    assert next(results) == 7
    results.close()
    assert time.monotonic() - begin < 100


def test_results_that_nobody_takes_leave_no_worker() -> None:
    results = local.run(abs, list(range(100)), 2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
