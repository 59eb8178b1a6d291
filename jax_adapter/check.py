"""Whether the processes of a mesh serve the same thing: 64-bit digests, gathered from all and compared on each.

JAX accepts different data for one replicated row without a word, and trains on; a process with another plan or cursor is found by nobody else.
What is compared: the numbers below, and a digest of each part of the batch (the rows, and of a cut row the columns, that one device holds) among
the processes that hold it.

    failed · step · plan · sample · pass (batch_size, num_samples, last) · part 0 · part 1 · …          uint64, 0: a part not held

All processes see all numbers, so all raise at the same step, and none waits for another: one whose reader failed tells that, and then raises its own
error.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_adapter.packed import Layout
from jax_adapter.rows import Columns
from neutral_core.batch import Batch

UInt64 = npt.NDArray[np.uint64]
_HEAD = ("step", "plan", "sample", "pass")  # behind "failed"


class Held(NamedTuple):
    """What a process holds of a global batch: ``packed`` [held parts of a row, rows, words], as ``jax_adapter.packed`` makes it."""

    packed: npt.NDArray[Any]
    layout: Layout
    rows: npt.NDArray[np.int64]
    columns: Columns


def digest(*pieces: bytes) -> int:
    """Return 64 bits of BLAKE2b of the pieces one after another, never 0."""
    state = hashlib.blake2b(digest_size=8)
    for piece in pieces:
        state.update(piece)
    return int.from_bytes(state.digest(), "little") or 1


def digests_of_parts(batch: Batch, held: Held, size: int, num_row_parts: int) -> UInt64:
    """Return uint64[num_row_parts · num_parts of a row]: of each part of a global batch that is held here a digest, rows first; 0 for the others.

    Args:
        batch: of numpy arrays, rows of ``held.rows``; ``sample`` and ``source`` are digested with each part of a row.
        held: what this process holds, packed.
        size: of the global batch, in rows.
    """
    columns = held.columns
    found = np.zeros((num_row_parts, columns.num_parts), dtype=np.uint64)
    per_part = size // num_row_parts
    for at in range(0, len(held.rows), per_part):
        rows = slice(at, at + per_part)
        numbers_of_rows = b"".join(batch[key][rows].tobytes() for key in ("sample", "source"))
        for place, part in enumerate(columns.parts):
            found[int(held.rows[at]) // per_part, part] = digest(
                repr(held.layout).encode(), numbers_of_rows, held.packed[place, rows].tobytes()
            )
    return found.ravel()


def numbers(*, step: int, plan: str, sample: int, options: str, parts: UInt64, failed: bool = False) -> UInt64:
    """Return uint64[5 + num_parts]: what a process tells the others; ``plan`` and ``options`` are text, digested here."""
    head = [failed, step, digest(plan.encode()), sample, digest(options.encode())]
    return np.concatenate([np.array(head, dtype=np.uint64), parts])


def gather(mine: UInt64, mesh: Mesh) -> tuple[list[int], UInt64]:
    """Return (processes of the mesh, ascending; uint64[len(processes), n]: of each its numbers); called by all of them, it waits for all.

    A collective over one device of each process. The numbers travel as pairs of uint32, since JAX without x64 would cut uint64. With one process
    nothing is sent.
    """
    processes, each, spread = _collective(mesh)
    if len(processes) == 1:
        return processes, mine[None]
    words = mine.view(np.uint32)[None]
    sent = jax.make_array_from_callback((len(processes), words.shape[1]), each, lambda _: words)
    return processes, np.ascontiguousarray(np.asarray(spread(sent).addressable_shards[0].data)).view(np.uint64)


@lru_cache(maxsize=16)
def _collective(mesh: Mesh) -> tuple[list[int], NamedSharding, Callable[[jax.Array], jax.Array]]:
    """Return (processes of the mesh, ascending; the sharding of one row on each; the jitted copy of all rows to each, compiled once a mesh)."""
    by_process = {device.process_index: device for device in reversed(list(mesh.devices.flat))}
    processes = sorted(by_process)
    narrow = Mesh(np.array([by_process[process] for process in processes]), ("process",))
    each = NamedSharding(narrow, PartitionSpec("process"))  # type: ignore[no-untyped-call]  # JAX leaves it untyped
    everywhere = NamedSharding(narrow, PartitionSpec())  # type: ignore[no-untyped-call]  # as above
    return processes, each, jax.jit(lambda rows: rows, out_shardings=everywhere)


def compare(processes: Sequence[int], gathered: UInt64, *, batch_size: int, num_columns: int = 1) -> None:
    """Raise RuntimeError, naming the step, the processes and what differs, unless all that the processes told agrees.

    ``num_columns``: into how many parts a row is cut.
    """
    failed = [process for process, told in zip(processes, gathered[:, 0].tolist(), strict=True) if told]
    if failed:
        raise RuntimeError(
            f"{_where(gathered)}: {_named(failed)} could not read its rows, and says why in an error of its own."
        )
    for column, name in enumerate(_HEAD, 1):
        values = dict(zip(processes, gathered[:, column].tolist(), strict=True))
        if len(set(values.values())) > 1:
            raise RuntimeError(f"{_where(gathered)}: {_sentence(name, values)}")
    parts = gathered[:, 1 + len(_HEAD) :]
    per_part = batch_size * num_columns // parts.shape[1]
    for part in range(parts.shape[1]):
        values = {process: value for process, value in zip(processes, parts[:, part].tolist(), strict=True) if value}
        if len(set(values.values())) > 1:
            first, column = part // num_columns * per_part, part % num_columns
            rows = f"rows {first} … {first + per_part - 1}" + (f", part {column} of {num_columns}," * (num_columns > 1))
            raise RuntimeError(
                f"{_where(gathered)}: {_others(values)} read other data for {rows} of the global batch than "
                f"{_most(values)}: one of them reads a damaged or changed file; run millstream verify there."
            )


def _where(gathered: UInt64) -> str:
    return f"step {int(gathered[0, 1])}, sample {int(gathered[0, 3])}: the processes differ"


def _sentence(name: str, values: dict[int, int]) -> str:
    others, most = _others(values), _most(values)
    if name in ("step", "sample"):
        told = ", ".join(f"{value} on process {process}" for process, value in list(values.items())[:8])
        return f"{others} is at another {name} than {most} ({told}): restore the same state on all, and take a batch on each in turn."
    if name == "plan":
        return f"{others} serves another plan than {most}: compare plan.fingerprint and plan.skips."
    return f"{others} was made with another batch_size, num_samples or last than {most}."


def _most(values: dict[int, int]) -> str:
    """Return the processes with the value that most have; of equally frequent ones, that of the first process."""
    [(common, _)] = Counter(values.values()).most_common(1)
    return _named([process for process, value in values.items() if value == common])


def _others(values: dict[int, int]) -> str:
    [(common, _)] = Counter(values.values()).most_common(1)
    return _named([process for process, value in values.items() if value != common])


def _named(processes: list[int]) -> str:
    shown = ", ".join(map(str, processes[:8])) + (", …" if len(processes) > 8 else "")
    return f"process {shown}"
