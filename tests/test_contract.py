"""The contract of every loader, the core's, torch's and JAX's: DESIGN's promises, at several world sizes, on the union of the ranks.

Every test that takes ``make`` runs over every entry of contract_loaders.LOADERS, but for those that name the entries they run over and say why.
The expected rows are ``Plan.read``'s, which tests/golden holds to what it was.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from contract_loaders import CORE, JAX, LOADERS, TORCH
from hypothesis import given, settings
from hypothesis import strategies as st

import neutral_core as nc

WORLD_SIZES = (1, 2, 3, 4, 8)


@pytest.fixture(params=LOADERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make a loader; all are closed at the end. Entries of a framework that is not installed are skipped, aloud."""
    made = []
    if request.param in TORCH:
        pytest.importorskip("torch")
    if request.param in JAX:
        request.getfixturevalue("devices")

    def make_one(plan: nc.Plan, **options: Any) -> Any:
        made.append(LOADERS[request.param](plan, **options))
        return made[-1]

    yield make_one
    for loader in made:
        loader.close()


def corpora() -> list[nc.Corpus]:
    random = np.random.default_rng(5)  # ids on both sides of 2^15, where uint16 and int16 part
    return [
        nc.memory_corpus([random.integers(0, 60_000, n) for n in random.integers(0, 40, 60)], vocab_size=60_000),
        nc.memory_corpus([random.integers(0, 20_000, n) for n in random.integers(0, 90, 30)], vocab_size=60_000),
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


def test_a_run_at_2_then_4_then_3_ranks_is_one_run(make: Callable[..., Any]) -> None:
    plan = mixed_plan(documents=True)
    found, state = [], None
    for world_size, steps in ((2, 5), (4, 3), (3, 7)):
        loaders = [make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size) for rank in range(world_size)]
        for loader in loaders:
            if state is not None:
                next(loader)  # what was served, or is ahead, before a state is set leaves nothing behind
                loader.set_state(json.loads(json.dumps(state)))
        found.extend(global_batches(loaders, steps))
        states = [loader.get_state() for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
    assert equal(found, global_batches([make(plan, batch_size=24)], 15))
    assert equal(found, [plan.read(np.arange(24 * step, 24 * step + 24)) for step in range(15)])


def test_a_state_goes_from_the_core_to_any_loader_and_back(make: Callable[..., Any]) -> None:
    plan = mixed_plan()
    with nc.Loader(plan, batch_size=6, threads=0) as before, nc.Loader(plan, batch_size=4, threads=0) as after:
        next(before)
        loader = make(plan, batch_size=4)
        loader.set_state(before.get_state())
        assert loader.get_state() == before.get_state()
        assert next(loader)["sample"].tolist() == [6, 7, 8, 9]
        after.set_state(loader.get_state())
        assert next(after)["sample"].tolist() == [10, 11, 12, 13]


@settings(max_examples=40)  # for each entry
@given(
    data=st.data(),
    steps=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    seed=st.integers(0, 2**64 - 1),
)
def test_resume_at_any_world_size_and_batch_size_continues_the_order(
    make: Callable[..., Any], data: st.DataObject, steps: list[int], seed: int
) -> None:
    plan = mixed_plan(seed=seed)
    sample, state = 0, None
    for count in steps:
        world_size = data.draw(st.sampled_from(WORLD_SIZES))
        batch_size = world_size * data.draw(st.integers(1, 5))
        loaders = [
            make(plan, batch_size=batch_size, dp_rank=rank, dp_world_size=world_size) for rank in range(world_size)
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
        assert np.array_equal(batch["tokens"][~padding], plan.read(batch["sample"][~padding])["tokens"])
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


@pytest.mark.parametrize(("vocab_size", "dtype"), [(256, np.uint8), (2**16, np.uint16), (2**31, np.uint32)])
def test_ids_of_every_stored_width_arrive_as_they_are(make: Callable[..., Any], vocab_size: int, dtype: Any) -> None:
    ids = np.random.default_rng(2).integers(0, vocab_size, 1000)
    ids[::7] = np.resize([vocab_size - 1, vocab_size // 2, vocab_size // 2 - 1, 0], 143)
    plan = nc.Plan(nc.Source(nc.memory_corpus([ids], vocab_size=vocab_size)), seq_len=9, shuffle="none")
    [batch] = global_batches([make(plan, batch_size=110, dp_rank=rank, dp_world_size=2) for rank in range(2)], 1)
    assert batch["tokens"].dtype == dtype
    assert batch["tokens"][:, :9].ravel().tolist() == ids[:990].tolist()  # without a shuffle, rows are the file's


@pytest.mark.parametrize("make", CORE, indirect=True)
def test_a_batch_is_the_callers_to_write_to(make: Callable[..., Any]) -> None:
    """Of the core, for the entries of the adapters give copies: torch's has its own test; a jax.Array cannot be written to."""
    plan = mixed_plan(documents=True)
    loader = make(plan, batch_size=4)
    state = loader.get_state()
    expected = [plan.read(np.arange(4 * step, 4 * step + 4)) for step in range(200)]
    for step in range(200):
        batch = next(loader)
        assert equal([batch], [expected[step]])
        for rows in batch.values():
            rows[...] = 77
    loader.set_state(state)
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
    third = nc.memory_corpus([*[first.document(i) for i in range(first.num_documents)], [1, 2]], vocab_size=60_000)
    named = nc.memory_corpus(
        [first.document(i) for i in range(first.num_documents)],
        tokenizer=nc.TokenizerIdentity(kind="byte", name="b", sha256="0" * 64, vocab_size=60_000),
        vocab_size=60_000,
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


def test_length_and_state_count_what_was_received_also_when_it_is_closed(make: Callable[..., Any]) -> None:
    """Neither what was read ahead nor what is on its way to a device."""
    plan = mixed_plan()
    for steps in (0, 1, 10, 11):
        loader = make(plan, batch_size=8, num_samples=83)
        for step in range(steps):
            assert (loader.get_state()["sample"], len(loader)) == (8 * min(step, 10), 10 - min(step, 10))
            assert (next(loader, None) is None) == (step == 10)
        loader.close()
        assert (loader.get_state()["sample"], len(loader)) == (8 * min(steps, 10), 10 - min(steps, 10))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_skipped_samples_are_passed_over_by_all_ranks(make: Callable[..., Any], world_size: int) -> None:
    plan = mixed_plan(skip=[(0, 5), (30, 61), (100, 101), (200, 203)])
    left = [
        sample
        for sample in range(250)
        if sample in {*range(5, 30), *range(61, 100), *range(101, 200), *range(203, 250)}
    ]
    loaders = [
        make(plan, batch_size=24, dp_rank=rank, dp_world_size=world_size, num_samples=250) for rank in range(world_size)
    ]
    for step in range(len(left) // 24):
        states = [loader.get_state() for loader in loaders]
        assert all(state == states[0] for state in states)
        assert states[0]["sample"] == left[24 * step]
        [batch] = global_batches(loaders, 1)
        assert batch["sample"].tolist() == left[24 * step : 24 * step + 24]
        assert np.array_equal(batch["tokens"], plan.read(batch["sample"])["tokens"])
    assert global_batches(loaders) == []


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_batch_sizes_follow_their_schedule_on_all_ranks_and_after_a_resume(
    make: Callable[..., Any], world_size: int
) -> None:
    plan, schedule = mixed_plan(), [(0, 24), (70, 48), (200, 24)]
    options = {"batch_size": schedule, "dp_world_size": world_size, "num_samples": 340}
    first_samples = [0, 24, 48, 72, 120, 168, 216, 240, 264, 288, 312]  # the batch from 72 on is the first with 48
    sizes = [24, 24, 24, 48, 48, 48, 24, 24, 24, 24, 24]
    for stop in (0, 2, 3, 5, 7):
        before = [make(plan, dp_rank=rank, **options) for rank in range(world_size)]
        found = global_batches(before, stop)
        after = [make(plan, dp_rank=rank, **options) for rank in range(world_size)]
        for loader in after:
            loader.set_state(before[-1].get_state())
        assert {len(loader) for loader in [*before, *after]} == {11 - stop}
        found += global_batches(after)
        expected = [plan.read(np.arange(a, a + b)) for a, b in zip(first_samples, sizes, strict=True)]
        assert equal(found, expected)
        assert {len(loader) for loader in after} == {0}


def test_a_state_holds_the_phases_up_to_it_and_none_that_was_only_read_ahead(make: Callable[..., Any]) -> None:
    """So that a later phase may still be changed; one that has begun may not."""
    phased = mixed_plan(phases=[nc.Phase(40, {"first": 1})])
    other = mixed_plan(phases=[nc.Phase(40, {"second": 1})])
    loader = make(phased, batch_size=8)
    for step in range(8):
        state = loader.get_state()
        assert state == phased.cursor(8 * step)
        resumed = make(other, batch_size=8)
        if step <= 5:
            resumed.set_state(state)
            assert equal([next(resumed)], [other.read(np.arange(8 * step, 8 * step + 8))])
        else:
            with pytest.raises(nc.StateError, match="weights from sample 40 on differs"):
                resumed.set_state(state)
        assert equal([next(loader)], [phased.read(np.arange(8 * step, 8 * step + 8))])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_source_is_served_max_epochs_times_and_then_refused(make: Callable[..., Any], world_size: int) -> None:
    corpus = nc.memory_corpus([np.arange(24 * 16 + 1)], vocab_size=1000)  # 24 windows, 48 samples in two epochs
    plan = nc.Plan(nc.Source(corpus, max_epochs=2), seq_len=16)
    loaders = [make(plan, batch_size=20, dp_rank=rank, dp_world_size=world_size) for rank in range(world_size)]
    assert equal(global_batches(loaders, 2), [plan.read(np.arange(20)), plan.read(np.arange(20, 40))])
    for loader in loaders * 2:  # asked again, it says so again
        with pytest.raises(nc.ExhaustedError, match="sample 48 would"):
            next(loader)
        assert loader.get_state()["sample"] == 40
    with pytest.raises(nc.ExhaustedError, match="sample 48 would"):
        make(plan, batch_size=4, num_samples=49)


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
    read_pieces, failures = nc.Plan.read_pieces, [0, 300]  # the reads that these samples are in fail once each

    def failing(self: nc.Plan, samples: Any, *others: Any) -> Any:
        if failures and samples[0] <= failures[0] <= samples[-1]:
            del failures[0]
            raise OSError("a passing fault")
        return read_pieces(self, samples, *others)

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


def test_an_error_comes_when_its_batch_is_due_and_as_often_as_it_is_asked(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that were read or sent ahead of it are served first: no loader fails before one that reads when it is asked."""
    plan = mixed_plan()
    read_pieces, broken = nc.Plan.read_pieces, [True]

    def failing(self: nc.Plan, samples: Any, *others: Any) -> Any:
        if broken and samples[-1] >= 256:
            raise OSError("a lasting fault")
        return read_pieces(self, samples, *others)

    def until_it_fails(loader: Any) -> list[int]:
        found = []
        with pytest.raises(OSError, match="a lasting fault"):
            while True:
                found.extend(next(loader)["sample"].tolist())
        return found

    monkeypatch.setattr(nc.Plan, "read_pieces", failing)
    with nc.Loader(plan, batch_size=8, threads=0) as when_asked:
        least = len(until_it_fails(when_asked))
    loader = make(plan, batch_size=8)
    found = until_it_fails(loader)
    assert len(found) >= least > 0
    for _ in range(4):
        assert loader.get_state()["sample"] == len(found) <= 256
        found += until_it_fails(loader)
    broken.clear()
    while len(found) < 576:
        found += next(loader)["sample"].tolist()
    assert found == list(range(576))


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
        ({"batch_size": 10, "dp_rank": 0, "dp_world_size": 4}, "the nearest that they do: 8 or 12"),
        ({"batch_size": 2, "dp_rank": 0, "dp_world_size": 4}, "the nearest that they do: 4"),
        ({"batch_size": 4, "last": "keep"}, "last is 'keep'"),
        ({"batch_size": 4, "num_samples": -1}, "num_samples is -1"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(mixed_plan(), **options)


@pytest.mark.parametrize("make", CORE | TORCH, indirect=True)
def test_a_rank_outside_of_the_world_is_refused(make: Callable[..., Any]) -> None:
    """JAX's loader takes no rank: its sharding says which rows a process holds."""
    with pytest.raises(ValueError, match="dp_rank is 2"):
        make(mixed_plan(), batch_size=4, dp_rank=2, dp_world_size=2)


def test_an_endless_pass_has_no_length(make: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="num_samples"):
        len(make(mixed_plan(), batch_size=4))


# Of the core alone: the adapters take no rows. JAX's loader makes them of its sharding; tests/jax_adapter has those.


@pytest.mark.parametrize("make", CORE, indirect=True)
def test_a_share_may_be_any_rows_of_the_global_batch(make: Callable[..., Any]) -> None:
    plan = mixed_plan()
    loader = make(plan, batch_size=6, rows=[5, 0, 0, 3], num_samples=13, last="pad")
    found = [batch["sample"].tolist() for batch in loader]
    assert found == [[5, 0, 0, 3], [11, 6, 6, 9], [-1, 12, 12, -1]]


@pytest.mark.parametrize("make", CORE, indirect=True)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": [0, 4]}, "rows run from 0 to 4"),
        ({"rows": []}, "expected at least one integer"),
        ({"rows": [0], "dp_world_size": 2}, "both given"),
    ],
)
def test_wrong_rows_are_refused(make: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(mixed_plan(), batch_size=4, **options)
