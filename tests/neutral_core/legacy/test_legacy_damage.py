"""Small pairs with each byte cut off and each header field changed: refused, or the right tokens, never wrong ones."""

import struct
import time
import tracemalloc
from pathlib import Path

import pytest

import neutral_core as nc

BIN = bytes.fromhex("0a000b0050c40700080009000000")
ARRAYS = bytes.fromhex("020000000100000004000000 000000000000000004000000000000000600000000000000")
HEAD = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, 3)
MEGATRON = HEAD + struct.pack("<Q", 4) + ARRAYS + struct.pack("<4q", 0, 2, 2, 3)
FAIRSEQ = HEAD + ARRAYS
STREAM = [10, 11, 50256, 7, 8, 9, 0]
REFUSED = (nc.FormatError, FileNotFoundError, ValueError)

# Where the fields of a header are: offset, bytes.
FIELDS = {"version": (9, 8), "code": (17, 1), "sequences": (18, 8), "entries": (26, 8)}
VALUES = [0, 1, 2**64 - 1, 2**31, 2**63 - 1, 2**63, 2**32 - 1, 2**61, 5]


def tokens_of(folder: Path, index: bytes, tokens: bytes) -> list[int] | None:
    """Everything that the pair yields, document by document; None where it is refused."""
    (folder / "p.idx").write_bytes(index)
    (folder / "p.bin").write_bytes(tokens)
    try:
        corpus = nc.open_corpus(folder / "p")
        corpus.verify()
        found = [token for number in range(corpus.num_documents) for token in corpus.document(number).tolist()]
        assert found == corpus.tokens(0, corpus.num_tokens).tolist()
        return found
    except REFUSED:
        return None


def quickest(folder: Path, index: bytes, tokens: bytes) -> tuple[list[int] | None, float]:
    """The result, and the shorter time of at most two tries, so that a busy machine does not fail the test."""
    start = time.process_time()
    found = tokens_of(folder, index, tokens)
    took = time.process_time() - start
    if took > 0.1:
        start = time.process_time()
        tokens_of(folder, index, tokens)
        took = min(took, time.process_time() - start)
    return found, took


@pytest.mark.parametrize("index", [MEGATRON, MEGATRON + b"\0\0\0", FAIRSEQ], ids=["megatron", "modes", "fairseq"])
def test_an_index_cut_at_any_byte_is_refused_or_still_whole(tmp_path: Path, index: bytes) -> None:
    for size in range(len(index)):
        found, took = quickest(tmp_path, index[:size], BIN)
        # The one shorter file that is a whole one: with modes, less its modes.
        assert found == (STREAM if index[:size] == MEGATRON else None), size
        assert took < 0.1, size


@pytest.mark.parametrize("index", [MEGATRON, FAIRSEQ], ids=["megatron", "fairseq"])
def test_a_bin_cut_at_any_byte_is_refused(tmp_path: Path, index: bytes) -> None:
    for size in range(len(BIN)):
        found, took = quickest(tmp_path, index, BIN[:size])
        assert found is None, size
        assert took < 0.1, size


@pytest.mark.parametrize("index", [MEGATRON, FAIRSEQ], ids=["megatron", "fairseq"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_field_is_refused_or_changes_no_token(tmp_path: Path, index: bytes, field: str) -> None:
    at, size = FIELDS[field]
    for value in VALUES:
        changed = index[:at] + (value % 256**size).to_bytes(size, "little") + index[at + size :]
        found, took = quickest(tmp_path, changed, BIN)
        # In fairseq's there are lengths at byte 26, and in either the version 1 is the right one.
        assert found in ((STREAM, None) if changed == index else (None,)), (field, value)
        assert took < 0.1, (field, value)


@pytest.mark.parametrize("index", [MEGATRON, FAIRSEQ], ids=["megatron", "fairseq"])
def test_any_one_byte_of_the_index_changed_yields_no_other_stream(tmp_path: Path, index: bytes) -> None:
    # No byte of an index may change tokens: at most it moves a joint between documents, or (code 3) says int16 instead of uint16,
    # which refuses 50256.
    for at in range(len(index)):
        for change in (0x01, 0x02, 0x80, 0xFF):
            changed = index[:at] + bytes([index[at] ^ change]) + index[at + 1 :]
            assert tokens_of(tmp_path, changed, BIN) in (None, STREAM), (at, change)


@pytest.mark.parametrize("count", [2**63, 2**63 - 1, 2**60, 2**40])
@pytest.mark.parametrize("field", ["sequences", "entries"])
def test_a_header_that_promises_exabytes_is_refused_without_allocating(tmp_path: Path, field: str, count: int) -> None:
    at, size = FIELDS[field]
    changed = MEGATRON[:at] + count.to_bytes(size, "little") + MEGATRON[at + size :]
    tracemalloc.start()
    try:
        assert tokens_of(tmp_path, changed, BIN) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_counts_whose_sizes_wrap_around_to_the_files_are_refused(tmp_path: Path) -> None:
    # 34 + 12·N + 8·D = 102 modulo 2^64 with N = 3 + 2^62, D = 4: the size must not be computed in 64 bits.
    changed = HEAD[:18] + struct.pack("<QQ", 3 + 2**62, 4) + MEGATRON[34:]
    assert tokens_of(tmp_path, changed, BIN) is None
