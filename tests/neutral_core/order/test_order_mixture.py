"""The mixture: frozen values, one-to-one, exact inverse, and shares within 2 samples after every prefix."""

import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import order_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutral_core.order.mixture import Mixture, exact_weights

ORDER: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "order.json").read_text(encoding="ascii"))
PREFIX = 10**6
COUNTS = (1, 2, 3, 10, 1000)


def uniform(count: int) -> list[str]:
    return ["1"] * count


def zipf(count: int) -> list[str]:
    return [repr(1 / rank) for rank in range(1, count + 1)]


def extreme(count: int) -> list[str]:
    return ["1e-9" if source % 2 == 0 else "1" for source in range(count)]


def fibonacci(count: int) -> list[str]:
    """The weights of the deepest tree; of 1,000 sources the first 80 only, the rest being 1."""
    found = [1, 1]
    while len(found) < min(count, 80):
        found.append(found[-1] + found[-2])
    return [str(weight) for weight in [*found[:count], *[1] * (count - 80)]]


SHAPES = [(shape, count) for shape in (uniform, zipf, extreme, fibonacci) for count in COUNTS]
each_shape = pytest.mark.parametrize(("shape", "count"), SHAPES, ids=[f"{s.__name__}-{c}" for s, c in SHAPES])
BLOCKS = [2**40 - 500, 10**15 - 500, 2**59 - 500]


def mixture_of(weights: Sequence[Any]) -> Mixture:
    return Mixture(exact_weights(weights))


@lru_cache(maxsize=1)  # the three tests of a shape stand one after another
def first_million(shape: Any, count: int) -> tuple[Any, Any]:
    return mixture_of(shape(count)).split(np.arange(PREFIX))


def check_inverse(shape: Any, count: int, every: int) -> None:
    mixture = mixture_of(shape(count))
    sources, draws = first_million(shape, count)
    order = np.argsort(sources, kind="stable")
    ends = np.cumsum(np.bincount(sources, minlength=count))
    for source, mine in enumerate(np.split(order, ends[:-1])):
        some = np.unique(np.concatenate([mine[:20], mine[::every], mine[-20:]]))
        if len(some):
            assert (mixture.join(source, draws[some]) == some).all()


def place_on_page(root: reference.Node, samples: Sequence[int]) -> list[tuple[int, int]]:
    return [reference.descend(root, sample) for sample in samples]


@pytest.mark.parametrize("case", ORDER["mixtures"], ids=lambda case: ",".join(case["weights"])[:40])
def test_mixtures_are_the_golden_ones(case: dict[str, Any]) -> None:
    mixture = mixture_of(case["weights"])
    sources, draws = mixture.split(np.array(case["samples"], dtype=np.int64))
    assert sources.tolist() == case["sources"]
    assert draws.tolist() == case["draws"]
    for sample, source, j in zip(case["samples"], case["sources"], case["draws"], strict=True):
        assert mixture.join(source, np.array([j])).tolist() == [sample]


@each_shape
def test_the_first_million_samples_take_each_draw_of_each_source_once_and_in_order(shape: Any, count: int) -> None:
    sources, draws = first_million(shape, count)
    order = np.argsort(sources, kind="stable")
    per_source = np.bincount(sources, minlength=count)
    expected = np.arange(PREFIX) - np.repeat(np.cumsum(per_source) - per_source, per_source)
    assert (draws[order] == expected).all()


@each_shape
def test_each_source_is_within_2_of_its_share_after_every_prefix_of_a_million(shape: Any, count: int) -> None:
    # served(n) - weight·n falls between two samples of a source and jumps by 1 at each: its extremes lie just before and just after its own
    # samples, and at the end. The j-th sample n of a source of the share w: j - w·n before it, j + 1 - w·(n + 1) after it. In float64 w, w·n
    # and the difference each err by 2^-53 of at most 10^6: less than 10^-9 in all.
    weights = exact_weights(shape(count))
    share = np.array([float(Fraction(weight, sum(weights))) for weight in weights])
    sources, draws = first_million(shape, count)
    before = draws - share[sources] * np.arange(PREFIX)
    after = draws + 1 - share[sources] * np.arange(1, PREFIX + 1)
    at_end = np.bincount(sources, minlength=count) - share * PREFIX
    worst = max(np.abs(before).max(), np.abs(after).max(), np.abs(at_end).max())
    assert worst <= 2 - 1e-9


