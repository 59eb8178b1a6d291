"""Narrow ids on the wire, wide ones on the device: torch has few kernels for uint16 and uint32, so their bits travel as signed ones."""

from __future__ import annotations

import torch

_SIGNED = {torch.uint16: (torch.int16, 0xFFFF), torch.uint32: (torch.int32, 0xFFFFFFFF)}


def widen(ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ids of uint8, uint16, uint32 or int32 as int32 or int64, a new tensor on the same device.

    uint32 ids of 2^31 or more have no place in int32: the loader refuses them on the host.
    """
    if ids.dtype not in _SIGNED:
        return ids.to(dtype)
    signed, mask = _SIGNED[ids.dtype]
    wide = ids.view(signed).to(dtype)
    return wide if ids.dtype == torch.uint32 and dtype == torch.int32 else wide.bitwise_and_(mask)
