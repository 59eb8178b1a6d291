"""LitData's chunks of tokens, as its TokensLoader writes them, read in place: a folder with ``index.json`` and ``chunk-<rank>-<number>.bin``.

    index.json   {"chunks": [{"chunk_bytes", "chunk_size", "dim", "filename"}, …], "config": {"data_format", "item_loader", "compression", …}, …}
    chunk file   u32 N, documents    u32 offset[N + 1], bytes from the start of the file, the first 4 + 4 (N + 1), the last the file's size
                 then the tokens, one document after another (little-endian), without anything between them

``chunk_bytes`` is the size of the file, ``chunk_size`` is N, ``dim`` the number of tokens (null where the first document is empty). ``data_format`` is
one text, ``no_header_tensor:CODE`` or ``no_header_numpy:CODE``; other keys of the configuration come and go with versions and are ignored.
What is compressed, encrypted, or of another loader than TokensLoader is refused here by name: ``millstream convert`` reads it.

Opening reads ``index.json`` whole and passes once over all offsets, 4 bytes a document, and keeps none of them (under ``access="read"``: in memory).
Offsets of a chunk of 4 GiB or more wrapped around, which its writer did not check; they are computed again from their differences where these fill the
file exactly, kept in memory, 8 bytes a document, and noted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets, ComputedOffsets, Offsets
from neutral_core.legacy.flat import FlatShard, StoredTokens
from neutral_core.legacy.joined import Part, join
from neutral_core.legacy.layout import Layout, Request, first_bytes

INDEX = "index.json"
_PIECE = 1 << 20
_MOST_INDEX_BYTES = 1 << 28
_BEGINS = re.compile(rb'\s*\{\s*"(chunks|config|updated_at)"\s*:')
_UNMERGED = re.compile(r"\d+[.-]index\.json")
_FORMAT = re.compile(r"no_header_(tensor|numpy):(\d{1,3})")

# LitData's own numbers of the integer types; two of torch's where it has two names for one type.
_CODES = {
    "tensor": {11: "u1", 12: "i1", 13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2"},
    "numpy": {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """What ``index.json`` says of a chunk."""

    path: Path
    num_bytes: int
    num_documents: int
    num_tokens: int | None


def open_litdata(request: Request) -> Corpus:
    """Open a folder of LitData's, by its path or its ``index.json``, in place.

    Raises:
        FormatError: for every way in which ``index.json`` and chunks can be wrong, and for what is not read in place; the message names file, field,
            found and expected.
    """
    folder = _folder(request.path)
    path = folder / INDEX
    index = _read_json(path)
    stored = _stored(path, index)
    chunks = _chunks(path, index)
    notes = _strays(folder, chunks)
    parts = [_part(chunk, stored, request.access, notes) for chunk in chunks]
    return join(parts, layout="litdata", tokenizer=request.tokenizer, notes=notes)


def _folder(path: Path) -> Path:
    return path.parent if path.name == INDEX and not path.is_dir() else path


def _recognises(path: Path) -> bool:
    folder = _folder(path)
    if not folder.is_dir():
        return False
    if _BEGINS.match(first_bytes(folder / INDEX, 4096)):
        return True
    if not (folder / INDEX).exists() and any(folder.glob("chunk-*.bin")):
        unmerged = sorted(file.name for file in folder.glob(f"*{INDEX}") if _UNMERGED.fullmatch(file.name))
        if unmerged:
            raise FileNotFoundError(
                f"{folder}: there are {unmerged[0]} and chunks, but no {INDEX}: LitData is still writing it or was stopped before it joined them."
            )
    return False


def _read_json(path: Path) -> Mapping[str, Any]:
    num_bytes = path.stat().st_size
    if num_bytes > _MOST_INDEX_BYTES:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, expected at most {_MOST_INDEX_BYTES:,}: it is no index."
        )
    try:
        index = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: it is not JSON ({error}): the copy was cut short or the file is damaged: copy it again."
        ) from None
    config = index.get("config") if isinstance(index, dict) else None
    if not isinstance(config, dict) or not isinstance(index.get("chunks"), list) or not index["chunks"]:
        raise FormatError(f"{path}: expected an object with 'chunks', a list of at least one, and 'config', an object.")
    return dict(index)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in an object")
    return found


def _stored(path: Path, index: Mapping[str, Any]) -> StoredTokens:
    """Return how ids are stored; refuse by name what is not bare tokens."""
    config = index["config"]
    convert = "it is not read in place: millstream convert reads it."
    for key in ("compression", "encryption"):
        if config.get(key) is not None:
            raise FormatError(f"{path}: config.{key} is {_short(config[key])}, expected null: {convert}")
    loader = config.get("item_loader")  # versions before TokensLoader's name was kept had a dim where it was used
    old = loader is None and all(isinstance(chunk, dict) and chunk.get("dim") is not None for chunk in index["chunks"])
    if loader != "TokensLoader" and not old:
        raise FormatError(
            f"{path}: config.item_loader is {_short(loader)}, expected 'TokensLoader', whose items are bare tokens: {convert}"
        )
    formats = config.get("data_format")
    found = (
        _FORMAT.fullmatch(formats[0])
        if isinstance(formats, list) and len(formats) == 1 and isinstance(formats[0], str)
        else None
    )
    if found is None:
        raise FormatError(
            f"{path}: config.data_format is {_short(formats)}, expected one text, no_header_tensor:CODE or no_header_numpy:CODE: {convert}"
        )
    codes = _CODES[found[1]]
    if int(found[2]) not in codes:
        raise FormatError(
            f"{path}: config.data_format is {_short(formats)}, expected the code of an integer type, one of {', '.join(map(str, codes))}: tokens are "
            "integers."
        )
    return StoredTokens.of(np.dtype(codes[int(found[2])]))


def _chunks(path: Path, index: Mapping[str, Any]) -> list[_Chunk]:
    chunks, names = [], set()
    for number, entry in enumerate(index["chunks"]):
        where = f"{path}: chunks[{number}]"
        if not isinstance(entry, dict):
            raise FormatError(f"{where} is {_short(entry)}, expected an object: the file is damaged.")
        name = entry.get("filename")
        if not isinstance(name, str) or not name or name.startswith(".") or set(name) & set("/\\:\0"):
            raise FormatError(f"{where}.filename is {_short(name)}, expected the name of a file in the same folder.")
        if name in names:
            raise FormatError(
                f"{where}.filename is {name!r} a second time: the index lists documents twice, as appending to a data set did in some versions: remove "
                "one of the entries."
            )
        names.add(name)
        num_bytes, num_documents = (_count(entry, key, where) for key in ("chunk_bytes", "chunk_size"))
        num_tokens = None if entry.get("dim") is None else _count(entry, "dim", where)
        chunks.append(
            _Chunk(path=path.parent / name, num_bytes=num_bytes, num_documents=num_documents, num_tokens=num_tokens)
        )
    return chunks


def _count(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = entry.get(key)
    if type(value) is not int or not 0 <= value < 2**62:
        raise FormatError(f"{where}.{key} is {_short(value)}, expected an integer from 0 to 2^62 - 1.")
    return value


def _part(chunk: _Chunk, stored: StoredTokens, access: str, notes: list[str]) -> Part:
    """Return a chunk as a part after checking it against its entry in the index."""
    path = chunk.path
    if not path.is_file():
        raise FormatError(f"{path}: {INDEX} names it, but it is not there: the copy was cut short: copy it again.")
    num_bytes = path.stat().st_size
    start = 4 + 4 * (chunk.num_documents + 1)
    if num_bytes != chunk.num_bytes:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, but {INDEX} says {chunk.num_bytes:,}: the copy was cut short: copy it again."
        )
    if start > num_bytes:
        raise FormatError(
            f"{path}: the file has {num_bytes:,} bytes, but the {chunk.num_documents:,} documents that {INDEX} says have offsets of {start:,}: it is "
            "damaged: copy it again."
        )
    with path.open("rb") as opened:  # not through FileBytes: of thousands of chunks each is let go at once
        _check(path, opened, chunk, stored.dtype.itemsize)
    num_tokens = (num_bytes - start) // stored.dtype.itemsize
    if chunk.num_tokens not in (None, num_tokens):
        raise FormatError(
            f"{path}: the file has {num_tokens:,} tokens of {stored.dtype}, but {INDEX} says {chunk.num_tokens:,} (dim): the data_format is of another "
            "data set, or the file is damaged."
        )
    file = FileBytes(path, num_bytes, access)
    shard = FlatShard(
        file,
        stored,
        offsets=_table(file, chunk.num_documents, stored.dtype.itemsize, notes),
        num_documents=chunk.num_documents,
        start_byte=start,
    )
    return Part(path=path, shard=shard, stored=stored, files=(path,))


def _check(path: Path, file: BinaryIO, chunk: _Chunk, itemsize: int) -> None:
    """Check that documents begin after the offsets, follow each other, are whole tokens each, and fill the file."""
    count, end = (int(word) for word in np.frombuffer(file.read(8), dtype="<u4"))
    if count != chunk.num_documents:
        raise FormatError(
            f"{path}: byte 0: the file has {count:,} documents, but {INDEX} says {chunk.num_documents:,}: one of the two is of another data set."
        )
    start = 4 + 4 * (count + 1)
    if end != start:
        raise FormatError(
            f"{path}: byte 4: the first document begins at byte {end:,}, expected {start:,}, after the offsets: the file is damaged."
        )
    last = np.array([end], dtype=np.uint32)
    for at in range(0, count, _PIECE):
        piece = np.concatenate([last, np.frombuffer(file.read(4 * min(_PIECE, count - at)), dtype="<u4")])
        lengths = np.diff(
            piece
        )  # modulo 2^32, as they were written: where they decrease, the documents are far too long for the file
        wrong = np.flatnonzero(lengths % itemsize)
        if len(wrong):
            raise FormatError(
                f"{path}: document {at + int(wrong[0]):,} has {int(lengths[wrong[0]]):,} bytes, which is no multiple of {itemsize}, the size of an id: the "
                "file is damaged, or data_format is of another data set."
            )
        end += int(lengths.sum(dtype=np.uint64))
        last = piece[-1:]
    if end != chunk.num_bytes:
        raise FormatError(
            f"{path}: by its offsets the documents end at byte {end:,}, but the file has {chunk.num_bytes:,}: offsets leave gaps or decrease: it is "
            "damaged: copy it again."
        )


def _table(file: FileBytes, count: int, itemsize: int, notes: list[str]) -> Offsets:
    """Return where the documents of a checked chunk begin, in tokens."""
    start = 4 + 4 * (count + 1)
    held = None if file.access == "map" else file.read(4, start)  # never mapped then: in memory

    def offsets() -> npt.NDArray[np.uint32]:
        return (file.map()[4:start] if held is None else held).view("<u4")

    if file.num_bytes < 2**32:
        return ComputedOffsets(count, lambda numbers: (offsets()[numbers].astype(np.int64) - start) // itemsize)
    notes.append(
        f"{file.path.name}: offsets wrapped around at 2^32 bytes, as LitData wrote them; they were computed again from their differences and fit the size "
        "of the file."
    )
    table = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.diff(offsets()), dtype=np.int64, out=table[1:])
    return ArrayOffsets(table // itemsize)


def _strays(folder: Path, chunks: list[_Chunk]) -> list[str]:
    names = {chunk.path.name for chunk in chunks}
    spare = sorted(file.name for file in folder.glob("chunk-*") if file.name not in names)
    if not spare:
        return []
    return [f"{spare[0]}{f' and {len(spare) - 1:,} more' if spare[1:] else ''}: not in {INDEX}, left out."]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


LAYOUT = Layout(names=("litdata",), recognises=_recognises, open=open_litdata)
