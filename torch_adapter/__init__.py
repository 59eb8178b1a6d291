"""Millstream for PyTorch: the core's batches as tensors on the device, and a map-style dataset for torch's own DataLoader.

    with Loader(plan, batch_size=512) as loader:      # the rank comes from torch.distributed where it is initialised
        for batch in loader:
            tokens = batch["tokens"]                  # int64[512 / world size, seq_len + 1] on the accelerator

Order, reading and state are the core's; here are only the calls into torch. So that documents in one row do not see each other, there are
``cu_seqlens`` for varlen attention kernels and ``block_mask`` for flex_attention.
"""

from torch_adapter.attention import block_mask, cu_seqlens, document_mask_mod
from torch_adapter.context import context_slice
from torch_adapter.dataset import MapDataset
from torch_adapter.loader import Loader
from torch_adapter.losses import loss_by_source
from torch_adapter.ranks import data_parallel_rank
from torch_adapter.shapes import causal_lm, inputs_and_targets, megatron, torchtitan

__all__ = [
    "Loader",
    "MapDataset",
    "block_mask",
    "causal_lm",
    "context_slice",
    "cu_seqlens",
    "data_parallel_rank",
    "document_mask_mod",
    "inputs_and_targets",
    "loss_by_source",
    "megatron",
    "torchtitan",
]
