"""What is said when a corpus has been made: counts, dtype and why, and which loss to expect."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc


def baselines(counts: npt.NDArray[np.int64], vocab_size: int, num_bytes: int | None = None) -> dict[str, float]:
    """Return the losses of two models that know nothing of context, in nats per token; a trained one is below the second.

    Args:
        counts: int64[≤ vocab_size], how often each id occurs, in any order.
        vocab_size: number of ids.
        num_bytes: of the text behind the tokens, for bits per byte; None where it is not known.

    Returns:
        ``uniform_nats`` = ln(vocab_size); ``unigram_nats`` = the entropy of the ids' frequencies; ``unigram_bits_per_byte`` with ``num_bytes``.
    """
    total = int(counts.sum())
    shares = counts[counts > 0] / max(total, 1)
    unigram = float(-(shares * np.log(shares)).sum()) + 0.0
    result = {"uniform_nats": math.log(vocab_size), "unigram_nats": unigram}
    if num_bytes:
        result["unigram_bits_per_byte"] = unigram * total / math.log(2) / num_bytes
    return result


def why_dtype(tokenizer: nc.TokenizerIdentity | None, vocab_size: int) -> str:
    """Return a sentence on the dtype of the tokens: ``257 ids (256 bytes, EOS): uint16``."""
    dtype = "uint8" if vocab_size <= 2**8 else "uint16" if vocab_size <= 2**16 else "uint32"
    if tokenizer is None:
        return f"{vocab_size:,} ids: {dtype}"
    edges = [name for name, value in (("EOS", tokenizer.eos_id), ("BOS", tokenizer.bos_id)) if value is not None]
    if tokenizer.kind == "byte":
        inside = ", ".join(["256 bytes", *edges])
    elif tokenizer.kind == "char":
        inside = ", ".join([tokenizer.name, *edges])
    else:
        inside = f"{tokenizer.name}, with added tokens"
    return f"{vocab_size:,} ids ({inside}): {dtype}"


def corpus_lines(name: str, entry: dict[str, Any]) -> list[str]:
    """Return the lines that describe one corpus of a report."""
    lines = [
        f"{name}: {entry['documents']:,} documents, {entry['tokens']:,} tokens, {entry['shards']:,} shards, {entry['bytes']:,} bytes",
        f"  fingerprint {entry['fingerprint']}",
    ]
    if not entry["documents"]:
        lines.append("  WARNING: it holds no document.")
    if entry["tokens"]:
        line = f"  loss to expect, nats per token: {entry['uniform_nats']:.3f} from a uniform guess, {entry['unigram_nats']:.3f} from frequencies alone"
        if "unigram_bits_per_byte" in entry:
            line += f" ({entry['unigram_bits_per_byte']:.3f} bits per byte)"
        lines.append(line + "; a model that learns is below")
        if entry["unigram_nats"] == 0:
            lines.append("  WARNING: one id makes up everything: there is nothing to learn.")
    return lines
