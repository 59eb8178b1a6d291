"""The order of docs/order.md, version 1, computed slowly from that page alone.

It shares no code with the library: Python integers and fractions, one step of the page after another, nothing cached.
tests/golden/order.json and tests/golden/order_extended.json were computed by it. The sections named below are those of the page.
"""

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, TypedDict

U64 = 2**64
C1 = 0x9E3779B97F4A7C15
C2 = 0xBF58476D1CE4E5B9
C3 = 0x94D049BB133111EB
ROUNDS = 8
SAMPLES = 2**62  # samples are smaller
RUN = 128  # documents of a run of section 10
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class Node(NamedTuple):
    """A node of the Huffman tree; a leaf has no children, and its `first` is its source."""

    weight: int
    first: int
    rate: int = 0
    children: "tuple[Node, Node] | None" = None  # (lighter, heavier)


class Source(TypedDict):
    """A source as the golden files describe it; its weight is decimal text, or None where weights are left out."""

    name: str
    num_tokens: int
    weight: str | None


class Phase(TypedDict):
    """Weights from a sample on, one for each source of the plan; None where they are left out."""

    sample: int
    weights: list[str | None]


class Additions(TypedDict, total=False):
    """What sections 7 to 10 add to a plan; without phases there is one, of the sources' weights."""

    phases: list[Phase]
    chunk_windows: int | None
    group_chunks: int | None
    document_shuffle: bool


class Plan(Additions):
    """What decides the order: nothing else does."""

    seed: int
    seq_len: int
    extra_tokens: int
    shuffle: str
    sources: list[Source]


# Section 1: random bits


def mix(z: int) -> int:
    """Return the splitmix64 finaliser of a u64."""
    z = z ^ (z >> 30)
    z = (z * C2) % U64
    z = z ^ (z >> 27)
    z = (z * C3) % U64
    return z ^ (z >> 31)


def draw(key: int, t: int) -> int:
    """Return output t = 0, 1, 2, … of splitmix64 seeded with `key`."""
    return mix((key + (t + 1) * C1) % U64)


def escaped(character: str) -> str:
    """Return a character as it stands in a canonical JSON string."""
    if character in SHORT_ESCAPES:
        return SHORT_ESCAPES[character]
    return f"\\u{ord(character):04x}" if ord(character) < 0x20 else character


def key_text(seed: int, name: str) -> str:
    """Return the canonical JSON text of `[seed, name]`."""
    return f'[{seed},"{"".join(escaped(character) for character in name)}"]'


def source_key(seed: int, name: str) -> int:
    """Return the u64 key of a source."""
    digest = hashlib.blake2b(key_text(seed, name).encode("utf-8"), digest_size=8, person=b"millstream-order")
    return int.from_bytes(digest.digest(), "little")


def epoch_bits(key: int, epoch: int) -> tuple[int, int]:
    """Return an epoch's permutation key K and offset bits O."""
    epoch_key = draw(key, epoch)
    return draw(epoch_key, 0), draw(epoch_key, 1)


def epoch_key(plan: Plan, source: int, epoch: int) -> int:
    """Return E of an epoch of a plan's source."""
    return draw(source_key(plan["seed"], plan["sources"][source]["name"]), epoch)


# Section 2: mixture


