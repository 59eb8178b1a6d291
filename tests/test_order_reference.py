"""The reference of the order against arithmetic on paper and against order.json and order_extended.json.

So none of them changes alone. Where a comment says shell arithmetic, the numbers come from 64-bit integers of a POSIX
shell, for epochs of the source "books" with the seed 17, whose key is the first of order.json.
"""

import json
import runpy
from fractions import Fraction
from pathlib import Path
from typing import Any

import order_reference as reference
import pytest

GOLDEN = Path(__file__).with_name("golden")
TEXT = (GOLDEN / "order.json").read_text(encoding="ascii")
ORDER: dict[str, Any] = json.loads(TEXT)
EXTENDED_TEXT = (GOLDEN / "order_extended.json").read_text(encoding="ascii")
EXTENDED: dict[str, Any] = json.loads(EXTENDED_TEXT)

WEIGHTS = [
    ["1"],
    ["1", "1"],
    ["1", "1", "1"],
    ["1"] * 10,
    ["0.7", "0.3"],
    ["1", "1", "3", "5"],
    ["0.5", "0", "0.25", "0.25"],
    ["1e-9", "1"],
    ["1", "1", "2", "3", "5", "8", "13", "21", "34", "55"],  # the deepest tree ten sources can have
    [repr(1 / rank) for rank in range(1, 11)],
]
SAMPLES = 2000
CIRCLES = [(2, 1), (10, 3), (11, 10), (12, 10), (20, 10), (21, 10), (22, 10), (100, 7), (101, 7)]  # T, S


# Section 1


def test_draws_of_seed_1234567_are_the_published_outputs_of_splitmix64() -> None:
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [reference.draw(1234567, t) for t in range(5)] == published


def test_the_first_draw_of_seed_0_is_the_published_one() -> None:
    assert reference.draw(0, 0) == 0xE220A8397B1DCDAF


def test_mix_of_0_is_0_and_mix_is_the_draw_whose_counter_wraps_to_it() -> None:
    # key + 1·C1 = 0 modulo 2^64 for key = 2^64 - C1
    assert reference.mix(0) == 0
    assert reference.draw(2**64 - reference.C1, 0) == 0


def test_a_draw_is_a_later_draw_of_an_earlier_key() -> None:
    # key + 6·C1 = (key + C1) + 5·C1
    assert reference.draw(99, 5) == reference.draw((99 + reference.C1) % 2**64, 4)


def test_the_key_is_made_of_the_text_of_the_page() -> None:
    assert reference.key_text(17, "books") == '[17,"books"]'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", '""'),
        ('"', '"\\""'),
        ("\\", '"\\\\"'),
        ("/", '"/"'),
        ("\b\t\n\f\r", '"\\b\\t\\n\\f\\r"'),
        ("\x00\x0b\x1f", '"\\u0000\\u000b\\u001f"'),
        ("\x7fü本\u2028", '"\x7fü本\u2028"'),
    ],
)
def test_a_name_is_escaped_only_where_it_must_be(name: str, text: str) -> None:
    assert reference.key_text(0, name) == f"[0,{text}]"
    assert json.loads(reference.key_text(0, name)) == [0, name]


def test_every_control_character_is_escaped_as_the_json_module_does() -> None:
    name = "".join(map(chr, range(0x100)))
    assert reference.key_text(2**64 - 1, name) == json.dumps(
        [2**64 - 1, name], ensure_ascii=False, separators=(",", ":")
    )


# Section 2


def test_weights_become_the_smallest_integers_of_the_same_ratios() -> None:
    assert reference.integer_weights(["0.7", "0.3"]) == [7, 3]
    assert reference.integer_weights(["0.5", "0", "0.25", "0.25"]) == [2, 0, 1, 1]
    assert reference.integer_weights(["1e-9", "1"]) == [1, 10**9]
    assert reference.integer_weights([6, 4]) == [3, 2]


def test_a_rate_is_rounded_half_up() -> None:
    # 0.3·2^64 = 5534023222112865484.8
    assert reference.huffman(["0.7", "0.3"]).rate == 5534023222112865485
    # equal weights: exactly a half
    assert reference.huffman(["1", "1"]).rate == 2**63
    # 2^64·1/2^65 = 1/2 goes up to 1; the next smaller ratio goes down to 0
    assert reference.huffman(["1", str(2**65 - 1)]).rate == 1
    assert reference.huffman(["1", str(2**65)]).rate == 0


