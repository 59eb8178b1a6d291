"""The reference of the order against arithmetic on paper, and against order.json, so that neither changes alone."""

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
