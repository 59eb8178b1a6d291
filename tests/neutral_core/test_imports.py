"""Imports run one way: the core needs numpy and the standard library, and nothing else is loaded by using it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import neutral_core

ROOT = Path(neutral_core.__file__).parents[1]

USE = """
import sys
before = set(sys.modules)
import numpy
import neutral_core as nc
folder = sys.argv[1]
with nc.CorpusWriter(folder, vocab_size=300) as writer:
    writer.add(range(100))
plan = nc.Plan(nc.Source(nc.open_corpus(folder)), seq_len=8, seed=1, documents=True)
with nc.Loader(plan, batch_size=4, threads=1) as loader:
    next(loader)
    loader.set_state(loader.get_state())
plan.trace([0])
known = set(sys.stdlib_module_names) | {"numpy", "neutral_core", "__mp_main__"}
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - known))
"""


def test_writing_opening_planning_and_loading_load_numpy_and_the_standard_library_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE, str(tmp_path / "c")], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_imports_run_one_way() -> None:
    """Adapters and prep may import the core; the core imports none of them, and they do not import each other."""
    houses = ("neutral_core", "torch_adapter", "jax_adapter", "prep")
    for house in houses:
        for path in (ROOT / house).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = (
                    [node.module]
                    if isinstance(node, ast.ImportFrom)
                    else [a.name for a in node.names]
                    if isinstance(node, ast.Import)
                    else []
                )
                for name in names:
                    top = str(name).partition(".")[0]
                    assert top not in houses or top in (house, "neutral_core"), f"{path} imports {name}"


def test_every_public_name_is_documented_and_there() -> None:
    for name in neutral_core.__all__:
        assert getattr(neutral_core, name).__doc__


def test_no_thread_and_no_warning_is_left_when_a_loader_is_not_closed(tmp_path: Path) -> None:
    code = (
        "import neutral_core as nc\n"
        "loader = nc.Loader(nc.Plan(nc.Source(nc.memory_corpus([range(5000)])), seq_len=8), batch_size=2, threads=2)\n"
        "next(loader)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
