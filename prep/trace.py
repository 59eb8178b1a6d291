"""``millstream trace``: which documents made the rows of a step, from the order's arithmetic alone.

    row of a global batch ──▶ sample ──▶ source, epoch, window ──▶ pieces: document, its tokens [start:stop], the row's columns

Ranges are half-open and counted from 0, as Python's slices are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from neutral_core.batch_sizes import BatchSizes
from neutral_core.cursor import MAX_SAMPLE
from neutral_core.order.trace import TracedPiece
from prep.extras import MissingExtraError
from prep.inspect import origin_of
from prep.tokenizers import Tokenizer, definition_name, open_stored

Int64 = npt.NDArray[np.int64]

_EDGE = 64  # tokens shown of either end of a long text
_NOTES = 5


def report(
    plan: nc.Plan,
    *,
    samples: Sequence[int] | None = None,
    step: int | None = None,
    batch_size: int | None = None,
    rank: tuple[int, int] = (0, 1),
    text: bool = False,
    full: bool = False,
) -> dict[str, Any]:
    """Return what made the rows of a step, or of given samples: plain data, see ``lines_of``.

    Args:
        plan: its corpora opened.
        samples: numbers; or else a ``step``, from 0, of global batches of ``batch_size`` rows.
        rank: (dp_rank, dp_world_size): only the rows of a step that this rank reads.
        text: also the text of each piece, its ids where the tokenizer is not known; ``full``: long ones whole.

    Raises:
        ValueError: the ranks do not divide the batch size, or the step lies beyond the last sample. ExhaustedError: as ``Plan.locate``.
    """
    said: dict[str, Any] = {"fingerprint": plan.fingerprint}
    if step is None:
        assert samples is not None
        rows, numbers = None, _checked(samples)
    else:
        assert batch_size is not None
        rows, numbers = rows_of_step(plan, step, batch_size, *rank)
        said |= {"step": step, "batch_size": batch_size, "dp_rank": rank[0], "dp_world_size": rank[1]}
    texts = Texts(full=full)
    skipped = plan.skips.skipped(numbers).tolist()
    found: list[dict[str, Any]] = []
    for index, row in enumerate(plan.trace(numbers)):
        corpus = plan.sources[row.source_index].corpus
        found.append(
            {
                "row": None if rows is None else int(rows[index]),
                "sample": row.sample,
                "skipped": skipped[index],
                "source": row.source,
                "epoch": row.epoch,
                "window": row.window,
                "pieces": [
                    {
                        "column": piece.column,
                        **place_of(corpus, piece.document),
                        "start": piece.start,
                        "stop": piece.stop,
                        **(texts.of(corpus, tokens_of(corpus, piece)) if text else {}),
                    }
                    for piece in row.pieces
                ],
            }
        )
    return {**said, "rows": found, "notes": texts.notes}


def rows_of_step(plan: nc.Plan, step: int, batch_size: int, dp_rank: int, dp_world_size: int) -> tuple[Int64, Int64]:
    """Return (rows of the global batch, samples), int64 each, that a rank reads in a step, as the loader does."""
    BatchSizes(batch_size, dp_world_size, plan.skips.place_of)  # refuses as the loader does
    place = _first_place(plan, step, batch_size)
    share = batch_size // dp_world_size
    rows = np.arange(dp_rank * share, (dp_rank + 1) * share, dtype=np.int64)
    return rows, plan.skips.samples_at(place + rows)


def end_of_step(plan: nc.Plan, step: int, batch_size: int) -> int:
    """Return the sample behind the last one of a step."""
    last = np.array([_first_place(plan, step, batch_size) + batch_size - 1], dtype=np.int64)
    return int(plan.skips.samples_at(last)[0]) + 1


def _checked(samples: Sequence[int]) -> Int64:
    if max(samples) >= MAX_SAMPLE:
        raise IndexError(f"sample {max(samples):,} lies beyond the last one, 2^62 - 1.")
    return np.array(samples, dtype=np.int64)


def _first_place(plan: nc.Plan, step: int, batch_size: int) -> int:
    place = step * batch_size
    if place + batch_size > plan.skips.num_places:
        raise ValueError(f"step {step:,} of {batch_size:,} rows lies beyond the last sample, 2^62 - 1.")
    return place


def place_of(corpus: nc.Corpus, document: int) -> dict[str, Any]:
    """Return where a document is: its number, its shard's file, and the file and line that it came from, where they are recorded."""
    shard = int(np.searchsorted(corpus.first_document, document, side="right")) - 1
    found: dict[str, Any] = {"document": document, "shard": _path_of(corpus, shard).name}
    origin = origin_of(corpus, document)
    if origin is not None:
        found["path"], found["line"] = origin
    return found


