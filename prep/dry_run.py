"""``millstream prepare --dry-run``: what would be read, and an estimate from a sample of what would come of it. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from prep.pieces import Options, batches, task_bytes_of
from prep.readers.documents import Tally
from prep.readers.inputs import EXPANSION, ROWS, Input, Range, cut, find_inputs
from prep.report import why_dtype
from prep.tokenizers import Encoder, Tokenizer, open_tokenizer
from prep.tokenizers.given import GivenEncoder, recorded

_PLACES = 32  # evenly spaced in the inputs, at which something is read
_PLACE_BYTES = 1 << 17


def dry_run(options: Options) -> dict[str, Any]:
    """Return plain data: inputs, bytes and tasks as they are; documents, tokens and bytes of the corpus as estimated from a sample.

    Raises:
        ValueError, FileNotFoundError: what ``prepare`` would raise of the options, or of a document of the sample.
    """
    inputs = find_inputs(options.inputs, options.glob, options.hub)
    tasks = cut(inputs, options.documents, options.task_bytes or task_bytes_of(inputs))
    places = list(_sample(inputs, options))
    tokenizer = _tokenizer(options, places)
    encoder: Encoder = tokenizer if options.ids_key is None else GivenEncoder(tokenizer.identity)
    edges = (tokenizer.identity.eos_id is not None) + (tokenizer.identity.bos_id is not None)
    seen = seen_tokens = seen_documents = 0
    num_tokens = num_documents = 0.0
    for place in places:
        if not place.texts:
            continue
        tokens = int(encoder.encode(place.texts)[1].sum()) + edges * len(place.texts)
        num_tokens += tokens * place.weight
        num_documents += len(place.texts) * place.weight
        seen += sum(_size_of(text) for text in place.texts)
        seen_tokens += tokens
        seen_documents += len(place.texts)
    if options.documents == "file" and all(item.kind == "text" for item in inputs):
        num_documents = len(inputs)  # places in bytes meet large files more often than small ones
    if options.limit is not None and num_documents > options.limit:
        num_tokens *= options.limit / num_documents
        num_documents = options.limit
    width = 1 if tokenizer.identity.vocab_size <= 2**8 else 2 if tokenizer.identity.vocab_size <= 2**16 else 4
    return {
        "files": len(inputs),
        "bytes": sum(item.num_bytes for item in inputs),
        "compressed": sum(bool(item.compression) for item in inputs),
        "tasks": len(tasks),
        "sample_documents": seen_documents,
        "sample_text_bytes": seen,
        "documents": round(num_documents),
        "tokens": round(num_tokens),
        "corpus_bytes": round(num_tokens * width + num_documents * _beside(inputs, options))
        + len(tokenizer.definition or b""),
        "bytes_per_token": seen / seen_tokens if seen_tokens and options.ids_key is None else None,
        "why_dtype": why_dtype(recorded(tokenizer.identity), tokenizer.identity.vocab_size),
        "notes": list(tokenizer.notes),
    }


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    lines = [
        f"{report['files']:,} files, {report['bytes']:,} bytes, {report['tasks']:,} tasks; nothing was written",
        f"about {report['documents']:,} documents, {report['tokens']:,} tokens, {report['corpus_bytes']:,} bytes of corpus",
        f"  from a sample of {report['sample_documents']:,} documents, {report['sample_text_bytes']:,} bytes of text"
        + ("" if report["bytes_per_token"] is None else f", {report['bytes_per_token']:.2f} bytes per token"),
        f"tokens would be stored as {report['why_dtype']}",
        *report["notes"],
    ]
    if report["compressed"]:
        lines.append(
            f"{report['compressed']:,} files are compressed and taken for {EXPANSION} times as much text, which is no more than a guess"
        )
    return lines


def _beside(inputs: Sequence[Input], options: Options) -> float:
    """Return how many bytes are stored beside the tokens of a document: where it begins; its line, its file, and where that begins."""
    names = sum(len(item.name) for item in inputs) / len(inputs)
    return 8 + (16 + names if options.origin else 0)


def _size(item: Input) -> int:
    return item.num_bytes * (EXPANSION if item.compression else 1)


class _Place(NamedTuple):
    """Documents of a place, and how many such places the inputs are taken to have: bytes up to the next place / bytes that were read."""

    texts: list[Any]
    weight: float


def _sample(inputs: Sequence[Input], options: Options) -> Iterator[_Place]:
    """Yield places evenly spaced in the bytes of the inputs."""
    total = sum(_size(item) for item in inputs)
    step = max(total // _PLACES, 1)
    begin = 0
    wanted = 0  # the next place
    for item in inputs:
        size = _size(item)
        from_start = item.compression or item.kind in ROWS or (item.kind == "text" and options.documents == "file")
        while wanted < begin + size:
            if from_start or size <= _PLACE_BYTES:
                covered, texts = _begin_of(item, size, options)
                after = max(wanted + step, begin + size)
            else:
                start = min(wanted - begin, size - _PLACE_BYTES)
                covered = _PLACE_BYTES
                texts = list(_texts(Range(input=item, start=start, stop=start + _PLACE_BYTES), options))
                after = wanted + max(step, _PLACE_BYTES)
            yield _Place(texts, (min(after, total) - wanted) / covered)
            wanted = after
        begin += size


def _begin_of(item: Input, size: int, options: Options) -> tuple[int, list[Any]]:
    """Return how many bytes the first documents of a file stand for, and the documents: of one that has to be read from its start."""
    texts: list[Any] = []
    read = 0
    for text in _texts(Range(input=item), options):
        texts.append(text)
        read += _size_of(text)
        if read >= _PLACE_BYTES:
            return min(read, size), texts  # of compressed text or rows, as if nothing but the texts were stored
    return size, texts


def _texts(part: Range, options: Options) -> Iterator[Any]:
    """Yield the documents of a range: texts, or ids."""
    for batch in batches(part, options, Tally()):
        yield from batch.texts


def _size_of(text: Any) -> int:
    return len(text.encode()) if isinstance(text, str) else int(text.nbytes)


def _tokenizer(options: Options, places: Sequence[_Place]) -> Tokenizer:
    settings = options.tokenizer
    if settings.kind == "char":
        characters = {character for place in places for text in place.texts for character in text}
        settings = replace(settings, characters="".join(sorted(characters)))
    if settings.path is not None:
        Path(settings.path).expanduser().stat()
    return open_tokenizer(settings)
