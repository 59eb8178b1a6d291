"""Sections 7 to 10 of docs/order.md, and the promises of the order through the loader, over random plans.

Expected values are those of tests/golden/order_extended.json and tests/order_reference.py, which share no code with the library, or
are seen in the tokens themselves: every token of a random plan has an id of its own, so a row says where it comes from. Each property runs over a
few random plans, and over 2000 of them where slow tests run.
"""

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import order_reference as reference
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import neutral_core as nc
from neutral_core.format.memory import MemoryShard

EXTENDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "order_extended.json").read_text(encoding="ascii")
)
WORLD_SIZES = (1, 2, 3, 4, 8)
THREADS = st.sampled_from([0, 1])
ENOUGH = 800  # no test takes so many samples: a pass that ends reads less ahead
DTYPE = np.dtype("<u2")
LAST = 2**62 - 1


class Promised:
    """A shard that only says how large it is: where rows are is arithmetic on that alone."""

    num_documents = 1

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens


def plan_of(
    plan: reference.Plan, corpora: Sequence[nc.Corpus], *, parts: Sequence[slice | None] = (), **options: Any
) -> nc.Plan:
    """Build the plan that the reference computes; `parts` and `max_epochs` have one entry a source."""
    most = options.pop("max_epochs", [None] * len(corpora))
    number = options.pop("number", str)  # how a weight is given
    phases = plan.get("phases") or [{"sample": 0, "weights": [source["weight"] for source in plan["sources"]]}]
    weights = [[None if w is None else number(w) for w in phase["weights"]] for phase in phases]
    names = [source["name"] for source in plan["sources"]]
    sources = [
        nc.Source(corpus, weight=weight, name=name, documents=part, max_epochs=epochs)
        for corpus, weight, name, part, epochs in zip(
            corpora, weights[0], names, parts or [None] * len(corpora), most, strict=True
        )
    ]
    if plan["shuffle"] == "blocks":
        options |= {"chunk_windows": plan.get("chunk_windows"), "group_chunks": plan.get("group_chunks")}
    return nc.Plan(
        sources,
        seq_len=plan["seq_len"],
        seed=plan["seed"],
        shuffle=plan["shuffle"],
        extra_tokens=plan["extra_tokens"],
        document_shuffle=plan.get("document_shuffle", False),
        phases=[
            nc.Phase(phase["sample"], dict(zip(names, given, strict=True)))
            for phase, given in zip(phases[1:], weights[1:], strict=True)
        ],
        **options,
    )


def promised(plan: reference.Plan) -> list[nc.Corpus]:
    shards = [Promised(source["num_tokens"]) for source in plan["sources"]]
    return [nc.Corpus([shard], dtype=DTYPE, fingerprint="x") for shard in shards]  # type: ignore[list-item]


def rows(located: Any) -> list[list[int]]:
    columns = (located.source, located.epoch, located.window, located.start)
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@contextmanager
def all_ranks(plan: nc.Plan, world_size: int, **options: Any) -> Iterator[list[nc.Loader]]:
    with ExitStack() as stack:
        ranks = range(world_size)
        yield [
            stack.enter_context(nc.Loader(plan, dp_rank=rank, dp_world_size=world_size, **options)) for rank in ranks
        ]


def global_batches(loaders: Sequence[nc.Loader], steps: int) -> list[dict[str, Any]]:
    """Return the next global batches: the ranks' rows one after another."""
    found = []
    for _ in range(steps):
        shares = [next(loader) for loader in loaders]
        assert len({len(share["sample"]) for share in shares}) == 1
        found.append({key: np.concatenate([share[key] for share in shares]) for key in shares[0]})
    return found


