"""Converting rows as a whole: the same bytes for any workers and after any crash, verified against the source read again, by magic and never by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import DOCUMENTS, documents, example, masks, ndarray, packed, run, tfrecord, write_mds
from test_prep_kill import KILLS, Case, kill_and_rerun

import neutral_core as nc
from neutral_core.layouts import LAYOUTS
from prep import convert as module
from prep import tasks
from prep.cli import main
from prep.convert import lines_of
from prep.foreign import pieces
from prep.foreign.layouts import FOREIGN, NAMES, foreign_layout

TELL: dict[str, Any] = {"boundaries": "index", "tokens_per_shard": 3}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five shards of MDS with ids, a mask and labels: twenty rows."""
    columns = dict.fromkeys(("attention_mask", "input_ids", "labels"), ("ndarray:int32", None))
    rows = []
    for n in range(20):
        ids = [n + 1] * (n % 4 + 1)
        values = {"input_ids": [*ids, 0], "attention_mask": [1] * len(ids) + [0], "labels": [*ids[:-1], -100, -100]}
        rows.append({name: ndarray(each, "<i4") for name, each in values.items()})
    return write_mds(tmp_path / "source", columns, [rows[at : at + 4] for at in range(0, 20, 4)])


EXPECTED = [[n + 1] * (n % 4 + 1) for n in range(20)]


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("rule", "workers"), [("index", 3), ("eos:4", 2)])
def test_the_bytes_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, source: Path, rule: str, workers: int
) -> None:
    for number in (1, workers):
        run(source, tmp_path / f"out-{number}", boundaries=rule, tokens_per_shard=9, workers=number)
    assert tree(tmp_path / "out-1") == tree(tmp_path / f"out-{workers}")
    corpus = nc.open_corpus(tmp_path / "out-1")
    assert corpus.tokens(0, corpus.num_tokens).tolist() == [token for row in EXPECTED for token in row]


def test_the_bytes_do_not_depend_on_how_the_source_is_cut(tmp_path: Path) -> None:
    """What a piece is does not show: not in the shards, and not where rows are joined."""
    samples = [{"tokens": ndarray(ids, "<u2")} for ids in DOCUMENTS]
    found = []
    for name, shards in (("a", [samples]), ("b", [[sample] for sample in samples])):
        write_mds(tmp_path / name, {"tokens": ("ndarray:uint16", None)}, shards)
        run(tmp_path / name, tmp_path / f"{name}-out", boundaries="bos:3", tokens_per_shard=4)
        corpus = nc.open_corpus(tmp_path / f"{name}-out")
        found.append([(shard.num_documents, shard.num_tokens) for shard in corpus.shards])
    assert found[0] == found[1]
    assert documents(tmp_path / "a-out") == documents(tmp_path / "b-out")


