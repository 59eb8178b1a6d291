"""The manifest, ``dataset.json``: which shards make a corpus, in which order, with which digests; written last, read alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.format import canonical
from neutral_core.format.content import FORMAT_VERSION
from neutral_core.format.fields import Field, fields_from_json, fields_to_json
from neutral_core.format.shard import Entry, Shard
from neutral_core.format.tokenizer import TokenizerIdentity

MANIFEST = "dataset.json"
_KEYS = {
    "checksum", "fields", "fingerprint", "format", "format_version", "num_documents", "num_tokens", "shards", "tokenizer", "vocab_size",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a corpus holds, without touching a shard."""

    vocab_size: int
    tokenizer: TokenizerIdentity | None
    fields: dict[str, Field]
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Manifest:
        """Return the manifest of opened shards; raise FormatError naming the first that was declared differently."""
        contents = [shard.open() for shard in shards]
        for shard, content in zip(shards, contents, strict=True):
            for key in ("vocab_size", "tokenizer", "fields"):
                if getattr(content, key) != getattr(contents[0], key):
                    raise FormatError(
                        f"{shard.path}: {key} is {getattr(content, key)!r}, but {getattr(contents[0], key)!r} in {shards[0].path.name}: "
                        "these shards do not belong to one corpus."
                    )
        if not shards:
            raise FormatError("a corpus has at least one shard, found none.")
        first = contents[0]
        return cls(
            vocab_size=first.vocab_size,
            tokenizer=first.tokenizer,
            fields=first.fields,
            entries=tuple(shard.entry for shard in shards),
        )

    @property
    def chain(self) -> list[str]:
        """The fingerprints f_1 … f_n of the first 1 … n shards: f_i = sha256(f_(i-1) ‖ digest_i), f_0 = 32 zero bytes."""
        links = []
        link = bytes(32)
        for entry in self.entries:
            link = hashlib.sha256(link + bytes.fromhex(entry.digest)).digest()
            links.append(link.hex())
        return links

    def cut(self, fingerprint: str, path: str) -> Manifest:
        """Return the manifest of the first shards whose fingerprint is the one given; raise FormatError where none is."""
        chain = self.chain
        if fingerprint not in chain:
            raise FormatError(
                f"{path}: no run of its first shards has the fingerprint {fingerprint}, the whole has {chain[-1]}: it is another corpus, or was "
                "written again."
            )
        entries = self.entries[: chain.index(fingerprint) + 1]
        return Manifest(vocab_size=self.vocab_size, tokenizer=self.tokenizer, fields=self.fields, entries=entries)

    def to_bytes(self) -> bytes:
        """Return the file's content: canonical JSON and a newline."""
        data: dict[str, Any] = {
            "fields": fields_to_json(self.fields),
            "fingerprint": self.chain[-1],
            "format": "millstream corpus",
            "format_version": FORMAT_VERSION,
            "num_documents": sum(entry.num_documents for entry in self.entries),
            "num_tokens": sum(entry.num_tokens for entry in self.entries),
            "shards": [{key: getattr(entry, key) for key in Entry.__dataclass_fields__} for entry in self.entries],
            "tokenizer": None if self.tokenizer is None else self.tokenizer.to_json(),
            "vocab_size": self.vocab_size,
        }
        data["checksum"] = hashlib.sha256(canonical.dumps(data)).hexdigest()
        return canonical.dumps(data) + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> Manifest:
        """Parse and check the file's content; raise FormatError naming what is wrong."""
        try:
            data = _loads(content)
            if not isinstance(data, dict) or data.get("format") != "millstream corpus":
                raise ValueError("it is no manifest of Millstream's ('format' is not 'millstream corpus').")
            version = data.get("format_version")
            if type(version) is not int or version < 1:
                raise ValueError(f"format_version is {version!r}, expected 1 to {FORMAT_VERSION}.")
            if version > FORMAT_VERSION:
                raise ValueError(
                    f"format version {version} is newer than {FORMAT_VERSION}, the newest that this Millstream reads: update it."
                )
            if set(data) != _KEYS:
                raise ValueError(
                    f"its keys differ from those expected in {', '.join(sorted(set(data) ^ _KEYS))}: the file is damaged."
                )
            manifest = cls._parse(data)
        except (ValueError, TypeError) as error:
            raise FormatError(f"{path}: {error}") from None
        if manifest.to_bytes() != content:
            raise FormatError(
                f"{path}: checksum, totals or fingerprint do not fit the rest: the file was changed by hand or is damaged: copy it again."
            )
        return manifest

    @classmethod
    def _parse(cls, data: dict[str, Any]) -> Manifest:
        if type(data["vocab_size"]) is not int or not 1 <= data["vocab_size"] <= 2**32:
            raise ValueError(f"vocab_size is {data['vocab_size']!r}, expected an integer from 1 to 2^32.")
        if not isinstance(data["shards"], list) or not data["shards"]:
            raise ValueError("shards is not a list of at least one shard.")
        entries = tuple(_entry(item) for item in data["shards"])
        for key in ("num_documents", "num_tokens"):
            if sum(getattr(entry, key) for entry in entries) >= 2**62:
                raise ValueError(f"the sum of {key} of all shards is 2^62 or more.")
        return cls(
            vocab_size=data["vocab_size"],
            tokenizer=None if data["tokenizer"] is None else TokenizerIdentity.from_json(data["tokenizer"]),
            fields=fields_from_json(data["fields"]),
            entries=entries,
        )


def _entry(item: Any) -> Entry:
    if not isinstance(item, dict) or set(item) != set(Entry.__dataclass_fields__):
        raise ValueError(f"a shard is {item!r}, expected an object with {', '.join(Entry.__dataclass_fields__)}.")
    name, digest = item["name"], item["digest"]
    if not isinstance(name, str) or not name or name.startswith(".") or set(name) & set("/\\:\0"):
        raise ValueError(f"a shard's name is {name!r}, expected the name of a file in the same folder.")
    if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise ValueError(f"the digest of shard {name} is {digest!r}, expected 64 lower-case hexadecimal digits.")
    for key in ("num_bytes", "num_documents", "num_tokens"):
        if type(item[key]) is not int or not 0 <= item[key] < 2**62:
            raise ValueError(f"{key} of shard {name} is {item[key]!r}, expected an integer from 0 to 2^62 - 1.")
    return Entry(**item)


def _loads(content: bytes) -> Any:
    try:
        return canonical.loads(content)
    except ValueError as error:
        raise ValueError(
            f"it is not JSON ({error}): the copy was cut short or the file is damaged: copy it again."
        ) from None
