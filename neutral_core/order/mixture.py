"""The mixture: sample → (source, draw), with exact shares after every prefix (docs/order.md §2).

A Huffman tree over the weights; at each node a Beatty-like sequence decides which child takes an item. Within a run of samples each source has
served weight · n samples within ±2 after every prefix of n < 2^60, for any weights, and both directions are random access. The cost of a
sample is the depth of its source: on average the entropy of the weights in bits, plus one at most.

Source: Huffman, "A Method for the Construction of Minimum-Redundancy Codes" (1952) for the tree. Each split is off by at most 1/2; along a
Huffman path weights grow like Fibonacci numbers, so the errors that a leaf inherits shrink geometrically: the sum stays below 1.68.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.order.permutation import UInt64

Int64 = npt.NDArray[np.int64]

_HUGE = re.compile(r"[eE][+-]?0*[1-9][0-9]{3}")  # an exponent of 1000 or more would make integers that take for ever
_HALF = np.uint64(1 << 31)
_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_HALF_OF_ALL = np.uint64(1 << 63)


def exact_weights(weights: Sequence[Any]) -> list[int]:
    """Return integers in the ratio of the weights, without a common divisor.

    Args:
        weights: each an int, a decimal text, a Fraction, or a float, which counts as its shortest decimal text (0.7 is 7/10).

    Raises:
        ValueError: a weight is negative, not finite or no number, or all are zero.
    """
    fractions = [exact_weight(weight) for weight in weights]
    if not any(fractions):
        raise ValueError("all weights are zero: at least one source must be served.")
    scale = math.lcm(*(fraction.denominator for fraction in fractions))
    integers = [int(fraction * scale) for fraction in fractions]
    divisor = math.gcd(*integers)
    return [integer // divisor for integer in integers]


def exact_weight(weight: Any) -> Fraction:
    """Return the number that a weight says; raises as ``exact_weights`` does."""
    if isinstance(weight, np.integer):
        weight = int(weight)  # a Fraction of numpy's would multiply in 64 bits or fewer
    if isinstance(weight, bool) or (isinstance(weight, str) and _HUGE.search(weight)):
        raise ValueError(
            f"weight {weight!r} is no number from 0 to 10^999: a weight is an int, a float or a decimal text."
        )
    try:
        value = Fraction(repr(float(weight)) if isinstance(weight, (float, np.floating)) else weight)
    except (ValueError, TypeError, ArithmeticError):  # '1/0', infinity
        raise ValueError(f"weight {weight!r} is not a finite number.") from None
    if value < 0:
        raise ValueError(f"weight {weight!r} is negative, expected 0 or more.")
    return value


class Mixture:
    """The tree for integer weights, as arrays over its nodes: the inner nodes first, the root is node 0.

    Args:
        weights: integers ≥ 0, one a source, not all 0; a source of weight 0 is never served.
    """

    __slots__ = ("_children", "_num_inner", "_parents", "_rates", "num_sources")

    def __init__(self, weights: Sequence[int]) -> None:
        self.num_sources = len(weights)
        heap = [(weight, source, ("leaf", source)) for source, weight in enumerate(weights) if weight]
        heapq.heapify(heap)
        inner: list[tuple[int, Any, Any]] = []  # rate, lighter, heavier, children before parents
        while len(heap) > 1:
            a, first, lighter = heapq.heappop(heap)
            b, second, heavier = heapq.heappop(heap)
            inner.append((((a << 65) + a + b) // (2 * (a + b)), lighter, heavier))
            heapq.heappush(heap, (a + b, min(first, second), ("inner", len(inner) - 1)))
        self._num_inner = len(inner)

        def node(child: tuple[str, int]) -> int:
            kind, number = child
            return len(inner) + number if kind == "leaf" else len(inner) - 1 - number

        rows = [(rate, node(lighter), node(heavier)) for rate, lighter, heavier in reversed(inner)]
        self._rates: UInt64 = np.array([rate for rate, _, _ in rows], dtype=np.uint64)
        self._children: Int64 = np.array([pair for _, *pair in rows], dtype=np.int64).reshape(-1, 2)
        self._parents = {child: number for number, (_, *pair) in enumerate(rows) for child in pair}
        if not inner:  # one source: node 0 is its leaf
            self._children = np.array([[heap[0][1], 0]], dtype=np.int64)

    def split(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return (source, draw) of each sample: int64, as samples, 0 ≤ sample < 2^62."""
        items = samples.astype(np.uint64)
        if not self._num_inner:
            return np.full(samples.shape, self._children[0, 0], dtype=np.int64), samples.astype(np.int64)
        sources = np.empty(samples.shape, dtype=np.int64)
        draws = np.empty(samples.shape, dtype=np.int64)
        where = np.arange(len(items))
        nodes = np.zeros(len(items), dtype=np.int64)
        while len(where):
            rates = self._rates[nodes]
            before, taken = _count(items, rates)
            items = np.where(taken, before, items - before)
            nodes = self._children[nodes, 1 - taken.astype(np.int64)]
            leaf = nodes >= self._num_inner
            if leaf.any():
                sources[where[leaf]] = nodes[leaf] - self._num_inner
                draws[where[leaf]] = items[leaf].astype(np.int64)
                inside = ~leaf
                where, nodes, items = where[inside], nodes[inside], items[inside]
        return sources, draws

    def counts(self, num_samples: int) -> list[int]:
        """Return how often each source is served in the first ``num_samples`` samples (0 … 2^62): closed form at each node, O(sources)."""
        counts = [0] * self.num_sources
        items = [num_samples] + [0] * (self._num_inner - 1)
        if not self._num_inner:
            counts[self._children[0, 0]] = num_samples
        for node, ((lighter, heavier), rate) in enumerate(
            zip(self._children.tolist(), self._rates.tolist(), strict=False)
        ):
            to_lighter = (items[node] * rate + 2**63) >> 64
            for child, count in ((lighter, to_lighter), (heavier, items[node] - to_lighter)):
                if child < self._num_inner:
                    items[child] = count
                else:
                    counts[child - self._num_inner] = count
        return counts

    def join(self, source: int, draws: Int64) -> Int64:
        """Return the samples that are draws of one source: the inverse of ``split``, in exact integers, O(depth) each.

        Args:
            source: of a weight above 0.
            draws: int64[n], ≥ 0.

        Raises:
            IndexError: there is no such source. ValueError: it is never served.
            OverflowError: a sample would lie beyond 2^62 − 1: such draws do not occur.
        """
        if not 0 <= source < self.num_sources:
            raise IndexError(f"source {source} is outside of the mixture's {self.num_sources:,}.")
        node = self._num_inner + source
        items = draws.tolist()
        if node not in self._parents and (self._num_inner or source != self._children[0, 0]):
            raise ValueError(f"source {source} has weight 0: it is never served.")
        while node in self._parents:
            parent = self._parents[node]
            rate = int(self._rates[parent])
            if node == self._children[parent, 0]:
                if rate == 0:
                    raise OverflowError(f"source {source} is served beyond sample 2^62 only.")
                items = [-((-((item + 1) * 2**64 - 2**63)) // rate) - 1 for item in items]
            else:
                items = [(item * 2**64 + 2**63) // (2**64 - rate) for item in items]
            node = parent
        if items and max(items) >= 2**62:
            raise OverflowError(f"source {source}: a draw is that of sample {max(items):,}, beyond the last, 2^62 - 1.")
        return np.array(items, dtype=np.int64)


def _count(n: UInt64, rate: UInt64) -> tuple[UInt64, npt.NDArray[np.bool_]]:
    """Return R(n) = ⌊(n · rate + 2^63) / 2^64⌋, and whether R(n + 1) > R(n), from four 32-bit products; n < 2^63, rate ≤ 2^63."""
    n1, n0 = n >> _SHIFT, n & _LOW
    q1, q0 = rate >> _SHIFT, rate & _LOW
    left, right, low = n1 * q0, n0 * q1, n0 * q0
    middle = (low >> _SHIFT) + _HALF + (left & _LOW) + (right & _LOW)
    high = n1 * q1 + (left >> _SHIFT) + (right >> _SHIFT) + (middle >> _SHIFT)
    fraction = n * rate + _HALF_OF_ALL  # modulo 2^64: what the division leaves
    return high, fraction + rate < fraction
