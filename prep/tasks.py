"""Tasks: run, in order, in several processes; and the record of a run that tells whether leftovers may be used.

A task is idempotent and its result appears by one rename, so that a rerun takes what is finished and does the rest. Workers end when the
process that started them does, however it ends, and at once when it stops before the last result (Ctrl-C, a task that failed).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from neutral_core.format import canonical
from neutral_core.format.files import remove, write_file
from neutral_core.format.manifest import MANIFEST
from neutral_core.format.publish import PARTIAL, Workplace
from prep.tokenizers import DEFINITION

Job = TypeVar("Job")
Result = TypeVar("Result")
_RUN = "run.json"


def run(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterator[Result]:
    """Yield ``function(job)`` for each job, in the order of the jobs.

    Args:
        function: at a module's top level; raises what the caller is to see.
        jobs: plain data.
        workers: processes; 1: in this one. At most 2 · workers + 2 results wait at a time.
    """
    if workers == 1 or len(jobs) <= 1:
        yield from map(function, jobs)
        return
    context = multiprocessing.get_context("spawn")  # a fork would inherit locks and threads
    stop, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_be_worker, initargs=(stop,))
    try:
        yield from _in_order(pool, function, jobs, 2 * workers + 2)
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


def start(
    destination: Path, record: Mapping[str, Any], *, restart: bool, splits: Sequence[str] = ("",)
) -> Workplace | None:
    """Return the workplace of a run in ``destination``, with the leftovers of an earlier one of the same record; None if that one had finished.

    Args:
        destination: folder of the corpus to be.
        record: plain data: command, settings, inputs with sizes and times. Leftovers are used only where it is the same.
        restart: discard leftovers, of whatever record.
        splits: folders below the destination that become corpora; "" is the destination itself.

    Raises:
        FileExistsError: the folder is not empty, or holds leftovers of another record: the message says what differs.
        BlockingIOError: another process works there.
    """
    content = canonical.dumps(record)
    earlier = _earlier(destination)
    finished = all((destination / split / MANIFEST).exists() for split in splits)
    if finished and (destination / PARTIAL).exists():
        finish(destination, splits)  # killed after its last step
        if earlier == record:
            return None
    place = Workplace(destination)
    try:
        if earlier is not None and earlier != record and not restart:
            different = sorted(key for key in {*earlier, *record} if earlier.get(key) != record.get(key))
            raise FileExistsError(
                f"{destination}: an earlier run was stopped there, with other {', '.join(different)}: run it again as it was, or give --restart to "
                "discard what it left."
            )
        if earlier != record or restart:
            if earlier is not None:
                _discard_published(destination)
            place.clear()
            write_file(place.path / _RUN, content)
        for split in splits:
            for leftover in (destination / split / PARTIAL).rglob(".*.tmp"):
                remove(leftover)
        for leftover in place.path.rglob(".*.tmp"):
            remove(leftover)
    except BaseException:
        place.release()
        raise
    return place


def finish(destination: Path, splits: Sequence[str] = ("",)) -> None:
    """Remove the workplace of a finished run; the record goes last, so that it is known to have finished wherever this is interrupted."""
    partial = destination / PARTIAL
    for split in splits:
        if split and (destination / split / PARTIAL).exists():
            remove(destination / split / PARTIAL)  # killed between the manifest and its clean-up
    with contextlib.suppress(FileNotFoundError):  # a second run of the same command may be cleaning up too
        for entry in sorted(partial.iterdir(), key=lambda path: path.name == _RUN):
            with contextlib.suppress(FileNotFoundError):
                remove(entry)
        partial.rmdir()


def _discard_published(destination: Path) -> None:
    """Remove what a stopped run had published already: its shards would pass for those of the new run."""
    for split in ("", "train", "validation"):
        folder = destination / split
        for name in (MANIFEST, DEFINITION):  # the manifest first: without it nothing is a corpus
            (folder / name).unlink(missing_ok=True)
        for shard in folder.glob("shard-*.safetensors"):
            shard.unlink()
        if split and folder.is_dir():
            if (folder / PARTIAL).exists():
                remove(folder / PARTIAL)
            if not any(folder.iterdir()):
                folder.rmdir()


def _earlier(destination: Path) -> Any:
    try:
        return canonical.loads((destination / PARTIAL / _RUN).read_bytes())
    except FileNotFoundError:
        return None


def _in_order(
    pool: ProcessPoolExecutor, function: Callable[[Job], Result], jobs: Sequence[Job], most: int
) -> Iterator[Result]:
    """Yield the results in the order of the jobs, with at most ``most`` of them under way."""
    ahead: deque[Future[Result]] = deque()
    for job in jobs:
        with _ctrl_c_later():
            ahead.append(pool.submit(function, job))
        if len(ahead) >= most:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


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
