"""Hugging Face's ``tokenizer.json``, by the ``tokenizers`` library.

The post-processor never runs, so a tokenizer that adds BOS or EOS by itself adds none here: both come from --prepend-bos and --append-eos alone.
Text that spells a special token stays text; tokens that were added to the vocabulary without being special are vocabulary like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from prep.extras import require

if TYPE_CHECKING:
    from prep.tokenizers import Settings

_EOS_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<eos>", "[EOS]")
_BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<|startoftext|>")


class JsonTokenizer:
    """A ``tokenizer.json``. See prep.tokenizers.Tokenizer."""

    def __init__(
        self,
        definition: bytes,
        name: str,
        *,
        eos_id: int | None,
        bos_id: int | None,
        allow_special: bool,
        notes: Sequence[str] = (),
    ) -> None:
        self._tokenizer = _load(definition, name)
        self._tokenizer.encode_special_tokens = not allow_special
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.definition = definition
        self.notes = tuple(notes)
        self.identity = nc.TokenizerIdentity(
            kind="tokenizer.json",
            name=name,
            sha256=hashlib.sha256(definition).hexdigest(),
            vocab_size=max(vocabulary.values()) + 1,  # ids may have holes
            eos_id=eos_id,
            bos_id=bos_id,
        )

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        arrays = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        return np.concatenate([np.empty(0, dtype=np.uint32), *arrays]), lengths

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer; as lossy as the tokenizer's own decoder is."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))


def open_file(settings: Settings) -> JsonTokenizer:
    """Open the file that the settings name, and find its EOS and BOS; raise ValueError where they are asked for and not clear."""
    assert settings.path is not None
    path = Path(settings.path).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file; --tokenizer is byte, char, or the path of a tokenizer.json."
        )
    definition = path.read_bytes()
    tokens = _vocabularies(definition, path)
    notes: list[str] = []
    eos = _edge("eos", settings.eos_token, _EOS_NAMES, tokens, path, notes) if settings.append_eos else None
    bos = _edge("bos", settings.bos_token, _BOS_NAMES, tokens, path, notes) if settings.prepend_bos else None
    name = path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.stem
    return JsonTokenizer(definition, name, eos_id=eos, bos_id=bos, allow_special=settings.allow_special, notes=notes)


def from_definition(definition: bytes, identity: nc.TokenizerIdentity) -> JsonTokenizer:
    """Return the tokenizer of a stored definition, for decoding."""
    return JsonTokenizer(definition, identity.name, eos_id=identity.eos_id, bos_id=identity.bos_id, allow_special=False)


def _load(definition: bytes, name: str) -> Any:
    tokenizers = require("tokenizers", extra="prep", purpose=f"the tokenizer {name}")
    try:
        return tokenizers.Tokenizer.from_buffer(definition)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{name}: it is no tokenizer.json that the tokenizers library reads ({error}).") from None


def _vocabularies(definition: bytes, path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return (tokens that can be EOS or BOS without being named: the added ones and those of a well-known name; all tokens)."""
    try:
        data = json.loads(definition)
        found = data.get("model", {}).get("vocab", {})
        # A dict; of a Unigram model a list of [token, score], the place being the id.
        vocabulary = found if isinstance(found, dict) else {entry[0]: place for place, entry in enumerate(found)}
        added = {token["content"]: int(token["id"]) for token in data.get("added_tokens") or []}
        added |= {name: vocabulary[name] for name in (*_EOS_NAMES, *_BOS_NAMES) if name in vocabulary}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: it is no tokenizer.json ({error!r}).") from None
    return added, vocabulary | added


def _edge(
    what: str,
    wanted: str | None,
    names: Sequence[str],
    tokens: tuple[dict[str, int], dict[str, int]],
    path: Path,
    notes: list[str],
) -> int:
    """Return the id of EOS or BOS: as asked for, as the files beside the tokenizer say, or the one token of a well-known name."""
    added, every = tokens
    if wanted is None:
        wanted = _said(what, path.parent)
        if wanted is not None:
            notes.append(f"{what.upper()} is {wanted!r}, as the files beside {path.name} say.")
    if wanted is None:
        known = [name for name in names if name in added]
        if len(known) != 1:
            candidates = ", ".join(known or sorted(added)[:20]) or "none"
            raise ValueError(
                f"{path}: nothing says which token is {what.upper()}; name it with --{what}-token. Candidates: {candidates}."
            )
        wanted = known[0]
        notes.append(
            f"{what.upper()} is {wanted!r} (id {added[wanted]:,}), the one token of a well-known name; --{what}-token names another."
        )
    if wanted not in every:
        raise ValueError(
            f"{path}: the token {wanted!r} that is to be {what.upper()} is not in its vocabulary; candidates: {', '.join(sorted(added)[:20]) or 'none'}."
        )
    return every[wanted]


def _said(what: str, folder: Path) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            value = json.loads((folder / name).read_bytes()).get(f"{what}_token")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            return value
    return None
