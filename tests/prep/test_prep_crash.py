"""A process that ends at any single change of the file system leaves nothing that a rerun does not mend."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neutral_core as nc
from prep import convert, pieces, prepare
from prep.tokenizers import Settings

CHANGES = ("replace", "unlink", "rmdir", "mkdir", "fsync")


def ends_at_change(number: int, work: Callable[[], Any]) -> bool:
    """Do the work in a forked process that ends, without a word, in place of change ``number``; return whether it came so far."""
    child = os.fork()
    if not child:
        left = [number]

        def counted(change: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                return change(*arguments, **named)

            return call

        for name in CHANGES:
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def tree_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def preparation(folder: Path, validation: str | None) -> Callable[[Path], Any]:
    source = folder / "a.txt"
    source.write_bytes(b"one\ntwo\nthree\nfour\nfive\n")

    def work(destination: Path) -> None:
        tokenizer = Settings(kind="char", append_eos=True)
        prepare.prepare(
            pieces.Options(
                inputs=(str(source),), destination=destination, tokenizer=tokenizer, documents="line", tokens_per_shard=20 if validation else 10,
                validation=validation, task_bytes=1000 if validation else 12,
            )
        )  # fmt: skip

    return work


def conversion(folder: Path) -> Callable[[Path], Any]:
    source = folder / "old.bin"
    np.array([1, 2, 9, 3, 9, 4, 5, 6, 9, 9], dtype="<u2").tofile(source)

    def work(destination: Path) -> None:
        asked = {"dtype": "uint16", "boundaries": "eos:9", "tokens_per_shard": 5}
        convert.convert(convert.Options(source=str(source), destination=destination, **asked))  # type: ignore[arg-type]

    return work


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["prepare", "prepare --validation", "convert"])
def test_a_rerun_gives_the_same_bytes_wherever_the_first_run_ended(tmp_path: Path, kind: str) -> None:
    work = conversion(tmp_path) if kind == "convert" else preparation(tmp_path, "0.5" if "validation" in kind else None)
    corpora = ("train", "validation") if "validation" in kind else ("",)
    work(tmp_path / "undisturbed")
    expected = tree_of(tmp_path / "undisturbed")
    number = 0
    while ends_at_change(number, lambda: work(tmp_path / f"out-{number}")):  # noqa: B023 - called at once
        destination = tmp_path / f"out-{number}"
        for corpus in corpora:
            try:
                whole = nc.open_corpus(destination / corpus)
            except FileNotFoundError:
                continue
            assert whole.fingerprint == nc.open_corpus(tmp_path / "undisturbed" / corpus).fingerprint, number
        try:
            work(destination)
        except FileExistsError:  # it had finished, and its record was gone
            assert all((destination / corpus / "dataset.json").exists() for corpus in corpora), number
        assert tree_of(destination) == expected, number
        number += 1
    assert number > 20