def test_equal_weights_are_taken_by_smallest_source() -> None:
    # 1 and 1 make a 2, whose smallest source is 0; 2 and 3 make a 5 (smallest source 0), which goes before source 3's 5
    root = reference.huffman(["1", "1", "3", "5"])
    assert (root.weight, root.first, root.rate) == (10, 0, 2**63)
    assert root.children is not None
    lighter, heavier = root.children
    assert (lighter.weight, lighter.first) == (5, 0)
    assert (heavier.weight, heavier.first, heavier.children) == (5, 3, None)


def test_a_tie_of_decimals_is_a_tie() -> None:
    # 0.1 + 0.2 = 0.3, though not in float64: the pair, with source 0 in it, is the lighter child
    root = reference.huffman(["0.1", "0.2", "0.3"])
    assert root.children is not None
    assert [(child.weight, child.first) for child in root.children] == [(3, 0), (3, 2)]


def test_seven_to_three_by_hand() -> None:
    # source 1 is lighter; R(n) = ⌊0.3·n + 0.5⌋ = 0 0 1 1 1 2 2 2 2 3 3 for n = 0 … 10: it rises after n = 1, 4 and 8
    # (R(5) = 2 since 5·q = 1.5·2^64 + 1)
    pairs = [reference.mixture(["0.7", "0.3"], n) for n in range(10)]
    assert pairs == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3), (0, 4), (0, 5), (1, 2), (0, 6)]


def test_four_sources_by_hand() -> None:
    # root: samples 0 2 4 … go to the node of 2 and 3, as its items 0 1 2 …; samples 1 3 5 … to source 3
    # node of 2 and 3: q is just under 0.4·2^64, R = 0 0 1 1 2 2 2 3, so items 1 3 6 go to the pair, 0 2 4 5 to source 2
    # pair: item 0 to source 0, item 1 to source 1, item 2 to source 0
    even = [(2, 0), (0, 0), (2, 1), (1, 0), (2, 2), (2, 3), (0, 1)]
    pairs = [reference.mixture(["1", "1", "3", "5"], n) for n in range(14)]
    assert pairs[0::2] == even
    assert pairs[1::2] == [(3, j) for j in range(7)]


def test_a_rate_of_0_gives_the_lighter_child_nothing() -> None:
    assert [reference.mixture(["1e-30", "1"], n) for n in (0, 2**61, 2**62 - 1)] == [
        (1, 0),
        (1, 2**61),
        (1, 2**62 - 1),
    ]


def test_a_rate_of_2_gives_the_lighter_child_the_last_sample_only() -> None:
    # 1e-19·2^64 = 1.84…: q = 2; R(n) = 1 needs 2·n + 2^63 ≥ 2^64, n ≥ 2^62: item 2^62 - 1 is the first
    assert reference.mixture(["1e-19", "1"], 2**62 - 2) == (1, 2**62 - 2)
    assert reference.mixture(["1e-19", "1"], 2**62 - 1) == (0, 0)


def test_the_first_sample_of_a_rare_source_by_hand() -> None:
    # p = 1/(10^9 + 1); R(n + 1) = 1 needs (n + 1)·p ≥ 1/2, n + 1 ≥ 500,000,000.5
    assert reference.mixture(["1e-9", "1"], 499_999_999) == (1, 499_999_999)
    assert reference.mixture(["1e-9", "1"], 500_000_000) == (0, 0)
    assert reference.mixture(["1e-9", "1"], 500_000_001) == (1, 500_000_000)


@pytest.mark.parametrize("weights", WEIGHTS, ids=",".join)
def test_counts_stay_within_two_samples_of_the_weights_and_draws_count_up(weights: list[str]) -> None:
    root = reference.huffman(weights)
    total = sum(map(Fraction, weights))
    shares = [Fraction(weight) / total for weight in weights]
    counts = [0] * len(weights)
    for sample in range(SAMPLES):
        source, j = reference.descend(root, sample)
        assert j == counts[source]
        counts[source] += 1
        assert all(abs(count - (sample + 1) * share) < 2 for count, share in zip(counts, shares, strict=True))


@pytest.mark.parametrize("weights", WEIGHTS, ids=",".join)
def test_the_inverse_finds_the_sample(weights: list[str]) -> None:
    root = reference.huffman(weights)
    for start in (0, 10**15, 2**61, 2**62 - 200):
        for sample in range(start, start + 200):
            source, j = reference.descend(root, sample)
            assert reference.ascend(root, source, j) == sample
            assert reference.descend(root, reference.ascend(root, source, j + 1))[0] == source


def test_the_inverse_of_a_rare_source_is_its_first_sample() -> None:
    assert reference.mixture_inverse(["1e-9", "1"], 0, 0) == 500_000_000
    assert reference.mixture_inverse(["1e-19", "1"], 0, 0) == 2**62 - 1
    assert reference.mixture_inverse(["1e-30", "1"], 1, 12345) == 12345


