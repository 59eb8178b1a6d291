"""``millstream trace``: rows worked out by hand, those that the loader serves, and what reading every row finds.

The plan worked out by hand is that of test_prep_plan.py in file order (``shuffle: none``): draw j of a source is its window j mod N, which begins at
token 4 · (j mod N). Documents of a: tokens 0, 10, 10, 24 … 41; of b: 0, 9 … 23.

    step of 5 rows     0                                1
    sample             0    1    5    6    7           8 …
    source             a    b    b    a    b           b …
    window             0    0    2    3    3           4 …
    tokens          0…4  0…4 8…12 12…16 12…16         16…20
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tiny_plan import BYTES, TINY, asked, run, save

import neutral_core as nc
from prep import find, plan_file, trace
from prep.tokenizers.byte import ByteTokenizer

DOCUMENTS = {"a": ["abcdefghij", "", "klmnopqrstuvwx", "yzABCDEFGHIJKLMNO"], "b": ["012345678", "9!#$%&()*+,-./"]}
IN_FILE_ORDER = TINY | {"shuffle": "none"}


def write(path: Path, texts: list[str]) -> None:
    with nc.CorpusWriter(path, vocab_size=256, tokenizer=BYTES, tokens_per_shard=24) as writer:
        for text in texts:
            writer.add(np.frombuffer(text.encode(), dtype=np.uint8))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The plan worked out by hand, as a file."""
    for name, texts in DOCUMENTS.items():
        write(tmp_path / name, texts)
    return save(tmp_path, IN_FILE_ORDER)


def test_a_step_is_what_was_worked_out_by_hand(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys, "trace", tiny, "--step", 0, "--batch-size", 5, "--text")
    rows = [(row["row"], row["sample"], row["source"], row["epoch"], row["window"]) for row in said["rows"]]
    assert rows == [(0, 0, "a", 0, 0), (1, 1, "b", 0, 0), (2, 5, "b", 0, 2), (3, 6, "a", 0, 3), (4, 7, "b", 0, 3)]
    assert [row["pieces"] for row in said["rows"]] == [
        [piece(0, 0, "00000", 0, 5, "abcde")],
        [piece(0, 0, "00000", 0, 5, "01234")],
        [piece(0, 0, "00000", 8, 9, "8"), piece(1, 1, "00000", 0, 4, "9!#$")],
        [piece(0, 2, "00000", 2, 7, "mnopq")],
        [piece(0, 1, "00000", 3, 8, "$%&()")],
    ]
    assert said["notes"] == []


def piece(column: int, document: int, shard: str, start: int, stop: int, text: str) -> dict[str, Any]:
    name = f"shard-{shard}.safetensors"
    return {"column": column, "document": document, "shard": name, "start": start, "stop": stop, "text": text}


