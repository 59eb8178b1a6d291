"""Writing a corpus: documents stream into shards in ``<directory>/.partial``, which become a corpus in one step (publish).

A reader that comes too early gets FileNotFoundError. What a killed process leaves behind is found and removed by the next one; two writers
at once are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.fields import Field
from neutral_core.format.files import remove
from neutral_core.format.manifest import MANIFEST
from neutral_core.format.publish import Workplace, publish, shard_name
from neutral_core.format.shard_writer import Schema, ShardWriter, check_lengths, token_array
from neutral_core.format.tokenizer import TokenizerIdentity

TOKENS_PER_SHARD = 1 << 29


class ShardSeries:
    """Write documents into numbered shards of a folder; a shard is closed before the document that would exceed ``tokens_per_shard``.

    A document is never split; one that is larger than a shard has a shard of its own.
    """

    def __init__(self, folder: Path, schema: Schema, tokens_per_shard: int = TOKENS_PER_SHARD) -> None:
        if type(tokens_per_shard) is not int or tokens_per_shard < 1:
            raise ValueError(f"tokens_per_shard is {tokens_per_shard!r}, expected a positive integer.")
        self.folder = folder
        self.schema = schema
        self.tokens_per_shard = tokens_per_shard
        self.paths: list[Path] = []
        self._writer = self._next()

    def add(self, tokens: npt.ArrayLike, fields: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Add one document; see ShardWriter.add."""
        array = token_array(tokens)
        self._make_room(len(array))
        self._writer.add(array, fields)

    def add_many(self, tokens: npt.ArrayLike, lengths: npt.ArrayLike, fields: Mapping[str, Any] | None = None) -> None:
        """Add documents that stand one after another in an array; see ShardWriter.add_many."""
        array = token_array(tokens)
        counts = check_lengths(lengths, len(array), "lengths", "tokens")
        if (
            self._writer.num_tokens + len(array) > self.tokens_per_shard
        ):  # it is cut below: what is wrong as a whole could fit in pieces
            self._writer.check(array, counts, fields)
        ends = np.cumsum(counts)
        first = 0
        while first < len(counts):
            begin = int(ends[first] - counts[first])
            self._make_room(int(counts[first]))
            room = self.tokens_per_shard - self._writer.num_tokens
            last = max(int(np.searchsorted(ends, begin + room, side="right")), first + 1)
            if last - first == len(counts):
                self._writer.add_many(array, counts, fields)
                return
            piece = {name: _part(name, value, counts, first, last) for name, value in (fields or {}).items()}
            self._writer.add_many(array[begin : int(ends[last - 1])], counts[first:last], piece)
            first = last

    def close(self) -> list[Path]:
        """Finish the last shard; return the paths of all, in order."""
        self._writer.close()
        return self.paths

    def abort(self) -> None:
        """Remove the shard that is being written; the finished ones stay."""
        self._writer.abort()

    def _make_room(self, num_tokens: int) -> None:
        if self._writer.num_documents and self._writer.num_tokens + num_tokens > self.tokens_per_shard:
            self._writer.close()
            self._writer = self._next()

    def _next(self) -> ShardWriter:
        writer = ShardWriter(self.folder / shard_name(len(self.paths)), self.schema)
        self.paths.append(writer.path)
        return writer


class CorpusWriter:
    """Write a corpus document by document; use it with ``with``: on a clean exit the corpus is there, else nothing is.

    Args:
        directory: of the corpus; missing or empty.
        vocab_size, tokenizer, fields, provenance: see Schema.
        tokens_per_shard: a shard is closed before the document that would exceed it; documents are never split.

    Raises:
        ValueError: a declaration outside its range, or a document that does not fit the declarations.
        FileExistsError: the directory is not empty.
        BlockingIOError: another process writes there now.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        vocab_size: int,
        tokenizer: TokenizerIdentity | None = None,
        fields: Mapping[str, Field] | None = None,
        provenance: Mapping[str, str] | None = None,
        tokens_per_shard: int = TOKENS_PER_SHARD,
    ) -> None:
        schema = Schema(vocab_size=vocab_size, tokenizer=tokenizer, fields=fields or {}, provenance=provenance or {})
        self.directory = Path(directory)
        self._workplace = Workplace(self.directory)
        try:
            self._remove_moved()
            self._workplace.clear()
            self._series = ShardSeries(self._workplace.path, schema, tokens_per_shard)
        except BaseException:
            self._leave()
            self._workplace.release()
            raise

    def add(self, tokens: npt.ArrayLike, fields: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Add one document; see ShardWriter.add."""
        self._series.add(tokens, fields)

    def add_many(self, tokens: npt.ArrayLike, lengths: npt.ArrayLike, fields: Mapping[str, Any] | None = None) -> None:
        """Add documents that stand one after another in an array; see ShardWriter.add_many."""
        self._series.add_many(tokens, lengths, fields)

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                publish(self.directory, self._series.close())
                remove(self._workplace.path)
        except BaseException:
            kind = BaseException
            raise
        finally:
            if kind is not None:
                self._series.abort()
                self._leave()
            self._workplace.release()

    def _leave(self) -> None:
        """Remove the workplace, and the directory if nothing else is in it."""
        self._remove_moved()
        remove(self._workplace.path)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def _remove_moved(self) -> None:
        """Remove the shards that an interrupted publication moved: without ``.partial`` they would be taken for a corpus."""
        if not (self.directory / MANIFEST).exists():
            for path in self.directory.glob("shard-*.safetensors"):
                remove(path)


def _part(name: str, value: Any, lengths: npt.NDArray[np.int64], first: int, last: int) -> Any:
    """Return the values of documents first … last of a field given for many."""
    kind = name.partition(".")[0]
    if kind == "document":
        return np.asarray(value)[first:last]
    counts = lengths if kind == "token" else np.asarray(value[1])
    start, stop = int(counts[:first].sum()), int(counts[:last].sum())
    return np.asarray(value)[start:stop] if kind == "token" else (np.asarray(value[0])[start:stop], counts[first:last])