# Section 4


@pytest.mark.parametrize(
    ("n", "a", "b"),
    [
        (1, 1, 1),
        (2, 2, 1),
        (3, 2, 2),
        (4, 2, 2),
        (5, 3, 2),
        (16, 4, 4),
        (17, 5, 4),
        (70, 9, 8),
        (65537, 257, 256),  # 65537 / 257 = 255.01
        (2**62 - 1, 2**31, 2**31),
    ],
)
def test_the_sides_by_hand(n: int, a: int, b: int) -> None:
    assert reference.sides(n) == (a, b)


def test_a_round_by_hand() -> None:
    # t = 0, r = key = 5: r ^ key = 0, and all that follows is 0
    assert reference.round_value(5, 5, 0, 2**31) == 0
    # r ^ key = 1: h = C1; its low half becomes 7F4A7C15 ^ 9E3779B9 = E17D05AC; times C2 it is AA1EDC3CA69BF54C (bc)
    # F = ⌊AA1EDC3C·m / 2^32⌋ is AA1EDC3C / 2 for m = 2^31, and 6 for m = 10 (0.66…·10)
    assert reference.round_value(1, 0, 0, 2**31) == 0xAA1EDC3C // 2
    assert reference.round_value(0, 1, 0, 10) == 6


@pytest.mark.parametrize(("key", "ones"), [(0, 0), (1, 3), (2, 1), (3, 3), (4, 1), (5, 3), (6, 0), (7, 3)])
def test_two_windows_are_swapped_by_an_odd_number_of_ones(key: int, ones: int) -> None:
    # n = 2: a = 2, b = 1; r = 0 in even rounds, whose F is the highest bit of h; odd rounds (m = 1) only swap back.
    # `ones` counts the highest bits of h in rounds 0, 2, 4, 6, computed in 64-bit shell arithmetic.
    assert [reference.permutation(i, 2, key) for i in range(2)] == [ones % 2, 1 - ones % 2]


@pytest.mark.parametrize("n", range(1, 71))
@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, 0x256D2222616EBD47])
def test_the_permutation_is_one_and_the_inverse_inverts(n: int, key: int) -> None:
    windows = [reference.permutation(i, n, key) for i in range(n)]
    assert sorted(windows) == [*range(n)]
    assert [reference.permutation_inverse(w, n, key) for w in windows] == [*range(n)]


