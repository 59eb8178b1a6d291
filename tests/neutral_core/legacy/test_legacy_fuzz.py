"""One fuzz target over all readers: small valid data sets of every layout, changed anyhow, are refused in good time or are whole.

``make slow`` fuzzes for MILLSTREAM_FUZZ_SECONDS (600) and prints the seed, with which ``pytest -m slow --hypothesis-seed=…`` begins again.
"""

from __future__ import annotations

import gzip
import os
import pickle
import random
import re
import shutil
import signal
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from damaged import MAX_BYTES, MAX_SECONDS, VALUES, replaced
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from small_data_sets import DataSet, resummed, small_data_sets

import neutral_core as nc
from neutral_core.layouts import LAYOUTS

DATA_SETS = small_data_sets()
FILES = [(name, content) for each in DATA_SETS for name, content in each.files.items()]
REFUSED = (nc.FormatError, ValueError, OSError)  # FileNotFoundError is an OSError
SLOW_MACHINE = 10  # other processes run beside a test
HUNG_SECONDS = 30
ARGUMENTS = ("layout is ", "dtype is ", "boundaries is ")
NUMBER = re.compile(rb"-?\d+")
EXAMPLES = 250

Files = dict[str, bytes]


class Change(NamedTuple):
    """A change of one file's bytes, or of which files there are; places are drawn without knowing the sizes and taken modulo them."""

    kind: str
    file: int
    at: int
    other: int  # of FILES, which is put in a file's place or beside it
    size: int  # of an integer
    order: Any
    value: int
    span: bytes

    def apply(self, files: Files) -> None:
        names = sorted(files)
        name = names[self.file % len(names)] if names else ""
        if self.kind == "add":
            files.update([FILES[self.other]])
        elif not name:
            return
        elif self.kind == "remove":
            del files[name]
        elif self.kind == "swap":
            files[name] = FILES[self.other][1]
        elif self.kind == "copy":
            files[names[self.at % len(names)]] = files[name]
        else:
            files[name] = inside(name, files[name], self.edit)

    def edit(self, content: bytes) -> bytes:
        at = self.at % (len(content) + 1)
        if self.kind == "flip" and content:
            at %= len(content)
            return content[:at] + bytes([content[at] ^ (self.span[0] or 1)]) + content[at + 1 :]
        if self.kind == "cut":
            return content[:at]
        if self.kind in ("integer", "step"):
            before = int.from_bytes(content[at : at + self.size], self.order) if self.kind == "step" else 0
            return replaced(content, at, self.size, before + self.value, self.order)
        numbers = list(NUMBER.finditer(content)) if self.kind == "number" else []
        if numbers:
            first, last = numbers[self.at % len(numbers)].span()
            before = int(content[first:last]) if self.size < 4 and last - first < 20 else 0
            return content[:first] + str(before + self.value).encode() + content[last:]
        if self.kind == "delete":
            return content[:at] + content[at + len(self.span) :]
        return content[:at] + self.span + content[at + (self.kind == "span") * len(self.span) :]


EDITS = ("flip", "flip", "integer", "integer", "step", "step", "number", "number", "span", "cut", "insert", "delete")


class Call(NamedTuple):
    """A way of opening; ``path`` is relative to the folder."""

    path: str
    how: dict[str, Any]


# What is drawn


CHANGES = st.builds(
    Change,
    kind=st.sampled_from((*EDITS, *EDITS, "swap", "remove", "add", "copy")),
    file=st.integers(0, 9),
    at=st.integers(0, 2**13),
    other=st.integers(0, len(FILES) - 1),
    size=st.sampled_from([1, 2, 4, 8]),
    order=st.sampled_from(["little", "big"]),
    value=st.sampled_from((*VALUES, 1, -1)) | st.integers(-4, 64) | st.integers(-(2**64), 2**64),
    span=st.binary(min_size=1, max_size=12),
)


