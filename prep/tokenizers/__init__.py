"""Tokenizers: texts become ids, ids become text; one file a kind.

``open_tokenizer`` opens the one that a Settings describes. What it is made of, its definition, is stored: ``open_stored`` opens the one that made a corpus
from what stands beside its shards, ``open_encoder`` does the same for a worker. ``prep.tokenizers.proof`` chooses which library encodes.
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


class Encoder(Protocol):
    """Texts become ids."""

    @property
    def identity(self) -> nc.TokenizerIdentity:
        """Whose ids they are, as it is recorded."""
        ...

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return (ids of all texts one after another, unsigned integers; number of ids of each text, int64); no BOS, no EOS."""
        ...


class Tokenizer(Encoder, Protocol):
    """What every kind can do."""

    @property
    def definition(self) -> bytes | None:
        """What is stored beside the shards so that rows decode later; None where the kind alone says it."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what was inferred."""
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
        engine: what is to encode: see proof.choose_engine; ids don't depend on it.
        vocab_size, eos_id, bos_id: of the kind ``ids``, where the documents are ids of a tokenizer that nobody names.
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
    vocab_size: int | None = None
    eos_id: int | None = None
    bos_id: int | None = None


def open_tokenizer(settings: Settings) -> Tokenizer:
    """Return the tokenizer of the settings; raise ValueError or FileNotFoundError where there is none."""
    from prep.tokenizers import byte, char, given  # each loads what it needs

    if settings.kind == given.KIND:
        return given.open_unknown(settings)
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
    return _open_file(settings)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """What encodes, as plain data for a worker.

    Attributes:
        folder: with the tokenizer's definition. identity: whose.
        allow_special: text that spells a special token becomes that token.
        engine: ``tokenizers`` (the library of the tokenizer's kind), ``gigatoken``, or ``given``: documents are ids already.
    """

    folder: Path
    identity: nc.TokenizerIdentity
    allow_special: bool
    engine: str


def open_encoder(encoding: Encoding) -> Encoder:
    """Return what encodes; raise FileNotFoundError or FormatError as open_stored does."""
    if encoding.engine == "given":
        from prep.tokenizers.given import GivenEncoder

        return GivenEncoder(encoding.identity)
    if encoding.engine == "gigatoken":
        from prep.tokenizers.gigatoken_engine import GigatokenEncoder

        definition = _definition(encoding.folder, encoding.identity)
        return GigatokenEncoder(definition, encoding.identity, allow_special=encoding.allow_special)
    return open_stored(encoding.folder, encoding.identity, allow_special=encoding.allow_special)


def open_stored(folder: Path, identity: nc.TokenizerIdentity, *, allow_special: bool = False) -> Tokenizer:
    """Return the tokenizer that made a corpus.

    Args:
        folder: of the corpus, with the definition beside the shards.
        identity: as the corpus says.
        allow_special: text that spells a special token becomes that token.

    Raises:
        FileNotFoundError: the definition is not there.
        FormatError: it is not the one that made the corpus, or of a kind that is not known.
    """
    from prep.tokenizers import byte, char, sentencepiece_model, tiktoken_ranks, tokenizer_json

    definition = _definition(folder, identity)
    if identity.kind == "byte":
        return byte.ByteTokenizer(append_eos=identity.eos_id is not None, prepend_bos=identity.bos_id is not None)
    if identity.kind == "char":
        return char.from_definition(definition)
    if identity.kind == "sentencepiece":
        return sentencepiece_model.from_definition(definition, identity)
    openers: dict[str, Callable[..., Tokenizer]] = {
        "tokenizer.json": tokenizer_json.from_definition,
        "tiktoken": tiktoken_ranks.from_definition,
    }
    return openers[identity.kind](definition, identity, allow_special=allow_special)


def _definition(folder: Path, identity: nc.TokenizerIdentity) -> bytes:
    """Return what a tokenizer is made of; nothing where its kind alone says everything."""
    if identity.kind == "byte":
        return b""
    path = folder / definition_name(identity)
    definition = path.read_bytes()
    found = hashlib.sha256(definition).hexdigest()
    if found != identity.sha256:
        raise nc.FormatError(
            f"{path}: its sha256 is {found}, but the corpus was made with {identity.sha256}: it is another tokenizer."
        )
    if identity.kind not in DEFINITIONS:
        raise nc.FormatError(f"{folder}: its tokenizer is of the kind {identity.kind!r}, which is not known here.")
    return definition


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