@pytest.mark.parametrize("n", [65537, 2**31 + 1, 2**32 + 7, 2**61, 2**62 - 1])
def test_the_inverse_inverts_large_permutations(n: int) -> None:
    for i in [0, 1, n // 3, n - 2, n - 1]:
        window = reference.permutation(i, n, 12345)
        assert 0 <= window < n
        assert reference.permutation_inverse(window, n, 12345) == i


# Sections 3 and 5


def test_windows_by_hand() -> None:
    # T = 10, S = 3: N = ⌊9 / 3⌋ = 3; from token 8: 8, 11 mod 10, 14 mod 10
    assert reference.num_windows(10, 3) == 3
    assert [reference.window_start(w, 10, 3, 8) for w in range(3)] == [8, 1, 4]


@pytest.mark.parametrize(("num_tokens", "seq_len"), CIRCLES)
def test_the_targets_of_an_epoch_are_all_tokens_but_1_to_seq_len(num_tokens: int, seq_len: int) -> None:
    n = reference.num_windows(num_tokens, seq_len)
    assert 1 <= num_tokens - n * seq_len <= seq_len
    for offset in range(num_tokens):
        starts = [reference.window_start(w, num_tokens, seq_len, offset) for w in range(n)]
        targets = {(start + t) % num_tokens for start in starts for t in range(1, seq_len + 1)}
        assert len(targets) == n * seq_len


def one_source(shuffle: str) -> reference.Plan:
    return {
        "seed": 17,
        "seq_len": 3,
        "extra_tokens": 0,
        "shuffle": shuffle,
        "sources": [{"name": "books", "num_tokens": 10, "weight": None}],
    }


def test_without_shuffle_a_source_is_read_in_order_epoch_after_epoch() -> None:
    located = [reference.locate(one_source("none"), sample) for sample in range(7)]
    assert located == [
        (0, 0, 0, 0),
        (0, 0, 1, 3),
        (0, 0, 2, 6),
        (0, 1, 0, 0),
        (0, 1, 1, 3),
        (0, 1, 2, 6),
        (0, 2, 0, 0),
    ]


def test_with_shuffle_every_epoch_has_every_window_once_from_one_offset() -> None:
    plan = one_source("global")
    key = reference.source_key(17, "books")
    for epoch in range(20):
        offset = reference.draw(reference.draw(key, epoch), 1) % 10
        located = [reference.locate(plan, 3 * epoch + i) for i in range(3)]
        assert sorted(located) == sorted((0, epoch, w, (offset + 3 * w) % 10) for w in range(3))


def test_weights_left_out_are_windows() -> None:
    # T = 161 and 100, S = 16: N = 10 and 6; N is 9 for T = 160
    def plan(*weights: str | None) -> reference.Plan:
        columns = zip(("a", "b", "c"), (161, 100, 160), weights, strict=True)
        sources: list[reference.Source] = [{"name": n, "num_tokens": t, "weight": w} for n, t, w in columns]
        return {"seed": 1, "seq_len": 16, "extra_tokens": 0, "shuffle": "global", "sources": sources}

    left_out, given = plan(None, None, None), plan("10", "6", "9")
    assert reference.plan_weights(left_out) == [10, 6, 9]
    assert [reference.locate(left_out, k) for k in range(200)] == [reference.locate(given, k) for k in range(200)]


# Section 7


def phased(*phases: tuple[int, list[str | None]], tokens: tuple[int, ...] = (7, 7)) -> reference.Plan:
    """A plan without shuffle; of 7 tokens and S = 3 it has 2 windows in an epoch: tokens 0 … 3 and 3 … 6."""
    sources: list[reference.Source] = [{"name": f"s{n}", "num_tokens": t, "weight": "1"} for n, t in enumerate(tokens)]
    return {
        "seed": 0,
        "seq_len": 3,
        "extra_tokens": 0,
        "shuffle": "none",
        "sources": sources,
        "phases": [{"sample": sample, "weights": weights} for sample, weights in phases],
    }


THREE_PHASES = phased((0, ["1", "1"]), (5, ["0.7", "0.3"]), (9, ["0", "1"]))


def test_three_phases_by_hand() -> None:
    # 1 : 1: R(n) = ⌊n/2 + 1/2⌋ = 0 1 1 2 2 3, so items 0 2 4 go to source 0: after samples 0 … 4 it has 3 draws, source 1 has 2
    # 7 : 3: items 0 1 2 3 are (0, 0) (1, 0) (0, 1) (0, 2) as above: samples 5 … 8 are draws 3 + 0, 2 + 0, 3 + 1, 3 + 2
    # 0 : 1: from sample 9 on all go to source 1, which has 2 + 1 draws; source 0 has 6
    draws = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (0, 4), (0, 5), (1, 3), (1, 4), (1, 5)]
    assert [reference.draw_of(THREE_PHASES, k) for k in range(12)] == draws
    assert [reference.sample_of_draw(THREE_PHASES, *draw) for draw in draws] == [*range(12)]
    # N = 2: draw j is window j mod 2 of epoch ⌊j / 2⌋ and begins at token 0 or 3
    assert [reference.locate(THREE_PHASES, k) for k in (4, 5, 8, 9)] == [
        (0, 1, 0, 0),
        (0, 1, 1, 3),
        (0, 2, 1, 3),
        (1, 1, 1, 3),
    ]
    assert [reference.sample_of(THREE_PHASES, *where) for where in ((0, 1, 1), (0, 2, 1), (1, 1, 1))] == [5, 8, 9]


def test_counts_over_three_phases_by_hand() -> None:
    before = [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [4, 2], [4, 3], [5, 3], [6, 3], [6, 4], [6, 5]]
    assert [reference.counts(THREE_PHASES, k) for k in range(12)] == before
    assert reference.counts(THREE_PHASES, 2**62) == [6, 3 + 2**62 - 9]


def test_a_draw_that_no_phase_serves_does_not_occur() -> None:
    assert reference.sample_of_draw(THREE_PHASES, 0, 6) is None
    assert reference.sample_of_draw(THREE_PHASES, 1, 3 + 2**62 - 9) is None
    assert reference.sample_of_draw(THREE_PHASES, 1, 3 + 2**62 - 10) == 2**62 - 1
    # a rate of 0: source 0 is in the tree and never served
    assert reference.sample_of_draw(phased((0, ["1e-30", "1"])), 0, 0) is None


def test_a_source_that_is_added_later_begins_with_its_first_epoch() -> None:
    # source 1 of weight 0 at first: samples 0 1 2 are draws 0 1 2 of source 0; then 1 : 1, the tie goes to source 0
    plan = phased((0, ["1", "0"]), (3, ["1", "1"]))
    assert [reference.draw_of(plan, k) for k in range(7)] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (0, 4), (1, 1)]


