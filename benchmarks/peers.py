"""Peers' own readers on the same tokens, for a side-by-side run: each is left out, aloud, where it is not installed.

An environment for all of them:  pip install torch==2.13.0 && pip install litdata datatrove grain array-record .
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint16]
Batches = Iterator[Any]


def datatrove(folder: Path, tokens: Tokens, per_document: int, seq_len: int, batch: int) -> Batches:
    """DatatroveFolderDataset behind torch's DataLoader, as nanotron uses it; int64 as it yields them."""
    import torch
    from datatrove.utils.dataset import DatatroveFolderDataset
    from torch.utils.data import DataLoader

    tokens.tofile(folder / "000.ds")
    np.arange(per_document, len(tokens) + 1, per_document, dtype=np.uint64).tofile(folder / "000.ds.index")
    dataset = DatatroveFolderDataset(str(folder), seq_len=seq_len, token_size=2, shuffle=True)
    while True:
        yield from DataLoader(dataset, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(0))


def litdata(folder: Path, tokens: Tokens, per_document: int, seq_len: int, batch: int) -> Batches:
    """LitData's TokensLoader behind its StreamingDataLoader; widened in the collate function, as its users do."""
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.cache import Cache
    from litdata.streaming.item_loader import TokensLoader

    row = seq_len + 1
    cache = Cache(str(folder), chunk_size=row * 8192, item_loader=TokensLoader(block_size=row))
    everything = torch.from_numpy(tokens)
    step = per_document * 1000
    for number, start in enumerate(range(0, len(tokens), step)):
        cache[number] = everything[start : start + step]
    cache.done()
    cache.merge()
    dataset = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=row), shuffle=True, seed=1)
    while True:
        yield from StreamingDataLoader(
            dataset, batch_size=batch, num_workers=0, collate_fn=lambda rows: torch.stack(rows).int()
        )


def grain_array_record(folder: Path, tokens: Tokens, per_document: int, seq_len: int, batch: int) -> Batches:
    """grain's MapDataset over ArrayRecord, one row a record, uncompressed."""
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    row = seq_len + 1
    writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1,uncompressed")
    for start in range(0, min(len(tokens), 20_000 * row) - row, row):
        writer.write(tokens[start : start + row].tobytes())
    writer.close()
    source = grain.sources.ArrayRecordDataSource([str(folder / "rows.array_record")])
    dataset = grain.MapDataset.source(source).shuffle(seed=1).repeat()
    dataset = dataset.map(lambda record: np.frombuffer(record, np.uint16).astype(np.int32)).batch(batch)
    number = 0
    while True:
        yield dataset[number]
        number += 1


def nanogpt(folder: Path, tokens: Tokens, per_document: int, seq_len: int, batch: int) -> Batches:
    """nanoGPT's get_batch: the map made anew for each batch, random offsets, one copy a row, one stack."""
    tokens.tofile(folder / "train.bin")
    random = np.random.default_rng(0)
    while True:
        data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
        starts = random.integers(0, len(data) - seq_len - 1, batch)
        yield np.stack([data[start : start + seq_len + 1].astype(np.int32) for start in starts])


PEERS: dict[str, Callable[[Path, Tokens, int, int, int], Batches]] = {
    "datatrove, DataLoader": datatrove,
    "LitData, StreamingDataLoader": litdata,
    "grain, MapDataset over ArrayRecord": grain_array_record,
    "nanoGPT's get_batch": nanogpt,
}
