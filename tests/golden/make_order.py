"""Compute tests/golden/order.json from tests/order_reference.py.

order.json is written once and never regenerated: it is what the words "order version 1" mean. This script stays as the
record of how the file came to be, and refuses to overwrite it. A new order version is a new file.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import order_reference as reference

TARGET = Path(__file__).with_name("order.json")

KEYS = [
    (17, "books"),
    (0, ""),
    (0, "books"),
    (2**64 - 1, ""),
    (2**64 - 1, "books"),
    (2**53 + 1, "web"),
    (1, "Bücher"),
    (1, "本"),
    (1, "\U0001f4da"),
    (1, "e\u0301"),
    (1, "\u00e9"),
    (2, 'a "quoted" name'),
    (2, "back\\slash"),
    (2, "a/b"),
    (2, "line\nfeed\ttab\rreturn\bback\fform"),
    (2, "\x00\x01\x0b\x1f \x7f\u0080\u2028\u2029"),
    (3, " "),
]

DRAW_KEYS = [0, 1, 1234567, 2**63, 2**64 - 1, reference.source_key(17, "books")]
DRAW_NUMBERS = [0, 1, 2, 3, 4, 1000, 2**32, 2**61, 2**62 - 1]

SIZES = [1, 2, 3, 5, 16, 17, 70, 1000, 65536, 65537]
SIZES += [2**31 - 1, 2**31, 2**31 + 1, 2**32 + 7, 2**40, 2**61, 2**62 - 1]
WHOLE = 70  # up to this size, the whole permutation

MIXTURES = [
    ["1"],
    ["1", "1"],
    ["1", "1", "1"],
    ["1"] * 10,
    [repr(1 / rank) for rank in range(1, 11)],  # Zipf
    ["1e-9", "1"],
    ["0.7", "0.3"],
    ["1", "1", "3", "5"],
    ["0.5", "0", "0.25", "0.25"],
    ["0", "2.5"],
    ["1e-30", "1"],  # rounds to rate 0
    ["1e-19", "1"],  # rate 2: its first sample is the last there is, 2^62 - 1
    ["0.1", "0.2", "0.3"],  # a tie in decimals that is none in float64, where 0.1 + 0.2 > 0.3
    ["2", "1", "1", "2", "4", "4", "2"],
    ["3", "2", "1", "1", "1"],
]
MIXTURE_SAMPLES = [*range(41)]
MIXTURE_SAMPLES += [
    499_999_999,
    500_000_000,
    500_000_001,
]  # with weights 1e-9 and 1, the middle one is source 0's first
MIXTURE_SAMPLES += [middle + near for middle in (2**40, 10**15, 2**59) for near in (-1, 0, 1, 2)]
MIXTURE_SAMPLES += [2**62 - 4, 2**62 - 3, 2**62 - 2, 2**62 - 1]

PLAN_SAMPLES = [*range(61), 1000, 10**6, 10**9 + 7, 10**12, 2**53 + 1, 2**61, 2**62 - 1]


def source(name: str, num_tokens: int, weight: str | None = None) -> reference.Source:
    """Return a source of a plan."""
    return {"name": name, "num_tokens": num_tokens, "weight": weight}


def plan(seed: int, seq_len: int, extra_tokens: int, shuffle: str, *sources: reference.Source) -> reference.Plan:
    """Return a plan."""
    return {
        "seed": seed,
        "seq_len": seq_len,
        "extra_tokens": extra_tokens,
        "shuffle": shuffle,
        "sources": [*sources],
    }


PLANS = [
    plan(17, 128, 0, "global", source("", 100_003)),
    plan(17, 16, 1, "global", source("web", 1000, "0.5"), source("books", 777, "0.3"), source("本", 401, "0.2")),
    plan(4, 16, 0, "global", source("web", 1000), source("books", 777), source("code", 401)),
    plan(4, 16, 2, "none", source("web", 161, "2"), source("books", 100, "1")),
    plan(0, 7, 0, "none", source("web", 71), source("books", 50)),
    plan(0, 8, 0, "global", source("one", 9, "1"), source("two", 16, "1"), source("three", 17, "1")),
    plan(2**64 - 1, 8, 3, "global", source("a", 12), source("b", 25)),
    plan(1, 4096, 1, "global", source("web", 10**12, "0.7"), source("books", 2**50, "0.3")),
    plan(1, 4096, 0, "global", source("web", 10**12), source("books", 2**50), source("small", 4097)),
    plan(2**63, 1, 0, "global", source("x", 2**60 + 2), source("y", 2**59 + 1)),
    plan(5, 32, 0, "global", source("off", 500, "0"), source("on", 500, "1e-9"), source("more", 600, "1")),
]


def draws_case(key: int) -> dict[str, Any]:
    """Return draws of one key."""
    return {"key": f"{key:016x}", "t": DRAW_NUMBERS, "draws": [reference.draw(key, t) for t in DRAW_NUMBERS]}


def permutation_case(n: int) -> dict[str, Any]:
    """Return a whole small permutation, or 20 positions of a large one, under a key that depends on n."""
    key = reference.draw(1, n)
    spread = {reference.draw(2, t) % n for t in range(14)} | {0, 1, 2, n // 2, n - 2, n - 1}
    positions = [*range(n)] if n <= WHOLE else sorted(spread)
    windows = [reference.permutation(i, n, key) for i in positions]
    return {"n": n, "key": f"{key:016x}", "positions": positions, "windows": windows}


def mixture_case(weights: list[str]) -> dict[str, Any]:
    """Return the sources and draws of MIXTURE_SAMPLES."""
    pairs = [reference.mixture(weights, sample) for sample in MIXTURE_SAMPLES]
    columns = {"sources": [source for source, _ in pairs], "draws": [j for _, j in pairs]}
    return {"weights": weights, "samples": MIXTURE_SAMPLES, **columns}


def plan_case(plan: reference.Plan) -> dict[str, Any]:
    """Return a plan and where PLAN_SAMPLES stand in it."""
    located = [reference.locate(plan, sample) for sample in PLAN_SAMPLES]
    return {**plan, "samples": PLAN_SAMPLES, "located": located}


def sections() -> dict[str, list[dict[str, Any]]]:
    """Return the cases of order.json by section."""
    return {
        "keys": [{"seed": s, "name": name, "key": f"{reference.source_key(s, name):016x}"} for s, name in KEYS],
        "draws": [draws_case(key) for key in DRAW_KEYS],
        "permutations": [permutation_case(n) for n in SIZES],
        "mixtures": [mixture_case(weights) for weights in MIXTURES],
        "plans": [plan_case(plan) for plan in PLANS],
    }


def text() -> str:
    """Return order.json: ASCII, one case a line."""
    parts = ['"order_version": 1']
    for name, cases in sections().items():
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(target: Path) -> None:
    """Write order.json, unless it is there."""
    if target.exists():
        raise SystemExit(f"{target}: it is there already, and written only once: a new order version is a new file.")
    target.write_text(text(), encoding="ascii")


if __name__ == "__main__":
    write(TARGET)