def test_a_source_that_is_dropped_and_added_again_goes_on_where_it_stood() -> None:
    plan = phased((0, ["1", "1"]), (2, ["0", "1"]), (4, ["1", "1"]))
    assert [reference.draw_of(plan, k) for k in range(6)] == [(0, 0), (1, 0), (1, 1), (1, 2), (0, 1), (1, 3)]


def test_weights_that_a_phase_leaves_out_are_windows_and_zero_stays_zero() -> None:
    # T = 10, 7, 31 and S = 3: N = 3, 2, 10; source 1 is of weight 0
    plan = phased((0, ["1", "1", "1"]), (4, [None, "0", None]), tokens=(10, 7, 31))
    same = phased((0, ["1", "1", "1"]), (4, ["3", "0", "10"]), tokens=(10, 7, 31))
    assert [reference.locate(plan, k) for k in range(100)] == [reference.locate(same, k) for k in range(100)]
    # samples 0 … 3 of 1 : 1 : 1 are four draws; of the 26 that follow, source 0 has 26·3/13 = 6
    assert [
        after - before for before, after in zip(reference.counts(plan, 4), reference.counts(plan, 30), strict=True)
    ] == [6, 0, 20]


def test_one_phase_is_the_plan_without_phases() -> None:
    plan: Any = ORDER["plans"][1]
    with_phase: Any = {**plan, "phases": [{"sample": 0, "weights": [source["weight"] for source in plan["sources"]]}]}
    assert [[*reference.locate(with_phase, sample)] for sample in plan["samples"]] == plan["located"]


@pytest.mark.parametrize("weights", WEIGHTS, ids=",".join)
def test_items_of_a_node_are_those_that_descend_to_each_source(weights: list[str]) -> None:
    root = reference.huffman(weights)
    served = dict.fromkeys(reference.sources_below(root), 0)
    for n in range(300):
        assert reference.items_of(root, n) == served
        served[reference.descend(root, n)[0]] += 1


def test_a_draw_past_max_epochs_is_refused_by_hand() -> None:
    # N = 2: of 1.5 epochs draw 3 is the first too many, sample 5 above; of 1.4 epochs ⌊2.8⌋ = 2, sample 4; of 3 draw 6, which is none
    assert reference.first_refused(THREE_PHASES, ["1.5", None]) == 5
    assert reference.first_refused(THREE_PHASES, ["1.4", None]) == 4
    assert reference.first_refused(THREE_PHASES, ["3", None]) is None
    assert reference.first_refused(THREE_PHASES, ["3", "1.5"]) == 9
    assert reference.first_refused(THREE_PHASES, [None, None]) is None
    # T = 31, S = 3, N = 10: 7/10 of it are 7; the float64 0.7 is a little less than 7/10
    assert reference.first_refused(phased((0, ["1"]), tokens=(31,)), ["0.7"]) == 7


# Section 8


def test_batches_by_hand() -> None:
    # left: 0 1 4 5 6 8 9 10 …; the batch that begins at 4 has 2 samples, that at 6 has 3
    found = reference.batches([(2, 4), (7, 8)], [(0, 2), (5, 3)], 0, 4)
    assert found == [[0, 1], [4, 5], [6, 8, 9], [10, 11, 12]]


def test_a_cursor_in_a_skip_is_the_first_sample_after_it() -> None:
    assert reference.batches([(2, 4), (7, 8)], [(0, 2), (5, 3)], 2, 1) == [[4, 5]]
    assert reference.batches([(0, 6)], [(0, 2), (6, 4)], 0, 1) == [[6, 7, 8, 9]]


def test_skips_that_touch_or_overlap_are_their_union() -> None:
    assert reference.batches([(2, 4), (4, 6), (5, 8)], [(0, 3)], 0, 2) == [[0, 1, 8], [9, 10, 11]]


