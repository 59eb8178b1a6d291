"""Compute tests/golden/order_extended.json from tests/order_reference.py: sections 7 to 10 of docs/order.md.

As order.json, the file is written once and never regenerated: the two are what the words "order version 1" mean. This
script stays as the record of how the file came to be, and refuses to overwrite it. A new order version is a new file.
"""

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import order_reference as reference

TARGET = Path(__file__).with_name("order_extended.json")

FAR = [1000, 10**6, 10**9 + 7, 10**12, 2**53 + 1, 2**61, 2**62 - 1]
WHOLE = 70  # up to so many windows, the whole of the first epochs


def plan(seed: int, seq_len: int, shuffle: str, *sources: tuple[str, int, str | None], **added: Any) -> reference.Plan:
    """Return a plan of (name, tokens, weight) sources."""
    return {
        "seed": seed,
        "seq_len": seq_len,
        "extra_tokens": added.pop("extra_tokens", 0),
        "shuffle": shuffle,
        "sources": [{"name": name, "num_tokens": tokens, "weight": weight} for name, tokens, weight in sources],
        **added,
    }


def phased(whole: reference.Plan, *phases: tuple[int, list[str | None]]) -> reference.Plan:
    """Return a plan whose first phase has its sources' weights, with these phases after it."""
    first = (0, [source["weight"] for source in whole["sources"]])
    return {**whole, "phases": [{"sample": sample, "weights": weights} for sample, weights in (first, *phases)]}


# The sources have few windows, so that epochs end within the first samples.
WEB, BOOKS, CODE, MATHS, NEWS = ("web", 161), ("books", 100), ("code", 65), ("maths", 40), ("news", 333)

FIBONACCI = ["1", "1", "2", "3", "5", "8", "13", "21", "34", "55"]

PHASES = [
    phased(plan(0, 16, "none", (*WEB, "1"), (*BOOKS, "1")), (5, ["0.7", "0.3"])),
    # added later, dropped, added again
    phased(
        plan(17, 16, "global", (*WEB, "0.6"), (*BOOKS, "0.4"), (*CODE, "0")),
        (20, ["0.5", "0.25", "0.25"]),
        (33, ["0", "0.25", "0.75"]),
        (50, ["0.5", "0.25", "0.25"]),
    ),
    # weights left out, zero where a source is not served
    phased(
        plan(4, 16, "global", (*WEB, None), (*BOOKS, "0"), (*CODE, None), (*MATHS, "0")),
        (7, [None, None, "0", "0"]),
        (8, ["0", "0", "0", None]),
        (40, [None, None, None, None]),
    ),
    # ties are broken by the index in the plan, whatever weighs nothing
    phased(
        plan(1, 8, "global", (*WEB, "1"), (*BOOKS, "0"), (*CODE, "1"), (*MATHS, "3"), (*NEWS, "5")),
        (14, ["0", "1", "1", "3", "5"]),
        (28, ["5", "3", "1", "0", "1"]),
        (42, ["1", "1", "1", "1", "1"]),
    ),
    # phases of one sample; a source that comes in none of them, and one of rate 0
    phased(
        plan(2**64 - 1, 8, "none", (*WEB, "1"), (*BOOKS, "1e-9"), (*CODE, "0")),
        (1, ["1e-9", "1", "1e-30"]),
        (2, ["1", "1", "0"]),
        (3, ["1", "2", "4"]),
    ),
    # changes far out
    phased(
        plan(9, 4096, "global", ("web", 10**12, "0.7"), ("books", 2**50, "0.3"), ("code", 2**40, "0")),
        (10**12 - 1, ["0.5", "0.3", "0.2"]),
        (10**12 + 1, ["0", "0.3", "0.2"]),
        (2**61, ["1e-9", "0", "1"]),
        (2**62 - 3, ["1", "1", "1"]),
    ),
    # the deepest tree of ten sources, and the flattest
    phased(
        plan(3, 4, "global", *((f"s{n}", 30 + n, w) for n, w in enumerate(FIBONACCI))),
        (30, ["1"] * 10),
        (10**9, [repr(1 / rank) for rank in range(1, 11)]),
    ),
    # with blocks
    phased(
        plan(5, 4, "blocks", (*WEB, "2"), (*BOOKS, "1"), chunk_windows=3, group_chunks=4),
        (25, ["1", "2"]),
        (2**61, [None, None]),
    ),
]

