"""What attention kernels want to know of the documents in a row: ``cu_seqlens`` for varlen kernels, a block mask for flex_attention.

Both speak of the *inputs* of a batch, ``tokens[:, :seq_len]``, never of the columns behind them, and come from ``segment_ids`` alone: numbers that
count the documents of each row from 1, 0 for padding. A document that runs on into another row is another document there. Nothing in
proportion to seq_len² is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def cu_seqlens(
    segment_ids: torch.Tensor, seq_len: int, *, max_documents: int | None = None
) -> tuple[torch.Tensor, int]:
    """Return (cu_seqlens, max_seqlen) of the inputs of all rows, laid one after another: ``tokens[:, :seq_len].flatten()``.

    Args:
        segment_ids: integers [b, seq_len or more], b · seq_len < 2^31.
        seq_len: of the plan, ≥ 1.
        max_documents: makes the shape constant: entries for so many documents, ≥ 1; the last entry is repeated, which kernels take for documents
            without tokens. None: for as many documents as there are.

    cu_seqlens: int32[documents + 1], tokens, first 0, last b · seq_len, on the device of ``segment_ids``: where the documents begin, then where
    the last one ends. max_seqlen: tokens of the longest one. This is how flash-attn's and torch's varlen functions take them. A run of padding
    counts as a document, for these kernels leave what is behind the last entry unwritten; nothing else can see it, and it has no loss.

    It is counted on the host: some 3 µs a row of 2,048. Call it before the batch is sent, or let ``Loader(…, cu_seqlens=True)`` do that; segment
    ids that are on an accelerator are fetched, which waits for it.

    A bound of b · seq_len documents would always hold, but flash-attn's backward pass keeps 128 rows of scratch for every entry: 17 GB for
    8 rows of 2,048 tokens with 16 heads of 128. So the bound is the caller's.

    Raises:
        ValueError: an argument outside its range; more documents than ``max_documents``.
    """
    places, max_seqlen = count_documents(segment_ids.cpu().numpy(), seq_len, max_documents)
    return torch.from_numpy(places).to(segment_ids.device), max_seqlen


def count_documents(
    segment_ids: npt.NDArray[Any], seq_len: int, max_documents: int | None
) -> tuple[npt.NDArray[np.int32], int]:
    """Return ``cu_seqlens`` of arrays on the host, a fresh array."""
    _check_shape(segment_ids, seq_len)
    num_inputs = len(segment_ids) * seq_len
    if num_inputs >= 2**31:
        raise ValueError(f"segment_ids hold {num_inputs:,} inputs, more than int32 can count: give fewer rows.")
    ids = segment_ids.reshape(-1)
    begins = np.empty(segment_ids.shape, dtype=np.bool_)
    # All columns of all rows in one pass: less time than to compare within each row, and what is too much is not looked at.
    np.not_equal(ids[1:], ids[:-1], out=begins.reshape(-1)[1:])
    begins[:, 0] = True
    places = np.flatnonzero(begins[:, :seq_len])
    room = len(places) if max_documents is None else max_documents
    if room < len(places):
        raise ValueError(
            f"the rows hold {len(places):,} documents, more than max_documents={room:,}: "
            "give a larger number, or None for as many entries as there are."
        )
    ends = np.full(room + 1, num_inputs, dtype=np.int32)
    ends[: len(places)] = places
    return ends, int(np.diff(ends).max(initial=0))


def block_mask(segment_ids: torch.Tensor, seq_len: int, *, block_size: int = 128) -> BlockMask:
    """Return the BlockMask for ``torch.nn.attention.flex_attention``: causal, within a document, padding sees and is seen by nothing.

    Args:
        segment_ids: integers [b, seq_len or more]; kept by the mask, which reads them in partly visible blocks.
        seq_len: of the plan, ≥ 1.
        block_size: of queries and keys alike, in tokens, ≥ 2.

    The mask is on the device of ``segment_ids``, made without waiting for it, of a shape that b and seq_len decide; it serves any number of heads.

    Which blocks see which is arithmetic on where documents begin: O(b · seq_len + b · (seq_len / block_size)²) time and memory. torch's
    own ``create_block_mask`` asks for every pair of tokens first, which, unless compiled, is a dense mask. So does ``flex_attention`` itself unless
    it is compiled; that is torch's, and for small tests only.

    Raises:
        ValueError: an argument outside its range.
    """
    from torch.nn.attention.flex_attention import BlockMask  # here, because in torch 2.6 it loads the compiler

    if block_size < 2:
        raise ValueError(f"block_size is {block_size}, expected an integer from 2 on.")
    _check_shape(segment_ids, seq_len)
    inputs = segment_ids[:, :seq_len]
    num_blocks = -(-seq_len // block_size)
    length = num_blocks * block_size
    ids = functional.pad(inputs, (0, length - seq_len))
    place = torch.arange(length, device=ids.device)
    begins = torch.zeros(ids.shape, dtype=torch.int64, device=ids.device)
    begins[:, 1:] = torch.where(ids[:, 1:] != ids[:, :-1], place[1:], 0)
    begins = begins.cummax(dim=1).values.masked_fill_(ids == 0, length)  # of each token's document; padding: nowhere
    in_blocks = begins.view(-1, num_blocks, block_size)
    first = in_blocks.amin(dim=2) // block_size  # the first block of keys that a block of queries sees
    first_whole = (in_blocks.amax(dim=2) + block_size - 1) // block_size  # the first that all its queries see whole
    keys = torch.arange(num_blocks, device=ids.device)
    queries = keys[:, None]
    seen = (keys >= first[..., None]) & (keys <= queries)
    whole = (keys >= first_whole[..., None]) & (keys < queries)
    return BlockMask.from_kv_blocks(
        *_listed(seen & ~whole),
        *_listed(whole),
        BLOCK_SIZE=block_size,
        mask_mod=document_mask_mod(inputs),
        seq_lengths=(seq_len, seq_len),
    )


def document_mask_mod(segment_ids: torch.Tensor) -> MaskMod:
    """Return the ``mask_mod`` of ``block_mask``, to be joined with others by flex_attention's ``and_masks``.

    Args:
        segment_ids: integers [b, seq_len or more]; kept, not copied.
    """

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        return (q >= kv) & (segment_ids[b, q] == segment_ids[b, kv]) & (segment_ids[b, q] != 0)

    return mask_mod


def _check_shape(segment_ids: torch.Tensor | npt.NDArray[Any], seq_len: int) -> None:
    if segment_ids.ndim != 2 or not 1 <= seq_len <= segment_ids.shape[1]:
        raise ValueError(
            f"segment_ids are of shape {list(segment_ids.shape)} and seq_len is {seq_len}, "
            "expected [rows, seq_len or more] and seq_len from 1 on."
        )


def _listed(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for bool[b, n, n], how many blocks of keys each block of queries has, and these first: int32[b, 1, n] and [b, 1, n, n]."""
    ones = blocks[:, None].to(torch.int32)
    return ones.sum(dim=-1, dtype=torch.int32), ones.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
