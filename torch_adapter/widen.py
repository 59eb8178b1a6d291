"""Narrow ids on the wire, wide ones where they are used; on the host numpy widens in one pass, on a device torch does.

torch has few kernels for uint16 and uint32, so on a device their bits are read as signed ones and masked.
"""

from __future__ import annotations

import numpy as np
import torch

import neutral_core as nc

Tensors = dict[str, torch.Tensor]
KEPT = ("sample", "loss_mask", "cu_seqlens")  # keys that are not ids
_WIDE = {torch.int32: np.int32, torch.int64: np.int64}
_SIGNED = {torch.uint16: (torch.int16, 0xFFFF), torch.uint32: (torch.int32, 0xFFFFFFFF)}


def widen_batch(batch: nc.Batch, dtype: torch.dtype) -> Tensors:
    """Return a batch as tensors on the CPU, its ids as ``dtype``; what need not be widened is the batch's own memory."""
    return {
        key: torch.from_numpy(rows if key in KEPT else rows.astype(_WIDE[dtype], copy=False))
        for key, rows in batch.items()
    }


def widen_tensors(tensors: Tensors, dtype: torch.dtype) -> Tensors:
    """Return a batch with its ids as ``dtype``, on the device where they are."""
    return {key: rows if key in KEPT else widen(rows, dtype) for key, rows in tensors.items()}


def widen(ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ids of uint8, uint16, uint32 or int32 as int32 or int64, on the same device; a new tensor unless nothing changes.

    uint32 ids of 2^31 or more have no place in int32: the loader refuses them on the host.
    """
    if ids.dtype not in _SIGNED:
        return ids.to(dtype)
    signed, mask = _SIGNED[ids.dtype]
    wide = ids.view(signed).to(dtype)
    return wide if ids.dtype == torch.uint32 and dtype == torch.int32 else wide.bitwise_and_(mask)
