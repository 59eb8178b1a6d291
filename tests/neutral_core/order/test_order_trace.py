"""Windows and traces over several shards, against a plain list of (shard, document, place) for each token of a source."""

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import neutral_core as nc
from neutral_core.format.memory import MemoryShard
from neutral_core.order.trace import TracedPiece
from neutral_core.order.windows import Stretches, num_windows


class Token(NamedTuple):
    shard: int
    document: int
    place: int
    id: int


def build(shards: list[list[int]]) -> tuple[nc.Corpus, list[list[Token]]]:
    """Return a corpus of documents of these lengths, ids counting on, and its tokens document by document."""
    made, model = [], []
    count = 0
    for shard, lengths in enumerate(shards):
        arrays = []
        for length in lengths:
            ids = range(count, count + length)
            model.append([Token(shard, len(model), place, token) for place, token in enumerate(ids)])
            arrays.append(np.array(ids, dtype=np.uint16))
            count += length
        made.append(MemoryShard(arrays, np.dtype("<u2")))
    return nc.Corpus(made, dtype=np.dtype("<u2"), fingerprint="x"), model


def pieces_of(row: list[Token]) -> list[TracedPiece]:
    """Cut a row wherever the next token is not the next one of the same document."""
    found = []
    begin = 0
    for at in range(1, len(row) + 1):
        if at < len(row) and (row[at].document, row[at].place) == (row[at - 1].document, row[at - 1].place + 1):
            continue
        first, last = row[begin], row[at - 1]
        found.append(
            TracedPiece(
                document=first.document, start=first.place, stop=last.place + 1, column=begin, shard=first.shard
            )
        )
        begin = at
    return found


def row_of(stream: list[Token], start: int, length: int) -> list[Token]:
    return [stream[(start + column) % len(stream)] for column in range(length)]


layouts = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5)


@settings(max_examples=200)
@given(
    shards=layouts,
    seq_len=st.integers(1, 12),
    extra=st.integers(0, 2),
    seed=st.integers(0, 100),
    shuffle=st.sampled_from(["global", "none"]),
)
def test_a_trace_names_the_documents_that_a_plain_model_names(
    shards: list[list[int]], seq_len: int, extra: int, seed: int, shuffle: str
) -> None:
    corpus, model = build(shards)
    stream = [token for document in model for token in document]
    length = seq_len + 1 + extra
    if len(stream) < length:
        return
    plan = nc.Plan(nc.Source(corpus, name="n"), seq_len=seq_len, extra_tokens=extra, seed=seed, shuffle=shuffle)
    samples = np.random.default_rng(seed).permutation(min(4 * int(plan.num_windows[0]), 40))
    located, tokens = plan.locate(samples), plan.read(samples)["tokens"]
    for number, traced in enumerate(plan.trace(samples)):
        row = row_of(stream, int(located.start[number]), length)
        assert list(traced.pieces) == pieces_of(row)
        assert tokens[number].tolist() == [token.id for token in row]
        assert (traced.sample, traced.source, traced.source_index) == (int(samples[number]), "n", 0)
        assert (traced.epoch, traced.window) == (int(located.epoch[number]), int(located.window[number]))