def inside(name: str, content: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Edit a file; every second time what a gzip file holds and not its packing, and of ours so that its sums are right again."""
    changed = edit(content)
    if zlib.crc32(changed) % 2:
        return changed
    if name.endswith(".gz"):
        try:
            return gzip.compress(edit(gzip.decompress(content)), mtime=0)
        except (OSError, EOFError, zlib.error):
            return changed
    return resummed(name, changed) if name.endswith((".safetensors", "dataset.json", "data.json")) else changed


@st.composite
def calls(draw: st.DrawFn, data: DataSet) -> Call:
    """Mostly as the data set is meant to be opened; otherwise any way at all."""
    how = dict(data.how)
    path = data.opened
    if draw(st.integers(0, 7)) == 0:
        path = draw(st.sampled_from([data.opened, "", *data.files, next(iter(data.files)).partition(".")[0]]))
        how["layout"] = draw(st.sampled_from([None, *LAYOUTS]))
        how["dtype"] = draw(st.sampled_from([None, "uint8", "uint16", "int32", "int64", "uint64", "float32", "text"]))
        how["boundaries"] = draw(st.sampled_from([None, "index", "sequences", "none", "eos:2", "bos:7", "fixed:3"]))
    return Call(path, {**how, "access": draw(st.sampled_from(["map", "read"]))})


# By number: a report of a failure shows what was drawn, and would show all files.
CASES = st.integers(0, len(DATA_SETS) - 1).flatmap(
    lambda number: st.tuples(st.just(number), st.lists(CHANGES, min_size=1, max_size=2), calls(DATA_SETS[number]))
)


# What must hold


def check(folder: Path, number: int, changed: list[Change], call: Call) -> str:
    """Write the changed data set and read it in every way: all is refused well, or all is there. Returns which of the two."""
    files = dict(DATA_SETS[number].files)
    for change in changed:
        change.apply(files)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    took, peak, outcome = measured(lambda: outcome_of(folder, call))
    if took > MAX_SECONDS:
        took = min(took, measured(lambda: outcome_of(folder, call))[0])
    assert took < MAX_SECONDS * SLOW_MACHINE
    assert peak < MAX_BYTES
    return outcome


def measured(work: Callable[[], str]) -> tuple[float, int, str]:
    """Seconds, the most bytes that were held, and what came of it."""
    tracemalloc.start()
    try:
        begin = time.process_time()
        outcome = work()
        return time.process_time() - begin, tracemalloc.get_traced_memory()[1], outcome
    finally:
        tracemalloc.stop()


def outcome_of(folder: Path, call: Call) -> str:
    try:
        corpus = nc.open_corpus(folder / call.path, **call.how)
    except REFUSED as error:
        check_refusal(error, folder)
        return "refused"
    found: dict[str, Any] = {}
    faults = []
    for name, read in ways_of_reading(corpus).items():
        try:
            found[name] = read()
        except REFUSED as error:
            check_refusal(error, folder)
            faults.append(name)
    if "verify" not in faults:
        assert not faults, "verify has found nothing, but not everything can be read"
    if faults:
        return "refused when read"
    check_whole(corpus, found)
    return "whole"


def check_refusal(error: Exception, folder: Path) -> None:
    """A refusal names the folder or a file in it, or the argument that it is about."""
    names = [folder.name, *(path.name for path in folder.iterdir())]
    if not str(error).startswith(ARGUMENTS) and not any(name in str(error) for name in names):
        raise AssertionError("the refusal names no path") from error


def ways_of_reading(corpus: nc.Corpus) -> dict[str, Callable[[], Any]]:
    count, total = corpus.num_documents, corpus.num_tokens
    return {
        "documents": lambda: [corpus.document(number) for number in range(count)],
        "offsets": lambda: corpus.document_offsets(0, count),
        "tokens": lambda: corpus.tokens(0, total),
        "found": lambda: [shard.offsets().find(np.arange(shard.num_tokens)) for shard in corpus.shards],
        **{f"items {name}": lambda name=name: corpus.field_items(name, 0, count) for name in corpus.fields},  # type: ignore[misc]
        **{
            f"each {name}": lambda name=name: [corpus.field(name, number) for number in range(count)]  # type: ignore[misc]
            for name in corpus.fields
        },
        "rows": lambda: rows_of(corpus),
        "again": lambda: pickle.loads(pickle.dumps(corpus)).fingerprint,
        "verify": corpus.verify,
    }


def rows_of(corpus: nc.Corpus) -> dict[str, np.ndarray] | None:
    """The rows of one epoch in the order of the file, whose windows overlap by one token; damaged counts may promise any number."""
    if corpus.num_tokens < 5:
        return None
    plan = nc.Plan(nc.Source(corpus, name="fuzzed"), seq_len=4, shuffle="none", documents=True)
    return dict(plan.read(np.arange(min(int(plan.num_windows[0]), 100))))


def check_whole(corpus: nc.Corpus, found: dict[str, Any]) -> None:
    """All ways of reading agree, and counts and types are those that the corpus declares."""
    tokens, offsets, documents = found["tokens"], found["offsets"], found["documents"]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    assert np.array_equal(offsets, np.concatenate([[0], np.cumsum(lengths)]))
    assert len(tokens) == corpus.num_tokens == lengths.sum()
    assert np.array_equal(tokens, np.concatenate([np.empty(0, corpus.dtype), *documents]))
    assert corpus.dtype in (np.uint8, np.uint16, np.uint32)
    assert all(each.dtype == corpus.dtype for each in [tokens, *documents])
    numbers = np.concatenate(
        [first + at for first, at in zip(corpus.first_document, found["found"], strict=False)] or [[]]
    )
    assert np.array_equal(numbers, np.repeat(np.arange(len(lengths)), lengths))
    for name, declared in corpus.fields.items():
        check_field(name, declared, found[f"items {name}"], found[f"each {name}"], lengths)
    assert found["again"] == corpus.fingerprint
    if found["rows"] is not None:
        rows = found["rows"]["tokens"]
        assert rows.shape == (min((len(tokens) - 1) // 4, 100), 5)
        assert all(np.array_equal(row, tokens[4 * number : 4 * number + 5]) for number, row in enumerate(rows))


def check_field(name: str, declared: nc.Field, items: Any, each: list[np.ndarray], lengths: np.ndarray) -> None:
    kind = name.partition(".")[0]
    counts = {"token": lengths, "document": np.ones_like(lengths)}.get(kind, items.counts)
    assert items.items.shape == (counts.sum(), *declared.shape)
    assert kind == "document" or [len(of) for of in each] == counts.tolist()
    flat = np.concatenate([of.reshape(-1, *declared.shape) for of in each] or [items.items])
    assert items.items.dtype == flat.dtype == declared.dtype
    assert flat.tobytes() == items.items.tobytes()
    if name.endswith("_spans"):
        limits = np.repeat(lengths, counts)
        assert ((items.items[:, 0] >= 0) & (items.items[:, 0] <= items.items[:, 1])).all()
        assert (items.items[:, 1] <= limits).all()


@contextmanager
def never_hanging() -> Iterator[None]:
    """Fail, with the place, what goes on for longer than anything here can take."""

    def fail(*_: object) -> None:
        raise AssertionError(f"it has not ended after {HUNG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, fail)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(folder: Path, examples: int, number: int | None, outcomes: Counter[str]) -> None:
    @settings(max_examples=examples, database=None, derandomize=False)
    @given(CASES)
    def run(case: tuple[int, list[Change], Call]) -> None:
        signal.alarm(HUNG_SECONDS)
        outcomes[check(folder, *case)] += 1

    with never_hanging():
        (run if number is None else seed(number)(run))()


# The tests


def test_there_is_a_data_set_of_every_layout_and_it_holds_its_documents(tmp_path: Path) -> None:
    assert {data.layout for data in DATA_SETS} == set(LAYOUTS)
    for number, data in enumerate(DATA_SETS):
        folder = tmp_path / f"set-{number}"
        folder.mkdir()
        corpus = nc.open_corpus(data.write(folder), **data.how)
        documents = [corpus.document(each).tolist() for each in range(corpus.num_documents)]
        assert documents == [list(each) for each in data.documents], data.layout
        for access in ("map", "read"):
            assert outcome_of(folder, Call(data.opened, {**data.how, "access": access})) == "whole"
            layout = {"layout": data.layout, **data.how}
            assert nc.open_corpus(folder / data.opened, **layout, access=access).fingerprint == corpus.fingerprint


def test_a_damaged_data_set_is_refused_in_good_time_or_is_whole(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    fuzz(tmp_path / "data-set", EXAMPLES, None, outcomes)
    assert set(outcomes) == {"refused", "refused when read", "whole"}, "the changes reach every outcome"


@pytest.mark.slow
def test_damaged_data_sets_are_refused_in_good_time_or_are_whole_for_ten_minutes(
    tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    given_seed = request.config.getoption("--hypothesis-seed")
    first = random.SystemRandom().randrange(2**32) if given_seed in (None, "random") else int(given_seed)
    end = time.monotonic() + float(os.environ.get("MILLSTREAM_FUZZ_SECONDS", "600"))
    outcomes: Counter[str] = Counter()
    rounds = 0
    try:
        while time.monotonic() < end:
            fuzz(tmp_path / "data-set", 2000, first + rounds, outcomes)
            rounds += 1
    finally:
        with capsys.disabled():
            told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
            print(f"\n{outcomes.total():,} examples: {told}; --hypothesis-seed={first + rounds} is the last round's.")