def samples_of(batches: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [batch["sample"].tolist() for batch in batches]


def state_of(loaders: Sequence[nc.Loader]) -> str:
    """Return the state, which is the same on all ranks, as JSON text."""
    states = {json.dumps(loader.get_state()) for loader in loaders}
    assert len(states) == 1
    return states.pop()


# The golden file


@pytest.mark.parametrize("number", range(len(EXTENDED["phases"] + EXTENDED["blocks"])))
def test_located_samples_are_the_golden_ones_and_are_found_back(number: int) -> None:
    case = (EXTENDED["phases"] + EXTENDED["blocks"])[number]
    plan = plan_of(case, promised(case))
    assert rows(plan.locate(case["samples"])) == case["located"]
    for sample, (source, epoch, window, _) in zip(case["samples"], case["located"], strict=True):
        assert plan.locate([sample]).window.tolist() == [window]
        assert plan.sample_of(source, [epoch], [window]).tolist() == [sample]


@pytest.mark.parametrize("number", range(len(EXTENDED["phases"])))
def test_counts_are_the_golden_ones(number: int) -> None:
    case = EXTENDED["phases"][number]
    plan = plan_of(case, promised(case))
    assert [plan.counts(sample).tolist() for sample in case["samples"]] == case["counts"]


@pytest.mark.parametrize("number", range(len(EXTENDED["max_epochs"])))
def test_the_first_refused_sample_is_the_golden_one(number: int) -> None:
    case = EXTENDED["max_epochs"][number]
    most = [None if text is None else float(text) for text in case["max_epochs"]]
    plan = plan_of(case, promised(case), max_epochs=most)
    first = case["first_refused"]
    if first is None:
        assert len(plan.locate([0, 10**9, LAST]).source) == 3
        return
    assert len(plan.locate([first - 1]).source) == 1
    with pytest.raises(nc.ExhaustedError, match=f"sample {first:,} would"):
        plan.locate([first])


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("number", range(len(EXTENDED["batches"])))
def test_batches_are_the_golden_ones(number: int, world_size: int) -> None:
    case = EXTENDED["batches"][number]
    plan = nc.Plan(nc.Source(nc.memory_corpus([range(100)])), seq_len=3, skip=case["skips"])
    schedule = [(sample, size) for sample, size in case["schedule"]]
    if any(size % world_size for _, size in schedule):
        with pytest.raises(ValueError, match="ranks do not divide"):
            nc.Loader(plan, batch_size=schedule, dp_world_size=world_size)
        return
    with all_ranks(plan, world_size, batch_size=schedule) as loaders:
        for loader in loaders:
            loader.seek(case["start"])
        assert samples_of(global_batches(loaders, len(case["batches"]))) == case["batches"]


@pytest.mark.parametrize("number", range(len(EXTENDED["documents"])))
def test_rows_are_the_golden_ones(number: int) -> None:
    case = EXTENDED["documents"][number]
    model = Model(replace(WHOLE, plan=case, shards=[[lengths] for lengths in case["lengths"]]))
    plan = model.plan()
    assert rows(plan.locate(case["samples"])) == case["located"]
    for tokens, traced, golden in zip(
        plan.read(case["samples"])["tokens"], plan.trace(case["samples"]), case["rows"], strict=True
    ):
        ids = model.ids[traced.source_index]
        expected = [ids[document][first + t] for document, first, length in golden for t in range(length)]
        assert tokens.tolist() == expected
        assert [(p.document, p.start, p.stop - p.start) for p in traced.pieces] == [tuple(span) for span in golden]


@pytest.mark.parametrize("number", range(len(EXTENDED["documents"])))
def test_documents_of_the_golden_plans_are_found_in_the_rows_that_hold_them(number: int) -> None:
    case = EXTENDED["documents"][number]
    model = Model(replace(WHOLE, plan=case, shards=[[lengths] for lengths in case["lengths"]]))
    plan, stop = model.plan(), 2 * sum(model.num_windows)
    seen = samples_of_documents(model, range(stop))
    for source, lengths in enumerate(case["lengths"]):
        for document in {*range(0, len(lengths), 5), len(lengths) - 1}:
            assert plan.find(source, document, stop=stop).tolist() == seen.get((source, document), [])


# Random plans


@dataclass(frozen=True)
class Case:
    """A plan, its corpora's shards as lengths of documents, and which documents of which corpus each source is.

    parts: (corpus, first document, last + 1), one a source; left out, each source is a corpus.
    numbers: weights are given as floats, which have the same decimal text.
    """

    plan: reference.Plan
    shards: list[list[list[int]]]
    parts: list[tuple[int, int, int]] | None = None
    skips: tuple[tuple[int, int], ...] = ()
    numbers: bool = False


WHOLE = Case({}, [])  # type: ignore[typeddict-item]


class Model:
    """What the reference says of a case, the streams of epochs kept; and the plan that the library makes of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.documents: list[list[list[int]]] = []  # of each corpus, each document's ids; no id comes twice
        count = 0
        for shards in case.shards:
            self.documents.append([])
            for length in [length for shard in shards for length in shard]:
                self.documents[-1].append([*range(count, count + length)])
                count += length
        assert count < 2**16
        parts = case.parts or [(n, 0, len(documents)) for n, documents in enumerate(self.documents)]
        self.parts = parts
        self.ids = [self.documents[corpus][first:last] for corpus, first, last in parts]
        self.lengths = [[len(document) for document in documents] for documents in self.ids]
        self.num_windows = [(sum(each) - 1) // case.plan["seq_len"] for each in self.lengths]
        self.home = {
            token: source for source, part in enumerate(self.ids) for document in part for token in document
        }  # of sources that share no documents
        self._streams: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._located: dict[int, tuple[int, int, int, int]] = {}

    def corpora(self) -> list[nc.Corpus]:
        """Return a corpus in memory, of several shards, for each source."""
        made = []
        for n, (shards, documents) in enumerate(zip(self.case.shards, self.documents, strict=True)):
            arrays = iter([np.array(document, dtype=DTYPE) for document in documents])
            cut = [MemoryShard([next(arrays) for _ in shard], DTYPE) for shard in shards]
            made.append(nc.Corpus(cut, dtype=DTYPE, fingerprint=f"corpus {n}"))
        return [made[corpus] for corpus, _, _ in self.parts]

    def plan(self, corpora: Sequence[nc.Corpus] | None = None, **options: Any) -> nc.Plan:
        parts = [slice(first, last) for _, first, last in self.parts] if self.case.parts else []
        return plan_of(
            self.case.plan,
            corpora or self.corpora(),
            parts=parts,
            **{"skip": self.case.skips, "number": float if self.case.numbers else str, **options},
        )

    def locate(self, sample: int) -> tuple[int, int, int, int]:
        """Return `reference.locate` of a sample."""
        if sample not in self._located:
            self._located[sample] = reference.locate(self.case.plan, sample)
        return self._located[sample]

    def row(self, sample: int) -> list[tuple[int, int]]:
        """Return `reference.row_tokens` of a sample."""
        source, epoch, _, start = self.locate(sample)
        if (source, epoch) not in self._streams:
            self._streams[source, epoch] = reference.stream(self.case.plan, source, epoch, self.lengths[source])
        stream = self._streams[source, epoch]
        length = self.case.plan["seq_len"] + 1 + self.case.plan["extra_tokens"]
        return [stream[(start + t) % len(stream)] for t in range(length)]

    def tokens(self, sample: int) -> list[int]:
        source = self.locate(sample)[0]
        return [self.ids[source][document][token] for document, token in self.row(sample)]

    def left(self, start: int, count: int) -> list[int]:
        """Return the next samples that are not skipped."""
        return [batch[0] for batch in reference.batches(self.case.skips, [(0, 1)], start, count)]


WEIGHTS = ["0", "1", "2", "0.3", "0.7", "5", "0.125", "1e-3", "1e-9"]


@st.composite
def weights_of_a_phase(draw: Callable[..., Any], sources: int) -> list[str | None]:
    if draw(st.integers(0, 3)) == 0:  # left out, but for zeros
        served = draw(st.lists(st.booleans(), min_size=sources, max_size=sources).filter(any))
        return [None if each else "0" for each in served]
    given_weights = st.lists(st.sampled_from(WEIGHTS), min_size=sources, max_size=sources)
    return draw(given_weights.filter(lambda weights: any(weight != "0" for weight in weights)))  # type: ignore[no-any-return]


@st.composite
def lengths_of_documents(draw: Callable[..., Any], needed: int) -> list[int]:
    """Lengths of some documents, or of more than a run of 128 holds; at least so many tokens."""
    if draw(st.integers(0, 3)) == 0:
        count, spread = draw(st.tuples(st.integers(120, 300), st.integers(0, 2**32 - 1)))
        lengths = np.random.default_rng(spread).integers(-2, 6, count).clip(0).tolist()
    else:
        lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=14))
    short = needed - sum(lengths)
    return [*lengths, short] if short > 0 else lengths


@st.composite
def shards_of(draw: Callable[..., Any], lengths: list[int]) -> list[list[int]]:
    """The documents of a corpus, cut into shards, empty ones too."""
    cuts = draw(st.lists(st.integers(0, len(lengths)), max_size=4))
    edges = [0, *sorted(cuts), len(lengths)]
    return [lengths[a:b] for a, b in pairwise(edges)]


# in any order, also touching and overlapping
SKIPS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), max_size=3).map(
    lambda runs: tuple((first, first + length) for first, length in runs)
)


@st.composite
def cases(draw: Callable[..., Any], *, skips: bool = False, parts: bool = True) -> Case:
    seq_len, extra = draw(st.integers(1, 9)), draw(st.integers(0, 2))
    needed = seq_len + 1 + extra
    shards, part_of = [], []
    for corpus in range(draw(st.integers(1, 4))):
        lengths = draw(lengths_of_documents(needed))
        shards.append(draw(shards_of(lengths)))
        edges = (0, len(lengths))
        if parts and draw(st.booleans()):
            cut = sorted(draw(st.tuples(st.integers(0, len(lengths)), st.integers(0, len(lengths)))))
            edges = (cut[0], cut[1]) if sum(lengths[cut[0] : cut[1]]) >= needed else edges
        part_of.append((corpus, *edges))
        if parts and sum(lengths[edges[1] :]) >= needed:  # the rest of the corpus, as a source of its own
            part_of.append((corpus, edges[1], len(lengths)))
    part_of = part_of[:5]
    flat = [[length for shard in corpus for length in shard] for corpus in shards]
    starts = [0, *np.cumsum(draw(st.lists(st.integers(1, 40), max_size=3))).tolist()]
    weights = [draw(weights_of_a_phase(len(part_of))) for _ in starts]
    name = "source" if len(part_of) > 1 else draw(st.sampled_from(["", "本"]))
    plan: reference.Plan = {
        "seed": draw(st.integers(0, 2**64 - 1)),
        "seq_len": seq_len,
        "extra_tokens": extra,
        "shuffle": draw(st.sampled_from(["global", "none", "blocks"])),
        "sources": [
            {"name": f"{name}{n or ''}", "num_tokens": sum(flat[corpus][first:last]), "weight": weights[0][n]}
            for n, (corpus, first, last) in enumerate(part_of)
        ],
        "phases": [{"sample": start, "weights": each} for start, each in zip(starts, weights, strict=True)],
        "document_shuffle": draw(st.booleans()),
    }
    if plan["shuffle"] == "blocks":
        plan["chunk_windows"] = draw(st.none() | st.integers(1, 6))
        plan["group_chunks"] = draw(st.none() | st.integers(1, 4))
    skipped = draw(SKIPS) if skips else ()
    return Case(plan, shards, part_of if parts else None, skipped, numbers=draw(st.booleans()))


def over_random(few: int, **strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of a property: over a few examples, and, marked slow, over 2000."""

    def make(holds: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("examples", [few, pytest.param(2000, marks=pytest.mark.slow)])
        def test(examples: int) -> None:
            settings(max_examples=examples)(given(**strategies)(holds))()

        test.__name__, test.__qualname__, test.__doc__ = holds.__name__, holds.__qualname__, holds.__doc__
        return test

    return make


FAR = st.integers(0, LAST) | st.sampled_from([10**12, 2**53 + 1, 2**61, LAST])


@over_random(60, case=cases(), far=st.lists(FAR, max_size=4))
def test_any_plan_is_located_counted_and_found_back_as_the_page_says(case: Case, far: list[int]) -> None:
    plan = Model(case).plan()
    samples = [*range(50), *far]
    expected = [list(reference.locate(case.plan, sample)) for sample in samples]
    assert rows(plan.locate(samples)) == expected
    for sample, (source, epoch, window, _) in zip(samples, expected, strict=True):
        assert plan.sample_of(source, [epoch], [window]).tolist() == [sample]
    for sample in [0, 1, 17, *far, 2**62]:
        assert plan.counts(sample).tolist() == reference.counts(case.plan, sample)


@over_random(60, case=cases(), far=st.lists(FAR, max_size=4))
def test_rows_traces_and_document_marks_are_those_of_the_page(case: Case, far: list[int]) -> None:
    model = Model(case)
    samples = [*far, *range(40)]
    plan = model.plan(documents=True)
    batch = plan.read(samples)
    check_rows(model, samples, batch)
    shards = [[n for n, shard in enumerate(corpus) for _ in shard] for corpus in case.shards]
    for sample, traced in zip(samples, plan.trace(samples), strict=True):
        source, epoch, window, _ = model.locate(sample)
        assert (traced.sample, traced.source_index, traced.epoch, traced.window) == (sample, source, epoch, window)
        assert traced.source == case.plan["sources"][source]["name"]
        corpus, first, _ = model.parts[source]
        tokens = [(p.document - first, t) for p in traced.pieces for t in range(p.start, p.stop)]
        assert tokens == model.row(sample)
        assert [p.column for p in traced.pieces] == [0, *joints(tokens)]
        assert [p.shard for p in traced.pieces] == [shards[corpus][p.document] for p in traced.pieces]


def joints(row: list[tuple[int, int]]) -> list[int]:
    """The columns at which another document begins, or the same one again."""
    return [at for at in range(1, len(row)) if row[at] != (row[at - 1][0], row[at - 1][1] + 1)]


def check_rows(model: Model, samples: list[int], batch: dict[str, Any]) -> None:
    assert batch["sample"].tolist() == samples
    assert batch["source"].tolist() == [model.locate(sample)[0] for sample in samples]
    assert batch["tokens"].tolist() == [model.tokens(sample) for sample in samples]
    if "segment_ids" not in batch:
        return
    for sample, segments, positions in zip(samples, batch["segment_ids"], batch["positions"], strict=True):
        row = model.row(sample)
        begins = [0, *joints(row)]
        assert segments.tolist() == [sum(begin <= column for begin in begins) for column in range(len(row))]
        assert positions.tolist() == [
            column - max(begin for begin in begins if begin <= column) for column in range(len(row))
        ]


def samples_of_documents(model: Model, samples: Iterable[int]) -> dict[tuple[int, int], list[int]]:
    """Return the samples whose rows hold a token of each (source, document), by a search through all rows."""
    seen: dict[tuple[int, int], list[int]] = {}
    for sample in samples:
        source = model.locate(sample)[0]
        for document in {document for document, _ in model.row(sample)}:
            seen.setdefault((source, document), []).append(sample)
    return seen


@over_random(40, case=cases(skips=True), stop=st.integers(0, 90), data=st.data())
def test_find_is_what_a_search_through_all_rows_finds(case: Case, stop: int, data: st.DataObject) -> None:
    model = Model(case)
    plan = model.plan()
    seen = samples_of_documents(model, [sample for sample in model.left(0, stop) if sample < stop])
    everything = [(source, n) for source, part in enumerate(model.ids) for n in range(len(part))]
    asked = data.draw(st.lists(st.sampled_from(everything), min_size=1, max_size=6))
    for source, document in asked + list(seen)[:10]:
        found = plan.find(source, model.parts[source][1] + document, stop=stop)
        assert found.tolist() == seen.get((source, document), [])


@over_random(12, case=cases(), tokens_per_shard=st.integers(1, 60), access=st.sampled_from(["map", "read"]))
def test_written_corpora_give_the_rows_of_the_page(case: Case, tokens_per_shard: int, access: str) -> None:
    model = Model(case)
    with TemporaryDirectory() as folder:
        opened = []
        for n, documents in enumerate(model.documents):
            target = Path(folder, str(n))
            with nc.CorpusWriter(target, vocab_size=2**16, tokens_per_shard=tokens_per_shard) as writer:
                for document in documents:
                    writer.add(np.array(document, dtype=DTYPE))
            opened.append(nc.open_corpus(target, access=access))  # type: ignore[arg-type]
        plan = model.plan([opened[corpus] for corpus, _, _ in model.parts], documents=True)
        samples = [*range(30), 10**12]
        check_rows(model, samples, plan.read(samples))
        for sample, traced in zip(samples, plan.trace(samples), strict=True):
            first = model.parts[traced.source_index][1]
            tokens = [(p.document - first, t) for p in traced.pieces for t in range(p.start, p.stop)]
            assert tokens == model.row(sample)


# The promises, through the loader, on the union of the ranks


def schedules(world_size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    later = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 4)), max_size=3, unique_by=lambda pair: pair[0])
    return st.builds(
        lambda first, more: [(0, first * world_size), *((sample, size * world_size) for sample, size in sorted(more))],
        st.integers(1, 4),
        later,
    )


