"""``prepare``: text becomes a corpus whose bytes depend on text and settings alone, exactly once."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core.format.publish import Workplace
from prep import prepare as module
from prep import tasks
from prep.engines import local
from prep.inspect import origin_of
from prep.pieces import Options, piece_path, task_bytes_of
from prep.prepare import lines_of, prepare
from prep.readers.inputs import Input, cut
from prep.tokenizers import Settings, open_stored

NANOGPT = "karpathy+nanoGPT/data/shakespeare_char"


class Crash(BaseException):
    """The process ends here."""


def options(tmp_path: Path, **changes: Any) -> Options:
    """Options for the folder ``in`` and the destination ``out``, of bytes with EOS, a document a line, cut fine."""
    settings: dict[str, Any] = {
        "inputs": (str(tmp_path / "in"),),
        "destination": tmp_path / "out",
        "tokenizer": Settings(kind="byte", append_eos=True),
        "documents": "line",
        "task_bytes": 50,
    }
    return Options(**(settings | changes))


def write(tmp_path: Path, **files: bytes) -> None:
    folder = tmp_path / "in"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)


def texts_of(folder: Path) -> list[str]:
    corpus = nc.open_corpus(folder)
    assert corpus.tokenizer is not None
    tokenizer = open_stored(folder, corpus.tokenizer)
    return [tokenizer.decode(corpus.document(index)) for index in range(corpus.num_documents)]


def origins_of(folder: Path) -> list[tuple[str, int] | None]:
    corpus = nc.open_corpus(folder)
    return [origin_of(corpus, index) for index in range(corpus.num_documents)]


def tree_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


SONG = b"".join(b"line %d of the song\n" % number for number in range(1, 41))


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_the_bytes_of_the_result_do_not_depend_on_the_number_of_workers(tmp_path: Path, kind: str) -> None:
    write(tmp_path, a_txt=SONG, b_txt=b"short\n", c_jsonl=b'{"text": "x"}\n' * 30)
    trees = []
    for workers in (1, 2, 3) if kind == "byte" else (1, 3):
        destination = tmp_path / f"out-{workers}"
        tokenizer = Settings(kind=kind, append_eos=True)
        prepare(
            options(
                tmp_path, destination=destination, tokenizer=tokenizer, workers=workers, tokens_per_shard=300, validation="0.3",
                task_bytes=300,
            )
        )  # fmt: skip
        trees.append(tree_of(destination))
    assert len(trees[0]) > 5
    assert all(tree == trees[0] for tree in trees)


def test_the_way_the_work_is_cut_does_not_show_in_tokens_and_origins(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG, b_jsonl=b'{"text": "x"}\n' * 9)
    expected = [(f"line {n} of the song", ("a.txt", n)) for n in range(1, 41)] + [
        ("x", ("b.jsonl", n)) for n in range(1, 10)
    ]
    for size in (20, 77, 333, 1 << 20):
        destination = tmp_path / f"out-{size}"
        prepare(options(tmp_path, destination=destination, task_bytes=size))
        assert list(zip(texts_of(destination), origins_of(destination), strict=True)) == expected, size


@pytest.mark.parametrize(
    ("name", "rule", "data", "expected"),
    [
        ("a.txt", "file", b"one\n\ntwo\n" * 20, [("a.txt", 1)]),
        (
            "a.txt",
            "line",
            b"one\n\ntwo\n" * 20,
            [("a.txt", line) for n in range(20) for line in (3 * n + 1, 3 * n + 3)],
        ),
        ("a.txt", "blank-line", b"one\nmore\n\n\n" * 20, [("a.txt", 4 * n + 1) for n in range(20)]),
        ("a.jsonl", "file", b'{"text": "a"}\n\n' * 20, [("a.jsonl", 2 * n + 1) for n in range(20)]),
    ],
)
def test_each_document_knows_its_file_and_line_in_a_file_cut_into_tasks(
    tmp_path: Path, name: str, rule: str, data: bytes, expected: list[tuple[str, int]]
) -> None:
    write(tmp_path, **{name: data})
    prepare(options(tmp_path, documents=rule))
    assert origins_of(tmp_path / "out") == expected


def test_lines_are_counted_anew_in_each_file(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"a line of text\n" * 9, b_txt=b"b\nb\n", c_txt=b"c line of text\n" * 9, d_txt=b"d\n")
    prepare(options(tmp_path))
    numbers = [("a.txt", 9), ("b.txt", 2), ("c.txt", 9), ("d.txt", 1)]
    assert origins_of(tmp_path / "out") == [(name, line) for name, count in numbers for line in range(1, count + 1)]


def test_a_file_given_twice_is_read_twice_with_its_own_lines(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"a line of text\n" * 9)
    path = str(tmp_path / "in" / "a.txt")
    prepare(options(tmp_path, inputs=(path, path)))
    assert origins_of(tmp_path / "out") == [("a.txt", line) for line in range(1, 10)] * 2


def test_file_names_with_other_characters_are_kept(tmp_path: Path) -> None:
    write(tmp_path, **{"é \U0001f600.txt": b"x"})
    prepare(options(tmp_path))
    assert origins_of(tmp_path / "out") == [("é \U0001f600.txt", 1)]


def test_file_names_that_are_no_utf_8_are_kept_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    try:
        (tmp_path / "in" / os.fsdecode(b"a\xff.txt")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes no such names")
    prepare(options(tmp_path))
    assert nc.open_corpus(tmp_path / "out").field("ragged.path", 0).tobytes() == b"a\xff.txt"


def test_origins_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    prepare(options(tmp_path, origin=False))
    assert nc.open_corpus(tmp_path / "out").fields == {}
    assert texts_of(tmp_path / "out")[39] == "line 40 of the song"


def test_document_lengths_add_up_to_the_tokens(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    prepare(options(tmp_path, tokens_per_shard=100))
    corpus = nc.open_corpus(tmp_path / "out")
    assert corpus.num_shards > 5
    assert sum(len(corpus.document(index)) for index in range(40)) == corpus.num_tokens == len(SONG)


def test_empty_documents_keep_their_slot(tmp_path: Path) -> None:
    write(tmp_path, a_jsonl=b'{"text": "a"}\n{"text": ""}\n{"text": "b"}\n', b_txt=b"", c_txt=b"c")
    prepare(options(tmp_path, tokenizer=Settings(kind="byte"), documents="file"))
    corpus = nc.open_corpus(tmp_path / "out")
    assert [corpus.document(index).tolist() for index in range(5)] == [[97], [], [98], [], [99]]


def test_no_text_at_all_is_an_empty_corpus(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"")
    for kind in ("byte", "char"):
        report = prepare(options(tmp_path, destination=tmp_path / kind, tokenizer=Settings(kind=kind)))
        assert (report["corpora"][0]["documents"], report["corpora"][0]["tokens"]) == (0, 0)
        assert nc.open_corpus(tmp_path / kind).num_tokens == 0


def test_a_large_file_makes_several_tasks_and_uses_several_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    run = local.run

    def spy(function: Callable[..., Any], jobs: Any, workers: int) -> Any:
        seen.append((len(jobs), workers))
        return run(function, jobs, 1)

    monkeypatch.setattr(local, "run", spy)
    write(tmp_path, a_txt=b"x" * 9 + b"\n" + b"y" * 989)
    prepare(options(tmp_path, task_bytes=100, workers=7))
    assert seen == [(10, 7)]


def test_equal_texts_are_on_the_same_side_and_both_sides_are_the_whole(tmp_path: Path) -> None:
    lines = [f"document {number % 1000}" for number in range(2000)]
    write(tmp_path, a_txt="\n".join(lines[:1300]).encode(), b_txt="\n".join(lines[1300:]).encode())
    prepare(options(tmp_path, validation="0.2", task_bytes=5000))
    train, validation = (texts_of(tmp_path / "out" / split) for split in ("train", "validation"))
    assert set(train) & set(validation) == set()
    assert Counter(train) + Counter(validation) == Counter(lines)
    assert abs(len(set(validation)) - 200) < 5 * math.sqrt(1000 * 0.2 * 0.8)


def test_a_text_stays_on_its_side_whatever_stands_beside_it(tmp_path: Path) -> None:
    sides = []
    for number, others in enumerate((b"", SONG)):
        write(tmp_path, a_txt=b"".join(b"%d\n" % n for n in range(50)) + others)
        prepare(options(tmp_path, destination=tmp_path / f"out-{number}", validation="1/3"))
        sides.append({text for text in texts_of(tmp_path / f"out-{number}" / "validation") if text.isdecimal()})
    assert sides[0] == sides[1] != set()


def test_a_side_without_documents_is_said_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    lines = lines_of(prepare(options(tmp_path, documents="file", validation="0.5")))
    assert lines.count("  WARNING: it holds no document.") == 1
    assert any("--documents line or blank-line makes more of them" in line for line in lines)


@pytest.mark.parametrize("share", ["0", "1", "-0.1", "1.5", "half", "", "nan", "inf", "1/0"])
def test_a_share_that_is_none_is_refused(tmp_path: Path, share: str) -> None:
    write(tmp_path, a_txt=SONG)
    with pytest.raises(ValueError, match="expected a share between 0 and 1"):
        prepare(options(tmp_path, validation=share))
    assert not (tmp_path / "out").exists()


def test_the_losses_of_an_even_alphabet_are_those_of_arithmetic(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"abcdabcd" * 8)
    entry = prepare(options(tmp_path, tokenizer=Settings(kind="char"), documents="file"))["corpora"][0]
    assert entry["uniform_nats"] == pytest.approx(math.log(4))
    assert entry["unigram_nats"] == pytest.approx(math.log(4))
    assert entry["unigram_bits_per_byte"] == pytest.approx(2)


def test_bits_per_byte_count_the_bytes_of_the_text_not_its_tokens(tmp_path: Path) -> None:
    write(tmp_path, a_txt="éж".encode() * 8)
    entry = prepare(options(tmp_path, tokenizer=Settings(kind="char"), documents="file"))["corpora"][0]
    assert entry["unigram_bits_per_byte"] == pytest.approx(0.5)  # one bit a character of two bytes


def test_nanogpts_text_has_its_ids_and_the_losses_that_are_known(tmp_path: Path, fixtures: Path) -> None:
    source = fixtures / NANOGPT / "input.txt"
    asked = options(
        tmp_path, inputs=(str(source),), documents="file", tokenizer=Settings(kind="char"), task_bytes=1 << 20
    )
    report = prepare(asked)
    corpus = nc.open_corpus(tmp_path / "out")
    parts = [np.fromfile(fixtures / NANOGPT / name, dtype="<u2") for name in ("train.bin", "val.bin")]
    assert np.array_equal(corpus.tokens(0, corpus.num_tokens), np.concatenate(parts))
    assert corpus.dtype == np.uint8
    assert report["corpora"][0]["uniform_nats"] == pytest.approx(4.174, abs=5e-4)
    # −Σ p ln p of the 65 frequencies, by a Counter and Python floats. (3.347 is the loss of train.bin's frequencies on val.bin.)
    assert report["corpora"][0]["unigram_nats"] == pytest.approx(3.3128, abs=5e-5)
    assert texts_of(tmp_path / "out") == [source.read_bytes().decode()]


@pytest.mark.parametrize(
    ("settings", "dtype", "why"),
    [
        (Settings(kind="byte"), "uint8", "256 ids (256 bytes): uint8"),
        (Settings(kind="byte", append_eos=True), "uint16", "257 ids (256 bytes, EOS): uint16"),
        (Settings(kind="byte", append_eos=True, prepend_bos=True), "uint16", "258 ids (256 bytes, EOS, BOS): uint16"),
        (Settings(kind="char"), "uint8", "3 ids (3 characters): uint8"),
    ],
)
def test_the_dtype_follows_the_vocabulary_and_the_report_says_why(
    tmp_path: Path, settings: Settings, dtype: str, why: str
) -> None:
    write(tmp_path, a_txt=b"abc")
    report = prepare(options(tmp_path, tokenizer=settings))
    assert nc.open_corpus(tmp_path / "out").dtype == np.dtype(dtype)
    assert f"tokens are stored as {why}" in lines_of(report)


def test_bad_documents_are_counted_in_the_report(tmp_path: Path) -> None:
    write(tmp_path, a_jsonl=b'{"text": "a"}\n{\n\n{"text": 1}\n')
    report = prepare(options(tmp_path, on_bad="skip"))
    assert (report["skipped"], report["empty_lines"]) == (2, 1)
    assert "2 bad documents left out (json 1, type 1), the first of them:" in lines_of(report)
    assert texts_of(tmp_path / "out") == ["a"]


def test_the_first_bad_documents_of_a_file_cut_into_tasks_have_their_lines_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[int] = []
    place_of = module.place_of

    def spy(part: Any, at: int, number: int) -> str:
        places.append(at)
        return place_of(part, at, number)

    monkeypatch.setattr(module, "place_of", spy)
    write(tmp_path, a_jsonl=b'{"text": "a"}\n{"text": 1}\n' * 20)
    report = prepare(options(tmp_path, on_bad="skip"))
    why = "the value of 'text' is int, expected a text"
    assert report["skipped"] == 20
    assert report["reasons"] == [f"a.jsonl: line {2 * n + 2} (byte {26 * n + 14}): {why}." for n in range(5)]
    assert len(places) == 5  # each costs a pass over the file


@pytest.mark.parametrize("change", ["longer", "shorter", "later"])
def test_a_file_that_is_changed_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    write(tmp_path, a_txt=SONG, b_txt=SONG)
    path = tmp_path / "in" / "b.txt"
    run = local.run

    def meddled(*arguments: Any) -> Any:
        yield from run(*arguments)
        if change == "later":
            os.utime(path, ns=(0, 12345))
        else:
            path.write_bytes(SONG + b"x" if change == "longer" else SONG[:-5])

    monkeypatch.setattr(local, "run", meddled)
    with pytest.raises(ValueError, match=r"b\.txt: it was changed while it was being read: .*--restart"):
        prepare(options(tmp_path))
    assert not list((tmp_path / "out").glob("*.json"))
    monkeypatch.undo()
    prepare(options(tmp_path, restart=True))
    assert nc.open_corpus(tmp_path / "out").num_documents > 70


@pytest.mark.parametrize("damage", ["a token", "an empty piece", "no piece", "an empty result", "half a result"])
def test_what_a_power_cut_damaged_is_made_anew_by_the_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    write(tmp_path, a_txt=SONG)
    crash_at(monkeypatch, module, "publish", options(tmp_path))
    pieces = tmp_path / "out" / ".partial" / "pieces"
    piece, result = sorted(pieces.glob("*.safetensors"))[3], sorted(pieces.glob("*.json"))[3]
    data = piece.read_bytes()
    at = data.rindex("song".encode("utf-16-le"))
    if damage == "a token":
        piece.write_bytes(data[:at] + b"S" + data[at + 1 :])
    elif damage == "no piece":
        piece.unlink()
    elif damage == "an empty piece":
        piece.write_bytes(b"")
    else:
        result.write_bytes(b"" if damage == "an empty result" else result.read_bytes()[:40])
    prepare(options(tmp_path))
    prepare(options(tmp_path, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


def test_a_piece_that_is_damaged_between_its_making_and_its_reading_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a_txt=SONG)
    done = module._done

    def meddled(jobs: Any, *others: Any) -> Any:
        for job, result in zip(jobs, done(jobs, *others), strict=True):
            piece = piece_path(job, "")
            data = piece.read_bytes()
            at = data.rindex("song".encode("utf-16-le"))
            piece.write_bytes(data[:at] + b"S" + data[at + 1 :])
            yield result

    monkeypatch.setattr(module, "_done", meddled)
    with pytest.raises(nc.FormatError, match=r"run the same command again, to make it anew \(.*000000\.all"):
        prepare(options(tmp_path))
    assert not (tmp_path / "out" / "dataset.json").exists()
    monkeypatch.undo()
    prepare(options(tmp_path))
    assert texts_of(tmp_path / "out") == [f"line {number} of the song" for number in range(1, 41)]


def test_the_report_counts_documents_by_length_and_by_file(tmp_path: Path) -> None:
    write(tmp_path, a_txt=b"\n".join([b"abc", b"a", b"abcdefg"]), b_txt="éé".encode())
    report = prepare(options(tmp_path, tokenizer=Settings(kind="byte")))
    assert report["sources"] == {"a.txt": [11, 3, 11], "b.txt": [4, 1, 4]}  # bytes, documents, tokens
    assert report["lengths_histogram"] == {"": [0, 1, 1, 2]}  # 0, 1, 2 … 3, 4 … 7 tokens


def test_small_inputs_make_enough_tasks_and_large_ones_not_too_many() -> None:
    sizes = [10 << 10, 10 << 20, 1 << 30, 1 << 40]
    numbers = []
    for size in sizes:
        item = Input(path="a.jsonl", name="a.jsonl", num_bytes=size, kind="jsonl", compression="")
        numbers.append(len(cut([item], "file", task_bytes_of([item]))))
    assert numbers[0] == 1
    assert 8 <= numbers[1] <= 16
    assert 32 <= numbers[2] <= 256
    assert numbers[3] == (1 << 40) // (64 << 20)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_document_stops_the_run_and_a_rerun_after_mending_needs_restart(tmp_path: Path, workers: int) -> None:
    write(tmp_path, a_jsonl=b'{"text": "a"}\n' * 10 + b'{"text": 1}\n')
    with pytest.raises(ValueError, match=r"^a\.jsonl: line 11 \(byte 140\)"):
        prepare(options(tmp_path, workers=workers))
    write(tmp_path, a_jsonl=b'{"text": "a"}\n' * 11)
    with pytest.raises(FileExistsError, match="with other inputs"):
        prepare(options(tmp_path))
    prepare(options(tmp_path, restart=True))
    assert texts_of(tmp_path / "out") == ["a"] * 11


def crash_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, asked: Options) -> None:
    """Run, ending at the first call of a function."""

    def crash(*arguments: Any, **named: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(place, name, crash)
        with pytest.raises(Crash):
            prepare(asked)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"documents": "file"}, "documents"),
        ({"tokens_per_shard": 77}, "tokens_per_shard"),
        ({"tokenizer": Settings(kind="byte")}, "tokenizer"),
        ({"validation": "0.5"}, "validation"),
        ({"origin": False, "on_bad": "skip"}, "on_bad, origin"),
    ],
)
def test_leftovers_of_other_settings_are_refused_naming_them_until_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], named: str
) -> None:
    write(tmp_path, a_txt=SONG)
    crash_at(monkeypatch, module, "publish", options(tmp_path))
    with pytest.raises(FileExistsError, match=rf"an earlier run was stopped there, with other {named}: .*--restart"):
        prepare(options(tmp_path, **changes))
    prepare(options(tmp_path, **changes, restart=True))
    prepare(options(tmp_path, **changes, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


def test_restart_discards_leftovers_of_the_same_settings_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_txt=SONG)
    crash_at(monkeypatch, module, "publish", options(tmp_path))
    result = tmp_path / "out" / ".partial" / "pieces" / "000000.json"
    result.write_bytes(b"nothing that a rerun could read")
    prepare(options(tmp_path, restart=True))
    prepare(options(tmp_path, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


@pytest.mark.parametrize("change", ["content", "time", "another file"])
def test_leftovers_of_other_inputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    write(tmp_path, a_txt=SONG)
    crash_at(monkeypatch, module, "publish", options(tmp_path))
    if change == "content":
        write(tmp_path, a_txt=SONG + b"x")
    elif change == "time":
        os.utime(tmp_path / "in" / "a.txt", ns=(0, 12345))
    else:
        write(tmp_path, b_txt=b"x")
    with pytest.raises(FileExistsError, match="with other inputs: run it again as it was"):
        prepare(options(tmp_path))


def test_leftovers_of_another_tokenizer_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("tokenizers")
    path = tmp_path / "t.json"
    library.Tokenizer(library.models.WordLevel({"a": 0}, unk_token="a")).save(str(path))
    write(tmp_path, a_txt=SONG)
    asked = options(tmp_path, tokenizer=Settings(kind="tokenizer.json", path=str(path)))
    crash_at(monkeypatch, module, "publish", asked)
    library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(path))
    with pytest.raises(FileExistsError, match="with other tokenizer definition"):
        prepare(asked)


def test_a_tokenizer_file_that_changed_between_two_calls_is_read_again(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    path = tmp_path / "t.json"
    write(tmp_path, a_txt=b"b")
    for number, vocabulary in enumerate(({"a": 0, "b": 1}, {"a": 0, "c": 1, "b": 2})):
        library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="a")).save(str(path))
        destination = tmp_path / f"out-{number}"
        prepare(options(tmp_path, destination=destination, tokenizer=Settings(kind="tokenizer.json", path=str(path))))
        assert nc.open_corpus(destination).document(0).tolist() == [vocabulary["b"]]


def published_in_part(monkeypatch: pytest.MonkeyPatch, asked: Options) -> None:
    """Run, ending when the shards have their places and the manifest has not."""
    from neutral_core.format import publish

    crash_at(monkeypatch, publish, "fsync_folder", asked)


@pytest.mark.parametrize("validation", [None, "0.5"])
def test_restart_discards_what_had_been_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: str | None
) -> None:
    write(tmp_path, a_txt=SONG)
    published_in_part(monkeypatch, options(tmp_path, tokens_per_shard=50, validation=validation))
    assert len(list((tmp_path / "out").rglob("shard-*"))) > 5
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(tmp_path / "out" / ("train" if validation else ""))
    prepare(options(tmp_path, restart=True))
    prepare(options(tmp_path, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


@pytest.mark.parametrize("validation", [None, "0.5"])
def test_a_run_that_ended_inside_its_publication_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: str | None
) -> None:
    write(tmp_path, a_txt=SONG)
    asked = options(tmp_path, tokens_per_shard=50, validation=validation)
    published_in_part(monkeypatch, asked)
    prepare(asked)
    prepare(replace(asked, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


@pytest.mark.parametrize("validation", [None, "0.5"])
def test_a_run_that_ended_before_its_last_clean_up_only_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: str | None
) -> None:
    write(tmp_path, a_txt=SONG)
    asked = options(tmp_path, validation=validation)
    crash_at(monkeypatch, tasks, "finish", asked)
    manifests = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("dataset.json")}
    with monkeypatch.context() as patch:
        patch.setattr(local, "run", None)  # nothing is left to do
        report = prepare(asked)
    assert {path: path.stat().st_mtime_ns for path in manifests} == manifests
    assert sum(entry["documents"] for entry in report["corpora"]) == 40
    prepare(replace(asked, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


def test_what_a_split_run_left_beside_its_manifest_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_txt=SONG)
    asked = options(tmp_path, validation="0.5")
    crash_at(monkeypatch, tasks, "finish", asked)
    for split in ("train", "validation"):
        (tmp_path / "out" / split / ".partial").mkdir()
        (tmp_path / "out" / split / ".partial" / ".dataset.json.1-ab.tmp").write_bytes(b"{")
    prepare(asked)
    prepare(replace(asked, destination=tmp_path / "fresh"))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "fresh")


@pytest.mark.parametrize("validation", [None, "0.5"])
def test_a_finished_destination_is_refused(tmp_path: Path, validation: str | None) -> None:
    write(tmp_path, a_txt=SONG)
    prepare(options(tmp_path, validation=validation))
    before = tree_of(tmp_path / "out")
    for restart in (False, True):
        with pytest.raises(FileExistsError, match="choose another"):
            prepare(options(tmp_path, validation=validation, restart=restart))
    assert tree_of(tmp_path / "out") == before


@pytest.mark.parametrize("validation", [None, "0.5"])
def test_a_finished_destination_whose_record_is_gone_is_refused_too(tmp_path: Path, validation: str | None) -> None:
    write(tmp_path, a_txt=SONG)
    prepare(options(tmp_path, validation=validation))
    before = tree_of(tmp_path / "out")
    (tmp_path / "out" / ".partial").mkdir()  # ended between the record and the folder
    with pytest.raises(FileExistsError, match="choose another"):
        prepare(options(tmp_path, validation=validation))
    assert tree_of(tmp_path / "out") == before


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="the folder is not empty"):
        prepare(options(tmp_path, restart=True))
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_a_destination_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    with Workplace(tmp_path / "out"), pytest.raises(BlockingIOError, match="another process is writing there now"):
        prepare(options(tmp_path))


def test_a_wrong_tokenizer_leaves_no_destination(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    with pytest.raises(FileNotFoundError, match=r"no\.json"):
        prepare(options(tmp_path, tokenizer=Settings(kind="tokenizer.json", path=str(tmp_path / "no.json"))))
    assert not (tmp_path / "out").exists()


def test_an_unknown_rule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of file, line, blank-line"):
        prepare(options(tmp_path, documents="page"))


def test_the_report_is_plain_data(tmp_path: Path) -> None:
    write(tmp_path, a_txt=SONG)
    report = prepare(options(tmp_path))
    assert json.loads(json.dumps(report)) == report
    assert report["corpora"][0]["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_a_corpus_that_was_moved_still_decodes(tmp_path: Path) -> None:
    write(tmp_path, a_txt="áé\nж\n".encode())
    prepare(options(tmp_path, tokenizer=Settings(kind="char", append_eos=True)))
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "in")
    assert texts_of(tmp_path / "elsewhere") == ["áé", "ж"]