def test_a_later_step_counts_epochs_and_names_the_shard(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Draw 4 of b is window 4 of epoch 0, draw 5 window 0 of epoch 1; document 3 of a is in its second shard of 24 tokens."""
    rows = asked(capsys, "trace", tiny, "--step", 1, "--batch-size", 5)["rows"]
    assert [(row["sample"], row["epoch"], row["window"]) for row in rows] == [
        (8, 0, 4), (9, 1, 0), (10, 1, 1), (11, 1, 2), (12, 1, 3),
    ]  # fmt: skip
    assert "text" not in rows[0]["pieces"][0]
    plan = save(tiny.parent, {"seq_len": 4, "shuffle": "none", "sources": [{"path": "a"}]})
    (row,) = asked(capsys, "trace", plan, "--sample", 6)["rows"]
    assert row["pieces"] == [
        {"column": 0, "document": 3, "shard": "shard-00001.safetensors", "start": 0, "stop": 5}
    ]  # tokens 24 … 28


def test_the_text_report_says_the_same(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", tiny, "--step", 0, "--batch-size", 5, "--rank", "2/5", "--text") == 0
    assert capsys.readouterr().out.splitlines() == [
        "step 0 of 5 rows, those of rank 2/5:",
        "row 2, sample 5: source 'b', epoch 0, window 2",
        "  [0:1] document 0 of shard-00000.safetensors, tokens [8:9]",
        "      '8'",
        "  [1:5] document 1 of shard-00000.safetensors, tokens [0:4]",
        "      '9!#$'",
    ]


def test_samples_can_be_asked_for_skipped_ones_too(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = asked(capsys, "trace", tiny, "--sample", 5, 2)["rows"]
    assert [(row["row"], row["sample"], row["skipped"]) for row in rows] == [(None, 5, False), (None, 2, True)]
    assert run("trace", tiny, "--sample", 2) == 0
    assert "sample 2 (skipped: no step serves it): source 'a'" in capsys.readouterr().out


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_steps_are_those_of_the_loader_at_any_number_of_ranks(tiny: Path, world: int) -> None:
    plan = plan_file.open_plan(tiny)
    for rank in range(world):
        with nc.Loader(plan, batch_size=24, dp_rank=rank, dp_world_size=world, threads=0) as loader:
            for step in range(4):
                batch = next(loader)
                rows = trace.report(plan, step=step, batch_size=24, rank=(rank, world), text=True)["rows"]
                assert [row["sample"] for row in rows] == batch["sample"].tolist()
                assert [row["row"] for row in rows] == list(range(rank * 24 // world, (rank + 1) * 24 // world))
                texts = ["".join(each["text"] for each in row["pieces"]) for row in rows]
                assert texts == [row.tobytes().decode() for row in batch["tokens"]]


def test_a_document_is_found_where_it_was_worked_out_by_hand(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Document 2 of a is tokens 10 … 23: windows 2 … 5, draws 2 … 5; only 0 … 3 are served, and draw 2 is the skipped sample 4."""
    said = asked(capsys, "trace", tiny, "--find", "a:2", "--samples", 20, "--batch-size", 5)
    assert said["understood_as"] == "document"
    (document,) = said["documents"]
    assert document["samples"] == [{"sample": 6, "step": 0, "row": 3, "epoch": 0, "window": 3}]
    assert (document["source"], document["document"], document["tokens"]) == ("a", 2, 14)
    # Document 0 of b is tokens 0 … 8: windows 0, 1 and 2 of each epoch.
    samples = asked(capsys, "trace", tiny, "--find", "b:0", "--samples", 14)["documents"][0]["samples"]
    assert [each["sample"] for each in samples] == [1, 5, 9, 10, 11]  # draws 0, (1,) 2, 5, 6, 7
    assert "step" not in samples[0]
    assert (
        asked(capsys, "trace", tiny, "--find", "a:1", "--samples", 14)["documents"][0]["samples"] == []
    )  # without a token


def test_so_far_takes_in_the_step_that_is_named(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps end behind samples 7, 12 (of 5 rows), 8, 11 (of 3) and 10 (of 4); document 0 of b is in 1, 5, 9, 10 and 11."""
    for arguments, last in (((0, 5), 5), ((1, 5), 11), ((1, 3), 5), ((2, 3), 11), ((1, 4), 10)):
        asked_for = ("--step", arguments[0], "--batch-size", arguments[1])
        samples = asked(capsys, "trace", tiny, "--find", "b:0", *asked_for)["documents"][0]["samples"]
        assert samples[-1]["sample"] == last


def test_a_number_is_a_document_where_the_plan_has_one_source_and_a_text_where_it_has_several(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = asked(capsys, "trace", tiny, "--find", "01234", "--samples", 20)
    assert said["understood_as"] == "text"
    assert [(each["source"], each["document"]) for each in said["documents"]] == [("b", 0)]
    assert said["notes"] == [
        "'01234' names no source of the plan, so it was taken for a text; a document is SOURCE:NUMBER, such as a:0."
    ]
    plan = save(tiny.parent, {"seq_len": 4, "sources": [{"path": "b"}]})
    said = asked(capsys, "trace", plan, "--find", "1", "--samples", 20)
    assert (said["understood_as"], said["documents"][0]["document"]) == ("document", 1)
    assert run("trace", plan, "--find", "1", "--samples", 20) == 0
    assert capsys.readouterr().out.startswith("document 1 of shard-00000.safetensors, 14 tokens\n  seen in ")


def test_a_name_that_is_almost_a_source_is_searched_as_a_text_and_the_output_says_so(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", save_named(tiny, "books"), "--find", "boks:1", "--samples", 20) == 0
    assert capsys.readouterr().out.splitlines() == [
        "the text 'boks:1' is in no document that was searched",
        "note: 'boks:1' names no source of the plan, so it was taken for a text; did you mean books:1?",
    ]


def save_named(tiny: Path, name: str) -> Path:
    sources = [{"path": "a", "name": name}, {"path": "b", "name": "b"}]
    return save(tiny.parent, {"seq_len": 4, "sources": sources})


def test_a_text_is_found_with_its_tokens_and_the_rows_that_hold_some_of_them(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """#$%& is b's tokens 11 … 14: windows 2 (8 … 12), 3 (12 … 16)."""
    said = asked(capsys, "trace", tiny, "--find", "#$%&", "--samples", 14, "--batch-size", 5, "--text")
    (found,) = said["documents"]
    assert (found["source"], found["document"], found["start"], found["stop"]) == ("b", 1, 2, 6)
    assert found["text"] == DOCUMENTS["b"][1]
    assert [each["sample"] for each in found["samples"]] == [5, 7, 11, 12]
    assert said["complete"]


def test_a_text_does_not_run_over_the_edge_of_a_document(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "trace", tiny, "--find", "89", "--samples", 14)["documents"] == []
    assert len(asked(capsys, "trace", tiny, "--find", "78", "--samples", 14)["documents"]) == 1


def test_ids_of_two_bytes_are_found_where_they_begin_alone(tmp_path: Path) -> None:
    """The bytes of 97, 0, 98 are 61 00 00 00 62 00: those of 0 stand at byte 1 too, where no id begins."""
    identity = ByteTokenizer(append_eos=True, prepend_bos=False).identity
    with nc.CorpusWriter(tmp_path / "a", vocab_size=257, tokenizer=identity) as writer:
        writer.add([97, 0, 98, 256])
    plan = plan_file.open_plan(save(tmp_path, {"seq_len": 2, "sources": [{"path": "a"}]}))
    (found,) = find.find(plan, "\0", 9)["documents"]
    assert (found["start"], found["stop"]) == (1, 2)


def test_the_search_ends_at_max_documents_and_says_that_there_may_be_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a", [f"{number} is a number, a number" for number in range(30)])
    plan = save(tmp_path, {"seq_len": 4, "sources": [{"path": "a", "documents": [3, 28]}]})
    said = asked(capsys, "trace", plan, "--find", "number", "--samples", 20)
    assert [each["document"] for each in said["documents"]] == list(range(3, 13))
    assert not said["complete"]
    assert run("trace", plan, "--find", "number", "--samples", 20, "--max-documents", 2) == 0
    out = capsys.readouterr().out
    assert out.startswith("the text 'number' is in 2 documents; there may be more (--max-documents)\n")
    said = asked(capsys, "trace", plan, "--find", "number", "--samples", 20, "--max-documents", 100)
    assert (len(said["documents"]), said["complete"]) == (25, True)


@pytest.mark.parametrize("options", [{}, {"document_shuffle": True}, {"shuffle": "blocks", "chunk_windows": 3}])
def test_what_is_found_is_what_reading_every_row_finds(tmp_path: Path, options: dict[str, Any]) -> None:
    """Document d consists of the id d alone, and its tenth token of 255 − d."""
    for name, first in (("a", 0), ("b", 100)):
        with nc.CorpusWriter(tmp_path / name, vocab_size=256, tokens_per_shard=150) as writer:
            for number in range(20):
                tokens = np.full(5 + 3 * number, first + number, dtype=np.uint8)
                writer.add(tokens)
    sources = [{"path": "a", "name": "a", "weight": 2}, {"path": "b", "name": "b", "weight": 1, "documents": [3, 18]}]
    plan = plan_file.open_plan(
        save(tmp_path, {"seq_len": 16, "seed": 3, "sources": sources, "skip": [[40, 90]], **options})
    )
    samples = np.array([k for k in range(300) if not 40 <= k < 90])
    rows = plan.read(samples)["tokens"]
    for source, document, token in (("a", 0, 0), ("a", 19, 19), ("b", 3, 103), ("b", 17, 117)):
        expected = samples[(rows == token).any(axis=1)].tolist()
        said = find.find(plan, f"{source}:{document}", 300, batch_size=8)
        found = said["documents"][0]["samples"]
        assert [each["sample"] for each in found] == expected
        for each in found:  # and tracing the step shows the document in that row
            row = trace.report(plan, step=each["step"], batch_size=8)["rows"][each["row"]]
            assert row["sample"] == each["sample"]
            assert document in [piece["document"] for piece in row["pieces"]]
            assert row["source"] == source


def brute(plan: nc.Plan, source: int, document: int, span: tuple[int, int], stop: int) -> list[int]:
    """Return the samples whose rows hold a token of a span of a document, by writing each token's place into a corpus of the same shape."""
    corpus = plan.sources[source].corpus
    begin = int(corpus.document_offsets(document, document)[0])
    places = [
        nc.Source(nc.memory_corpus(_places(each.corpus), vocab_size=2**20), name=name, weight=each.weight)
        for each, name in zip(plan.sources, plan.names, strict=True)
    ]
    twin = nc.Plan(places, seq_len=plan.seq_len, seed=plan.seed, shuffle=plan.shuffle)
    rows = twin.read(np.arange(stop))
    wanted = (rows["tokens"] >= begin + span[0]) & (rows["tokens"] < begin + span[1])
    return np.flatnonzero(wanted.any(axis=1) & (rows["source"] == source)).tolist()


def _places(corpus: nc.Corpus) -> list[npt.NDArray[np.int64]]:
    edges = corpus.document_offsets(0, corpus.num_documents)
    return [np.arange(low, high) for low, high in zip(edges[:-1], edges[1:], strict=True)]


def texts() -> list[str]:
    random = np.random.default_rng(5)
    words = ["rain", "wind", "sea", "stone", "über", "日本", "moss"]
    made = [" ".join(random.choice(words, int(random.integers(5, 60)))) for _ in range(60)]
    return [*made[:30], f"{' '.join(made[30:36])} the needle, naïve and thin {made[31]}", *made[32:]]


@pytest.fixture(params=["byte", "char", "tokenizer.json"])
def prepared(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A plan over two corpora made by ``prepare``: one holds the needle."""
    tokenizer = request.param
    if tokenizer == "tokenizer.json":
        tokenizers = pytest.importorskip("tokenizers")
        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
        )
        model.train_from_iterator(texts(), trainer)
        tokenizer = tmp_path / "tokenizer.json"
        model.save(str(tokenizer))
    (tmp_path / "hay.txt").write_text("\n".join(texts()), "utf-8")
    (tmp_path / "more.txt").write_text("\n".join(text.replace("needle", "stone") for text in texts()), "utf-8")
    for name in ("hay", "more"):
        options = ("--tokenizer", tokenizer, "--append-eos", "--documents", "line", "--workers", 1)
        assert run("prepare", tmp_path / f"{name}.txt", tmp_path / name, *options, "--tokens-per-shard", 700) == 0
    sources = [{"path": "more", "name": "more", "weight": 1}, {"path": "hay", "name": "hay", "weight": 1}]
    return save(tmp_path, {"seq_len": 20, "seed": 9, "mixed_tokenizers": True, "sources": sources})


@pytest.mark.parametrize("small", [False, True])
def test_a_text_is_found_back_in_the_rows_of_its_steps(
    prepared: Path, small: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the corpora are searched in pieces that cut the text; it is found within tokens too."""
    if small:
        monkeypatch.setattr(find, "_CHUNK", 7)
        monkeypatch.setattr(find, "_PIECE", 7)
        monkeypatch.setattr(find, "_DOCUMENTS", 4)
    plan = plan_file.open_plan(prepared)
    for text in ("needle", "needle, naïve and", "eedle, na"):
        said = asked(capsys, "trace", prepared, "--find", text, "--samples", 2000, "--batch-size", 10, "--text")
        (found,) = said["documents"]
        assert (found["source"], found["document"], found["path"], found["line"]) == ("hay", 30, "hay.txt", 31)
        assert text in found["text"]
        span = (found["start"], found["stop"])
        tokenizer = trace.Texts(full=True).tokenizer(plan.sources[1].corpus)
        assert tokenizer is not None
        ids = plan.sources[1].corpus.document(30)[slice(*span)]
        assert text in tokenizer.decode(ids)
        assert text not in tokenizer.decode(ids[1:])
        assert text not in tokenizer.decode(ids[:-1])
        samples = [each["sample"] for each in found["samples"]]
        assert samples == brute(plan, 1, 30, span, 2000)
        seen = found["samples"][0]
        rows = asked(capsys, "trace", prepared, "--step", seen["step"], "--batch-size", 10, "--text", "--full")["rows"]
        row = rows[seen["row"]]
        assert row["sample"] == seen["sample"]
        assert (30, "hay.txt", 31) in [(each["document"], each["path"], each["line"]) for each in row["pieces"]]
        whole = trace.report(plan, samples=samples, text=True, full=True)["rows"]
        shown = ["".join(each["text"] for each in row["pieces"]) for row in whole]
        assert any(text in each for each in shown) or len(ids) > 6  # some row is not cut inside of a short one


def test_a_text_that_is_nowhere_is_exit_0_and_said(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("haystacks", "needle  naïve", "\U0001f600"):
        capsys.readouterr()
        assert run("trace", prepared, "--find", text, "--samples", 500) == 0
        assert capsys.readouterr().out == f"the text {text!r} is in no document that was searched\n"


def test_long_text_is_shown_by_its_ends_unless_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(chr(97 + number % 26) for number in range(300))
    write(tmp_path / "a", [text])
    plan = save(tmp_path, {"seq_len": 200, "shuffle": "none", "sources": [{"path": "a"}]})
    (row,) = asked(capsys, "trace", plan, "--sample", 0, "--text")["rows"]
    assert row["pieces"][0]["text"] == f"{text[:64]} [… 73 tokens …] {text[137:201]}"
    assert row["pieces"][0]["tokens_left_out"] == 73
    (row,) = asked(capsys, "trace", plan, "--sample", 0, "--text", "--full")["rows"]
    assert row["pieces"][0]["text"] == text[:201]


def test_where_the_tokenizer_is_not_known_ids_are_shown_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old.bin").write_bytes(np.arange(300, dtype="<u2").tobytes())
    source = {"path": "old.bin", "dtype": "uint16", "boundaries": "fixed:100"}
    plan = save(tmp_path, {"seq_len": 250, "shuffle": "none", "sources": [source]})
    said = asked(capsys, "trace", plan, "--sample", 0, "--text")
    first, second, third = said["rows"][0]["pieces"]
    assert (first["ids"], first["shard"]) == (list(range(100)), "old.bin")
    assert second["ids"] == list(range(100, 200))
    assert third["ids"] == list(range(200, 251))
    assert said["notes"] == [
        f"{tmp_path / 'old.bin'}: which tokenizer made its ids is not recorded: they have no text."
    ]
    assert run("trace", plan, "--find", "text", "--samples", 5) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no source can be searched for a text: " in err


def test_a_tokenizer_that_is_missing_or_another_one_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("rain and wind and rain")
    assert run("prepare", tmp_path / "a.txt", tmp_path / "a", "--tokenizer", "char") == 0
    plan = save(tmp_path, {"seq_len": 8, "sources": [{"path": "a"}]})
    definition = tmp_path / "a" / "tokenizer.json"
    for damage, said in ((lambda: definition.write_text("{}"), "another tokenizer"), (definition.unlink, "not beside")):
        damage()
        report = asked(capsys, "trace", plan, "--sample", 0, "--text")
        assert "ids" in report["rows"][0]["pieces"][0]
        assert len(report["notes"]) == 1
        assert said in report["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--find", "a:4", "--samples", "9"], "document 4 is no document of source 'a', which has 0 … 3"),
        (["--find", "", "--samples", "9"], "--find is empty"),
        (["--sample", str(2**62)], "lies beyond the last one, 2^62 - 1"),
        (["--step", str(2**62), "--batch-size", "5"], "lies beyond the last sample, 2^62 - 1"),
        (["--step", "1", "--batch-size", "5", "--rank", "0/2"], "2 ranks do not divide: the nearest that they do: 4 or 6"),
        (["--sample", "16"], "sample 16 would serve it beyond its max_epochs=2.5"),
        (["--find", "b:0", "--samples", "17"], "sample 16 would serve it beyond its max_epochs=2.5"),
        (["--find", "b:0", "--step", "2", "--batch-size", "5"], "sample 16 would serve it beyond its max_epochs=2.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_exit_1(
    tiny: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [TINY["sources"][0], {**TINY["sources"][1], "max_epochs": 2.5}]
    assert run("trace", save(tiny.parent, {**TINY, "sources": sources}), *arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("millstream trace: ")
    assert said in err


def test_more_samples_than_there_are_is_refused(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trace", tiny, "--find", "a:0", "--samples", 2**63) == 1
    assert "expected an integer from 0 to 4,611,686,018,427,387,904" in capsys.readouterr().err


def test_a_document_that_was_seen_millions_of_times_is_refused_before_it_takes_the_memory(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", tiny, "--find", "b:0", "--samples", 10**15) == 1
    assert "ends 199,999,999,999,999 epochs before" in capsys.readouterr().err  # ⌊(10^15 − 8 + 4) / 5⌋


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of --step N --batch-size B, --sample N, or --find WHAT"),
        (["--step", "1"], "--step needs --batch-size"),
        (["--step", "1", "--batch-size", "5", "--sample", "3"], "give one of"),
        (["--samples", "3"], "give one of"),
        (["--sample", "3", "--samples", "3"], "--samples goes with --find; to trace samples: --sample"),
        (["--sample", "3", "--rank", "0/1"], "--rank goes with --step"),
        (["--sample", "3", "--max-documents", "1"], "--max-documents goes with --find"),
        (["--sample", "3", "--full"], "--full needs --text"),
        (["--find", "x"], "--find needs one of --samples N and --step N --batch-size B"),
        (["--find", "x", "--samples", "5", "--step", "1", "--batch-size", "2"], "--find needs one of"),
        (["--find", "x", "--sample", "5"], "to say how far the run is: --samples N"),
        (["--step", "1", "--batch-size", "5", "--rank", "2/2"], "'2/2' is no rank R/W"),
        (["--step", "1", "--batch-size", "5", "--rank", "1"], "'1' is no rank R/W"),
        (["--step", "-1", "--batch-size", "5"], ""),
        (["--sample", "3", "--txt"], "did you mean --text?"),
    ],
)
def test_a_wrong_command_line_is_exit_2(
    tiny: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("trace", tiny, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]
