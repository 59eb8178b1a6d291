"""``merge``, ``split`` and ``reshard``: the same documents in other corpora and other shards."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from neutral_core.format.shard import Shard
from prep import cli
from prep.pieces import Options as PrepareOptions
from prep.prepare import prepare
from prep.reshape import Options, reshape
from prep.tokenizers import Settings

FIELDS = {
    "document.score": nc.Field(dtype="float32"),
    "ragged.spans": nc.Field(dtype="int64", shape=(2,)),
    "token.loss_mask": nc.Field(dtype="uint8"),
}


def documents_of(seed: int, count: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Return documents of 0 … 9 ids with one value of each field."""
    random = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        length = int(random.integers(0, 10))
        spans = random.integers(0, 9, size=(int(random.integers(0, 3)), 2))
        fields = {
            "document.score": np.float32(random.random()),
            "ragged.spans": spans,
            "token.loss_mask": random.integers(0, 2, size=length, dtype=np.uint8),
        }
        documents.append((random.integers(0, 300, size=length).tolist(), fields))
    return documents


def write(folder: Path, documents: list[tuple[list[int], dict[str, Any]]], **changes: Any) -> Path:
    with nc.CorpusWriter(folder, **({"vocab_size": 300, "fields": FIELDS} | changes)) as writer:
        for tokens, fields in documents:
            writer.add(tokens, {name: value for name, value in fields.items() if name in writer._series.schema.fields})
    return folder


def read(folder: Path) -> list[tuple[list[int], dict[str, Any]]]:
    """Return a corpus' documents, one at a time."""
    corpus = nc.open_corpus(folder)
    corpus.verify()
    return [
        (corpus.document(index).tolist(), {name: corpus.field(name, index) for name in corpus.fields})
        for index in range(corpus.num_documents)
    ]


def same(found: list[tuple[list[int], dict[str, Any]]], expected: list[tuple[list[int], dict[str, Any]]]) -> bool:
    return len(found) == len(expected) and all(
        left[0] == right[0]
        and left[1].keys() == right[1].keys()
        and all(np.array_equal(left[1][name], right[1][name]) for name in right[1])
        for left, right in zip(found, expected, strict=True)
    )


def run(tmp_path: Path, *sources: Path, **changes: Any) -> dict[str, Any]:
    names = tuple(str(source) for source in sources)
    return reshape(Options(**({"command": "merge", "sources": names, "destination": tmp_path / "out"} | changes)))


def test_a_merged_corpus_holds_all_documents_of_all_sources_in_order(tmp_path: Path) -> None:
    documents = [documents_of(seed, 40) for seed in range(3)]
    sources = [write(tmp_path / str(n), part, tokens_per_shard=50) for n, part in enumerate(documents)]
    report = run(tmp_path, *sources, tokens_per_shard=70)
    assert same(read(tmp_path / "out"), [document for part in documents for document in part])
    shards = nc.open_corpus(tmp_path / "out").shards
    assert all(shard.num_tokens <= 70 for shard in shards)
    assert report["corpora"][0]["documents"] == 120


