"""A cache of Levanter's as ``export`` writes it: one leaf of ids, one of a mask where there is one, the ledger last; and the same read back.

input_ids/         int32, as all of Levanter's processors of text make them
assistant_masks/   int32, 1 where a token is trained on: as those of chats make them
shard_ledger.json  one shard, finished
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.errors import FormatError
from neutral_core.format.files import fsync_folder
from prep.foreign.choice import ASSISTANT_MASKS, FIELD, choose
from prep.foreign.columns import documents_of
from prep.foreign.levanter import LAYOUT, LEDGER
from prep.foreign.levanter_array import write_array
from prep.progress import Progress

IDS, MASK = "input_ids", ASSISTANT_MASKS
DTYPE = np.dtype(np.int32)
_SHARD = "millstream"
_AGAIN = "the disk or the memory is failing, or the source was changed meanwhile: export it again."


def write_leaf(
    leaf: Path, num_rows: int, offsets: Iterable[npt.NDArray[np.int64]], parts: Iterable[npt.NDArray[Any]]
) -> None:
    """Write the rows of a leaf.

    Args:
        leaf: its folder, which must not be there yet.
        num_rows: of all.
        offsets: where rows begin, and where the last of them ends, some thousands at a time.
        parts: the values of all rows, one after another.
    """
    ends = (edges[1:] for edges in offsets)
    write_array(leaf / "offsets", np.dtype(np.int64), chain([np.array([num_rows])], ends))
    write_array(leaf / "data", DTYPE, parts)


def write_ledger(folder: Path, corpus: nc.Corpus) -> None:
    """Write what makes a cache of the folder, once all else is on the disk."""
    known: dict[str, Any] = {} if corpus.vocab_size is None else {"vocab_size": corpus.vocab_size}
    if corpus.tokenizer is not None:
        known = {"tokenizer": corpus.tokenizer.name, "vocab_size": corpus.tokenizer.vocab_size}
    ledger = {
        "total_num_rows": corpus.num_documents,
        "shard_rows": {_SHARD: corpus.num_documents},
        "is_finished": True,
        "finished_shards": [_SHARD],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": known},
    }
    for inner, _, _ in os.walk(folder):
        fsync_folder(Path(inner))
    with (folder / LEDGER).open("w", encoding="utf-8") as file:
        file.write(json.dumps(ledger))
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)


def compare(folder: Path, corpus: nc.Corpus, progress: Progress) -> None:
    """Read a cache as ``convert`` does, and compare it with the corpus that it was made of: every document, token and mask.

    Raises:
        FormatError: it is damaged or differs.
    """
    foreign = LAYOUT.open(folder)
    choice, _ = choose(foreign, column=IDS, ignore=(), dtype=None)
    document = token = 0
    for piece in foreign.pieces:
        for rows in piece.read(choice.names):
            read = documents_of(rows, choice)
            last, end = document + len(read.lengths), token + len(read.tokens)
            lengths = np.diff(corpus.document_offsets(document, last))
            same = np.array_equal(read.lengths, lengths) and np.array_equal(read.tokens, corpus.tokens(token, end))
            if same and FIELD in read.fields:
                same = np.array_equal(read.fields[FIELD], corpus.field_items(FIELD, document, last).items.astype(bool))
            if not same:
                raise FormatError(f"{folder}: documents {document:,} … {last:,} differ from the source: {_AGAIN}")
            progress.add(len(read.tokens) * DTYPE.itemsize, len(read.lengths), len(read.tokens))
            document, token = last, end
        corpus.release()
    if (document, token) != (corpus.num_documents, corpus.num_tokens):
        raise FormatError(
            f"{folder}: it holds {document:,} documents and {token:,} tokens, its source {corpus.num_documents:,} and {corpus.num_tokens:,}: {_AGAIN}"
        )
