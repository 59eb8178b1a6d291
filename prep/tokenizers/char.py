"""The character tokenizer: ids are the places of code points in the sorted list of those that occur; then EOS, then BOS, if asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format import canonical
from neutral_core.legacy.nanogpt import read_meta


class CharTokenizer:
    """One id for each character that occurs. See prep.tokenizers.Tokenizer."""

    def __init__(self, characters: str, *, append_eos: bool, prepend_bos: bool) -> None:
        self._points = np.array([ord(character) for character in characters], dtype=np.uint32)
        if len(self._points) and (np.diff(self._points.astype(np.int64)) <= 0).any():
            raise ValueError("the characters are not sorted, or one occurs twice.")
        size = len(self._points)
        self.notes: tuple[str, ...] = ()
        self.definition = canonical.dumps(
            {"bos": prepend_bos, "characters": characters, "eos": append_eos, "kind": "char"}
        )
        self.identity = nc.TokenizerIdentity(
            kind="char",
            name=f"{size} characters",
            sha256=hashlib.sha256(self.definition).hexdigest(),
            vocab_size=max(size + append_eos + prepend_bos, 1),
            eos_id=size if append_eos else None,
            bos_id=size + append_eos if prepend_bos else None,
        )

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer; raises ValueError for a character that is not in the list."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        ids = np.searchsorted(self._points, points)
        known = self._points[np.minimum(ids, len(self._points) - 1)] == points if len(self._points) else points < 0
        if not known.all():
            raise ValueError(
                f"the character {chr(int(points[~known][0]))!r} is not one of the tokenizer's {len(self._points):,}."
            )
        return ids.astype(np.uint32), np.array([len(text) for text in texts], dtype=np.int64)

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer."""
        points: bytes = self._points[ids[ids < len(self._points)]].astype("<u4").tobytes()
        return points.decode("utf-32-le")

    def spelling(self, id: int) -> str | None:
        """See Tokenizer; there is nothing that text could spell."""
        return None


def from_definition(definition: bytes) -> CharTokenizer:
    """Return the tokenizer of a stored definition."""
    data = json.loads(definition)
    return CharTokenizer(data["characters"], append_eos=data["eos"], prepend_bos=data["bos"])


def from_meta(path: Path, *, append_eos: bool, prepend_bos: bool) -> CharTokenizer:
    """Return the tokenizer that nanoGPT's ``meta.pkl`` describes; raise ValueError where its characters are not in the order of code points."""
    characters = read_meta(path).characters
    if any(len(character) != 1 for character in characters):
        raise ValueError(f"{path}: itos holds texts that are no single characters.")
    try:
        return CharTokenizer("".join(characters), append_eos=append_eos, prepend_bos=prepend_bos)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
