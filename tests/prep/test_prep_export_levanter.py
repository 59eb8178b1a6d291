"""Caches for Levanter: opened here as Levanter opens them, read back by ``convert``, damaged byte by byte."""

from __future__ import annotations

import json
import resource
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import change_json, documents, masks, run

import neutral_core as nc
from prep.cli import main
from prep.export import Options, export
from prep.foreign import levanter_array, levanter_cache
from prep.foreign.levanter_array import ArrayReader, write_array

ts = pytest.importorskip("tensorstore")

DOCUMENTS = [[10, 11, 4], [], [499, 4], [0, 0, 0, 0, 0, 0, 0, 0, 0], [], [7, 8, 9, 4], [1]]
FLAT = [token for document in DOCUMENTS for token in document]


def corpus(
    folder: Path, given: Sequence[Sequence[int]] = DOCUMENTS, vocab_size: int = 500, **options: Any
) -> nc.Corpus:
    with nc.CorpusWriter(folder / "corpus", vocab_size=vocab_size, tokens_per_shard=7, **options) as writer:
        for document in given:
            fields = {"token.loss_mask": [token % 2 == 1 for token in document]} if options.get("fields") else None
            writer.add(document, fields)
    return nc.open_corpus(folder / "corpus")


def exported(folder: Path, source: nc.Corpus | None = None) -> Path:
    export(Options(source=source or corpus(folder), destination=folder / "cache", layout="levanter"))
    return folder / "cache"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 4 values, files of 16: what Levanter would not open, but many of both."""
    monkeypatch.setattr(levanter_array, "CHUNK", 4)
    monkeypatch.setattr(levanter_array, "FILE", 16)
    monkeypatch.setattr(levanter_array, "_SUMS", 2)


def as_levanter(path: Path, dtype: str) -> Any:
    """Open an array with the constraints of levanter 1.2's own spec: tensorstore refuses an array of any other chunks or codecs."""
    sharding = {"chunk_shape": [262144], "codecs": [{"name": "blosc", "configuration": {"clevel": 5}}]}
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [262144 * 512]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}, "metadata": metadata}
    return ts.open(spec, open=True, dtype=dtype, shape=[2**54]).result()


