"""``millstream export``: a corpus becomes files that other tools read: nobody is locked in.

    megatron    PREFIX.bin, PREFIX.idx            Megatron-LM, NeMo, GPT-NeoX: one sequence a document, empty documents without one
    nanogpt     FILE                              bare ids; documents are not stored
    datatrove   FILE.ds, .ds.index, .ds.metadata  and .ds.loss where the corpus has token.loss_mask
    olmo        FOLDER/part-0-00000.npy, .csv.gz  bare ids; with token.loss_mask token_ids_part_0000.npy, .csv.gz and labels_mask_part_0000.npy
    levanter    FOLDER                            a cache, by tensorstore; with token.loss_mask assistant_masks; read back and compared before it appears

All files are written under temporary names and renamed at the end, the one that makes the others readable last. What a layout cannot hold is said.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

import neutral_core as nc
from prep.foreign import levanter_cache
from prep.foreign.ragged import stretches_of
from prep.progress import Progress
from prep.temporary_files import TemporaryFiles

_TOKENS = 1 << 20  # read at a time
_RELEASED_TOKENS = 1 << 24  # read between two releases of pages
_DOCUMENTS = 1 << 16
_MASK = "token.loss_mask"
_MEGATRON_CODES = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What is asked of ``export``.

    Attributes:
        source: opened.
        destination: prefix, file or folder, as the layout has it; its files must not be there yet.
        layout: one of LAYOUTS.
        dtype: of the ids in the files; None: the layout's own choice for the corpus' vocabulary.
    """

    source: nc.Corpus
    destination: Path
    layout: str
    dtype: str | None = None


def export(options: Options) -> dict[str, Any]:
    """Export and return the report: plain data, see ``lines_of``.

    Raises:
        ValueError: the layout or dtype is unknown, or an id or a document does not fit (with its place).
        FileExistsError: a file is there already. FormatError: the source is damaged.
    """
    layout = LAYOUTS[options.layout]
    corpus = options.source
    dtype = _dtype(options, layout)
    notes = [
        f"{name} is left out: the layout has no place for it." for name in corpus.fields if name not in layout.fields
    ]
    with contextlib.ExitStack() as stack:
        files = TemporaryFiles(stack)
        with Progress("export", corpus.num_tokens * dtype.itemsize) as progress:
            layout.write(_Job(corpus, options.destination, dtype, files, progress, notes))
        if layout.compare is not None:
            with Progress("compare", corpus.num_tokens * dtype.itemsize) as progress:
                layout.compare(files.temporary(options.destination), corpus, progress)
        names = files.publish()
    return {
        "layout": options.layout,
        "files": [str(name) for name in names],
        "documents": corpus.num_documents,
        "tokens": corpus.num_tokens,
        "dtype": str(dtype),
        "notes": notes,
    }


