"""Data sets by name, through the ``datasets`` library: folders in the hub's layout with the library itself, offline; names with a stand-in for it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prep.extras import MissingExtraError
from prep.readers.hub import Hub
from prep.readers.inputs import find_inputs

CONFIGS = """\
---
configs:
- config_name: en
  data_files:
  - {split: train, path: data/en-train-*}
  - {split: test, path: data/en-test.jsonl}
- config_name: de
  data_files:
  - {split: train, path: data/de.jsonl}
---
"""
# The library reads its environment when it is imported, so that it runs in a process of its own.
SCRIPT = """\
import json, os, sys
from pathlib import Path
from prep.readers.documents import Tally, read_documents
from prep.readers.hub import Hub
from prep.readers.inputs import cut, find_inputs, stamp

def read(text, **part):
    try:
        inputs = find_inputs([text], None, Hub(**part))
    except (ValueError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"
    texts = [document.text for task in cut(inputs, "file") for item in task
             for document in read_documents(item, rule="file", text_key="text", on_bad="error", tally=Tally())]
    return [[item.name for item in inputs], texts, [stamp(item) for item in inputs]]

root = Path(sys.argv[1])
one, other = str(root / "one" / "set"), str(root / "other" / "set")
found = {
    "en": read(one, config="en"), "de": read(f"hf://{one}", config="de"), "test": read(one, config="en", split="test"), "again": read(one, config="en"),
    "no config": read(f"hf://{one}"), "wrong config": read(one, config="fr"), "wrong split": read(one, config="en", split="dev"),
    "revision": read(f"hf://{one}", config="en", revision="v1"), "slice": read(one, config="en", split="train[:2]"),
    "other": read(other, config="en"), "hub": read("some/name"), "scheme": read("hf://some/name"),
}
(Path(one) / "data" / "de.jsonl").write_text(json.dumps({"text": "neu"}) + "\\n")
found["changed"] = read(one, config="de")
print("RESULT" + json.dumps(found))
"""


def lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def make(folder: Path, word: str) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(CONFIGS)
    for number in range(2):
        (folder / "data" / f"en-train-{number}.jsonl").write_text(lines(f"{word} {number}", f"{word} {number}, too"))
    (folder / "data" / "en-test.jsonl").write_text(lines(f"{word} test"))
    (folder / "data" / "de.jsonl").write_text(lines(f"{word} deutsch"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if importlib.util.find_spec("datasets") is None:
        pytest.skip("datasets is not installed")
    root = tmp_path_factory.mktemp("hub")
    make(root / "one" / "set", "one")
    make(root / "other" / "set", "other")
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(root / "home"),
        "HF_DATASETS_CACHE": str(root / "home" / "datasets"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("RESULT")[2])  # type: ignore[no-any-return]


def test_a_folder_in_the_hubs_layout_gives_the_rows_of_a_configuration_and_a_split(found: dict[str, Any]) -> None:
    assert found["en"][1] == ["one 0", "one 0, too", "one 1", "one 1, too"]
    assert found["de"][1] == ["one deutsch"]
    assert found["test"][1] == ["one test"]


def test_its_inputs_are_named_by_data_set_configuration_split_and_file_never_by_the_caches_path(
    found: dict[str, Any],
) -> None:
    for key, start in (("en", "set/en/train/"), ("de", "set/de/train/"), ("test", "set/en/test/")):
        names = found[key][0]
        assert names
        assert all(name.startswith(start) and name.count("/") == 3 and name.endswith(".arrow") for name in names)


def test_a_second_call_finds_the_same_inputs(found: dict[str, Any]) -> None:
    assert found["again"] == found["en"]


def test_another_folder_of_the_same_name_and_one_that_changed_are_not_taken_for_what_was_read_before(
    found: dict[str, Any],
) -> None:
    """By itself the library serves what it has read under the folder's name."""
    assert found["other"][1] == ["other 0", "other 0, too", "other 1", "other 1, too"]
    assert found["changed"][1] == ["neu"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("no config", r"ValueError: hf://.*/one/set: the datasets library does not load it: .*\['en', 'de'\]"),
        ("wrong config", "ValueError: .*/one/set: the datasets library does not load it: .*'fr'"),
        ("wrong split", "ValueError: .*/one/set: the datasets library does not load it: .*dev"),
        ("revision", "ValueError: .*it is a folder, and has no revision 'v1': leave --hub-revision out"),
        ("slice", r"ValueError: .*the split is 'train\[:2\]', expected the name of one, whole: --limit takes"),
        ("hub", "FileNotFoundError: some/name: there is no such file or folder, and the datasets library does not load it from the hub: .*some/name"),
        ("scheme", "FileNotFoundError: hf://some/name: the datasets library does not load it from the hub: .*some/name"),
    ],
)  # fmt: skip
def test_what_it_does_not_load_is_said_with_its_reason(found: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        raise ValueError(found[key])


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for the library, whose data sets are one file; what it was asked for."""
    asked: list[Any] = []
    file = tmp_path / "name-train.arrow"
    file.write_bytes(b"")

    def load_dataset(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        return SimpleNamespace(cache_files=[{"filename": str(file)}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return asked


@pytest.mark.parametrize("text", ["owner/name", "hf://owner/name", "hf://datasets/owner/name"])
def test_a_name_goes_to_the_library_with_all_that_was_said(library: list[Any], text: str) -> None:
    (item,) = find_inputs([text], "data/*", Hub(config="c", split="dev", revision="v2"))
    assert item.name == "owner/name/c/dev/name-train.arrow"
    expected = {"split": "dev", "data_files": "data/*", "keep_in_memory": False, "revision": "v2"}
    assert library == [(("owner/name", "c"), expected)]


def test_names_and_files_stand_side_by_side_in_the_order_given(library: list[Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    names = [item.name for item in find_inputs([str(tmp_path / "a.txt"), "owner/name", str(tmp_path / "a.txt")])]
    assert names == ["a.txt", "owner/name/train/name-train.arrow", "a.txt"]


def test_a_path_that_is_there_is_no_name(library: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "owner" / "name" / "a.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    assert [item.name for item in find_inputs(["owner/name"])] == ["a.txt"]
    assert not library


@pytest.mark.parametrize("text", ["texts/a.txt", "texts/b.jsonl.gz", "./owner/name", "/owner/name", "a/b/c", "word"])
def test_a_path_that_is_not_there_and_no_name_is_refused_without_the_library(library: list[Any], text: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        find_inputs([text])
    assert not library


def test_a_word_alone_is_refused_with_the_way_to_name_a_data_set(library: list[Any]) -> None:
    with pytest.raises(FileNotFoundError, match=r"word: there is no .* If it is a data set of the hub, say hf://word"):
        find_inputs(["word"])


def test_a_configuration_without_a_data_set_by_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for hub in (Hub(config="en"), Hub(split="test"), Hub(revision="v1")):
        with pytest.raises(
            ValueError, match=r"are for data sets by name, such as owner/name or hf://FOLDER: .*a\.txt is none"
        ):
            find_inputs([str(tmp_path / "a.txt")], None, hub)


def test_without_the_library_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingExtraError,
        match=r"owner/name: there is no such file or folder; to look for it on the hub needs datasets: pip install 'millstream\[hub\]'",
    ):
        find_inputs(["owner/name"])
    with pytest.raises(MissingExtraError, match="hf://owner/name needs datasets"):
        find_inputs(["hf://owner/name"])
