"""The configuration file: it says what the flags say, and Fast-LLM's first format runs as it stands."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import neutral_core as nc
from prep import config
from prep.cli import main
from prep.commands import prepare as command

yaml = pytest.importorskip("yaml")

SEED = """\
output_path: {tmp}/out

loading_workers: 1
tokenize_workers: 2
saving_workers: 1

dataset:
  name_or_path: {tmp}/in

tokenizer:
  path: {tmp}/gpt/tokenizer.json
"""
# A value for each flag that is no switch. Of each the file's options must equal those of the flags.
VALUES = {
    "inputs": ["in", "more"], "destination": "out", "tokenizer": "char", "eos_token": "</s>", "bos_token": "<s>",
    "tokenizer_engine": "tokenizers", "documents": "line", "text_key": "body", "glob": "*.md", "on_bad": "skip", "validation": "0.25",
    "hub_config": "en", "hub_split": "test", "hub_revision": "v1", "ids_key": "ids", "limit": "9", "vocab_size": "300", "eos_id": "7", "bos_id": "8",
    "engine": "ray", "rank": "1/3", "workers": "3", "tokens_per_shard": "1000", "report": "page.html",
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(exit_on_error=False)
    command.add(found)
    return found


def options_of(*arguments: str) -> tuple[Any, dict[str, Any]]:
    asking = parser()
    options, said = command.asked(asking, asking.parse_args(arguments))
    return options, {name: said.get(name) for name in ("json", "dry_run", "report")}


def file_of(tmp_path: Path, content: Any, name: str = "foo.yaml") -> str:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("action", command.keys(parser()), ids=lambda action: action.dest)
def test_each_flag_can_be_said_in_the_file_and_means_the_same(tmp_path: Path, action: argparse.Action) -> None:
    content: dict[str, Any] = {"inputs": ["a"], "destination": "b", "tokenizer": "byte"}
    flags = {"tokenizer": ["--tokenizer", "byte"]}
    places = ["a", "b"]
    if action.dest == "inputs":
        content["inputs"], places = VALUES["inputs"], [*VALUES["inputs"], "b"]
    elif action.dest == "destination":
        content["destination"], places[1] = VALUES["destination"], str(VALUES["destination"])
    elif isinstance(action, argparse.BooleanOptionalAction):
        value = action.dest != "origin"  # its default is true
        content[action.dest] = value
        flags[action.dest] = [action.option_strings[0 if value else 1]]
    elif action.nargs == 0:
        content[action.dest], flags[action.dest] = True, [action.option_strings[0]]
    else:
        content[action.dest], flags[action.dest] = (
            VALUES[action.dest],
            [action.option_strings[0], str(VALUES[action.dest])],
        )
    by_flags = options_of(*places, *(word for words in flags.values() for word in words))
    for name, text in (("foo.yaml", yaml.safe_dump(content)), ("foo.json", json.dumps(content))):
        by_file = options_of("--config", file_of(tmp_path, text, name))
        assert by_file == by_flags
    if action.dest != "tokenizer" or VALUES["tokenizer"] != "byte":
        assert by_flags != options_of("a", "b", "--tokenizer", "byte")  # so the flag does something


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = file_of(tmp_path, {"inputs": "a", "destination": "b", "tokenizer": "byte", "append_eos": True, "workers": 3})
    options, _ = options_of("c", "d", "--config", path, "--no-append-eos", "--workers", "5")
    assert (options.inputs, str(options.destination), options.tokenizer.append_eos, options.workers) == (
        ("c",),
        "d",
        False,
        5,
    )


@pytest.mark.parametrize("key", [*config.SAME, *config.WITHOUT_EFFECT, *config.REFUSED])
def test_each_of_fast_llms_keys_is_taken_or_refused_with_what_to_say_instead(tmp_path: Path, key: str) -> None:
    words = {"workers": 2, "append_eos": True, "prepend_bos": True, "inputs": "x", "destination": "x"}
    value = words.get(config.SAME.get(key, ""), "x")
    if key in config.REFUSED:
        value = {"some": "thing"} if key == "splits" else "something"
    content: dict[str, Any] = {}
    at = content
    *sections, last = key.split(".")
    for section in sections:
        at = at.setdefault(section, {})
    at[last] = value
    path = file_of(tmp_path, content)
    if key in config.REFUSED:
        with pytest.raises(ValueError, match=rf"foo\.yaml: {key} is .*{config.REFUSED[key][:20]}"):
            config.load(path, command.keys(parser()))
    else:
        found = config.load(path, command.keys(parser()))
        assert list(found) == ([config.SAME[key]] if key in config.SAME else [])


def test_the_workers_of_fast_llms_stages_are_the_most_of_them(tmp_path: Path) -> None:
    path = file_of(tmp_path, SEED.format(tmp=tmp_path))
    assert config.load(path, command.keys(parser()))["workers"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("output_pth: x", r"no key 'output_pth'; did you mean output_path\?"),
        ("tokenizer: {pth: x}", r"no key 'tokenizer.pth'; did you mean tokenizer.path\?"),
        ("dataset: {name_or_pat: x}", r"did you mean dataset.name_or_path\?"),
        ("append_eso: true", r"did you mean append_eos\?"),
        ("append_eos: 1", "append_eos is 1, expected true or false"),
        ("documents: lines", "documents is 'lines', expected one of file, line, blank-line"),
        ("workers: 0", "workers: '0' is no positive whole number"),
        ("tokenizer: [a]", r"tokenizer is \['a'\], expected one value"),
        ("inputs: []", r"inputs is \[\], expected a path or a list"),
        ("output_path: a\ndestination: b", "output_path and destination say the same thing"),
        ("a: [", "it is no YAML or JSON"),
        ("- a", "it is list, expected keys and values"),
        ("distributed: {rank: 3, world_size: 2}", "distributed: '3/2' is no rank"),
        ("dataset: {trust_remote_code: true}", "no code of a dataset is ever run"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        config.load(file_of(tmp_path, content), command.keys(parser()))
    assert main(["prepare", "--config", file_of(tmp_path, content)]) == 1
    assert capsys.readouterr().err.startswith(f"millstream prepare: {tmp_path}/foo.yaml: ")


def test_a_file_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "--config", str(tmp_path / "no.yaml")]) == 1
    assert capsys.readouterr().err == f"millstream prepare: {tmp_path}/no.yaml: No such file or directory.\n"


def test_fast_llms_ranks_are_ours(tmp_path: Path) -> None:
    path = file_of(tmp_path, "distributed: {rank: 1, world_size: 4, backend: gloo, timeout: 60}")
    assert config.load(path, command.keys(parser())) == {"rank": (1, 4)}


@pytest.fixture
def gpt(tmp_path: Path) -> Callable[..., Path]:
    """A tokenizer of words, with or without a token that is EOS."""
    library = pytest.importorskip("tokenizers")

    def make(*added: str) -> Path:
        words = library.Tokenizer(library.models.WordLevel({"one": 0, "two": 1, "?": 2}, unk_token="?"))
        words.pre_tokenizer = library.pre_tokenizers.Whitespace()
        words.add_special_tokens(list(added))
        path = tmp_path / "gpt" / "tokenizer.json"
        path.parent.mkdir()
        words.save(str(path))
        return path

    return make


@pytest.mark.parametrize("names_eos", [True, False])
def test_the_seed_file_runs_as_it_stands_and_says_what_became_of_eos(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpt: Callable[..., Path], names_eos: bool
) -> None:
    gpt(*["<|endoftext|>"] * names_eos)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "one two"}\n{"text": "two"}\n')
    path = file_of(tmp_path, SEED.format(tmp=tmp_path))
    assert main(["prepare", "--config", path]) == 0
    corpus = nc.open_corpus(tmp_path / "out")
    documents = [corpus.document(number).tolist() for number in range(2)]
    assert documents == ([[0, 1, 3], [1, 3]] if names_eos else [[0, 1], [1]])
    said = "EOS is behind each document" if names_eos else "the tokenizer names no EOS, and none was appended"
    assert f"{path} does not say append_eos: {said}." in capsys.readouterr().out.splitlines()


def test_a_file_that_says_no_eos_gets_none(tmp_path: Path, gpt: Callable[..., Path]) -> None:
    gpt("<|endoftext|>")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one")
    assert main(["prepare", "--config", file_of(tmp_path, SEED.format(tmp=tmp_path) + "add_eos: false\n")]) == 0
    assert nc.open_corpus(tmp_path / "out").document(0).tolist() == [0]
