"""Documents of files of text: the same however a file is cut, read, or compressed."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prep.readers import documents as documents_module
from prep.readers.documents import Document, Tally, read_documents
from prep.readers.inputs import Input, Range, cut, find_inputs

NASTY = [
    b"",
    b"\n",
    b"\r\n",
    b"\r",
    b"a",
    b"a\n",
    b"a\r\n",
    b"a\r",
    b"a\nb\nc",
    b"a\r\nb\r\nc\r\n",
    b"a\rb\rc\n",
    b"\r\r\n\r\r\n",
    b"a\n\nb\n",
    b"a\r\n\r\nb",
    b"a\n\r\nb\r\n\n\nc",
    b"\n\n\na\n\n\n\nb\n\n\n",
    b"\r\n\r\na\r\nb\r\n\r\n\r\nc\r\n\r\n",
    b" \n\t\n \n",
    "é\n\nгд\nж\n\n\U0001f600\U0001f600\n".encode(),
    "\u2028a\u2029b\x0bc\x85d\n\ne".encode(),
    "\ufeffa\n\ufeffb\n".encode(),
    b"one line\nand another\n\nsecond\r\n\r\n\r\nthird, \r of two\r\nlines\nno end",
]


def naive_lines(data: bytes) -> list[tuple[str, int]]:
    *ended, rest = data.split(b"\n")
    lines = [*(line[:-1] if line.endswith(b"\r") else line for line in ended), rest]
    return [(line.decode(), number) for number, line in enumerate(lines, 1) if line]


def naive_paragraphs(data: bytes) -> list[tuple[str, int]]:
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    documents = []
    for empty, group in itertools.groupby(enumerate(lines, 1), key=lambda pair: pair[1] in (b"\n", b"\r\n")):
        if not empty:
            members = list(group)
            text = b"".join(line for _, line in members)
            documents.append((re.sub(rb"\r?\n\Z", b"", text).decode(), members[0][0]))
    return documents


NAIVE = {"line": naive_lines, "blank-line": naive_paragraphs}


def parts_of(path: Path, rule: str, size: int) -> list[Range]:
    return [part for task in cut(find_inputs([str(path)], None), rule, size) for part in task]


def read_parts(parts: list[Range], rule: str, on_bad: str = "error") -> tuple[list[tuple[str, int]], Tally]:
    """Read ranges one after another; lines are counted from the file's first one."""
    documents: list[tuple[str, int]] = []
    total = Tally()
    for part in parts:
        tally = Tally()
        found = read_documents(part, rule=rule, text_key="text", on_bad=on_bad, tally=tally)
        documents += [(document.text, total.num_lines + document.line) for document in found]
        total.num_lines += tally.num_lines
        total.num_empty_lines += tally.num_empty_lines
        total.num_skipped += tally.num_skipped
    return documents, total


def read_whole(path: Path, rule: str = "line", on_bad: str = "error") -> list[str]:
    return [text for text, _ in read_parts(parts_of(path, rule, 1 << 40), rule, on_bad)[0]]