def test_a_corpus_that_was_cut_anew_is_byte_for_byte_the_one_written_so_at_once(tmp_path: Path) -> None:
    documents = documents_of(1, 200)
    write(tmp_path / "coarse", documents)
    run(tmp_path, tmp_path / "coarse", command="reshard", tokens_per_shard=64)
    provenance = Shard(tmp_path / "out" / "shard-00000.safetensors").open().provenance
    write(tmp_path / "fine", documents, tokens_per_shard=64, provenance=provenance)
    names = sorted(path.name for path in (tmp_path / "fine").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir())
    for name in names:
        assert (tmp_path / "fine" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_a_split_by_hash_is_what_blake2b_says_of_each_document(tmp_path: Path) -> None:
    documents = documents_of(2, 300)
    source = write(tmp_path / "in", documents, tokens_per_shard=100)
    run(tmp_path, source, command="split", validation="0.25")
    sides: tuple[list[Any], list[Any]] = ([], [])
    for document in documents:
        data = np.array(document[0], dtype="<u4").tobytes()
        digest = hashlib.blake2b(data, digest_size=8, person=b"millstream-split").digest()
        sides[int.from_bytes(digest, "little") < 2**62].append(document)
    assert 40 < len(sides[1]) < 110
    assert same(read(tmp_path / "out" / "train"), sides[0])
    assert same(read(tmp_path / "out" / "validation"), sides[1])


def test_equal_documents_of_corpora_of_other_widths_are_on_one_side(tmp_path: Path) -> None:
    documents = [([n], {}) for n in range(200)]
    for vocab_size in (200, 70_000):
        write(tmp_path / str(vocab_size), documents, vocab_size=vocab_size, fields={})
        run(
            tmp_path,
            tmp_path / str(vocab_size),
            command="split",
            validation="1/3",
            destination=tmp_path / f"out{vocab_size}",
        )
    narrow, wide = (read(tmp_path / f"out{size}" / "validation") for size in (200, 70_000))
    assert narrow == wide
    assert 30 < len(narrow) < 100


def test_a_split_by_order_gives_the_last_documents_by_tokens(tmp_path: Path) -> None:
    documents = [
        ([n] * n, {}) for n in range(1, 11)
    ]  # 55 tokens; 20 % are 11: documents that begin at token 44 or later
    source = write(tmp_path / "in", documents, vocab_size=300, fields={})
    run(tmp_path, source, command="split", validation="0.2", by="order")
    assert same(read(tmp_path / "out" / "train"), documents[:9])  # the ninth begins at 36, the tenth at 45
    assert same(read(tmp_path / "out" / "validation"), documents[9:])


def test_a_field_that_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = documents_of(3, 9), documents_of(4, 9)
    write(tmp_path / "a", left)
    write(tmp_path / "b", right, fields={name: FIELDS[name] for name in ("document.score", "token.loss_mask")})
    arguments = ["merge", str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "out")]
    assert cli.main(arguments) == 1
    assert "ragged.spans are not declared as in" in capsys.readouterr().err
    assert cli.main([*arguments, "--ignore", "ragged.spans"]) == 0
    assert "ragged.spans was left out, as asked." in capsys.readouterr().out
    for _, fields in (both := left + right):
        del fields["ragged.spans"]
    assert same(read(tmp_path / "out"), both)
    with pytest.raises(ValueError, match=r"--ignore document\.nothing: no source has such a field"):
        run(tmp_path, tmp_path / "a", ignore=("document.nothing",), destination=tmp_path / "other")


def test_corpora_of_two_tokenizers_are_not_merged(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text", encoding="utf-8")
    for kind in ("byte", "char"):
        prepare(
            PrepareOptions(
                inputs=(str(tmp_path / "text.txt"),), destination=tmp_path / kind, tokenizer=Settings(kind=kind)
            )
        )
    with pytest.raises(ValueError, match="their ids do not mean the same"):
        run(tmp_path, tmp_path / "byte", tmp_path / "char")
    assert not (tmp_path / "out").exists()


def test_the_definition_goes_with_the_ids(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text", encoding="utf-8")
    options = PrepareOptions(
        inputs=(str(tmp_path / "text.txt"),), destination=tmp_path / "in", tokenizer=Settings(kind="char")
    )
    prepare(options)
    run(tmp_path, tmp_path / "in", tmp_path / "in")
    beside = {path.name for path in (tmp_path / "in").iterdir()} - {path.name for path in (tmp_path / "out").iterdir()}
    assert beside == set()
    assert nc.open_corpus(tmp_path / "out").num_tokens == 2 * len("some text")


def test_a_damaged_source_ends_it_and_leaves_no_corpus(tmp_path: Path) -> None:
    source = write(tmp_path / "in", documents_of(5, 50))
    shard = source / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[4100] ^= 1  # in the tokens, which begin at 4096
    shard.write_bytes(data)
    with pytest.raises(nc.FormatError, match="shard-00000"):
        run(tmp_path, source)
    with pytest.raises(FileNotFoundError):
        nc.open_corpus(tmp_path / "out")


def test_a_run_that_was_stopped_goes_on_and_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "in", documents_of(6, 50))
    with monkeypatch.context() as patch:
        patch.setattr("prep.reshape.publish", lambda *_: (_ for _ in ()).throw(OSError("stopped")))
        with pytest.raises(OSError, match="stopped"):
            run(tmp_path, source)
    with pytest.raises(FileExistsError, match="with other tokens_per_shard"):
        run(tmp_path, source, tokens_per_shard=10)
    run(tmp_path, source)
    run(tmp_path, source, destination=tmp_path / "at once")
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "at once").iterdir())
    ]


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["reshard", "in", "out", "--tokens-per-shard", "5"], "documents, 12 tokens"),
        (["split", "in", "out", "--validation", "0.5"], "validation"),
        (["merge", "in", "in", "out"], "documents, 24 tokens"),
    ],
)
def test_the_commands_say_what_they_made(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    lines: str,
) -> None:
    write(tmp_path / "in", [([1, 2, 3], {}), ([], {}), ([4] * 9, {})], fields={})
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 0
    assert lines in capsys.readouterr().out


def test_no_documents_make_an_empty_corpus(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [])
    run(tmp_path, source, command="split", validation="0.5")
    for split in ("train", "validation"):
        assert nc.open_corpus(tmp_path / "out" / split).num_documents == 0
