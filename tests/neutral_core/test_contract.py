"""The contract of every loader: DESIGN's promises, at several world sizes, on the union of the ranks.

The adapters join by a further entry of LOADERS: a function that makes a loader of one rank from the same arguments.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import neutral_core as nc

WORLD_SIZES = (1, 2, 3, 4, 8)
LOADERS: dict[str, Callable[..., Any]] = {
    "core, inline": lambda plan, **options: nc.Loader(plan, threads=0, **options),
    "core, 1 thread": lambda plan, **options: nc.Loader(plan, threads=1, **options),
    "core, 3 threads": lambda plan, **options: nc.Loader(plan, threads=3, **options),
}


@pytest.fixture(params=LOADERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make a loader; all are closed at the end."""
    made = []

    def make_one(plan: nc.Plan, **options: Any) -> Any:
        made.append(LOADERS[request.param](plan, **options))
        return made[-1]

    yield make_one
    for loader in made:
        loader.close()


def corpora() -> list[nc.Corpus]:
    random = np.random.default_rng(5)
    return [
        nc.memory_corpus([random.integers(0, 500, n) for n in random.integers(0, 40, 60)], vocab_size=500),
        nc.memory_corpus([random.integers(0, 200, n) for n in random.integers(0, 90, 30)], vocab_size=500),
    ]


def mixed_plan(**options: Any) -> nc.Plan:
    first, second = corpora()
    sources = [nc.Source(first, name="first", weight="0.7"), nc.Source(second, name="second", weight="0.3")]
    return nc.Plan(sources, **({"seq_len": 16, "seed": 11} | options))


def global_batches(loaders: list[Any], steps: int | None = None) -> list[dict[str, np.ndarray]]:
    """Return the global batches that the loaders of all ranks serve together, rank after rank."""
    batches = []
    while steps is None or len(batches) < steps:
        shares = [next(loader, None) for loader in loaders]
        if shares[0] is None:
            assert shares == [None] * len(loaders), "the ranks do not end at the same step"
            break
        batches.append({key: np.concatenate([np.asarray(share[key]) for share in shares]) for key in shares[0]})
    return batches


def equal(left: list[dict[str, np.ndarray]], right: list[dict[str, np.ndarray]]) -> bool:
    return len(left) == len(right) and all(
        set(a) == set(b) and all(np.array_equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ranks_only_slice_the_order(make: Callable[..., Any], world_size: int) -> None:
    plan = mixed_plan(documents=True)
    loaders = [make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size) for rank in range(world_size)]
    found = global_batches(loaders, 30)
    expected = [plan.read(np.arange(24 * step, 24 * step + 24)) for step in range(30)]
    assert equal(found, expected)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("shuffle", ["global", "none"])
def test_each_epoch_serves_every_window_once(make: Callable[..., Any], world_size: int, shuffle: str) -> None:
    corpus = corpora()[0]
    plan = nc.Plan(nc.Source(corpus), seq_len=16, seed=3, shuffle=shuffle)
    windows = (corpus.num_tokens - 1) // 16
    loaders = [
        make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size, num_samples=3 * windows, last="pad")
        for rank in range(world_size)
    ]
    samples = np.concatenate([batch["sample"] for batch in global_batches(loaders)])
    located = plan.locate(samples[samples >= 0])
    for epoch in range(3):
        assert sorted(located.window[located.epoch == epoch].tolist()) == list(range(windows))


def test_an_epoch_targets_each_token_but_less_than_a_row_once() -> None:
    corpus = nc.memory_corpus([np.arange(1000)], vocab_size=1000)
    plan = nc.Plan(nc.Source(corpus), seq_len=7, seed=9)
    windows = int(plan.num_windows[0])
    assert windows == 142  # floor(999 / 7)
    for epoch in range(3):
        targets = plan.read(np.arange(windows * epoch, windows * (epoch + 1)))["tokens"][:, 1:].ravel()
        assert len(set(targets.tolist())) == len(targets) == 994


