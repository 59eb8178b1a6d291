"""Which token is EOS or BOS: as asked for, as the files beside the tokenizer say, or the one token of a well-known name; never a guess among several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prep.tokenizers import Settings

EOS_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<eos>", "[EOS]")
BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "<|startoftext|>")


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Tokens by name.

    Attributes:
        path: of the tokenizer's file, for messages; what lies beside it is asked for names.
        added: those that can be EOS or BOS without being named: added, special, or of a well-known name.
        every: all that can be named.
    """

    path: Path
    added: Mapping[str, int]
    every: Mapping[str, int]


def edges_of(settings: Settings, vocabulary: Vocabulary) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Return (id of EOS, id of BOS, sentences on what was inferred); None where it is not asked for; raise ValueError where it is not clear."""
    notes: list[str] = []
    eos = _edge("eos", settings.eos_token, EOS_NAMES, vocabulary, notes) if settings.append_eos else None
    bos = _edge("bos", settings.bos_token, BOS_NAMES, vocabulary, notes) if settings.prepend_bos else None
    return eos, bos, tuple(notes)


def _edge(what: str, wanted: str | None, names: Sequence[str], vocabulary: Vocabulary, notes: list[str]) -> int:
    path, added = vocabulary.path, vocabulary.added
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
    if wanted not in vocabulary.every:
        raise ValueError(
            f"{path}: the token {wanted!r} that is to be {what.upper()} is not in its vocabulary; candidates: {', '.join(sorted(added)[:20]) or 'none'}."
        )
    return vocabulary.every[wanted]


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
