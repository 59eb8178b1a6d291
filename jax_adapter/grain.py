"""The core's rows for grain: a random access source and a sampler, by grain's protocols; grain itself is imported by ``GrainSampler[…]`` only.

An element that is a whole local batch is the fast way: grain reads elements one by one, and stacking rows costs it more than reading them.
Give grain ``ReadOptions(num_threads=0, prefetch_buffer_size=0)`` or few threads: the rows come from memory maps. The order is the plan's:
don't shuffle again.

    source = GrainSource(plan, num_samples=10**6, batch_size=512, dp_rank=jax.process_index(), dp_world_size=jax.process_count())
    batches = grain.MapDataset.source(source).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))

What grain saves is a count of elements; it does not know the plan. ``MapDataset``'s state goes into another plan without complaint, that of
``DataLoader`` compares ``repr(source)`` and ``repr(sampler)``. ``GrainDataset`` and ``Loader`` save the core's cursor, which is checked.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

import neutral_core as nc


class GrainSource:
    """A source for ``grain.DataLoader`` and ``grain.MapDataset.source``: element k is one rank's rows of global batch k, or row k.

    Args:
        plan: what to serve.
        num_samples: the pass ends before this sample, ≥ 0.
        batch_size: of the *global* batch, in rows, divisible by ``dp_world_size``; the samples after the last whole batch are dropped. None: an
            element is one row, its arrays without the row axis. Samples that the plan skips are no element's.
        dp_rank, dp_world_size: this process' share of each global batch, as the core's Loader has it; only with ``batch_size``.
        rows: the share instead, where it is not one piece: ``addressable_rows(sharding, batch_size)``; only with ``batch_size``.

    Elements are dicts of fresh numpy arrays with the keys of ``Plan.read``; ``sample`` is int64, which JAX would wrap: take it out before
    device_put. Pickles without maps, locks or data: some kilobytes to each worker. May be called from many threads.

    ``repr`` is a fingerprint: of the plan's order and data, skips, num_samples and batch_size. Ranks are no part of it, for element k belongs to the
    same global batch at every number of them: a state of ``DataLoader`` resumes at another.

    Raises:
        ValueError: an argument outside its range.
        IndexError: an element outside 0 ≤ k < len.
        FormatError, OSError: an element's shard is damaged or cannot be read. Never StopIteration, which grain would take for the end, and no
            element is None, which it would leave out.
    """

    def __init__(
        self,
        plan: nc.Plan,
        *,
        num_samples: int,
        batch_size: int | None = None,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        rows: npt.ArrayLike | None = None,
    ) -> None:
        if num_samples is None:
            raise ValueError("num_samples is None, expected an integer: a source for grain has a length.")
        if batch_size is None and dp_world_size != 1:
            raise ValueError(
                f"dp_world_size is {dp_world_size} without batch_size: a share is of a global batch; give batch_size, or slice the MapDataset."
            )
        if batch_size is None and rows is not None:
            raise ValueError("rows are given without batch_size: they are rows of a global batch.")
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
            rows=rows,
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, k: SupportsIndex) -> nc.Batch:
        """Return element k; raise IndexError outside 0 ≤ k < len."""
        try:
            batch = self._batches[k]
        except StopIteration as error:
            raise RuntimeError(
                "a StopIteration was raised while an element was read; the data do not end here."
            ) from error
        return batch if self.batch_size is not None else {key: rows[0] for key, rows in batch.items()}

    def __repr__(self) -> str:
        skipped = f", skip={self.plan.skips.runs}" if self.plan.skips.runs else ""
        return f"GrainSource(plan={self.plan.fingerprint}{skipped}, num_samples={self.num_samples}, batch_size={self.batch_size})"

    def cursor(self, k: SupportsIndex) -> dict[str, Any]:
        """Return the core's cursor before element k, 0 ≤ k ≤ len: for a checkpoint that any loader of the plan resumes from, at any process count."""
        place = operator.index(k) * (self.batch_size or 1)
        if not 0 <= operator.index(k) <= len(self):
            raise IndexError(f"element {k} is outside of 0 … {len(self)}.")
        return self.plan.cursor(int(self.plan.skips.samples_at(np.array([place], dtype=np.int64))[0]))


class GrainSampler:
    """The elements of a GrainSource in order, for ``grain.DataLoader``: O(1), and nothing is shuffled, for the source is.

        grain.DataLoader(data_source=source, sampler=GrainSampler(source), shard_options=grain.sharding.NoSharding(), …)

    Args:
        source: what the elements are of.
        state: a cursor, of any loader of the plan, to begin at; None: the first element. It must stand between two elements.

    ``sampler[i]`` is grain's RecordMetadata of *global* element i. It never shards: DataLoader asks process k of n for i·n + k, itself. So give
    NoSharding with whole batches as elements, where the source has taken the share already; ShardByJaxProcess with rows as elements: then row r of
    a global batch goes to process r mod n, and at a length that n does not divide DataLoader drops the remainder (``num_samples`` is yours).

    ``repr`` is a fingerprint: the source's and where the sampler begins. RecordMetadata has no ``rng``: for random augmentation use
    ``MapDataset.source(source).random_map``.

    Raises:
        StateError: another plan's or other data's state. ValueError: a state inside an element. IndexError: outside 0 ≤ i < len.
    """

    def __init__(self, source: GrainSource, *, state: Mapping[str, Any] | None = None) -> None:
        self._source = repr(source)
        place = 0 if state is None else source.plan.skips.place_of(source.plan.sample_in(state))
        self.first, inside = divmod(place, source.batch_size or 1)
        if inside:
            raise ValueError(
                f"state: it stands {inside} samples inside element {self.first} of {source.batch_size}: resume with GrainDataset, or at its batch_size."
            )
        self._length = max(len(source) - self.first, 0)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: SupportsIndex) -> Any:
        """Return grain.RecordMetadata(index=i, record_key=the source's element)."""
        import grain

        index = operator.index(i)
        if not 0 <= index < self._length:
            raise IndexError(f"element {index:,} is outside of the sampler's {self._length:,} elements.")
        return grain.RecordMetadata(index=index, record_key=self.first + index)

    def __repr__(self) -> str:
        return f"GrainSampler({self._source}, first={self.first})"
