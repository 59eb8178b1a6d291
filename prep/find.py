"""``millstream trace --find``: at which samples and steps so far a document was seen, by the inverse of the order; a text is first searched for.

A document costs what is found, whatever the size of the corpus. A text is searched in every document of the plan's sources: as ids where each
id is a byte or a character, elsewhere in the decoded documents, because the ids of a text depend on what stands beside it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.format.shard_like import ShardLike
from prep.progress import Progress
from prep.tokenizers import Tokenizer
from prep.trace import Texts, note_lines, place_of, said_of, text_lines

Int64 = npt.NDArray[np.int64]
Span = tuple[int, int]

_MOST_EPOCHS = 1 << 22  # a document is seen in each of them
_CHUNK = 1 << 22  # tokens searched at a time
_PIECE = 1 << 15  # tokens decoded at a time
_DOCUMENTS = 1 << 16  # offsets held at a time
_TRACED = 1 << 12
_CONTEXT = 32  # tokens shown on either side of a text
_SHOWN = 20


def find(
    plan: nc.Plan,
    what: str,
    stop: int,
    *,
    batch_size: int | None = None,
    max_documents: int = 10,
    text: bool = False,
    full: bool = False,
) -> dict[str, Any]:
    """Return in which samples before ``stop`` a document, or the documents that hold a text, were seen: plain data, see ``lines_of``.

    Args:
        plan: its corpora opened.
        what: ``SOURCE:NUMBER``, or ``NUMBER`` in a plan of one source: a document's number in its corpus; anything else is a text.
        stop: samples 0 … stop − 1 are searched for.
        batch_size: rows of a global batch, for steps and rows; None: samples alone.
        max_documents: of a text: ends the search.
        text: also the text of the documents, or around what was found; ``full``: long ones whole.

    Of a text its first place in each document counts, and samples are those with at least one of its tokens.

    Raises:
        IndexError: there is no such document. ValueError: the text is empty, or no source can be searched for it.
        ExhaustedError: the run cannot get to ``stop``.
    """
    plan.counts(stop)  # refuses what is no number of samples
    plan.check_end(stop)
    texts = Texts(full=full)
    said = {"fingerprint": plan.fingerprint, "find": what, "num_samples": stop, "batch_size": batch_size}
    document = document_of(plan, what)
    if document is not None:
        found = [_seen(plan, *document, stop, batch_size, None, texts if text else None)]
        return {**said, "understood_as": "document", "documents": found, "complete": True, "notes": texts.notes}
    if not what:
        raise ValueError("--find is empty: give SOURCE:NUMBER, or a text.")
    hits = _hits(plan, what, texts)
    found = [
        _seen(plan, source, number, stop, batch_size, span, texts if text else None)
        for source, number, span in islice(hits, max_documents)
    ]
    notes = [*_meant(plan, what), *texts.notes]
    # As many as were asked for: whether there are more was not looked at.
    complete = len(found) < max_documents
    return {**said, "understood_as": "text", "documents": found, "complete": complete, "notes": notes}


def document_of(plan: nc.Plan, what: str) -> tuple[int, int] | None:
    """Return (index of the source, document) where ``what`` names one, else None."""
    name, colon, number = what.rpartition(":")
    if not number.isdecimal():
        return None
    if colon and name in plan.names:
        return plan.names.index(name), int(number)
    return (0, int(number)) if not colon and len(plan.sources) == 1 else None


def _meant(plan: nc.Plan, what: str) -> list[str]:
    """Return a note where a text looks like a document."""
    name, colon, number = what.rpartition(":")
    if not number.isdecimal() or (colon and (not name or any(letter.isspace() for letter in name))):
        return []
    near = difflib.get_close_matches(name, plan.names, 1) if colon else []
    meant = f"did you mean {near[0]}:{number}?" if near else f"a document is SOURCE:NUMBER, such as {plan.names[0]}:0."
    return [f"{what!r} names no source of the plan, so it was taken for a text; {meant}"]


def _seen(
    plan: nc.Plan, source: int, document: int, stop: int, batch_size: int | None, span: Span | None, texts: Texts | None
) -> dict[str, Any]:
    epochs = int(plan.counts(stop)[source]) // int(plan.num_windows[source])
    if epochs > _MOST_EPOCHS:
        raise ValueError(
            f"source {plan.names[source]!r} ends {epochs:,} epochs before sample {stop:,}, and each document is seen in each: ask about fewer samples."
        )
    samples = plan.find(source, document, stop=stop)
    if span is not None:
        samples = _holding(plan, samples, document, span)
    located = plan.locate(samples)
    corpus = plan.sources[source].corpus
    begin, end = corpus.document_offsets(document, document + 1).tolist()
    start, stop = span or (0, end - begin)
    low, high = (0, end - begin) if span is None else (max(start - _CONTEXT, 0), min(stop + _CONTEXT, end - begin))
    return {
        "source": plan.names[source],
        **place_of(corpus, document),
        "tokens": end - begin,
        "start": start,
        "stop": stop,
        **({} if texts is None else texts.of(corpus, corpus.tokens(begin + low, begin + high))),
        "samples": [
            {"sample": sample, **_step(plan, sample, batch_size), "epoch": epoch, "window": window}
            for sample, epoch, window in zip(
                samples.tolist(), located.epoch.tolist(), located.window.tolist(), strict=True
            )
        ],
    }


def _step(plan: nc.Plan, sample: int, batch_size: int | None) -> dict[str, int]:
    if batch_size is None:
        return {}
    step, row = divmod(plan.skips.place_of(sample), batch_size)
    return {"step": step, "row": row}


def _holding(plan: nc.Plan, samples: Int64, document: int, span: Span) -> Int64:
    """Return those of a document's samples whose rows have at least one token of a span of it."""
    kept = [
        row.sample
        for first in range(0, len(samples), _TRACED)
        for row in plan.trace(samples[first : first + _TRACED])
        if any(piece.document == document and piece.start < span[1] and piece.stop > span[0] for piece in row.pieces)
    ]
    return np.array(kept, dtype=np.int64)


