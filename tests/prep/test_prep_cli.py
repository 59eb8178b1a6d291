"""The command: exit codes, one sentence for what went wrong, plain data where it is asked for."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc
import prep.prepare
from prep.cli import main

ROOT = Path(__file__).parents[2]


def run(*arguments: object) -> int:
    """Run the command in this process; return its exit status."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error; there is nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    return err


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n\nthree\n")
    return path


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    path = tmp_path / "old.bin"
    np.array([1, 2, 9, 3, 9], dtype="<u2").tofile(path)
    return path


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("millstream ")


@pytest.mark.parametrize("command", [[], ["prepare"], ["convert"], ["inspect"], ["verify"]])
def test_help_is_printed(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(*command, "--help") == 0
    assert "usage: millstream" in capsys.readouterr().out


def test_text_becomes_a_corpus_and_the_report_says_what_was_written(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("prepare", text, tmp_path / "out", "--tokenizer", "byte", "--append-eos", "--documents", "line") == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'out'}: 3 documents, 14 tokens, 1 shards" in out
    assert "tokens are stored as 257 ids (256 bytes, EOS): uint16" in out
    assert "5.549 from a uniform guess" in out  # ln 257
    assert "1 empty lines passed over" in out
    assert [len(nc.open_corpus(tmp_path / "out").document(index)) for index in range(3)] == [4, 4, 6]


def test_several_inputs_go_before_the_destination(tmp_path: Path, text: Path) -> None:
    assert run("prepare", text, text, tmp_path / "out", "--tokenizer", "byte") == 0
    assert nc.open_corpus(tmp_path / "out").num_documents == 2


def test_a_validation_share_makes_two_corpora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(200)))
    arguments = ("--tokenizer", "char", "--documents", "line", "--validation", "0.3", "--json")
    assert run("prepare", tmp_path / "a.txt", tmp_path / "out", *arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["split"] for entry in report["corpora"]] == ["train", "validation"]
    assert sum(entry["documents"] for entry in report["corpora"]) == 200
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "validation"]


