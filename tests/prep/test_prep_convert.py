"""``convert``: a data set of another layout becomes a corpus, token for token, document for document."""

from __future__ import annotations

import pickle
import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import neutral_core as nc
from neutral_core import layouts
from neutral_core.legacy import headerless
from neutral_core.legacy.layout import Request
from prep import convert as module
from prep import pieces, prepare, tasks
from prep.compare import compare
from prep.convert import Options, convert, lines_of
from prep.engines import local
from prep.tokenizers import Settings

MEGATRON = "bigscience-workshop+Megatron-DeepSpeed/tests/data/gpt2/meg-gpt2-openwebtext_text_document"
NVIDIA = "NVIDIA+Megatron-LM/assets/datasets/train/test_text_document"
NANOGPT = "karpathy+nanoGPT/data/shakespeare_char/train.bin"


def run(source: Path, destination: Path, **changes: Any) -> dict[str, Any]:
    return convert(Options(source=str(source), destination=destination, **changes))


def whole(folder: Path) -> npt.NDArray[Any]:
    corpus = nc.open_corpus(folder)
    return corpus.tokens(0, corpus.num_tokens)


def write_pair(prefix: Path, documents: list[list[int]]) -> None:
    """Write an MMIDIDX pair of uint16 by its byte layout: magic, version, code 8, counts, lengths, pointers, document edges."""
    lengths = [len(document) for document in documents]
    pointers = [2 * sum(lengths[:n]) for n in range(len(lengths))]
    prefix.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(d)}H", *d) for d in documents))
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
        + struct.pack(f"<{len(lengths)}i", *lengths)
        + struct.pack(f"<{len(pointers)}q", *pointers)
        + struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1))
    )


def test_megatrons_thousand_documents_come_over_token_for_token(tmp_path: Path, fixtures: Path) -> None:
    report = run(fixtures / MEGATRON, tmp_path / "out", tokens_per_shard=500_000, workers=2)
    corpus = nc.open_corpus(tmp_path / "out")
    assert (corpus.num_documents, corpus.num_tokens, corpus.num_shards) == (1000, 1_361_845, 3)
    assert np.array_equal(whole(tmp_path / "out"), np.fromfile(f"{fixtures / MEGATRON}.bin", dtype="<u2"))
    assert {int(corpus.document(index)[-1]) for index in range(1000)} == {4999}
    assert report["verified"]
    assert "the largest id that occurs is 4,999." in report["notes"]


def test_an_id_of_54_million_comes_over(tmp_path: Path, fixtures: Path) -> None:
    run(fixtures / NVIDIA, tmp_path / "out")
    corpus = nc.open_corpus(tmp_path / "out")
    assert corpus.dtype == np.uint32
    assert [corpus.document(index).tolist() for index in (0, 999)] == [[111214, 343, 54365900, 77, 131072]] * 2
    assert np.array_equal(whole(tmp_path / "out"), np.fromfile(f"{fixtures / NVIDIA}.bin", dtype="<i4"))


def test_nanogpts_bare_tokens_come_over_as_one_document(tmp_path: Path, fixtures: Path) -> None:
    run(fixtures / NANOGPT, tmp_path / "out", dtype="uint16", boundaries="none", vocab_size=65)
    corpus = nc.open_corpus(tmp_path / "out")
    assert (corpus.num_documents, corpus.num_tokens, corpus.dtype) == (1, 1_003_854, np.uint8)
    assert np.array_equal(whole(tmp_path / "out"), np.fromfile(fixtures / NANOGPT, dtype="<u2"))


