"""Texts in columns of Parquet and Arrow files, in ``save_to_disk`` folders; .xz, .json and patterns of names."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

import neutral_core as nc
from prep.readers.arrow_file import batches
from prep.readers.documents import Tally, place_of, read_documents
from prep.readers.inputs import cut, find_inputs

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
TEXTS = [f"text {n} " + "é" * (n % 7) + "\n" * (n % 3) for n in range(500)]


def read(*names: str | Path, task_bytes: int = 1 << 20, on_bad: str = "error", key: str = "text") -> list[str]:
    """Return the documents of all tasks, in order."""
    inputs = find_inputs([str(name) for name in names])
    return [
        document.text
        for task in cut(inputs, "file", task_bytes)
        for part in task
        for document in read_documents(part, rule="file", text_key=key, on_bad=on_bad, tally=Tally())
    ]


def table(texts: list[Any], kind: Any = None) -> Any:
    return pa.table({"id": list(range(len(texts))), "text": pa.array(texts, type=kind or pa.string())})


def write_arrow(path: Path, content: Any, *, stream: bool) -> None:
    with (
        pa.OSFile(str(path), "wb") as sink,
        (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, content.schema) as writer,
    ):
        writer.write_table(content, max_chunksize=64)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_a_parquet_files_texts_are_its_column(tmp_path: Path, kind: Any) -> None:
    parquet.write_table(table(TEXTS, kind), tmp_path / "a.parquet", row_group_size=70)
    assert read(tmp_path) == TEXTS


@pytest.mark.parametrize("task_bytes", [1, 100, 999, 5000])
def test_each_row_group_belongs_to_one_range(tmp_path: Path, task_bytes: int) -> None:
    parquet.write_table(table(TEXTS), tmp_path / "a.parquet", row_group_size=37)
    assert len(cut(find_inputs([str(tmp_path)]), "file", task_bytes)) > 1
    assert read(tmp_path, task_bytes=task_bytes) == TEXTS


def test_lines_are_rows_counted_from_the_ranges_first(tmp_path: Path) -> None:
    parquet.write_table(table(TEXTS), tmp_path / "a.parquet", row_group_size=100)
    lines = []
    for (part,) in cut(find_inputs([str(tmp_path)]), "file", 1000):
        tally = Tally()
        found = list(read_documents(part, rule="file", text_key="text", on_bad="error", tally=tally))
        assert [document.line for document in found] == list(range(1, len(found) + 1))
        assert tally.num_lines == len(found)
        lines.append(len(found))
    assert sum(lines) == len(TEXTS)
    assert set(lines) <= {0, 100, 200, 300, 400, 500}


@pytest.mark.parametrize("stream", [True, False])
def test_an_arrow_file_or_stream_gives_its_texts(tmp_path: Path, stream: bool) -> None:
    write_arrow(tmp_path / "a.arrow", table(TEXTS), stream=stream)
    assert read(tmp_path, task_bytes=1000) == TEXTS


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("task_bytes", [100, 999, 5000])
def test_each_record_batch_of_an_arrow_file_belongs_to_one_range(
    tmp_path: Path, task_bytes: int, compression: str | None
) -> None:
    kind = pa.dictionary(pa.int32(), pa.string()) if task_bytes == 999 else pa.string()
    content = table(TEXTS, kind)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, content.schema, options=options) as writer,
    ):
        writer.write_table(content, max_chunksize=37)
    lines = []
    texts = []
    for (part,) in cut(find_inputs([str(tmp_path)]), "file", task_bytes):
        tally = Tally()
        found = list(read_documents(part, rule="file", text_key="text", on_bad="error", tally=tally))
        assert [document.line for document in found] == list(range(1, tally.num_lines + 1))
        lines.append(tally.num_lines)
        texts += [document.text for document in found]
    assert texts == TEXTS
    assert {count % 37 for count in lines} <= {0, 500 % 37}
    assert max(lines) < 500


def test_footers_say_where_batches_begin_and_how_many_rows_they_have(tmp_path: Path) -> None:
    """What the footer says is compared with pyarrow's own reading, batch by batch from where it is said to begin."""
    write_arrow(tmp_path / "a.arrow", table(TEXTS), stream=False)
    found = batches(tmp_path / "a.arrow")
    with pa.OSFile(str(tmp_path / "a.arrow")) as source:
        reader = pa.ipc.open_file(source)
        assert [batch.num_rows for batch in found] == [reader.get_batch(n).num_rows for n in range(len(found))]
        for number, batch in enumerate(found):
            source.seek(batch.begin)
            read_there = pa.ipc.read_record_batch(pa.ipc.read_message(source), reader.schema)
            assert read_there.equals(reader.get_batch(number))
    write_arrow(tmp_path / "a.arrow", table([]), stream=False)
    assert sum(batch.num_rows for batch in batches(tmp_path / "a.arrow")) == 0


