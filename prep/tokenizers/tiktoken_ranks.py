"""A ``.tiktoken`` file, by the ``tiktoken`` library.

The file holds byte strings and their ranks, and neither the pattern that text is first split by nor the special tokens. Both come from the library, where
the file's sha256 is one that the library itself expects of an encoding; else from ``FILE.json`` beside it; never from a guess, because a wrong pattern gives
ids that look right. What is stored with a corpus holds all three.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format import canonical
from prep.extras import require
from prep.tokenizers.edge_tokens import Vocabulary, edges_of
from prep.tokenizers.files import side_file

if TYPE_CHECKING:
    from prep.tokenizers import Settings

_KEYS = {"kind", "name", "pattern", "ranks", "special_tokens"}
_SIDE = 'such as {"encoding": "cl100k_base"}, or {"pattern": "…", "special_tokens": {"<|endoftext|>": 100257}}'


class TiktokenTokenizer:
    """Ranks, a pattern and special tokens. See prep.tokenizers.Tokenizer."""

    def __init__(
        self,
        definition: bytes,
        *,
        name: str,
        eos_id: int | None,
        bos_id: int | None,
        allow_special: bool,
        notes: Sequence[str] = (),
    ) -> None:
        self._encoding = _encoding(definition, name)
        self._allowed = self._encoding.special_tokens_set if allow_special else frozenset()
        self.definition = definition
        self.notes = tuple(notes)
        self.identity = nc.TokenizerIdentity(
            kind="tiktoken",
            name=name,
            sha256=hashlib.sha256(definition).hexdigest(),
            vocab_size=self._encoding.max_token_value + 1,  # ids may have holes
            eos_id=eos_id,
            bos_id=bos_id,
        )

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer."""
        arrays = [
            self._encoding.encode_to_numpy(text, allowed_special=self._allowed, disallowed_special=()) for text in texts
        ]
        lengths = np.array([len(array) for array in arrays], dtype=np.int64)
        return np.concatenate([np.empty(0, dtype=np.uint32), *arrays]), lengths

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer."""
        return str(self._encoding.decode([id for id in ids.tolist() if not self._encoding.is_special_token(id)]))

    def spelling(self, id: int) -> str | None:
        """See Tokenizer."""
        try:
            return str(self._encoding.decode([id]))
        except KeyError:
            return None


def open_file(settings: Settings, path: Path, content: bytes) -> TiktokenTokenizer:
    """Open ranks or a stored definition, and find EOS and BOS among the special tokens; raise ValueError where something is missing."""
    data = _read(content, str(path)) if content.startswith(b"{") else _complete(content, path)
    special = data["special_tokens"]
    eos, bos, notes = edges_of(settings, Vocabulary(path=path, added=special, every=special))
    return TiktokenTokenizer(
        canonical.dumps(data),
        name=data["name"],
        eos_id=eos,
        bos_id=bos,
        allow_special=settings.allow_special,
        notes=notes,
    )


def from_definition(
    definition: bytes, identity: nc.TokenizerIdentity, *, allow_special: bool = False
) -> TiktokenTokenizer:
    """Return the tokenizer of a stored definition."""
    return TiktokenTokenizer(
        definition, name=identity.name, eos_id=identity.eos_id, bos_id=identity.bos_id, allow_special=allow_special
    )


def known_encodings(ranks: Any = None) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the library's encodings that are made of one .tiktoken file: name → (sha256 that the library expects, what it says of it).

    The library's own functions run, over ``ranks`` instead of a download.
    """
    public = require("tiktoken_ext.openai_public", extra="prep", purpose="a .tiktoken file")
    found = {}
    for name in public.ENCODING_CONSTRUCTORS:
        expected: list[str] = []
        space = dict(vars(public))

        def load(_url: str, expected_hash: str = "", seen: list[str] = expected) -> Any:
            seen.append(expected_hash)
            return ranks

        space["load_tiktoken_bpe"], space["data_gym_to_mergeable_bpe_ranks"] = load, lambda **_: None
        for other, function in public.ENCODING_CONSTRUCTORS.items():
            space[other] = types.FunctionType(function.__code__, space)
        said = space[name]()
        if len(expected) == 1:
            found[name] = (expected[0], said)
    return found


