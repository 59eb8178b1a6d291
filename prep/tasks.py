"""The record of a run, which tells whether a rerun may use what an earlier one left.

A task is idempotent and its result appears by one rename, so that a rerun takes what is finished and does the rest. Who does the tasks: prep.engines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neutral_core.format import canonical
from neutral_core.format.files import remove, write_file
from neutral_core.format.manifest import MANIFEST
from neutral_core.format.publish import PARTIAL, Workplace
from prep.tokenizers.files import DEFINITIONS

try:
    import fcntl
except ImportError:  # Windows: no lock; two runs at once are then the caller's to prevent
    fcntl = None  # type: ignore[assignment]

_RUN = "run.json"
_START = "start"


def start(
    destination: Path, record: Mapping[str, Any], *, restart: bool, splits: Sequence[str] = ("",), shared: bool = False
) -> Workplace | None:
    """Return the workplace of a run in ``destination``, with the leftovers of an earlier one of the same record; None if that one had finished.

    Args:
        destination: folder of the corpus to be.
        record: plain data: command, settings, inputs with sizes and times. Leftovers are used only where it is the same.
        restart: discard leftovers, of whatever record.
        splits: folders below the destination that become corpora; "" is the destination itself.
        shared: with other runs of the same record, which do other tasks.

    Raises:
        FileExistsError: the folder is not empty, or holds leftovers of another record: the message says what differs.
        BlockingIOError: another process works there.
    """
    earlier = _earlier(destination)
    finished = all((destination / split / MANIFEST).exists() for split in splits)
    if finished and (destination / PARTIAL).exists():
        finish(destination, splits)  # killed after its last step
        if earlier == record:
            return None
    place = Workplace(destination, shared=shared)
    try:
        if shared:
            with held(place.path / _START, wait=True):
                _use_or_refuse(place, _earlier(destination), record, restart=False)
            return place
        _use_or_refuse(place, earlier, record, restart=restart)
        for folder in (place.path, *(destination / split / PARTIAL for split in splits)):
            for leftover in folder.rglob(".*.tmp"):
                remove(leftover)
    except BaseException:
        place.release()
        raise
    return place


def _use_or_refuse(place: Workplace, earlier: Any, record: Mapping[str, Any], *, restart: bool) -> None:
    """Keep leftovers of the same record, discard others where that is asked for; raise FileExistsError otherwise."""
    if earlier is not None and earlier != record and not restart:
        different = sorted(key for key in {*earlier, *record} if earlier.get(key) != record.get(key))
        raise FileExistsError(
            f"{place.directory}: an earlier run was stopped there, with other {', '.join(different)}: run it again as it was, or give --restart to "
            "discard what it left."
        )
    if earlier != record or restart:
        if earlier is not None:
            _discard_published(place.directory)
        place.clear(keep=(_START,))
        write_file(place.path / _RUN, canonical.dumps(record))


@contextlib.contextmanager
def held(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock file meanwhile, which dies with the process; yield whether it could be had, which with ``wait`` it always can."""
    with path.open("ab") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
        yield True


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
        for name in (MANIFEST, *DEFINITIONS.values()):  # the manifest first: without it nothing is a corpus
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