@over_random(12, case=cases(skips=True), data=st.data())
def test_one_order_at_every_world_size(case: Case, data: st.DataObject) -> None:
    """Skipped samples never come, the others come with the rows that they have without skips; batches are those of the schedule."""
    model = Model(case)
    plan = model.plan(documents=True)
    for world_size in WORLD_SIZES:
        schedule = data.draw(schedules(world_size))
        threads = data.draw(THREADS)
        expected = reference.batches(case.skips, schedule, 0, 5)
        with all_ranks(plan, world_size, batch_size=schedule, threads=threads, num_samples=ENOUGH) as loaders:
            found = global_batches(loaders, 5)
        assert samples_of(found) == expected
        for batch, samples in zip(found, expected, strict=True):
            check_rows(model, samples, batch)


@over_random(25, case=cases(skips=True), data=st.data())
def test_a_run_resumed_with_other_ranks_batch_sizes_and_threads_is_one_run(case: Case, data: st.DataObject) -> None:
    model = Model(case)
    served: list[dict[str, Any]] = []
    state, cursor = None, 0
    for _ in range(data.draw(st.integers(2, 5))):
        world_size = data.draw(st.sampled_from(WORLD_SIZES))
        schedule = data.draw(schedules(world_size))
        steps = data.draw(st.integers(0, 3))
        with all_ranks(
            model.plan(), world_size, batch_size=schedule, threads=data.draw(THREADS), num_samples=ENOUGH
        ) as loaders:
            for loader in loaders:
                if state is not None:
                    loader.set_state(json.loads(state))
            found = global_batches(loaders, steps)
            state = state_of(loaders)
        batches = reference.batches(case.skips, schedule, cursor, steps + 1)
        assert samples_of(found) == batches[:-1]
        cursor = batches[-1][0]
        assert json.loads(state)["sample"] == cursor
        served += found
    samples = [sample for batch in samples_of(served) for sample in batch]
    assert samples == model.left(0, len(samples))
    for batch in served:
        check_rows(model, batch["sample"].tolist(), batch)