def test_order_does_not_depend_on_how_long_the_run_is(make: Callable[..., Any]) -> None:
    plan = mixed_plan()
    short = global_batches([make(plan, batch_size=8, num_samples=80)])
    long = global_batches([make(plan, batch_size=8, num_samples=8000)], 10)
    assert equal(short, long)


@given(
    data=st.data(),
    steps=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    threads=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, 2**64 - 1),
)
def test_resume_at_any_world_size_and_batch_size_continues_the_order(
    data: st.DataObject, steps: list[int], threads: int, seed: int
) -> None:
    plan = mixed_plan(seed=seed)
    sample, state = 0, None
    for count in steps:
        world_size = data.draw(st.sampled_from(WORLD_SIZES))
        batch_size = world_size * data.draw(st.integers(1, 5))
        loaders = [
            nc.Loader(plan, batch_size=batch_size, dp_rank=rank, dp_world_size=world_size, threads=threads)
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.set_state(json.loads(json.dumps(state)))
        batches = global_batches(loaders, count)
        states = [loader.get_state() for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        for loader in loaders:
            loader.close()
        for batch in batches:
            assert equal([batch], [plan.read(np.arange(sample, sample + batch_size))])
            sample += batch_size
        assert state["sample"] == sample


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_resume_at_an_epochs_end_and_a_second_time(make: Callable[..., Any], world_size: int) -> None:
    corpus = nc.memory_corpus([np.arange(24 * 16 + 1)], vocab_size=1000)  # 24 windows: an epoch is one batch
    plan = nc.Plan(nc.Source(corpus), seq_len=16, seed=1)
    state = make(plan, batch_size=24, dp_rank=0, dp_world_size=world_size).get_state()
    seen = []
    for _ in range(3):  # each pass resumes at the end of the epoch before
        loaders = [make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size) for rank in range(world_size)]
        for loader in loaders:
            loader.set_state(state)
        seen.extend(global_batches(loaders, 1))
        state = loaders[-1].get_state()
    assert equal(seen, [plan.read(np.arange(24 * epoch, 24 * epoch + 24)) for epoch in range(3)])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("num_samples", [0, 1, 23, 24, 25, 100])
def test_a_padded_pass_serves_each_sample_once_in_equal_steps(
    make: Callable[..., Any], world_size: int, num_samples: int
) -> None:
    plan = mixed_plan(documents=True)
    loaders = [
        make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size, num_samples=num_samples, last="pad")
        for rank in range(world_size)
    ]
    assert {len(loader) for loader in loaders} == {-(-num_samples // 24)}
    batches = global_batches(loaders)
    assert len(batches) == -(-num_samples // 24)
    assert {len(loader) for loader in loaders} == {0}
    for batch in batches:
        padding = batch["sample"] < 0
        assert batch["loss_mask"].dtype == bool
        assert batch["loss_mask"].shape == (24, 16)
        assert not batch["loss_mask"][padding].any()
        assert batch["loss_mask"][~padding].all()
        assert (batch["source"][padding] == -1).all()
        assert not batch["segment_ids"][padding].any()
        assert not batch["tokens"][padding].any()
    samples = np.concatenate([batch["sample"] for batch in batches]) if batches else np.empty(0)
    assert samples[samples >= 0].tolist() == list(range(num_samples))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_dropped_last_batch_is_dropped_on_every_rank(make: Callable[..., Any], world_size: int) -> None:
    plan = mixed_plan()
    loaders = [
        make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size, num_samples=100) for rank in range(world_size)
    ]
    assert {len(loader) for loader in loaders} == {4}
    samples = np.concatenate([batch["sample"] for batch in global_batches(loaders)])
    assert samples.tolist() == list(range(96))


def test_keys_dtypes_and_shapes_do_not_change(make: Callable[..., Any]) -> None:
    loader = make(mixed_plan(documents=True, extra_tokens=2), batch_size=6, num_samples=47, last="pad")
    kinds = {tuple((key, rows.dtype, rows.shape) for key, rows in sorted(batch.items())) for batch in loader}
    assert kinds == {
        (
            ("loss_mask", np.dtype(bool), (6, 16)),
            ("positions", np.dtype(np.int32), (6, 19)),
            ("sample", np.dtype(np.int64), (6,)),
            ("segment_ids", np.dtype(np.int32), (6, 19)),
            ("source", np.dtype(np.int32), (6,)),
            ("tokens", np.dtype(np.uint16), (6, 19)),
        )
    }


def test_a_batch_is_the_callers_to_write_to(make: Callable[..., Any]) -> None:
    plan = mixed_plan(documents=True)
    loader = make(plan, batch_size=4)
    expected = [plan.read(np.arange(4 * step, 4 * step + 4)) for step in range(200)]
    for step in range(200):
        batch = next(loader)
        assert equal([batch], [expected[step]])
        for rows in batch.values():
            rows[...] = 77
    loader.seek(0)
    assert equal([next(loader)], expected[:1])


def test_another_plan_is_refused_with_the_part_that_differs(make: Callable[..., Any]) -> None:
    first, second = corpora()

    def plan(**changes: Any) -> nc.Plan:
        options = {"seq_len": 16, "seed": 1, "shuffle": "global"} | changes
        names, weights = options.pop("names", ("a", "b")), options.pop("weights", (1, 2))
        data = options.pop("data", (first, second))
        return nc.Plan(
            [nc.Source(c, name=n, weight=w) for c, n, w in zip(data, names, weights, strict=True)], **options
        )

    state = make(plan(), batch_size=4).get_state()
    third = nc.memory_corpus([*[first.document(i) for i in range(first.num_documents)], [1, 2]], vocab_size=500)
    named = nc.memory_corpus(
        [first.document(i) for i in range(first.num_documents)],
        tokenizer=nc.TokenizerIdentity(kind="byte", name="b", sha256="0" * 64, vocab_size=500),
        vocab_size=500,
    )
    for part, changes in {
        "seed": {"seed": 2},
        "seq_len": {"seq_len": 15},
        "shuffle": {"shuffle": "none"},
        "sources": {"names": ("a", "c")},
        "weights": {"weights": (1, 3)},
        "data": {"data": (third, second)},
        "tokenizer": {"data": (named, second)},
    }.items():
        with pytest.raises(nc.StateError, match=rf"another plan: {part} differs"):
            make(plan(**changes), batch_size=4).set_state(state)


def test_requested_keys_ranks_and_batch_size_are_no_part_of_the_state(make: Callable[..., Any]) -> None:
    state = make(mixed_plan(), batch_size=4).get_state()
    other = make(mixed_plan(documents=True, extra_tokens=3), batch_size=6, dp_rank=1, dp_world_size=2)
    other.set_state(state)
    assert other.get_state() == state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version is 2, expected 1"),
        ({"sample": -1}, "sample is -1"),
        ({"sample": 1.5}, "sample is 1.5"),
        ({"sample": True}, "sample is True"),
        ({"fingerprint": "0"}, "its fingerprint is not"),
        ({"parts": None}, "parts is None"),
        ({"other": 1}, "expected a dict with"),
    ],
)
def test_a_damaged_state_is_refused(make: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    loader = make(mixed_plan(), batch_size=4)
    with pytest.raises(nc.StateError, match=message):
        loader.set_state(loader.get_state() | change)


def test_a_refused_state_leaves_the_loader_where_it_was(make: Callable[..., Any]) -> None:
    plan = mixed_plan()
    loader = make(plan, batch_size=4)
    next(loader)
    with pytest.raises(nc.StateError):
        loader.set_state({})
    assert next(loader)["sample"].tolist() == [4, 5, 6, 7]


def test_resume_far_out_serves_the_rows_that_arithmetic_says(make: Callable[..., Any]) -> None:
    plan = mixed_plan()
    loader = make(plan, batch_size=4)
    far = 10**17
    loader.set_state(loader.get_state() | {"sample": far})
    assert equal([next(loader)], [plan.read(far + np.arange(4))])


def test_plans_pickle_without_data_and_serve_the_same(tmp_path: Any) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=60000) as writer:
        writer.add(np.arange(50000))
    plan = nc.Plan(nc.Source(nc.open_corpus(tmp_path / "corpus")), seq_len=100, seed=2)
    expected = plan.read(np.arange(20))
    pickled = pickle.dumps(plan)
    assert len(pickled) < 2000
    assert equal([pickle.loads(pickled).read(np.arange(20))], [expected])