def _hits(plan: nc.Plan, text: str, texts: Texts) -> Iterator[tuple[int, int, Span]]:
    """Yield (source, document, tokens of the document that hold the text), source by source."""
    searched = [(index, source) for index, source in enumerate(plan.sources) if texts.tokenizer(source.corpus)]
    if not searched:
        raise ValueError(f"no source can be searched for a text: {' '.join(texts.notes)}")
    num_bytes = sum(source.num_tokens * source.corpus.dtype.itemsize for _, source in searched)
    with Progress("find", num_bytes) as progress:
        for index, source in searched:
            tokenizer = texts.tokenizer(source.corpus)
            assert tokenizer is not None
            for document, span in _search(source, tokenizer, text, progress):
                yield index, document, span


def _search(source: nc.Source, tokenizer: Tokenizer, text: str, progress: Progress) -> Iterator[tuple[int, Span]]:
    corpus = source.corpus
    pattern = _pattern(tokenizer, text, corpus.dtype)
    for number, shard in enumerate(corpus.shards):
        first = int(corpus.first_document[number])
        low = max(source.documents[0] - first, 0)
        high = min(source.documents[1] - first, shard.num_documents)
        if low >= high:
            continue
        if pattern is None:
            found = _decoded(shard, low, high, tokenizer, text, progress)
        else:
            found = _ids(shard, low, high, pattern, progress)
        for document, span in found:
            yield first + document, span