@over_random(15, case=cases(skips=True), other=SKIPS, steps=st.integers(0, 12), data=st.data())
def test_skips_may_change_at_a_resume(
    case: Case, other: tuple[tuple[int, int], ...], steps: int, data: st.DataObject
) -> None:
    """As after a loss spike: the run goes back to a state and leaves out what came next."""
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    found, state = run(case, world_size, steps)
    cursor = json.loads(state)["sample"]
    assert cursor == reference.batches(case.skips, [(0, world_size)], 0, steps + 1)[-1][0]
    found, _ = run(replace(case, skips=other), 2, 20, state)
    assert samples_of(found) == reference.batches(other, [(0, 2)], cursor, 20)
    for batch in found:
        check_rows(Model(case), batch["sample"].tolist(), batch)


@over_random(
    20,
    case=cases(skips=True),
    num_samples=st.integers(0, 150),
    last=st.sampled_from(["drop", "pad"]),
    data=st.data(),
)
def test_a_finite_pass_ends_before_a_sample_whatever_is_skipped(
    case: Case, num_samples: int, last: str, data: st.DataObject
) -> None:
    model = Model(case)
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    schedule, threads = data.draw(schedules(world_size)), data.draw(THREADS)
    expected = []
    for batch in reference.batches(case.skips, schedule, 0, num_samples + 1):
        served = [sample for sample in batch if sample < num_samples]
        if served and (last == "pad" or served == batch):
            expected.append(served + [-1] * (len(batch) - len(served)))
    with all_ranks(
        model.plan(), world_size, batch_size=schedule, threads=threads, num_samples=num_samples, last=last
    ) as loaders:
        assert {len(loader) for loader in loaders} == {len(expected)}
        found = global_batches(loaders, len(expected))
        assert all(next(loader, None) is None for loader in loaders)
    assert samples_of(found) == expected
    for batch in found:
        real = batch["sample"] >= 0
        assert batch["loss_mask"].all(axis=1).tolist() == real.tolist() if last == "pad" else real.all()
        check_rows(model, batch["sample"][real].tolist(), {key: array[real] for key, array in batch.items()})


