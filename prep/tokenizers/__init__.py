"""Tokenizers: texts become ids, ids become text; one file a kind.

A tokenizer is described by a Settings, which travels to worker processes, and opened there. ``open_stored`` opens the one that made a corpus,
from the definition that stands beside its shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import neutral_core as nc

DEFINITION = "tokenizer.json"


class Tokenizer(Protocol):
    """What every kind can do."""

    @property
    def identity(self) -> nc.TokenizerIdentity:
        """Who it is, as it is recorded."""
        ...

    @property
    def definition(self) -> bytes | None:
        """What is stored beside the shards so that rows decode later; None where the kind alone says it."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was inferred."""
        ...

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return (ids of all texts one after another, unsigned integers; number of ids of each text, int64); no BOS, no EOS."""
        ...

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """Return the text of ids; special ones are left out."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Which tokenizer, and what is added to each document.

    Attributes:
        kind: ``byte``, ``char`` or ``tokenizer.json``.
        path: of the tokenizer.json, or of nanoGPT's meta.pkl.
        append_eos, prepend_bos: put the id at the end or start of each document.
        eos_token, bos_token: which added token that is, where the tokenizer's own files do not say.
        allow_special: text that spells a special token becomes that token.
        characters: of ``char``: those that occur, sorted.
    """

    kind: str
    path: str | None = None
    append_eos: bool = False
    prepend_bos: bool = False
    eos_token: str | None = None
    bos_token: str | None = None
    allow_special: bool = False
    characters: str | None = None


def open_tokenizer(settings: Settings) -> Tokenizer:
    """Return the tokenizer of the settings; raise ValueError or FileNotFoundError where there is none."""
    from prep.tokenizers import byte, char, tokenizer_json  # each loads what it needs

    if settings.kind == "byte":
        return byte.ByteTokenizer(append_eos=settings.append_eos, prepend_bos=settings.prepend_bos)
    if settings.path is not None and settings.path.endswith(".pkl"):
        if settings.eos_token is not None or settings.bos_token is not None:
            raise ValueError(
                f"{settings.path}: it holds characters and no added tokens: leave --eos-token and --bos-token out."
            )
        return char.from_meta(
            Path(settings.path).expanduser(), append_eos=settings.append_eos, prepend_bos=settings.prepend_bos
        )
    if settings.kind == "char":
        assert settings.characters is not None
        return char.CharTokenizer(settings.characters, append_eos=settings.append_eos, prepend_bos=settings.prepend_bos)
    return tokenizer_json.open_file(settings)


def open_stored(folder: Path, identity: nc.TokenizerIdentity) -> Tokenizer:
    """Return the tokenizer that made a corpus, for decoding.

    Args:
        folder: of the corpus, with the definition beside the shards.
        identity: as the corpus says.

    Raises:
        FileNotFoundError: the definition is not there.
        FormatError: it is not the one that made the corpus.
    """
    from prep.tokenizers import byte, char, tokenizer_json

    if identity.kind == "byte":
        return byte.ByteTokenizer(append_eos=identity.eos_id is not None, prepend_bos=identity.bos_id is not None)
    path = folder / DEFINITION
    definition = path.read_bytes()
    found = hashlib.sha256(definition).hexdigest()
    if found != identity.sha256:
        raise nc.FormatError(
            f"{path}: its sha256 is {found}, but the corpus was made with {identity.sha256}: it is another tokenizer."
        )
    if identity.kind == "char":
        return char.from_definition(definition)
    return tokenizer_json.from_definition(definition, identity)


def definition_beside(source: str, identity: nc.TokenizerIdentity | None) -> dict[str, bytes]:
    """Return the file that rows decode by, name → content, if it is beside a source of ours and is the one that ``identity`` means."""
    path = Path(source).expanduser()
    path = (path if path.is_dir() else path.parent) / DEFINITION
    if identity is not None and path.is_file():
        definition = path.read_bytes()
        if hashlib.sha256(definition).hexdigest() == identity.sha256:
            return {DEFINITION: definition}
    return {}


def with_edges(
    ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], *, bos: int | None, eos: int | None, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return ids of ``dtype`` and lengths with ``bos`` before and ``eos`` after each document."""
    extra = (bos is not None) + (eos is not None)
    if not extra:
        return ids.astype(dtype, copy=False), lengths
    longer = lengths + extra
    ends = np.cumsum(longer)
    out = np.empty(int(longer.sum()), dtype=dtype)
    inner = np.ones(len(out), dtype=bool)
    if bos is not None:
        out[ends - longer] = bos
        inner[ends - longer] = False
    if eos is not None:
        out[ends - 1] = eos
        inner[ends - 1] = False
    out[inner] = ids
    return out, longer
