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
from neutral_core.order.mixture import Mixture
from neutral_core.order.permutation import draw, permute, permute_inverse, radices, source_key
from neutral_core.order.source import Source, check_lengths, check_tokenizers, names_of, weights_of
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
        self.names = names_of(self.sources)
        check_tokenizers(self.sources, self.names, self.mixed_tokenizers)
        check_lengths(self.sources, self.names, self.row_length)
        self.dtype = max((source.corpus.dtype for source in self.sources), key=lambda dtype: dtype.itemsize)
        self.num_windows = np.array(
            [num_windows(source.num_tokens, self.seq_len) for source in self.sources], dtype=np.int64
        )
        self.weights = weights_of(self.sources, self.names, self.num_windows)
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
