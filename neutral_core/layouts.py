"""Which layout a path holds: the one place that knows them all."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import numpy.typing as npt

from neutral_core import reference
from neutral_core.errors import FormatError
from neutral_core.format.corpus import Corpus, open_folder
from neutral_core.format.tokenizer import TokenizerIdentity
from neutral_core.legacy import (
    datatrove,
    fast_llm_dataset,
    fast_llm_pair,
    headerless,
    litdata,
    litpkds,
    llm_c,
    mmididx,
    npy,
    olmo,
    tntidx,
)
from neutral_core.legacy.flat import StoredTokens
from neutral_core.legacy.layout import Layout, Request, first_bytes

# In the order in which a path is asked what it is: unmistakable magics first, what is told by side files later, bare tokens last.
FOREIGN: tuple[Layout, ...] = (
    Layout(
        names=("reference",),
        recognises=reference.recognises,
        open=lambda request: reference.open_reference(request, open_corpus),
    ),
    tntidx.LAYOUT,
    fast_llm_pair.LAYOUT,
    mmididx.LAYOUT,
    fast_llm_dataset.LAYOUT,
    npy.LAYOUT,
    litdata.LAYOUT,
    litpkds.LAYOUT,
    llm_c.LAYOUT,
    datatrove.LAYOUT,
    olmo.LAYOUT,
    headerless.LAYOUT,
)
LAYOUTS = ("millstream", *(name for layout in FOREIGN for name in layout.names))


def open_corpus(
    path: str | os.PathLike[str],
    *,
    layout: str | None = None,
    dtype: npt.DTypeLike | None = None,
    boundaries: str | None = None,
    tokenizer: TokenizerIdentity | None = None,
    fingerprint: str | None = None,
    check: str = "headers",
    access: str = "map",
) -> Corpus:
    """Open a corpus: a folder of ours, one shard, or a legacy data set in place.

    Args:
        path: of a folder or shard of ours, or of a reference; of a pair (Megatron's, fairseq's, Fast-LLM's) its prefix, ``.idx`` or ``.bin``; of other
            layouts a file, a folder, or the prefix of numbered files: see docs/layouts.md.
        layout: one of ``LAYOUTS`` to insist on it, such as ``megatron``, ``fast_llm_dataset``, ``litdata``, ``llm.c``, ``datatrove``, ``olmo`` or
            ``headerless``; None: by magic, size and side files, never by name alone.
        dtype: of ids whose width the files leave open; elsewhere only compared.
        boundaries: of documents, where nothing stores them: ``eos:ID``, ``bos:ID``, ``fixed:N`` or ``none``; of a pair that was split into sentences
            ``sequences`` takes each as a document.
        tokenizer: who made the ids, for layouts that do not say; elsewhere only compared.
        fingerprint: open the corpus as it was when it had this fingerprint (its first shards); of a legacy data set only compared.
        check: ``headers``, or ``blocks`` to check each 1 MiB block of a shard of ours at its first touch.
        access: ``map``, or ``read`` for file systems where a map is dangerous or slow (NFS, Lustre).

    Returns:
        Corpus. Opening costs a manifest (ours), a pass over the index (pairs, and wherever documents are stored), or a pass over the file (``eos``,
        ``bos``).

    Raises:
        FileNotFoundError: nothing is there, or it is not finished.
        FormatError: what is there is damaged, or has another fingerprint.
        ValueError: an argument is missing or unknown.
    """
    if layout is not None and layout not in LAYOUTS:
        near = difflib.get_close_matches(layout, LAYOUTS, 1)
        raise ValueError(
            f"layout is {layout!r}, expected one of {', '.join(LAYOUTS)}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )
    place = Path(path).expanduser()
    foreign = _foreign(place, layout)
    if foreign is None:
        corpus = open_folder(place, tokenizer=tokenizer, fingerprint=fingerprint, check=check, access=access)
    else:
        request = Request(
            path=place, layout=layout, dtype=dtype, boundaries=boundaries, tokenizer=tokenizer, access=access
        )
        corpus = foreign.open(request)
    if fingerprint not in (None, corpus.fingerprint):
        raise FormatError(
            f"{place}: the fingerprint is {corpus.fingerprint}, expected {fingerprint}: the data have changed."
        )
    _refuse_spare(place, foreign, dtype, boundaries, corpus)
    corpus.reopen = (_open_again, (str(place), layout, dtype, boundaries, tokenizer, corpus.fingerprint, check, access))
    return corpus


def _open_again(
    path: str,
    layout: str | None,
    dtype: npt.DTypeLike | None,
    boundaries: str | None,
    tokenizer: TokenizerIdentity | None,
    fingerprint: str,
    check: str,
    access: str,
) -> Corpus:
    """Unpickle a corpus: open it where it is, as it was."""
    return open_corpus(
        path,
        layout=layout,
        dtype=dtype,
        boundaries=boundaries,
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        check=check,
        access=access,
    )


def _refuse_spare(
    path: Path, layout: Layout | None, dtype: npt.DTypeLike | None, boundaries: str | None, corpus: Corpus
) -> None:
    name = "millstream" if layout is None else layout.names[0]
    if boundaries not in (None, "index") and not (layout and layout.boundaries):
        raise ValueError(
            f"{path}: boundaries is {boundaries!r}, but the {name} layout stores its documents: leave it out."
        )
    given = None if dtype is None or (layout and layout.takes_dtype) else StoredTokens.asked(dtype, path).dtype
    if given is not None and given.itemsize != corpus.dtype.itemsize:
        raise ValueError(f"{path}: dtype is {given}, but the {name} layout says {corpus.dtype}: leave it out.")


def _foreign(path: Path, layout: str | None) -> Layout | None:
    """Return the foreign layout that a path holds, or that is insisted on; None for one of ours."""
    if layout is not None:
        return next((foreign for foreign in FOREIGN if layout in foreign.names), None)
    if path.is_dir() and any(path.glob("*.safetensors")):
        return None
    if first_bytes(path, 10)[8:] == b'{"' or path.suffix == ".safetensors":
        return None
    for foreign in FOREIGN:
        if foreign.recognises(path):
            return foreign
    if path.is_dir():
        return None
    raise FileNotFoundError(
        f"{path}: there is no such folder or file, and no pair {path.name}.idx and {path.name}.bin."
    )
