"""What the makers' own writers write, converted; each test is skipped where its library is not installed.

Last run with mosaicml-streaming 0.13.0, litdata 0.2.76, datasets 5.2.0, array_record 0.8.6, pyarrow 26.0.1.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import documents, example, masks, packed, run

import neutral_core as nc

ROWS = [np.random.default_rng(n).integers(0, 50_000, n % 7 + 1).tolist() for n in range(60)]


def imported(name: str) -> Any:
    """Import a maker's library, whose own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", [None, "zstd:7", "gz", "bz2:9", "br:5", "snappy"])
@pytest.mark.parametrize("encoding", ["ndarray:uint16", "ndarray:int32", "ndarray", "bytes", "json"])
def test_shards_of_streaming(tmp_path: Path, compression: str | None, encoding: str) -> None:
    streaming = imported("streaming")
    columns = {"tokens": encoding, "n": "int", "text": "str"}
    hashes = ["sha1", "xxh64"]
    with streaming.MDSWriter(
        out=str(tmp_path / "mds"), columns=columns, compression=compression, hashes=hashes, size_limit=900
    ) as writer:
        for n, row in enumerate(ROWS):
            dtype = {"ndarray:uint16": "uint16", "ndarray:int32": "int32"}.get(encoding, "int64")
            array = np.array(row, dtype=dtype)
            value: Any = {"bytes": array.tobytes(), "json": row}.get(encoding, array)
            writer.write({"tokens": value, "n": n, "text": f"row {n}"})
    report = run(
        tmp_path / "mds",
        tmp_path / "out",
        boundaries="index",
        column="tokens",
        dtype="int64" if encoding == "bytes" else None,
    )
    assert documents(tmp_path / "out") == ROWS
    assert "the shards' hashes were checked: sha1." in report["notes"]


@pytest.mark.filterwarnings("ignore")
def test_shards_of_streaming_of_a_fixed_shape(tmp_path: Path) -> None:
    streaming = imported("streaming")
    rows = [list(range(n, n + 8)) for n in range(20)]
    with streaming.MDSWriter(out=str(tmp_path / "mds"), columns={"tokens": "ndarray:int32:8"}) as writer:
        for row in rows:
            writer.write({"tokens": np.array(row, dtype=np.int32)})
    run(tmp_path / "mds", tmp_path / "out", boundaries="none")
    assert documents(tmp_path / "out") == [[token for row in rows for token in row]]


def one(index: int) -> Any:
    return np.array(ROWS[index], dtype=np.uint16)


def tree(index: int) -> Any:
    import torch

    return {"tokens": torch.tensor(ROWS[index], dtype=torch.int64), "n": index, "s": f"row {index}", "b": b"x"}


@pytest.mark.slow  # its writer starts processes
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compression", ["zstd", "zstd:9"])
def test_bare_tokens_of_litdata_in_compressed_chunks(tmp_path: Path, compression: str) -> None:
    litdata = imported("litdata")
    litdata.optimize(
        one,
        list(range(len(ROWS))),
        output_dir=str(tmp_path / "lit"),
        chunk_size=50,
        compression=compression,
        compression_level="chunk",
        num_workers=1,
        item_loader=litdata.TokensLoader(),
        verbose=False,
    )
    run(tmp_path / "lit", tmp_path / "out")
    assert documents(tmp_path / "out") == ROWS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", [None, "batch", "sample", "chunk"])
def test_trees_of_litdata(tmp_path: Path, level: str | None) -> None:
    litdata = imported("litdata")
    options: dict[str, Any] = {} if level is None else {"compression": "zstd", "compression_level": level}
    litdata.optimize(
        tree,
        list(range(len(ROWS))),
        output_dir=str(tmp_path / "lit"),
        chunk_size=25,
        num_workers=1,
        verbose=False,
        **options,
    )
    run(tmp_path / "lit", tmp_path / "out", boundaries="index", column="tokens")
    assert documents(tmp_path / "out") == ROWS


@pytest.mark.filterwarnings("ignore")
def test_folders_of_datasets(tmp_path: Path) -> None:
    datasets = imported("datasets")
    rows = {
        "input_ids": [[*row, 0, 0] for row in ROWS],
        "attention_mask": [[1] * len(row) + [0, 0] for row in ROWS],
        "labels": [[-100, *row[1:], -100, -100] for row in ROWS],
        "text": [f"row {n}" for n in range(len(ROWS))],
    }
    made = datasets.Dataset.from_dict(rows)
    made.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    made.shuffle(seed=1).save_to_disk(str(tmp_path / "shuffled"))
    made.to_parquet(str(tmp_path / "a.parquet"), batch_size=7)
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "splits"))
    for name in ("saved", "a.parquet", "splits/train"):
        run(tmp_path / name, tmp_path / f"out-{name.replace('/', '-')}", boundaries="index")
        assert documents(tmp_path / f"out-{name.replace('/', '-')}") == ROWS
    assert masks(tmp_path / "out-saved") == [[False] + [True] * (len(row) - 1) for row in ROWS]
    run(tmp_path / "shuffled", tmp_path / "out-shuffled", boundaries="index")
    order = [int(text[4:]) for text in made.shuffle(seed=1)["text"]]
    assert documents(tmp_path / "out-shuffled") == [ROWS[n] for n in order]
    with pytest.raises(ValueError, match="it holds the splits train, test"):
        run(tmp_path / "splits", tmp_path / "out-splits", boundaries="index")


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:4,zstd:3", "group_size:1,uncompressed", "group_size:1,brotli:3"]
)
def test_array_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    from prep.foreign import array_record

    monkeypatch.setattr(array_record, "_PIECE_BYTES", 1 << 15)
    monkeypatch.setattr(array_record, "_BATCH_RECORDS", 7)
    (tmp_path / "in").mkdir()
    for number in range(2):
        writer = module.ArrayRecordWriter(str(tmp_path / "in" / f"a-{number:05}-of-00002"), options)
        for row in ROWS[number * 30 : number * 30 + 30]:
            writer.write(example(ids=packed(row)))
        writer.close()
    run(tmp_path / "in", tmp_path / "out", boundaries="index")
    assert documents(tmp_path / "out") == ROWS


def test_an_array_record_without_records(tmp_path: Path) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    module.ArrayRecordWriter(str(tmp_path / "a"), "group_size:1").close()
    with pytest.raises((nc.FormatError, ValueError), match=r"it holds no rows|no column holds"):
        run(tmp_path / "a", tmp_path / "out", boundaries="index")
