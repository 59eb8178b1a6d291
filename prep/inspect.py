"""``millstream inspect`` and ``verify``: what a corpus is, what is in it, and whether every byte is as it was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import neutral_core as nc
from neutral_core.format.shard import Shard
from prep.extras import MissingExtraError
from prep.report import baselines, why_dtype
from prep.survey import frequencies
from prep.token_edges import masked_of, pieces_of
from prep.tokenizers import Tokenizer, definition_name, open_stored

_QUANTILES = (0, 25, 50, 75, 95, 100)
_LENGTH_DOCUMENTS = 1 << 20
_SHOWN_TOKENS = 64


def inspect(corpus: nc.Corpus, path: Path, num_documents: int = 3) -> dict[str, Any]:
    """Return what there is to say about a corpus: plain data, see ``lines_of``.

    Args:
        corpus: opened.
        path: where it is; the tokenizer's definition is looked for there.
        num_documents: how many of the first documents to show.
    """
    lengths = np.diff(corpus.document_offsets(0, min(corpus.num_documents, _LENGTH_DOCUMENTS)))
    ids, counts, seen = frequencies(corpus)
    vocab_size = corpus.vocab_size or 2 ** (8 * corpus.dtype.itemsize)
    report: dict[str, Any] = {
        "path": str(path),
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "shards": corpus.num_shards,
        "dtype": str(corpus.dtype),
        "vocab_size": corpus.vocab_size,
        "why_dtype": _why_dtype(corpus, vocab_size),
        "tokenizer": None if corpus.tokenizer is None else corpus.tokenizer.to_json(),
        "fields": {name: asdict(declared) for name, declared in corpus.fields.items()},
        "fingerprint": corpus.fingerprint,
        "notes": list(corpus.notes),
        "lengths": {str(q): int(np.percentile(lengths, q)) for q in _QUANTILES} if len(lengths) else {},
        "lengths_of_first": len(lengths),
        "largest_id": int(ids[-1]) if len(ids) else None,
        "baselines_over_tokens": seen,
        "first_documents": [],
    }
    tokenizer = _tokenizer(corpus, path, report["notes"]) if num_documents else None
    for index in range(min(num_documents, corpus.num_documents)):
        report["first_documents"].append(_show(corpus, tokenizer, index))
    return report | (baselines(counts, vocab_size) if seen else {})


def verify(corpus: nc.Corpus, name: str) -> list[str]:
    """Read every byte of a corpus; return lines that say what was checked, or raise FormatError at the first fault."""
    corpus.verify()
    counts = f"{corpus.num_documents:,} documents and {corpus.num_tokens:,} tokens in {corpus.num_shards:,} shards"
    if corpus.digests:
        said = f"{name}: {counts} are as they were when it was written: the sha256 of {len(corpus.digests):,} files was checked"
    elif not all(isinstance(shard, Shard) for shard in corpus.shards):  # a foreign layout
        said = f"{name}: {counts} can be read; such files carry no checksums, so nothing shows whether they are as they were written"
    else:
        said = f"{name}: {counts} are as they were written: every header, block checksum, offset and id was checked"
    return [said, *(f"  note: {note}" for note in corpus.notes)]


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person; the documents are ``document_lines``."""
    tokenizer = report["tokenizer"]
    lines = [
        f"{report['path']}",
        f"  {report['documents']:,} documents, {report['tokens']:,} tokens, {report['shards']:,} shards",
        f"  tokens are stored as {report['why_dtype']}",
        f"  tokenizer: {'not recorded' if tokenizer is None else describe(tokenizer)}",
        f"  fingerprint: {report['fingerprint']}",
    ]
    for name, declared in report["fields"].items():
        lines.append(f"  field {name}: {declared['dtype']}{list(declared['shape']) if declared['shape'] else ''}")
    if report["lengths"]:
        spread = ", ".join(
            f"{name} {value:,}"
            for name, value in zip(
                ("shortest", "25%", "median", "75%", "95%", "longest"), report["lengths"].values(), strict=True
            )
        )
        part = (
            ""
            if report["lengths_of_first"] == report["documents"]
            else f" (of the first {report['lengths_of_first']:,})"
        )
        lines.append(f"  tokens per document: {spread}{part}")
    if report["baselines_over_tokens"]:
        part = (
            ""
            if report["baselines_over_tokens"] == report["tokens"]
            else f" (over {report['baselines_over_tokens']:,} evenly spaced tokens)"
        )
        lines.append(
            f"  loss to expect, nats per token: {report['uniform_nats']:.3f} uniform, {report['unigram_nats']:.3f} unigram{part}"
        )
        lines.append(f"  largest id that occurs: {report['largest_id']:,}{part}")
    lines.extend(f"  note: {note}" for note in report["notes"])
    return lines