@over_random(15, case=cases(skips=True), most=st.sampled_from([None, 5, 10.5]))
def test_a_pickled_plan_is_the_same_plan(case: Case, most: float | None) -> None:
    model = Model(case)
    plan = model.plan([*small_corpora(model)], documents=True, max_epochs=[most] * len(model.parts))
    again = pickle.loads(pickle.dumps(plan))
    assert (again.fingerprint, again.end, again.skips.runs) == (plan.fingerprint, plan.end, plan.skips.runs)
    below = np.arange(min(30, plan.end))
    samples = below[~plan.skips.skipped(below)].tolist()  # one that is skipped may be refused
    check_rows(model, samples, again.read(samples))


def small_corpora(model: Model) -> list[nc.Corpus]:
    """Return corpora that pickle, one a source."""
    made = [nc.memory_corpus(documents, vocab_size=2**16) for documents in model.documents]
    return [made[corpus] for corpus, _, _ in model.parts]


@over_random(20, case=cases(parts=False), data=st.data())
def test_each_window_comes_once_in_each_epoch_of_its_source_also_across_phases(case: Case, data: st.DataObject) -> None:
    """Seen in the ids alone: the targets of an epoch's N rows are N · S different tokens, whatever rows of other sources come between them."""
    model = Model(case)
    seq_len = case.plan["seq_len"]
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    with all_ranks(model.plan(), world_size, batch_size=24, threads=data.draw(THREADS), num_samples=ENOUGH) as loaders:
        found = global_batches(loaders, 16)
    served: dict[int, list[list[int]]] = {}
    for tokens in np.concatenate([batch["tokens"] for batch in found]).tolist():
        served.setdefault(model.home[tokens[0]], []).append(tokens[1 : seq_len + 1])
    for source, targets in served.items():
        n = model.num_windows[source]
        for begin in range(0, len(targets), n):
            epoch = [token for row in targets[begin : begin + n] for token in row]
            assert len(set(epoch)) == len(epoch)
            assert {model.home[token] for token in epoch} == {source}