def test_a_pair_comes_over_with_its_empty_documents(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [], [65535], [], []]
    write_pair(tmp_path / "old", documents)
    run(tmp_path / "old", tmp_path / "out")
    corpus = nc.open_corpus(tmp_path / "out")
    assert [corpus.document(index).tolist() for index in range(corpus.num_documents)] == documents


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Bare uint16 tokens: documents of 3, 2, 4 and 1 that end with 9."""
    path = tmp_path / "old.bin"
    np.array([1, 2, 9, 3, 9, 4, 5, 6, 9, 9], dtype="<u2").tofile(path)
    return path


@pytest.mark.parametrize(
    ("size", "shards"),
    [(1, [[3], [2], [4], [1]]), (3, [[3], [2], [4], [1]]), (5, [[3, 2], [4, 1]]), (6, [[3, 2], [4, 1]]), (9, [[3, 2, 4], [1]]), (10, [[3, 2, 4, 1]])],
)  # fmt: skip
def test_shards_are_cut_between_documents(tmp_path: Path, bare: Path, size: int, shards: list[list[int]]) -> None:
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=size)
    files = sorted((tmp_path / "out").glob("shard-*"))
    opened = [nc.open_corpus(file) for file in files]
    assert [[len(c.document(i)) for i in range(c.num_documents)] for c in opened] == shards
    assert whole(tmp_path / "out").tolist() == [1, 2, 9, 3, 9, 4, 5, 6, 9, 9]


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path, bare: Path) -> None:
    trees = []
    for workers in (1, 2, 3):
        run(bare, tmp_path / f"out-{workers}", dtype="uint16", boundaries="eos:9", tokens_per_shard=3, workers=workers)
        trees.append({path.name: path.read_bytes() for path in (tmp_path / f"out-{workers}").iterdir()})
    assert trees[0] == trees[1] == trees[2]


def test_a_corpus_of_ours_is_cut_anew(tmp_path: Path, bare: Path) -> None:
    run(bare, tmp_path / "one", dtype="uint16", boundaries="eos:9", vocab_size=10)
    run(tmp_path / "one", tmp_path / "two", tokens_per_shard=5, vocab_size=10)
    assert nc.open_corpus(tmp_path / "two").num_shards == 2
    assert whole(tmp_path / "two").tolist() == whole(tmp_path / "one").tolist()


def test_bare_tokens_without_a_dtype_are_refused_with_the_evidence(tmp_path: Path, bare: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nothing in the file says how wide its ids are; give dtype\. Its 20 bytes say: .*from 1 to 9"
    ):
        run(bare, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bare_tokens_without_a_rule_are_refused_with_the_evidence(tmp_path: Path, bare: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"nothing in the file says where documents begin; give boundaries=.*last id is 9, which occurs 4 times",
    ):
        run(bare, tmp_path / "out", dtype="uint16")


def test_a_vocabulary_that_is_too_small_is_refused_with_the_place(tmp_path: Path, bare: Path) -> None:
    message = r"document 0 of the source, position 2: the id 9 is outside of the vocabulary of 9 ids: give a larger --vocab-size"
    with pytest.raises(ValueError, match=message):
        run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", vocab_size=9)


def test_an_undeclared_vocabulary_is_all_that_the_width_holds_and_that_is_said(tmp_path: Path, bare: Path) -> None:
    report = run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9")
    assert nc.open_corpus(tmp_path / "out").vocab_size == 65536
    assert any("all 65,536 that uint16 can hold were declared" in note for note in report["notes"])
    assert "the largest id that occurs is 9." in report["notes"]


def test_the_tokenizer_that_made_the_ids_is_recorded(tmp_path: Path, bare: Path) -> None:
    tokenizer = Settings(kind="byte", append_eos=True)
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokenizer=tokenizer)
    corpus = nc.open_corpus(tmp_path / "out")
    assert corpus.tokenizer is not None
    assert (corpus.vocab_size, corpus.tokenizer.kind, corpus.tokenizer.eos_id) == (257, "byte", 256)


@pytest.mark.parametrize("size", [0, -1])
def test_a_shard_of_no_tokens_is_refused(tmp_path: Path, bare: Path, size: int) -> None:
    with pytest.raises(ValueError, match=r"tokens_per_shard is .*, expected a positive integer"):
        run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=size)


def test_a_finished_destination_is_refused(tmp_path: Path, bare: Path) -> None:
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9")
    with pytest.raises(FileExistsError, match="there is a corpus already"):
        run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", restart=True)


class Crash(BaseException):
    """The process ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, source: Path, destination: Path) -> None:
    def crash(*arguments: Any, **named: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(place, name, crash)
        with pytest.raises(Crash):
            run(source, destination, dtype="uint16", boundaries="eos:9", tokens_per_shard=3)


@pytest.mark.parametrize("where", ["publish", "fsync_folder", "finish"])
def test_a_run_that_ended_anywhere_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path, where: str
) -> None:
    from neutral_core.format import publish

    place = {"publish": module, "fsync_folder": publish, "finish": tasks}[where]
    crash_at(monkeypatch, place, where, bare, tmp_path / "out")
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)
    run(bare, tmp_path / "fresh", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)
    trees = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("out", "fresh")]
    assert trees[0] == trees[1]