MAX_EPOCHS = [
    (PHASES[0], ["1", None]),
    (PHASES[0], ["1.25", "2.5"]),
    (PHASES[1], [None, None, "1.7"]),
    (PHASES[1], ["2", None, None]),
    (PHASES[5], ["2870.5", None, None]),  # dropped at 10^12 + 1, then 1 in 10^9
    (PHASES[5], ["0.1", "1e3", "0.3"]),
    (plan(0, 3, "global", ("", 31, None)), ["0.7"]),
    (plan(0, 3, "global", ("", 31, None)), ["4e18"]),
]

BATCHES: list[tuple[list[tuple[int, int]], list[tuple[int, int]], int, int]] = [
    ([], [(0, 4)], 0, 3),
    ([], [(0, 4), (10, 6)], 0, 4),
    ([(2, 4), (7, 8)], [(0, 2), (5, 3)], 0, 6),
    ([(0, 5)], [(0, 2), (5, 4)], 0, 3),
    ([(5, 9), (9, 11), (30, 31)], [(0, 8), (16, 4), (17, 12)], 0, 5),
    ([(20, 40), (5, 30), (7, 9)], [(0, 8), (6, 6), (41, 3)], 0, 4),
    ([(10, 100)], [(0, 8), (50, 16), (100, 2)], 3, 4),
    ([(0, 10**12), (10**12 + 3, 2**61)], [(0, 2), (10**12 + 1, 4), (2**61, 8)], 7, 4),
    ([(2**61 + 1, 2**61 + 4)], [(0, 1), (2**61, 3)], 2**61 - 2, 5),
]

# A source of N windows of one token has N + 1 tokens, so that its epochs are those of blocks of N windows.
BLOCKS = [
    plan(17, 1, "blocks", ("books", n + 1, None), chunk_windows=c, group_chunks=m)
    for n, c, m in [
        (11, 2, 2),  # 5 chunks, the last group of one, one window after them
        (10, 2, 2),
        (8, 2, 2),  # whole groups
        (3, 4, 2),  # fewer windows than a chunk
        (4, 4, 2),
        (1, 1, 1),
        (1, 7, 3),
        (7, 1, 1),  # a permutation of windows
        (9, 1, 64),
        (50, 7, 3),
        (60, 7, 64),  # one group
        (70, 10, 7),
        (10**4, 37, 5),
        (10**4, 10**5, 1),
        (2**40 + 12345, 2**20 + 1, 1000),
        (2**61, 2**30, 2**20),
        (2**62 - 2, 3, 2**30),
    ]
]
BLOCKS += [
    plan(17, 2048, "blocks", ("", 10**12, None)),  # chunks of 1024 windows, groups of 64
    plan(17, 4096, "blocks", ("web", 10**12, "0.7"), ("books", 2**50, "0.3"), extra_tokens=1, group_chunks=1000),
    plan(17, 4096, "blocks", ("web", 10**12, "0.7"), ("books", 2**50, "0.3"), chunk_windows=100),
    plan(17, 2**21 + 1, "blocks", ("long", 2**30, None)),  # chunks of one window
    plan(17, 8, "blocks", ("web", 1000, "0.7"), ("small", 20, "0.3"), chunk_windows=6, group_chunks=4),
]


def lengths(kind: int, documents: int) -> list[int]:
    """Return lengths of documents, 0 to 11 tokens, about a quarter of them empty."""
    drawn = [reference.draw(kind, document) for document in range(documents)]
    return [0 if bits % 4 == 0 else (bits >> 8) % 12 for bits in drawn]


def documents_plan(seed: int, shape: tuple[int, int], shuffle: str, *documents: list[int], **added: Any) -> Any:
    """Return a plan of sources of these documents' lengths, of (seq_len, extra_tokens)."""
    names = ("books",) if len(documents) == 1 else ("books", "web", "code")
    sources = [(name, sum(of_source), None) for name, of_source in zip(names, documents, strict=False)]
    whole = plan(seed, shape[0], shuffle, *sources, extra_tokens=shape[1], document_shuffle=True, **added)
    return {**whole, "lengths": [*documents]}