@over_random(20, case=cases(), data=st.data())
def test_mixtures_are_exact_within_two_samples_in_each_phase_and_weight_zero_is_never_served(
    case: Case, data: st.DataObject
) -> None:
    model = Model(case)
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    with all_ranks(model.plan(), world_size, batch_size=24, threads=data.draw(THREADS), num_samples=ENOUGH) as loaders:
        sources = np.concatenate([batch["source"] for batch in global_batches(loaders, 10)]).tolist()
    phases = case.plan["phases"]
    ends = [phase["sample"] for phase in phases[1:]] + [len(sources)]
    for phase, end in zip(phases, ends, strict=True):
        given_weights = zip(phase["weights"], model.num_windows, strict=True)
        weights = [Fraction(n if weight is None else weight) for weight, n in given_weights]
        counts: Counter[int] = Counter()
        for n, source in enumerate(sources[phase["sample"] : end], start=1):
            counts[source] += 1
            for other, weight in enumerate(weights):
                assert abs(counts[other] - n * weight / sum(weights)) < 2
                assert weight or not counts[other]


def with_phases(case: Case, phases: list[reference.Phase]) -> Case:
    sources: Any = [
        {**source, "weight": weight} for source, weight in zip(case.plan["sources"], phases[0]["weights"], strict=True)
    ]
    return replace(case, plan={**case.plan, "sources": sources, "phases": phases})


