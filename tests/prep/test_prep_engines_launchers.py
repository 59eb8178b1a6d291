"""The command as launchers start it: their environment says which rank it is, and the bytes are those of one process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import neutral_core as nc

BIN = Path(sys.executable).parent
LAUNCHERS = ("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_")
MIB = 1 << 20  # what the command makes a task of where there is little text


def start(folder: Path, command: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    path = os.pathsep.join([str(BIN), inherited["PATH"]])
    return subprocess.Popen(
        shlex.split(command), cwd=folder, env=inherited | environment | {"PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def tree_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def test_a_slurm_array_in_odd_order_with_a_member_killed_and_started_again_makes_the_bytes_of_one_process(
    tmp_path: Path,
) -> None:
    """Members 4, 6, 8 and 10 of an array of four; of the 16 tasks member 4 has 0, 4, 8 and 12, and so on."""
    count = 16 * MIB // 200
    with (tmp_path / "texts.txt").open("wb") as file:
        file.writelines(b"%07d %s\n" % (number, b"abcdefgh" * 24) for number in range(count))  # of 201 bytes
    command = "millstream prepare texts.txt {} --tokenizer byte --append-eos --documents line --workers 1"

    def member(task: int) -> subprocess.Popen[str]:
        array = {"ARRAY_TASK_ID": task, "ARRAY_TASK_COUNT": 4, "ARRAY_TASK_MIN": 4, "ARRAY_TASK_STEP": 2}
        return start(tmp_path, command.format("out"), **{f"SLURM_{name}": str(value) for name, value in array.items()})

    left = "other ranks' and not done yet"
    assert left in end(member(8))
    killed, pieces = member(4), tmp_path / "out" / ".partial" / "pieces"
    while killed.poll() is None and not (pieces / "000000.json").exists():
        with suppress(subprocess.TimeoutExpired):
            killed.wait(timeout=0.001)
    killed.kill()
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    of_member_8 = {2, 6, 10, 14}
    done = {int(path.stem) for path in pieces.glob("*.json")}
    assert of_member_8 | {0} <= done < of_member_8 | {0, 4, 8, 12}
    assert all(left in end(process) for process in [member(10), member(6)])  # at the same time
    assert f"{count:,} documents" in end(member(4))
    end(start(tmp_path, command.format("alone")))
    assert tree_of(tmp_path / "out") == tree_of(tmp_path / "alone")


FOO = """\
output_path: corpora/books
loading_workers: 1
tokenize_workers: 2
saving_workers: 1
dataset: {name_or_path: texts/}
tokenizer: {path: tokenizers/words}
"""
WORDS = {"a" * 300: 0, "b" * 300: 1, "c" * 300: 2}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_torchrun_with_the_seeds_own_file_makes_the_bytes_of_one_process(tmp_path: Path, ranks: int) -> None:
    """Four tasks; the file is silent on EOS and the tokenizer names one, so each document ends with it, which is said."""
    pytest.importorskip("torch")
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="a" * 300))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens(["<|endoftext|>"])
    for folder in ("texts", "tokenizers/words"):
        (tmp_path / folder).mkdir(parents=True)
    model.save(str(tmp_path / "tokenizers" / "words" / "tokenizer.json"))
    texts = np.random.default_rng(5).integers(0, 3, (1200, 10)).tolist()
    for name, part in (("a.jsonl", texts[:700]), ("b.jsonl", texts[700:])):
        spelled = [" ".join(list(WORDS)[word] for word in text) for text in part]
        (tmp_path / "texts" / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in spelled))
    (tmp_path / "foo.yaml").write_text(FOO)

    command = "millstream prepare --config foo.yaml"
    said = end(start(tmp_path, f"torchrun --standalone --nnodes 1 --nproc_per_node={ranks} --no_python {command}"))
    assert "EOS is '<|endoftext|>'" in said
    corpus = nc.open_corpus(tmp_path / "corpora" / "books")
    assert [corpus.document(number).tolist() for number in range(1200)] == [[*text, 3] for text in texts]
    (tmp_path / "corpora" / "books").rename(tmp_path / "by_ranks")
    end(start(tmp_path, command))
    assert tree_of(tmp_path / "by_ranks") == tree_of(tmp_path / "corpora" / "books")
