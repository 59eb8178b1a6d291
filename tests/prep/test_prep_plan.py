"""``millstream plan``: every figure worked out by hand for a tiny plan, or counted sample by sample; plan files that are refused; the page.

The tiny plan, with seq_len 4: source a has 41 tokens, ⌊40 / 4⌋ = 10 windows and 1 token left out; b has 23, 5 windows and 3 left out. From sample 0
on both weigh the same, so they take turns, a first; from sample 8 on b alone is served. Samples 2, 3 and 4 are skipped.

    sample    0  1  2  3  4  5  6  7  8  9 … 19
    source    a  b  a  b  a  b  a  b  b  b … b
    draw      0  0  1  1  2  2  3  3  4  5 … 15
    skipped         x  x  x
    place     0  1           2  3  4  5  6 … 16
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tiny_plan import BYTES, TINY, asked, run, save

import neutral_core as nc
from prep import plan_file, plan_needs, plan_page, plan_report

ROOT = Path(__file__).parents[2]


def write(path: Path, lengths: list[int], *, tokens_per_shard: int = 1 << 20) -> None:
    """Write a corpus of bytes with documents of these lengths."""
    with nc.CorpusWriter(path, vocab_size=256, tokenizer=BYTES, tokens_per_shard=tokens_per_shard) as writer:
        for number, length in enumerate(lengths):
            writer.add(np.full(length, 97 + number % 26))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """The tiny plan as a file."""
    write(tmp_path / "a", [10, 0, 14, 17])
    write(tmp_path / "b", [9, 14])
    return save(tmp_path, TINY)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line on standard error; there is nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    return err


def test_totals_are_those_worked_out_by_hand(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys, "plan", tiny, "--samples", 20, "--batch-size", 5)
    assert (said["samples"], said["samples_skipped"], said["tokens"]) == (17, 3, 68)
    assert said["batches"] == {
        "batch_size": 5,
        "dp_world_size": 1,
        "rows_per_rank": 5,
        "steps": 3,
        "samples_left_over": 2,
        "padding_rows": 3,
    }
    assert said["plan"] == str(tiny)
    assert said["refused"] is None
    assert said["skips"] == [[2, 5]]


def test_each_phase_and_source_has_the_figures_worked_out_by_hand(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = asked(capsys, "plan", tiny, "--samples", 20)["phases"]
    assert (first["start"], first["stop"], first["samples"]) == (0, 8, 5)
    a, b = first["sources"]
    assert (a["samples"], a["tokens"], a["share_asked"], a["share_got"]) == (2, 8, 0.5, 0.4)
    assert (a["epochs_start"], a["epochs_end"]) == (0, 0.4)  # skipped ones too: 4 of 10 windows
    assert (b["samples"], b["tokens"], b["share_got"], b["epochs_end"]) == (3, 12, 0.6, 0.8)
    assert (second["start"], second["stop"], second["samples"]) == (8, 20, 12)
    (alone,) = second["sources"]
    assert (alone["source"], alone["samples"], alone["share_asked"], alone["share_got"]) == ("b", 12, 1, 1)
    assert (alone["epochs_start"], alone["epochs_end"]) == (0.8, 3.2)


def test_each_source_has_the_figures_worked_out_by_hand(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = asked(capsys, "plan", tiny, "--samples", 20, "--batch-size", 5)["sources"]
    assert (a["documents"], a["tokens_in_corpus"], a["windows_per_epoch"]) == (4, 41, 10)
    assert (a["tokens_left_out_per_epoch"], a["tokens_padded_per_epoch"]) == (1, 0)
    assert (a["samples"], a["samples_skipped"], a["tokens"], a["epochs"]) == (2, 2, 8, 0.4)
    assert a["first_repeat"] is None
    assert (b["windows_per_epoch"], b["tokens_left_out_per_epoch"]) == (5, 3)
    assert (b["samples"], b["samples_skipped"], b["tokens"], b["epochs"]) == (15, 1, 60, 3.2)
    assert b["first_repeat"] == {"sample": 9, "step": 1}  # draw 5 is in place 6
    assert (a["max_epochs"], a["max_epochs_reached"]) == (None, None)


def test_a_source_repeats_at_draw_n_exactly(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, "plan", tiny, "--samples", 9)["sources"][1]["first_repeat"] is None
    assert asked(capsys, "plan", tiny, "--samples", 10)["sources"][1]["first_repeat"] == {"sample": 9, "step": None}


def test_a_repeat_behind_the_last_whole_batch_is_in_no_step(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repeat = asked(capsys, "plan", tiny, "--samples", 10, "--batch-size", 5)["sources"][1]["first_repeat"]
    assert repeat == {"sample": 9, "step": None}  # 7 places: the second batch is not whole


def test_tokens_count_rows_that_are_served(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """58 tokens are 15 rows of 4; the fifteenth place is sample 17."""
    said = asked(capsys, "plan", tiny, "--tokens", 58)
    assert (said["num_samples"], said["samples"], said["tokens"]) == (18, 15, 60)


def test_max_epochs_is_refused_as_the_loader_does_with_exit_1(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2.5 epochs are 12 draws; draw 12 is sample 16."""
    sources = [TINY["sources"][0], {**TINY["sources"][1], "max_epochs": 2.5}]
    path = save(tiny.parent, {**TINY, "sources": sources})
    assert asked(capsys, "plan", path, "--samples", 16)["refused"] is None
    said = asked(capsys, "plan", path, "--samples", 17, "--batch-size", 4, status=1)
    assert said["sources"][1]["max_epochs_reached"] == {
        "sample": 16,
        "step": None,
    }  # place 13, behind the 3 whole batches
    assert said["samples"] == 14
    with pytest.raises(nc.ExhaustedError) as refusal:
        nc.Loader(plan_file.open_plan(path), batch_size=4, num_samples=17)
    assert said["refused"] == str(refusal.value)
    assert "source 'b': sample 16 would serve it beyond its max_epochs=2.5 (12 samples)" in said["refused"]
    assert run("plan", path, "--samples", 17, "--plot", tiny.parent / "p.html") == 1
    out, err = capsys.readouterr()
    assert err == f"millstream plan: {said['refused']}\n"
    assert f"REFUSED: {said['refused']}" in out
    assert "Refused: source &#x27;b&#x27;" in (tiny.parent / "p.html").read_text("utf-8")


