"""Ids that were there before: nothing is encoded. Who made them is a tokenizer that was named, or nobody knows but how many ids there are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc

if TYPE_CHECKING:
    from prep.tokenizers import Settings

KIND = "ids"
ENGINE = "given"


class GivenEncoder:
    """Joins ids instead of encoding texts. See prep.tokenizers.Encoder."""

    def __init__(self, identity: nc.TokenizerIdentity) -> None:
        self.identity = identity

    def encode(self, texts: Sequence[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return what Encoder.encode returns, of arrays of ids in the place of texts."""
        return np.concatenate(texts), np.array([len(ids) for ids in texts], dtype=np.int64)


class UnknownTokenizer(GivenEncoder):
    """Whoever made the ids. See prep.tokenizers.Tokenizer; it spells nothing, and is not recorded."""

    definition = None
    notes: tuple[str, ...] = ()

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer."""
        raise ValueError("nobody knows what these ids spell: the corpus was made of ids without a tokenizer.")

    def spelling(self, id: int) -> str | None:
        """See Tokenizer."""
        return None


def open_unknown(settings: Settings) -> UnknownTokenizer:
    """Return what stands for the tokenizer where only the number of ids is known, with the ids of EOS and BOS that are to be added."""
    for flag, id, added in (
        ("--append-eos", settings.eos_id, settings.append_eos),
        ("--prepend-bos", settings.bos_id, settings.prepend_bos),
    ):
        name = flag[-3:]
        if added and id is None:
            raise ValueError(f"{flag} without a tokenizer: say which id it is with --{name}-id.")
        if id is not None and not added:
            raise ValueError(f"--{name}-id is {id}, but {flag} is not asked for: give both, or none.")
    if settings.eos_token is not None or settings.bos_token is not None:
        raise ValueError(
            "--eos-token and --bos-token are for a tokenizer that spells them: say the ids with --eos-id and --bos-id."
        )
    text = f"ids {settings.vocab_size} eos={settings.eos_id} bos={settings.bos_id}"
    assert settings.vocab_size is not None
    return UnknownTokenizer(
        nc.TokenizerIdentity(
            kind=KIND,
            name=KIND,
            sha256=hashlib.sha256(text.encode()).hexdigest(),
            vocab_size=settings.vocab_size,
            eos_id=settings.eos_id,
            bos_id=settings.bos_id,
        )
    )


def recorded(identity: nc.TokenizerIdentity) -> nc.TokenizerIdentity | None:
    """Return what a corpus says of its tokenizer: nothing where nobody knows it, because two such corpora need not agree."""
    return None if identity.kind == KIND else identity
