"""Which tokenizer made the ids: recorded in every shard, compared when sources are mixed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_IDS = ("eos_id", "bos_id", "pad_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerIdentity:
    """The identity of a tokenizer; two corpora may be mixed in one plan when these are equal.

    Args:
        kind: what reads the definition: ``byte``, ``char``, ``tokenizer.json``, …
        name: for people; a file's or model's name, never a path.
        sha256: of the definition's bytes, 64 hexadecimal digits.
        vocab_size: number of ids, added tokens included, 1 … 2^32; every id is smaller.
        eos_id, bos_id, pad_id: ids below ``vocab_size``, or None where the tokenizer has none.

    Raises:
        ValueError: a value outside its range.
    """

    kind: str
    name: str
    sha256: str
    vocab_size: int
    eos_id: int | None = None
    bos_id: int | None = None
    pad_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("kind", "name", "sha256"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"tokenizer {name} is {getattr(self, name)!r}, expected text")
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ValueError(f"tokenizer sha256 is {self.sha256!r}, expected 64 lower-case hexadecimal digits")
        if type(self.vocab_size) is not int or not 1 <= self.vocab_size <= 2**32:
            raise ValueError(f"tokenizer vocab_size is {self.vocab_size!r}, expected an integer from 1 to 2^32")
        for name in _IDS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 <= value < self.vocab_size):
                raise ValueError(f"tokenizer {name} is {value!r}, expected an id below vocab_size {self.vocab_size:,}")

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain data, as it stands in a shard's header."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> TokenizerIdentity:
        """Build the identity from plain data; raise ValueError naming what is missing, unknown or out of range."""
        if not isinstance(data, dict):
            raise ValueError(f"the tokenizer is {data!r}, expected an object")
        expected = set(cls.__dataclass_fields__)
        if set(data) != expected:
            odd = sorted(set(data) ^ expected)
            raise ValueError(f"the tokenizer's keys differ from those expected in {', '.join(odd)}")
        return cls(**data)