def test_an_old_binary_becomes_a_corpus(tmp_path: Path, bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--dtype", "uint16", "--boundaries", "eos:9", "--vocab-size", 10)
    assert run("convert", bare, tmp_path / "out", *asked, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["tokens"], report["verified"]) == (2, 5, True)
    assert nc.open_corpus(tmp_path / "out").document(1).tolist() == [3, 9]


def test_inspect_shows_documents_with_their_file_and_line(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("prepare", text, tmp_path / "out", "--tokenizer", "char", "--documents", "line")
    capsys.readouterr()
    assert run("inspect", tmp_path / "out", "--documents", 3) == 0
    out = capsys.readouterr().out
    assert "document 2 from a.txt:4: 5 tokens: 'three'" in out
    assert "tokens per document: shortest 3, 25% 3, median 3, 75% 4, 95% 4, longest 5" in out


def test_inspect_gives_plain_data(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("prepare", text, tmp_path / "out", "--tokenizer", "byte", "--documents", "line")
    capsys.readouterr()
    assert run("inspect", tmp_path / "out", "--documents", 1, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["tokens"], report["dtype"], report["largest_id"]) == (3, 11, "uint8", ord("w"))
    (shown,) = report["first_documents"]
    pieces = shown.pop("pieces")
    assert shown == {"document": 0, "tokens": 3, "ids": [111, 110, 101], "path": "a.txt", "line": 1, "text": "one"}
    assert [(piece["text"], piece["ids"], piece["masked"]) for piece in pieces] == [
        ("o", [111], False),
        ("n", [110], False),
        ("e", [101], False),
    ]


def test_inspect_of_an_old_binary_counts_ids_however_large(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.array([4_000_000_000, 7, 7, 7], dtype="<u4").tofile(tmp_path / "old.bin")
    asked = ("--dtype", "uint32", "--boundaries", "none", "--json")
    assert run("inspect", tmp_path / "old.bin", *asked) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["largest_id"] == 4_000_000_000
    assert report["unigram_nats"] == pytest.approx(0.562335)  # ¼ ln 4 + ¾ ln 4/3


def test_verify_says_that_all_is_well(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("prepare", text, tmp_path / "out", "--tokenizer", "byte")
    capsys.readouterr()
    assert run("verify", tmp_path / "out") == 0
    assert "1 documents and 15 tokens in 1 shards are as they were written" in capsys.readouterr().out


def test_verify_of_an_old_binary_does_not_promise_what_nothing_shows(
    tmp_path: Path, bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", bare, "--dtype", "uint16", "--boundaries", "eos:9") == 0
    out = capsys.readouterr().out
    assert "2 documents and 5 tokens in 1 shards can be read; such files carry no checksums" in out
    assert "as they were written:" not in out


def test_inspect_without_the_tokenizers_file_shows_ids_and_says_so(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("prepare", text, tmp_path / "out", "--tokenizer", "char")
    definition = tmp_path / "out" / "tokenizer.json"
    for damage, said in ((lambda: definition.write_text("{}"), "another tokenizer"), (definition.unlink, "not beside")):
        damage()
        capsys.readouterr()
        assert run("inspect", tmp_path / "out", "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert "text" not in report["first_documents"][0]
        assert len(report["notes"]) == 1
        assert said in report["notes"][0]


def test_verify_fails_on_a_changed_byte(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("prepare", text, tmp_path / "out", "--tokenizer", "byte")
    capsys.readouterr()
    shard = tmp_path / "out" / "shard-00000.safetensors"
    data = shard.read_bytes()
    at = data.rindex(b"three")
    shard.write_bytes(data[:at] + b"T" + data[at + 1 :])
    assert run("verify", tmp_path / "out") == 1
    assert "shard-00000.safetensors" in sentence(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepare", "{tmp}/no.txt", "{tmp}/out", "--tokenizer", "byte"], "no.txt: there is no such file or folder"),
        (
            ["prepare", "{tmp}/a.txt", "{tmp}/out", "--tokenizer", "bites"],
            "bites: there is no such file; --tokenizer is byte, char",
        ),
        (
            ["prepare", "{tmp}/a.txt", "{tmp}/out", "--tokenizer", "byte", "--validation", "2"],
            "expected a share between 0 and 1",
        ),
        (["convert", "{tmp}/no", "{tmp}/out"], "there is no such folder or file"),
        (["convert", "{tmp}/a.txt", "{tmp}/out", "--tokenizer", "char"], "give --vocab-size"),
        (["convert", "{tmp}/old.bin", "{tmp}/out"], "how wide its ids are"),
        (["inspect", "{tmp}/no"], "there is no such folder or file"),
        (["verify", "{tmp}"], "there is no corpus"),
    ],
)
def test_what_fails_is_one_sentence_and_exit_1(
    tmp_path: Path, text: Path, bare: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(argument.format(tmp=tmp_path) for argument in arguments)) == 1
    line = sentence(capsys)
    assert line.startswith(f"millstream {arguments[0]}: ")
    assert said in line
    assert not (tmp_path / "out").exists()


def test_a_finished_destination_is_exit_1(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("prepare", text, tmp_path / "out", "--tokenizer", "byte")
    assert run(*asked) == 0
    capsys.readouterr()
    assert run(*asked) == 1
    assert "there is a corpus already" in sentence(capsys)


def test_a_bad_document_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"body": "a"}\n')
    assert run("prepare", tmp_path / "a.jsonl", tmp_path / "out", "--tokenizer", "byte") == 1
    assert "a.jsonl: line 1 (byte 0): there is no key 'text'" in sentence(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepar"], "did you mean prepare?"),
        (["verfy", "x"], "did you mean verify?"),
        (["inspect", "x", "--jsno"], "did you mean --json?"),
        (["prepare", "a", "b", "--tokenizer", "byte", "--append-eso"], "did you mean --append-eos?"),
        (["convert", "a", "b", "--vocab-sise=5"], "did you mean --vocab-size?"),
        (["prepare", "a", "b", "--tokenizer", "byte", "--documents", "lines"], "did you mean line?"),
        (["prepare", "a", "b", "--tokenizer", "byte", "--on-bad", "skp"], "did you mean skip?"),
        (["convert", "a", "b", "--layout", "headerles"], "did you mean headerless?"),
        (["prepare", "a", "b"], "--tokenizer"),
        (["prepare", "a", "--tokenizer", "byte"], "DST"),
        (["prepare", "a", "b", "--tokenizer", "byte", "--workers", "0"], "'0' is no positive whole number"),
        (
            ["prepare", "a", "b", "--tokenizer", "byte", "--tokens-per-shard", "1e6"],
            "'1e6' is no positive whole number",
        ),
        (["inspect", "a", "--documents", "-1"], ""),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_command_line_is_exit_2_and_names_the_nearest_known_word(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_word_like_no_known_one_gets_no_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "x", "--qqqqqqqq") == 2
    assert "did you mean" not in capsys.readouterr().err


def test_ctrl_c_is_exit_130_and_says_how_to_go_on(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prep.prepare, "_assemble", stop)
    assert run("prepare", text, tmp_path / "out", "--tokenizer", "byte") == 130
    again = shlex.join(["millstream", "prepare", str(text), str(tmp_path / "out"), "--tokenizer", "byte"])
    assert sentence(capsys) == f"millstream: stopped; run the same command again to go on from here: {again}\n"
    monkeypatch.undo()
    assert run("prepare", text, tmp_path / "out", "--tokenizer", "byte") == 0


def test_memory_that_runs_out_is_one_sentence(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhaust(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(prep.prepare, "_assemble", exhaust)
    assert run("prepare", text, tmp_path / "out", "--tokenizer", "byte") == 1
    assert sentence(capsys).endswith("the memory ran out (Unable to allocate 9 GiB): give fewer --workers.\n")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to see the workers start")
def test_ctrl_c_ends_the_workers_too_and_leaves_one_line_and_what_a_rerun_needs(tmp_path: Path) -> None:
    """The signal goes to the whole group, as from a terminal, while the workers are being started."""
    for name in "abc":
        (tmp_path / f"{name}.txt").write_bytes(name.encode() * (9 << 20))
    inputs = [str(tmp_path / f"{name}.txt") for name in "abc"]
    asked = ["--tokenizer", "byte", "--workers", "2", "--no-origin"]
    command = [
        sys.executable,
        "-c",
        "from prep.cli import run; run()",
        "prepare",
        *inputs,
        str(tmp_path / "out"),
        *asked,
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 2:  # multiprocessing's tracker and a worker
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.002)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)  # ends when the last process that holds its output has: the workers too
    assert (process.returncode, out) == (130, "")
    assert err.startswith("millstream: stopped; run the same command again to go on from here: millstream prepare ")
    assert len(err.splitlines()) == 1
    assert run("prepare", *inputs, tmp_path / "out", *asked) == 0
    assert nc.open_corpus(tmp_path / "out").num_tokens == 27 << 20


BLOCKER = """
import sys
BLOCKED = {blocked!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
OPTIONAL = (
    "tokenizers",
    "zstandard",
    "pyarrow",
    "rich",
    "yaml",
    "torch",
    "jax",
    "grain",
    "fsspec",
    "ray",
    "safetensors",
)


def run_without(folder: Path, blocked: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a process in which libraries are not installed."""
    (folder / "blocker").mkdir(exist_ok=True)
    (folder / "blocker" / "sitecustomize.py").write_text(BLOCKER.format(blocked=blocked))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "blocker"), str(ROOT)])}
    command = [sys.executable, "-c", "from prep.cli import run; run()", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_missing_library_is_one_sentence_with_the_command_that_installs_it(tmp_path: Path, text: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text('{"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    ended = run_without(tmp_path, OPTIONAL, "prepare", text, tmp_path / "out", "--tokenizer", tokenizer)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.splitlines() == [
        f"millstream prepare: the tokenizer {tokenizer} needs tokenizers: pip install 'millstream[prep]'"
    ]


def test_inspect_of_a_tokenizer_files_corpus_works_without_its_library(tmp_path: Path, text: Path) -> None:
    pytest.importorskip("tokenizers")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text('{"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}')
    assert run("prepare", text, tmp_path / "out", "--tokenizer", tokenizer) == 0
    ended = run_without(tmp_path, OPTIONAL, "inspect", tmp_path / "out")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "note: documents are shown as ids: the tokenizer" in ended.stdout
    assert "pip install 'millstream[prep]'" in ended.stdout


def test_a_report_with_characters_that_the_terminal_lacks_is_printed_all_the_same(tmp_path: Path, text: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from prep.cli import run; run()",
        "prepare",
        text,
        tmp_path / "é",
        "--tokenizer",
        "byte",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii:strict"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\\xe9: 1 documents" in ended.stdout


def test_everything_but_tokenizer_files_and_zst_works_without_any_optional_library(
    tmp_path: Path, text: Path, bare: Path
) -> None:
    asked = ("--dtype", "uint16", "--boundaries", "eos:9")
    for arguments in (
        ("convert", bare, tmp_path / "converted", *asked),
        ("prepare", text, tmp_path / "prepared", "--tokenizer", "byte"),
        ("inspect", tmp_path / "converted"),
        ("inspect", bare, *asked),
        ("verify", tmp_path / "prepared"),
    ):
        ended = run_without(tmp_path, OPTIONAL, *arguments)
        assert (ended.returncode, ended.stderr) == (0, ""), arguments
