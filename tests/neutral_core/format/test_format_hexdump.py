"""FORMAT.md is enough: a reader written from it alone reads what the writer wrote, and the file that it ends with is the one written today."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutral_core import CorpusWriter, Field, TokenizerIdentity

FORMAT = Path(__file__).parents[3] / "FORMAT.md"
STRUCT = {
    "U8": "B",
    "BOOL": "B",
    "I8": "b",
    "U16": "H",
    "I16": "h",
    "U32": "I",
    "I32": "i",
    "U64": "Q",
    "I64": "q",
    "F32": "f",
    "F64": "d",
    "F16": "e",
}
Sections = list[tuple[str, int, int]]


def example(folder: Path) -> Path:
    """The shard that FORMAT.md ends with: two documents, the second without tokens."""
    with CorpusWriter(folder, vocab_size=300, fields={"document.score": Field(dtype="float32")}) as writer:
        writer.add([1, 2, 299], {"document.score": np.float32(0.5)})
        writer.add([], {"document.score": np.float32(2.0)})
    return folder / "shard-00000.safetensors"


def read(raw: bytes) -> tuple[dict[str, Any], dict[str, Any], dict[str, tuple[Any, ...]]]:
    """A reader from FORMAT.md alone: the header's arrays, the metadata, and each array's items; every checksum checked."""
    (length,) = struct.unpack_from("<Q", raw)
    start = 8 + length
    assert start % 4096 == 0
    header = json.loads(raw[8:start])
    metadata = json.loads(header.pop("__metadata__")["millstream"])
    values = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        count = (last - first) // struct.calcsize(STRUCT[entry["dtype"]])
        values[name] = struct.unpack_from(f"<{count}{STRUCT[entry['dtype']]}", raw, start + first)
    end = header["checksums"]["data_offsets"][0]
    blocks = [raw[start + at : start + min(at + 2**20, end)] for at in range(0, end, 2**20)]
    assert list(values["checksums"]) == [zlib.crc32(raw[:start]), *map(zlib.crc32, blocks)]
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(raw) - start
    return header, metadata, values


def documents(values: dict[str, tuple[Any, ...]]) -> list[list[int]]:
    offsets = values["document_offsets"]
    return [list(values["tokens"][a:b]) for a, b in zip(offsets, offsets[1:], strict=False)]


def dump(raw: bytes, sections: Sections) -> str:
    """The bytes in lines of 16, a new line and a heading at each section, equal lines after the first folded into '*'."""
    lines = []
    for title, start, stop in sections:
        lines.append(f"; {title}")
        before = b""
        for at in range(start, stop, 16):
            piece = raw[at : min(at + 16, stop)]
            if piece == before and len(piece) == 16:
                if lines[-1] != "*":
                    lines.append("*")
                continue
            before = piece
            shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
            lines.append(f"{at:08x}  {piece.hex(' '):<47}  |{shown}|")
    return "\n".join([*lines, f"{len(raw):08x}"])


def annotated(raw: bytes) -> str:
    """The dump with a heading for the length word, the header, its spaces and each array."""
    header, _, values = read(raw)
    start = 8 + struct.unpack_from("<Q", raw)[0]
    text_end = 8 + len(raw[8:start].rstrip(b" "))
    sections = [
        (f"the length of the header: {start - 8:,} = {start:,} - 8", 0, 8),
        (f"the header: {text_end - 8:,} bytes of canonical JSON", 8, text_end),
        (f"{start - text_end:,} spaces, up to the page", text_end, start),
    ]
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = (start + at for at in entry["data_offsets"])
        sections.append((f"{name}: {entry['dtype']} {entry['shape']}{shown(name, values[name])}", first, last))
    return dump(raw, sections)


def shown(name: str, items: tuple[Any, ...]) -> str:
    if name.startswith("padding."):
        return f", so that the next array begins on a multiple of 64: {len(items)} zeros"
    if name == "checksums":
        return f" = CRC-32 of bytes 0 ... header's end {items[0]:#010x}, of the data before this array {items[1]:#010x}"
    return " = " + ", ".join(map(str, items))


def test_the_file_that_the_format_page_ends_with_is_the_one_written_today(tmp_path: Path) -> None:
    page = FORMAT.read_text(encoding="utf-8")
    start, end = page.index("<!-- hexdump -->\n"), page.index("<!-- end -->")
    assert page[start:end] == f"<!-- hexdump -->\n```text\n{annotated(example(tmp_path / 'c').read_bytes())}\n```\n"


def test_the_bytes_of_the_format_page_can_be_read_back_from_its_dump() -> None:
    raw = undump(FORMAT.read_text(encoding="utf-8").partition("<!-- hexdump -->")[2].partition("<!-- end -->")[0])
    _, metadata, values = read(raw)
    assert documents(values) == [[1, 2, 299], []]
    assert values["document.score"] == (0.5, 2.0)
    assert metadata == {
        "fields": {"document.score": {"dtype": "float32", "shape": []}}, "format_version": 1, "num_documents": 2, "num_tokens": 3,
        "provenance": {}, "tokenizer": None, "vocab_size": 300,
    }  # fmt: skip


def undump(text: str) -> bytes:
    """The bytes of a dump: the inverse of ``dump``, from its text alone."""
    raw, last, folded = bytearray(), b"", False
    for line in text.splitlines():
        if line == "*":
            folded = True
        elif line[:8].strip() and all(digit in "0123456789abcdef" for digit in line[:8]):
            at = int(line[:8], 16)
            while folded and len(raw) + 16 <= at:
                raw += last
            assert len(raw) == at
            last, folded = bytes.fromhex(line[8:57]), False
            raw += last
        elif line.startswith(";") and folded:
            raise AssertionError("a fold may not end a section, its length would be lost")
    return bytes(raw)


@pytest.mark.parametrize("vocab_size", [200, 300, 70_000])
def test_a_reader_written_from_the_format_page_reads_every_shard(vocab_size: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    fields = {
        "token.a": Field(dtype="bool"), "document.b": Field(dtype="float64"), "ragged.c": Field(dtype="int16"), "ragged.d": Field(dtype="float16"),
    }  # fmt: skip
    wanted = [rng.integers(0, vocab_size, size).tolist() for size in (5, 0, 400_000, 1, 17)]
    identity = TokenizerIdentity(kind="x", name='é"\\\n\x01', sha256="0" * 64, vocab_size=vocab_size)
    with CorpusWriter(
        tmp_path / "c", vocab_size=vocab_size, tokenizer=identity, fields=fields, tokens_per_shard=400_000
    ) as writer:
        for i, document in enumerate(wanted):
            mask = np.array(document, dtype=int) % 2 == 1
            writer.add(document, {"token.a": mask, "document.b": i / 2, "ragged.c": range(i), "ragged.d": []})
    manifest = json.loads((tmp_path / "c" / "dataset.json").read_bytes())
    found, link = [], bytes(32)
    for entry in manifest["shards"]:
        raw = (tmp_path / "c" / entry["name"]).read_bytes()
        header, metadata, values = read(raw)
        found += documents(values)
        assert list(values["token.a"]) == [token % 2 for token in values["tokens"]]
        assert (metadata["num_documents"], metadata["num_tokens"]) == (
            len(values["document_offsets"]) - 1,
            len(values["tokens"]),
        )
        assert metadata["tokenizer"]["name"] == 'é"\\\n\x01'
        start = 8 + struct.unpack_from("<Q", raw)[0]
        digest = hashlib.sha256(raw[:start] + raw[start + header["checksums"]["data_offsets"][0] :]).digest()
        assert digest.hex() == entry["digest"]
        link = hashlib.sha256(link + digest).digest()
    assert found == wanted
    assert link.hex() == manifest["fingerprint"]
