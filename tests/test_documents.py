"""What the documents show runs: README's commands and its Python, as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep.cli import main

ROOT = Path(__file__).parents[1]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what README's examples start from."""
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["rain", "wind", "sea", "stone"], 200)) for _ in range(200)]
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "texts" / f"{number}.txt").write_text(text, "utf-8")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    model.train_from_iterator(texts, trainer)
    (tmp_path / "path" / "to").mkdir(parents=True)
    model.save(str(tmp_path / "path" / "to" / "tokenizer.json"))
    ids = np.concatenate([[*random.integers(0, 50256, 300), 50256] for _ in range(20)]).astype("<u2")
    (tmp_path / "old").mkdir()
    ids.tofile(tmp_path / "old" / "train.bin")
    ids.tofile(tmp_path / "old" / "my_text_document.bin")
    lengths, ends = np.full(20, 301, dtype="<i4"), np.arange(21, dtype="<i8")
    header = (
        b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08" + (20).to_bytes(8, "little") + (21).to_bytes(8, "little")
    )
    index = header + lengths.tobytes() + (ends[:-1] * 602).astype("<i8").tobytes() + ends.tobytes()
    (tmp_path / "old" / "my_text_document.idx").write_bytes(index)
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of grain's and JAX's own imports
def test_the_readmes_commands_and_its_python_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("console"):
        for line in block.splitlines():
            command = shlex.split(line.removeprefix("$ "), comments=True)
            assert command[0] == "millstream"
            assert main(command[1:]) == 0, line
    core, torch, jax, grain = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(core, "README.md", "exec"), names)
    assert names["batch"]["tokens"].shape == (4, 129)
    assert names["batch"]["tokens"].dtype == np.uint16
    assert "TracedRow" in capsys.readouterr().out
    expected = names["plan"].read(np.arange(16))["tokens"]
    for block, library, key in ((torch, "torch", "tokens"), (jax, "jax", "inputs"), (grain, "grain", "tokens")):
        pytest.importorskip(library)
        assert len(block.splitlines()) < 15
        exec(compile(block, "README.md", "exec"), names)
        rows = np.asarray(names["batch"][key])
        assert np.array_equal(rows, expected[:, : rows.shape[1]])


def test_the_readmes_conversion_has_the_documents_of_the_pair(place: Path) -> None:
    assert main(["convert", "old/train.bin", "corpora/gpt", "--dtype", "uint16", "--boundaries", "eos:50256"]) == 0
    corpus = nc.open_corpus("corpora/gpt")
    assert [len(corpus.document(number)) for number in range(20)] == [301] * 20


def test_no_document_names_a_place_outside_of_the_project() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]:
        assert not re.search(r"(^|\s)/(home|root|tmp|mnt)/", path.read_text("utf-8")), path