@settings(max_examples=200)
@given(shards=layouts, cut=st.tuples(st.integers(0, 30), st.integers(0, 30)), seq_len=st.integers(1, 6), data=st.data())
def test_a_run_of_documents_is_a_circle_of_its_own(
    shards: list[list[int]], cut: tuple[int, int], seq_len: int, data: st.DataObject
) -> None:
    corpus, model = build(shards)
    first, last = sorted(min(edge, corpus.num_documents) for edge in cut)
    stream = [token for document in model[first:last] for token in document]
    if len(stream) < seq_len + 1:
        return
    seed = data.draw(st.integers(0, 100))
    plan = nc.Plan(nc.Source(corpus, documents=slice(first, last)), seq_len=seq_len, seed=seed)
    assert plan.num_windows.tolist() == [(len(stream) - 1) // seq_len]
    samples = np.arange(3 * int(plan.num_windows[0]))
    starts, tokens = plan.locate(samples).start.tolist(), plan.read(samples)["tokens"].tolist()
    for traced, start, found in zip(plan.trace(samples), starts, tokens, strict=True):
        row = row_of(stream, start, seq_len + 1)
        assert found == [token.id for token in row]
        assert list(traced.pieces) == pieces_of(row)
        assert all(first <= piece.document < last for piece in traced.pieces)


@settings(max_examples=100)
@given(layout=layouts, other=layouts, cut=st.integers(0, 20), seed=st.integers(0, 50))
def test_each_of_several_sources_keeps_to_its_own_tokens(
    layout: list[list[int]], other: list[list[int]], cut: int, seed: int
) -> None:
    (one, model), (two, second) = build(layout), build(other)
    cut = min(cut, one.num_documents)
    parts = [(one, model, slice(0, cut)), (one, model, slice(cut, None)), (two, second, slice(0, None))]
    chosen = [part for part in parts if sum(map(len, part[1][part[2]])) >= 4]
    if not chosen:
        return
    plan = nc.Plan(
        [nc.Source(corpus, name=f"s{n}", weight=1, documents=part) for n, (corpus, _, part) in enumerate(chosen)],
        seq_len=3,
        seed=seed,
    )
    samples = np.arange(40)
    located, batch = plan.locate(samples), plan.read(samples)
    for number, traced in enumerate(plan.trace(samples)):
        source = int(located.source[number])
        stream = [token for document in chosen[source][1][chosen[source][2]] for token in document]
        row = row_of(stream, int(located.start[number]), 4)
        assert list(traced.pieces) == pieces_of(row)
        assert batch["tokens"][number].tolist() == [token.id for token in row]
        assert (traced.source, traced.source_index, int(batch["source"][number])) == (f"s{source}", source, source)


def test_a_row_that_wraps_is_traced_as_the_end_and_then_the_start() -> None:
    # Three documents of 4, 3 and 3 tokens; windows of 3 begin 3 apart from the offset: find one that begins at token 8 or 9.
    corpus, _ = build([[4, 3], [3]])
    plan = nc.Plan(nc.Source(corpus), seq_len=3, seed=0)
    starts = plan.locate(np.arange(300)).start
    for start, expected in (
        (8, [(2, 1, 3, 0, 1), (0, 0, 2, 2, 0)]),
        (9, [(2, 2, 3, 0, 1), (0, 0, 3, 1, 0)]),
        (7, [(2, 0, 3, 0, 1), (0, 0, 1, 3, 0)]),
        (6, [(1, 2, 3, 0, 0), (2, 0, 3, 1, 1)]),
    ):
        sample = int(np.flatnonzero(starts == start)[0])
        pieces = plan.trace([sample])[0].pieces
        assert [(p.document, p.start, p.stop, p.column, p.shard) for p in pieces] == expected


def test_a_row_as_long_as_the_source_wraps_within_one_document() -> None:
    corpus, _ = build([[5]])
    plan = nc.Plan(nc.Source(corpus), seq_len=4, seed=3)
    samples = np.arange(50)
    starts = plan.locate(samples).start.tolist()
    assert set(starts) == {0, 1, 2, 3, 4}
    for start, traced, tokens in zip(starts, plan.trace(samples), plan.read(samples)["tokens"].tolist(), strict=True):
        expected = [(start, 5, 0)] + ([(0, start, 5 - start)] if start else [])
        assert [(piece.start, piece.stop, piece.column) for piece in traced.pieces] == expected
        assert tokens == [(start + column) % 5 for column in range(5)]


def test_documents_without_tokens_and_shards_without_documents_do_not_show() -> None:
    corpus, _ = build([[], [0, 2, 0], [0], [], [3, 0]])
    (traced,) = nc.Plan(nc.Source(corpus), seq_len=4, shuffle="none").trace([0])
    assert [(piece.document, piece.shard, piece.column) for piece in traced.pieces] == [(1, 1, 0), (4, 4, 2)]


def test_pieces_cover_each_row_once() -> None:
    corpus, model = build([[7, 0, 5], [], [4, 9], [1]])
    total = sum(map(len, model))
    stretches = Stretches([nc.Source(corpus), nc.Source(corpus, documents=slice(1, 5))])  # the second: tokens 7 … 24
    rng = np.random.default_rng(0)
    sources = rng.integers(0, 2, 500)
    positions = rng.integers(0, np.where(sources == 0, total, 18))
    pieces = stretches.pieces(sources, positions, 13)
    assert pieces.length.min() >= 1
    covered = np.zeros((500, 13), dtype=int)
    for row, column, length in zip(pieces.row, pieces.column, pieces.length, strict=True):
        covered[row, column : column + length] += 1
    assert (covered == 1).all()


def test_no_rows_need_no_pieces() -> None:
    corpus, _ = build([[7]])
    nothing = np.empty(0, dtype=np.int64)
    assert len(Stretches([nc.Source(corpus)]).pieces(nothing, nothing, 3).row) == 0


def test_windows_in_an_epoch_are_the_whole_strides_before_the_last_token() -> None:
    assert [num_windows(*case) for case in [(0, 1), (1, 1), (2, 1), (10, 3), (11, 10), (20, 10), (21, 10)]] == [
        0,
        0,
        1,
        3,
        1,
        1,
        2,
    ]


def test_traces_come_in_the_order_asked_also_twice() -> None:
    corpus, _ = build([[30], [40]])
    plan = nc.Plan(nc.Source(corpus), seq_len=6, seed=2)
    assert [traced.sample for traced in plan.trace([9, 2, 9, 0])] == [9, 2, 9, 0]
    assert plan.trace([9])[0] == plan.trace([9, 2, 9, 0])[2]
    assert plan.trace([]) == []
