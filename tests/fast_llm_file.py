"""A ``.fast_llm_dataset`` file, section by section, from the facts about its bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAGIC = b"fast_llm_prepared_dataset"
TAGS = {
    "token": (b"token begin", b"token end"),
    "range": (b"range begin", b"range end"),
    "patch": (b"patch begin", b"patch end"),
    "token_data": (b"token data begin", b"token data end"),
    "audio": (b"audio begin", b"audio end"),
}
# The order of the sections in the file and of the keys in the JSON.
ORDER = (
    "tokens",
    "loss_masking_spans",
    "chosen_spans",
    "rejected_spans",
    "image_patches",
    "audio",
    "advantages",
    "old_log_probabilities",
    "teacher",
)
# Which of them a release writes, ``none`` where the data lack one.
RELEASES = {
    "2025-11-24": ORDER[:4],
    "2025-11-24 b": ORDER[:5],
    "2025-12-09": ORDER[:5],
    "2026-03-17": ORDER[:5],
    "2026-03-20": (*ORDER[:5], *ORDER[6:8]),
    "branch": ORDER,
}

Section = tuple[dict[str, Any], bytes]


def starts(lengths: Sequence[int], dtype: str) -> bytes:
    return np.cumsum([0, *lengths]).astype(dtype).tobytes()


def tokens(documents: Sequence[Sequence[int]], dtype: str = "int16") -> Section:
    lengths = [len(document) for document in documents]
    flat = np.array([token for document in documents for token in document], dtype=dtype)
    entry = {"type": "token", "num_documents": len(documents), "num_tokens": len(flat), "data_type": dtype}
    return entry, flat.tobytes() + starts(lengths, "<i8")


def ranges(documents: Sequence[Sequence[tuple[int, int]]]) -> Section:
    flat = np.array([span for document in documents for span in document], dtype="<i4")
    entry = {"type": "range", "num_documents": len(documents), "num_ranges": sum(map(len, documents))}
    return entry, flat.tobytes() + starts([len(document) for document in documents], "<i4")


def token_data(documents: Sequence[np.ndarray], dtype: str = "float32", shape: Sequence[int] = ()) -> Section:
    lengths = [len(document) for document in documents]
    entry = {
        "type": "token_data",
        "num_documents": len(documents),
        "num_tokens": sum(lengths),
        "shape": list(shape),
        "data_type": dtype,
    }
    return entry, b"".join(document.tobytes() for document in documents) + starts(lengths, "<i8")


def patches(
    documents: Sequence[np.ndarray],
    token_map: Sequence[Sequence[int]],
    positions: Sequence[Sequence[tuple[int, ...]]],
    images: Sequence[Sequence[int]],
) -> Section:
    """Each document's patches, uint8 [patches, *shape], their tokens and places, and its images' numbers of patches."""
    counts, groups = [len(document) for document in documents], [len(document) for document in images]
    entry = {
        "type": "patch",
        "patch_shape": list(documents[0].shape[1:]),
        "data_type": "uint8",
        "num_documents": len(documents),
        "num_patches": sum(counts),
        "num_patch_groups": sum(groups),
    }
    body = b"".join(document.tobytes() for document in documents)
    for nested in (token_map, positions):
        body += np.array([item for document in nested for item in document], dtype="<i4").tobytes()
    body += starts(counts, "<i4")
    body += np.array([item for document in images for item in document], dtype="<i4").tobytes()
    return entry, body + starts(groups, "<i4")


def file_bytes(
    sections: Mapping[str, Section],
    *,
    release: str = "2026-03-20",
    vocab_size: int | None = None,
    order: Sequence[str] | None = None,
    change: Any = None,
) -> bytes:
    """The file, its sections in the release's order or another; ``change`` gets the JSON as a dict before it is written."""
    root: dict[str, Any] = {"type": "language_model", "begin": 33, "end": 0}
    body = b"lm begin"
    for name in order or RELEASES[release]:
        if name not in sections:
            root[name] = {"type": "none"}
            continue
        entry, inside = sections[name]
        head, foot = TAGS.get(entry["type"], (b"lm begin", b"lm end"))
        begin = 33 + len(body)
        body += head + inside + foot
        root[name] = {"type": entry["type"], "begin": begin, "end": 33 + len(body), **entry}
        if release == "2025-12-09":
            root[name]["preprocessing"] = {"type": "none"}
    body += b"lm end"
    root["end"] = 33 + len(body)
    if release == "2025-12-09":
        images = {"type": "image_patch", "height": 2, "width": 2, "scale": 0.5}
        root["preprocessing"] = {"type": "language_model", "vocab_size": vocab_size, "image_patches": images}
    if change is not None:
        change(root)
    text = json.dumps(root).encode()
    return MAGIC + root["end"].to_bytes(8, "big") + body + len(text).to_bytes(4, "big") + text
