"""The order of docs/order.md, version 1, computed slowly from that page alone.

It shares no code with the library: Python integers and fractions, one step of the page after another, nothing cached.
tests/golden/order.json was computed by it. The sections named below are those of the page.
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
SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class Node(NamedTuple):
    """A node of the Huffman tree; a leaf has no children, and its `first` is its source."""

    weight: int
    first: int
    rate: int = 0
    children: "tuple[Node, Node] | None" = None  # (lighter, heavier)


class Source(TypedDict):
    """A source as a plan of order.json describes it; its weight is decimal text, or None where weights are left out."""

    name: str
    num_tokens: int
    weight: str | None


class Plan(TypedDict):
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


# All of it: sample → row


def plan_weights(plan: Plan) -> list[str | int]:
    """Return a plan's weights, windows in an epoch where they are left out."""
    given = [source["weight"] for source in plan["sources"] if source["weight"] is not None]
    if given:
        return [*given]
    return [num_windows(source["num_tokens"], plan["seq_len"]) for source in plan["sources"]]


def locate(plan: Plan, sample: int) -> tuple[int, int, int, int]:
    """Return the source, epoch, window and first token of a sample."""
    source, j = mixture(plan_weights(plan), sample)
    num_tokens = plan["sources"][source]["num_tokens"]
    n = num_windows(num_tokens, plan["seq_len"])
    epoch, position = j // n, j % n
    if plan["shuffle"] == "none":
        return source, epoch, position, window_start(position, num_tokens, plan["seq_len"], 0)
    key, offset_bits = epoch_bits(source_key(plan["seed"], plan["sources"][source]["name"]), epoch)
    window = permutation(position, n, key)
    return source, epoch, window, window_start(window, num_tokens, plan["seq_len"], offset_bits % num_tokens)