class Crash(BaseException):
    """The process ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, call: int, source: Path, out: Path) -> None:
    real = getattr(place, name)
    calls = []

    def crash(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise Crash
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, crash)
        with pytest.raises(Crash):
            run(source, out, **TELL)


@pytest.mark.parametrize(
    ("place", "name", "call"),
    [
        (pieces, "documents_of", 3),  # in the middle of the pieces
        (pieces, "write_file", 2),  # between a piece and its result
        (pieces, "publish", 1),
        (pieces, "compare_documents", 4),
        (module, "publish", 1),
        (tasks, "finish", 1),
    ],
)
@pytest.mark.parametrize("rule", ["index", "eos:4"])
def test_a_run_that_ended_anywhere_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path, place: Any, name: str, call: int, rule: str
) -> None:
    monkeypatch.setitem(TELL, "boundaries", rule)
    crash_at(monkeypatch, place, name, call, source, tmp_path / "out")
    report = run(source, tmp_path / "out", **TELL)
    run(source, tmp_path / "fresh", **TELL)
    assert tree(tmp_path / "out") == tree(tmp_path / "fresh")
    assert report["verified"]


def test_finished_pieces_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    crash_at(monkeypatch, pieces, "publish", 1, source, tmp_path / "out")
    read: list[int] = []
    real = pieces.check_vocabulary

    def spy(*arguments: Any) -> int:
        read.append(1)
        return real(*arguments)

    monkeypatch.setattr(pieces, "check_vocabulary", spy)
    run(source, tmp_path / "out", **TELL)
    assert read == []
    assert documents(tmp_path / "out") == EXPECTED


def test_a_run_with_other_options_does_not_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    crash_at(monkeypatch, pieces, "publish", 1, source, tmp_path / "out")
    for changes in ({"ignore": ("labels",)}, {"boundaries": "fixed:3"}, {"vocab_size": 99}):
        with pytest.raises(FileExistsError, match=r"with other (source|vocab_size): .*--restart"):
            run(source, tmp_path / "out", **{**TELL, **changes})
    run(source, tmp_path / "out", restart=True, **{**TELL, "ignore": ("labels",)})
    assert documents(tmp_path / "out") == EXPECTED
    assert nc.open_corpus(tmp_path / "out").fields == {}


@pytest.mark.parametrize("what", ["tokens", "lengths", "fields", "fewer", "more"])
def test_what_differs_from_the_source_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path, what: str
) -> None:
    """The pieces were made of something else than what the source holds when it is read again."""
    crash_at(monkeypatch, pieces, "compare_documents", 1, source, tmp_path / "out")
    real = pieces.documents_of

    def other(rows: Any, choice: Any) -> Any:
        found = real(rows, choice)
        if rows.first or "00003" not in rows.where:
            return found
        if what == "tokens":
            return found._replace(tokens=found.tokens + 1)
        if what == "lengths":
            return found._replace(lengths=found.lengths[::-1])
        if what == "fields":
            return found._replace(fields={name: ~values for name, values in found.fields.items()})
        cut = int(found.lengths[0])
        if what == "fewer":
            fields = {name: values[cut:] for name, values in found.fields.items()}
            return found._replace(tokens=found.tokens[cut:], lengths=found.lengths[1:], fields=fields)
        fields = {name: np.concatenate([values, values]) for name, values in found.fields.items()}
        twice = np.concatenate([found.tokens, found.tokens]), np.concatenate([found.lengths, found.lengths])
        return found._replace(tokens=twice[0], lengths=twice[1], fields=fields)

    monkeypatch.setattr(pieces, "documents_of", other)
    with pytest.raises(nc.FormatError, match=r"differs? from the source|begin elsewhere|were read, but"):
        run(source, tmp_path / "out", **TELL)
    with pytest.raises(FileNotFoundError, match="not finished"):
        nc.open_corpus(tmp_path / "out")
    report = run(source, tmp_path / "out", verify=False, **TELL)
    assert not report["verified"]


@pytest.mark.parametrize("rule", ["index", "eos:4"])
def test_a_shard_that_was_damaged_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path, rule: str
) -> None:
    monkeypatch.setitem(TELL, "boundaries", rule)
    crash_at(monkeypatch, module, "publish", 1, source, tmp_path / "out")
    shard = tmp_path / "out" / ".partial" / "shards" / "shard-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[4096] ^= 1
    shard.write_bytes(data)
    with pytest.raises(nc.FormatError, match=r"shard-00002\.safetensors: .*checksum"):
        run(source, tmp_path / "out", **TELL)


def test_documents_that_are_not_where_the_rule_puts_them_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    asked: dict[str, Any] = {"boundaries": "eos:4", "tokens_per_shard": 100}
    real = pieces.cut_stream
    calls: list[int] = []

    def other(corpus: nc.Corpus, rule: Any, path: Path) -> Any:
        calls.append(1)
        return real(corpus, rule if len(calls) == 1 else rule.of("eos:8"), path)

    monkeypatch.setattr(pieces, "cut_stream", other)
    with pytest.raises(nc.FormatError, match="are not where the rule eos:4 puts them"):
        run(source, tmp_path / "out", **asked)
    assert len(calls) == 2


@pytest.mark.parametrize("rule", ["index", "eos:4"])
def test_a_run_that_ended_before_its_last_clean_up_is_verified_by_the_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path, rule: str
) -> None:
    monkeypatch.setitem(TELL, "boundaries", rule)
    crash_at(monkeypatch, tasks, "finish", 1, source, tmp_path / "out")
    compared: list[int] = []
    real = pieces.compare_documents

    def spy(part: Any, copy: Any, name: str, first: Any, token: int) -> None:
        compared.append(token)
        real(part, copy, name, first, token)

    monkeypatch.setattr(pieces, "compare_documents", spy)
    run(source, tmp_path / "out", **TELL)
    assert compared == [0, 10, 20, 30, 40]


def test_a_source_that_is_changed_while_it_is_converted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    start = tasks.start

    def meddled(*arguments: Any, **named: Any) -> Any:
        path = source / "shard.00004.mds"
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")  # of a column that is not read
        return start(*arguments, **named)

    monkeypatch.setattr(tasks, "start", meddled)
    with pytest.raises(nc.FormatError, match=r"source: it was changed while it was being converted: .*--restart"):
        run(source, tmp_path / "out", ignore=("labels",), **TELL)


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(tfrecord([example(ids=packed([1, 2]))]))
    crash_at(monkeypatch, module, "publish", 1, path, tmp_path / "out")
    path.write_bytes(tfrecord([example(ids=packed([1, 3]))]))
    with pytest.raises(FileExistsError, match="with other source"):
        run(path, tmp_path / "out", **TELL)


def test_the_report_says_what_was_read_dropped_and_masked(tmp_path: Path, source: Path) -> None:
    report = run(source, tmp_path / "out", vocab_size=21, **TELL)
    lines = lines_of(report)
    for line in (
        "20 ids of padding were dropped from 20 rows.",
        "30 of 50 ids are trained on.",
        "tokens are stored as 21 ids: uint8",
        "verified: checksums, and every document and token against the source",
    ):
        assert line in lines
    assert masks(tmp_path / "out")[:3] == [[False], [True, False], [True, True, False]]
    assert nc.open_corpus(tmp_path / "out").fields == {"token.loss_mask": nc.Field(dtype="bool")}


def test_the_command_takes_layout_column_boundaries_and_dtype(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "convert",
        str(source),
        str(tmp_path / "out"),
        "--layout",
        "mds",
        "--column",
        "input_ids",
        "--workers",
        "1",
    ]
    assert main(asked) == 1
    assert "give --boundaries index (each row is a document)" in capsys.readouterr().err
    assert main([*asked, "--boundaries", "index", "--ignore", "labels", "--ignore", "attention_mask", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["tokens"]) == (20, 70)
    assert documents(tmp_path / "out") == [[*row, 0] for row in EXPECTED]


def test_a_reference_takes_no_columns(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(source), str(tmp_path / "a.json"), "--reference", "--ignore", "labels"]) == 1
    assert "--reference copies nothing and reads no columns" in capsys.readouterr().err


def test_what_is_read_in_place_is_left_to_the_core(tmp_path: Path) -> None:
    np.array([1, 2, 3], dtype="<u2").tofile(tmp_path / "bare.bin")
    with nc.CorpusWriter(tmp_path / "ours", vocab_size=10) as writer:
        writer.add([1, 2])
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    names = ("bare.bin", "ours", "ours/shard-00000.safetensors", "empty", "folder", "nothing")
    assert [foreign_layout(tmp_path / name, None) for name in names] == [None] * len(names)
    assert not set(NAMES) & set(LAYOUTS) - {"litdata"}


def test_a_layout_that_is_insisted_on_is_taken_at_its_word(tmp_path: Path) -> None:
    np.array([1, 2, 3], dtype="<u2").tofile(tmp_path / "a")
    for layout in FOREIGN:
        if layout.name != "litdata":
            with pytest.raises((nc.FormatError, FileNotFoundError)):
                run(tmp_path / "a", tmp_path / "out", layout=layout.name, boundaries="index")


def test_bare_tokens_that_happen_to_begin_like_a_record_are_read_where_it_is_insisted_on(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(tfrecord([example(ids=packed([1]))])[:24])
    run(path, tmp_path / "out", layout="headerless", dtype="uint16", boundaries="none")
    assert nc.open_corpus(tmp_path / "out").num_tokens == 12


def test_numpy_alone_is_needed_for_rows_that_are_not_compressed() -> None:
    script = (
        "import sys, prep.foreign.layouts, prep.foreign.pieces\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'pyarrow', 'zstandard', 'tensorstore', 'array_record'}))"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CONVERT = """
import sys
from prep.cli import main
if __name__ == "__main__":
    sys.exit(main(["convert", "--boundaries", "eos:7", "--tokens-per-shard", "20000", "--workers", "2", *sys.argv[1:]]))
"""


@pytest.mark.slow
def test_a_killed_conversion_of_rows_run_again_gives_the_bytes_of_an_undisturbed_run(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 400, (2000, 250)).astype("<u2")
    samples = [{"tokens": row.tobytes()} for row in rows]
    columns = {"tokens": ("ndarray:uint16:250", 500)}
    write_mds(tmp_path / "source", columns, [samples[at : at + 50] for at in range(0, 2000, 50)])
    script = tmp_path / "run_convert.py"
    script.write_text(CONVERT)
    case = Case(script, tmp_path / "source", rows.reshape(-1))
    case.undisturbed(tmp_path / "undisturbed")
    print("\nrows:", kill_and_rerun(case, tmp_path, max(KILLS, 10)))
