"""dolma's and OLMo's ``.npy`` files, which have no header despite their name, read in place: one, or a folder of them in the order of their names.

    X.npy                  ids to the end of the file (little-endian): u8, u16, u32 or u64, which their makers keep in a configuration elsewhere
    X.csv.gz               documents: start, end, … a line, in tokens, half-open; the columns after these two are left out
    labels_mask_part_N.npy beside token_ids_part_N.npy: one byte a token, 1 where it is trained on → ``token.loss_mask``

The width is told by the last end or by the size of the mask: times 1, 2, 4 or 8 it is the size of the ``.npy``, which only one of the four can be; a
dtype that is given must agree. Without either, dtype is asked for. Documents must follow each other without a gap and end where the file ends.
Without ``.csv.gz`` the boundary rules of headerless files are asked for, which OLMo-core's own readers go by too. A file that begins with NumPy's
magic is no such file. All files of a folder have one width, and all of them or none have a ``.csv.gz`` and a mask.

Opening reads the ``.csv.gz`` as streams, a second or two for a million documents, and holds 8 bytes a document in memory: so it is in each process that
opens the corpus. Where that is too much, convert it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus
from neutral_core.format.file_bytes import FileBytes
from neutral_core.format.offsets import ArrayOffsets
from neutral_core.legacy.beside import Documents, check_all_or_none, documents_by_rule, part_of
from neutral_core.legacy.boundaries import CHOICES
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.joined import join
from neutral_core.legacy.layout import Layout, Request, first_bytes

_WIDTHS = (1, 2, 4, 8)
_NUMPY = b"\x93NUMPY"
_TOKENS, _MASK = "token_ids_part_", "labels_mask_part_"
_BLOCK = 1 << 16  # bytes, and the most that a line has
_MOST_LINES = 100  # of a row
_SPARE_ROWS = 1 << 10


def open_olmo(request: Request) -> Corpus:
    """Open a headerless ``.npy``, or a folder of them, in place.

    Raises:
        ValueError: dtype or boundary rule are needed and not given, or given and the files say otherwise.
        FormatError: for every way in which the files can contradict each other; the message names file, line, found and expected.
    """
    paths = _paths(request.path)
    if not paths:
        raise FileNotFoundError(f"{request.path}: there is no *.npy in it.")
    if request.path.is_dir():
        _refuse_strays(request.path)
    for path in paths:
        _refuse_numpy(path)
    listed = check_all_or_none([(path, _csv_of(path)) for path in paths])
    pairs = [(path, mask) for path in paths if (mask := _mask_of(path)) is not None]
    masks = dict(pairs) if check_all_or_none(pairs) else {}
    if listed and request.boundaries not in (None, "index"):
        raise ValueError(
            f"{paths[0]}: boundaries is {request.boundaries!r}, but {_csv_of(paths[0]).name} stores its documents: leave it out."
        )
    tokens = [FileBytes(path, path.stat().st_size, request.access) for path in paths]
    tables = [_read_offsets(_csv_of(file.path), file.num_bytes) for file in tokens] if listed else []
    told = {path: _Told(mask, mask.stat().st_size) for path, mask in masks.items()}
    told |= {path: _Told(_csv_of(path), int(table[-1])) for path, table in zip(paths, tables, strict=False)}
    stored = _stored(request, tokens, told)
    notes: list[str] = []
    if request.dtype is None:
        notes.append(
            f"{paths[0].name}: the ids are {stored.dtype}, because the number of tokens that {next(iter(told.values())).path.name} tells fits the size of "
            "the .npy in this width alone; the file does not say it."
        )
    documents = [_documents(table) for table in tables] or documents_by_rule(tokens, stored, request, notes)
    parts = [
        part_of(file, stored, found, mask=masks.get(file.path)) for file, found in zip(tokens, documents, strict=True)
    ]
    return join(parts, layout="olmo", tokenizer=request.tokenizer, notes=notes)


class _Told(NamedTuple):
    """A file that tells how many tokens the one beside it has."""

    path: Path
    num_tokens: int


def _paths(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob("*.npy") if file.is_file() and not file.name.startswith(_MASK))


def _csv_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".npy") + ".csv.gz")


def _mask_of(path: Path) -> Path | None:
    name = path.name
    return path.with_name(_MASK + name.removeprefix(_TOKENS)) if name.startswith(_TOKENS) else None


def _recognises(path: Path) -> bool:
    if not path.is_dir() and not (path.is_file() and path.suffix == ".npy"):
        return False
    sides = [side for file in _paths(path) for side in (_csv_of(file), _mask_of(file)) if side is not None]
    return any(side.is_file() for side in sides)


def _refuse_numpy(path: Path) -> None:
    if first_bytes(path, len(_NUMPY)) == _NUMPY:
        raise FormatError(
            f"{path}: byte 0: {_NUMPY!r} begins a NumPy .npy file with its header, expected ids without one: open it apart from the others."
        )


def _refuse_strays(folder: Path) -> None:
    """Refuse side files without tokens: without them nothing would say that a file is missing."""
    owners = [(csv_gz, csv_gz.name.removesuffix(".csv.gz") + ".npy") for csv_gz in sorted(folder.glob("*.csv.gz"))]
    owners += [(mask, _TOKENS + mask.name.removeprefix(_MASK)) for mask in sorted(folder.glob(f"{_MASK}*.npy"))]
    for side, owner in owners:
        if not (folder / owner).is_file():
            raise FormatError(
                f"{side}: {owner} is not beside it: the copy was cut short: copy it again, or remove this file."
            )


def _stored(request: Request, tokens: Sequence[FileBytes], told: Mapping[Path, _Told]) -> StoredTokens:
    """Return how ids are stored, the same in all files; asks for it where nothing says it."""
    given = None if request.dtype is None else StoredTokens.asked(request.dtype, request.path)
    widths = {}
    for file in tokens:
        side = told.get(file.path)
        if side is None:
            continue
        fits = [width for width in _WIDTHS if side.num_tokens * width == file.num_bytes]
        if not fits:
            raise FormatError(_why_not(file, side, given))
        if given is not None and given.dtype.itemsize not in fits:
            raise ValueError(
                f"{file.path}: dtype is {given.dtype}, but the file has {file.num_bytes:,} bytes for the {side.num_tokens:,} tokens that {side.path.name} "
                f"counts: ids of {fits[0]} bytes."
            )
        if len(fits) == 1:
            widths[fits[0]] = file.path
    if len(widths) > 1:
        (one, first), (other, second) = list(widths.items())[:2]
        raise FormatError(
            f"{second}: its ids have {other} bytes, but {one} in {first.name}: the files do not belong to one data set: keep those of another one in a "
            "folder of their own."
        )
    if given is not None:
        return given
    if not widths:
        raise ValueError(
            f"{tokens[0].path}: nothing says how wide the ids of its {tokens[0].num_bytes:,} bytes are; give dtype, as the configuration of its maker has "
            "it: uint8, uint16, uint32 or uint64, the narrowest that holds the vocabulary."
        )
    return StoredTokens.of(np.dtype(f"<u{next(iter(widths))}"))


def _why_not(file: FileBytes, side: _Told, given: StoredTokens | None) -> str:
    begins = (
        f"{file.path}: the file has {file.num_bytes:,} bytes, but {side.path.name} counts {side.num_tokens:,} tokens"
    )
    after = 0 if given is None else file.num_bytes - side.num_tokens * given.dtype.itemsize
    if given is not None and after > 0 and after % given.dtype.itemsize == 0:
        return (
            f"{begins}, so {after // given.dtype.itemsize:,} of {given.dtype} are in no document, as OLMo-core leaves a last one without an end of text: to "
            "read them all, move the .csv.gz files away and give boundaries."
        )
    return (
        f"{begins}, and ids of 1, 2, 4 or 8 bytes do not fill it: tokens are in no document, or one of the two was cut short or belongs to another data "
        "set: copy both again."
    )


def _documents(table: npt.NDArray[np.int64]) -> Documents:
    digest = hashlib.sha256(
        table.astype("<i8").tobytes()
    ).hexdigest()  # of the numbers: the file holds the time it was written
    return Documents(ArrayOffsets(table), len(table) - 1, f"csv {digest}")


def _read_offsets(path: Path, num_bytes: int) -> npt.NDArray[np.int64]:
    """Return where documents begin and, last, where they end: int64[documents + 1], tokens; reads the file as a stream.

    Args:
        path: of the ``.csv.gz``.
        num_bytes: of the tokens: no more tokens can there be, nor many more documents.
    """
    offsets, end, most = array("q", [0]), 0, num_bytes + _SPARE_ROWS
    try:
        for first, second in _rows(path):
            if not (first.isdigit() and second.isdigit() and len(first) < 19 and len(second) < 19):  # below 2^63
                raise FormatError(
                    f"{path}: row {len(offsets):,} begins with {first[:30]!r} and {second[:30]!r}, expected two numbers, start,end: it is no list of "
                    "documents."
                )
            start, stop = int(first), int(second)
            if start != end or stop < start:
                raise FormatError(
                    f"{path}: row {len(offsets):,} is a document from token {start:,} to {stop:,}, expected it to begin at {end:,}, where the one before "
                    "ends: documents with gaps between them, or that overlap, are not read."
                )
            if stop > num_bytes or len(offsets) > most:
                raise FormatError(
                    f"{path}: row {len(offsets):,} ends at token {stop:,}, but the file of tokens has {num_bytes:,} bytes: it was cut short or belongs to "
                    "another data set: copy both again."
                )
            offsets.append(stop)
            end = stop
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(
            f"{path}: after row {len(offsets) - 1:,}: {error}: the file is damaged or was cut short: copy it again."
        ) from None
    return np.frombuffer(offsets, dtype=np.int64)


def _rows(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the first two columns of each row, without quotes; later ones may be quoted and hold newlines. Memory is bounded whatever the file holds."""
    with gzip.open(path, "rb") as file:
        lines = _lines(file)
        for line in lines:
            first, _, rest = line.rstrip(b"\r").partition(b",")
            second = rest.partition(b",")[0]
            if b'"' in line:
                first, second = (
                    column[1:-1] if column[:1] == column[-1:] == b'"' else column for column in (first, second)
                )
                _finish(line, lines)
            yield first, second


def _finish(line: bytes, lines: Iterator[bytes]) -> None:
    """Pass over the lines on which a row goes on: it is over when its quotes are even in number."""
    quotes = line.count(b'"')
    for _ in range(_MOST_LINES):
        if quotes % 2 == 0:
            return
        quotes += next(lines, b"").count(b'"')
    raise EOFError("a quoted column does not end")


def _lines(file: gzip.GzipFile) -> Iterator[bytes]:
    """Yield lines without their newlines."""
    rest = b""
    while block := file.read(_BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        if len(rest) > _BLOCK:
            raise EOFError(f"a line has more than {_BLOCK:,} bytes")
    if rest:
        yield rest


LAYOUT = Layout(
    names=("olmo",),
    recognises=_recognises,
    open=open_olmo,
    boundaries=CHOICES,
    takes_dtype=True,
)
