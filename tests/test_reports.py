"""docs/reports.md: the tests that it and other pages name are there; and those of its reports that no test of a layout covers."""

from __future__ import annotations

import os
import re
import struct
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core.format.offsets import ComputedOffsets
from neutral_core.layouts import LAYOUTS
from neutral_core.legacy.flat import FlatShard
from prep import export
from prep.convert import Options, convert
from prep.foreign.layouts import NAMES
from prep.inspect import inspect, lines_of

ROOT = Path(__file__).parents[1]


def pair(prefix: Path, lengths: Sequence[int], tokens: bytes | int, documents: Iterable[int] | None = None) -> Path:
    """Megatron's, of uint16 ids; ``tokens`` may be the size of a .bin without content."""
    entries = list(range(len(lengths) + 1) if documents is None else documents)
    starts = 2 * np.cumsum([0, *lengths], dtype="<i8")[:-1]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(entries))
    arrays = np.array(lengths, "<i4").tobytes() + starts.tobytes() + np.array(entries, "<i8").tobytes()
    Path(f"{prefix}.idx").write_bytes(head + arrays)
    with open(f"{prefix}.bin", "wb") as file:
        if isinstance(tokens, bytes):
            file.write(tokens)
        else:
            os.truncate(file.fileno(), tokens)
    return prefix


def documents_of(corpus: nc.Corpus) -> list[list[int]]:
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


# The pages


def test_every_test_that_a_page_names_is_there() -> None:
    for page, least in (("reports.md", 50), ("layouts.md", 0), ("reports_torch.md", 70), ("reports_prepare.md", 35)):
        found = 0
        text = (ROOT / "docs" / page).read_text("utf-8")
        for path in re.findall(r"\]\(\.\./(tests/[\w/.]+)\)", text):
            assert (ROOT / path).exists(), (page, path)
        for path, name in re.findall(r"\b(test_\w+\.py)::(test_\w+)", text):
            (file,) = (ROOT / "tests").rglob(path)
            assert re.search(rf"^def {name}\(", file.read_text("utf-8"), re.MULTILINE), (page, path, name)
            found += 1
        assert found >= least, page


def test_every_layout_has_a_row() -> None:
    text = (ROOT / "docs" / "layouts.md").read_text("utf-8")
    rows = {
        how: {
            name
            for line in text.splitlines()
            if re.match(rf"\| .* \| {how}", line)
            for name in re.findall(r"`([^`]+)`", line.split("|")[1].partition(":")[0])
        }
        for how in ("in place", "converted", "exported")
    }
    assert rows == {"in place": set(LAYOUTS), "converted": set(NAMES), "exported": set(export.LAYOUTS)}


def test_the_mixture_that_the_page_shows_is_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("old/my_text_document", "corpora/books/train"):
        (tmp_path / path).parent.mkdir(parents=True)
        pair(tmp_path / path, [200, 100], bytes(600))
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "layouts.md").read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {"nc": nc}
    exec(compile(code, "layouts.md", "exec"), names)
    assert names["plan"].names == ("old/my_text_document", "corpora/books/train")
    assert names["plan"].read(np.arange(10))["source"].tolist().count(0) == 3


# Sizes


def test_an_exported_pair_points_beyond_2_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [600_000_000, 500_000_000, 400_000_000, 3]
    corpus = nc.open_corpus(pair(tmp_path / "old", lengths, 3_000_000_006))
    monkeypatch.setattr(export._Job, "write_tokens", lambda *_: None)  # 3 GB
    export.export(export.Options(source=corpus, destination=tmp_path / "new", layout="megatron"))
    index = (tmp_path / "new.idx").read_bytes()
    assert struct.unpack("<4i", index[34:50]) == tuple(lengths)
    assert struct.unpack("<4q", index[50:82]) == (0, 1_200_000_000, 2_200_000_000, 3_000_000_000)


