"""The documents about grain, MaxText and reports: their Python runs as it stands, and the tests that they name are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


@pytest.mark.parametrize("name", ["from_grain.md", "from_maxtext.md"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of grain's and orbax' own imports
def test_the_python_of_a_document_runs(name: str) -> None:
    pytest.importorskip("grain")
    pytest.importorskip("orbax.checkpoint")
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        exec(compile(block, name, "exec"), names)


def test_every_test_that_the_list_of_reports_names_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (DOCS / "reports_jax.md").read_text("utf-8"))
    assert len(named) > 25
    missing = [(file, test) for file, test in named if f"def {test}(" not in (HERE / file).read_text("utf-8")]
    assert missing == []
