"""The plan: sources, seed and seq_len; from them, for any sample, which row it is. Pure arithmetic, no state, no index.

    sample k ──mixture──▶ (source s, draw j) ──epochs──▶ (epoch e, position i) ──permutation──▶ window w ──▶ token ranges ──▶ row

Each arrow works on whole arrays of samples in lockstep. The order depends on nothing else: not on ranks, threads, batch size or how long the
run will be. docs/order.md says it in full; ``ORDER_VERSION`` is part of every fingerprint.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core import cursor
from neutral_core.batch import Batch, read_documents, read_tokens
from neutral_core.errors import StateError
from neutral_core.format import canonical
from neutral_core.order.document_runs import DocumentRuns
from neutral_core.order.limits import Limits
from neutral_core.order.permutation import draw, source_key
from neutral_core.order.phases import Phase, Phases, phase_weights, resolved_weights
from neutral_core.order.shuffle import (
    CHUNK_TOKENS,
    GROUP_CHUNKS,
    OFFSET,
    BlockShuffle,
    GlobalShuffle,
    NoShuffle,
    Shuffle,
    output,
)
from neutral_core.order.skips import Skips
from neutral_core.order.source import Source, check_lengths, check_tokenizers, names_of
from neutral_core.order.trace import TracedRow, trace_rows
from neutral_core.order.windows import Pieces, Stretches, num_windows, windows_over

ORDER_VERSION = 1
WINDOWS = ("concat",)
SHUFFLES = ("global", "none", "blocks")
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Where samples are: int64[n] each.

    Attributes:
        source: index into the plan's sources.
        epoch: of that source.
        window: 0 … num_windows − 1, after the permutation.
        start: the window's first token, counted from the first of the source.
    """

    source: Int64
    epoch: Int64
    window: Int64
    start: Int64

    def __getitem__(self, rows: slice) -> Located:
        return Located(
            source=self.source[rows], epoch=self.epoch[rows], window=self.window[rows], start=self.start[rows]
        )


