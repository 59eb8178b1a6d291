"""What the tests of ``plan`` and ``trace`` share: two corpora of bytes, a plan over them in a file, and how the command is asked.

With seq_len 4: source a has 41 tokens, b has 23. From sample 0 on both weigh the same; from sample 8 on b alone is served. Samples 2, 3 and 4 are
skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prep.cli import main
from prep.tokenizers.byte import ByteTokenizer

BYTES = ByteTokenizer(append_eos=False, prepend_bos=False).identity
TINY: dict[str, Any] = {
    "seq_len": 4,
    "sources": [{"path": "a", "name": "a", "weight": 1}, {"path": "b", "name": "b", "weight": 1}],
    "phases": [{"sample": 8, "weights": {"b": 1}}],
    "skip": [[2, 5]],
}


def run(*arguments: object) -> int:
    """Run the command in this process; return its exit status."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def save(folder: Path, data: Any, name: str = "plan.json") -> Path:
    """Write a plan file."""
    (folder / name).write_text(json.dumps(data))
    return folder / name


def asked(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    """Return what the command says with --json."""
    capsys.readouterr()
    assert run(*arguments, "--json") == status
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said
