"""LitData's chunks that are not read in place: compressed ones, and those whose items are trees (PyTreeLoader): a folder with ``index.json``.

    chunk            u32 N, items    u32 offset[N + 1], bytes from the start of the chunk    the items
    item             TokensLoader: its ids, alone. PyTreeLoader: u32 size of each leaf, then the leaves, in the order of ``data_format``
    compression      level "chunk", or none said: the whole file is one zstd frame, and ``chunk_bytes`` is the chunk's size before
                     "sample": the chunk is plain, each item is one zstd frame
                     "batch": "LDFZ01\\0\\0"  u16 version = 1  u16 flags  u32 N  u32 rows  u32 F, frames  u32 offset[N + 1] from the start of the joined items
                     F × {u32 first item  u32 items  u64 byte in the file  u32 bytes  u32 bytes before compression}  the zstd frames

Little-endian. Leaves that can be ids: ``no_header_tensor`` and ``no_header_numpy`` of integers, ``bytes``. There are no checksums: what changed inside a
compressed frame is noticed where zstd or the offsets contradict it, and nowhere else. Encrypted chunks are refused, pickled leaves passed over unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neutral_core.errors import FormatError
from neutral_core.legacy.layout import first_bytes
from prep.foreign.files import count_of, inside, read_json, short
from prep.foreign.layout import Foreign, ForeignLayout
from prep.foreign.litdata_chunk import INDEX, Chunk, kind_of

_TOKENS = "tokens"
_BEGINS = re.compile(rb'\s*\{\s*"(chunks|config|updated_at)"\s*:')


def _open(path: Path) -> Foreign:
    folder = _folder(path)
    index_path = folder / INDEX
    index = read_json(index_path)
    config = index.get("config") if isinstance(index, dict) else None
    if not isinstance(config, dict) or not isinstance(index.get("chunks"), list) or not index["chunks"]:
        raise FormatError(
            f"{index_path}: expected an object with 'chunks', a list of at least one, and 'config', an object."
        )
    level = _level(config, index_path)
    names, formats, trees = _leaves_of(config, index["chunks"], index_path)
    chunks: list[Chunk] = []
    seen: set[Path] = set()
    for number, entry in enumerate(index["chunks"]):
        where = f"{index_path}: chunks[{number}]"
        file = inside(folder, entry.get("filename") if isinstance(entry, dict) else None, f"{where}.filename")
        if file in seen:
            raise FormatError(f"{where}.filename is {file.name!r} a second time: remove one of the entries.")
        seen.add(file)
        if not file.is_file():
            raise FormatError(f"{file}: {INDEX} names it, but it is not there: the copy was cut short: copy it again.")
        chunks.append(
            Chunk(
                path=file,
                num_bytes=file.stat().st_size,
                raw_bytes=count_of(entry, "chunk_bytes", where),
                items=count_of(entry, "chunk_size", where),
                tokens=None if entry.get("dim") is None else count_of(entry, "dim", where),
                level=level,
                names=names,
                formats=formats,
                trees=trees,
            )
        )
    return Foreign(
        path=path,
        layout="litdata",
        columns={name: kind_of(text) for name, text in zip(names, formats, strict=True)},
        pieces=chunks,
        files=[chunk.path for chunk in chunks],
        rows_are_documents=not trees,
    )


def _folder(path: Path) -> Path:
    return path.parent if path.name == INDEX and not path.is_dir() else path


def _recognises(path: Path) -> bool:
    """Return whether a path is a folder of LitData's that is not read in place."""
    index = _folder(path) / INDEX
    if not _BEGINS.match(first_bytes(index, 4096)):
        return False
    try:
        found = read_json(index)
        config = found.get("config") if isinstance(found, dict) else None
    except FormatError:
        return False  # whoever reads it in place says what is wrong with it
    return isinstance(config, dict) and (
        any(config.get(key) is not None for key in ("compression", "encryption"))
        or config.get("item_loader") == "PyTreeLoader"
    )


def _level(config: Mapping[str, Any], path: Path) -> str | None:
    """Return how the chunks are compressed; refuse by name what is not read."""
    if config.get("encryption") is not None:
        raise FormatError(
            f"{path}: config.encryption is {short(config['encryption'])}: encrypted chunks are not read: write them again without."
        )
    if config.get("ipc_compression") is not None:
        raise FormatError(
            f"{path}: config.ipc_compression is {short(config['ipc_compression'])}, expected null: Arrow's chunks of LitData are not read."
        )
    if config.get("item_loader") not in ("TokensLoader", "PyTreeLoader", None):
        raise FormatError(
            f"{path}: config.item_loader is {short(config['item_loader'])}, expected TokensLoader or PyTreeLoader."
        )
    compression, level = config.get("compression"), config.get("compression_level")
    if compression is None:
        return None
    if not isinstance(compression, str) or compression.partition(":")[0] != "zstd":
        raise FormatError(f"{path}: config.compression is {short(compression)}, expected zstd.")
    if level not in (None, "chunk", "batch", "sample"):
        raise FormatError(f"{path}: config.compression_level is {short(level)}, expected chunk, batch or sample.")
    return "chunk" if level is None else str(level)


def _leaves_of(
    config: Mapping[str, Any], chunks: Sequence[Any], path: Path
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the names and formats of the leaves, and whether items are trees."""
    formats = config.get("data_format")
    if not isinstance(formats, list) or not formats or not all(isinstance(text, str) for text in formats):
        raise FormatError(f"{path}: config.data_format is {short(formats)}, expected a list of texts.")
    loader = config.get("item_loader")
    dims = all(isinstance(chunk, dict) and chunk.get("dim") is not None for chunk in chunks)
    trees = loader == "PyTreeLoader" or (loader is None and not dims)  # old versions had a dim for TokensLoader alone
    if not trees:
        if len(formats) != 1 or kind_of(formats[0]).dtype is None:
            raise FormatError(
                f"{path}: config.data_format is {short(formats)}, expected one integer array of TokensLoader's."
            )
        return (_TOKENS,), tuple(formats), False
    try:
        names = _names(json.loads(config["data_spec"])[1], "")
    except (KeyError, TypeError, ValueError, IndexError, RecursionError):
        names = []
    if len(names) != len(formats) or len(set(names)) != len(names):
        raise FormatError(
            f"{path}: config.data_spec is {short(config.get('data_spec'))}, expected the names of {len(formats)} leaves."
        )
    return tuple(names), tuple(formats), True


def _names(spec: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the names of the leaves of a tree: keys, or numbers in lists, joined by dots."""
    if spec["type"] is None:
        return [prefix or _TOKENS]
    children = spec["children_spec"]
    keys = json.loads(spec["context"]) if spec["type"] == "builtins.dict" else range(len(children))
    return [
        name
        for key, child in zip(keys, children, strict=True)
        for name in _names(child, f"{prefix}.{key}" if prefix else str(key))
    ]


LAYOUT = ForeignLayout(name="litdata", recognises=_recognises, open=_open)