def tokens_of(corpus: nc.Corpus, piece: TracedPiece) -> npt.NDArray[Any]:
    """Return the tokens of a piece, and no others of its document."""
    shard = corpus.shards[piece.shard]
    begin = int(shard.offsets().at(np.array([piece.document - int(corpus.first_document[piece.shard])]))[0])
    return shard.read(begin + piece.start, begin + piece.stop)


class Texts:
    """Tokens as text, by the tokenizers stored beside the corpora, each opened once.

    Args:
        full: show long text whole, instead of its two ends.

    Attributes:
        notes: sentences: which sources are shown as ids, and why.
    """

    def __init__(self, *, full: bool) -> None:
        self.full = full
        self.notes: list[str] = []
        self._tokenizers: dict[int, Tokenizer | None] = {}

    def of(self, corpus: nc.Corpus, tokens: npt.NDArray[Any]) -> dict[str, Any]:
        """Return ``text``, or ``ids`` where the tokenizer is not known; ``tokens_left_out`` of the middle of a long one."""
        tokenizer = self.tokenizer(corpus)
        left_out = 0 if self.full else max(len(tokens) - 2 * _EDGE, 0)
        ends = [tokens[:_EDGE], tokens[-_EDGE:]] if left_out else [tokens]
        left = {"tokens_left_out": left_out} if left_out else {}
        if tokenizer is None:
            return {"ids": np.concatenate(ends).tolist(), **left}
        return {"text": f" [… {left_out:,} tokens …] ".join(tokenizer.decode(each) for each in ends), **left}

    def tokenizer(self, corpus: nc.Corpus) -> Tokenizer | None:
        """Return what decodes a corpus, or None, with a note."""
        if id(corpus) not in self._tokenizers:
            self._tokenizers[id(corpus)] = self._open(corpus)
        return self._tokenizers[id(corpus)]

    def _open(self, corpus: nc.Corpus) -> Tokenizer | None:
        path = _path_of(corpus, 0)
        if corpus.tokenizer is None:
            self.notes.append(f"{path}: which tokenizer made its ids is not recorded: they have no text.")
            return None
        try:
            return open_stored(path if path.is_dir() else path.parent, corpus.tokenizer)
        except FileNotFoundError:
            self.notes.append(f"{path}: its ids have no text: {definition_name(corpus.tokenizer)} is not beside it.")
        except (nc.FormatError, MissingExtraError) as error:
            self.notes.append(f"{path}: its ids have no text: {error}")
        return None


def _path_of(corpus: nc.Corpus, shard: int) -> Path:
    """Return the path of a shard; of a legacy data set, what it was opened by."""
    path = getattr(corpus.shards[shard], "path", None) if corpus.shards else None
    return Path(path if path is not None else corpus.reopen[1][0] if corpus.reopen else "memory")


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    lines = []
    if "step" in report:
        rank = f", those of rank {report['dp_rank']}/{report['dp_world_size']}" if report["dp_world_size"] > 1 else ""
        lines.append(f"step {report['step']:,} of {report['batch_size']:,} rows{rank}:")
    for row in report["rows"]:
        number = "" if row["row"] is None else f"row {row['row']:,}, "
        skipped = " (skipped: no step serves it)" if row["skipped"] else ""
        source = f"source {row['source']!r}, " if row["source"] else ""
        lines.append(
            f"{number}sample {row['sample']:,}{skipped}: {source}epoch {row['epoch']:,}, window {row['window']:,}"
        )
        for piece in row["pieces"]:
            end = piece["column"] + piece["stop"] - piece["start"]
            lines.append(f"  [{piece['column']}:{end}] {said_of(piece)}, tokens [{piece['start']}:{piece['stop']}]")
            lines.extend(text_lines(piece))
    return [*lines, *note_lines(report["notes"])]


def note_lines(notes: Sequence[str]) -> list[str]:
    """Return the first notes as lines, and how many more there are."""
    more = [f"note: … and {len(notes) - _NOTES:,} more notes (--json has all)"] if len(notes) > _NOTES else []
    return [*(f"note: {note}" for note in notes[:_NOTES]), *more]


def said_of(place: Mapping[str, Any]) -> str:
    """Return a document, its shard and origin as text."""
    origin = f", from {place['path']}:{place['line']}" if "path" in place else ""
    return f"document {place['document']:,} of {place['shard']}{origin}"


def text_lines(piece: Mapping[str, Any]) -> list[str]:
    """Return the line with a piece's text or ids, where there is one."""
    if "text" in piece:
        return [f"      {piece['text']!r}"]
    if "ids" not in piece:
        return []
    left_out = f" (without {piece['tokens_left_out']:,} in the middle)" if "tokens_left_out" in piece else ""
    return [f"      ids {piece['ids']}{left_out}"]