def lines_of(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a person."""
    return [
        f"{report['documents']:,} documents, {report['tokens']:,} tokens as {report['dtype']}:",
        *(f"  {name}" for name in report["files"]),
        *report["notes"],
    ]


@dataclass(frozen=True, slots=True)
class _Job:
    """A corpus on its way into files."""

    corpus: nc.Corpus
    destination: Path
    dtype: np.dtype[Any]
    files: TemporaryFiles
    progress: Progress
    notes: list[str]

    def offsets(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield where documents begin and the last of them ends, some thousands at a time."""
        for start in range(0, self.corpus.num_documents, _DOCUMENTS):
            yield self.corpus.document_offsets(start, min(start + _DOCUMENTS, self.corpus.num_documents))

    def tokens(self) -> Iterator[npt.NDArray[Any]]:
        """Yield all ids, some at a time; raise ValueError for one that does not fit."""
        most = np.iinfo(self.dtype).max
        for start in range(0, self.corpus.num_tokens, _TOKENS):
            tokens = self.corpus.tokens(start, min(start + _TOKENS, self.corpus.num_tokens))
            if int(tokens.max()) > most:
                at = int(np.flatnonzero(tokens > most)[0])
                raise ValueError(
                    f"token {start + at:,} is the id {int(tokens[at]):,}, which {self.dtype} cannot hold: give a wider --dtype, if the layout has one."
                )
            yield np.ascontiguousarray(tokens, dtype=self.dtype)
            self.progress.add(len(tokens) * self.dtype.itemsize, 0, len(tokens))
            if start % _RELEASED_TOKENS == 0:
                self.corpus.release()

    def mask(self) -> Iterator[npt.NDArray[np.bool_]]:
        """Yield for all tokens, some at a time, whether they are trained on."""
        first = 0
        for offsets in self.offsets():
            for start, stop in stretches_of(offsets, _RELEASED_TOKENS):
                yield np.ascontiguousarray(
                    self.corpus.field_items(_MASK, first + start, first + stop).items, dtype=bool
                )
                self.corpus.release()
            first += len(offsets) - 1

    def write_tokens(self, file: BinaryIO) -> None:
        """Write all ids."""
        for tokens in self.tokens():
            file.write(tokens.data)

    def write_mask(self, file: BinaryIO) -> None:
        """Write one byte a token: 1 where it is trained on."""
        for mask in self.mask():
            file.write(mask.data)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a corpus is written.

    Attributes:
        write: writes all files.
        dtypes: of ids that it can hold.
        fields: that it can hold.
        compare: reads the temporary folder back and raises FormatError where it differs from the corpus.
    """

    write: Callable[[_Job], None]
    dtypes: tuple[str, ...]
    fields: tuple[str, ...] = ()
    compare: Callable[[Path, nc.Corpus, Progress], None] | None = None


def _megatron(job: _Job) -> None:
    name = str(job.destination)
    prefix = name[:-4] if name.endswith((".idx", ".bin")) else name
    index, tokens = job.files.create(Path(prefix + ".idx")), job.files.create(Path(prefix + ".bin"))
    count = sum(int(np.count_nonzero(np.diff(offsets))) for offsets in job.offsets())
    index.write(b"MMIDIDX\0\0" + struct.pack("<QB", 1, _MEGATRON_CODES[str(job.dtype)]))
    index.write(struct.pack("<QQ", count, job.corpus.num_documents + 1))
    document = 0
    for offsets in job.offsets():
        lengths = np.diff(offsets)
        if len(lengths) and int(lengths.max()) >= 2**31:
            at = document + int(lengths.argmax())
            raise ValueError(
                f"document {at:,} has {int(lengths.max()):,} tokens, which the layout's int32 lengths cannot hold: at most 2^31 - 1."
            )
        index.write(lengths[lengths > 0].astype("<i4").data)
        document += len(lengths)
    for offsets in job.offsets():
        index.write((offsets[:-1][np.diff(offsets) > 0] * job.dtype.itemsize).astype("<i8").data)
    sequences = 0
    index.write(struct.pack("<q", 0))
    for offsets in job.offsets():
        ends = sequences + np.cumsum(np.diff(offsets) > 0)
        index.write(ends.astype("<i8").data)
        sequences = int(ends[-1])
    if count < job.corpus.num_documents:
        job.notes.append(
            f"{job.corpus.num_documents - count:,} empty documents have no sequence; the document index repeats an entry for each."
        )
    job.write_tokens(tokens)


def _nanogpt(job: _Job) -> None:
    job.write_tokens(job.files.create(job.destination))
    tokenizer = job.corpus.tokenizer
    read = f"--dtype {job.dtype} --boundaries none"
    if tokenizer is not None and tokenizer.eos_id is not None and _all_end_with(job, tokenizer.eos_id):
        read = f"--dtype {job.dtype} --boundaries eos:{tokenizer.eos_id}"
    elif job.corpus.num_documents > 1:
        job.notes.append(
            f"where {job.corpus.num_documents:,} documents begin is not stored, and no end-of-text id marks it: they cannot be found again."
        )
    job.notes.append(f"nothing in the file says what it holds: read it with {read}.")


def _datatrove(job: _Job) -> None:
    name = str(job.destination)
    path = Path(name if name.endswith(".ds") else name + ".ds")
    index, tokens = job.files.create(Path(f"{path}.index")), job.files.create(path)
    for offsets in job.offsets():
        index.write(offsets[1:].astype("<u8").data)
    job.write_tokens(tokens)
    if _MASK in job.corpus.fields:
        job.write_mask(job.files.create(Path(f"{path}.loss")))
    tokenizer = "Unknown Tokenizer" if job.corpus.tokenizer is None else job.corpus.tokenizer.name.replace("|", "/")
    lines = (f"{tokenizer}|{job.dtype.itemsize}", str(job.corpus.num_tokens), _human(job.corpus.num_tokens))
    job.files.create(Path(f"{path}.metadata")).write("\n".join(lines).encode())


def _olmo(job: _Job) -> None:
    masked = _MASK in job.corpus.fields
    name = "token_ids_part_0000" if masked else "part-0-00000"
    documents = job.files.create(job.destination / f"{name}.csv.gz")
    tokens = job.files.create(job.destination / f"{name}.npy")
    with gzip.GzipFile(filename="", mode="wb", fileobj=documents, mtime=0) as packed:
        for offsets in job.offsets():
            lines = io.StringIO()
            for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                lines.write(f"{start},{end}\n")
            packed.write(lines.getvalue().encode())
    job.write_tokens(tokens)
    if masked:
        job.write_mask(job.files.create(job.destination / "labels_mask_part_0000.npy"))
    job.notes.append(f"the .npy files are bare ids without a header, as OLMo reads them: their dtype is {job.dtype}.")


def _levanter(job: _Job) -> None:
    folder = job.files.folder(job.destination)
    rows = job.corpus.num_documents
    levanter_cache.write_leaf(folder / levanter_cache.IDS, rows, job.offsets(), job.tokens())
    if _MASK in job.corpus.fields:
        levanter_cache.write_leaf(folder / levanter_cache.MASK, rows, job.offsets(), job.mask())
    levanter_cache.write_ledger(folder, job.corpus)
    job.notes.append(
        "Levanter compares what the ledger says of the tokenizer with its own settings, warns where they differ, and goes on."
    )


LAYOUTS: dict[str, _Layout] = {
    "megatron": _Layout(_megatron, ("uint16", "int32", "uint8", "int64")),
    "nanogpt": _Layout(_nanogpt, ("uint16", "uint32", "uint8", "int32", "int64", "uint64")),
    "datatrove": _Layout(_datatrove, ("uint16", "uint32"), (_MASK,)),
    "olmo": _Layout(_olmo, ("uint16", "uint32", "uint8", "uint64"), (_MASK,)),
    "levanter": _Layout(_levanter, (str(levanter_cache.DTYPE),), (_MASK,), levanter_cache.compare),
}


def _dtype(options: Options, layout: _Layout) -> np.dtype[Any]:
    """Return the dtype of the ids: the layout's first where the vocabulary has at most 65,536 ids, else its second, of four bytes, where it has one."""
    if options.dtype is None:
        return np.dtype(
            (layout.dtypes if options.source.dtype.itemsize <= 2 else layout.dtypes[1:] or layout.dtypes)[0]
        )
    if options.dtype not in layout.dtypes:
        raise ValueError(
            f"--dtype is {options.dtype!r}, expected one of {', '.join(layout.dtypes)} for the layout {options.layout}."
        )
    return np.dtype(options.dtype)


def _all_end_with(job: _Job, eos_id: int) -> bool:
    """Return whether each document ends with an id, which occurs nowhere else."""
    for start in range(0, job.corpus.num_documents, _DOCUMENTS):
        offsets = job.corpus.document_offsets(start, min(start + _DOCUMENTS, job.corpus.num_documents))
        if (np.diff(offsets) == 0).any():
            return False
        for at in range(int(offsets[0]), int(offsets[-1]), _TOKENS):
            tokens = job.corpus.tokens(at, min(at + _TOKENS, int(offsets[-1])))
            ends = offsets[1:][(offsets[1:] > at) & (offsets[1:] <= at + len(tokens))]
            if not np.array_equal(np.flatnonzero(tokens == eos_id), ends - at - 1):
                return False
    return True


def _human(count: int) -> str:
    """Return a count with three significant digits, as datatrove writes it for people: ``1.36 MT``."""
    thousands = (len(str(count)) - 1) // 3
    digits = 2 - (len(str(count)) - 1) % 3
    return f"{count / 1000**thousands:.{digits}f} {['', 'k', 'M', 'G', 'T', 'P'][thousands]}T"
