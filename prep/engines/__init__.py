"""Engines: who does the tasks of a run. One interface, thin runners: ``local`` processes, ``ray``; ``ranks`` shares the tasks among several runs.

A task is idempotent and its result appears by one rename, so an engine may do it twice; what is made never depends on the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from prep.engines import local

Job = TypeVar("Job")
Result = TypeVar("Result")
ENGINES = ("local", "ray")


def run(engine: str, function: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """Yield ``function(job)`` for each job, in the order of the jobs.

    Args:
        engine: ``local``: processes on this machine; ``ray``: the cluster that RAY_ADDRESS names, or a local one.
        function: at a module's top level; raises what the caller is to see.
        jobs: plain data, taken one after another as there is somebody to do them.
        workers: processes, of ``local``; a Ray cluster knows its own.
    """
    if engine == "ray":
        from prep.engines import ray  # loads Ray

        return ray.run(function, jobs)
    if engine != "local":
        raise ValueError(f"the engine is {engine!r}, expected one of {', '.join(ENGINES)}.")
    return local.run(function, jobs, workers)