def test_a_null_beyond_a_cut_is_found_by_its_row_in_the_file(tmp_path: Path) -> None:
    texts = [*TEXTS[:300], None, *TEXTS[301:]]
    write_arrow(tmp_path / "a.arrow", table(texts), stream=False)
    with pytest.raises(ValueError, match=r"a\.arrow: row 301: 'text' is null"):
        read(tmp_path, task_bytes=2000)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 20])
def test_an_arrow_file_whose_footer_says_nonsense_is_refused(tmp_path: Path, keep: int) -> None:
    write_arrow(tmp_path / "a.arrow", table(TEXTS[:9]), stream=False)
    data = (tmp_path / "a.arrow").read_bytes()
    size = int.from_bytes(data[-10:-6], "little")
    footer = data[-10 - size : -10]
    for wrong in (footer[:keep] + b"\xff" * (size - keep), footer[:keep] + b"\0" * (size - keep)):
        (tmp_path / "a.arrow").write_bytes(data[: -10 - size] + wrong + data[-10:])
        with pytest.raises(nc.FormatError, match=r"a\.arrow"):
            batches(tmp_path / "a.arrow")
            read(tmp_path)


def test_a_null_is_an_error_by_its_row_or_left_out(tmp_path: Path) -> None:
    parquet.write_table(table(["a", "b", None, "d"]), tmp_path / "a.parquet", row_group_size=2)
    with pytest.raises(ValueError, match=r"a\.parquet: row 3: 'text' is null, expected a text"):
        read(tmp_path)
    assert read(tmp_path, on_bad="skip") == ["a", "b", "d"]


