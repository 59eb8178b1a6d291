"""A reference: one small file that makes a foreign data set a corpus with a tokenizer, a vocabulary and checksums, without copying it.

It lies in the folder of the data set or in one above, and names the files by paths below its own folder, never outside of it. Canonical JSON:

    {"_format":"millstream reference", "boundaries":…, "checksum":…, "dtype":…, "files":[{"name":…,"num_bytes":…,"sha256":…}], "fingerprint":…,
     "format_version":1, "layout":…, "num_documents":…, "num_tokens":…, "path":…, "tokenizer":…, "vocab_size":…}

Opening checks the sizes of all files and the fingerprint, counts included; ``verify`` the sha256 of every file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.format import canonical
from neutral_core.format.corpus import Corpus
from neutral_core.format.files import write_file
from neutral_core.format.tokenizer import TokenizerIdentity
from neutral_core.legacy.layout import Request, first_bytes

_MAGIC = b'{"_format":"millstream reference"'
_VERSION = 1
_KEYS = {
    "_format", "boundaries", "checksum", "dtype", "files", "fingerprint", "format_version", "layout", "num_documents", "num_tokens", "path",
    "tokenizer", "vocab_size",
}  # fmt: skip


def recognises(path: Path) -> bool:
    """Return whether a path is a reference."""
    return first_bytes(path, len(_MAGIC)) == _MAGIC


def write_reference(
    destination: Path,
    source: Path,
    corpus: Corpus,
    *,
    how: Mapping[str, str | None],
    tokenizer: TokenizerIdentity | None,
    vocab_size: int,
    digests: Sequence[str],
) -> None:
    """Write a reference to a foreign corpus.

    Args:
        destination: of the reference; its folder holds the data set, or one that does.
        source: what ``open_corpus`` opened as ``corpus``: a file, folder or prefix.
        how: layout, dtype and boundaries, as ``open_corpus`` was told them, or None.
        digests: sha256 of each of ``corpus.files``.

    Raises:
        ValueError: a file is outside of the reference's folder.
    """
    folder = destination.parent
    data: dict[str, Any] = {
        "_format": "millstream reference",
        "boundaries": how["boundaries"],
        "dtype": how["dtype"],
        "files": [
            {"name": _inside(path, folder), "num_bytes": path.stat().st_size, "sha256": digest}
            for path, digest in zip(corpus.files, digests, strict=True)
        ],
        "fingerprint": corpus.fingerprint,
        "format_version": _VERSION,
        "layout": how["layout"],
        "num_documents": corpus.num_documents,
        "num_tokens": corpus.num_tokens,
        "path": _inside(source, folder),
        "tokenizer": None if tokenizer is None else tokenizer.to_json(),
        "vocab_size": vocab_size,
    }
    data["checksum"] = _checksum(data)
    write_file(destination, canonical.dumps(data) + b"\n")


def open_reference(request: Request, open_corpus: Callable[..., Corpus]) -> Corpus:
    """Open the corpus that a reference names.

    Raises:
        FormatError: the reference is damaged or names what lies outside of its folder; a file is missing, or not what it was.
    """
    path = request.path
    data = _read(path)
    source = path.parent / data["path"]
    if data["layout"] == "reference" or recognises(source):
        raise FormatError(f"{path}: it names {source}, which is a reference itself: it names none of the data's files.")
    digests = {}
    for entry in data["files"]:
        file = path.parent / entry["name"]
        if not file.is_file():
            raise FormatError(f"{path}: it names {file}, but there is no such file: copy the data set again.")
        if file.stat().st_size != entry["num_bytes"]:
            raise FormatError(
                f"{file}: it has {file.stat().st_size:,} bytes, but {path.name} expects {entry['num_bytes']:,}: it was written again or cut short."
            )
        digests[file] = entry["sha256"]
    tokenizer = data["tokenizer"]
    if request.tokenizer not in (None, tokenizer):
        raise ValueError(f"{path}: the tokenizer given is {request.tokenizer}, but the reference says {tokenizer}.")
    how = {key: data[key] for key in ("layout", "dtype", "boundaries", "fingerprint")}
    try:
        corpus = open_corpus(source, **how, tokenizer=tokenizer, access=request.access)
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{path}: what it names cannot be opened as it says: {error}") from None
    counts = {"num_documents": corpus.num_documents, "num_tokens": corpus.num_tokens}
    for key, found in counts.items():
        if found != data[key]:
            raise FormatError(f"{path}: {key} is {data[key]:,}, but {source} has {found:,}: the reference is damaged.")
    corpus.vocab_size = data["vocab_size"]
    corpus.digests = digests
    return corpus


def _inside(path: Path, folder: Path) -> str:
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise ValueError(
            f"{path} is not below {folder}: a reference lies in the folder of what it names, or in one above, and so moves with it."
        ) from None


def _checksum(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical.dumps({key: value for key, value in data.items() if key != "checksum"})).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
        data = canonical.loads(content)
        if not isinstance(data, dict):
            raise ValueError("it is no object.")
        version = data.get("format_version")
        if type(version) is not int or version < 1:
            raise ValueError(f"format_version is {version!r}, expected 1 to {_VERSION}.")
        if version > _VERSION:
            raise ValueError(
                f"format version {version} is newer than {_VERSION}, the newest that this Millstream reads: update it."
            )
        if set(data) != _KEYS:
            raise ValueError(f"its keys differ from those expected in {', '.join(sorted(set(data) ^ _KEYS))}.")
        if data["checksum"] != _checksum(data) or canonical.dumps(data) + b"\n" != content:
            raise ValueError("its checksum does not fit the rest: it was changed by hand or is damaged.")
        _check(data)
        data["tokenizer"] = None if data["tokenizer"] is None else TokenizerIdentity.from_json(data["tokenizer"])
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    return data


def _check(data: Mapping[str, Any]) -> None:
    """Raise ValueError for a value that no reference has: a right checksum does not say who wrote it."""
    files = data["files"]
    if not isinstance(files, list) or not all(
        isinstance(entry, dict) and set(entry) == {"name", "num_bytes", "sha256"} for entry in files
    ):
        raise ValueError("files is no list of objects with name, num_bytes and sha256.")
    for name in (data["path"], *(entry["name"] for entry in files)):
        place = PurePosixPath(name if isinstance(name, str) else "..")
        if place.is_absolute() or ".." in place.parts or "\0" in name:
            raise ValueError(f"it names {name!r}, which is no path below its own folder.")
    texts = [(key, data[key]) for key in ("boundaries", "dtype", "layout") if data[key] is not None]
    texts += [("fingerprint", data["fingerprint"]), *(("sha256", entry["sha256"]) for entry in files)]
    for key, value in texts:
        if not isinstance(value, str):
            raise ValueError(f"{key} is {value!r}, expected text.")
    numbers = [(key, data[key]) for key in ("num_documents", "num_tokens", "vocab_size")]
    for key, value in [*numbers, *(("num_bytes", entry["num_bytes"]) for entry in files)]:
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(f"{key} is {value!r}, expected a whole number from 0 on.")
    if not 1 <= data["vocab_size"] <= 2**32:
        raise ValueError(f"vocab_size is {data['vocab_size']:,}, expected 1 to 2^32.")
