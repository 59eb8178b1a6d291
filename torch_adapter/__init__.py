"""Millstream for PyTorch: the core's batches as tensors on the device, and a map-style dataset for torch's own DataLoader.

    with Loader(plan, batch_size=512) as loader:      # the rank comes from torch.distributed where it is initialised
        for batch in loader:
            tokens = batch["tokens"]                  # int64[512 / world size, seq_len + 1] on the accelerator

Order, reading and state are the core's; here are only the calls into torch.
"""

from torch_adapter.dataset import MapDataset
from torch_adapter.loader import Loader
from torch_adapter.ranks import data_parallel_rank

__all__ = ["Loader", "MapDataset", "data_parallel_rank"]