@each_shape
def test_the_inverse_gives_back_many_of_the_first_million_samples(shape: Any, count: int) -> None:
    check_inverse(shape, count, every=29)


@pytest.mark.slow
@each_shape
def test_the_inverse_gives_back_each_of_the_first_million_samples(shape: Any, count: int) -> None:
    check_inverse(shape, count, every=1)


@each_shape
def test_draws_near_2_to_40_and_10_to_15_and_2_to_59_are_those_of_the_page(shape: Any, count: int) -> None:
    mixture, root = mixture_of(shape(count)), reference.huffman(shape(count))
    for first in BLOCKS:
        samples = [*range(first, first + 100), *range(first + 450, first + 550)]
        sources, draws = mixture.split(np.array(samples))
        assert list(zip(sources.tolist(), draws.tolist(), strict=True)) == place_on_page(root, samples)


@each_shape
def test_shares_near_2_to_40_and_10_to_15_and_2_to_59_are_within_2_in_exact_fractions(shape: Any, count: int) -> None:
    weights = exact_weights(shape(count))
    total = sum(weights)
    mixture = Mixture(weights)
    for first in BLOCKS:
        samples = np.arange(first, first + 1000)
        for sample, source, j in zip(samples.tolist(), *(x.tolist() for x in mixture.split(samples)), strict=True):
            assert abs(j * total - weights[source] * sample) <= 2 * total
            assert abs((j + 1) * total - weights[source] * (sample + 1)) <= 2 * total


@each_shape
def test_the_inverse_is_exact_near_2_to_40_and_10_to_15_and_2_to_59(shape: Any, count: int) -> None:
    mixture = mixture_of(shape(count))
    for first in BLOCKS:
        samples = np.arange(first, first + 1000)
        sources, draws = mixture.split(samples)
        for source in np.unique(sources).tolist():
            mine = sources == source
            assert (mixture.join(source, draws[mine]) == samples[mine]).all()
            assert (np.diff(draws[mine]) == 1).all()  # no draw is left out between two samples of a block


def test_a_source_of_a_billionth_is_served_first_where_its_share_reaches_a_half() -> None:
    # The lighter child takes item n iff ⌊(n + 1)·q + ½⌋ > ⌊n·q + ½⌋ with q = 1/(10^9 + 1): first at n + 1 ≥ (10^9 + 1)/2 = 500,000,000.5.
    mixture = mixture_of(["1e-9", "1"])
    sources, _ = mixture.split(np.arange(499_999_990, 500_000_010))
    assert np.flatnonzero(sources == 0).tolist() == [10]
    assert mixture.join(0, np.array([0])).tolist() == [500_000_000]


def test_two_equal_sources_take_turns() -> None:
    sources, draws = mixture_of([1, 1]).split(np.arange(6))
    assert sources.tolist() == [0, 1, 0, 1, 0, 1]
    assert draws.tolist() == [0, 0, 1, 1, 2, 2]


def test_samples_may_be_asked_in_any_order() -> None:
    mixture = mixture_of(zipf(10))
    samples = np.random.default_rng(0).permutation(1000)
    straight = mixture.split(np.arange(1000))
    for asked, known in zip(mixture.split(samples), straight, strict=True):
        assert (asked == known[samples]).all()


def test_no_samples_are_no_draws() -> None:
    for weights in ([1], [1, 2]):
        sources, draws = mixture_of(weights).split(np.empty(0, dtype=np.int64))
        assert (sources.shape, draws.shape) == ((0,), (0,))


@settings(deadline=None, max_examples=150)
@given(
    weights=st.lists(st.integers(0, 10**12), min_size=1, max_size=12).filter(any),
    sample=st.integers(0, 2**62 - 1),
)
def test_any_sample_of_any_weights_is_where_the_page_says(weights: list[int], sample: int) -> None:
    mixture = mixture_of(weights)
    sources, draws = mixture.split(np.array([sample]))
    found = int(sources[0]), int(draws[0])
    assert found == reference.mixture(weights, sample)
    assert mixture.join(found[0], draws).tolist() == [sample]