DOCUMENTS = [
    documents_plan(17, (2, 0), "none", [3, 4]),
    documents_plan(17, (2, 2), "global", [3, 4]),
    documents_plan(17, (2, 1), "blocks", [2, 0, 3], chunk_windows=1, group_chunks=2),
    documents_plan(17, (4, 0), "none", [50]),
    documents_plan(17, (4, 0), "global", [0, 0, 50, 0]),
    documents_plan(17, (7, 0), "none", lengths(1, 60)),
    documents_plan(1, (7, 1), "none", lengths(2, 128)),
    documents_plan(2, (7, 0), "global", lengths(3, 129)),
    documents_plan(3, (16, 1), "blocks", lengths(4, 130), chunk_windows=3, group_chunks=2),
    documents_plan(4, (16, 0), "global", lengths(5, 256)),
    documents_plan(5, (16, 3), "blocks", lengths(6, 257), chunk_windows=5, group_chunks=4),
    documents_plan(6, (32, 1), "global", lengths(7, 300)),
    documents_plan(7, (8, 0), "none", [0] * 128 + lengths(8, 20)),  # a run without tokens
    phased(documents_plan(8, (8, 1), "global", lengths(9, 140), lengths(10, 20), [9, 0, 30]), (20, ["0", "2", "3"])),
]
# two of them again without it
DOCUMENTS += [{**DOCUMENTS[6], "document_shuffle": False}, {**DOCUMENTS[8], "document_shuffle": False}]


def located(whole: Any, samples: list[int]) -> dict[str, Any]:
    """Return samples and where they stand."""
    return {"samples": samples, "located": [reference.locate(whole, sample) for sample in samples]}


def phases_case(whole: reference.Plan) -> dict[str, Any]:
    """Return a plan, where samples at its changes and others stand, and the draws before them."""
    around = {phase["sample"] + near for phase in whole.get("phases", []) for near in range(-3, 4)}
    samples = sorted({sample for sample in around if 0 <= sample < 2**62} | {*range(61), *FAR})
    return {**whole, **located(whole, samples), "counts": [reference.counts(whole, sample) for sample in samples]}


def max_epochs_case(whole: reference.Plan, max_epochs: list[str | None]) -> dict[str, Any]:
    """Return a plan and the first sample that its sources' max_epochs refuse."""
    return {**whole, "max_epochs": max_epochs, "first_refused": reference.first_refused(whole, max_epochs)}


def batches_case(
    skips: list[tuple[int, int]], schedule: list[tuple[int, int]], start: int, count: int
) -> dict[str, Any]:
    """Return global batches."""
    found = reference.batches(skips, schedule, start, count)
    return {"skips": skips, "schedule": schedule, "start": start, "batches": found}


def blocks_case(whole: reference.Plan) -> dict[str, Any]:
    """Return a plan and where samples stand in it: two epochs if they are small."""
    n = reference.num_windows_of(whole, 0)
    near = {*range(2 * n)} if n <= WHOLE else {*range(20), n - 2, n - 1, n, n + 1}
    return {**whole, **located(whole, sorted(sample for sample in near | {*FAR} if sample < 2**62))}


def spans(tokens: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return a row as spans of one document: the document, its first token in the span, how many."""
    numbered = groupby(enumerate(tokens), key=lambda nth: (nth[1][0], nth[1][1] - nth[0]))
    rows = [[token for _, token in group] for _, group in numbered]
    return [(*row[0], len(row)) for row in rows]


def documents_case(whole: Any) -> dict[str, Any]:
    """Return a plan with the lengths of its documents, and rows of it."""
    n = sum(reference.num_windows_of(whole, source) for source in range(len(whole["sources"])))
    samples = sorted(
        {*range(min(n, 12)), n - 1, n, n + 1, n + 7, 2 * n, 2 * n + 1, 2 * n + 2, 10**12, 2**61, 2**62 - 1}
    )
    rows = [spans(reference.row_tokens(whole, sample, whole["lengths"])) for sample in samples]
    return {**whole, **located(whole, samples), "rows": rows}


def sections() -> dict[str, list[dict[str, Any]]]:
    """Return the cases of order_extended.json by section."""
    return {
        "phases": [phases_case(whole) for whole in PHASES],
        "max_epochs": [max_epochs_case(*case) for case in MAX_EPOCHS],
        "batches": [batches_case(*case) for case in BATCHES],
        "blocks": [blocks_case(whole) for whole in BLOCKS],
        "documents": [documents_case(whole) for whole in DOCUMENTS],
    }


def text() -> str:
    """Return order_extended.json: ASCII, one case a line."""
    parts = ['"order_version": 1']
    for name, cases in sections().items():
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(target: Path) -> None:
    """Write order_extended.json, unless it is there."""
    if target.exists():
        raise SystemExit(f"{target}: it is there already, and written only once: a new order version is a new file.")
    target.write_text(text(), encoding="ascii")


if __name__ == "__main__":
    write(TARGET)