def integer_weights(weights: Sequence[str | int]) -> list[int]:
    """Return the weights, multiplied by one number, as integers without a common divisor."""
    exact = [Fraction(weight) for weight in weights]
    multiple = math.lcm(*(weight.denominator for weight in exact))
    integers = [int(weight * multiple) for weight in exact]
    divisor = math.gcd(*integers)
    return [weight // divisor for weight in integers]


def huffman(weights: Sequence[str | int]) -> Node:
    """Return the root of the Huffman tree of the sources whose weight is not zero."""
    nodes = [Node(weight, source) for source, weight in enumerate(integer_weights(weights)) if weight > 0]
    while len(nodes) > 1:
        nodes.sort(key=lambda node: (node.weight, node.first))
        lighter, heavier = nodes[0], nodes[1]
        a, b = lighter.weight, heavier.weight
        rate = (2**65 * a + (a + b)) // (2 * (a + b))
        nodes[:2] = [Node(a + b, min(lighter.first, heavier.first), rate, (lighter, heavier))]
    return nodes[0]


def lighter_before(n: int, rate: int) -> int:
    """Return R(n): how many of a node's items 0 … n − 1 go to its lighter child."""
    return (n * rate + 2**63) // 2**64


def descend(node: Node, n: int) -> tuple[int, int]:
    """Return the source and draw of item n of a node."""
    if node.children is None:
        return node.first, n
    lighter, heavier = node.children
    before, after = lighter_before(n, node.rate), lighter_before(n + 1, node.rate)
    return descend(lighter, before) if after > before else descend(heavier, n - before)


def sources_below(node: Node) -> list[int]:
    """Return the sources at the leaves under a node."""
    if node.children is None:
        return [node.first]
    return sources_below(node.children[0]) + sources_below(node.children[1])


def ascend(node: Node, source: int, j: int) -> int:
    """Return which item of a node is draw j of a source below it."""
    if node.children is None:
        return j
    lighter, heavier = node.children
    if source in sources_below(lighter):
        item = ascend(lighter, source, j)
        return -(-((item + 1) * 2**64 - 2**63) // node.rate) - 1
    item = ascend(heavier, source, j)
    return (item * 2**64 + 2**63) // (2**64 - node.rate)


def mixture(weights: Sequence[str | int], sample: int) -> tuple[int, int]:
    """Return the source and draw of a sample."""
    return descend(huffman(weights), sample)


def mixture_inverse(weights: Sequence[str | int], source: int, j: int) -> int:
    """Return the sample that is draw j of a source, by the closed form of the page."""
    return ascend(huffman(weights), source, j)


# Section 4: permutation


def sides(n: int) -> tuple[int, int]:
    """Return a and b of the rectangle that holds 0 … n − 1."""
    a = math.isqrt(n - 1) + 1
    return a, -(-n // a)


def round_value(r: int, key: int, t: int, m: int) -> int:
    """Return F of round t, 0 ≤ F < m."""
    h = ((r ^ ((key + t * C1) % U64)) * C1) % U64
    h = h ^ (h >> 32)
    h = (h * C2) % U64
    return ((h >> 32) * m) >> 32


def one_pass(x: int, n: int, key: int) -> int:
    """Return x' of the page's pass, which permutes 0 … a·b − 1."""
    a, b = sides(n)
    l, r = x // b, x % b  # noqa: E741 - the page's letters
    for t in range(ROUNDS):
        m = a if t % 2 == 0 else b
        l = (l + round_value(r, key, t, m)) % m  # noqa: E741
        l, r = r, l  # noqa: E741
    return l * b + r


def one_pass_back(x: int, n: int, key: int) -> int:
    """Return the number whose pass is x."""
    a, b = sides(n)
    l, r = x // b, x % b  # noqa: E741 - the page's letters
    for t in reversed(range(ROUNDS)):
        m = a if t % 2 == 0 else b
        l, r = r, l  # noqa: E741
        l = (l - round_value(r, key, t, m)) % m  # noqa: E741
    return l * b + r


def permutation(i: int, n: int, key: int) -> int:
    """Return perm(i; n, key)."""
    x = one_pass(i, n, key)
    while x >= n:
        x = one_pass(x, n, key)
    return x


def permutation_inverse(w: int, n: int, key: int) -> int:
    """Return the i for which perm(i; n, key) is w."""
    x = one_pass_back(w, n, key)
    while x >= n:
        x = one_pass_back(x, n, key)
    return x


# Section 5: windows


def num_windows(num_tokens: int, seq_len: int) -> int:
    """Return N, the windows in an epoch of a source."""
    return (num_tokens - 1) // seq_len


def window_start(window: int, num_tokens: int, seq_len: int, offset: int) -> int:
    """Return the token at which a window begins when window 0 begins at token `offset`."""
    return (offset + window * seq_len) % num_tokens


# Section 7: phases


def num_windows_of(plan: Plan, source: int) -> int:
    """Return N of a plan's source."""
    return num_windows(plan["sources"][source]["num_tokens"], plan["seq_len"])


def weights_of(plan: Plan, weights: Sequence[str | None]) -> list[str | int]:
    """Return weights, windows in an epoch where they are left out."""
    return [num_windows_of(plan, source) if weight is None else weight for source, weight in enumerate(weights)]


def plan_weights(plan: Plan) -> list[str | int]:
    """Return the weights of a plan's sources, windows in an epoch where they are left out."""
    return weights_of(plan, [source["weight"] for source in plan["sources"]])


def plan_phases(plan: Plan) -> list[tuple[int, Node]]:
    """Return the sample at which each phase begins, and the root of its mixture."""
    if "phases" not in plan:
        return [(0, huffman(plan_weights(plan)))]
    return [(phase["sample"], huffman(weights_of(plan, phase["weights"]))) for phase in plan["phases"]]


def items_of(node: Node, n: int) -> dict[int, int]:
    """Return how many of a node's items 0 … n − 1 go to each source below it."""
    if node.children is None:
        return {node.first: n}
    to_lighter = lighter_before(n, node.rate)
    return items_of(node.children[0], to_lighter) | items_of(node.children[1], n - to_lighter)


def counts(plan: Plan, sample: int) -> list[int]:
    """Return how many draws of each source come before a sample, which may be 2^62."""
    phases = plan_phases(plan)
    ends = [begin for begin, _ in phases[1:]] + [SAMPLES]
    drawn = [0 for _ in plan["sources"]]
    for (begin, root), end in zip(phases, ends, strict=True):
        if begin < sample:
            for source, items in items_of(root, min(end, sample) - begin).items():
                drawn[source] += items
    return drawn


def draw_of(plan: Plan, sample: int) -> tuple[int, int]:
    """Return the source and draw j of a sample."""
    begin, root = [phase for phase in plan_phases(plan) if phase[0] <= sample][-1]
    source, d = descend(root, sample - begin)
    return source, counts(plan, begin)[source] + d


def sample_of_draw(plan: Plan, source: int, j: int) -> int | None:
    """Return the sample that is draw j of a source, None where it does not occur."""
    phases = plan_phases(plan)
    ends = [begin for begin, _ in phases[1:]] + [SAMPLES]
    for (begin, root), end in zip(phases, ends, strict=True):
        base = counts(plan, begin)[source]
        if base <= j < counts(plan, end)[source]:
            return begin + ascend(root, source, j - base)
    return None


def first_refused(plan: Plan, max_epochs: Sequence[str | None]) -> int | None:
    """Return the first sample that a source's `max_epochs`, decimal text or None, refuses; None where none does."""
    refused = []
    for source, most in enumerate(max_epochs):
        if most is not None:
            refused.append(sample_of_draw(plan, source, math.floor(Fraction(most) * num_windows_of(plan, source))))
    return min((sample for sample in refused if sample is not None), default=None)


# Section 8: skips and batch sizes


def next_left(skips: Sequence[tuple[int, int]], sample: int) -> int:
    """Return the first sample at or after one that no skip leaves out."""
    while True:
        ends = [end for begin, end in skips if begin <= sample < end]
        if not ends:
            return sample
        sample = ends[0]


def batches(
    skips: Sequence[tuple[int, int]], schedule: Sequence[tuple[int, int]], start: int, count: int
) -> list[list[int]]:
    """Return the samples of the `count` global batches from sample `start` on."""
    found = []
    cursor = next_left(skips, start)
    for _ in range(count):
        size = [size for begin, size in schedule if begin <= cursor][-1]
        batch = []
        for _ in range(size):
            batch.append(cursor)
            cursor = next_left(skips, cursor + 1)
        found.append(batch)
    return found


# Section 9: blocks


def blocks(i: int, n: int, chunk_windows: int, group_chunks: int, key: int) -> int:
    """Return the window at position i of n, in the epoch whose E is `key`."""
    c, m, f = chunk_windows, group_chunks, n // chunk_windows
    if i >= f * c:
        return f * c + permutation(i - f * c, n - f * c, draw(key, 3))
    g = i // (m * c)
    of_group = min(m, f - g * m)
    place = permutation(i - g * m * c, of_group * c, draw(draw(key, 2), g))
    chunk = permutation(g * m + place // c, f, draw(key, 0))
    return chunk * c + place % c


def blocks_inverse(w: int, n: int, chunk_windows: int, group_chunks: int, key: int) -> int:
    """Return the position at which window w stands."""
    c, m, f = chunk_windows, group_chunks, n // chunk_windows
    if w >= f * c:
        return f * c + permutation_inverse(w - f * c, n - f * c, draw(key, 3))
    nth = permutation_inverse(w // c, f, draw(key, 0))
    g = nth // m
    of_group = min(m, f - g * m)
    return g * m * c + permutation_inverse((nth - g * m) * c + w % c, of_group * c, draw(draw(key, 2), g))


def block_sizes(plan: Plan) -> tuple[int, int]:
    """Return c and m of a plan."""
    c, m = plan.get("chunk_windows"), plan.get("group_chunks")
    return max(2**21 // plan["seq_len"], 1) if c is None else c, 64 if m is None else m


def window_at(plan: Plan, source: int, epoch: int, position: int) -> int:
    """Return the window at a position of an epoch of a source: section 4."""
    n, key = num_windows_of(plan, source), epoch_key(plan, source, epoch)
    if plan["shuffle"] == "none":
        return position
    if plan["shuffle"] == "global":
        return permutation(position, n, draw(key, 0))
    return blocks(position, n, *block_sizes(plan), key)


def position_of(plan: Plan, source: int, epoch: int, window: int) -> int:
    """Return the position of a window in an epoch of a source."""
    n, key = num_windows_of(plan, source), epoch_key(plan, source, epoch)
    if plan["shuffle"] == "none":
        return window
    if plan["shuffle"] == "global":
        return permutation_inverse(window, n, draw(key, 0))
    return blocks_inverse(window, n, *block_sizes(plan), key)


# Section 10: the stream of an epoch


def document_in_slot(slot: int, num_documents: int, key: int) -> int:
    """Return the document in a slot of the stream, counted from the source's first, in the epoch whose E is `key`."""
    run = slot // RUN
    documents = min(RUN, num_documents - RUN * run)
    return RUN * run + permutation(slot - RUN * run, documents, draw(draw(key, 4), run))


def stream(plan: Plan, source: int, epoch: int, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the document, and the number of the token in it, of each token of an epoch's stream; documents of these lengths."""
    slots = [*range(len(lengths))]
    if plan.get("document_shuffle"):
        slots = [document_in_slot(slot, len(lengths), epoch_key(plan, source, epoch)) for slot in slots]
    return [(document, token) for document in slots for token in range(lengths[document])]


# All of it: sample → row


def locate(plan: Plan, sample: int) -> tuple[int, int, int, int]:
    """Return the source, epoch, window and first token, in the epoch's stream, of a sample."""
    source, j = draw_of(plan, sample)
    num_tokens, n = plan["sources"][source]["num_tokens"], num_windows_of(plan, source)
    epoch, position = j // n, j % n
    window = window_at(plan, source, epoch, position)
    offset = 0 if plan["shuffle"] == "none" else draw(epoch_key(plan, source, epoch), 1) % num_tokens
    return source, epoch, window, window_start(window, num_tokens, plan["seq_len"], offset)


def sample_of(plan: Plan, source: int, epoch: int, window: int) -> int | None:
    """Return the sample that is a window of an epoch of a source, None where it does not occur."""
    return sample_of_draw(plan, source, epoch * num_windows_of(plan, source) + position_of(plan, source, epoch, window))


def row_tokens(plan: Plan, sample: int, lengths: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the document, and the number of the token in it, of each token of a row; `lengths` of the documents of each source."""
    source, epoch, _, start = locate(plan, sample)
    tokens = stream(plan, source, epoch, lengths[source])
    return [tokens[(start + t) % len(tokens)] for t in range(plan["seq_len"] + 1 + plan["extra_tokens"])]
