"""The loaders that the contract suite runs over, each made from the core's arguments and answering to the core's names.

An entry is a function: (plan, **options of neutral_core.Loader) → the loader of one rank. The adapters' loaders serve tensors and global arrays;
their entries first assert that these are of the kind and dtype that the adapter promises, then give numpy of the core's dtypes, so that the
suite compares one thing. What an adapter does not take is absent here too: ``rows`` in both; ``threads`` and ``depth`` belong to an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import neutral_core as nc


class TorchRank:
    """``torch_adapter.Loader``; its wide ids narrowed back to the plan's dtypes, after it is seen that nothing is lost by that."""

    def __init__(self, plan: nc.Plan, *, dtype: str = "int64", sent_ahead: bool = False, **options: Any) -> None:
        import torch

        import torch_adapter

        self.ids, self.others = getattr(torch, dtype), {"sample": torch.int64, "loss_mask": torch.bool}
        self.stored = {"tokens": plan.dtype, "sample": np.int64, "loss_mask": np.bool_}
        self.loader = torch_adapter.Loader(plan, dtype=self.ids, **options)
        if sent_ahead:
            from scripted_engine import send_through_a_script

            send_through_a_script(self.loader)
        self.get_state, self.set_state = self.loader.state_dict, self.loader.load_state_dict
        self.close = self.loader.close

    def __iter__(self) -> TorchRank:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> nc.Batch:
        return {key: self._narrow(key, tensor) for key, tensor in next(self.loader).items()}

    def _narrow(self, key: str, tensor: Any) -> np.ndarray:
        promised = self.others.get(key, self.ids)
        assert tensor.dtype == promised, f"{key} is {tensor.dtype}, promised is {promised}"
        assert tensor.device == self.loader.device
        wide = tensor.cpu().numpy()
        narrow = wide.astype(self.stored.get(key, np.int32))
        assert np.array_equal(narrow, wide), f"{key}: an id is not the stored one"
        return narrow


class JaxRank:
    """Rank r of W: what device r holds of the global arrays of ``jax_adapter.Loader``, over a mesh whose data axis is W virtual devices."""

    def __init__(self, plan: nc.Plan, *, dp_rank: int = 0, dp_world_size: int = 1, **options: Any) -> None:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        import jax_adapter

        self.array, devices = jax.Array, jax.devices("cpu")[:dp_world_size]
        self.device = devices[dp_rank]
        sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec("data"))
        self.loader = jax_adapter.Loader(plan, sharding=sharding, **options)
        self.get_state, self.set_state = self.loader.get_state, self.loader.set_state
        self.close = self.loader.close

    def __iter__(self) -> JaxRank:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> nc.Batch:
        rows = self.loader.rows  # of the next batch; of all its rows, for all devices are this process'
        batch = next(self.loader)
        sample = batch.pop("sample")
        assert isinstance(sample, np.ndarray), "sample is promised to stay on the host"
        assert (sample.dtype, sample.shape) == (np.int64, rows.shape)
        shards = {key: self._shard(key, array, len(rows)) for key, array in batch.items()}
        [(start, stop, _)] = {shard.index[0].indices(len(rows)) for shard in shards.values()}  # the same of every key
        return {key: np.asarray(shard.data) for key, shard in shards.items()} | {"sample": sample[start:stop]}

    def _shard(self, key: str, array: Any, num_rows: int) -> Any:
        assert isinstance(array, self.array), f"{key} is promised to be a jax.Array"
        assert array.shape[0] == num_rows, f"{key} is promised to be global"
        [shard] = [shard for shard in array.addressable_shards if shard.device == self.device]
        return shard


CORE: dict[str, Callable[..., Any]] = {
    "core, inline": partial(nc.Loader, threads=0),
    "core, 1 thread": partial(nc.Loader, threads=1),
    "core, 3 threads": partial(nc.Loader, threads=3),
}
TORCH: dict[str, Callable[..., Any]] = {
    "torch, int64": TorchRank,  # on the accelerator where torch sees one, else on the CPU
    "torch, CPU, int32": partial(TorchRank, device="cpu", dtype="int32", threads=0),
    "torch, sent ahead": partial(TorchRank, device="cpu", sent_ahead=True),
}
JAX: dict[str, Callable[..., Any]] = {
    "jax": JaxRank,
    "jax, nothing ahead": partial(JaxRank, threads=0, depth=0),
}
LOADERS = CORE | TORCH | JAX
