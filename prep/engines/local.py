"""Tasks in several processes of this machine.

Workers end when the process that started them does, however it ends, and at once when it stops before the last result (Ctrl-C, a task that failed).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing.connection import Connection
from types import FrameType
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def run(function: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """Yield ``function(job)`` for each job, in the order of the jobs.

    Args:
        function: at a module's top level; raises what the caller is to see.
        jobs: plain data.
        workers: processes; 1: in this one. One slow task keeps no other waiting: results after it are held until it is done.
    """
    jobs = iter(jobs)
    first = list(islice(jobs, workers))
    if workers == 1 or len(first) <= 1:
        yield from map(function, chain(first, jobs))
        return
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks and threads
    stop, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(len(first), mp_context=context, initializer=_be_worker, initargs=(stop,))
    try:
        yield from _in_order(pool, function, chain(first, jobs), 2 * workers + 2)
    except BrokenProcessPool:
        raise ChildProcessError(
            f"one of {workers} worker processes was ended from outside, for want of memory perhaps: run the same command again with fewer --workers."
        ) from None
    except BaseException:
        held.close()  # the workers end in the middle of what they do: a large file is one task and may take hours
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        held.close()
        stop.close()


def _in_order(
    pool: ProcessPoolExecutor, function: Callable[[Job], Result], jobs: Iterable[Job], most: int
) -> Iterator[Result]:
    """Yield the results in the order of the jobs, with at most ``most`` of them under way; raise the first error that is met."""
    ahead: deque[Future[Result]] = deque()
    under_way: set[Future[Result]] = set()
    for job in jobs:
        with _ctrl_c_later():
            future = pool.submit(function, job)
        ahead.append(future)
        under_way.add(future)
        while len(under_way) >= most:
            under_way = _still_under_way(under_way)
        while ahead and ahead[0].done():
            yield ahead.popleft().result()
    while ahead:
        while not ahead[0].done():
            under_way = _still_under_way(under_way)
        yield ahead.popleft().result()


def _still_under_way(futures: set[Future[Result]]) -> set[Future[Result]]:
    """Wait for one of them and return the others; raise what it raised."""
    done, left = wait(futures, return_when=FIRST_COMPLETED)
    for future in done:
        future.result()
    return left


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Hold Ctrl-C back while a process may be started, here and in the process.

    Here, because a process that was started and not told what to do complains; there, because it would die of it in the middle of its imports. It
    inherits the blocked signal, and ignores it from ``_be_worker`` on. The block alone would not do here: another thread may take the signal.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield  # only the main thread hears of Ctrl-C; Windows has no such block
        return
    came: list[tuple[int, FrameType | None]] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
    if came and callable(handler):
        handler(*came[0])


def _be_worker(stop: Connection) -> None:
    """Leave Ctrl-C to the parent, end with it or when it closes the other end of ``stop``, and tokenize with one thread.

    The processes are the parallelism: a library that starts a thread a core in each of them would make them wait for each other.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel, stop])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
