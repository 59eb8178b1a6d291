"""Writing a shard: documents stream to their final place, checksummed on the way; the file appears under its name complete.

Tokens go straight to the file; everything else waits in unnamed temporary files beside it until the last document. The end of it is:
header written over the space that was left for it, fsync, rename, fsync of the folder. The same documents and declarations give the same
bytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from neutral_core.format.container import CODES, DTYPES, Array, encode, header_size, place
from neutral_core.format.content import FORMAT_VERSION, code_of
from neutral_core.format.fields import Field, arrays_of, check_fields, checksums_of, counted_by, fields_to_json
from neutral_core.format.files import fsync_folder, temporary_path, write_all
from neutral_core.format.spool import BlockSums, Spool
from neutral_core.format.tokenizer import TokenizerIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """What is declared before the first document, and the same for all shards of a corpus.

    Args:
        vocab_size: number of ids, added tokens included, 1 … 2^32: decides the tokens' dtype; a larger id is refused.
        tokenizer: who made the ids, or None where that is not known.
        fields: name → Field.
        provenance: short texts about where the data come from; nothing that differs between two equal runs (no host, path or time).

    Raises:
        ValueError: a value outside its range.
    """

    vocab_size: int
    tokenizer: TokenizerIdentity | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if type(self.vocab_size) is not int or not 1 <= self.vocab_size <= 2**32:
            raise ValueError(f"vocab_size is {self.vocab_size!r}, expected an integer from 1 to 2^32.")
        if self.tokenizer is not None and self.tokenizer.vocab_size != self.vocab_size:
            raise ValueError(
                f"vocab_size is {self.vocab_size:,} but the tokenizer's is {self.tokenizer.vocab_size:,}: give the tokenizer's."
            )
        object.__setattr__(self, "fields", check_fields(self.fields))
        if sum(len(key) + len(value) for key, value in self.provenance.items()) > 1 << 20:
            raise ValueError("provenance holds more than 1 MiB of text: it is written into every shard; shorten it.")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The tokens' dtype: uint8, uint16 or uint32, the narrowest for ``vocab_size``."""
        return np.dtype(DTYPES[code_of(self.vocab_size)][1])

    def metadata(self, num_documents: int, num_tokens: int) -> dict[str, Any]:
        """Return the header's metadata for a shard of that many documents and tokens."""
        return {
            "fields": fields_to_json(self.fields),
            "format_version": FORMAT_VERSION,
            "num_documents": num_documents,
            "num_tokens": num_tokens,
            "provenance": dict(self.provenance),
            "tokenizer": None if self.tokenizer is None else self.tokenizer.to_json(),
            "vocab_size": self.vocab_size,
        }


