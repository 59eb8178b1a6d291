"""``millstream convert --reference``: a foreign data set becomes a corpus where it lies: fingerprint, tokenizer, vocabulary and checksums in one small file.

Every file is read once, for its sha256, and every id, for the largest; nothing is copied. A run that was stopped begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import neutral_core as nc
from neutral_core.format.corpus import digest_of
from neutral_core.reference import recognises, write_reference
from prep.engines import local
from prep.progress import Progress
from prep.report import why_dtype
from prep.tokenizers import Settings, open_tokenizer

_BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is asked of ``refer``: as of ``convert``; ``destination`` is the file to be, in the folder of the data set or in one above."""

    source: str
    destination: Path
    layout: str | None = None
    dtype: str | None = None
    boundaries: str | None = None
    tokenizer: Settings | None = None
    vocab_size: int | None = None
    workers: int = 1


def refer(options: Options) -> dict[str, Any]:
    """Write the reference and return the report: plain data, see ``lines_of``.

    Raises:
        ValueError: the source is no foreign layout that is read in place, an id is outside of the vocabulary, or the destination lies elsewhere.
        FileExistsError: the destination is there already. FormatError: the source is damaged.
    """
    if options.destination.exists():
        raise FileExistsError(f"{options.destination}: it is there already: remove it, or give another name.")
    if not options.destination.parent.is_dir():
        raise FileNotFoundError(
            f"{options.destination.parent}: there is no such folder: a reference lies beside what it names."
        )
    source = Path(options.source).expanduser()
    if recognises(source):
        raise ValueError(f"{source}: it is a reference already.")
    corpus = nc.open_corpus(source, layout=options.layout, dtype=options.dtype, boundaries=options.boundaries)
    if not corpus.files:
        raise ValueError(f"{source}: it is a corpus already, with a fingerprint and checksums of its own.")
    tokenizer = None if options.tokenizer is None else open_tokenizer(options.tokenizer)
    identity = corpus.tokenizer if tokenizer is None else tokenizer.identity
    width = 2 ** (8 * corpus.dtype.itemsize)
    vocab_size = identity.vocab_size if identity else options.vocab_size or corpus.vocab_size or width
    num_bytes = sum(path.stat().st_size for path in corpus.files)
    with Progress("refer", num_bytes + corpus.num_tokens * corpus.dtype.itemsize) as progress:
        largest = _largest(corpus, vocab_size, progress)
        digests = []
        for path, digest in zip(corpus.files, local.run(_digest, corpus.files, options.workers), strict=True):
            digests.append(digest)
            progress.add(path.stat().st_size, 0, 0)
    how = {"layout": options.layout, "dtype": options.dtype, "boundaries": options.boundaries}
    write_reference(
        options.destination, source, corpus, how=how, tokenizer=identity, vocab_size=vocab_size, digests=digests
    )
    again = nc.open_corpus(options.destination)
    return {
        "path": str(options.destination),
        "source": options.source,
        "documents": again.num_documents,
        "tokens": again.num_tokens,
        "files": len(corpus.files),
        "bytes": num_bytes,
        "fingerprint": again.fingerprint,
        "why_dtype": why_dtype(again.tokenizer, vocab_size),
        "largest_id": largest,
        "notes": list(corpus.notes),
    }


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    return [
        f"{report['path']}: refers to {report['files']:,} files of {report['bytes']:,} bytes: {report['documents']:,} documents, {report['tokens']:,} tokens",
        f"  fingerprint {report['fingerprint']}",
        f"the ids: {report['why_dtype']}; the largest that occurs is {report['largest_id']:,}",
        *report["notes"],
        "nothing was copied: open the reference as a corpus, and keep it where it is in relation to the files",
    ]


def _largest(corpus: nc.Corpus, vocab_size: int, progress: Progress) -> int:
    """Return the largest id, −1 where there is none; raise ValueError for one outside of the vocabulary."""
    largest = -1
    for start in range(0, corpus.num_tokens, _BLOCK_TOKENS):
        tokens = corpus.tokens(start, min(start + _BLOCK_TOKENS, corpus.num_tokens))
        largest = max(largest, int(tokens.max()))
        if largest >= vocab_size:
            at = start + int((tokens >= vocab_size).argmax())
            raise ValueError(
                f"token {at:,} is the id {int(tokens[at - start]):,}, outside of the vocabulary of {vocab_size:,} ids: give a larger --vocab-size, with "
                "added tokens, or the right --tokenizer."
            )
        progress.add(tokens.nbytes, 0, len(tokens))
    return largest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return digest_of(file)
