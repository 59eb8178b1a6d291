"""Plans: what they refuse, what they locate, and what documents look like in a row."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neutral_core as nc


def corpus_of(*lengths: int, start: int = 0) -> nc.Corpus:
    """A corpus whose token ids are their places in the stream."""
    edges = np.cumsum([0, *lengths])
    return nc.memory_corpus(
        [start + np.arange(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)], vocab_size=2**16
    )


def test_file_order_is_the_token_stream_in_rows_that_overlap_by_one() -> None:
    plan = nc.Plan(nc.Source(corpus_of(10)), seq_len=3, shuffle="none")
    assert plan.read([0, 1, 2, 3])["tokens"].tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9], [0, 1, 2, 3]]
    assert plan.locate([0, 1, 2, 3]).epoch.tolist() == [0, 0, 0, 1]


def test_positions_restart_in_each_document_and_at_the_rows_start() -> None:
    # Documents end with 3: [1 3] [3] [3] [1 3] [3 …]; the case of the public report on positions after a boundary.
    corpus = nc.memory_corpus([[9, 1, 3, 3, 3], [1, 3, 3], [5, 5, 5]], vocab_size=10)
    plan = nc.Plan(nc.Source(corpus), seq_len=9, shuffle="none", documents=True)
    batch = plan.read([0])
    assert batch["tokens"].tolist() == [[9, 1, 3, 3, 3, 1, 3, 3, 5, 5]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 0, 1]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 1, 2, 2, 2, 3, 3]]


def test_an_end_of_text_id_belongs_to_the_document_before_it() -> None:
    corpus = nc.memory_corpus([[1, 2, 0], [3, 0], [4, 5, 0]], vocab_size=10)
    batch = nc.Plan(nc.Source(corpus), seq_len=7, shuffle="none", documents=True).read([0])
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 3, 3, 3]]


def test_empty_documents_take_no_segment_id() -> None:
    corpus = nc.memory_corpus([[], [1, 2], [], [], [3, 4], []], vocab_size=10)
    batch = nc.Plan(nc.Source(corpus), seq_len=3, shuffle="none", documents=True).read([0])
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 2]]


def test_the_join_of_end_and_start_is_a_document_joint() -> None:
    plan = nc.Plan(nc.Source(corpus_of(20)), seq_len=4, seed=0, documents=True)
    batch = plan.read(np.arange(200))
    for tokens, segments, positions in zip(batch["tokens"], batch["segment_ids"], batch["positions"], strict=True):
        crosses = np.flatnonzero(np.diff(tokens.astype(int)) < 0)
        at = int(crosses[0]) + 1 if len(crosses) else 5
        assert segments.tolist() == [1] * at + [2] * (5 - at)
        assert positions.tolist() == [*range(at), *range(5 - at)]


@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    seq_len=st.integers(1, 9),
    extra=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_rows_hold_what_a_plain_model_says(lengths: list[int], seq_len: int, extra: int, seed: int) -> None:
    total, row = sum(lengths), seq_len + 1 + extra
    if total < row:
        return
    owner = np.repeat(np.arange(len(lengths)), lengths)
    plan = nc.Plan(nc.Source(corpus_of(*lengths)), seq_len=seq_len, extra_tokens=extra, seed=seed, documents=True)
    samples = np.arange(min(3 * int(plan.num_windows[0]), 60))
    batch, located = plan.read(samples), plan.locate(samples)
    for k in samples:
        places = [(int(located.start[k]) + i) % total for i in range(row)]
        assert batch["tokens"][k].tolist() == places
        segment, position = [1], [0]
        for before, place in zip(places[:-1], places[1:], strict=True):
            new = owner[before] != owner[place] or place == 0
            segment.append(segment[-1] + new)
            position.append(0 if new else position[-1] + 1)
        assert batch["segment_ids"][k].tolist() == segment
        assert batch["positions"][k].tolist() == position


def test_parts_of_a_corpus_are_streams_of_their_own() -> None:
    corpus = corpus_of(7, 0, 9, 11, 5, 13)
    train = nc.Plan(nc.Source(corpus, documents=slice(0, 4)), seq_len=3, seed=1)
    held_out = nc.Plan(nc.Source(corpus, documents=slice(4, None)), seq_len=3, seed=1)
    assert train.read(np.arange(100))["tokens"].max() == 26
    assert held_out.read(np.arange(100))["tokens"].min() == 27
    assert train.num_windows.tolist() == [26 // 3]
    assert held_out.num_windows.tolist() == [17 // 3]
    assert train.trace([0])[0].pieces[0].document < 4 <= held_out.trace([0])[0].pieces[0].document


def test_samples_of_windows_are_the_inverse_of_locate() -> None:
    sources = [nc.Source(corpus_of(500), name="a", weight="0.8"), nc.Source(corpus_of(90), name="b", weight="0.2")]
    plan = nc.Plan(sources, seq_len=7, seed=5)
    samples = np.concatenate([np.arange(1000), 10**12 + np.arange(1000)])
    located = plan.locate(samples)
    for source in (0, 1):
        mine = located.source == source
        assert (plan.sample_of(source, located.epoch[mine], located.window[mine]) == samples[mine]).all()


def test_weights_left_out_are_in_proportion_to_windows() -> None:
    plan = nc.Plan([nc.Source(corpus_of(3001), name="a"), nc.Source(corpus_of(1001), name="b")], seq_len=10)
    assert plan.phases[0].weights == {"a": 3, "b": 1}


def test_the_widest_dtype_among_the_sources_serves_all() -> None:
    narrow, wide = nc.memory_corpus([np.arange(100)], vocab_size=256), nc.memory_corpus([np.arange(70000)])
    plan = nc.Plan([nc.Source(narrow, name="n", weight=1), nc.Source(wide, name="w", weight=1)], seq_len=9)
    batch = plan.read(np.arange(50))
    assert (narrow.dtype, wide.dtype, batch["tokens"].dtype) == (np.uint8, np.uint32, np.uint32)
    assert (batch["tokens"][batch["source"] == 0] < 100).all()


@pytest.mark.parametrize("weight", [0.5, "0.5", Fraction(1, 2), np.float64(0.5)])
def test_equal_weights_in_any_notation_are_one_plan(weight: Any) -> None:
    def plan(w: Any) -> nc.Plan:
        return nc.Plan(
            [nc.Source(corpus_of(50), name="a", weight=w), nc.Source(corpus_of(50), name="b", weight=1)], seq_len=4
        )

    assert plan(weight).fingerprint == plan("1/2").fingerprint


def test_the_order_version_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = nc.Plan(nc.Source(corpus_of(50)), seq_len=4)
    monkeypatch.setattr("neutral_core.order.plan.ORDER_VERSION", 2)
    assert nc.Plan(nc.Source(corpus_of(50)), seq_len=4).fingerprint != plan.fingerprint


TOKENIZER = nc.TokenizerIdentity(kind="byte", name="byte", sha256="0" * 64, vocab_size=300)


def refused() -> list[Any]:
    a, b = corpus_of(50), corpus_of(60)
    other = nc.TokenizerIdentity(kind="byte", name="byte", sha256="1" * 64, vocab_size=300)
    known = [nc.memory_corpus([np.arange(50)], vocab_size=300, tokenizer=t) for t in (TOKENIZER, other)]
    pair = [nc.Source(a, name="a", weight=1), nc.Source(b, name="b", weight=1)]
    return [
        (lambda: nc.Plan([], seq_len=4), "sources is empty"),
        (lambda: nc.Plan([a], seq_len=4), "sources holds a Corpus"),  # type: ignore[list-item]
        (lambda: nc.Source("path"), "expected a Corpus: open it with open_corpus"),  # type: ignore[arg-type]
        (lambda: nc.Plan([nc.Source(a), nc.Source(b)], seq_len=4), "source 0 has no name"),
        (lambda: nc.Plan([nc.Source(a, name="x"), nc.Source(b, name="x")], seq_len=4), "two sources are named 'x'"),
        (lambda: nc.Plan([nc.Source(a, name="x", weight=1), nc.Source(b, name="y")], seq_len=4), "'y' has no weight"),
        (lambda: nc.Plan([pair[0], nc.Source(b, name="z", weight=-1)], seq_len=4), "source 'z': weight -1 is negative"),
        (lambda: nc.Plan([pair[0], nc.Source(b, name="z", weight="nan")], seq_len=4), "'nan' is not a finite number"),
        (lambda: nc.Plan([pair[0], nc.Source(b, name="z", weight=float("inf"))], seq_len=4), "inf is not a finite"),
        (lambda: nc.Plan(nc.Source(a, name="s"), seq_len=50), "'s' has 50 tokens, fewer than the 51 of one row"),
        (lambda: nc.Plan(nc.Source(a), seq_len=45, extra_tokens=5), "50 tokens, fewer than the 51"),
        (lambda: nc.Plan(nc.Source(a), seq_len=0), "seq_len is 0"),
        (lambda: nc.Plan(nc.Source(a), seq_len=4.0), "seq_len is 4.0"),  # type: ignore[arg-type]
        (lambda: nc.Plan(nc.Source(a), seq_len=4, seed=-1), "seed is -1"),
        (lambda: nc.Plan(nc.Source(a), seq_len=4, seed=2**64), "seed is 18446744073709551616"),
        (lambda: nc.Plan(nc.Source(a), seq_len=4, shuffle="globl"), "Did you mean 'global'"),
        (lambda: nc.Plan(nc.Source(a), seq_len=4, windows="concatt"), "Did you mean 'concat'"),
        (lambda: nc.Source(a, documents=slice(3, 3)), "is not a run of"),
        (lambda: nc.Source(a, documents=slice(0, 1, 2)), "is not a run of"),
        (
            lambda: nc.Plan([nc.Source(known[0], name="p"), nc.Source(known[1], name="q")], seq_len=4),
            "source 'q' was made with the tokenizer",
        ),
        (lambda: nc.Plan(pair, seq_len=4).read([-1]), "samples run from -1"),
        (lambda: nc.Plan(pair, seq_len=4).read([2**62]), "expected 0 ≤ sample < 2\\^62"),
        (lambda: nc.Plan(pair, seq_len=4).read([[1]]), "expected integers in one dimension"),
        (lambda: nc.Plan(pair, seq_len=4).read([0.5]), "expected integers in one dimension"),
        (lambda: nc.Plan(pair, seq_len=4).sample_of(0, [0], [99]), "a window is outside"),
    ]


@pytest.mark.parametrize("number", range(len(refused())))
def test_refusals_name_what_is_wrong(number: int) -> None:
    call, message = refused()[number]
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        call()


def test_differing_tokenizers_are_served_when_that_is_said() -> None:
    known = nc.memory_corpus([np.arange(50)], vocab_size=300, tokenizer=TOKENIZER)
    other = nc.TokenizerIdentity(kind="char", name="c", sha256="2" * 64, vocab_size=300)
    sources = [
        nc.Source(known, name="a"),
        nc.Source(nc.memory_corpus([np.arange(50)], vocab_size=300, tokenizer=other), name="b"),
    ]
    assert nc.Plan(sources, seq_len=4, mixed_tokenizers=True).read([0])["tokens"].shape == (1, 5)


def test_no_samples_are_no_rows() -> None:
    batch = nc.Plan(nc.Source(corpus_of(50)), seq_len=4, documents=True).read(np.empty(0, dtype=np.int64))
    assert {key: rows.shape for key, rows in batch.items()} == {
        "tokens": (0, 5),
        "segment_ids": (0, 5),
        "positions": (0, 5),
        "source": (0,),
        "sample": (0,),
    }


@pytest.mark.parametrize("weight", [True, "1e999999999", "1E-00001000", "1/0"])
def test_weights_that_are_no_sensible_number_are_refused_at_once(weight: Any) -> None:
    with pytest.raises(ValueError, match=r"source 'z': weight .* no|source 'z': weight .* not"):
        nc.Plan(
            [nc.Source(corpus_of(50), name="a", weight=1), nc.Source(corpus_of(50), name="z", weight=weight)], seq_len=4
        )


@pytest.mark.parametrize(("source", "epoch"), [(-1, 0), (1, 0), (0, -1), (0, 2**62)])
def test_windows_that_no_sample_reaches_have_no_sample(source: int, epoch: int) -> None:
    with pytest.raises(IndexError, match="outside"):
        nc.Plan(nc.Source(corpus_of(50)), seq_len=4).sample_of(source, [epoch], [0])


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a source's name is 7, expected text: quote it where it comes from YAML"):
        nc.Source(corpus_of(20), name=7)  # type: ignore[arg-type]


def test_draws_and_their_limits_are_told() -> None:
    sources = [
        nc.Source(corpus_of(100), name="a", weight=1, max_epochs=1.5),
        nc.Source(corpus_of(50), name="b", weight=1),
        nc.Source(corpus_of(50), name="c", weight=0),
    ]
    plan = nc.Plan(sources, seq_len=9)  # 11 windows of a; with equal weights a and b take turns, a at 0, 2, 4, …
    assert [plan.most_draws(source) for source in range(3)] == [16, None, None]
    first = int(plan.locate([0]).source[0])
    assert plan.sample_of_draw(first, 0) == 0
    assert plan.sample_of_draw(1 - first, 0) == 1
    assert plan.sample_of_draw(0, 16) == 32 + first
    assert plan.sample_of_draw(2, 0) is None
    assert plan.end == 32 + first
    plan.check_end(plan.end)
    with pytest.raises(
        nc.ExhaustedError,
        match=rf"source 'a': sample {plan.end} would serve it beyond its max_epochs=1.5 \(16 samples\)",
    ):
        plan.check_end(plan.end + 1)


def test_parts_hold_the_shards_that_they_touch_and_serve_what_the_whole_holds(tmp_path: Path) -> None:
    documents = [np.arange(start, start + 10) for start in range(0, 400, 10)]
    with nc.CorpusWriter(tmp_path / "c", vocab_size=400, tokens_per_shard=30) as writer:
        for number, document in enumerate(documents):
            writer.add(document if number % 5 else [])
    corpus = nc.open_corpus(tmp_path / "c")
    for first in range(38):
        for last in (first + 2, first + 5, 40):
            part = nc.Source(corpus, documents=slice(first, min(last, 40)))
            inside = np.concatenate([corpus.document(i) for i in range(first, min(last, 40))])
            if len(inside) < 5:
                continue
            plan = nc.Plan(part, seq_len=4, shuffle="none", documents=True)
            rows = plan.read(np.arange(plan.num_windows[0]))
            circle = np.concatenate([inside, inside])
            assert all(row.tolist() == circle[4 * k : 4 * k + 5].tolist() for k, row in enumerate(rows["tokens"]))
            held = {piece.document for row in plan.trace(rows["sample"]) for piece in row.pieces}
            assert min(held) >= first
            assert max(held) < last


def test_weights_of_any_number_of_digits_are_taken() -> None:
    corpus = corpus_of(50)
    weights = [Fraction(1, 10**900 + rank) for rank in range(9)]  # their common multiple has some 8,000 digits
    plan = nc.Plan([nc.Source(corpus, name=str(n), weight=w) for n, w in enumerate(weights)], seq_len=9)
    assert sorted(plan.locate(np.arange(9)).source.tolist()) == list(range(9))


def limited(most: Any, **options: Any) -> nc.Plan:
    """Sources a and b take turns, ten windows each an epoch; a may be served for some epochs only."""
    sources = [
        nc.Source(corpus_of(31), name="a", weight=1, max_epochs=most),
        nc.Source(corpus_of(31), name="b", weight=1),
    ]
    return nc.Plan(sources, seq_len=3, **options)


@pytest.mark.parametrize("most", [1, 1.0, "1", Fraction(1), np.float64(1), np.int64(1), 1.05, "1.09"])
def test_max_epochs_is_any_number_that_a_weight_may_be(most: Any) -> None:
    plan = limited(most)
    first = int(plan.locate([0]).source[0])  # which of the two comes first
    assert (plan.most_draws(0), plan.end) == (10, 20 + first)


@pytest.mark.parametrize("most", [0, -1, "many", float("nan"), float("inf"), 2**62, 1e30, True])
def test_what_is_no_max_epochs_is_refused(most: Any) -> None:
    with pytest.raises(
        ValueError, match=r"source 'a': max_epochs is .*, expected None or a number above 0 and below 2"
    ):
        limited(most)


def test_only_the_exhausted_sources_own_samples_are_refused() -> None:
    plan = limited(1)
    first = int(plan.locate([0]).source[0])
    others = 2 * np.arange(100) + 1 - first
    assert (plan.locate(others).source == 1).all()
    mine = others[10:] + (1 if first else -1)
    for sample in mine.tolist():
        if sample >= plan.end:
            for ask in (plan.locate, plan.read, plan.trace):
                with pytest.raises(nc.ExhaustedError, match=f"source 'a': sample {sample} would serve it beyond"):
                    ask([sample])
    assert plan.sample_of(0, [0] * 10, range(10)).max() < plan.end
    with pytest.raises(nc.ExhaustedError, match="max_epochs=1"):
        plan.sample_of(0, [1], [0])
    assert (plan.find(0, 0, stop=100) < plan.end).all()


def test_a_refused_sample_that_is_skipped_ends_nothing() -> None:
    plan = limited(1, skip=[(20, 25), (25, 31), (35, 40)], phases=[nc.Phase(40, {"b": 1})])
    first = int(plan.locate([0]).source[0])
    assert plan.end == 32 - first if first == 0 else 31  # the first of a's samples from 31 on
    over = limited(1, skip=[(20, 40)], phases=[nc.Phase(40, {"b": 1})])
    assert over.end == 2**62
    for world_size in (1, 2, 4, 8):
        ranks = [
            nc.Loader(over, batch_size=8, dp_rank=rank, dp_world_size=world_size, num_samples=60, threads=0)
            for rank in range(world_size)
        ]
        served = np.concatenate([batch["sample"] for step in zip(*ranks, strict=True) for batch in step])
        assert served.tolist() == [*range(20), *range(40, 60)]
