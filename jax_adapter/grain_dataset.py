"""The core's loader as grain's IterDataset, whose state is the core's cursor: checked, O(1), and good for any number of processes.

    dataset = GrainDataset(plan, batch_size=512, rows=addressable_rows(sharding, 512)).map(…)
    batches = iter(dataset)
    state = batches.get_state()    # the cursor: the same on every process; iter(dataset).set_state(state) at any batch_size and share

grain keeps the state through .map and .batch as it is (.batch counts in elements of the parent) and reports what the consumer received through
ThreadPrefetchIterDataset and ``grain.experimental.device_put``. ``mp_prefetch`` has a state of its own: a cursor per worker, so it asks for the
same number of workers, though not of processes; it is hardly ever needed, for rows come from memory maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grain
import numpy.typing as npt

import neutral_core as nc
from neutral_core.batch_sizes import BatchSize


class GrainDataset(grain.IterDataset):  # type: ignore[misc]  # grain has no types
    """Global batches in order, this process' rows of each, as numpy; for grain's pipelines.

    Args:
        plan, batch_size, num_samples, last, dp_rank, dp_world_size, rows: as ``neutral_core.Loader`` has them. For a mesh:
            ``rows=addressable_rows(sharding, batch_size)``.

    Elements are dicts as the core's Loader returns them; ``sample`` is int64, which JAX would wrap: take it out before device_put. The cursor
    counts batches that left the dataset; a later transformation that holds elements back (``packing``) saves its parent's cursor, and packs again.

    ``repr`` is a fingerprint: of the plan, skips, batch_size, num_samples and last; ranks are no part of it. It pickles without maps or data.

    ``mp_prefetch(num_workers=W)`` gives worker w batches w, w + W, …: the same batches in the same order as without workers. More than one worker
    needs one ``batch_size``, not a schedule, and should have num_samples: an endless pass over a source with max_epochs ends up to W − 1 batches
    early.

    Raises:
        ValueError: an argument outside its range. StateError: from set_state, another plan's or other data's.
        ExhaustedError, FormatError, OSError: from the iteration, as the core's Loader raises them.
    """

    def __init__(
        self,
        plan: nc.Plan,
        *,
        batch_size: BatchSize,
        num_samples: int | None = None,
        last: str = "drop",
        dp_rank: int = 0,
        dp_world_size: int = 1,
        rows: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__()
        share = {"dp_rank": dp_rank, "dp_world_size": dp_world_size, "rows": rows}
        self.plan = plan
        self._options: dict[str, Any] = {"batch_size": batch_size, "num_samples": num_samples, "last": last, **share}
        self._worker, self._num_workers = 0, 1
        nc.Loader(plan, threads=0, **self._options)  # refuses what it would refuse later

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep batches worker, worker + W, … of those that are left: what ``mp_prefetch`` asks of each of its W workers' copies."""
        if sequential_slice:
            raise ValueError("sequential_slice is True, expected False: it would change the order of the batches.")
        worker, num_workers = sl.start or 0, sl.step or 1
        if num_workers > 1 and not isinstance(self._options["batch_size"], int):
            raise ValueError(
                f"{num_workers} workers with a schedule of batch sizes: give mp_prefetch one worker, or none."
            )
        self._worker, self._num_workers = worker + self._num_workers * self._worker, self._num_workers * num_workers

    def __iter__(self) -> _Batches:
        return _Batches(self.plan, self._options, self._worker, self._num_workers)

    def __repr__(self) -> str:
        skipped = f", skip={self.plan.skips.runs}" if self.plan.skips.runs else ""
        options = ", ".join(f"{name}={self._options[name]!r}" for name in ("batch_size", "num_samples", "last"))
        return f"GrainDataset(plan={self.plan.fingerprint}{skipped}, {options})"

    __str__ = __repr__


class _Batches(grain.DatasetIterator):  # type: ignore[misc]  # as above
    """The iterator of a GrainDataset; of worker w of W: a loader of groups of W batches, which reads the w-th of each group."""

    def __init__(self, plan: nc.Plan, options: Mapping[str, Any], worker: int, num_workers: int) -> None:
        super().__init__()
        self._whole = nc.Loader(plan, threads=0, **options)
        self._loader, self._worker, self._num_workers = self._whole, worker, num_workers
        self._left: int | None = None  # batches to come; None: as many as the loader has
        if num_workers > 1:
            size = options["batch_size"]
            rows = worker * size + self._whole.rows
            # The last group of a pass may be cut short; padded, it still has its first batches.
            self._loader = nc.Loader(
                plan,
                batch_size=num_workers * size,
                rows=rows,
                num_samples=options["num_samples"],
                last="pad",
                threads=0,
            )
            self._count()

    def __next__(self) -> nc.Batch:
        if self._closed:
            raise ValueError("the iterator is closed: make another one.")
        if self._left == 0:
            raise StopIteration
        batch = next(self._loader)
        if self._left is not None:
            self._left -= 1
        if self._loader is not self._whole and self._whole.last == "drop":
            del batch["loss_mask"]  # of the padding, in which no batch lies that is served
        return batch

    def get_state(self) -> dict[str, Any]:
        """Return the core's cursor before the next batch (of worker w of W: before its group)."""
        return self._loader.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken; O(1). Raise StateError, naming the part that differs."""
        self._loader.set_state(state)
        if self._loader is not self._whole:
            self._count()

    def close(self) -> None:
        """Let nothing follow; there are no threads to stop."""
        super().close()
        self._whole.close()
        self._loader.close()

    def _count(self) -> None:
        if self._whole.num_samples is not None:
            self._whole.seek(self._loader.sample)
            self._left = max(-(-(len(self._whole) - self._worker) // self._num_workers), 0)

    def __str__(self) -> str:
        return f"GrainDataset's iterator at sample {self._loader.sample}"
