"""Tokenizers: texts become ids, ids become text; one file a kind.

A tokenizer is described by a Settings, which travels to worker processes, and opened there. ``open_stored`` opens the one that made a corpus,
from the definition that stands beside its shards. ``prep.tokenizers.proof`` chooses what encodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from prep.tokenizers.files import DEFINITIONS, find, kind_of


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

    def spelling(self, id: int) -> str | None:
        """Return how the definition spells an id, or None where it does not."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Which tokenizer, and what is added to each document.

    Attributes:
        kind: ``byte``, ``char``, or ``tokenizer.json`` for any file; what it is is seen from its content.
        path: of a tokenizer.json, a SentencePiece model, a .tiktoken file or nanoGPT's meta.pkl.
        append_eos, prepend_bos: put the id at the end or start of each document.
        eos_token, bos_token: which added token that is, where the tokenizer's own files do not say.
        allow_special: text that spells a special token becomes that token.
        characters: of ``char``: those that occur, sorted.
        engine: ``auto`` (not decided yet: see choose_engine), ``tokenizers`` (the library of the tokenizer's kind) or ``gigatoken``; ids don't depend on it.
    """

    kind: str
    path: str | None = None
    append_eos: bool = False
    prepend_bos: bool = False
    eos_token: str | None = None
    bos_token: str | None = None
    allow_special: bool = False
    characters: str | None = None
    engine: str = "auto"


def open_tokenizer(settings: Settings) -> Tokenizer:
    """Return the tokenizer of the settings; raise ValueError or FileNotFoundError where there is none."""
    from prep.tokenizers import byte, char  # each loads what it needs

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
    tokenizer = _open_file(settings)
    if settings.engine == "gigatoken":
        from prep.tokenizers.gigatoken_engine import GigatokenTokenizer

        return GigatokenTokenizer(tokenizer, allow_special=settings.allow_special)
    return tokenizer


def _open_file(settings: Settings) -> Tokenizer:
    from prep.tokenizers import sentencepiece_model, tiktoken_ranks, tokenizer_json

    assert settings.path is not None
    path = find(settings.path)
    content = path.read_bytes()
    openers: dict[str, Callable[[Settings, Path, bytes], Tokenizer]] = {
        "tokenizer.json": tokenizer_json.open_file,
        "sentencepiece": sentencepiece_model.open_file,
        "tiktoken": tiktoken_ranks.open_file,
    }
    return openers[kind_of(content)](settings, path, content)


def open_stored(folder: Path, identity: nc.TokenizerIdentity) -> Tokenizer:
    """Return the tokenizer that made a corpus, for decoding.

    Args:
        folder: of the corpus, with the definition beside the shards.
        identity: as the corpus says.

    Raises:
        FileNotFoundError: the definition is not there.
        FormatError: it is not the one that made the corpus, or of a kind that is not known.
    """
    from prep.tokenizers import byte, char, sentencepiece_model, tiktoken_ranks, tokenizer_json

    if identity.kind == "byte":
        return byte.ByteTokenizer(append_eos=identity.eos_id is not None, prepend_bos=identity.bos_id is not None)
    path = folder / definition_name(identity)
    definition = path.read_bytes()
    found = hashlib.sha256(definition).hexdigest()
    if found != identity.sha256:
        raise nc.FormatError(
            f"{path}: its sha256 is {found}, but the corpus was made with {identity.sha256}: it is another tokenizer."
        )
    if identity.kind == "char":
        return char.from_definition(definition)
    openers: dict[str, Callable[[bytes, nc.TokenizerIdentity], Tokenizer]] = {
        "tokenizer.json": tokenizer_json.from_definition,
        "sentencepiece": sentencepiece_model.from_definition,
        "tiktoken": tiktoken_ranks.from_definition,
    }
    if identity.kind not in openers:
        raise nc.FormatError(f"{folder}: its tokenizer is of the kind {identity.kind!r}, which is not known here.")
    return openers[identity.kind](definition, identity)


def definition_name(identity: nc.TokenizerIdentity) -> str:
    """Return the name of the file beside the shards that rows decode by."""
    return DEFINITIONS.get(identity.kind, DEFINITIONS["tokenizer.json"])


def stored_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return what is stored beside the shards so that rows decode later, name → content."""
    return {} if tokenizer.definition is None else {definition_name(tokenizer.identity): tokenizer.definition}


def definition_beside(source: str, identity: nc.TokenizerIdentity | None) -> dict[str, bytes]:
    """Return the file that rows decode by, name → content, if it is beside a source of ours and is the one that ``identity`` means."""
    if identity is None:
        return {}
    path = Path(source).expanduser()
    path = (path if path.is_dir() else path.parent) / definition_name(identity)
    if path.is_file():
        definition = path.read_bytes()
        if hashlib.sha256(definition).hexdigest() == identity.sha256:
            return {path.name: definition}
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


def first_outside(
    ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64], vocab_size: int
) -> tuple[int, int, int] | None:
    """Return (document, position in it, id) of the first id that the vocabulary does not hold, or None; to be asked before ids are made narrow."""
    if not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return None
    place = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
    ends = np.cumsum(lengths)
    document = int(np.searchsorted(ends, place, side="right"))
    return document, place - int(ends[document] - lengths[document]), int(ids[place])