def _complete(content: bytes, path: Path) -> dict[str, Any]:
    """Return the definition of a file of ranks: with the pattern and special tokens that its side file or its sha256 says."""
    data = {"kind": "tiktoken", "ranks": _ascii(content, path)}
    side = side_file(path)
    if side.is_file():
        return data | _from_side(side, hashlib.sha256(content).hexdigest(), path)
    sha256 = hashlib.sha256(content).hexdigest()
    known = [(name, said) for name, (expected, said) in known_encodings().items() if expected == sha256]
    known = [(name, said) for name, said in known if name in path.name] or known[:1]
    if not known:
        raise ValueError(
            f"{path}: it is none of the files that tiktoken knows (sha256 {sha256}), and such a file says neither the pattern that text is split by "
            f"nor the special tokens: write them into {side.name} beside it, {_SIDE}."
        )
    name, said = known[0]
    return data | {"name": name, "pattern": said["pat_str"], "special_tokens": said["special_tokens"]}


def _from_side(side: Path, sha256: str, path: Path) -> dict[str, Any]:
    try:
        said = canonical.loads(side.read_bytes())
        if isinstance(said, dict) and set(said) == {"encoding"}:
            encodings = known_encodings()
            if said["encoding"] not in encodings:
                raise ValueError(f"the encoding {said['encoding']!r} is none of {', '.join(encodings)}")
            expected, encoding = encodings[said["encoding"]]
            if expected != sha256:
                raise ValueError(f"{said['encoding']} has ranks of sha256 {expected}, but {path.name} has {sha256}")
            return {
                "name": said["encoding"],
                "pattern": encoding["pat_str"],
                "special_tokens": encoding["special_tokens"],
            }
        if not isinstance(said, dict) or not {"pattern"} <= set(said) <= {"name", "pattern", "special_tokens"}:
            raise ValueError("its keys are not those expected")
    except ValueError as error:
        raise ValueError(f"{side}: {error}; expected an object {_SIDE}.") from None
    return {"name": path.stem, "special_tokens": {}} | said


def _read(definition: bytes, name: str) -> dict[str, Any]:
    try:
        data = canonical.loads(definition)
    except ValueError as error:
        raise ValueError(f"{name}: it is no tokenizer.tiktoken.json ({error}).") from None
    if not isinstance(data, dict) or set(data) != _KEYS:
        raise ValueError(f"{name}: it is no tokenizer.tiktoken.json: its keys are not {', '.join(sorted(_KEYS))}.")
    return data


def _encoding(definition: bytes, name: str) -> Any:
    library = require("tiktoken", extra="prep", purpose=f"the tokenizer {name}")
    data = _read(definition, name)
    try:
        special: Mapping[str, int] = data["special_tokens"]
        ranks = ranks_of(data["ranks"])
        if not all(type(id) is int and id >= 0 for id in special.values()):
            raise ValueError("an id of a special token is no number from 0 on")
        if set(special.values()) & set(ranks.values()):
            raise ValueError("a special token has the id of an ordinary one")
        return library.Encoding(name, pat_str=data["pattern"], mergeable_ranks=ranks, special_tokens=dict(special))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{name}: tiktoken cannot use it ({error}).") from None


def ranks_of(text: str) -> dict[bytes, int]:
    """Return the ranks of a .tiktoken file's text; raise ValueError naming the line that is none, or the byte that has no id."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split(" ")
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} is {line[:40]!r}, expected base64 and a number") from None
    if len(set(ranks.values())) != len(ranks):
        raise ValueError("two byte strings have the same rank")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ValueError(f"the byte {missing[0]} has no rank of its own")
    return ranks


def _ascii(content: bytes, path: Path) -> str:
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: it is no .tiktoken file ({error}).") from None
