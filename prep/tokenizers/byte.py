"""The byte tokenizer: ids are the bytes of the text in UTF-8; EOS and BOS, if asked for, are ids of their own after the 256."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc


class ByteTokenizer:
    """256 ids, then EOS, then BOS, as far as they are asked for. See prep.tokenizers.Tokenizer."""

    def __init__(self, *, append_eos: bool, prepend_bos: bool) -> None:
        eos = 256 if append_eos else None
        bos = 256 + append_eos if prepend_bos else None
        self.definition = None
        self.notes: tuple[str, ...] = ()
        self.identity = nc.TokenizerIdentity(
            kind="byte",
            name="byte",
            sha256=hashlib.sha256(f"byte eos={eos} bos={bos}".encode()).hexdigest(),
            vocab_size=256 + append_eos + prepend_bos,
            eos_id=eos,
            bos_id=bos,
        )

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer."""
        data = [text.encode("utf-8") for text in texts]
        return np.frombuffer(b"".join(data), dtype=np.uint8), np.array([len(piece) for piece in data], dtype=np.int64)

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer; what is no UTF-8 (a row may begin inside a character) shows as U+FFFD."""
        return ids[ids < 256].astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def spelling(self, id: int) -> str | None:
        """See Tokenizer; there is nothing that text could spell."""
        return None