def run(case: Case, world_size: int, steps: int, state: str | None = None) -> tuple[list[dict[str, Any]], str]:
    with all_ranks(Model(case).plan(), world_size, batch_size=world_size, threads=0, num_samples=ENOUGH) as loaders:
        for loader in loaders:
            if state is not None:
                loader.set_state(json.loads(state))
        return global_batches(loaders, steps), state_of(loaders)


@over_random(25, case=cases(skips=True), data=st.data())
def test_phases_that_have_not_begun_may_change(case: Case, data: st.DataObject) -> None:
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    _, state = run(case, world_size, data.draw(st.integers(0, 60)) // world_size)
    cursor = json.loads(state)["sample"]
    past = [phase for phase in case.plan["phases"] if phase["sample"] < max(cursor, 1)]
    starts = np.cumsum([max(cursor, 1), *data.draw(st.lists(st.integers(1, 20), max_size=2))])[
        : data.draw(st.integers(0, 3))
    ]
    sources = len(case.plan["sources"])
    later: list[reference.Phase] = [
        {"sample": int(start), "weights": data.draw(weights_of_a_phase(sources))} for start in starts
    ]
    changed = with_phases(case, past + later)
    found, _ = run(changed, 2, 20, state)
    samples = [sample for batch in samples_of(found) for sample in batch]
    assert samples == Model(case).left(cursor, 40)
    for batch in found:
        check_rows(Model(changed), batch["sample"].tolist(), batch)


@over_random(15, case=cases(), data=st.data())
def test_a_source_may_be_added_for_a_later_phase(case: Case, data: st.DataObject) -> None:
    sources = case.plan["sources"]
    assume(len(sources) > 1)
    added = data.draw(st.integers(0, len(sources) - 1))
    first = ["0" if number == added else weight for number, weight in enumerate(case.plan["phases"][0]["weights"])]
    assume(any(weight != "0" for weight in first))
    start = data.draw(st.integers(1, 40))
    later: reference.Phase = {"sample": start, "weights": data.draw(weights_of_a_phase(len(sources)))}
    after = with_phases(case, [{"sample": 0, "weights": first}, later])

    def without(entries: Sequence[Any] | None) -> Any:
        return [entry for number, entry in enumerate(entries or []) if number != added]

    alone: Any = {**after.plan, "sources": without(after.plan["sources"])}
    before = replace(
        with_phases(replace(case, plan=alone), [{"sample": 0, "weights": without(first)}]), parts=without(case.parts)
    )
    found, state = run(before, 1, start)
    rest, _ = run(after, 2, 20, state)
    for batch in found:  # sources are numbered in their own plan
        batch["source"] += batch["source"] >= added
    for batch in found + rest:
        check_rows(Model(after), batch["sample"].tolist(), batch)
    assert samples_of(found) + samples_of(rest) == reference.batches([], [(0, 1), (start, 2)], 0, start + 20)


@over_random(25, case=cases(), data=st.data())
def test_a_changed_past_is_refused_with_the_phase_that_differs(case: Case, data: st.DataObject) -> None:
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    phases = case.plan["phases"]
    number = data.draw(st.integers(0, len(phases) - 1))
    start = phases[number]["sample"]
    _, state = run(case, world_size, -(-(start + data.draw(st.integers(1, 20))) // world_size))
    other: reference.Phase = {"sample": start, "weights": data.draw(weights_of_a_phase(len(case.plan["sources"])))}
    assume(
        reference.integer_weights(reference.weights_of(case.plan, other["weights"]))
        != reference.integer_weights(reference.weights_of(case.plan, phases[number]["weights"]))
    )
    changed = with_phases(case, [*phases[:number], other, *phases[number + 1 :]])
    part = f"weights from sample {start} on differs" if start else "weights differs"
    with pytest.raises(nc.StateError, match=part):
        run(changed, 2, 1, state)
    if number:  # a phase that is gone; and one that begins elsewhere
        with pytest.raises(nc.StateError, match=part):
            run(with_phases(case, phases[:number]), 2, 1, state)
        moved: reference.Phase = {**phases[number], "sample": phases[number - 1]["sample"] + 1}
        assume(moved["sample"] != start)
        with pytest.raises(nc.StateError, match=f"weights from sample {moved['sample']} on differs"):
            run(with_phases(case, [*phases[:number], moved, *phases[number + 1 :]]), 2, 1, state)


@over_random(
    25,
    case=cases(),
    most=st.lists(st.sampled_from([None, 0.1, 0.5, 0.7, 1, 1.5, 2, 3.3]), min_size=5, max_size=5),
    data=st.data(),
)
def test_a_source_ends_the_pass_at_its_max_epochs_at_the_same_step_on_all_ranks(
    case: Case, most: list[float | None], data: st.DataObject
) -> None:
    model = Model(case)
    most = most[: len(case.plan["sources"])]
    plan = model.plan(max_epochs=most)
    first = reference.first_refused(case.plan, [None if each is None else str(each) for each in most])
    if first is None:
        assert len(plan.locate([0, 10**9, LAST]).source) == 3
        return
    assume(first < 300)
    world_size = data.draw(st.sampled_from(WORLD_SIZES))
    options = {"batch_size": data.draw(schedules(world_size)), "threads": data.draw(THREADS)}
    steps = sum(batch[-1] < first for batch in reference.batches([], options["batch_size"], 0, first))
    last = data.draw(st.sampled_from(["drop", "pad"]))
    with all_ranks(plan, world_size, last=last, **options) as loaders:  # without an end
        samples = [sample for batch in samples_of(global_batches(loaders, steps)) for sample in batch]
        assert samples == [*range(len(samples))]
        for loader in loaders:
            for _ in range(2):
                with pytest.raises(nc.ExhaustedError, match=f"sample {first:,} would"):
                    next(loader)
        state = json.loads(state_of(loaders))
    assert state["sample"] == len(samples)
    with pytest.raises(nc.ExhaustedError, match=f"sample {first:,} would") as refused:  # before the pass starts
        nc.Loader(plan, num_samples=first + 1, dp_world_size=world_size, **options)
    assert isinstance(refused.value, ValueError)
    with all_ranks(plan, world_size, num_samples=first, last="pad", **options) as loaders:
        for loader in loaders:
            loader.set_state(state)
        rest = [batch for loader in loaders for batch in loader]
        expected = [*range(len(samples), first)]
        assert sorted(sample for batch in samples_of(rest) for sample in batch if sample >= 0) == expected
    with all_ranks(
        model.plan(), world_size, num_samples=ENOUGH, **options
    ) as loaders:  # the same order, without the limit
        for loader in loaders:
            loader.set_state(state)
        [batch] = global_batches(loaders, 1)
        check_rows(model, reference.batches([], options["batch_size"], len(samples), 1)[0], batch)
