"""The plan: sources, seed and seq_len; from them, for any sample, which row it is. Pure arithmetic, no state, no index.

    sample k ──mixture──▶ (source s, draw j) ──epochs──▶ (epoch e, position i) ──permutation──▶ window w ──▶ token ranges ──▶ row

Each arrow works on whole arrays of samples in lockstep. The order depends on nothing else: not on ranks, threads, batch size or how long the
run will be. docs/order.md says it in full; ``ORDER_VERSION`` is part of every fingerprint.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core import cursor
from neutral_core.batch import Batch, read_documents, read_tokens
from neutral_core.format import canonical
from neutral_core.format.corpus import Corpus
from neutral_core.order.mixture import Mixture, exact_weights
from neutral_core.order.permutation import draw, permute, permute_inverse, radices, source_key
from neutral_core.order.trace import TracedRow, trace_rows
from neutral_core.order.windows import Pieces, Stretches, num_windows

ORDER_VERSION = 1
WINDOWS = ("concat",)
SHUFFLES = ("global", "none")
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


class Source:
    """A corpus, or a run of its documents, with a weight in a plan.

    Args:
        corpus: of ours or a legacy data set.
        weight: its share; an int, float, Fraction or decimal text ≥ 0. A float counts as its shortest decimal text. Left out for all sources:
            in proportion to their windows.
        name: part of the key of its shuffle; required and unique when a plan has several sources.
        documents: slice of documents; the run is its own circular stream, no window crosses its edges.

    Raises:
        ValueError: the slice has a step or no documents.
    """

    __slots__ = ("corpus", "documents", "name", "tokens", "weight")

    def __init__(
        self, corpus: Corpus, *, weight: Any = None, name: str | None = None, documents: slice | None = None
    ) -> None:
        if not isinstance(corpus, Corpus):
            raise TypeError(f"corpus is {type(corpus).__name__}, expected a Corpus: open it with open_corpus(path).")
        first, last, step = (documents or slice(None)).indices(corpus.num_documents)
        if step != 1 or (documents is not None and last <= first):
            raise ValueError(
                f"source {name!r}: documents={documents} is not a run of the corpus' {corpus.num_documents:,} documents."
            )
        self.corpus = corpus
        self.weight = weight
        self.name = name
        self.documents = (first, last)
        self.tokens = (0, corpus.num_tokens)
        if documents is not None:
            self.tokens = tuple(int(corpus.document_offsets(at, at)[0]) for at in (first, last))  # type: ignore[assignment]

    @property
    def num_tokens(self) -> int:
        """Tokens of the source."""
        return self.tokens[1] - self.tokens[0]


class Plan:
    """Sources in an order. Costs nothing in proportion to documents or samples to make; pickles without data.

    Args:
        sources: a Source, or several with unique names.
        seq_len: number of targets in a row, ≥ 1; a row holds seq_len + 1 tokens.
        seed: 0 ≤ seed < 2^64.
        windows: ``concat``: rows are consecutive stretches of the source's token stream, cut elsewhere in each epoch.
        shuffle: ``global``: windows in the order of a permutation, another one in each epoch; ``none``: in file order.
        documents: add segment_ids and positions to the rows.
        extra_tokens: further tokens at the end of each row, ≥ 0, for targets that look further ahead.
        mixed_tokenizers: allow sources whose tokenizers differ.

    Attributes:
        sources, seq_len, row_length (tokens in a row), dtype (of rows: the widest among the sources).
        num_windows: int64[num_sources], per epoch.
        fingerprint: text that two plans share iff they have the same order over the same data.
        parts: name → short digest of each thing that the fingerprint covers.

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
        documents: bool = False,
        extra_tokens: int = 0,
        mixed_tokenizers: bool = False,
    ) -> None:
        self.sources = (sources,) if isinstance(sources, Source) else tuple(sources)
        _check_choice("windows", windows, WINDOWS)
        _check_choice("shuffle", shuffle, SHUFFLES)
        self.seq_len = _check_int("seq_len", seq_len, 1, 2**40)
        self.seed = _check_int("seed", seed, 0, 2**64 - 1)
        self.extra_tokens = _check_int("extra_tokens", extra_tokens, 0, 2**40)
        self.windows, self.shuffle, self.documents, self.mixed_tokenizers = (
            windows,
            shuffle,
            bool(documents),
            bool(mixed_tokenizers),
        )
        self.row_length = self.seq_len + 1 + self.extra_tokens
        self.names = _names(self.sources)
        _check_tokenizers(self.sources, self.names, self.mixed_tokenizers)
        _check_lengths(self.sources, self.names, self.row_length)
        self.dtype = max((source.corpus.dtype for source in self.sources), key=lambda dtype: dtype.itemsize)
        self.num_windows = np.array(
            [num_windows(source.num_tokens, self.seq_len) for source in self.sources], dtype=np.int64
        )
        self.weights = _weights(self.sources, self.names, self.num_windows)
        self._num_tokens = np.array([source.num_tokens for source in self.sources], dtype=np.int64)
        self._mixture = Mixture(self.weights)
        self._keys = np.array([source_key(self.seed, name) for name in self.names], dtype=np.uint64)
        self._radices = np.array([radices(n) for n in self.num_windows.tolist()], dtype=np.uint64)
        self._stretches = Stretches([(source.corpus, *source.tokens) for source in self.sources])
        self.parts = self._parts()
        self.fingerprint = canonical.digest(self.parts, 32)

    def locate(self, samples: npt.ArrayLike) -> Located:
        """Return where samples are.

        Args:
            samples: integers [n], 0 ≤ sample < 2^62, in any order.
        """
        k = _check_samples(samples)
        source, j = self._mixture.split(k)
        n = self.num_windows[source]
        epoch, position = np.divmod(j, n)
        if self.shuffle == "none":
            return Located(source=source, epoch=epoch, window=position, start=position * self.seq_len)
        key = draw(self._keys[source], epoch)
        a, b = self._radices[source, 0], self._radices[source, 1]
        window = permute(position, n, a, b, draw(key, np.zeros_like(epoch)))
        return Located(source=source, epoch=epoch, window=window, start=self._start(source, key, window))

    def sample_of(self, source: int, epochs: npt.ArrayLike, windows: npt.ArrayLike) -> Int64:
        """Return the samples at which windows of a source are served: the inverse of ``locate``.

        Args:
            source: index. epochs, windows: integers [n], epoch ≥ 0, 0 ≤ window < num_windows[source].
        """
        epoch, window = np.asarray(epochs, dtype=np.int64), np.asarray(windows, dtype=np.int64)
        if not 0 <= source < len(self.sources):
            raise IndexError(f"source {source} is outside of the plan's {len(self.sources):,}.")
        n = int(self.num_windows[source])
        if epoch.size and not (int(epoch.min()) >= 0 and int(epoch.max()) <= cursor.MAX_SAMPLE // n):
            raise IndexError(
                f"source {self.names[source]!r}: an epoch is outside of those that samples below 2^62 reach."
            )
        if window.size and (window.min() < 0 or window.max() >= n):
            raise IndexError(f"source {self.names[source]!r}: a window is outside of its {n:,}.")
        position = window
        if self.shuffle == "global":
            key = draw(draw(self._keys[[source]], epoch), np.zeros_like(epoch))
            a, b = self._radices[[source], 0], self._radices[[source], 1]
            position = permute_inverse(window, self.num_windows[[source]], a, b, key)
        return self._mixture.join(source, epoch * n + position)

    def read(self, samples: npt.ArrayLike) -> Batch:
        """Return the rows of samples, in the order asked: a dict of fresh arrays.

        ``tokens`` uint8/16/32 [n, seq_len + 1 + extra_tokens]; ``source`` int32[n]; ``sample`` int64[n]; with ``documents`` also
        ``segment_ids`` and ``positions`` int32, as tokens.

        Raises:
            FormatError: a shard is damaged. OSError: it cannot be read.
        """
        k = _check_samples(samples)
        located = self.locate(k)
        return self.read_pieces(k, located, self.pieces(located))

    def pieces(self, located: Located) -> Pieces:
        """Return the stretches of shards that fill the rows of located samples."""
        return self._stretches.pieces(located.source, located.start, self.row_length)

    def read_pieces(self, samples: Int64, located: Located, pieces: Pieces) -> Batch:
        """Return what ``read`` does for samples whose place is known already."""
        batch: Batch = {"tokens": read_tokens(self._stretches, pieces, len(samples), self.row_length, self.dtype)}
        if self.documents:
            marks = read_documents(self._stretches, pieces, len(samples), self.row_length)
            batch["segment_ids"], batch["positions"] = marks
        batch["source"] = located.source.astype(np.int32)
        batch["sample"] = samples.copy()  # the caller's, as everything in the batch is
        return batch

    def trace(self, samples: npt.ArrayLike) -> list[TracedRow]:
        """Return for each sample which documents, at which token ranges, make its row."""
        k = _check_samples(samples)
        located = self.locate(k)
        return trace_rows(k, located, self.names, self._stretches, self.pieces(located))

    def _start(self, source: Int64, key: npt.NDArray[np.uint64], window: Int64) -> Int64:
        total = self._num_tokens[source]
        offset = (draw(key, np.ones(len(key), dtype=np.int64)) % total.astype(np.uint64)).astype(np.int64)
        return (offset + window * self.seq_len) % total

    def _parts(self) -> dict[str, str]:
        tokenizers = [source.corpus.tokenizer for source in self.sources]
        content = {
            "order_version": ORDER_VERSION,
            "seed": self.seed,
            "seq_len": self.seq_len,
            "windows": self.windows,
            "shuffle": self.shuffle,
            "tokenizer": [None if tokenizer is None else tokenizer.to_json() for tokenizer in tokenizers],
            "sources": list(self.names),
            "weights": [str(weight) for weight in self.weights],
            "data": [[source.corpus.fingerprint, *source.documents] for source in self.sources],
        }
        return {name: canonical.digest(value) for name, value in content.items()}

    def __reduce__(self) -> tuple[Callable[..., Plan], tuple[Any, ...]]:
        rebuilt = [
            (source.corpus, source.weight, source.name, slice(*source.documents) if source.documents[1] else None)
            for source in self.sources
        ]
        options = {
            key: getattr(self, key)
            for key in ("seq_len", "seed", "windows", "shuffle", "documents", "extra_tokens", "mixed_tokenizers")
        }
        return _rebuild, (rebuilt, options, self.fingerprint)


def _rebuild(sources: list[tuple[Any, ...]], options: dict[str, Any], fingerprint: str) -> Plan:
    plan = Plan(
        [Source(corpus, weight=weight, name=name, documents=part) for corpus, weight, name, part in sources], **options
    )
    cursor.sample_of(cursor.make(0, fingerprint, plan.parts), plan.fingerprint, plan.parts)
    return plan


def _names(sources: Sequence[Source]) -> tuple[str, ...]:
    if not sources:
        raise ValueError("sources is empty: a plan has at least one source.")
    for source in sources:
        if not isinstance(source, Source):
            raise TypeError(f"sources holds a {type(source).__name__}, expected Source(corpus, …).")
    if len(sources) == 1:
        return (sources[0].name or "",)
    names = tuple(source.name or "" for source in sources)
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not name:
            raise ValueError(
                f"source {index} has no name: a plan of several sources needs unique names, which key their shuffles."
            )
        if name in seen:
            raise ValueError(f"two sources are named {name!r}: names key the shuffles and must be unique.")
        seen.add(name)
    return names


def _weights(sources: Sequence[Source], names: Sequence[str], windows: Int64) -> list[int]:
    given = [source.weight is not None for source in sources]
    if not any(given):
        return exact_weights(windows.tolist())
    if not all(given):
        raise ValueError(
            f"source {names[given.index(False)]!r} has no weight but others do: give all sources weights, or none."
        )
    for source, name in zip(sources, names, strict=True):
        try:
            exact_weights([source.weight, 1])
        except ValueError as error:
            raise ValueError(f"source {name!r}: {error}") from None
    return exact_weights([source.weight for source in sources])


def _check_tokenizers(sources: Sequence[Source], names: Sequence[str], mixed: bool) -> None:
    known = [
        (source.corpus.tokenizer, name) for source, name in zip(sources, names, strict=True) if source.corpus.tokenizer
    ]
    for tokenizer, name in known:
        if tokenizer != known[0][0] and not mixed:
            raise ValueError(
                f"source {name!r} was made with the tokenizer {tokenizer}, but {known[0][1]!r} with {known[0][0]}: the same id means different text; "
                "prepare one of them again, or say mixed_tokenizers=True."
            )


def _check_lengths(sources: Sequence[Source], names: Sequence[str], row_length: int) -> None:
    for source, name in zip(sources, names, strict=True):
        if source.num_tokens < row_length:
            raise ValueError(
                f"source {name!r} has {source.num_tokens:,} tokens, fewer than the {row_length:,} of one row: shorten seq_len or add text."
            )


def _check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        near = difflib.get_close_matches(str(value), known, 1)
        raise ValueError(
            f"{name} is {value!r}, expected one of {', '.join(known)}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )


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