class Plan:
    """Sources in an order. Costs nothing in proportion to documents or samples to make; pickles without data.

    Args:
        sources: a Source, or several with unique names.
        seq_len: number of targets in a row, ≥ 1; a row holds seq_len + 1 tokens.
        seed: 0 ≤ seed < 2^64.
        windows: ``concat``: rows are consecutive stretches of the source's token stream, cut elsewhere in each epoch.
        shuffle: ``global``: windows in the order of a permutation, another one in each epoch; ``none``: in file order; ``blocks``: for storage that
            is far away: chunks of ``chunk_windows`` windows (left out: 2^21 tokens) in a permuted order, ``group_chunks`` of them at a time with
            their windows permuted together.
        document_shuffle: permute documents inside fixed runs of 128 before rows are cut, another way in each epoch.
        documents: add segment_ids and positions to the rows.
        extra_tokens: further tokens at the end of each row, ≥ 0, for targets that look further ahead.
        phases: Phase(sample, weights) in the order of their samples: other weights from there on; each source goes on from where it stood.
        skip: pairs (from, to) of samples: from … to − 1 are passed over by loaders; the others keep their numbers.
        mixed_tokenizers: allow sources whose tokenizers differ.

    Attributes:
        sources, seq_len, row_length (tokens in a row), dtype (of rows: the widest among the sources).
        columns: pairs (start, stop): the stretches of a whole row of seq_len + 1 + extra_tokens that are read: all of it, unless ``narrow`` made the plan.
        num_windows: int64[num_sources], per epoch.
        phases: the phases with the first one, from sample 0 on, and integer weights for all sources.
        skips: the runs that ``skip`` says, joined where they touch.
        fingerprint: text that two plans share iff they have the same order over the same data; skips are no part of it.

    Raises:
        ValueError: naming the argument or source, what was found and what was expected.
    """

    def __init__(
        self,
        sources: Source | Sequence[Source],
        *,
        seq_len: int,
        seed: int = 0,
        windows: str = "concat",
        shuffle: str = "global",
        chunk_windows: int | None = None,
        group_chunks: int | None = None,
        document_shuffle: bool = False,
        documents: bool = False,
        extra_tokens: int = 0,
        phases: Sequence[Phase] = (),
        skip: Iterable[tuple[int, int]] = (),
        mixed_tokenizers: bool = False,
    ) -> None:
        self.sources = (sources,) if isinstance(sources, Source) else tuple(sources)
        _check_choice("windows", windows, WINDOWS)
        _check_choice("shuffle", shuffle, SHUFFLES)
        self.seq_len = _check_int("seq_len", seq_len, 1, 2**40)
        self.seed = _check_int("seed", seed, 0, 2**64 - 1)
        self.extra_tokens = _check_int("extra_tokens", extra_tokens, 0, 2**40)
        self.windows, self.shuffle, self.documents = windows, shuffle, bool(documents)
        self.document_shuffle, self.mixed_tokenizers = bool(document_shuffle), bool(mixed_tokenizers)
        self.chunk_windows, self.group_chunks = _check_blocks(shuffle, chunk_windows, group_chunks, self.seq_len)
        self._whole_row = self.row_length = self.seq_len + 1 + self.extra_tokens
        self.columns: tuple[tuple[int, int], ...] = ((0, self._whole_row),)
        self.names = names_of(self.sources)
        check_tokenizers(self.sources, self.names, self.mixed_tokenizers)
        check_lengths(self.sources, self.names, self.row_length)
        self.dtype = max((source.corpus.dtype for source in self.sources), key=lambda dtype: dtype.itemsize)
        self.num_windows = np.array(
            [num_windows(source.num_tokens, self.seq_len) for source in self.sources], dtype=np.int64
        )
        first = resolved_weights([source.weight for source in self.sources], self.names, self.num_windows)
        starts, weights = phase_weights(phases, self.names, self.num_windows)
        self.phases = tuple(
            Phase(start, dict(zip(self.names, each, strict=True)))
            for start, each in zip([0, *starts], [first, *weights], strict=True)
        )
        self.skips = Skips(skip)
        self._phases = Phases([0, *starts], [first, *weights])
        self._limits = Limits(self.sources, self.names, self.num_windows, self._phases, self.skips)
        self._keys = np.array([source_key(self.seed, name) for name in self.names], dtype=np.uint64)
        self._shuffle = self._make_shuffle()
        self._stretches = Stretches(self.sources)
        self._runs = DocumentRuns(self._stretches) if self.document_shuffle else None
        self._parts_of_phase: dict[int, dict[str, str]] = {}
        self.fingerprint = canonical.digest(self.parts(len(self.phases) - 1), 32)

    def locate(self, samples: npt.ArrayLike) -> Located:
        """Return where samples are.

        Args:
            samples: integers [n], 0 ≤ sample < 2^62, in any order.

        Raises:
            ExhaustedError: a sample would serve a source beyond its max_epochs.
        """
        k = _check_samples(samples)
        source, j = self._phases.split(k)
        self._limits.check(source, j, k)
        epoch, position = np.divmod(j, self.num_windows[source])
        keys = draw(self._keys[source], epoch)
        window = self._shuffle.window(source, keys, position)
        start = (self._offsets(source, keys) + window * self.seq_len) % self._stretches.num_tokens[source]
        return Located(source=source, epoch=epoch, window=window, start=start)

    def sample_of(self, source: int, epochs: npt.ArrayLike, windows: npt.ArrayLike) -> Int64:
        """Return the samples at which windows of a source are served: the inverse of ``locate``.

        Args:
            source: index. epochs, windows: integers [n], epoch ≥ 0, 0 ≤ window < num_windows[source].

        Raises:
            IndexError: no such source, epoch or window. ValueError: one that is never served. OverflowError: one behind the last sample.
            ExhaustedError: one beyond max_epochs.
        """
        epoch, window = np.asarray(epochs, dtype=np.int64), np.asarray(windows, dtype=np.int64)
        n = int(self.num_windows[self._check_source(source)])
        if epoch.size and not (int(epoch.min()) >= 0 and int(epoch.max()) <= cursor.MAX_SAMPLE // n):
            raise IndexError(
                f"source {self.names[source]!r}: an epoch is outside of those that samples below 2^62 reach."
            )
        if window.size and (window.min() < 0 or window.max() >= n):
            raise IndexError(f"source {self.names[source]!r}: a window is outside of its {n:,}.")
        same = np.full(epoch.shape, source, dtype=np.int64)
        position = self._shuffle.position(same, draw(self._keys[same], epoch), window)
        samples = self._phases.join(source, epoch * n + position)
        self._limits.check(same, epoch * n + position, samples)
        return samples

    def counts(self, sample: int) -> Int64:
        """Return how many samples of each source come before ``sample`` (0 … 2^62): int64[num_sources]; skipped ones are counted."""
        return self._phases.counts(_check_int("sample", sample, 0, cursor.MAX_SAMPLE))

    def find(self, source: int, document: int, *, stop: int) -> Int64:
        """Return the samples before ``stop`` in whose rows a document has at least one token: int64[n], increasing, without skipped ones.

        Args:
            source: index. document: its number in the source's corpus.

        By the inverse of the order: costs what it finds, whatever the size of the corpus.
        """
        n = int(self.num_windows[self._check_source(source)])
        first, last = self.sources[source].documents
        if not first <= document < last:
            raise IndexError(
                f"document {document:,} is no document of source {self.names[source]!r}, which has {first:,} … {last - 1:,}."
            )
        served = min(int(self.counts(stop)[source]), int(self._limits.most[source]))
        low, high = self.sources[source].corpus.document_offsets(document, document + 1).tolist()
        if not served or low == high:
            return np.empty(0, dtype=np.int64)
        epochs = np.arange(-(-served // n), dtype=np.int64)
        same = np.full(epochs.shape, source, dtype=np.int64)
        keys = draw(self._keys[same], epochs)
        begins = np.full(epochs.shape, low - self.sources[source].tokens[0], dtype=np.int64)
        if self._runs is not None:
            begins = self._runs.starts(source, document - first, keys)
        offsets = self._offsets(same, keys)
        which, window = windows_over(
            (begins - offsets) % self._stretches.num_tokens[source], high - low, n, self.seq_len, self._whole_row,
            int(self._stretches.num_tokens[source]),
        )  # fmt: skip
        position = self._shuffle.position(same[which], keys[which], window)
        draws = epochs[which] * n + position
        samples = np.sort(self._phases.join(source, draws[draws < served]))
        return np.asarray(samples[~self.skips.skipped(samples)])

    def sample_of_draw(self, source: int, draw_number: int) -> int | None:
        """Return the sample at which a source (index) is served for the draw_number-th time, from 0; None where that never comes."""
        return self._phases.sample_of(self._check_source(source), draw_number)

    def most_draws(self, source: int) -> int | None:
        """Return how many samples of a source (index) its max_epochs allows; None where it has none."""
        return None if self.sources[self._check_source(source)].max_epochs is None else int(self._limits.most[source])

    @property
    def end(self) -> int:
        """The first sample, skipped ones apart, that may not be served, for a source's max_epochs; 2^62 where there is none."""
        return self._limits.first[0]

    def check_end(self, num_samples: int) -> None:
        """Raise ExhaustedError if the first ``num_samples`` samples serve a source more often than its max_epochs."""
        self._limits.check_pass(num_samples)

    def read(self, samples: npt.ArrayLike) -> Batch:
        """Return the rows of samples, in the order asked: a dict of fresh arrays.

        ``tokens`` uint8/16/32 [n, seq_len + 1 + extra_tokens]; ``source`` int32[n]; ``sample`` int64[n]; with ``documents`` also
        ``segment_ids`` and ``positions`` int32, as tokens.

        Raises:
            FormatError: a shard is damaged. OSError: it cannot be read. ExhaustedError: as ``locate``.
        """
        k = _check_samples(samples)
        located = self.locate(k)
        return self.read_pieces(k, located, self.pieces(located))

    def narrow(self, columns: Iterable[tuple[int, int]]) -> Plan:
        """Return the plan that reads only some columns of each row, laid one after another: the same order, fingerprint and cursors.

        Args:
            columns: pairs (start, stop) of the whole row, 0 ≤ start < stop ≤ seq_len + 1 + extra_tokens, in any order, at least one.

        ``tokens``, ``segment_ids`` and ``positions`` are those columns of the whole row's; tokens of other columns are not read. A stretch of n
        columns has n − 1 targets (of those that seq_len counts), which is how many columns a ``loss_mask`` has.
        """
        chosen = tuple((_check_int("columns", a, 0, 2**41), _check_int("columns", b, 0, 2**41)) for a, b in columns)
        if not chosen or any(not start < stop <= self._whole_row for start, stop in chosen):
            raise ValueError(
                f"columns are {chosen}, expected pairs with 0 ≤ start < stop ≤ {self._whole_row}, the tokens of a row."
            )
        narrowed = object.__new__(Plan)
        narrowed.__dict__.update(self.__dict__)
        narrowed.columns, narrowed.row_length = chosen, sum(stop - start for start, stop in chosen)
        return narrowed

    @property
    def num_targets(self) -> int:
        """Targets among the columns that are read: seq_len, unless ``narrow`` made the plan."""
        return sum(max(min(stop, self.seq_len + 1) - start - 1, 0) for start, stop in self.columns)

    def pieces(self, located: Located) -> Pieces:
        """Return the stretches of shards that fill the rows of located samples."""
        parts, at = [], 0
        for start, stop in self.columns:
            part = self._pieces(located, start, stop)
            parts.append(dataclasses.replace(part, column=part.column + at) if at else part)
            at += stop - start
        return Pieces.join(parts)

    def _pieces(self, located: Located, start: int, stop: int) -> Pieces:
        """Return what fills columns start … stop − 1 of whole rows."""
        begin = located.start
        if start:
            begin = (begin + start) % self._stretches.num_tokens[located.source]
        if self._runs is not None:
            keys = draw(self._keys[located.source], located.epoch)
            return self._runs.pieces(located.source, keys, begin, stop - start)
        return self._stretches.pieces(located.source, begin, stop - start)

    def advise(self, pieces: Pieces) -> None:
        """Ask the system to bring what the pieces hold into memory; returns at once."""
        self._stretches.advise(pieces)

    def read_pieces(self, samples: Int64, located: Located, pieces: Pieces) -> Batch:
        """Return what ``read`` does for samples whose place is known already."""
        batch: Batch = {"tokens": read_tokens(self._stretches, pieces, len(samples), self.row_length, self.dtype)}
        if self.documents:
            batch["segment_ids"], batch["positions"] = self._documents(located, pieces)
        batch["source"] = located.source.astype(np.int32)
        batch["sample"] = samples.copy()  # the caller's, as everything in the batch is
        return batch

    def _documents(self, located: Located, pieces: Pieces) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return segment_ids and positions: counted over whole rows, from offsets alone, whatever columns are read."""
        whole = self._whole_row
        if self.columns == ((0, whole),):
            return read_documents(self._stretches, pieces, len(located.start), whole)
        ids, positions = read_documents(self._stretches, self._pieces(located, 0, whole), len(located.start), whole)
        at = np.concatenate([np.arange(start, stop) for start, stop in self.columns])
        return ids[:, at], positions[:, at]

    def trace(self, samples: npt.ArrayLike) -> list[TracedRow]:
        """Return for each sample which documents, at which token ranges, make its row."""
        k = _check_samples(samples)
        located = self.locate(k)
        return trace_rows(k, located, self.names, self._stretches, self._pieces(located, 0, self._whole_row))

    def cursor(self, sample: int) -> dict[str, Any]:
        """Return the state before ``sample``: the plan up to there, a small JSON-able dict."""
        parts = self.parts(self._phase_before(sample))
        return cursor.make(sample, canonical.digest(parts, 32), parts)

    def sample_in(self, state: Any) -> int:
        """Return the sample at which a state goes on; raise StateError, naming the part, where it was saved with another past."""
        phase = self._phase_before(cursor.check(state))
        parts = self.parts(phase)
        return cursor.sample_of(state, canonical.digest(parts, 32), parts)

    def parts(self, phase: int) -> dict[str, str]:
        """Return name → short digest of what decides the order up to the end of a phase (0, 1, …); what only later phases serve is no part of it."""
        if phase not in self._parts_of_phase:
            self._parts_of_phase[phase] = self._parts(phase)
        return self._parts_of_phase[phase]

    def _phase_before(self, sample: int) -> int:
        """Return the last phase of which a sample lies before ``sample``; of no sample, the first."""
        return int(self._phases.at(max(sample - 1, 0)))

    def _parts(self, phase: int) -> dict[str, str]:
        past = self.phases[: phase + 1]
        served = [source for source, name in enumerate(self.names) if any(each.weights[name] for each in past)]
        sources = [self.sources[source] for source in served]
        shuffle: Any = self.shuffle
        if self.shuffle == "blocks" or self.document_shuffle:
            shuffle = [self.shuffle, self.chunk_windows, self.group_chunks, self.document_shuffle]
        content: dict[str, Any] = {
            "order_version": ORDER_VERSION,
            "seed": self.seed,
            "seq_len": self.seq_len,
            "windows": self.windows,
            "shuffle": shuffle,
            "tokenizer": [source.corpus.tokenizer and source.corpus.tokenizer.to_json() for source in sources],
            "sources": [self.names[source] for source in served],
            "data": [[source.corpus.fingerprint, *source.documents] for source in sources],
        }
        for each in past:
            name = f"weights from sample {each.sample} on" if each.sample else "weights"
            content[name] = {source: f"{weight:x}" for source, weight in each.weights.items() if weight}
        return {name: canonical.digest(value) for name, value in content.items()}

    def _check_source(self, source: int) -> int:
        if not 0 <= source < len(self.sources):
            raise IndexError(f"source {source} is outside of the plan's {len(self.sources):,}.")
        return source

    def _make_shuffle(self) -> Shuffle:
        if self.shuffle == "blocks":
            return BlockShuffle(self.num_windows, self.chunk_windows, self.group_chunks)
        return GlobalShuffle(self.num_windows) if self.shuffle == "global" else NoShuffle()

    def _offsets(self, source: Int64, keys: npt.NDArray[np.uint64]) -> Int64:
        """Return where the windows of epochs begin in their source's stream, in tokens."""
        if not self._shuffle.moves:
            return np.zeros(source.shape, dtype=np.int64)
        totals = self._stretches.num_tokens[source].astype(np.uint64)
        return np.asarray(output(keys, OFFSET) % totals, dtype=np.int64)

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Any, ...]]:
        rebuilt = [
            (
                each.corpus,
                each.weight,
                each.name,
                slice(*each.documents) if each.documents[1] else None,
                each.max_epochs,
            )
            for each in self.sources
        ]
        names = (
            "seq_len", "seed", "windows", "shuffle", "document_shuffle", "documents", "extra_tokens", "mixed_tokenizers",
        )  # fmt: skip
        options = {name: getattr(self, name) for name in names}
        if self.shuffle == "blocks":
            options |= {"chunk_windows": self.chunk_windows, "group_chunks": self.group_chunks}
        options |= {"phases": self.phases[1:], "skip": self.skips.runs}
        return _rebuild, (rebuilt, options, self.fingerprint, self.columns)


def _rebuild(
    sources: list[tuple[Any, ...]], options: dict[str, Any], fingerprint: str, columns: tuple[tuple[int, int], ...]
) -> Plan:
    plan = Plan(
        [
            Source(corpus, weight=weight, name=name, documents=part, max_epochs=most)
            for corpus, weight, name, part, most in sources
        ],
        **options,
    )
    if plan.fingerprint != fingerprint:
        raise StateError(f"a plan of fingerprint {fingerprint} was pickled, but its data now make {plan.fingerprint}.")
    return plan.narrow(columns)


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        raise ValueError(
            f"{name} is {value!r}, expected one of {', '.join(known)}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )


def _check_blocks(shuffle: str, chunk_windows: int | None, group_chunks: int | None, seq_len: int) -> tuple[int, int]:
    """Return windows in a chunk and chunks in a group; 0 and 0 unless the shuffle is ``blocks``."""
    if shuffle != "blocks":
        for name, value in (("chunk_windows", chunk_windows), ("group_chunks", group_chunks)):
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r} but shuffle is {shuffle!r}: it is an argument of shuffle='blocks'."
                )
        return 0, 0
    windows = max(CHUNK_TOKENS // seq_len, 1) if chunk_windows is None else chunk_windows
    chunks = GROUP_CHUNKS if group_chunks is None else group_chunks
    return _check_int("chunk_windows", windows, 1, 2**30), _check_int("group_chunks", chunks, 1, 2**30)


def _check_int(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}, expected an integer from {least} to {most:,}.")
    return int(value)


def _check_samples(samples: npt.ArrayLike) -> Int64:
    array = np.asarray(samples)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(f"samples are {array.dtype} of shape {array.shape}, expected integers in one dimension.")
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < cursor.MAX_SAMPLE):
        raise IndexError(f"samples run from {int(array.min()):,} to {int(array.max()):,}, expected 0 ≤ sample < 2^62.")
    return array.astype(np.int64)