def _pattern(tokenizer: Tokenizer, text: str, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return the ids that a text has wherever it stands, none where no document can hold it; or None where its ids depend on what is beside it."""
    if tokenizer.identity.kind not in ("byte", "char"):
        return None
    try:
        return tokenizer.encode([text])[0].astype(dtype)
    except ValueError:  # a character that occurs nowhere
        return np.empty(0, dtype=dtype)


def _ids(
    shard: ShardLike, low: int, high: int, pattern: npt.NDArray[Any], progress: Progress
) -> Iterator[tuple[int, Span]]:
    """Yield the documents of a shard that hold a run of ids, with the first place of it."""
    offsets = shard.offsets()
    at, end = offsets.at(np.array([low, high])).tolist()
    while at < end:
        chunk = shard.read(at, min(at + _CHUNK + len(pattern), end)) if len(pattern) else pattern
        place = _place(chunk, pattern)
        following = at + _CHUNK
        if place is not None:
            begin, stop = at + place, at + place + len(pattern)
            document = int(offsets.find(np.array([begin]))[0])
            start, following = offsets.at(np.array([document, document + 1])).tolist()
            if stop <= following:
                yield document, (begin - start, stop - start)
            else:  # it runs on into the next document
                following = begin + 1
        following = min(following, end)
        progress.add((following - at) * pattern.itemsize, 0, following - at)
        at = following


def _place(tokens: npt.NDArray[Any], pattern: npt.NDArray[Any]) -> int | None:
    data, wanted = tokens.tobytes(), pattern.tobytes()
    at = data.find(wanted) if wanted else -1
    while at >= 0 and at % tokens.itemsize:
        at = data.find(wanted, at + 1)
    return at // tokens.itemsize if at >= 0 else None


def _decoded(
    shard: ShardLike, low: int, high: int, tokenizer: Tokenizer, text: str, progress: Progress
) -> Iterator[tuple[int, Span]]:
    """Yield the documents of a shard whose text holds a text, with the tokens that make its first place."""
    overlap = len(text.encode("utf-8", errors="surrogatepass")) + 8  # a token is a byte at least
    for first in range(low, high, _DOCUMENTS):
        last = min(first + _DOCUMENTS, high)
        edges = shard.offsets().at(np.arange(first, last + 1)).tolist()
        for number, (begin, end) in enumerate(pairwise(edges)):
            for at in range(begin, end, _PIECE):
                ids = shard.read(at, min(at + _PIECE + overlap, end))
                progress.add(min(_PIECE, end - at) * ids.itemsize, int(at == begin), min(_PIECE, end - at))
                if text in tokenizer.decode(ids):
                    start, stop = _narrow(tokenizer, ids, text)
                    yield first + number, (at - begin + start, at - begin + stop)
                    break


def _narrow(tokenizer: Tokenizer, ids: npt.NDArray[Any], text: str) -> Span:
    """Return a run of ids, as short as bisection makes it, whose text holds a text that the text of all holds."""
    without, stop = 0, len(ids)
    while stop - without > 1:
        middle = (without + stop) // 2
        if text in tokenizer.decode(ids[:middle]):
            stop = middle
        else:
            without = middle
    start, without = 0, stop
    while without - start > 1:
        middle = (start + without) // 2
        if text in tokenizer.decode(ids[middle:stop]):
            start = middle
        else:
            without = middle
    return start, stop


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    what, stop, count = report["find"], report["num_samples"], len(report["documents"])
    if report["understood_as"] == "document":
        lines = []
    elif not count:
        lines = [f"the text {what!r} is in no document that was searched"]
    else:
        more = "" if report["complete"] else "; there may be more (--max-documents)"
        lines = [f"the text {what!r} is in {count:,} document{'s' if count > 1 else ''}{more}"]
    for entry in report["documents"]:
        source = f" (source {entry['source']!r})" if entry["source"] else ""
        part = (
            ""
            if report["understood_as"] == "document"
            else f", the text in its tokens [{entry['start']}:{entry['stop']}]"
        )
        lines.append(f"{said_of(entry)}{source}, {entry['tokens']:,} tokens{part}")
        lines.extend(text_lines(entry))
        lines.append(f"  seen in {len(entry['samples']):,} of samples 0 … {stop - 1:,}")
        for seen in entry["samples"][:_SHOWN]:
            step = f", step {seen['step']:,}, row {seen['row']:,}" if "step" in seen else ""
            lines.append(f"    sample {seen['sample']:,}{step}: epoch {seen['epoch']:,}, window {seen['window']:,}")
        if len(entry["samples"]) > _SHOWN:
            lines.append(f"    … and {len(entry['samples']) - _SHOWN:,} more (--json names all)")
    return [*lines, *note_lines(report["notes"])]