def test_shards_that_were_published_under_other_settings_are_not_taken_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    from neutral_core.format import publish

    crash_at(monkeypatch, publish, "fsync_folder", bare, tmp_path / "out")
    with pytest.raises(FileExistsError, match=r"with other tokens_per_shard, vocab_size: .*--restart"):
        run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=5, vocab_size=10)
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=5, vocab_size=10, restart=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "dataset.json",
        "shard-00000.safetensors",
        "shard-00001.safetensors",
    ]
    assert whole(tmp_path / "out").tolist() == [1, 2, 9, 3, 9, 4, 5, 6, 9, 9]


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path) -> None:
    crash_at(monkeypatch, module, "publish", bare, tmp_path / "out")
    np.array([1, 9], dtype="<u2").tofile(bare)
    with pytest.raises(FileExistsError, match="with other source"):
        run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[1, 2, 9], [3]], "holds 2 documents and 4 tokens, its source 2 and 5"),
        ([[1, 2], [3, 4, 5]], "begin elsewhere than in the source"),
        ([[1, 2, 3], [4, 6]], r"tokens 0 … 5 differ from the source"),
    ],
)
def test_a_copy_that_differs_is_found(documents: list[list[int]], message: str) -> None:
    source = nc.memory_corpus([[1, 2, 3], [4, 5]])
    with pytest.raises(nc.FormatError, match=f"^copy: .*{message}.*--restart"):
        compare(source, nc.memory_corpus(documents), "copy")


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[4, 5], []], None),
        ([[4, 5]], "holds 1 documents and 2 tokens, its source 2 and 2"),
        ([[4], [5]], "documents 1 … 3 begin elsewhere"),
        ([[4, 6], []], "tokens 3 … 5 differ"),
    ],
)
def test_a_copy_of_some_documents_is_compared_with_those(documents: list[list[int]], message: str | None) -> None:
    source = nc.memory_corpus([[1, 2, 3], [4, 5], [], [6]])
    with nullcontext() if message is None else pytest.raises(nc.FormatError, match=message):
        compare(source, nc.memory_corpus(documents), "copy", 1, 3)


def test_what_differs_from_the_source_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    asked: dict[str, Any] = {"dtype": "uint16", "boundaries": "eos:9", "tokens_per_shard": 3}
    crash_at(monkeypatch, module, "publish", bare, tmp_path / "out")
    shard = tmp_path / "out" / ".partial" / "shards" / "shard-00002.safetensors"
    data = shard.read_bytes()
    at = data.rindex(bytes([4, 0, 5, 0, 6, 0]))
    shard.write_bytes(data[:at] + b"\x07" + data[at + 1 :])
    with pytest.raises(nc.FormatError, match=r"shard-00002\.safetensors: it is not as it was written .*--restart"):
        run(bare, tmp_path / "out", **asked)
    with pytest.raises(FileNotFoundError, match="not finished"):
        nc.open_corpus(tmp_path / "out")
    run(bare, tmp_path / "out", restart=True, **asked)
    assert whole(tmp_path / "out").tolist() == [1, 2, 9, 3, 9, 4, 5, 6, 9, 9]


def test_a_run_that_ended_in_its_verification_verifies_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    crash_at(monkeypatch, module, "compare", bare, tmp_path / "out")
    compared: list[tuple[int, int]] = []

    def spy(source: nc.Corpus, copy: nc.Corpus, name: str, first: int, last: int) -> None:
        compared.append((first, last))
        compare(source, copy, name, first, last)

    monkeypatch.setattr(module, "compare", spy)
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)
    assert compared == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_a_run_that_ended_before_its_last_clean_up_is_verified_by_the_rerun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    crash_at(monkeypatch, tasks, "finish", bare, tmp_path / "out")
    compared: list[str] = []
    monkeypatch.setattr(module, "compare", lambda source, copy, name: compared.append(name))
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)
    assert compared == [str(tmp_path / "out")]


def test_the_source_is_opened_once_however_many_shards_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    opened: list[Path] = []

    def spy(request: Request) -> nc.Corpus:
        opened.append(request.path)
        return headerless.open_headerless(request)

    def sent(function: Any, jobs: Any, workers: int) -> Any:
        for job in jobs:
            yield function(pickle.loads(pickle.dumps(job)))  # as a worker gets it

    monkeypatch.setattr(layouts, "FOREIGN", (headerless.LAYOUT._replace(open=spy),))
    monkeypatch.setattr(local, "run", sent)
    run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)
    assert opened == [bare]  # each costs a pass over the file