@pytest.mark.parametrize("rule", ["line", "blank-line"])
@pytest.mark.parametrize("data", NASTY)
def test_ranges_of_every_size_give_the_documents_and_lines_of_the_whole_file(
    tmp_path: Path, data: bytes, rule: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    for size in range(1, len(data) + 2):
        documents, tally = read_parts(parts_of(path, rule, size), rule)
        assert documents == NAIVE[rule](data), size
        assert tally.num_lines == len(re.findall(rb"[^\n]*\n|[^\n]+", data)), size


@settings(max_examples=150)
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"\n\n", "é".encode()]), max_size=14),
    size=st.integers(1, 9),
)
@pytest.mark.parametrize("rule", ["line", "blank-line"])
def test_any_text_cut_anyhow_gives_the_documents_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, data: list[bytes], size: int, rule: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(b"".join(data))
    assert read_parts(parts_of(path, rule, size), rule)[0] == NAIVE[rule](b"".join(data))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_json_lines_cut_into_ranges_of_every_size_are_those_of_the_whole_file(
    tmp_path: Path, end: str, last: str
) -> None:
    texts = ["a", "", "two\nlines\r\n", "é \U0001f600", "x" * 40]
    lines = [json.dumps({"n": n, "text": text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(texts)]
    lines[2:2] = ["", ""]
    data = (end.join(lines) + (end if last == "end" else "")).encode()
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    expected = list(zip(texts, [1, 2, 5, 6, 7], strict=True))
    for size in range(1, len(data) + 2):
        documents, tally = read_parts(parts_of(path, "file", size), "file")
        assert documents == expected, size
        assert tally.num_empty_lines == 2, size


def test_empty_lines_are_counted_by_the_rule_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\na\n\r\n\nb\n")
    for size in range(1, 11):
        assert read_parts(parts_of(path, "line", size), "line")[1].num_empty_lines == 3, size


@pytest.mark.parametrize("data", NASTY)
def test_the_rule_file_gives_the_whole_file_as_it_is_stored(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    assert read_parts(parts_of(path, "file", 1), "file")[0] == [(data.decode(), 1)]


@pytest.mark.parametrize("rule", ["file", "line", "blank-line"])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_gives_the_documents_of_the_plain_one(tmp_path: Path, suffix: str, rule: str) -> None:
    for number, data in enumerate(NASTY):
        plain = tmp_path / f"{number}.txt"
        plain.write_bytes(data)
        packed = tmp_path / f"{number}.txt.{suffix}"
        packed.write_bytes(compress(data, suffix))
        assert read_parts(parts_of(packed, rule, 1), rule) == read_parts(parts_of(plain, rule, 1), rule), data


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_json_lines_give_their_texts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(compress(b'{"text": "a"}\n\n{"text": ""}\n', suffix))
    assert read_parts(parts_of(path, "file", 1), "file")[0] == [("a", 1), ("", 3)]


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_compressed_streams_put_one_after_another_are_read_to_the_last(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(compress(b"a\nb", suffix) + compress(b"", suffix) + compress(b"c\nd\n", suffix))
    assert read_whole(path) == ["a", "bc", "d"]


@pytest.mark.parametrize("rule", ["file", "line"])
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_that_is_cut_short_anywhere_is_refused(tmp_path: Path, suffix: str, rule: str) -> None:
    data = compress(b"".join(b"line %d\n" % number for number in range(20)), suffix)
    path = tmp_path / f"a.txt.{suffix}"
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(
            ValueError, match=r"^a\.txt\.\w+: the compressed file is damaged or cut short .*copy it again"
        ):
            read_whole(path, rule)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt.{suffix}"
    path.write_bytes(b"plain text\n" * 9)
    with pytest.raises(ValueError, match="the compressed file is damaged or cut short"):
        read_whole(path)


BAD = {
    "bytes that are no UTF-8": (b'{"text": "\xff"}', r"byte 10 of the document, 0xff, is not UTF-8"),
    "no JSON": (b"{text}", r"it is not JSON \("),
    "another key": (b'{"body": "a", "id": 1}', r"there is no key 'text': its keys are body, id; name .* --text-key"),
    "no object": (b'["text"]', r"there is no key 'text': it is no object"),
    "no text": (b'{"text": 5}', r"the value of 'text' is int, expected a text"),
    "null": (b'{"text": null}', r"the value of 'text' is NoneType, expected a text"),
    "half a surrogate pair": (rb'{"text": "\ud800"}', r"the text of 'text' holds half of a surrogate pair"),
    "nested too deeply": (b"[" * 200_000, r"nested too deeply"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_line_of_json_is_named_by_file_line_and_byte(tmp_path: Path, bad: tuple[bytes, str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + bad[0] + b'\n{"text": "b"}\n')
    for size in (1, 7, 15, 1 << 20):
        with pytest.raises(
            ValueError,
            match=rf"^a\.jsonl: line 3 \(byte 15\): .*{bad[1]}.*--on-bad skip; either way give --restart too\.$",
        ):
            read_parts(parts_of(path, "file", size), "file")


def test_bad_lines_of_json_are_left_out_and_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"\n".join(line for line, _ in BAD.values()) + b'\n{"text": "b"}\n')
    documents, tally = read_parts(parts_of(path, "file", 1 << 30), "file", "skip")
    assert documents == [("a", 1), ("b", 2 + len(BAD))]
    assert tally.num_skipped == len(BAD)


@pytest.mark.parametrize("rule", ["line", "blank-line"])
def test_text_that_is_no_utf_8_is_named_by_file_line_and_byte(tmp_path: Path, rule: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n\nalso\xc3\n\nlast\n")
    for size in range(1, 20):
        with pytest.raises(ValueError, match=r"^a\.txt: line 3 \(byte 6\): byte 4 of the document, 0xc3, is not UTF-8"):
            read_parts(parts_of(path, rule, size), rule)
        documents, tally = read_parts(parts_of(path, rule, size), rule, "skip")
        assert documents == [("good", 1), ("last", 5)]
        assert tally.num_skipped == 1


def test_only_the_first_reasons_are_kept_but_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\n" * 9)
    tally = Tally()
    part = parts_of(path, "line", 1 << 20)[0]
    assert list(read_documents(part, rule="line", text_key="text", on_bad="skip", tally=tally)) == []
    assert tally.num_skipped == 9
    why = "byte 0 of the document, 0xff, is not UTF-8"
    assert tally.skipped == [(2 * n, n + 1, why) for n in range(5)]


def test_lines_of_white_space_between_json_are_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n \t \n\t\r\n  {"text": "b"}  \n')
    documents, tally = read_parts(parts_of(path, "file", 1 << 20), "file")
    assert documents == [("a", 1), ("b", 4)]
    assert tally.num_empty_lines == 2


def test_a_line_of_white_space_in_text_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n \t\nb\n")
    assert read_whole(path) == ["a", " \t", "b"]


class Counted(io.BytesIO):
    """A file that counts the bytes that are read from it by lines."""

    given = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.given += len(line)
        return line

    def __next__(self) -> bytes:
        return self.readline()


@pytest.mark.parametrize("rule", ["line", "blank-line"])
def test_a_range_inside_a_long_line_reads_no_further_than_its_end(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    file = Counted(b"x" * (9 << 20))
    monkeypatch.setattr(documents_module, "_open", lambda item: file)
    item = Input(path="a.txt", name="a.txt", num_bytes=9 << 20, kind="text", compression="")
    part = Range(input=item, start=1 << 20, stop=2 << 20)
    assert list(read_documents(part, rule=rule, text_key="", on_bad="error", tally=Tally())) == []
    assert file.given <= 4 << 20  # blank-line enters twice


def test_a_line_longer_than_many_ranges_is_the_document_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n" + b"x" * (5 << 20) + b"\nb\n")
    documents, _ = read_parts(parts_of(path, "line", 1 << 20), "line")
    assert documents == [("a", 1), ("x" * (5 << 20), 2), ("b", 3)]


def test_a_zst_file_with_a_window_of_half_a_gigabyte_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=29, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # its size is not declared
    path = tmp_path / "a.txt.zst"
    path.write_bytes(compressor.compress(b"a\nb\n") + compressor.flush())
    assert read_whole(path) == ["a", "b"]


def test_a_byte_order_mark_before_json_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
    assert read_whole(path) == ["a", "b"]


def test_a_byte_order_mark_in_text_stays_as_it_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\n")
    assert read_whole(path) == ["\ufeffa"]


def test_a_missing_zstandard_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zstandard", None)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"reading a\.txt\.zst needs zstandard: pip install 'millstream\[prep\]'"):
        read_whole(path)


def test_a_document_of_a_range_counts_lines_from_the_first_line_of_the_range(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"aa\nbb\ncc\n")
    item = Input(path=str(path), name="a.txt", num_bytes=9, kind="text", compression="")
    found = read_documents(
        Range(input=item, start=3, stop=None), rule="line", text_key="", on_bad="error", tally=Tally()
    )
    assert list(found) == [Document(text="bb", line=1), Document(text="cc", line=2)]


def compress(data: bytes, suffix: str) -> bytes:
    if suffix == "gz":
        return gzip.compress(data)
    zstandard = pytest.importorskip("zstandard")
    return bytes(zstandard.ZstdCompressor(write_checksum=True).compress(data))
