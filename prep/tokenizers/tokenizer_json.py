"""Hugging Face's ``tokenizer.json``, by the ``tokenizers`` library.

The post-processor never runs, so a tokenizer that adds BOS or EOS by itself adds none here: both come from --prepend-bos and --append-eos alone.
Text that spells a special token stays text; tokens that were added to the vocabulary without being special are vocabulary like any other.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from prep.extras import require
from prep.tokenizers.edge_tokens import BOS_NAMES, EOS_NAMES, Vocabulary, edges_of

if TYPE_CHECKING:
    from prep.tokenizers import Settings


class JsonTokenizer:
    """A ``tokenizer.json``. See prep.tokenizers.Tokenizer."""

    def __init__(
        self,
        library: Any,
        vocab_size: int,
        definition: bytes,
        name: str,
        *,
        eos_id: int | None,
        bos_id: int | None,
        allow_special: bool,
        notes: Sequence[str] = (),
    ) -> None:
        self._tokenizer = library
        self._tokenizer.encode_special_tokens = not allow_special
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.definition = definition
        self.notes = tuple(notes)
        self.identity = nc.TokenizerIdentity(
            kind="tokenizer.json",
            name=name,
            sha256=hashlib.sha256(definition).hexdigest(),
            vocab_size=vocab_size,
            eos_id=eos_id,
            bos_id=bos_id,
        )

    def encode(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """See Tokenizer."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = array(
            "I"
        )  # 4 bytes; half the time of numpy.array, and the lists cannot be avoided: 100 ns a token, of 1,100 in all
        for encoding in encodings:
            ids.fromlist(encoding.ids)
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(encodings))
        return np.frombuffer(ids, dtype=np.uint32) if len(ids) else np.empty(0, dtype=np.uint32), lengths

    def decode(self, ids: npt.NDArray[Any]) -> str:
        """See Tokenizer; as lossy as the tokenizer's own decoder is."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def spelling(self, id: int) -> str | None:
        """See Tokenizer."""
        return self._tokenizer.id_to_token(id)  # type: ignore[no-any-return]


def open_file(settings: Settings, path: Path, content: bytes) -> JsonTokenizer:
    """Open a file's content, and find its EOS and BOS; raise ValueError where they are asked for and not clear."""
    library = _load(content, str(path))
    vocabulary = _vocabulary(library, path)
    eos, bos, notes = edges_of(settings, vocabulary)
    return JsonTokenizer(
        library,
        max(vocabulary.every.values()) + 1,  # ids may have holes
        content,
        path.parent.name if path.name == "tokenizer.json" and path.parent.name else path.stem,
        eos_id=eos,
        bos_id=bos,
        allow_special=settings.allow_special,
        notes=notes,
    )


def from_definition(definition: bytes, identity: nc.TokenizerIdentity, *, allow_special: bool = False) -> JsonTokenizer:
    """Return the tokenizer of a stored definition."""
    return JsonTokenizer(
        _load(definition, identity.name),
        identity.vocab_size,
        definition,
        identity.name,
        eos_id=identity.eos_id,
        bos_id=identity.bos_id,
        allow_special=allow_special,
    )


def _load(definition: bytes, name: str) -> Any:
    tokenizers = require("tokenizers", extra="prep", purpose=f"the tokenizer {name}")
    try:
        return tokenizers.Tokenizer.from_buffer(definition)
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{name}: it is no tokenizer.json that the tokenizers library reads ({error}).") from None


def _vocabulary(library: Any, path: Path) -> Vocabulary:
    every = library.get_vocab(with_added_tokens=True)
    added = {token.content: id for id, token in library.get_added_tokens_decoder().items()}
    added |= {name: every[name] for name in (*EOS_NAMES, *BOS_NAMES) if name in every}
    return Vocabulary(path=path, added=added, every=every)