def test_the_text_says_the_same_figures(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", tiny, "--samples", 20, "--batch-size", 6, "--dp-world-size", 3) == 0
    out = capsys.readouterr().out
    for line in (
        "2 sources, seq_len 4, seed 0, concat windows, shuffle global",
        "samples 0 … 19: 17 served, 3 skipped; 68 tokens (targets)",
        "2 steps of 6 rows, 2 on each of 3 ranks; 5 samples after the last whole batch: last='drop' leaves them out, last='pad' makes one more step "
        "with 1 padding row",
        "phase 1, samples 0 … 7: 5 served",
        "phase 2, samples 8 … 19: 12 served",
        "files: 2 shards, about 2 touched in turn; at most",
    ):
        assert line in out
    table = [" ".join(line.split()) for line in out.splitlines()]
    assert "b 3 12 50.00% 60.00% 0.000 0.800" in table
    assert "b 12 48 100.00% 100.00% 0.800 3.200" in table
    assert "a 4 41 10 1 0 2 8 0.400 not in this run" in table
    assert "b 2 23 5 3 0 15 60 3.200 sample 9, step 1" in table


def test_a_run_that_ends_before_a_phase_says_so(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", tiny, "--samples", 8) == 0
    assert "not reached: 1 later phase" in capsys.readouterr().out
    assert len(asked(capsys, "plan", tiny, "--samples", 8)["phases"]) == 1


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_going_through_the_samples(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 6))
    sources = [
        nc.Source(nc.memory_corpus([np.arange(int(random.integers(20, 90)))]), name=f"s{i}", weight=int(random.integers(1, 9)))
        for i in range(count)
    ]  # fmt: skip
    edges = np.sort(random.choice(np.arange(1, 400), 2, replace=False)).tolist()
    phases = [nc.Phase(edge, {f"s{i}": int(random.integers(0, 5)) + (i == 0) for i in range(count)}) for edge in edges]
    starts = random.integers(0, 500, 3).tolist()
    skip = [(start, start + int(random.integers(1, 60))) for start in starts]
    plan = nc.Plan(sources, seq_len=3, seed=seed, phases=phases, skip=skip)
    for num_samples in (1, edges[0], 450):
        said = plan_report.report(plan, num_samples, batch_size=7)
        samples = np.array([k for k in range(num_samples) if not any(low <= k < high for low, high in skip)], dtype=int)
        located = plan.locate(samples)
        counts = np.bincount(located.source, minlength=count).tolist()
        assert [entry["samples"] for entry in said["sources"]] == counts
        assert said["batches"]["steps"] == len(samples) // 7
        for phase in said["phases"]:
            mine = located.source[(samples >= phase["start"]) & (samples < phase["stop"])]
            assert phase["samples"] == len(mine)
            for entry in phase["sources"]:
                assert entry["samples"] == int((mine == plan.names.index(entry["source"])).sum())
        everything = plan.locate(np.arange(num_samples))
        for index, entry in enumerate(said["sources"]):
            again = np.flatnonzero((everything.source == index) & (everything.epoch == 1))
            assert (entry["first_repeat"] or {"sample": None})["sample"] == (int(again[0]) if len(again) else None)


def test_yaml_and_json_make_the_same_plan_and_paths_are_the_files_own(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yaml = pytest.importorskip("yaml")
    for name in ("plan.yaml", "plan.yml"):
        (tiny.parent / name).write_text(yaml.safe_dump(TINY))
        assert plan_file.open_plan(tiny.parent / name).fingerprint == plan_file.open_plan(tiny).fingerprint
    monkeypatch.chdir(tiny.parent)
    assert plan_file.open_plan("plan.json").fingerprint == plan_file.open_plan(tiny).fingerprint


def test_an_exponent_without_a_point_is_the_number_that_it_says(tiny: Path) -> None:
    """YAML 1.1 reads 1e-9 as text."""
    pytest.importorskip("yaml")
    path = tiny.parent / "plan.yaml"
    path.write_text(
        "seq_len: 4\nsources: [{path: a, name: a, weight: 1e-9}, {path: b, name: b, weight: 1}]\n",
    )
    weights = plan_file.open_plan(path).phases[0].weights
    assert weights == {"a": 1, "b": 10**9}


WRONG_FILES: list[tuple[str, str, str]] = [
    ("plan.toml", "", "a plan file ends in .json, .yaml, .yml or .txt: rename it"),
    ("plan.json", "{", "line 1, column 2: it is no JSON"),
    ("plan.json", '{"seq_len": 4, "seq_len": 5}', "the key 'seq_len' occurs twice in one object: keep one"),
    ("plan.json", '{"sources": [{"path": "a", "path": "b"}]}', "the key 'path' occurs twice"),
    ("plan.json", '{"seq_len": NaN}', "NaN is no number"),
    ("plan.json", "[" * 100_000, "nested too deeply"),
    ("plan.json", "[]", "the plan is [], expected an object with sources, seq_len"),
    ("plan.json", '{"seq_len": 4, "sources": []}', "sources is empty"),
    ("plan.json", '{"seqlen": 4}', "'seqlen' is no key of it"),
    ("plan.json", '{"seq_len": 400, "sources": [{"path": "a"}]}', "has 41 tokens, fewer than the 401 of one row"),
    (
        "plan.json",
        '{"seq_len": 4, "sources": [{"path": "a"}], "phases": [{"sample": 5, "weights": 1}]}',
        "weights is int, expected a dict",
    ),
    (
        "plan.yaml",
        "seq_len: 4\nsources:\n- {path: a,\n   path: b}\n",
        "line 4: the key 'path' occurs twice in one mapping",
    ),
    ("plan.yaml", "seq_len: [4\n", "line 2: it is no YAML"),
    ("plan.yaml", "seq_len: 4\n---\nseq_len: 5\n", "line 2: it is no YAML"),
    ("plan.yaml", "seq_len: 2024-99-01\n", "month must be in 1..12"),
    ("plan.yaml", "seq_len: \x01\n", "it is no YAML"),
    ("plan.yaml", "", "the plan is None, expected an object"),
    ("plan.yaml", "a: !!python/object:os.system x\n", "it is no YAML"),
]


@pytest.mark.parametrize("number", range(len(WRONG_FILES)))
def test_a_wrong_file_is_one_sentence_that_names_it(
    tiny: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    name, text, said = WRONG_FILES[number]
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    path = tiny.parent / name
    path.write_text(text)
    assert run("plan", path, "--samples", 5) == 1
    line = sentence(capsys)
    assert line.startswith(f"millstream plan: {path}: ")
    assert said in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fast_llm_dataset.json", '{"datasets": [{"prefix": "a", "weight": 0.5}, {"prefix": "b", "weight": 0.5}]}'),
        (
            "fast_llm_config.yaml",
            "type: blended\ndatasets: [{type: memmap, path: a}, {type: memmap, path: b}]\nweights: [1, 1]\n",
        ),
        ("blend.txt", "0.5 a 0.5 b"),
        ("splits.json", '{"train": ["1", "a", "1", "b"], "valid": ["a"]}'),
    ],
)
def test_a_mixture_of_another_tools_is_a_plan_with_seq_len(
    tiny: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.parent / name
    path.write_text(text)
    split = ["--split", "train"] if name == "splits.json" else []
    assert run("plan", path, "--samples", 10, "--seq-len", 4, *split, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [(entry["source"], entry["samples"]) for entry in said["sources"]] == [("a", 5), ("b", 5)]
    if name.endswith(".json"):
        assert run("plan", path, "--samples", 10) == 1
        assert sentence(capsys).endswith("(If it is a mixture of another tool's: give --seq-len.)\n")


def test_a_plan_says_seq_len_itself(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", tiny, "--samples", 10, "--seq-len", 4) == 1
    assert "a plan says seq_len and split itself: leave --seq-len and --split out" in sentence(capsys)


def test_an_alias_of_a_mapping_is_no_key_twice(tiny: Path) -> None:
    pytest.importorskip("yaml")
    path = tiny.parent / "plan.yaml"
    path.write_text(
        "seq_len: 4\nsources: [{path: a, name: a}, {path: b, name: b}]\n"
        "phases: [{sample: 5, weights: &w {a: 1, b: 2}}, {sample: 9, weights: {<<: *w, b: 3}}]\n"
    )
    assert dict(plan_file.open_plan(path).phases[2].weights) == {"a": 1, "b": 3}


def test_what_is_no_utf_8_is_named_with_its_byte(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_bytes(b'{"seq_len": "\xff"}')
    assert run("plan", tiny, "--samples", 5) == 1
    assert f"{tiny}: byte 13 is not UTF-8" in sentence(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--samples", "5", "--batch-size", "6", "--dp-world-size", "4"], "4 ranks do not divide: the nearest that they do: 4 or 8"),
        (["--samples", str(2**62 + 1)], "expected an integer from 0 to 4,611,686,018,427,387,904"),
        (["--tokens", str(2**70)], "more than the plan's samples hold"),
        (["--samples", "5", "--plot", "{tmp}/no/p.html"], "no/p.html: No such file or directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_exit_1(
    tiny: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", tiny, *(argument.format(tmp=tiny.parent) for argument in arguments)) == 1
    assert said in sentence(capsys)


@pytest.mark.parametrize("missing", ["plan", "corpus"])
def test_what_is_missing_is_named(tiny: Path, missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    if missing == "corpus":
        save(tiny.parent, {"seq_len": 4, "sources": [{"path": "nowhere"}]})
    assert run("plan", tiny if missing == "corpus" else tiny.parent / "no.json", "--samples", 5) == 1
    assert ("nowhere" if missing == "corpus" else "no.json: No such file or directory.") in sentence(capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of the arguments --samples --tokens is required"),
        (["--samples", "5", "--tokens", "9"], "not allowed with"),
        (["--samples", "0"], "'0' is no positive whole number"),
        (["--samples", "5", "--dp-world-size", "2"], "--dp-world-size needs --batch-size"),
        (["--samples", "5", "--plot", "p.png"], "does not end in .html"),
        (["--samples", "5", "--bach-size", "4"], "did you mean --batch-size?"),
    ],
)
def test_a_wrong_command_line_is_exit_2(
    tiny: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", tiny, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err.splitlines()[-1]


def test_yaml_without_its_library_says_what_to_install(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny.parent / "plan.yaml").write_text("seq_len: 4\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert run("plan", tiny.parent / "plan.yaml", "--samples", 5) == 1
    assert "a plan in YAML needs yaml: pip install 'millstream[prep]'" in sentence(capsys)


ALONE = """
import sys
before = set(sys.modules)
from prep.cli import main
assert main(["plan", sys.argv[1], "--samples", "20", "--batch-size", "5", "--plot", sys.argv[1] + ".html"]) == 0
assert main(["trace", sys.argv[1], "--step", "0", "--batch-size", "5", "--text"]) == 0
assert main(["trace", sys.argv[1], "--find", "cccc", "--samples", "20"]) == 0
known = set(sys.stdlib_module_names) | {"numpy", "neutral_core", "prep", "__mp_main__"}
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - known), file=sys.stderr)
"""


def test_over_a_plan_in_json_numpy_is_all_that_is_loaded(tiny: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ALONE, str(tiny)], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "[]\n")


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from prep.cli import main
sys.exit(main(["plan", sys.argv[1], "--samples", "5", "--json"]))
"""


def test_a_global_shuffle_over_more_shards_than_are_held_open_is_warned_of(tmp_path: Path) -> None:
    """40 shards where 64 open files are allowed, of which half are held; a chunk of 8 tokens lies in 2 shards of 10 at most."""
    write(tmp_path / "many", [10] * 40, tokens_per_shard=10)
    for shuffle, chunks, warned in (
        ("global", 0, True),
        ("none", 0, False),
        ("blocks", 16, False),
        ("blocks", 17, True),
    ):
        options = {"chunk_windows": 2, "group_chunks": chunks} if shuffle == "blocks" else {}
        path = save(tmp_path, {"seq_len": 4, "sources": [{"path": "many"}], "shuffle": shuffle, **options})
        done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")
        said = json.loads(done.stdout)
        assert said["files"]["shards"] == 40
        assert said["files"]["max_held"] == 32
        assert bool(said["warnings"]) == warned, (shuffle, chunks)
        if shuffle == "global":
            assert re.fullmatch(
                r"thrashing: shuffle 'global' touches 40 shards in turn, but a process holds 32 open at once .* about 20% of the rows .*: "
                r"raise `ulimit -n` to 80 or more, or "
                r"make larger shards \(--tokens-per-shard\), or use shuffle: blocks\.",
                said["warnings"][0],
            )


def test_shards_of_one_corpus_are_counted_once_and_those_of_other_parts_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "many", [10] * 12, tokens_per_shard=10)
    corpus = nc.open_corpus(tmp_path / "many")
    parts = [slice(0, 3), slice(1, 5), slice(8, 9)]
    sources = [nc.Source(corpus, name=str(part), documents=part) for part in parts]
    said = plan_report.report(nc.Plan(sources, seq_len=4, seed=1), 50)
    assert said["files"]["shards"] == 6  # 0 … 4 and 8
    assert said["memory"]["page_cache_bytes"] == 60
    assert said["warnings"] == [
        "sources 'slice(0, 3, None)' and 'slice(1, 5, None)' serve the same documents of one corpus: these repeat although no epoch has ended."
    ]
    monkeypatch.setattr(plan_needs, "max_held", lambda: 5)
    assert plan_report.report(nc.Plan(sources, seq_len=4, seed=1), 50)["files"]["descriptors"] in (0, 5)
    # Where the third alone is served, its one shard is all.
    weights = {"weight": 0}, {"weight": 0}, {"weight": 1}
    alone = [nc.Source(corpus, name=str(part), documents=part, **one) for part, one in zip(parts, weights, strict=True)]
    said = plan_report.report(nc.Plan(alone, seq_len=4, seed=1), 50)
    assert said["files"]["shards"] == 1
    assert said["warnings"] == ["not served in this run: 'slice(0, 3, None)', 'slice(1, 5, None)'."]


def test_parts_that_overlap_are_named_whichever_came_before(tmp_path: Path) -> None:
    corpus, other = nc.memory_corpus([np.arange(10)] * 9), nc.memory_corpus([np.arange(11)] * 9)
    for parts, said in (
        ((slice(0, 3), slice(3, 5), slice(5, 9)), None),
        ((slice(0, 3), slice(3, 6), slice(5, 9)), "sources '1' and '2' serve"),
        ((slice(0, 9), slice(1, 2), slice(5, 7)), "sources '0' and '1' (and 1 more) serve"),
    ):
        sources = [nc.Source(corpus, name=str(number), documents=part) for number, part in enumerate(parts)]
        sources.append(nc.Source(other, name="other"))
        warnings = plan_report.report(nc.Plan(sources, seq_len=4), 500)["warnings"]
        assert len(warnings) == (said is not None)
        assert said is None or warnings[0].startswith(said)


def test_the_memory_of_the_loader_is_that_of_its_chunks() -> None:
    """3 chunks of 256 rows; a row is 9 tokens of 2 bytes, with segment_ids and positions 8 more bytes a token, and 12 for source and sample."""
    source = nc.Source(nc.memory_corpus([np.arange(100)], vocab_size=300))
    for documents, row in ((False, 9 * 2 + 12), (True, 9 * 2 + 9 * 8 + 12)):
        plan = nc.Plan(source, seq_len=8, documents=documents)
        assert plan_report.report(plan, 5)["memory"]["loader_bytes"] == 3 * 256 * row
        large = plan_report.report(plan, 5, batch_size=600, dp_world_size=2)
        assert large["memory"]["loader_bytes"] == 3 * 300 * row
        assert large["memory"]["page_cache_bytes"] == 200 + 8 * documents


class Page(HTMLParser):
    """What stands in a page: its start tags, its text, and where it would fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.fetches: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetches.extend(str(value) for name, value in attrs if name in ("src", "href", "xlink:href"))

    def handle_data(self, data: str) -> None:
        self.text += data


def svg_of(text: str) -> ElementTree.Element:
    """Return the page's plot; a plot that is no XML fails here."""
    found = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert found
    return ElementTree.fromstring(found.group())


SVG = "{http://www.w3.org/2000/svg}"


def test_the_plot_draws_the_shares_of_each_phase(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Phase 1 is 8 of 20 samples wide, 60% b and 40% a; phase 2 is b alone; the dashed line is at sample 9."""
    assert run("plan", tiny, "--samples", 20, "--batch-size", 5, "--plot", tiny.parent / "p.html") == 0
    text = (tiny.parent / "p.html").read_text("utf-8")
    svg = svg_of(text)
    bands = {
        title.text: rect
        for rect in svg.iter(f"{SVG}rect")
        for title in rect.iter(f"{SVG}title")
        if "of phase" in str(title.text)
    }
    assert set(bands) == {"b: 60.00% of phase 1", "a: 40.00% of phase 1", "b: 100.00% of phase 2"}
    low, high, alone = (
        bands[name] for name in ("b: 60.00% of phase 1", "a: 40.00% of phase 1", "b: 100.00% of phase 2")
    )

    def number(rect: ElementTree.Element, name: str) -> float:
        return float(rect.attrib[name])

    tall, wide = number(alone, "height"), number(alone, "width") / 12 * 20
    assert number(low, "height") == pytest.approx(0.6 * tall)
    assert number(high, "height") == pytest.approx(0.4 * tall)
    assert number(high, "y") + number(high, "height") == pytest.approx(number(low, "y"))
    assert number(low, "width") == pytest.approx(wide * 8 / 20, abs=0.02)
    assert low.attrib["fill"] == alone.attrib["fill"] != high.attrib["fill"]
    (line,) = [line for line in svg.iter(f"{SVG}line") if "stroke-dasharray" in line.attrib]
    assert number(line, "x1") - number(low, "x") == pytest.approx(wide * 9 / 20, abs=0.02)
    (skip,) = [rect for rect in svg.iter(f"{SVG}rect") if rect.attrib.get("fill") == "url(#skip)"]
    assert number(skip, "x") - number(low, "x") == pytest.approx(wide * 2 / 20, abs=0.02)
    assert number(skip, "width") == pytest.approx(wide * 3 / 20, abs=0.02)
    words = Page(text).text
    for said in ("phase 1", "phase 2", "b repeats", "a step 5 samples", "sample 9, step 1", "17 served, 3 skipped"):
        assert said in words


def test_a_page_fetches_nothing_and_names_are_escaped(tmp_path: Path) -> None:
    name = "<script>alert('&')</script>\""
    source = nc.Source(nc.memory_corpus([np.arange(100)]), name=name, weight=1)
    plan = nc.Plan([source, nc.Source(nc.memory_corpus([np.arange(99)]), name="b", weight=1)], seq_len=4)
    said = plan_report.report(plan, 500, batch_size=4)
    text = plan_page.page(said, "<i>title")
    page = Page(text)
    assert "script" not in page.tags
    assert "i" not in page.tags
    assert name in page.text
    assert page.fetches == []
    assert "url(http" not in text.replace(" ", "")
    assert any(name in str(title.text) for title in svg_of(text).iter(f"{SVG}title"))


def test_many_sources_are_folded_into_one_band_that_makes_up_the_rest(tmp_path: Path) -> None:
    """1,000 sources, the first 10 of weight 100, the others of weight 1: the ten are drawn, 990 are 990/1990 of the height."""
    corpus = nc.memory_corpus([np.arange(50)] * 1000)
    sources = [
        nc.Source(corpus, name=f"s{i}", weight=100 if i < 10 else 1, documents=slice(i, i + 1)) for i in range(1000)
    ]
    said = plan_report.report(nc.Plan(sources, seq_len=4), 19900)
    text = plan_page.page(said, "many")
    titles = [str(title.text) for title in svg_of(text).iter(f"{SVG}title")]
    drawn = [title for title in titles if "of phase" in title]
    assert len(drawn) == 11
    assert "other sources: 49.75% of phase 1" in drawn
    assert "49.75% 990 others" in Page(text).text
    assert "s0: 5.03% of phase 1" in drawn
    lines = plan_report.lines_of(said)
    assert len(lines) < 110
    assert any("… and 960 more sources: 9,600 samples, 38,400 tokens" in line for line in lines)


def test_the_readmes_plan_and_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("yaml")
    section = (ROOT / "README.md").read_text("utf-8").partition("## Before and after a run\n")[2].partition("\n## ")[0]
    (plan,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (commands,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(plan)
    for place in re.findall(r"path: ([^,]*),", plan):
        with nc.CorpusWriter(place, vocab_size=256, tokenizer=BYTES) as writer:
            for number in range(300):
                writer.add(
                    np.frombuffer(f"{number}: the rain in Spain falls mainly on the plain. ".encode() * 4, np.uint8)
                )
    for line in commands.splitlines():
        words = re.findall(r'"[^"]*"|\S+', line.partition("#")[0])
        assert words[0] == "millstream"
        assert run(*(word.strip('"') for word in words[1:])) == 0, line
        assert capsys.readouterr().out
    assert Path("plan.html").exists()
