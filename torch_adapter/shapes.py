"""A batch in the shapes that trainers expect. Who shifts the labels differs, and is said at each:

    causal_lm    labels as long as input_ids and not shifted: transformers' models shift them
    megatron     labels[i] is the target of tokens[i]: nobody shifts again
    torchtitan   the same, with −100 where there is no loss

Keys, dtypes and shapes are constant over a plan. Functions take the batch of a Loader or of ``MapDataset`` rows, on any device, and return views
where they can.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import neutral_core as nc
from torch_adapter.context import reads_whole_rows
from torch_adapter.widen import Tensors

NO_LOSS = -100  # transformers' and torch.nn.functional.cross_entropy's ignore_index


def inputs_and_targets(batch: Mapping[str, Any], plan: nc.Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, targets), [b, n] each, ``targets[i]`` being the token behind ``inputs[i]``; n is seq_len, or the length of a slice.

    Views of ``tokens``; copies for a plan of several stretches of columns (a zig-zag slice).
    """
    return _inputs(batch["tokens"], plan), _targets(batch["tokens"], plan)


def causal_lm(batch: Mapping[str, Any], plan: nc.Plan) -> Tensors:
    """Return ``input_ids``, ``labels`` and, where the plan has documents=True, ``position_ids``, int64[b, seq_len + 1], for transformers' models.

    These compare logits[:, i] with labels[:, i + 1] themselves, so labels are input_ids again, with −100 where a target has no loss; of seq_len + 1
    tokens there are seq_len targets. A plan with seq_len=2047 gives a model 2,048 tokens.

    There is no attention_mask: nothing within a row is padding, and without one transformers keeps documents apart by the restarts of
    position_ids, unless the model keeps a cache: give the model ``use_cache=False``. Rows of padding have no loss.

    Raises:
        ValueError: the plan reads a slice of each row, which models that shift labels cannot take.
    """
    if not reads_whole_rows(plan):
        raise ValueError(
            "causal_lm: the plan reads a slice of each row, but transformers' models shift labels within what they are given and would lose the "
            "slice's last target: use megatron or torchtitan shapes, or a whole plan."
        )
    length = plan.seq_len + 1
    input_ids = batch["tokens"][:, :length].to(torch.int64)
    labels = input_ids.clone()
    labels[:, 0] = NO_LOSS  # nothing predicts it; models do not look at it
    if "loss_mask" in batch:
        labels[:, 1:].masked_fill_(~batch["loss_mask"], NO_LOSS)
    shaped = {"input_ids": input_ids, "labels": labels}
    if "positions" in batch:
        shaped["position_ids"] = batch["positions"][:, :length].to(torch.int64)
    return shaped


def megatron(batch: Mapping[str, Any], plan: nc.Plan, *, cu_seqlens: bool = False) -> Tensors:
    """Return what Megatron's GPT datasets return: ``tokens``, ``labels``, ``position_ids`` int64[b, n] and ``loss_mask`` float32[b, n].

    Args:
        cu_seqlens: add ``cu_seqlens``, int32[b, n + 1], where documents begin in each row, then n up to the end, and ``max_seqlen``, int32[b], the
            longest document of a row; the plan has documents=True and reads whole rows.

    labels are shifted already. position_ids restart in each document where the plan has documents=True, else they count the row's columns; in
    a slice of a row they are those of the whole row. There is no attention_mask: a dense one has n² entries.

    Raises:
        ValueError: cu_seqlens of a plan without documents, or of a slice.
    """
    tokens, labels = inputs_and_targets(batch, plan)
    shaped = {
        "tokens": tokens.to(torch.int64),
        "labels": labels.to(torch.int64),
        "loss_mask": _loss_mask(batch, labels).to(torch.float32),
        "position_ids": _positions(batch, plan),
    }
    if cu_seqlens:
        if "segment_ids" not in batch or not reads_whole_rows(plan):
            raise ValueError("cu_seqlens=True needs a plan with documents=True that reads whole rows.")
        shaped |= _cu_seqlens(_inputs(batch["segment_ids"], plan))
    return shaped


def torchtitan(batch: Mapping[str, Any], plan: nc.Plan) -> tuple[Tensors, torch.Tensor]:
    """Return ({"input", "positions"}, labels), int64[b, n] each, as torchtitan's trainers take them from a data loader.

    labels are shifted already, −100 where there is no loss; positions as ``megatron``'s position_ids.
    """
    tokens, labels = inputs_and_targets(batch, plan)
    labels = labels.to(torch.int64).masked_fill(~_loss_mask(batch, labels), NO_LOSS)
    return {"input": tokens.to(torch.int64), "positions": _positions(batch, plan)}, labels


def _inputs(rows: torch.Tensor, plan: nc.Plan) -> torch.Tensor:
    """Return the columns of a key that are inputs: of each stretch all but the last, and none behind seq_len."""
    return _joined([rows[:, at : at + count] for at, _, count in _stretches(plan)])


def _targets(rows: torch.Tensor, plan: nc.Plan) -> torch.Tensor:
    return _joined([rows[:, at + 1 : at + 1 + count] for at, _, count in _stretches(plan)])


def _stretches(plan: nc.Plan) -> list[tuple[int, int, int]]:
    """Return for each stretch of columns: where it begins in what is read, where in the whole row, and how many inputs it has."""
    found, at = [], 0
    for start, stop in plan.columns:
        found.append((at, start, max(min(stop, plan.seq_len + 1) - start - 1, 0)))
        at += stop - start
    return found


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _loss_mask(batch: Mapping[str, Any], labels: torch.Tensor) -> torch.Tensor:
    mask = batch.get("loss_mask")
    return torch.ones_like(labels, dtype=torch.bool) if mask is None else mask


def _positions(batch: Mapping[str, Any], plan: nc.Plan) -> torch.Tensor:
    if "positions" in batch:
        return _inputs(batch["positions"], plan).to(torch.int64)
    tokens = batch["tokens"]
    columns = [torch.arange(start, start + count, device=tokens.device) for _, start, count in _stretches(plan)]
    return torch.cat(columns).repeat(len(tokens), 1)


def _cu_seqlens(ids: torch.Tensor) -> Tensors:
    """Return, for integers [b, n], where runs of equal ones begin in each row."""
    rows, n = ids.shape
    places = torch.arange(n, dtype=torch.int32, device=ids.device)
    begins = torch.where(ids[:, 1:] != ids[:, :-1], places[1:], n)
    ends = torch.cat([places.new_zeros(rows, 1), begins.sort(dim=1).values, places.new_full((rows, 1), n)], dim=1)
    return {"cu_seqlens": ends, "max_seqlen": ends.diff(dim=1).amax(dim=1)}
