"""The core's rows for grain: a random access source, by grain's protocol and without an import of grain.

An element that is a whole local batch is the fast way: grain reads elements one by one, and stacking rows costs it more than reading them.
Give grain ``ReadOptions(num_threads=0, prefetch_buffer_size=0)`` or few threads: the rows come from memory maps. The order is the plan's:
don't shuffle again.

    source = GrainSource(plan, num_samples=10**6, batch_size=512, dp_rank=jax.process_index(), dp_world_size=jax.process_count())
    batches = grain.MapDataset.source(source).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))

What grain saves is a count of elements; it does not know the plan. ``MapDataset``'s state goes into another plan without complaint, that of
``DataLoader`` compares ``repr(source)``. ``jax_adapter.Loader`` saves the core's cursor, which is checked, and needs no workers.
"""

from __future__ import annotations

from typing import SupportsIndex

import neutral_core as nc


class GrainSource:
    """A source for ``grain.DataLoader`` and ``grain.MapDataset.source``: element k is one rank's rows of global batch k, or row k.

    Args:
        plan: what to serve.
        num_samples: the pass ends before this sample, ≥ 0.
        batch_size: of the *global* batch, in rows, divisible by ``dp_world_size``; the samples after the last whole batch are dropped. None: an
            element is one row, its arrays without the row axis. Samples that the plan skips are no element's.
        dp_rank, dp_world_size: this process' share of each global batch, as the core's Loader has it; only with ``batch_size``.

    Elements are dicts of fresh numpy arrays with the keys of ``Plan.read``; ``sample`` is int64, which JAX would wrap: take it out before
    device_put. Pickles without maps, locks or data: some kilobytes to each worker. May be called from many threads.

    ``repr`` is a fingerprint: of the plan's order and data, skips, num_samples and batch_size. Ranks are no part of it, for element k belongs to the
    same global batch at every number of them: a state of ``DataLoader`` resumes at another.

    Raises:
        ValueError: an argument outside its range.
        IndexError: an element outside 0 ≤ k < len.
        FormatError, OSError: an element's shard is damaged or cannot be read. Never StopIteration, which grain would take for the end.
    """

    def __init__(
        self,
        plan: nc.Plan,
        *,
        num_samples: int,
        batch_size: int | None = None,
        dp_rank: int = 0,
        dp_world_size: int = 1,
    ) -> None:
        if num_samples is None:
            raise ValueError("num_samples is None, expected an integer: a source for grain has a length.")
        if batch_size is None and dp_world_size != 1:
            raise ValueError(
                f"dp_world_size is {dp_world_size} without batch_size: a share is of a global batch; give batch_size, or slice the MapDataset."
            )
        self.plan = plan
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.dp_rank = dp_rank
        self.dp_world_size = dp_world_size
        self._batches = nc.Batches(
            plan,
            batch_size=1 if batch_size is None else batch_size,
            num_samples=num_samples,
            dp_rank=dp_rank,
            dp_world_size=dp_world_size,
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, k: SupportsIndex) -> nc.Batch:
        """Return element k; raise IndexError outside 0 ≤ k < len."""
        batch = self._batches[k]
        return batch if self.batch_size is not None else {key: rows[0] for key, rows in batch.items()}

    def __repr__(self) -> str:
        skipped = f", skip={self.plan.skips.runs}" if self.plan.skips.runs else ""
        return f"GrainSource(plan={self.plan.fingerprint}{skipped}, num_samples={self.num_samples}, batch_size={self.batch_size})"
