"""Several foreign files that make one data set: one corpus with one shard a file, in the makers' order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.fields import Field
from neutral_core.format.tokenizer import TokenizerIdentity
from neutral_core.legacy.flat import FlatShard, StoredTokens, fingerprint_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One file of tokens, opened and checked.

    Attributes:
        path: of the tokens, for messages.
        shard: what is read of it.
        stored: how its ids are stored.
        files: those whose bytes the fingerprint covers: none that holds a path or a time.
        boundaries: what tells its documents, for the fingerprint, as far as the bytes of ``files`` do not.
        fields: what the shard declares.
    """

    path: Path
    shard: FlatShard
    stored: StoredTokens
    files: tuple[Path, ...]
    boundaries: str = "index"
    fields: Mapping[str, Field] = field(default_factory=dict)


def join(
    parts: Sequence[Part],
    *,
    layout: str,
    tokenizer: TokenizerIdentity | None,
    notes: Sequence[str],
) -> Corpus:
    """Return the corpus of one file or more, in the order given.

    Args:
        parts: at least one.
        layout: for the fingerprint.
        tokenizer: who made the ids, or None.
        notes: what was inferred, repaired or left out.

    Raises:
        FormatError: a file has another dtype or other fields than the first.
    """
    first = parts[0]
    for part in parts[1:]:
        for what, found, expected in (
            ("tokens", part.stored.dtype, first.stored.dtype),
            ("fields", _named(part), _named(first)),
        ):
            if found != expected:
                raise FormatError(
                    f"{part.path}: its {what} are {found}, but {expected} in {first.path.name}: the files do not belong to one data set: keep those "
                    "of another one in a folder of their own."
                )
    files = [file for part in parts for file in part.files]
    boundaries = "\n".join(part.boundaries for part in parts)
    return Corpus(
        [part.shard for part in parts],
        dtype=first.stored.served,
        fingerprint=fingerprint_of(layout, str(first.stored.dtype), boundaries, files),
        tokenizer=tokenizer,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        fields=first.fields,
        notes=notes,
        files=files,
    )


def _named(part: Part) -> str:
    return ", ".join(f"{name} ({value.dtype}{list(value.shape)})" for name, value in part.fields.items()) or "none"
