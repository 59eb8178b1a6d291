"""The gigatoken library as a faster engine for another tokenizer's ids: 20 to 40 times the speed, where its ids are the same (see prep.tokenizers.proof).

It takes special tokens in text for special always, so it is given definitions without them, unless text may spell them. It is asked document by document,
which costs 2 µs each: its calls for many load awkward, a second and 90 MB in each process, and are no faster for documents of a page.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from neutral_core.format import canonical
from prep.extras import require

if TYPE_CHECKING:
    from prep.tokenizers import Tokenizer

# The library remembers each word that it has met and never forgets (up to 7 bytes a byte of text without repetitions), so it is loaded anew once the
# process has grown by this much: looked at after every so many characters, because loading takes as long as encoding 30 MB.
_GROWTH_BYTES = 256 << 20
_LOOK_CHARACTERS = 64 << 20
_SPOT_CHARACTERS = 48
# What the library calls the patterns of the encodings that it knows.
_SCHEMES = {"r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}


class GigatokenTokenizer:
    """Another tokenizer, encoded by gigatoken. See prep.tokenizers.Tokenizer.

    In every call one short excerpt is encoded by the other tokenizer too, about 1 % of the work: text of a kind that the proof had not seen may differ.
    """

    def __init__(self, reference: Tokenizer, *, allow_special: bool) -> None:
        self._reference = reference
        self.identity, self.definition, self.notes = reference.identity, reference.definition, reference.notes
        self.decode, self.spelling = reference.decode, reference.spelling
        self._build = _builder(reference, allow_special)
        self._calls = self._characters = self._resident = 0
        self._load()

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer; raises ValueError where the other tokenizer's ids of the excerpt differ."""
        arrays = list(map(self._encode, texts))
        lengths = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        self._spot(texts)
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

    def _spot(self, texts: Sequence[str]) -> None:
        if not texts:
            return
        self._calls += 1
        text = texts[self._calls * 7919 % len(texts)]
        start = self._calls * 104729 % max(len(text) - _SPOT_CHARACTERS, 1)
        excerpt = text[start : start + _SPOT_CHARACTERS]
        expected, _ = self._reference.encode([excerpt])
        if not np.array_equal(self._encode(excerpt), expected):
            raise ValueError(
                f"gigatoken gives other ids for {excerpt!r} than the tokenizer's own library: run with --tokenizer-engine tokenizers and --restart."
            )


def _builder(reference: Tokenizer, allow_special: bool) -> Callable[[], Any]:
    """Return what loads the definition into gigatoken; raise ValueError for what it has no way to take."""
    library = require("gigatoken", extra="fast", purpose="the engine gigatoken")
    definition = reference.definition
    kind, name = reference.identity.kind, reference.identity.name
    if definition is None or kind not in ("tokenizer.json", "sentencepiece", "tiktoken"):
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
    data = json.loads(text)
    data["added_tokens"] = [token for token in data.get("added_tokens") or [] if not token.get("special")]
    return json.dumps(data)


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