def test_threads_errors_reach_the_caller_with_their_sentence(make: Callable[..., Any], tmp_path: Any) -> None:
    with nc.CorpusWriter(tmp_path / "corpus", vocab_size=300, tokens_per_shard=3000) as writer:
        for _ in range(40):
            writer.add(np.zeros(1000, dtype=int))
    plan = nc.Plan(nc.Source(nc.open_corpus(tmp_path / "corpus")), seq_len=10, seed=2)
    path = tmp_path / "corpus" / "shard-00003.safetensors"
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    loader = make(plan, batch_size=8)
    with pytest.raises(nc.FormatError, match=r"shard-00003\.safetensors"):
        for _ in range(500):
            next(loader)
    with pytest.raises(nc.FormatError, match=r"shard-00003\.safetensors"):
        next(loader)  # it does not skip what it could not read


def test_a_read_that_fails_once_is_read_again(make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read is neither skipped nor lost: the state stays, and the next call serves the batch that was due."""
    plan = mixed_plan()
    read_pieces, failures = nc.Plan.read_pieces, [0, 1]  # the first and the second chunk fail once each

    def failing(self: nc.Plan, samples: Any, located: Any, pieces: Any) -> Any:
        if failures and samples[0] == 256 * failures[0]:
            del failures[0]
            raise OSError("a passing fault")
        return read_pieces(self, samples, located, pieces)

    monkeypatch.setattr(nc.Plan, "read_pieces", failing)
    loader = make(plan, batch_size=8)
    found = []
    while len(found) < 600:
        try:
            found.extend(next(loader)["sample"].tolist())
        except OSError:
            assert loader.get_state()["sample"] == len(found)
    assert found == list(range(600))
    assert not failures


def test_a_closed_loader_says_so(make: Callable[..., Any]) -> None:
    loader = make(mixed_plan(), batch_size=4)
    next(loader)
    loader.close()
    with pytest.raises(ValueError, match="closed"):
        next(loader)
    loader.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 10, "dp_world_size": 4}, "the nearest that they do: 8 or 12"),
        ({"batch_size": 2, "dp_world_size": 4}, "the nearest that they do: 4"),
        ({"batch_size": 4, "dp_rank": 2, "dp_world_size": 2}, "dp_rank is 2"),
        ({"batch_size": 4, "last": "keep"}, "last is 'keep'"),
        ({"batch_size": 4, "rows": [0, 4]}, "rows run from 0 to 4"),
        ({"batch_size": 4, "rows": []}, "expected at least one integer"),
        ({"batch_size": 4, "rows": [0], "dp_world_size": 2}, "both given"),
        ({"batch_size": 4, "num_samples": -1}, "num_samples is -1"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(mixed_plan(), **options)


def test_an_endless_pass_has_no_length(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="num_samples"):
        len(make(mixed_plan(), batch_size=4))


def test_a_share_may_be_any_rows_of_the_global_batch(make: Callable[..., Any]) -> None:
    plan = mixed_plan()
    loader = make(plan, batch_size=6, rows=[5, 0, 0, 3], num_samples=13, last="pad")
    found = [batch["sample"].tolist() for batch in loader]
    assert found == [[5, 0, 0, 3], [11, 6, 6, 9], [-1, 12, 12, -1]]
