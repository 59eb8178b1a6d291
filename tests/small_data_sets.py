"""A small data set or two of every layout that is read in place, byte by byte from the layouts' facts; ours by its writer."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fast_llm_file as fast_llm
import numpy as np

import neutral_core as nc

DOCUMENTS = ((10, 11, 12), (), (7, 8, 9, 0, 300, 2), (50_000, 2))
IDS = tuple(token for document in DOCUMENTS for token in document)
MASK = bytes([1, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1])
LENGTHS = tuple(map(len, DOCUMENTS))
STARTS = tuple(sum(LENGTHS[:number]) for number in range(len(LENGTHS) + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """Files by name, what of them is opened ("" is their folder) and with which arguments, and the documents that are there then."""

    layout: str
    files: Mapping[str, bytes]
    opened: str
    how: Mapping[str, Any] = field(default_factory=dict)
    documents: Sequence[Sequence[int]] = DOCUMENTS

    def write(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder / self.opened


def ids(dtype: str = "<u2", tokens: Sequence[int] = IDS) -> bytes:
    return np.array(tokens, dtype).tobytes()


def integers(dtype: str, *numbers: int) -> bytes:
    return np.array(numbers, dtype).tobytes()


def small_data_sets() -> tuple[DataSet, ...]:
    """Two of ours, and of each foreign layout those whose files differ in kind."""
    pairs = _pairs()
    return (*_ours(), *pairs, _reference(pairs[0]), *_fast_llm(), *_bare(), *_with_side_files())


def _ours() -> list[DataSet]:
    fields = {
        "token.loss_mask": nc.Field(dtype="bool"),
        "document.score": nc.Field(dtype="float32"),
        "ragged.spans": nc.Field(dtype="int32", shape=(2,)),
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "corpus"
        with nc.CorpusWriter(folder, vocab_size=50_257, fields=fields, tokens_per_shard=9) as writer:
            for number, document in enumerate(DOCUMENTS):
                mask = [bool(byte) for byte in MASK[STARTS[number] : STARTS[number + 1]]]
                spans = np.array([[0, len(document)]] * (number % 2), "i4").reshape(-1, 2)
                writer.add(document, {"token.loss_mask": mask, "document.score": 0.5, "ragged.spans": spans})
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    shards = [name for name in files if name.endswith(".safetensors")]
    assert len(shards) == 2
    return [
        DataSet(layout="millstream", files=files, opened=""),
        DataSet(
            layout="millstream", files={shards[0]: files[shards[0]]}, opened=shards[0], documents=DOCUMENTS[:3]
        ),
    ]  # fmt: skip


def _pairs() -> list[DataSet]:
    """Megatron's with a document of two sequences and an empty one, with modes, split, and fairseq's; TNTIDX both ways."""
    lengths, starts = (3, 2, 4, 2), (0, 3, 5, 9)
    entries = (0, 1, 1, 3, 4)
    arrays = integers("<i4", *lengths) + integers("<i8", *(2 * start for start in starts))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, 4)
    megatron = head + struct.pack("<Q", 5) + arrays + integers("<i8", *entries)
    sequences = [IDS[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    tnt = b"TNTIDX\0\0" + struct.pack("<5Q", 1, 4, 4, 4, 4)
    items = integers("<i8", *range(5), *starts, 11, *lengths)
    lua = ids("<i4", [token + 1 for token in IDS])

    def pair(layout: str, index: bytes, tokens: bytes, opened: str = "data", **more: Any) -> DataSet:
        return DataSet(layout=layout, files={"data.idx": index, "data.bin": tokens}, opened=opened, **more)

    parts = {"data-00000-of-00002.bin": ids()[:5], "data-00001-of-00002.bin": ids()[5:]}
    return [
        pair("megatron", megatron, ids()),
        DataSet(layout="megatron", files={"data.idx": megatron, **parts}, opened="data"),
        pair("megatron", megatron + bytes(4), ids(), "data.bin"),
        pair("fairseq", head + arrays, ids(), "data.idx", documents=sequences),
        pair("tntidx", tnt + struct.pack("<Q", 5) + items + integers("<i8", *entries), ids("<i4")),
        pair("tntidx-lua", tnt + items, lua, how={"layout": "tntidx-lua"}, documents=sequences),
    ]


def _reference(data: DataSet) -> DataSet:
    """A file of ours that names a pair, its sizes and sums."""
    with tempfile.TemporaryDirectory() as place:
        fingerprint = nc.open_corpus(data.write(Path(place))).fingerprint
    named = [
        {"name": name, "num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in data.files.items()
    ]
    tokenizer = {
        "kind": "byte", "name": "bytes", "sha256": "ab" * 32, "vocab_size": 50_257, "eos_id": 2, "bos_id": None, "pad_id": None,
    }  # fmt: skip
    content = {
        "_format": "millstream reference", "boundaries": None, "dtype": None, "files": named, "fingerprint": fingerprint, "format_version": 1,
        "layout": "megatron", "num_documents": len(DOCUMENTS), "num_tokens": len(IDS), "path": "data", "tokenizer": tokenizer, "vocab_size": 50_257,
    }  # fmt: skip
    reference = resummed("data.json", _canonical(content))
    return DataSet(layout="reference", files={**data.files, "data.json": reference}, opened="data.json")


def resummed(name: str, content: bytes) -> bytes:
    """A file of ours with all sums of it taken anew, so that what it says is believed; as it is where it has none or cannot be read."""
    if name.endswith(".safetensors"):
        size = 8 + int.from_bytes(content[:8], "little")
        if size > len(content) - 8:
            return content
        return content[:-8] + struct.pack("<2I", zlib.crc32(content[:size]), zlib.crc32(content[size:-8]))
    try:
        data = json.loads(content)
        data.pop("checksum", None)
        if "shards" in data:
            link = bytes(32)
            for shard in data["shards"]:
                link = hashlib.sha256(link + bytes.fromhex(shard["digest"])).digest()
            counts = {key: sum(shard[key] for shard in data["shards"]) for key in ("num_documents", "num_tokens")}
            data |= {"fingerprint": link.hex(), **counts}
        return _canonical({**data, "checksum": hashlib.sha256(_canonical(data)).hexdigest()}) + b"\n"
    except (ValueError, AttributeError, KeyError, TypeError):
        return content


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _fast_llm() -> list[DataSet]:
    """Pairs of versions 2 and 3, and a file with every section."""
    head, counts = b"MMIDIDX\0\0", struct.pack("<BQQ", 8, 4, 5)
    arrays = integers("<i4", *LENGTHS) + integers("<i8", *(2 * start for start in STARTS[:-1]))
    order = integers("<i8", *range(5))
    spans = integers("<i4", 1, 0, 2, 0) + integers("<i4", 0, 1, 0, 0, 2, 5)
    second = head + struct.pack("<QB", 2, 1) + counts + arrays + spans + order
    lengths = (3, 1, 5, 2)
    arrays = integers("<i4", *lengths) + integers("<i8", *(2 * sum(lengths[:number]) for number in range(4)))
    chosen, rejected = integers("<i4", 0, 1, 0, 0, 0, 2, 0, 0), integers("<i4", 2, 2, 0, 0, 3, 4, 1, 1)
    third = head + struct.pack("<QBB", 3, 0, 1) + counts + arrays + chosen + rejected + order
    cut = [IDS[sum(lengths[:number]) : sum(lengths[: number + 1])] for number in range(4)]
    patches = [np.full((count, 3, 2, 2), 7, "u1") for count in (2, 0, 1, 0)]
    numbers = [np.arange(length, dtype="<f4") for length in LENGTHS]
    sections = {
        "tokens": fast_llm.tokens(DOCUMENTS, "uint16"),
        "loss_masking_spans": fast_llm.ranges([[(0, 1), (2, 3)], [], [(0, 0)], []]),
        "chosen_spans": fast_llm.ranges([[(0, 2)], [(0, 0)], [(0, 1)], []]),
        "rejected_spans": fast_llm.ranges([[(2, 4)], [(0, 0)], [(1, 1)], []]),
        "image_patches": fast_llm.patches(
            patches, [[0, 2], [], [0], []], [[(0, 0), (0, 1)], [], [(5, 6)], []], [[1, 1], [0], [1], []]
        ),
        "advantages": fast_llm.token_data(numbers),
        "old_log_probabilities": fast_llm.token_data(numbers),
    }
    file, plain = "shard_0_0.fast_llm_dataset", {"tokens": fast_llm.tokens(DOCUMENTS, "uint16")}
    old = fast_llm.file_bytes(plain, release="2025-12-09", vocab_size=50_257)
    return [
        DataSet(layout="fast_llm", files={"data.idx": second, "data.bin": ids()}, opened="data"),
        DataSet(layout="fast_llm", files={"data.idx": third, "data.bin": ids()}, opened="data.idx", documents=cut),
        DataSet(layout="fast_llm_dataset", files={file: fast_llm.file_bytes(sections)}, opened=file),
        DataSet(layout="fast_llm_dataset", files={file: old}, opened=file),
    ]


def _bare() -> list[DataSet]:
    """What says how wide its ids are but not where documents begin, or neither; 2 ends documents."""
    ended = [IDS[:9], IDS[9:]]
    by_id: dict[str, Any] = {"how": {"boundaries": "eos:2"}, "documents": ended}
    text = b"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 5), }\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + ids(tokens=IDS[:10])
    flat = text.replace(b"(2, 5)", b"(11,)")
    long_npy = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(flat)) + flat + ids()
    llama = struct.pack("<3I", 20240801, 7, 11).ljust(1024, b"\0") + ids("<u4")
    gpt2 = struct.pack("<3I", 20240520, 1, 11)
    packed = b"LITPKDS" + struct.pack("<QBQ", 1, 8, 7)
    fill = [*IDS[7:], 2, 2, 2]
    meta = {"vocab_size": 4, "itos": dict(enumerate("\n ab")), "stoi": {"\n": 0, " ": 1, "a": 2, "b": 3}}
    letters = (2, 3, 0, 1, 3, 2, 1)
    return [
        DataSet(layout="npy", files={"t.npy": npy}, opened="t.npy", documents=[IDS[:5], IDS[5:10]]),
        DataSet(layout="npy", files={"t.npy": long_npy}, opened="t.npy", **by_id),
        DataSet(layout="llm.c", files={"x_train_000000.bin": llama}, opened="x_train_000000.bin", **by_id),
        DataSet(
            layout="llm.c",
            files={"x_train_000000.bin": gpt2 + ids(), "x_train_000001.bin": gpt2 + ids()},
            opened="",
            how={"boundaries": "bos:7"},
            documents=[IDS[:3], IDS[3:], IDS[:3], IDS[3:]],
        ),
        DataSet(
            layout="litpkds",
            files={
                "train_0_0000000000.bin": packed + ids(tokens=IDS[:7]),
                "train_0_0000000001.bin": packed + ids(tokens=fill),
            },
            opened="train_0",
            how={"boundaries": "eos:2"},
            documents=[IDS[:7], IDS[7:9], IDS[9:]],
        ),
        DataSet(
            layout="headerless",
            files={"train.bin": ids("<i4")},
            opened="train.bin",
            how={"dtype": "int32", "boundaries": "fixed:4"},
            documents=[IDS[:4], IDS[4:8], IDS[8:]],
        ),
        DataSet(
            layout="headerless",
            files={"train.bin": ids(tokens=letters), "meta.pkl": pickle.dumps(meta, protocol=4)},
            opened="train.bin",
            how={"boundaries": "none"},
            documents=[letters],
        ),
    ]


def _with_side_files() -> list[DataSet]:
    """datatrove's, OLMo's with a list of documents and a mask, LitData's of two chunks."""
    ends = integers("<u8", *STARTS[1:])
    rows = b"".join(b"%d,%d,doc,s3://a,1\r\n" % pair for pair in zip(STARTS[:-1], STARTS[1:], strict=True))
    table = gzip.compress(rows, mtime=0)
    chunks = {f"chunk-0-{number}.bin": _chunk(DOCUMENTS[2 * number : 2 * number + 2]) for number in range(2)}
    entries = [
        {"chunk_bytes": len(chunk), "chunk_size": 2, "dim": (len(chunk) - 16) // 2, "filename": name}
        for name, chunk in chunks.items()
    ]
    config = {"compression": None, "data_format": ["no_header_numpy:5"], "item_loader": "TokensLoader"}
    index = json.dumps({"chunks": entries, "config": config, "updated_at": "1.5"}).encode()
    names = ("0_unshuffled.ds", "1_unshuffled.ds")
    return [
        DataSet(
            layout="datatrove",
            files={
                **{name: ids("<u4") for name in names},
                **{f"{name}.index": ends for name in names},
                **{f"{name}.loss": MASK for name in names},
                f"{names[0]}.metadata": b"gpt2|4\n11\n11 T",
            },
            opened="",
            documents=[*DOCUMENTS, *DOCUMENTS],
        ),
        DataSet(
            layout="datatrove",
            files={names[0]: ids(), f"{names[0]}.metadata": b"gpt2|2\n11\n11 T"},
            opened=names[0],
            how={"boundaries": "eos:2"},
            documents=[IDS[:9], IDS[9:]],
        ),
        DataSet(layout="olmo", files={"part-0-00000.npy": ids(), "part-0-00000.csv.gz": table}, opened=""),
        DataSet(
            layout="olmo",
            files={"token_ids_part_0.npy": ids(), "labels_mask_part_0.npy": MASK, "token_ids_part_0.csv.gz": table},
            opened="token_ids_part_0.npy",
        ),
        DataSet(layout="litdata", files={"index.json": index, **chunks}, opened=""),
    ]


def _chunk(documents: Sequence[Sequence[int]]) -> bytes:
    start = 4 * (len(documents) + 2)
    ends = [start + 2 * sum(map(len, documents[:number])) for number in range(len(documents) + 1)]
    return integers("<u4", len(documents), *ends) + ids(tokens=[token for each in documents for token in each])
