"""The cursor: the resumable state, a small JSON-able dict that is the same on every rank.

    {"version": 1, "sample": the next one, "fingerprint": the plan's, "parts": {name of a part of the plan: short digest}}

Paths, batch size, ranks, threads and requested keys are no part of it: they may change between two runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neutral_core.errors import StateError

VERSION = 1
MAX_SAMPLE = 1 << 62
_KEYS = {"version", "sample", "fingerprint", "parts"}

# What a refusal says of each part.
_CONSEQUENCE = {
    "order_version": "this Millstream computes another order: resume with the version that saved it",
    "seed": "the shuffle would be another one",
    "seq_len": "samples would be other stretches of tokens",
    "windows": "samples would be cut differently",
    "shuffle": "samples would come in another order",
    "tokenizer": "the ids would mean other text",
    "sources": "sources were added, dropped or renamed",
    "weights": "the mixture would be another one",
    "data": "documents were added, dropped or changed: open the corpus as it was with open_corpus(…, fingerprint=…)",
}


def make(sample: int, fingerprint: str, parts: Mapping[str, str]) -> dict[str, Any]:
    """Return the cursor before ``sample`` of a plan."""
    return {"version": VERSION, "sample": sample, "fingerprint": fingerprint, "parts": dict(parts)}


def check(state: Any) -> int:
    """Return the sample of a state of this version; raise StateError where it is none."""
    if not isinstance(state, Mapping) or set(state) != _KEYS:
        found = sorted(state) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(
            f"state: expected a dict with {', '.join(sorted(_KEYS))}, found {found}: it is no state of Millstream's."
        )
    if state["version"] != VERSION:
        raise StateError(
            f"state: version is {state['version']!r}, expected {VERSION}: it was saved by another version of Millstream."
        )
    sample = state["sample"]
    if type(sample) is not int or not 0 <= sample <= MAX_SAMPLE:
        raise StateError(f"state: sample is {sample!r}, expected an integer from 0 to 2^62.")
    if not isinstance(state["parts"], Mapping):
        raise StateError(f"state: parts is {state['parts']!r}, expected a dict of digests.")
    return sample


def sample_of(state: Any, fingerprint: str, parts: Mapping[str, str]) -> int:
    """Return the sample at which a saved state goes on; raise StateError, naming the part, where it is another plan's."""
    sample = check(state)
    different = [name for name in {**parts, **state["parts"]} if parts.get(name) != state["parts"].get(name)]
    if different:
        reasons = "; ".join(
            f"{name} differs ({_CONSEQUENCE.get(name.split(' from ')[0], 'a part that this version does not know')})"
            for name in different
        )
        raise StateError(f"state: it was saved by another plan: {reasons}.")
    if state["fingerprint"] != fingerprint:
        raise StateError(
            "state: its parts are this plan's but its fingerprint is not: it was changed by hand or damaged."
        )
    return sample