def document_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the documents of a report as lines for a person, without colour."""
    lines = []
    for shown in report["first_documents"]:
        where = f" from {shown['path']}:{shown['line']}" if "path" in shown else ""
        masked = f" ({shown['masked']:,} of the {len(shown['ids']):,} shown are masked)" if "masked" in shown else ""
        text = shown.get("text", shown["ids"])
        lines.append(f"  document {shown['document']:,}{where}: {shown['tokens']:,} tokens{masked}: {text!r}")
    return lines


def describe(tokenizer: Mapping[str, Any]) -> str:
    """Return one line about a tokenizer's identity."""
    edges = "".join(
        f", {name[:3].upper()} {tokenizer[name]:,}"
        for name in ("eos_id", "bos_id", "pad_id")
        if tokenizer[name] is not None
    )
    return f"{tokenizer['kind']} {tokenizer['name']!r}, {tokenizer['vocab_size']:,} ids{edges}, sha256 {tokenizer['sha256'][:16]}…"


def origin_of(corpus: nc.Corpus, document: int) -> tuple[str, int] | None:
    """Return (file, line) of a document as ``prepare`` recorded it, or None where it did not."""
    if "ragged.path" not in corpus.fields or "document.line" not in corpus.fields:
        return None
    path = corpus.field("ragged.path", document).tobytes().decode("utf-8", errors="replace")
    return path, int(corpus.field("document.line", document))


def _why_dtype(corpus: nc.Corpus, vocab_size: int) -> str:
    """Return a sentence on the dtype; a foreign layout may store ids wider than they need to be."""
    why = why_dtype(corpus.tokenizer, vocab_size)
    return why if why.endswith(str(corpus.dtype)) else f"{corpus.dtype}, for {vocab_size:,} ids"


def _tokenizer(corpus: nc.Corpus, path: Path, notes: list[str]) -> Tokenizer | None:
    """Return what decodes the corpus, or None, with a note where it should be there and is not."""
    if corpus.tokenizer is None:
        return None
    try:
        return open_stored(path if path.is_dir() else path.parent, corpus.tokenizer)
    except FileNotFoundError:
        notes.append(f"documents are shown as ids: {definition_name(corpus.tokenizer)} is not beside the shards.")
    except (nc.FormatError, MissingExtraError) as error:
        notes.append(f"documents are shown as ids: {error}")
    return None


def _show(corpus: nc.Corpus, tokenizer: Tokenizer | None, index: int) -> dict[str, Any]:
    tokens = corpus.document(index)
    shown: dict[str, Any] = {"document": index, "tokens": len(tokens), "ids": tokens[:_SHOWN_TOKENS].tolist()}
    origin = origin_of(corpus, index)
    if origin is not None:
        shown["path"], shown["line"] = origin
    masked = masked_of(corpus, index, len(shown["ids"]))
    if masked.any():
        shown["masked"] = int(masked.sum())
    if tokenizer is not None:
        shown["text"] = tokenizer.decode(tokens[:_SHOWN_TOKENS])
        shown["pieces"] = [piece._asdict() for piece in pieces_of(tokenizer, tokens[:_SHOWN_TOKENS], masked)]
    return shown