def rows_as_levanter(leaf: Path) -> list[list[int]]:
    """offsets[0] is the number of rows, offsets[i] where row i - 1 ends."""
    offsets, data = as_levanter(leaf / "offsets", "int64"), as_levanter(leaf / "data", "int32")
    count = int(offsets[0].read().result())
    ends = offsets[1 : count + 1].read().result().tolist()
    return [data[a:b].read().result().tolist() for a, b in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("given", [DOCUMENTS, [[5, 6]], [], [[], [], []], [[0]]])
def test_levanters_own_spec_opens_it_and_finds_the_documents(tmp_path: Path, given: list[list[int]]) -> None:
    assert rows_as_levanter(exported(tmp_path, corpus(tmp_path, given)) / "input_ids") == given


def test_an_array_with_a_crc32c_codec_would_be_refused_by_levanter(tmp_path: Path) -> None:
    """Why the checksums stand beside: should this fail one day, the codec can be used instead."""
    folder = exported(tmp_path)
    inner = [{"name": "bytes"}, {"name": "blosc", "configuration": {"clevel": 5}}, {"name": "crc32c"}]
    change_json(
        folder / "input_ids/data/zarr.json",
        lambda m: m["codecs"][0]["configuration"].update(codecs=inner, index_codecs=[{"name": "bytes"}]),
    )
    with pytest.raises(ValueError, match="codec"):
        as_levanter(folder / "input_ids/data", "int32")


def test_the_ledger_is_that_of_a_finished_cache_of_one_shard(tmp_path: Path) -> None:
    identity = nc.TokenizerIdentity(
        kind="byte", name="bytes", sha256="0" * 64, vocab_size=500, eos_id=256, bos_id=None, pad_id=None
    )
    folder = exported(tmp_path, corpus(tmp_path, tokenizer=identity))
    assert json.loads((folder / "shard_ledger.json").read_text()) == {
        "total_num_rows": 7,
        "shard_rows": {"millstream": 7},
        "is_finished": True,
        "finished_shards": ["millstream"],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": {"tokenizer": "bytes", "vocab_size": 500}},
    }


@pytest.mark.parametrize("vocab_size", [200, 500, 70_000])
def test_ids_of_any_width_become_int32_and_come_back(tmp_path: Path, vocab_size: int) -> None:
    given = [[vocab_size - 1, 0], [], [1]]
    folder = exported(tmp_path, corpus(tmp_path, given, vocab_size))
    assert rows_as_levanter(folder / "input_ids") == given
    run(folder, tmp_path / "back", vocab_size=vocab_size)
    assert documents(tmp_path / "back") == given
    assert nc.open_corpus(tmp_path / "back").dtype == nc.open_corpus(tmp_path / "corpus").dtype


def test_an_id_beyond_int32_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    source = corpus(tmp_path, [[1, 2], [3, 2**31]], 2**32)
    with pytest.raises(ValueError, match="token 3 is the id 2,147,483,648, which int32 cannot hold"):
        exported(tmp_path, source)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("piece", [1, 5, 1 << 25])
def test_many_chunks_files_and_pieces_come_back_with_their_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    from prep.foreign import levanter

    monkeypatch.setattr(levanter, "_PIECE_TOKENS", piece)
    monkeypatch.setattr(levanter, "_BATCH_TOKENS", max(piece % 7, 1))
    given = [list(range(n, n + n % 9)) for n in range(20)] + [[0] * 40, [2] * 40]  # chunks of zeros, in ids and mask
    folder = exported(tmp_path, corpus(tmp_path, given, fields={"token.loss_mask": nc.Field(dtype="bool")}))
    assert len(list((folder / "input_ids/data/c").iterdir())) == -(-sum(map(len, given)) // 16)
    report = run(folder, tmp_path / "back")
    assert documents(tmp_path / "back") == given
    assert masks(tmp_path / "back") == [[token % 2 == 1 for token in document] for document in given]
    assert "assistant_masks became token.loss_mask." in report["notes"]


def test_the_mask_is_a_leaf_of_its_own_with_the_same_rows(tmp_path: Path) -> None:
    folder = exported(tmp_path, corpus(tmp_path, fields={"token.loss_mask": nc.Field(dtype="bool")}))
    expected = [[token % 2 for token in document] for document in DOCUMENTS]
    assert rows_as_levanter(folder / "assistant_masks") == expected


def test_checksums_are_those_of_whole_chunks_filled_up_with_zeros(tmp_path: Path) -> None:
    leaf = exported(tmp_path) / "input_ids"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{leaf / 'data_checksums'}/"}}
    sums = ts.open(spec, open=True).result()
    padded = np.zeros(262144, dtype="<i4")
    padded[: len(FLAT)] = FLAT
    assert sums.read().result().tolist() == [zlib.crc32(padded.tobytes())]
    assert any(
        codec["name"] == "crc32c" for codec in json.loads((leaf / "data_checksums/zarr.json").read_text())["codecs"]
    )


@pytest.mark.parametrize("step", ["write_leaf", "write_ledger", "compare"])
def test_a_failure_at_any_step_leaves_nothing_and_nothing_is_visible_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        assert not (tmp_path / "out" / "cache").exists()
        raise OSError("no space left")

    source = corpus(tmp_path)
    if step == "compare":
        monkeypatch.setattr(levanter_cache, "documents_of", fail)
    else:
        monkeypatch.setattr(levanter_cache, step, fail)
    with pytest.raises(OSError, match="no space left"):
        export(Options(source=source, destination=tmp_path / "out" / "cache", layout="levanter"))
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_not_written_as_it_is_in_the_source_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(path: Path, dtype: np.dtype[Any], parts: Any) -> int:
        return write_array(path, dtype, (part + (path.name == "data") for part in parts))

    source = corpus(tmp_path)
    monkeypatch.setattr(levanter_cache, "write_array", changed)
    with pytest.raises(nc.FormatError, match=r"documents 0 … 7 differ from the source"):
        exported(tmp_path, source)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_a_disk_that_takes_no_more_is_said_with_the_array(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    source = corpus(tmp_path, [rng.integers(0, 60_000, 14_000)], 60_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"input_ids/\w+: it cannot be written: .*"):
            exported(tmp_path, source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def read_or_refusal(leaf: Path, count: int) -> list[int] | str:
    try:
        return ArrayReader(leaf / "data").read(0, count).tolist()
    except nc.FormatError as error:
        return str(error)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", ["data/c/0", "data/c/1", "data_checksums/c/0", "data_checksums/c/2"])
def test_no_flipped_byte_is_ever_read_as_other_tokens(tmp_path: Path, name: str) -> None:
    leaf = exported(tmp_path) / "input_ids"
    path = leaf / name
    raw = path.read_bytes()
    refused = 0
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
        found = read_or_refusal(leaf, len(FLAT))
        refused += isinstance(found, str)
        assert found == FLAT if isinstance(found, list) else str(leaf / name.partition("/")[0]) in found, at
    assert refused > 0.8 * len(raw)  # the rest are bits of blosc's header that say nothing


def test_a_chunk_that_decodes_to_other_values_is_named_by_its_file(tmp_path: Path) -> None:
    leaf = exported(tmp_path) / "input_ids"
    as_levanter(leaf / "data", "int32")[2].write(5).result()  # it was 4
    with pytest.raises(
        nc.FormatError,
        match=r"input_ids/data/c/0: the chunk of items 0 … 262,144 has the CRC-32 [0-9a-f]{8}, expected [0-9a-f]{8}",
    ):
        run(leaf.parent, tmp_path / "back")


@pytest.mark.usefixtures("small_chunks")
def test_truncated_files_are_refused_at_every_byte(tmp_path: Path) -> None:
    leaf = exported(tmp_path) / "input_ids"
    for name in ("data/c/1", "data/zarr.json", "data_checksums/c/1", "data_checksums/zarr.json"):
        raw = (leaf / name).read_bytes()
        for length in range(len(raw)):
            (leaf / name).write_bytes(raw[:length])
            found = read_or_refusal(leaf, len(FLAT))
            assert isinstance(found, str), (name, length)
            assert str(leaf / name.partition("/")[0]) in found
        (leaf / name).write_bytes(raw)
    assert read_or_refusal(leaf, len(FLAT)) == FLAT


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "name",
    [
        "data/c/0",
        "data/c/1",
        "data/c",
        "data/zarr.json",
        "data_checksums/c/0",
        "data_checksums/zarr.json",
        "data_checksums",
    ],
)
def test_what_is_missing_is_refused_and_never_read_as_zeros(tmp_path: Path, name: str) -> None:
    leaf = exported(tmp_path) / "input_ids"
    path = leaf / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = read_or_refusal(leaf, len(FLAT))
    assert isinstance(found, str)
    assert str(leaf / name.partition("/")[0]) in found
    assert "copy it again" in found


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("array", "change", "message"),
    [
        ("data", lambda m: m.update(attributes={"millstream_checksums": "sha1"}), "millstream_checksums is 'sha1', expected 'crc32'"),
        ("data", lambda m: m.update(data_type="int16"), "data: |CRC-32"),
        ("data", lambda m: m["codecs"][0]["configuration"].update(chunk_shape=[8]), "data"),
        ("data", lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[32]), "data"),
        ("data", lambda m: m.update(node_type="group"), "data: "),
        ("data_checksums", lambda m: m.update(data_type="int32"), "it holds int32 in chunks of"),
        ("data_checksums", lambda m: m["chunk_grid"]["configuration"].update(chunk_shape=[2**40]), "in chunks of"),
        ("data_checksums", lambda m: m.update(shape=[2]), "are outside of the 2 chunks of 4 that have checksums"),
        ("data_checksums", lambda m: m.update(shape=[2, 2]), "data_checksums"),
        ("data_checksums", lambda m: m.pop("codecs"), "data_checksums"),
    ],
)  # fmt: skip
def test_metadata_that_are_wrong_are_refused(
    tmp_path: Path, array: str, change: Callable[[Any], Any], message: str
) -> None:
    leaf = exported(tmp_path) / "input_ids"
    change_json(leaf / array / "zarr.json", change)
    with pytest.raises(nc.FormatError, match=message):
        ArrayReader(leaf / "data").read(0, len(FLAT))


def test_the_command_exports_says_what_it_did_and_refuses_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus(tmp_path)
    arguments = ["export", str(tmp_path / "corpus"), str(tmp_path / "caches/train"), "--layout", "levanter"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "7 documents, 19 tokens as int32:",
        f"  {tmp_path / 'caches/train'}",
    ]
    assert main(arguments) == 1
    assert "caches/train: it is there already" in capsys.readouterr().err
    assert main([*arguments, "--dtype", "uint16"]) == 1
    assert "--dtype is 'uint16', expected one of int32 for the layout levanter" in capsys.readouterr().err


def test_levanter_itself_reads_the_cache_and_convert_reads_levanters(tmp_path: Path) -> None:
    cache = pytest.importorskip("levanter.store.cache", reason="needs levanter, which is not among the extras")
    exemplar = {"input_ids": np.zeros(0, np.int32), "assistant_masks": np.zeros(0, np.int32)}
    folder = exported(tmp_path, corpus(tmp_path, fields={"token.loss_mask": nc.Field(dtype="bool")}))
    rows = cache.TreeCache.load(str(folder), exemplar).get_batch_sync(list(range(7)))
    assert [row["input_ids"].tolist() for row in rows] == DOCUMENTS
    assert [row["assistant_masks"].tolist() for row in rows] == [[t % 2 for t in document] for document in DOCUMENTS]
    with cache.SerialCacheWriter(str(tmp_path / "theirs"), exemplar) as writer:
        writer.write_batch(rows)
    run(tmp_path / "theirs", tmp_path / "back", vocab_size=500)
    assert documents(tmp_path / "back") == DOCUMENTS
    assert masks(tmp_path / "back") == [[t % 2 == 1 for t in document] for document in DOCUMENTS]


def test_inspect_says_what_a_cache_is_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported(tmp_path)
    assert main(["inspect", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"it is of the layout levanter, which is not read in place: millstream convert {folder} DST" in said
    assert main(["inspect", str(tmp_path / "nothing")]) == 1
    assert "levanter" not in capsys.readouterr().err
