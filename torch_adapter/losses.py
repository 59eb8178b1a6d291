"""Losses by source, over all ranks, so that a mixture can be watched."""

from __future__ import annotations

import torch
import torch.distributed

from torch_adapter.ranks import Group


def loss_by_source(
    losses: torch.Tensor,
    source: torch.Tensor,
    num_sources: int,
    *,
    mask: torch.Tensor | None = None,
    group: Group = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (sums, counts) of losses by source, over the ranks of a group where torch.distributed is initialised.

    Args:
        losses: floats [b], one a row, or [b, seq_len], one a target; detached here.
        source: integers [b], a batch's ``source``: −1 (padding rows, counted nowhere) … num_sources − 1, the place in ``plan.names``.
        num_sources: of the plan.
        mask: bool, as losses: which of them count, a batch's ``loss_mask``. What it leaves out may be NaN. None: all.
        group: the ranks that hold different rows; None: all ranks. Where tensor- or context-parallel ranks hold the same rows, sums and counts
            of all ranks are as many times too large; means stay right.

    sums: float64[num_sources], counts: int64[num_sources], of losses; on the device of ``losses``, without waiting for it. Both add up over
    steps; ``sums / counts`` is the mean by source, NaN where there was nothing. Every rank of the group calls this at the same step: one
    all_reduce of 16 bytes a source.

    Raises:
        ValueError: shapes that do not belong together.
    """
    if (
        losses.ndim not in (1, 2)
        or source.shape != losses.shape[:1]
        or (mask is not None and mask.shape != losses.shape)
    ):
        raise ValueError(
            f"losses are of shape {list(losses.shape)}, source {list(source.shape)} and mask {None if mask is None else list(mask.shape)}, expected "
            "losses of [rows] or [rows, seq_len], source of [rows] and a mask as losses are."
        )
    values = losses.detach().double()
    counted = torch.ones_like(values) if mask is None else mask.double()
    if mask is not None:
        values = values.masked_fill(~mask, 0.0)
    rows = torch.stack([values, counted], dim=-1)
    if losses.ndim == 2:
        rows = rows.sum(dim=1)  # float64[b, 2]: sum, count
    # Padding rows go to a place before the first source; counts are exact in float64 up to 2^53.
    totals = rows.new_zeros(num_sources + 1, 2).index_add_(0, source.to(torch.int64) + 1, rows)[1:].contiguous()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(totals, group=group)
    return totals[:, 0], totals[:, 1].to(torch.int64)
