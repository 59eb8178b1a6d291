"""What a tokenizer's file is, by its content: a suffix says little (Llama 3's ``tokenizer.model`` is a tiktoken file)."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

# Beside the shards; of a kind that is not here the kind alone says everything.
DEFINITIONS = {
    "char": "tokenizer.json",
    "tokenizer.json": "tokenizer.json",
    "sentencepiece": "tokenizer.model",
    "tiktoken": "tokenizer.tiktoken.json",
}
_IN_FOLDERS = ("tokenizer.json", "tokenizer.tiktoken.json", "tokenizer.model", "tiktoken.model")
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
_TIKTOKEN_KEY = b'"kind":"tiktoken"'
_SENTENCEPIECE_START = b"\n"  # field 1 of a ModelProto, length-delimited: its first piece


def find(path_text: str) -> Path:
    """Return the file that ``--tokenizer`` means: itself, or the one of a well-known name in a folder; raise FileNotFoundError."""
    path = Path(path_text).expanduser()
    if path.is_dir():
        path = next((path / name for name in _IN_FOLDERS if (path / name).is_file()), path / _IN_FOLDERS[0])
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file; --tokenizer is byte, char, or the path of a tokenizer.json, a SentencePiece .model or a .tiktoken file."
        )
    return path


def kind_of(content: bytes) -> str:
    """Return the kind of a file: ``tokenizer.json``, ``sentencepiece`` or ``tiktoken`` (ranks, or a definition of ours)."""
    if _RANK_LINE.match(content) or (content.startswith(b"{") and _TIKTOKEN_KEY in content[:4096]):
        return "tiktoken"
    # JSON may begin with a line break too; a piece's length never is white space and a brace.
    if content.startswith(_SENTENCEPIECE_START) and not content.lstrip().startswith((b"{", b"[")):
        return "sentencepiece"
    return "tokenizer.json"


def side_file(path: Path) -> Path:
    """Return the file beside a .tiktoken file that says what it does not say itself."""
    return path.with_name(path.name + ".json")


def digest(path_text: str) -> str:
    """Return the sha256 of a tokenizer's file, and of its side file if it has one: what must not change between a run and its rerun."""
    path = find(path_text)
    found = hashlib.sha256(path.read_bytes())
    if side_file(path).is_file():
        found.update(side_file(path).read_bytes())
    return found.hexdigest()