@pytest.mark.parametrize("where", ["publish", "fsync_folder"])
def test_the_largest_id_is_found_in_shards_of_an_earlier_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from neutral_core.format import publish

    source = tmp_path / "old.bin"
    np.array([60_000, 1, 9, 3, 9], dtype="<u2").tofile(source)
    crash_at(monkeypatch, {"publish": module, "fsync_folder": publish}[where], where, source, tmp_path / "out")
    report = run(source, tmp_path / "out", dtype="uint16", boundaries="eos:9", tokens_per_shard=3)
    assert "the largest id that occurs is 60,000." in report["notes"]


def test_a_source_that_is_changed_while_it_is_converted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Path
) -> None:
    start = tasks.start

    def meddled(*arguments: Any, **named: Any) -> Any:
        np.array([7, 7, 9], dtype="<u2").tofile(bare)
        module._source.cache_clear()  # as in another process
        return start(*arguments, **named)

    monkeypatch.setattr(tasks, "start", meddled)
    with pytest.raises(nc.FormatError, match=r"old\.bin: it was changed while it was being converted: .*--restart"):
        run(bare, tmp_path / "out", dtype="uint16", boundaries="eos:9")


def test_a_corpus_of_ours_keeps_vocabulary_tokenizer_and_definition(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\nd\n")
    asked = pieces.Options(
        inputs=(str(tmp_path / "a.txt"),),
        destination=tmp_path / "one",
        tokenizer=Settings(kind="char", append_eos=True),
        documents="line",
        origin=False,
    )
    prepare.prepare(asked)
    report = run(tmp_path / "one", tmp_path / "two", tokens_per_shard=1)
    one, two = (nc.open_corpus(tmp_path / name) for name in ("one", "two"))
    assert (two.vocab_size, two.tokenizer, two.num_shards) == (5, one.tokenizer, 2)
    assert (tmp_path / "two" / "tokenizer.json").read_bytes() == (tmp_path / "one" / "tokenizer.json").read_bytes()
    assert report["notes"] == []


def test_the_report_says_what_was_checked(tmp_path: Path, bare: Path) -> None:
    asked = {"dtype": "uint16", "boundaries": "eos:9", "vocab_size": 10}
    lines = lines_of(run(bare, tmp_path / "out", **asked))
    assert lines[0] == f"{tmp_path / 'out'}: 4 documents, 10 tokens, 1 shards"
    assert "tokens are stored as 10 ids: uint8" in lines
    assert lines[-1] == "verified: checksums, and every document and token against the source"
    assert "verified" not in lines_of(run(bare, tmp_path / "two", verify=False, **asked))[-1]


def test_fields_are_converted_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {
        "document.score": nc.Field(dtype="float32"),
        "ragged.span": nc.Field(dtype="int32", shape=(2,)),
        "token.loss_mask": nc.Field(dtype="bool"),
    }
    with nc.CorpusWriter(tmp_path / "one", vocab_size=100, fields=declared, tokens_per_shard=7) as writer:
        for n in range(12):
            values = {"document.score": np.nan if n == 3 else n, "ragged.span": [[n, i] for i in range(n % 3)]}
            writer.add(np.full(n % 5, n), {**values, "token.loss_mask": np.arange(n % 5) % 2 == 0})
    run(tmp_path / "one", tmp_path / "out", tokens_per_shard=11)
    source, copy = nc.open_corpus(tmp_path / "one"), nc.open_corpus(tmp_path / "out")
    assert copy.fields == declared
    assert copy.num_shards not in (1, source.num_shards)
    for n in range(12):
        assert copy.document(n).tolist() == [n] * (n % 5)
        assert np.array_equal(copy.field("document.score", n), np.float32(np.nan if n == 3 else n), equal_nan=True)
        assert copy.field("ragged.span", n).tolist() == [[n, i] for i in range(n % 3)]
        assert copy.field("token.loss_mask", n).tolist() == [i % 2 == 0 for i in range(n % 5)]
    for name in declared:  # a copy that differs in one field is noticed
        with nc.CorpusWriter(tmp_path / name, vocab_size=100, fields=declared) as writer:
            for n in range(12):
                values = {key: copy.field(key, n).copy() for key in declared}
                if n == 8:
                    values[name] = ~values[name] if name == "token.loss_mask" else values[name] + 1
                writer.add(copy.document(n), values)
        with pytest.raises(nc.FormatError, match=f"{name} of documents 0 … 12 differs from the source"):
            module.compare(source, nc.open_corpus(tmp_path / name), "copy")
