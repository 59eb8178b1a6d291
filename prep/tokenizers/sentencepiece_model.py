"""A SentencePiece ``.model``, by the ``sentencepiece`` library.

The library adds BOS or EOS only when told to, and never is; text that spells a control symbol stays text, always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from prep.extras import require
from prep.tokenizers.edge_tokens import Vocabulary, edges_of

if TYPE_CHECKING:
    from prep.tokenizers import Settings

_WHITE_SPACE = " a  b\nc\t"


class SentencePieceTokenizer:
    """A SentencePiece model. See prep.tokenizers.Tokenizer."""

    def __init__(
        self,
        model: Any,
        definition: bytes,
        name: str,
        *,
        eos_id: int | None,
        bos_id: int | None,
        notes: Sequence[str] = (),
    ) -> None:
        self._model = model
        self.definition = definition
        self.notes = tuple(notes)
        self.identity = nc.TokenizerIdentity(
            kind="sentencepiece",
            name=name,
            sha256=hashlib.sha256(definition).hexdigest(),
            vocab_size=model.vocab_size(),
            eos_id=eos_id,
            bos_id=bos_id,
            pad_id=_or_none(model.pad_id()),
        )

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer."""
        arrays = [np.asarray(ids) for ids in self._model.encode_as_numpy(list(texts))] if texts else []
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        return np.concatenate([np.empty(0, dtype=np.int32), *arrays]).astype(np.uint32), lengths

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer; what the model's normalization took away does not come back."""
        return str(self._model.decode([id for id in ids.tolist() if not self._model.is_control(id)]))

    def spelling(self, id: int) -> str | None:
        """See Tokenizer."""
        return str(self._model.id_to_piece(id)) if id < self.identity.vocab_size else None


def open_file(settings: Settings, path: Path, content: bytes) -> SentencePieceTokenizer:
    """Open a model and find its EOS and BOS: as asked for, else the model's own; raise ValueError where it has none."""
    if settings.allow_special:
        raise ValueError(
            f"{path}: SentencePiece never takes text for a control symbol, so --allow-special would do nothing: leave it out."
        )
    model = _load(content, str(path))
    every = {model.id_to_piece(id): id for id in range(model.vocab_size())}
    own = {"eos": _or_none(model.eos_id()), "bos": _or_none(model.bos_id())}
    added = {model.id_to_piece(id): id for id in own.values() if id is not None}
    eos, bos, found = edges_of(_with_own(settings, model, own), Vocabulary(path=path, added=added, every=every))
    notes = [*found, *_losses(model)]
    for what, asked, named, id in (
        ("eos", settings.append_eos, settings.eos_token, eos),
        ("bos", settings.prepend_bos, settings.bos_token, bos),
    ):
        if asked and named is None:
            notes.append(f"{what.upper()} is {model.id_to_piece(id)!r} (id {id:,}), as the model says.")
    name = path.parent.name if path.name == "tokenizer.model" and path.parent.name else path.stem
    return SentencePieceTokenizer(model, content, name, eos_id=eos, bos_id=bos, notes=notes)


def from_definition(definition: bytes, identity: nc.TokenizerIdentity) -> SentencePieceTokenizer:
    """Return the tokenizer of a stored definition, for decoding."""
    model = _load(definition, identity.name)
    return SentencePieceTokenizer(model, definition, identity.name, eos_id=identity.eos_id, bos_id=identity.bos_id)


def _with_own(settings: Settings, model: Any, own: dict[str, int | None]) -> Settings:
    """Return the settings with the model's own EOS and BOS where none is named."""
    names = {what: None if id is None else model.id_to_piece(id) for what, id in own.items()}
    return replace(settings, eos_token=settings.eos_token or names["eos"], bos_token=settings.bos_token or names["bos"])


def _load(content: bytes, name: str) -> Any:
    library = require("sentencepiece", extra="prep", purpose=f"the tokenizer {name}")
    try:
        return library.SentencePieceProcessor(model_proto=content)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{name}: it is no SentencePiece model ({str(error).strip()}).") from None


def _losses(model: Any) -> list[str]:
    """Return a sentence where the model does not keep white space as it is: rows then don't decode to the text that came in."""
    if model.decode(model.encode(_WHITE_SPACE)) == _WHITE_SPACE:
        return []
    return [
        "the tokenizer does not keep all white space (line breaks, repeated spaces) or has no pieces for it, so text does not come back as it was."
    ]


def _or_none(id: int) -> int | None:
    return id if id >= 0 else None