def test_one_document_of_3_gb_is_read_to_its_end(tmp_path: Path) -> None:
    prefix = pair(tmp_path / "giant", [1_500_000_000, 2], 3_000_000_004)
    with open(f"{prefix}.bin", "r+b") as file:
        file.seek(2_999_999_998)
        file.write(struct.pack("<3H", 7, 8, 9))
    for access in ("map", "read"):
        corpus = nc.open_corpus(prefix, access=access)
        assert corpus.tokens(1_499_999_999, 1_500_000_002).tolist() == [7, 8, 9]
        assert corpus.document(1).tolist() == [8, 9]
        assert corpus.shards[0].rows(np.array([1_499_999_998]), 4).tolist() == [[0, 7, 8, 9]]
        batch = nc.Plan(nc.Source(corpus), seq_len=1000, shuffle="none", documents=True).read([1_499_999])
        assert batch["tokens"][0, 998:].tolist() == [0, 7, 8]  # tokens 1,499,999,998 … 1,500,000,000
        assert batch["segment_ids"][0, 998:].tolist() == [1, 1, 2]
        assert batch["positions"][0, 998:].tolist() == [998, 999, 0]
    assert len(nc.open_corpus(prefix).document(0)) == 1_500_000_000


def test_documents_are_counted_and_found_beyond_2_to_the_32() -> None:
    count = 3 * 2**32
    offsets = ComputedOffsets(count, lambda numbers: numbers * 5)
    numbers = np.array([0, 2**31 - 1, 2**31, 2**32 + 1, count - 1])
    assert offsets.find(numbers * 5 + 4).tolist() == numbers.tolist()
    shard = FlatShard.__new__(FlatShard)  # of no file: nothing but its counts and offsets is looked at
    shard.num_documents, shard.num_tokens, shard._offsets = count, count * 5, offsets
    corpus = nc.Corpus([shard, shard], dtype=np.dtype("uint16"), fingerprint="")
    assert corpus.num_documents == 2 * count
    at = count + 2**31
    assert corpus.document_offsets(at, at + 1).tolist() == [at * 5, at * 5 + 5]
    assert corpus.document_offsets(count - 1, count + 1).tolist() == [count * 5 - 5, count * 5, count * 5 + 5]


def test_opening_a_pair_keeps_nothing_of_its_index(tmp_path: Path) -> None:
    count = 3_000_000
    prefix = pair(tmp_path / "many", np.ones(count, "i4"), 2 * count)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        corpus = nc.open_corpus(prefix)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert corpus.num_documents == count
    assert held < 1_000_000
    assert peak < 50_000_000


# Contents


def test_a_merged_pair_converts_to_the_documents_of_its_parts(tmp_path: Path) -> None:
    lengths = ([2, 0, 3], [1, 4])
    tokens = [np.arange(sum(part), dtype="<u2") + 10 * number for number, part in enumerate(lengths)]
    merged = pair(tmp_path / "merged", [*lengths[0], *lengths[1]], tokens[0].tobytes() + tokens[1].tobytes())
    parts = [pair(tmp_path / f"{n}", lengths[n], tokens[n].tobytes()) for n in range(2)]
    found = {}
    for source in (merged, *parts):
        convert(Options(source=str(source), destination=tmp_path / f"{source.name} converted"))
        found[source.name] = documents_of(nc.open_corpus(tmp_path / f"{source.name} converted"))
    assert found["0"] == [[0, 1], [], [2, 3, 4]]
    assert found["1"] == [[10], [11, 12, 13, 14]]
    assert found["merged"] == found["0"] + found["1"]


def test_an_index_of_another_maker_is_named_where_a_layout_is_insisted_on(tmp_path: Path) -> None:
    (tmp_path / "old.idx").write_bytes(
        b"TNTIDX\0\0" + struct.pack("<5Q", 1, 4, 4, 1, 1) + struct.pack("<5q", 0, 1, 0, 2, 2)
    )
    (tmp_path / "old.bin").write_bytes(struct.pack("<2i", 5, 6))
    with pytest.raises(
        nc.FormatError, match=r"byte 0: found b'TNTIDX.*', expected the magic b'MMIDIDX.*no \.idx of Meg"
    ):
        nc.open_corpus(tmp_path / "old", layout="megatron")
    assert documents_of(nc.open_corpus(tmp_path / "old", layout="tntidx")) == [[5, 6]]


def test_tokens_that_are_all_one_id_are_seen_at_once(tmp_path: Path) -> None:
    (tmp_path / "zeros.bin").write_bytes(bytes(2000))
    corpus = nc.open_corpus(tmp_path / "zeros.bin", dtype="uint16", boundaries="fixed:100")
    said = "\n".join(lines_of(inspect(corpus, tmp_path / "zeros.bin")))
    assert "loss to expect, nats per token: 11.090 uniform, 0.000 unigram" in said
    assert "largest id that occurs: 0" in said