def test_a_column_that_is_not_there_or_no_text_is_refused_with_those_that_are(tmp_path: Path) -> None:
    parquet.write_table(table(["a"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="there is no column 'body'; columns of texts: text: name one with --text-key"):
        read(tmp_path, key="body", on_bad="skip")
    with pytest.raises(ValueError, match="its column 'id' holds int64, no texts"):
        read(tmp_path, key="id")


def test_bytes_that_are_no_utf_8_are_found_by_their_row(tmp_path: Path) -> None:
    texts = pa.array([b"fine", b"\xff\xfe", b"too"], type=pa.binary())
    column = pa.StringArray.from_buffers(3, texts.buffers()[1], texts.buffers()[2])
    write_arrow(tmp_path / "a.arrow", pa.table({"text": column}), stream=True)
    with pytest.raises(ValueError, match=r"a\.arrow: row 2: byte 0 of the document, 0xff, is not UTF-8"):
        read(tmp_path)
    assert read(tmp_path, on_bad="skip") == ["fine", "too"]


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_a_file_cut_short_at_any_byte_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        parquet.write_table(table(TEXTS[:9]), path, compression="none", use_dictionary=False)
    else:
        write_arrow(path, table(TEXTS[:9]), stream=kind == "stream")
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(nc.FormatError, match=path.name):
            read(path)


def test_offsets_of_a_damaged_arrow_file_are_refused(tmp_path: Path) -> None:
    """A text that ends before it begins, or beyond the data, reads memory that is not its own if it is believed."""
    content = table(["abcd", "efgh"])
    write_arrow(tmp_path / "a.arrow", content, stream=True)
    data = (tmp_path / "a.arrow").read_bytes()
    right = b"\0\0\0\0\4\0\0\0\x08\0\0\0"
    assert data.count(right) == 1
    for wrong in (
        b"\0\0\0\0\x09\0\0\0\x08\0\0\0",
        b"\0\0\0\0\4\0\0\0\x08\0\0\x7f",
        b"\0\0\0\0\xff\xff\xff\xff\x08\0\0\0",
    ):
        (tmp_path / "a.arrow").write_bytes(data.replace(right, wrong))
        with pytest.raises(nc.FormatError, match=r"a\.arrow"):
            read(tmp_path)


def test_a_saved_dataset_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    names = ["data-00001-of-00002.arrow", "data-00000-of-00002.arrow"]
    for name, texts in zip(names, (TEXTS[:9], TEXTS[9:20]), strict=True):
        write_arrow(tmp_path / name, table(texts), stream=True)
    state = {"_data_files": [{"filename": name} for name in names]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert read(tmp_path) == TEXTS[:20]
    (tmp_path / "state.json").write_text(json.dumps(state | {"_indices_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(
        ValueError, match=r"its rows are picked by indices\.arrow: save it again after flatten_indices\(\)"
    ):
        read(tmp_path)
    for wrong in ("../out.arrow", "gone.arrow"):
        (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": wrong}]}))
        with pytest.raises(ValueError, match="which is no file beside it"):
            read(tmp_path)


def test_a_saved_dataset_of_several_splits_names_them(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ValueError, match="name one of the folders in it: train"):
        read(tmp_path)


def test_xz_and_json_are_read_as_others_are(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "a.json").write_text(lines)
    (tmp_path / "b.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    (tmp_path / "c.txt.xz").write_bytes(
        lzma.compress(b"whole\n") + lzma.compress(b"file\n")
    )  # two streams are one text
    assert read(tmp_path) == [*TEXTS, *TEXTS, "whole\nfile\n"]


def test_an_xz_file_cut_short_at_any_byte_is_refused(tmp_path: Path) -> None:
    data = lzma.compress(b"some text, some text, some text")
    for size in range(1, len(data)):
        (tmp_path / "a.txt.xz").write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"a\.txt\.xz: the compressed file is damaged or cut short"):
            read(tmp_path)


def test_a_flipped_byte_in_an_xz_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    text = b"some text, some text, some text"
    data = lzma.compress(text)
    for at in range(len(data)):
        (tmp_path / "a.txt.xz").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            assert read(tmp_path) == [text.decode()]
        except ValueError as error:
            assert "damaged" in str(error)  # noqa: PT017 - one of the two has to happen


def test_patterns_name_files(tmp_path: Path) -> None:
    for name in ("x/a.txt", "x/y/b.txt", "x/y/c.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name if name.endswith(".txt") else json.dumps({"text": name}))
    assert read(f"{tmp_path}/x/**/*.txt") == ["x/a.txt", "x/y/b.txt"]
    assert read(f"{tmp_path}/x/y/[bc]*") == ["x/y/b.txt", "x/y/c.jsonl"]
    with pytest.raises(FileNotFoundError, match=r"\*\.md: there is no file of such a name"):
        read(f"{tmp_path}/*.md")
    (tmp_path / "a[1].txt").write_text("brackets")  # a name that is there is no pattern
    assert read(tmp_path / "a[1].txt") == ["brackets"]


STRANGE = [
    b'{"text": "a", "score": NaN}',
    b'{"text": "a", "n": 123456789012345678901234567890}',
    b'{"text": "a", "text": "b"}',
    b'{"text": "\\ud83d\\ude00"}',
    b'{"text": "\\ud83d"}',
    b'{"text": 3}',
    b'{"text": null}',
    b'["text"]',
    b'{"text": "a"} x',
    b'{"text": "\x01"}',
    b'{"text": "\xff"}',
    b'  {"text": "a"}\t',
    b'{"text": "' + b"[" * 2000 + b'"}',
    b"[" * 5000,
]


@pytest.mark.parametrize("line", STRANGE, ids=lambda line: repr(line[:24]))
def test_what_is_read_does_not_depend_on_orjson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    pytest.importorskip("orjson")
    (tmp_path / "a.jsonl").write_bytes(line + b"\n")

    def outcome() -> Any:
        try:
            return read(tmp_path)
        except ValueError as error:
            return str(error)

    with_it = outcome()
    monkeypatch.setitem(__import__("sys").modules, "orjson", None)
    assert outcome() == with_it


def test_a_row_group_is_read_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.BytesIO()
    parquet.write_table(table(["x" * 1000] * 5000), sink, row_group_size=5000, compression="none", use_dictionary=False)
    (tmp_path / "a.parquet").write_bytes(sink.getvalue())
    sizes = []
    monkeypatch.setattr("prep.readers.rows._bytes_of", lambda values: sizes.append(len(values)) or [b"x"] * len(values))
    assert len(read(tmp_path)) == 5000
    assert max(sizes) <= 1100  # 1 MiB of texts of 1,000 bytes


def test_a_parquet_range_says_rows_of_the_whole_file(tmp_path: Path) -> None:
    parquet.write_table(table(["a"] * 10), tmp_path / "a.parquet", row_group_size=4)
    (part,) = find_inputs([str(tmp_path)])
    from prep.readers.inputs import Range

    assert place_of(Range(input=part, start=50), 7, 2) == "a.parquet: row 8"
