"""``prepare`` of documents that are ids already: stored as they are, with EOS where it is asked for, and nothing that the vocabulary does not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep import cli, prepare
from prep.dry_run import dry_run
from prep.engines.ranks import Rank
from prep.pieces import Options
from prep.tokenizers import Settings

LISTS = [[(n * k * k) % 300 for k in range(n % 50)] for n in range(400)]


def lines(lists: list[list[int]]) -> str:
    return "".join(json.dumps({"ids": ids}) + "\n" for ids in lists)


def options(folder: Path, settings: Settings | None = None, **changes: Any) -> Options:
    standard: dict[str, Any] = {"inputs": (str(folder / "in"),), "destination": folder / "out", "ids_key": "ids"}
    return Options(tokenizer=settings or Settings(kind="ids", vocab_size=300), **(standard | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(lines(LISTS))
    return tmp_path


def documents(path: Path) -> list[list[int]]:
    corpus = nc.open_corpus(path)
    corpus.verify()
    return [corpus.document(number).tolist() for number in range(corpus.num_documents)]


def test_a_corpus_of_ids_holds_them_and_no_tokenizer(folder: Path) -> None:
    report = prepare.prepare(options(folder))
    corpus = nc.open_corpus(folder / "out")
    assert documents(folder / "out") == LISTS
    assert (corpus.tokenizer, corpus.vocab_size, corpus.dtype) == (None, 300, np.dtype(np.uint16))
    assert report["corpora"][0]["tokens"] == sum(map(len, LISTS))
    assert report["why_dtype"] == "300 ids: uint16"
    assert "unigram_bits_per_byte" not in report["corpora"][0]
    assert prepare.lines_of(report)
    assert prepare.page_of(report)


@pytest.mark.parametrize(("eos", "bos"), [(0, None), (None, 8), (0, 8)])
def test_edges_are_put_around_each_document_and_those_that_had_eos_are_counted(
    folder: Path, eos: int | None, bos: int | None
) -> None:
    settings = Settings(
        kind="ids", vocab_size=300, append_eos=eos is not None, prepend_bos=bos is not None, eos_id=eos, bos_id=bos
    )
    report = prepare.prepare(options(folder, settings))
    edge = lambda id: [] if id is None else [id]  # noqa: E731
    assert documents(folder / "out") == [edge(bos) + ids + edge(eos) for ids in LISTS]
    ended = sum(ids[-1:] == [0] for ids in LISTS)
    assert ended
    said = f"{ended:,} documents ended with EOS before --append-eos put another one behind them"
    assert any(said in note for note in report["notes"]) == (eos is not None)


def test_a_tokenizer_that_is_named_is_recorded_and_encodes_nothing(folder: Path) -> None:
    texts = ["one", "", "zwei, drei"]
    (folder / "in" / "a.jsonl").write_text(lines([list(text.encode()) for text in texts]))
    prepare.prepare(options(folder, Settings(kind="byte", append_eos=True)))
    (folder / "text").mkdir()
    (folder / "text" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare.prepare(
        options(
            folder,
            Settings(kind="byte", append_eos=True),
            inputs=(str(folder / "text"),),
            destination=folder / "same",
            ids_key=None,
        )
    )
    assert documents(folder / "out") == documents(folder / "same")
    assert nc.open_corpus(folder / "out").tokenizer == nc.open_corpus(folder / "same").tokenizer


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
@pytest.mark.parametrize(("wrong", "shown"), [(300, "300"), (-1, "-1"), (1 << 33, "8,589,934,592")])
def test_an_id_outside_of_the_vocabulary_is_an_error_by_document_and_position_whatever_the_policy(
    tmp_path: Path, name: str, wrong: int, shown: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = [[1, 2], [3], [4, 5, wrong, 6]]
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / name
    content = pa.table({"ids": lists})
    if name == "a.jsonl":
        path.write_text(lines(lists))
    elif name == "a.parquet":
        parquet.write_table(content, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
            writer.write_table(content)
    place = r"line 3 \(byte 29\)" if name == "a.jsonl" else "row 3"
    with pytest.raises(
        ValueError,
        match=rf"{name}: {place}: position 2 of the document: the id {shown} is outside of the vocabulary of 300 ids",
    ):
        prepare.prepare(options(tmp_path, on_bad="skip"))
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_the_bytes_depend_on_neither_workers_nor_ranks_nor_kind_of_file(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    prepare.prepare(options(folder, task_bytes=1000, origin=False))
    prepare.prepare(options(folder, task_bytes=1000, origin=False, workers=2, destination=folder / "two"))
    for rank in range(3):
        prepare.prepare(
            options(
                folder,
                task_bytes=1000,
                origin=False,
                destination=folder / "ranks",
                rank=Rank(rank=rank, world_size=3),
                workers=1,
            )
        )
    (folder / "arrow").mkdir()
    content = pa.table({"ids": pa.array(LISTS, type=pa.list_(pa.int16()))})
    with pa.OSFile(str(folder / "arrow" / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=50)
    prepare.prepare(
        options(folder, inputs=(str(folder / "arrow"),), destination=folder / "rows", origin=False, task_bytes=1000)
    )
    found = nc.open_corpus(folder / "out").fingerprint
    assert nc.open_corpus(folder / "two").fingerprint == nc.open_corpus(folder / "ranks").fingerprint == found
    assert documents(folder / "rows") == LISTS


def test_equal_documents_are_on_one_side_of_a_split_whatever_file_they_come_from(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    content = pa.table({"ids": pa.array(LISTS, type=pa.list_(pa.uint16()))})
    with pa.OSFile(str(folder / "in" / "b.arrow"), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as writer:
        writer.write_table(content)
    prepare.prepare(options(folder, validation="0.3"))
    sides = [documents(folder / "out" / split) for split in ("train", "validation")]
    assert sum(map(len, sides)) == 800
    assert all(side[: len(side) // 2] == side[len(side) // 2 :] for side in sides)
    assert not {tuple(ids) for ids in sides[0]} & {tuple(ids) for ids in sides[1]}


def test_the_estimate_of_a_dry_run_is_exact_for_a_small_input(folder: Path) -> None:
    found = dry_run(options(folder, Settings(kind="ids", vocab_size=300, append_eos=True, eos_id=0)))
    assert (found["documents"], found["tokens"]) == (400, sum(map(len, LISTS)) + 400)
    assert (found["bytes_per_token"], found["why_dtype"]) == (None, "300 ids: uint16")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab-size", "9"], "--vocab-size is for documents that are ids already: say with --ids-key"),
        (["--ids-key", "ids", "--tokenizer", "char"], "char makes its vocabulary of texts"),
        (["--ids-key", "ids", "--tokenizer", "byte", "--vocab-size", "9"], "leave them or --tokenizer out"),
        (["--ids-key", "ids", "--tokenizer", "byte", "--eos-id", "9"], "leave them or --tokenizer out"),
        (["--ids-key", "ids", "--vocab-size", "9", "--append-eos"], "--append-eos without a tokenizer: say which id it is with --eos-id"),
        (["--ids-key", "ids", "--vocab-size", "9", "--prepend-bos"], "say which id it is with --bos-id"),
        (["--ids-key", "ids", "--vocab-size", "9", "--eos-id", "1"], "--eos-id is 1, but --append-eos is not asked for"),
        (["--ids-key", "ids", "--vocab-size", "9", "--eos-id", "9", "--append-eos"], "expected an id below vocab_size 9"),
        (["--ids-key", "ids", "--vocab-size", "9", "--eos-token", "x"], "say the ids with --eos-id and --bos-id"),
        (["--ids-key", "no", "--vocab-size", "300"], "there is no key 'no': its keys are ids; name the right one with --ids-key"),
    ],
)  # fmt: skip
def test_flags_that_do_not_fit_together_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert cli.main(["prepare", str(folder / "in"), str(folder / "out"), *flags]) == 1
    assert message in capsys.readouterr().err


def test_without_tokenizer_and_vocabulary_the_command_line_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["prepare", str(folder / "in"), str(folder / "out"), "--ids-key", "ids"])
    assert "the following arguments are required: --tokenizer" in capsys.readouterr().err


def test_the_command_says_what_was_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ids-key", "ids", "--vocab-size", "300", "--append-eos", "--eos-id", "7"]
    assert cli.main(["prepare", str(folder / "in"), str(folder / "out"), *flags]) == 0
    out = capsys.readouterr().out
    assert "400 documents" in out
    assert "tokens are stored as 300 ids: uint16" in out
    assert cli.main(["inspect", str(folder / "out")]) == 0