def test_a_weight_of_zero_is_never_served_and_its_draws_are_refused() -> None:
    for weights, zero in (([1, 0, 2], 1), ([0, 1], 0), ([0, 0, 3], 1)):
        mixture = mixture_of(weights)
        assert zero not in mixture.split(np.arange(1000))[0]
        with pytest.raises(ValueError, match=f"source {zero} has weight 0: it is never served"):
            mixture.join(zero, np.array([0]))


def test_sources_of_weight_zero_change_nothing_for_the_others() -> None:
    sources, draws = mixture_of([5, 3, 1]).split(np.arange(1000))
    more, same = mixture_of([0, 5, 0, 3, 1, 0]).split(np.arange(1000))
    assert (more == np.array([1, 3, 4])[sources]).all()
    assert (draws == same).all()


def test_draws_of_a_source_too_light_for_any_sample_are_refused() -> None:
    mixture = mixture_of(["1e-30", "1"])
    assert (mixture.split(np.array([0, 2**62 - 1]))[0] == 1).all()
    with pytest.raises(OverflowError, match="beyond sample 2\\^62"):
        mixture.join(0, np.array([0]))


@pytest.mark.parametrize("source", [-1, 2, 3])
@pytest.mark.parametrize("weights", [[1, 2], [0, 1]])
def test_draws_of_a_source_that_is_not_there_are_refused(weights: list[int], source: int) -> None:
    with pytest.raises(IndexError, match=f"source {source} is outside of the mixture's 2"):
        mixture_of(weights).join(source, np.array([0]))


def test_a_draw_whose_sample_does_not_fit_into_64_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        mixture_of(["1e-9", "1"]).join(0, np.array([2**62]))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (["0.7", "0.3"], [7, 3]),
        ([0.7, 0.3], [7, 3]),  # not the binary fractions next to them
        ([0.1, 0.2], [1, 2]),
        (["1e-9", "1"], [1, 10**9]),
        ([1e-9, 1.0], [1, 10**9]),
        ([Fraction(1, 3), Fraction(1, 6)], [2, 1]),
        (["1/3", "1/6"], [2, 1]),
        ([Decimal("0.7"), Decimal("0.3")], [7, 3]),
        ([4, 6], [2, 3]),
        ([2**70, 2**71], [1, 2]),
        ([np.int64(4), np.uint8(6)], [2, 3]),
        ([np.float64(0.7), np.float64(0.3)], [7, 3]),
        ([0.5, "0.5", 1, Fraction(1, 2)], [1, 1, 2, 1]),
        ([0, 3, 0.0, "0", 6], [0, 1, 0, 0, 2]),
        ([7], [1]),
        ([1e300, 1e-300], [10**600, 1]),
        ([-0.0, 1], [0, 1]),
        ([np.uint8(200), "1/3"], [600, 1]),  # exact beyond the scalar's own width
        ([np.int64(2**62), "0.001"], [2**62 * 1000, 1]),
        ([np.float32(0.5), 1], [1, 2]),
    ],
)
def test_weights_are_the_numbers_that_they_say(weights: list[Any], expected: list[int]) -> None:
    assert exact_weights(weights) == expected


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0, 0], "all weights are zero"),
        ([0.0], "all weights are zero"),
        ([1, -1], "weight -1 is negative"),
        (["-0.1", 1], "weight '-0.1' is negative"),
        ([float("nan"), 1], "weight nan is not a finite number"),
        ([float("inf"), 1], "weight inf is not a finite number"),
        ([-float("inf"), 1], "weight -inf is not a finite number"),
        ([np.float64("nan"), 1], "is not a finite number"),
        ([Decimal("Infinity"), 1], "is not a finite number"),
        (["nan", 1], "weight 'nan' is not a finite number"),
        (["much", 1], "weight 'much' is not a finite number"),
        (["", 1], "weight '' is not a finite number"),
        (["1/0", 1], "weight '1/0' is not a finite number"),
        ([None, 1], "weight None is not a finite number"),
        ([[1], 1], "is not a finite number"),
        ([1j, 1], "is not a finite number"),
        (["2 to 1", 1], "weight '2 to 1' is not a finite number"),
    ],
)
def test_weights_that_are_no_shares_are_refused(weights: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_weights(weights)
