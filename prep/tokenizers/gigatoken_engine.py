"""The gigatoken library as a faster engine for another tokenizer's ids: 20 to 40 times the speed, where its ids are the same (see prep.tokenizers.proof).

It takes special tokens in text for special always, so it is given definitions without them, unless text may spell them. It is asked document by document,
which costs 2 µs each: its calls for many load awkward, a second and 90 MB in each process, and are no faster for documents of a page.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format import canonical
from prep.extras import require

# The library remembers each word that it has met and never forgets (up to 7 bytes a byte of text without repetitions), so it is loaded anew once the
# process has grown by this much: looked at after every so many characters, because loading takes as long as encoding 30 MB.
_GROWTH_BYTES = 256 << 20
_LOOK_CHARACTERS = 64 << 20
_ADDED_TOKENS = re.compile(r'(?<!\\)"added_tokens"\s*:\s*\[')  # a key: inside of a text the quotes would be escaped
# What the library calls the patterns of the encodings that it knows.
_SCHEMES = {"r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}


class GigatokenEncoder:
    """Encodes as another tokenizer does, by gigatoken. See prep.tokenizers.Encoder.

    Args:
        definition: of the other tokenizer. identity: likewise.
        allow_special: text that spells a special token becomes that token.
    """

    def __init__(self, definition: bytes, identity: nc.TokenizerIdentity, *, allow_special: bool) -> None:
        self.identity = identity
        self._build = _builder(definition, identity, allow_special)
        self._characters = self._resident = 0
        self._load()

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Encoder."""
        arrays = list(map(self._encode, texts))
        lengths = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        self._characters += sum(map(len, texts))
        if self._characters > _LOOK_CHARACTERS:
            self._characters = 0
            if _resident() - self._resident > _GROWTH_BYTES:
                self._load()
        return np.concatenate([np.empty(0, dtype=np.uint32), *arrays]), lengths

    def _load(self) -> None:
        self._encode: Any = None  # the old one goes before the new one comes
        self._encode = self._build().encode
        self._encode("")
        self._characters, self._resident = 0, _resident()


def _builder(definition: bytes, identity: nc.TokenizerIdentity, allow_special: bool) -> Callable[[], Any]:
    """Return what loads the definition into gigatoken; raise ValueError for what it has no way to take."""
    library = require("gigatoken", extra="fast", purpose="the engine gigatoken")
    kind, name = identity.kind, identity.name
    if kind not in ("tokenizer.json", "sentencepiece", "tiktoken"):
        raise ValueError(f"gigatoken has nothing to do for a {kind} tokenizer")
    if kind == "tiktoken":
        data = canonical.loads(definition)
        if name not in _SCHEMES:
            raise ValueError(f"gigatoken does not know the pattern of the encoding {name!r}")
        special = data["special_tokens"] if allow_special else {}
        return lambda: _from_ranks(library, data["ranks"], _SCHEMES[name], special)
    if kind == "sentencepiece":
        text = json.dumps(library.Tokenizer.from_sentencepiece(definition)._hf_config())
    else:
        text = definition.decode("utf-8")
    if not allow_special:
        text = _without_special(text)
    return lambda: library.Tokenizer.from_json(text)


def _without_special(text: str) -> str:
    """Return a tokenizer.json without its special tokens; those that are added and not special are vocabulary, and stay."""
    found = _ADDED_TOKENS.search(text)
    if found is None:
        return text
    tokens, end = json.JSONDecoder().raw_decode(text, found.end() - 1)  # all of it would take as long as encoding 20 MB
    kept = [token for token in tokens if not token.get("special")]
    return text[: found.end() - 1] + json.dumps(kept) + text[end:]


def _from_ranks(library: Any, ranks: str, scheme: str, special: dict[str, int]) -> Any:
    with tempfile.TemporaryDirectory() as folder:  # it takes a path and no bytes
        path = Path(folder) / "ranks.tiktoken"
        path.write_text(ranks, encoding="ascii")
        return library.Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens=special)


def _resident() -> int:
    """Return the process's resident memory in bytes; where the system does not say it, its peak so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, which has no /proc
