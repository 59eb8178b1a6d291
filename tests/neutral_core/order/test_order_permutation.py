"""Keys, draws and permutations: the frozen values, and that every permutation is one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import order_reference as reference
import pytest

from neutral_core.order.permutation import draw, permute, permute_inverse, radices, source_key

ORDER: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "order.json").read_text(encoding="ascii"))
KEYS = [0, 1, 2**63, 2**64 - 1, 0x256D2222616EBD47]
POWERS = sorted({2**k + d for k in range(6, 17) for d in (-1, 0, 1)} | {4**k + d for k in range(3, 9) for d in (-2, 2)})
HUGE = [2**k + d for k in (31, 32, 40, 61) for d in (-1, 0, 1)] + [2**62 - 1]


def one(value: int) -> npt.NDArray[np.uint64]:
    return np.array([value], dtype=np.uint64)


def walk(walker: Any, index: npt.ArrayLike, n: int, key: int) -> npt.NDArray[np.int64]:
    a, b = radices(n)
    return np.asarray(walker(np.asarray(index, dtype=np.int64), np.array([n]), one(a), one(b), one(key)))


@pytest.mark.parametrize("case", ORDER["keys"], ids=lambda case: case["key"])
def test_keys_of_sources_are_the_golden_ones(case: dict[str, Any]) -> None:
    assert source_key(case["seed"], case["name"]) == int(case["key"], 16)


@pytest.mark.parametrize("case", ORDER["draws"], ids=lambda case: case["key"])
def test_draws_are_the_golden_ones(case: dict[str, Any]) -> None:
    assert draw(one(int(case["key"], 16)), np.array(case["t"], dtype=np.int64)).tolist() == case["draws"]


@pytest.mark.parametrize("case", ORDER["permutations"], ids=lambda case: f"{case['n']}-{case['key']}")
def test_permutations_are_the_golden_ones(case: dict[str, Any]) -> None:
    n, key = case["n"], int(case["key"], 16)
    assert walk(permute, case["positions"], n, key).tolist() == case["windows"]
    assert walk(permute_inverse, case["windows"], n, key).tolist() == case["positions"]


@pytest.mark.parametrize("key", KEYS)
def test_every_n_up_to_70_is_permuted_one_to_one_and_as_the_page_says(key: int) -> None:
    for n in range(1, 71):
        found = walk(permute, np.arange(n), n, key)
        assert found.tolist() == [reference.permutation(i, n, key) for i in range(n)]
        assert sorted(found.tolist()) == list(range(n))
        assert walk(permute_inverse, found, n, key).tolist() == list(range(n))


@pytest.mark.parametrize("n", POWERS)
def test_n_around_powers_of_2_and_4_is_permuted_one_to_one(n: int) -> None:
    for key in KEYS[1:4]:
        found = walk(permute, np.arange(n), n, key)
        assert (np.sort(found) == np.arange(n)).all()
        assert (walk(permute_inverse, found, n, key) == np.arange(n)).all()


@pytest.mark.parametrize("n", HUGE)
def test_the_inverse_undoes_the_permutation_at_many_positions_of_a_huge_n(n: int) -> None:
    rng = np.random.default_rng(n % 1000)
    edges = [*range(100), *range(n - 100, n)]
    positions = np.concatenate([np.array(edges), rng.integers(0, n, 50_000)])
    key = int(rng.integers(0, 2**64, dtype=np.uint64))
    found = walk(permute, positions, n, key)
    assert 0 <= found.min() <= found.max() < n
    assert (walk(permute_inverse, found, n, key) == positions).all()
    assert (walk(permute, walk(permute_inverse, positions, n, key), n, key) == positions).all()
    assert len(np.unique(found)) == len(np.unique(positions))


@pytest.mark.parametrize("n", HUGE)
def test_a_huge_n_is_permuted_as_the_page_says(n: int) -> None:
    rng = np.random.default_rng(7)
    positions = [0, 1, n - 2, n - 1, *rng.integers(0, n, 100).tolist()]
    key = 0xFEDCBA9876543210
    assert walk(permute, positions, n, key).tolist() == [reference.permutation(i, n, key) for i in positions]


@pytest.mark.parametrize("walker", [permute, permute_inverse])
def test_one_n_and_key_for_all_equal_the_same_ones_per_entry(walker: Any) -> None:
    for n in (1, 2, 10, 97, 65_537, 2**40 + 1):
        a, b = radices(n)
        index = np.random.default_rng(n).integers(0, n, 500)
        each = [np.full(500, value, dtype=np.uint64) for value in (a, b, 99)]
        assert (walker(index, np.full(500, n), *each) == walk(walker, index, n, 99)).all()


@pytest.mark.parametrize("walker", [permute, permute_inverse])
def test_entries_of_differing_n_and_key_are_treated_each_on_its_own(walker: Any) -> None:
    rng = np.random.default_rng(3)
    n = np.concatenate([rng.integers(1, 70, 300), rng.integers(1, 2**62, 300)])
    index = rng.integers(0, n)
    keys = rng.integers(0, 2**64, 600, dtype=np.uint64)
    sides = np.array([radices(value) for value in n.tolist()], dtype=np.uint64)
    alone = reference.permutation if walker is permute else reference.permutation_inverse
    expected = [alone(i, m, k) for i, m, k in zip(index.tolist(), n.tolist(), keys.tolist(), strict=True)]
    assert walker(index, n, sides[:, 0], sides[:, 1], keys).tolist() == expected


def test_arguments_are_left_as_they_were() -> None:
    n, index, key = 97, np.arange(97), np.full(97, 5, dtype=np.uint64)
    a, b = (np.full(97, value, dtype=np.uint64) for value in radices(n))
    permute(index, np.full(97, n), a, b, key)
    permute_inverse(index, np.full(97, n), a, b, key)
    assert (index == np.arange(97)).all()
    assert (key == 5).all()


def test_no_entries_are_permuted_to_none() -> None:
    assert walk(permute, [], 10, 1).tolist() == []


def test_over_many_keys_each_position_goes_to_each_window_equally_often() -> None:
    # n = 100, 20,000 keys, 100 positions: a table of 100 × 100 counts of 200 expected. Rows and columns sum to 20,000, so there are
    # 99² = 9,801 degrees of freedom: standard deviation √(2·9,801) = 140; six of them leave a fair permutation no chance to fail.
    n, num_keys = 100, 20_000
    a, b = radices(n)
    keys = np.repeat(np.random.default_rng(1).integers(0, 2**64, num_keys, dtype=np.uint64), n)
    positions = np.tile(np.arange(n), num_keys)
    found = permute(positions, np.array([n]), one(a), one(b), keys)
    counts = np.bincount(positions * n + found, minlength=n * n)
    expected = num_keys / n
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 99**2) < 6 * 140


def test_over_many_keys_the_distance_of_two_neighbours_is_spread_evenly() -> None:
    # The difference (perm(i + 1) - perm(i)) mod 100 of neighbours takes 1 … 99 equally often: 98 degrees of freedom, deviation 14.
    n, num_keys = 100, 20_000
    a, b = radices(n)
    keys = np.random.default_rng(2).integers(0, 2**64, num_keys, dtype=np.uint64)
    pair = [permute(np.full(num_keys, i), np.array([n]), one(a), one(b), keys) for i in (41, 42)]
    counts = np.bincount((pair[1] - pair[0]) % n, minlength=n)
    assert counts[0] == 0
    expected = num_keys / 99
    chi_square = float(((counts[1:] - expected) ** 2 / expected).sum())
    assert chi_square < 98 + 6 * 14


@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 9, 10, 2**40, 2**40 + 1, (2**31 - 1) ** 2, (2**31 - 1) ** 2 + 1, 2**62 - 1]
)
def test_radices_hold_n_and_no_row_is_spare(n: int) -> None:
    a, b = radices(n)
    assert a * b >= n > (b - 1) * a
    assert 0 <= a - b <= 2 or n < 3
    assert (a, b) == reference.sides(n)


@pytest.mark.parametrize("n", [0, -1, 2**62])
def test_an_n_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="expected 1 ≤ n < 2\\^62"):
        radices(n)
