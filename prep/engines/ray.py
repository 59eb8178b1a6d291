"""Tasks on a Ray cluster: the one that RAY_ADDRESS names or that runs on this machine, else a local one for as long as the run lasts.

All its machines see inputs and destination under the same paths. A task whose machine is lost is done again elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from prep.extras import require

Job = TypeVar("Job")
Result = TypeVar("Result")
_RETRIES = 10  # of a task whose process or machine was lost; what a task itself raises is not tried again
_AHEAD = 2  # tasks a core that are handed to Ray beforehand


def run(function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
    """Yield ``function(job)`` for each job, in the order of the jobs; see prep.engines.run."""
    ray = require("ray", extra="ray", purpose="--engine ray")
    ours = not ray.is_initialized()
    if ours:
        _connect(ray)
    try:
        yield from _in_order(ray, function, jobs)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise ChildProcessError(
            f"Ray lost a task {_RETRIES + 1} times ({type(error).__name__}), for want of memory perhaps: look at the cluster, then run the same command again."
        ) from None
    finally:
        if ours:
            ray.shutdown()  # a local cluster ends; of another one only this connection does


def _connect(ray: Any) -> None:
    # The other machines run the code that runs here, installed or not.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {"env_vars": {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}}
    ray.init(log_to_driver=False, logging_level="ERROR", runtime_env=environment)


def _in_order(ray: Any, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_result_of)
    most = _AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1) + 2
    ahead: deque[Any] = deque()
    under_way: list[Any] = []
    for job in jobs:
        reference = task.remote(function, job)
        ahead.append(reference)
        under_way.append(reference)
        while len(under_way) >= most:
            _, under_way = ray.wait(under_way)
        while ahead and ahead[0] not in under_way:
            yield _value(ray, ahead.popleft())
    while ahead:
        yield _value(ray, ahead.popleft())


def _result_of(function: Callable[[Job], Result], job: Job) -> tuple[Result | None, Exception | None]:
    """Return (result, None) or (None, what was raised): Ray would wrap an exception into one of its own, with a traceback in its text."""
    try:
        return function(job), None
    except Exception as error:
        return None, error


def _value(ray: Any, reference: Any) -> Any:
    result, error = ray.get(reference)
    if error is not None:
        raise error
    return result