class ShardWriter:
    """Write one shard; use it with ``with``: on a clean exit the file stands under its name, else nothing does.

    Args:
        path: of the shard; its folder exists.
        schema: what is declared.
        durable: bring it to the disk before it has its name; without, a power cut (no crash of a process) may leave a damaged file under the name.

    Raises:
        FileExistsError: there is such a file already.
    """

    def __init__(self, path: str | os.PathLike[str], schema: Schema, *, durable: bool = True) -> None:
        self.path = Path(path)
        self._durable = durable
        self.schema = schema
        self.num_documents = 0
        self.num_tokens = 0
        if self.path.exists():
            raise FileExistsError(f"{self.path}: there is a file of this name already; a shard is never overwritten.")
        self._size = header_size([*self._arrays({}), checksums_of(0)], schema.metadata(0, 0))
        self._temporary = temporary_path(self.path)
        self._file = open(self._temporary, "xb", buffering=0)  # noqa: SIM115 - closed in _release()
        self._file.seek(self._size)
        self._sums = BlockSums()
        self._spools = {array.name: Spool(self.path.parent) for array in self._arrays({})[1:]}
        for name, spool in self._spools.items():
            if counted_by(name) is not None:
                spool.write(np.zeros(1, dtype="<i8"))

    def add(self, tokens: npt.ArrayLike, fields: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Add one document.

        Args:
            tokens: integers [n], each 0 ≤ id < vocab_size; n may be 0.
            fields: a value for each declared field: [n, *shape] for ``token.``, [*shape] for ``document.``, [any, *shape] for ``ragged.``.

        Raises:
            ValueError: an id outside the vocabulary, or fields other than those declared.
        """
        array = token_array(tokens)
        many: dict[str, Any] = {}
        for name, value in (fields or {}).items():
            item = np.asarray(value)
            if name.startswith("ragged."):
                many[name] = (item, np.array([len(item) if item.ndim else -1]))
            else:
                many[name] = item[None] if name.startswith("document.") else item
        self.add_many(array, np.array([len(array)], dtype=np.int64), many)

    def add_many(self, tokens: npt.ArrayLike, lengths: npt.ArrayLike, fields: Mapping[str, Any] | None = None) -> None:
        """Add documents that stand one after another in an array; nothing is written unless all of it is valid.

        Args:
            tokens: integers [sum of lengths], each 0 ≤ id < vocab_size.
            lengths: integers [n], tokens of each document, ≥ 0.
            fields: for each declared field, of all n documents: [sum of lengths, *shape] for ``token.``, [n, *shape] for ``document.``, a pair
                (items [total, *shape], number of items per document [n]) for ``ragged.``.

        Raises:
            ValueError: an id outside the vocabulary (with document and position), lengths that do not add up, fields other than those declared.
        """
        array, counts, values = self.check(tokens, lengths, fields)
        self._write(np.ascontiguousarray(array, dtype=self.schema.dtype).data.cast("B"))
        self._spools["document_offsets"].write(self.num_tokens + np.cumsum(counts))
        for name, items in values.items():
            self._spools[name].write(items)
        self.num_tokens += len(array)
        self.num_documents += len(counts)

    def check(
        self, tokens: npt.ArrayLike, lengths: npt.ArrayLike, fields: Mapping[str, Any] | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Return what ``add_many`` would write of the same arguments, without writing; raise ValueError as it does."""
        array = token_array(tokens)
        counts = check_lengths(lengths, len(array), "lengths", "tokens")
        self._check_ids(array, counts)
        return array, counts, self._check_fields(fields or {}, len(array), len(counts))

    def close(self) -> None:
        """Finish the file and put it under its name; raise OSError where the disk does not take it."""
        arrays = self._arrays({name: spool.num_items for name, spool in self._spools.items()})
        for array in place([*arrays, checksums_of(0)])[1:-1]:
            if array.name.startswith("padding."):
                self._write(memoryview(bytes(array.num_bytes)))
            else:
                for chunk in self._spools[array.name].chunks():
                    self._write(memoryview(chunk))
        sums = self._sums.finish()
        arrays.append(checksums_of(self._sums.num_bytes))
        header = encode(arrays, self.schema.metadata(self.num_documents, self.num_tokens))
        assert len(header) == self._size
        write_all(self._file, np.array([zlib.crc32(header), *sums], dtype="<u4").tobytes())
        self._file.seek(0)
        write_all(self._file, header)
        if self._durable:
            self.sync()
        self._release()
        os.replace(self._temporary, self.path)
        if self._durable:
            fsync_folder(self.path.parent)

    def sync(self) -> None:
        """Bring to the disk what was written so far, so that ``close`` has less to wait for."""
        os.fsync(self._file.fileno())

    def abort(self) -> None:
        """Remove what was written."""
        self._release()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise

    def _release(self) -> None:
        self._file.close()
        for spool in self._spools.values():
            spool.close()

    def _arrays(self, ragged: Mapping[str, int]) -> list[Array]:
        return arrays_of(
            code_of(self.schema.vocab_size),
            self.schema.fields,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            ragged=ragged,
        )

    def _write(self, data: memoryview) -> None:
        self._sums.update(data)
        write_all(self._file, data)

    def _check_ids(self, tokens: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> None:
        if not len(tokens):
            return
        low = int(tokens.min()) if tokens.dtype.kind == "i" else 0
        if low >= 0 and int(tokens.max()) < self.schema.vocab_size:
            return
        at = int(np.flatnonzero((tokens < 0) | (tokens >= self.schema.vocab_size))[0])
        ends = np.cumsum(lengths)
        document = int(np.searchsorted(ends, at, side="right"))
        position = at - int(ends[document] - lengths[document])
        raise ValueError(
            f"{self.path}: document {self.num_documents + document:,} of the shard, position {position:,}: the id {int(tokens[at]):,} is "
            f"outside of the vocabulary of {self.schema.vocab_size:,} ids: declare a larger vocab_size, with added tokens, or use the right "
            "tokenizer."
        )

    def _check_fields(
        self, values: Mapping[str, Any], num_tokens: int, num_documents: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Return what each spool takes."""
        if set(values) != set(self.schema.fields):
            odd = ", ".join(sorted(set(values) ^ set(self.schema.fields)))
            raise ValueError(
                f"{self.path}: the fields given differ from those declared in {odd}: each document has a value for each field."
            )
        checked = {}
        for name, declared in self.schema.fields.items():
            kind = name.partition(".")[0]
            if kind != "ragged":
                checked[name] = _items(values[name], declared, name, num_tokens if kind == "token" else num_documents)
                continue
            items, lengths = values[name]
            checked[name] = _items(items, declared, name, len(items) if np.ndim(items) else 0)
            counts = check_lengths(lengths, len(checked[name]), f"the numbers of items of {name}", "items")
            if len(counts) != num_documents:
                raise ValueError(f"{name}: {len(counts):,} numbers of items for {num_documents:,} documents.")
            checked[f"{name}.offsets"] = self._spools[name].num_items + np.cumsum(counts)
        return checked


def token_array(tokens: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return ids as a 1-D integer array; raise ValueError for anything else."""
    array = np.asarray(tokens)
    if array.ndim == 1 and array.size == 0:
        return array.astype(np.uint8)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"tokens are {array.dtype} of shape {array.shape}, expected integers in one dimension.")
    return array


def check_lengths(lengths: npt.ArrayLike, total: int, what: str, unit: str) -> npt.NDArray[np.int64]:
    """Return lengths as int64[n]; raise ValueError unless they are 0 or more and add up to ``total``."""
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(f"{what} are {array.dtype} of shape {array.shape}, expected integers in one dimension.")
    counts = array.astype(np.int64)
    if len(counts) and int(counts.min()) < 0:
        raise ValueError(f"{what}[{int(counts.argmin())}] is {int(counts.min())}, expected at least 0.")
    if int(counts.sum()) != total:
        raise ValueError(f"{what} add up to {int(counts.sum()):,} but there are {total:,} {unit}.")
    return counts


def _items(value: Any, declared: Field, name: str, count: int) -> npt.NDArray[Any]:
    """Return a field's items in their stored dtype; refuse what would change by the conversion, float rounding apart."""
    array = np.asarray(value)
    target = np.dtype(DTYPES[CODES[declared.dtype]][1])
    if array.size == 0 and count == 0:
        array = array.reshape(0, *declared.shape).astype(target)
    if array.shape != (count, *declared.shape):
        raise ValueError(f"{name}: shape is {array.shape}, expected {(count, *declared.shape)}.")
    if array.dtype == target:
        return array
    if array.size and not _fits(array, target):
        raise ValueError(f"{name}: {array.dtype} values do not fit the declared dtype {declared.dtype}.")
    return array.astype(target)


def _fits(array: npt.NDArray[Any], target: np.dtype[Any]) -> bool:
    """Say whether values keep their meaning in another dtype: whole numbers exactly, floats rounded but not to infinity."""
    kinds = array.dtype.kind, target.kind
    if np.can_cast(array.dtype, target, "safe"):
        return True
    if kinds == ("f", "f"):
        with np.errstate(over="ignore"):
            return bool(np.all(np.isinf(array) | ~np.isinf(array.astype(target))))
    if kinds[0] not in "iu" or kinds[1] not in "iuf":
        return False
    low, high = int(array.min()), int(array.max())
    if (
        kinds[1] == "f"
    ):  # all whole numbers up to two to the power of the mantissa's bits are exact, and within float16's range
        largest = 2 ** (np.finfo(target).nmant + 1)
        return bool(-largest <= low and high <= largest)
    return int(np.iinfo(target).min) <= low and high <= int(np.iinfo(target).max)
