"""nanoGPT's ``meta.pkl``, which stands beside the ``train.bin`` of a data set of characters: how many ids there are and which characters.

It is a pickle of ``{"vocab_size": int, "itos": {id: character}, "stoi": {character: id}}`` and is read without unpickling, see plain_pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.legacy.plain_pickle import load_plain

META = "meta.pkl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Meta:
    """What a ``meta.pkl`` says.

    Attributes:
        vocab_size: number of ids, 1 … 65,536.
        characters: of each id; texts of any length where the maker's units are no characters.
    """

    vocab_size: int
    characters: tuple[str, ...]


def read_meta(path: Path) -> Meta:
    """Return what a ``meta.pkl`` says; raise FormatError where it is none of nanoGPT's."""
    data: Any = load_plain(path)
    if not isinstance(data, dict):
        raise FormatError(f"{path}: it holds a {type(data).__name__}, expected a dict with vocab_size, itos and stoi.")
    size, texts, ids = (data.get(key) for key in ("vocab_size", "itos", "stoi"))
    if not isinstance(size, int) or not 1 <= size <= 2**16:
        raise FormatError(f"{path}: vocab_size is {str(size)[:40]!r}, expected a number from 1 to 65,536.")
    if not isinstance(texts, dict) or texts.keys() != set(range(size)):
        raise FormatError(f"{path}: itos is no table of the ids 0 … {size - 1:,}, expected one text for each.")
    characters = tuple(texts[number] for number in range(size))
    if not all(isinstance(text, str) for text in characters):
        raise FormatError(f"{path}: itos has something else than text for an id.")
    if not isinstance(ids, dict) or ids != {text: number for number, text in enumerate(characters)}:
        raise FormatError(f"{path}: stoi is not the inverse of itos: the file is damaged.")
    return Meta(vocab_size=size, characters=characters)