def test_a_batch_size_changes_at_the_first_batch_that_begins_at_or_after_its_sample() -> None:
    assert reference.batches([], [(0, 4), (6, 2)], 0, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert reference.batches([], [(0, 4), (8, 2)], 0, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert reference.batches([], [(0, 4), (9, 2)], 0, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_size_whose_samples_no_batch_begins_in_is_never_used() -> None:
    assert reference.batches([], [(0, 4), (5, 3), (7, 2)], 0, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


# Section 9


def books_epoch(epoch: int) -> int:
    """E of an epoch of the source "books" with the seed 17."""
    return reference.draw(int(ORDER["keys"][0]["key"], 16), epoch)


def test_blocks_of_eleven_windows_by_hand() -> None:
    # c = 2, m = 2, N = 11: F = 5, groups of 2, 2 and 1 chunks, and window 10. By shell arithmetic, of epoch 0
    # perm(0 … 4; 5, K) = 1 3 4 0 2; perm(·; 4, draw(G, 0)) = 2 3 0 1; perm(·; 4, draw(G, 1)) = 0 2 3 1; perm(·; 2, draw(G, 2)) = 1 0
    # group 0, chunks 1 3: places 2 3 0 1 are windows 0 1 of chunk 3, 0 1 of chunk 1: 6 7 2 3
    # group 1, chunks 4 0: places 0 2 3 1 are window 0 of chunk 4, 0 1 of chunk 0, 1 of chunk 4: 8 0 1 9
    # group 2, chunk 2: places 1 0: 5 4; then 10 + perm(0; 1, Q) = 10
    windows = [6, 7, 2, 3, 8, 0, 1, 9, 5, 4, 10]
    key = books_epoch(0)
    assert [reference.blocks(i, 11, 2, 2, key) for i in range(11)] == windows
    assert [reference.blocks_inverse(w, 11, 2, 2, key) for w in windows] == [*range(11)]


def test_blocks_of_whole_chunks_by_hand() -> None:
    # N = 10: F = 5 and no window after the chunks. By shell arithmetic, of epoch 1
    # perm(·; 5, K) = 0 2 1 3 4; groups: 0 3 2 1, 3 0 1 2 and 0 1
    # chunks 0 2: windows 0, 1 of 2, 0 of 2, 1: 0 5 4 1; chunks 1 3: 1 of 3, 0 of 1, 1 of 1, 0 of 3: 7 2 3 6; chunk 4: 8 9
    key = books_epoch(1)
    assert [reference.blocks(i, 10, 2, 2, key) for i in range(10)] == [0, 5, 4, 1, 7, 2, 3, 6, 8, 9]


def test_blocks_of_fewer_windows_than_a_chunk_by_hand() -> None:
    # c = 4, N = 3: F = 0; by shell arithmetic, perm(·; 3, Q) = 2 1 0 in epoch 0, 2 0 1 in epoch 2
    assert [reference.blocks(i, 3, 4, 2, books_epoch(0)) for i in range(3)] == [2, 1, 0]
    assert [reference.blocks(i, 3, 4, 2, books_epoch(2)) for i in range(3)] == [2, 0, 1]


def test_a_window_of_blocks_begins_behind_the_offset_of_its_epoch() -> None:
    # T = 12, S = 1: N = 11, the windows above; by shell arithmetic O mod 12 = 9 in epoch 0: token (9 + w) mod 12
    plan: reference.Plan = {
        "seed": 17,
        "seq_len": 1,
        "extra_tokens": 0,
        "shuffle": "blocks",
        "sources": [{"name": "books", "num_tokens": 12, "weight": None}],
        "chunk_windows": 2,
        "group_chunks": 2,
    }
    located = [reference.locate(plan, k) for k in range(11)]
    assert [window for _, _, window, _ in located] == [6, 7, 2, 3, 8, 0, 1, 9, 5, 4, 10]
    assert [start for _, _, _, start in located] == [3, 4, 11, 0, 5, 9, 10, 6, 2, 1, 7]


def test_chunks_left_out_are_of_two_million_tokens_and_groups_of_64_of_them() -> None:
    plan: reference.Plan = {**one_source("blocks"), "seq_len": 2048}
    assert reference.block_sizes(plan) == (1024, 64)
    assert reference.block_sizes({**plan, "seq_len": 2**21}) == (1, 64)
    assert reference.block_sizes({**plan, "seq_len": 2**21 + 1}) == (1, 64)
    assert reference.block_sizes({**plan, "seq_len": 3, "chunk_windows": None, "group_chunks": 5}) == (699050, 5)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 17, 40])
@pytest.mark.parametrize(("c", "m"), [(1, 1), (1, 3), (3, 1), (2, 2), (4, 64), (50, 2)])
def test_blocks_are_a_permutation_and_the_inverse_inverts(n: int, c: int, m: int) -> None:
    windows = [reference.blocks(i, n, c, m, 12345) for i in range(n)]
    assert sorted(windows) == [*range(n)]
    assert [reference.blocks_inverse(w, n, c, m, 12345) for w in windows] == [*range(n)]


# Section 10


def shuffled(shuffle: str, *lengths: int, seq_len: int = 2, extra_tokens: int = 0) -> reference.Plan:
    """A plan of the source "books" with documents of these lengths."""
    return {
        "seed": 17,
        "seq_len": seq_len,
        "extra_tokens": extra_tokens,
        "shuffle": shuffle,
        "sources": [{"name": "books", "num_tokens": sum(lengths), "weight": None}],
        "document_shuffle": True,
    }


def test_two_documents_by_hand() -> None:
    # D = 2: one run. By shell arithmetic perm(·; 2, draw(draw(E, 4), 0)) = 0 1 in epochs 0 and 1, and 1 0 in epoch 2
    # lengths 3 and 4: T = 7, S = 2, N = 3; in epoch 2 the stream is the 4 tokens of document 1, then the 3 of document 0
    plan = shuffled("none", 3, 4)
    rows = [reference.row_tokens(plan, sample, [[3, 4]]) for sample in range(9)]
    assert (
        rows[0:3]
        == rows[3:6]
        == [
            [(0, 0), (0, 1), (0, 2)],
            [(0, 2), (1, 0), (1, 1)],
            [(1, 1), (1, 2), (1, 3)],
        ]
    )
    assert rows[6:9] == [
        [(1, 0), (1, 1), (1, 2)],
        [(1, 2), (1, 3), (0, 0)],
        [(0, 0), (0, 1), (0, 2)],
    ]


def test_extra_tokens_go_around_the_stream_of_the_epoch() -> None:
    # as above: after token 6 of epoch 2's stream, document 0's last, comes document 1's first
    plan = shuffled("none", 3, 4, extra_tokens=2)
    assert reference.row_tokens(plan, 8, [[3, 4]]) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_an_offset_moves_the_windows_of_the_shuffled_stream() -> None:
    # by shell arithmetic O mod 7 = 3 in epoch 2: windows 0 1 2 begin at tokens 3 5 0 of 1.0 1.1 1.2 1.3 0.0 0.1 0.2
    plan = shuffled("global", 3, 4)
    rows = {reference.locate(plan, k)[2]: reference.row_tokens(plan, k, [[3, 4]]) for k in range(6, 9)}
    assert rows == {
        0: [(1, 3), (0, 0), (0, 1)],
        1: [(0, 1), (0, 2), (1, 0)],
        2: [(1, 0), (1, 1), (1, 2)],
    }


def test_an_empty_document_takes_a_slot_and_no_token() -> None:
    # D = 3: by shell arithmetic 1 0 2 in epoch 0, 1 2 0 in epoch 1; document 1 is empty
    plan = shuffled("none", 2, 0, 3)
    assert reference.stream(plan, 0, 0, [2, 0, 3]) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert reference.stream(plan, 0, 1, [2, 0, 3]) == [(2, 0), (2, 1), (2, 2), (0, 0), (0, 1)]


def test_a_last_run_of_two_documents_by_hand() -> None:
    # D = 130: runs of 128 and 2. By shell arithmetic perm(·; 2, draw(draw(E, 4), 1)) = 0 1 in epoch 0, 1 0 in epoch 1
    for epoch, last in ((0, [128, 129]), (1, [129, 128])):
        slots = [reference.document_in_slot(slot, 130, books_epoch(epoch)) for slot in range(130)]
        assert slots[128:] == last
        assert sorted(slots[:128]) == [*range(128)]
        assert slots[:128] != [*range(128)]


def test_documents_stay_in_their_run_of_128() -> None:
    lengths = [document % 4 for document in range(300)]
    plan = shuffled("global", *lengths)
    disk = [(document, token) for document, length in enumerate(lengths) for token in range(length)]
    tokens = reference.stream(plan, 0, 5, lengths)
    # 128 documents of 0 1 2 3 0 1 2 3 … tokens: 32·6 = 192 tokens
    for run in (slice(0, 192), slice(192, 384), slice(384, None)):
        assert tokens[run] != disk[run]
        assert sorted(tokens[run]) == disk[run]


def test_without_document_shuffle_the_stream_is_the_documents_in_order() -> None:
    plan = shuffled("global", 2, 0, 3)
    plan["document_shuffle"] = False
    assert reference.stream(plan, 0, 1, [2, 0, 3]) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]


# order.json


def case_name(case: dict[str, Any]) -> str:
    return json.dumps(case)[:60]


def test_order_json_is_version_1_and_has_every_section() -> None:
    assert [*ORDER] == ["order_version", "keys", "draws", "permutations", "mixtures", "plans"]
    assert ORDER["order_version"] == 1


def test_keys_are_those_of_order_json() -> None:
    found = [f"{reference.source_key(case['seed'], case['name']):016x}" for case in ORDER["keys"]]
    assert found == [case["key"] for case in ORDER["keys"]]


@pytest.mark.parametrize("case", ORDER["draws"], ids=case_name)
def test_draws_are_those_of_order_json(case: dict[str, Any]) -> None:
    assert [reference.draw(int(case["key"], 16), t) for t in case["t"]] == case["draws"]


@pytest.mark.parametrize("case", ORDER["permutations"], ids=case_name)
def test_permutations_and_their_inverses_are_those_of_order_json(case: dict[str, Any]) -> None:
    n, key = case["n"], int(case["key"], 16)
    assert [reference.permutation(i, n, key) for i in case["positions"]] == case["windows"]
    assert [reference.permutation_inverse(w, n, key) for w in case["windows"]] == case["positions"]


@pytest.mark.parametrize("case", ORDER["mixtures"], ids=case_name)
def test_mixtures_and_their_inverses_are_those_of_order_json(case: dict[str, Any]) -> None:
    pairs = [*zip(case["sources"], case["draws"], strict=True)]
    assert [reference.mixture(case["weights"], sample) for sample in case["samples"]] == pairs
    assert [reference.mixture_inverse(case["weights"], *pair) for pair in pairs] == case["samples"]


@pytest.mark.parametrize("case", ORDER["plans"], ids=case_name)
def test_plans_are_located_as_in_order_json(case: Any) -> None:
    assert [[*reference.locate(case, sample)] for sample in case["samples"]] == case["located"]


def test_order_json_is_byte_for_byte_what_its_script_would_write() -> None:
    script = runpy.run_path(str(GOLDEN / "make_order.py"))
    assert script["text"]() == TEXT


def test_the_script_refuses_to_overwrite(tmp_path: Path) -> None:
    target = tmp_path / "order.json"
    script = runpy.run_path(str(GOLDEN / "make_order.py"))
    script["write"](target)
    assert target.read_text(encoding="ascii") == TEXT
    with pytest.raises(SystemExit, match="written only once"):
        script["write"](target)


# order_extended.json


def test_order_extended_json_is_of_version_1_and_has_every_section() -> None:
    assert [*EXTENDED] == ["order_version", "phases", "max_epochs", "batches", "blocks", "documents"]
    assert EXTENDED["order_version"] == 1


@pytest.mark.parametrize("case", EXTENDED["phases"] + EXTENDED["blocks"], ids=case_name)
def test_plans_are_located_as_in_order_extended_json(case: Any) -> None:
    located = [reference.locate(case, sample) for sample in case["samples"]]
    assert [[*where] for where in located] == case["located"]
    assert [reference.sample_of(case, *where[:3]) for where in located] == case["samples"]


@pytest.mark.parametrize("case", EXTENDED["phases"], ids=case_name)
def test_counts_are_those_of_order_extended_json(case: Any) -> None:
    assert [reference.counts(case, sample) for sample in case["samples"]] == case["counts"]


@pytest.mark.parametrize("case", EXTENDED["max_epochs"], ids=case_name)
def test_the_first_refused_samples_are_those_of_order_extended_json(case: Any) -> None:
    assert reference.first_refused(case, case["max_epochs"]) == case["first_refused"]


@pytest.mark.parametrize("case", EXTENDED["batches"], ids=case_name)
def test_batches_are_those_of_order_extended_json(case: Any) -> None:
    found = reference.batches(case["skips"], case["schedule"], case["start"], len(case["batches"]))
    assert found == case["batches"]


@pytest.mark.parametrize("case", EXTENDED["documents"], ids=case_name)
def test_rows_are_those_of_order_extended_json(case: Any) -> None:
    assert [[*reference.locate(case, sample)] for sample in case["samples"]] == case["located"]
    for sample, row in zip(case["samples"], case["rows"], strict=True):
        tokens = [(document, first + t) for document, first, length in row for t in range(length)]
        assert reference.row_tokens(case, sample, case["lengths"]) == tokens


def test_order_extended_json_is_byte_for_byte_what_its_script_would_write() -> None:
    script = runpy.run_path(str(GOLDEN / "make_order_extended.py"))
    assert script["text"]() == EXTENDED_TEXT


def test_the_script_refuses_to_overwrite_order_extended_json(tmp_path: Path) -> None:
    target = tmp_path / "order_extended.json"
    script = runpy.run_path(str(GOLDEN / "make_order_extended.py"))
    script["write"](target)
    assert target.read_text(encoding="ascii") == EXTENDED_TEXT
    with pytest.raises(SystemExit, match="written only once"):
        script["write"](target)
