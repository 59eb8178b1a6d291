"""Context parallelism: a rank's slice of each row, and of the files no more than that."""

from __future__ import annotations

import neutral_core as nc


def context_slice(plan: nc.Plan, cp_rank: int, cp_world_size: int, *, zigzag: bool = False) -> nc.Plan:
    """Return the plan with only a context-parallel rank's slice of each row: the same order, samples and cursors.

    Args:
        plan: with whole rows; its seq_len is a multiple of cp_world_size, zig-zag of twice that.
        cp_rank, cp_world_size: 0 ≤ cp_rank < cp_world_size, from a mesh as ``data_parallel_rank(mesh=mesh, dims="cp")``. All ranks of a
            context-parallel group have one dp_rank.
        zigzag: two chunks of 2 · cp_world_size, number cp_rank and number 2 · cp_world_size − 1 − cp_rank, so that every rank has as much to attend
            to under a causal mask. Otherwise: one chunk of cp_world_size, number cp_rank.

    Of each chunk the rows hold its inputs and one token more, the last one's target; ``inputs_and_targets``, ``megatron`` and ``torchtitan``
    take them apart. segment_ids and positions are those of the whole row. Only these tokens are read; documents are found by their
    offsets. ``loss_mask``, where there is one, has a column per target of the slice.

    Raises:
        ValueError: a number outside its range; seq_len does not divide; the plan has extra_tokens or is a slice already.
    """
    if (
        type(cp_world_size) is not int
        or cp_world_size < 1
        or type(cp_rank) is not int
        or not 0 <= cp_rank < cp_world_size
    ):
        raise ValueError(
            f"cp_rank is {cp_rank!r} of cp_world_size {cp_world_size!r}, expected 0 ≤ cp_rank < cp_world_size."
        )
    if plan.columns != ((0, plan.seq_len + 1),):
        raise ValueError(
            f"the plan reads columns {plan.columns} of each row, expected whole rows without extra_tokens."
        )
    chunks = cp_world_size * (2 if zigzag else 1)
    if plan.seq_len % chunks:
        raise ValueError(f"seq_len is {plan.seq_len}, which {chunks} chunks of equal length do not divide.")
    numbers = [cp_rank, chunks - 1 - cp_rank] if zigzag else [cp_rank]
    length = plan.seq_len // chunks
    return plan.narrow([(number * length, (number + 1) * length + 1) for number in numbers])


def reads_whole_rows(plan: nc.Plan) -> bool:
    """Return whether rows hold all inputs and targets, one after another."""
    return len(plan.columns) == 1 and plan.columns[0][0] == 0 and plan.columns[0][1] > plan.seq_len
