"""What the documents show runs: README's commands and its Python, and those of the pages for users of other torch loaders, as they stand."""

from __future__ import annotations

import json
import pickle
import re
import shlex
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep.cli import main

ROOT = Path(__file__).parents[1]


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def run_commands(page: str = "README.md") -> None:
    for block in blocks("console", page):
        for line in block.splitlines():
            command = shlex.split(line.removeprefix("$ "), comments=True)
            assert command[0] == "millstream"
            assert main(command[1:]) == 0, line


def write_pair(prefix: Path, ids: np.ndarray, length: int) -> None:
    """Megatron's, of documents of one length."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    count = len(ids) // length
    ids.astype("<u2").tofile(f"{prefix}.bin")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
    starts, ends = np.arange(count, dtype="<i8") * 2 * length, np.arange(count + 1, dtype="<i8")
    Path(f"{prefix}.idx").write_bytes(
        head + np.full(count, length, dtype="<i4").tobytes() + starts.tobytes() + ends.tobytes()
    )


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
    web = ["texts", "corpora/web", "--tokenizer", "path/to/tokenizer.json", "--append-eos", "--glob", "1*.txt"]
    assert main(["prepare", *web]) == 0
    ids = np.concatenate([[*random.integers(0, 50256, 300), 50256] for _ in range(20)]).astype("<u2")
    write_pair(tmp_path / "old" / "my_text_document", ids, 301)
    ids.tofile(tmp_path / "old" / "train.bin")
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of grain's and JAX's own imports
def test_the_readmes_commands_and_its_python_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_commands()
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


# The pages for users of other torch loaders: their files, made small; their Python as it stands.


def text_ids(seed: int, documents: int = 60) -> np.ndarray:
    """Documents of 101 ids, of which the last is 50256."""
    ids = np.random.default_rng(seed).integers(0, 50256, (documents, 101))
    ids[:, -1] = 50256
    return ids.ravel()


def write_mds(folder: Path, encoding: str, rows: list[bytes]) -> None:
    """MosaicML's, one shard with one column of a fixed size."""
    about = {"column_encodings": [encoding], "column_names": ["tokens"], "column_sizes": [len(rows[0])]}
    about |= {"compression": None, "format": "mds", "hashes": [], "size_limit": 1 << 26, "version": 2}
    text = json.dumps(about, sort_keys=True).encode()
    first = 4 * (len(rows) + 2) + len(text)
    offsets = [first + len(rows[0]) * n for n in range(len(rows) + 1)]
    shard = struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets) + text + b"".join(rows)
    folder.mkdir(parents=True)
    (folder / "shard.00000.mds").write_bytes(shard)
    raw = {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}}
    entry = about | {"raw_data": raw, "samples": len(rows), "zip_data": None}
    (folder / "index.json").write_text(json.dumps({"shards": [entry], "version": 2}), "utf-8")


@pytest.fixture
def torch_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a page's commands and Python in a folder with what they start from; return the names that the Python made."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def run(page: str) -> dict[str, Any]:
        run_commands(page)
        names: dict[str, Any] = {}
        for block in blocks("python", page):
            exec(compile(block, page, "exec"), names)
        return names

    return run


def test_what_a_megatron_user_does_here_runs(torch_page: Any) -> None:
    for number, name in enumerate(("books", "web")):
        write_pair(Path("data") / f"{name}_text_document", text_ids(number), 101)
    names = torch_page("docs/from_megatron.md")
    books = text_ids(0)
    assert names["plan"].names == ("data/books_text_document", "data/web_text_document")
    tokens = names["batch"]["tokens"]
    assert tokens.shape == (16, 129)
    assert np.array_equal(names["loss_mask"].numpy(), tokens[:, :-1].numpy() != 50256)  # as --eod-mask-loss has it
    assert [len(each[0]) for each in names["micro_batches"]] == [4] * 4
    provider = names["train_valid_test_datasets_provider"]
    assert provider.is_distributed
    train, valid, test = provider([500, 2, 0])
    assert (len(train), len(valid), test) == (500, 2, None)
    assert set(train[499]) == {"tokens", "labels", "loss_mask", "position_ids", "cu_seqlens", "max_seqlen"}
    assert not valid[None]["loss_mask"].any()
    first, rest = set(books[: 57 * 101].tolist()), set(books[57 * 101 :].tolist())  # 57 = round(0.95 · 60)
    assert all(first.issuperset(train[number]["tokens"].tolist()) for number in range(500))
    assert all(rest.issuperset(valid[number]["tokens"].tolist()) for number in range(2))


def test_what_a_mosaicml_user_does_here_runs(torch_page: Any) -> None:
    books, web, old = (text_ids(number, 64) for number in range(3))
    write_mds(
        Path("mds/books"), "ndarray:int32:128", [row.astype("<i4").tobytes() for row in books[:6400].reshape(-1, 128)]
    )
    write_mds(Path("mds/web"), "ndarray:int32:101", [row.astype("<i4").tobytes() for row in web.reshape(-1, 101)])
    write_mds(Path("mds/old"), "bytes", [row.astype("<i8").tobytes() for row in old[:6400].reshape(-1, 128)])
    names = torch_page("docs/from_mosaicml.md")
    converted = {name: nc.open_corpus(f"corpora/{name}") for name in ("books", "web", "old")}
    assert converted["books"].tokens(0, 6400).tolist() == books[:6400].tolist()
    assert [len(converted["books"].document(n)) for n in range(64)] == [101] * 63 + [6400 - 63 * 101]
    assert [converted["web"].document(n).tolist() for n in range(64)] == web.reshape(64, 101).tolist()
    assert converted["old"].tokens(0, 6400).tolist() == old[:6400].tolist()
    assert names["inputs"].shape == names["targets"].shape == (32, 127)
    assert names["state"]["sample"] == 32
    found: list[list[int]] = []
    for rank in range(8):
        names["share"].rank = rank
        found.extend(next(iter(names["rows"]))["input_ids"].tolist())
    assert sorted(found) == sorted(names["plan"].read(np.arange(32))["tokens"].tolist())


def test_what_a_nanogpt_user_does_here_runs(torch_page: Any) -> None:
    for folder in ("data/openwebtext", "data/shakespeare_char"):
        Path(folder).mkdir(parents=True)
    for number, name in enumerate(("train", "val")):
        text_ids(number).astype("<u2").tofile(f"data/openwebtext/{name}.bin")
    letters = np.random.default_rng(3).integers(0, 65, 1000)
    letters.astype("<u2").tofile("data/shakespeare_char/train.bin")
    table = {chr(48 + n): n for n in range(65)}
    meta = {"vocab_size": 65, "itos": {n: letter for letter, n in table.items()}, "stoi": table}
    Path("data/shakespeare_char/meta.pkl").write_bytes(pickle.dumps(meta))
    names = torch_page("docs/from_nanogpt.md")
    assert names["x"].shape == names["y"].shape == (4, 64)
    assert names["x"][:, 1:].tolist() == names["y"][:, :-1].tolist()
    assert names["checkpoint"]["data"]["sample"] == 8
    assert names["targets"] == 64 * ((60 * 101 - 1) // 64)
    assert names["characters"].document(0).tolist() == letters.tolist()


def test_no_document_names_a_place_outside_of_the_project() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]:
        assert not re.search(r"(^|\s)/(home|root|tmp|mnt)/", path.read_text("utf-8")), path
