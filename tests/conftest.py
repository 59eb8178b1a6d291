"""What all tests share: where public fixtures are, and that nothing is left behind."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # order_reference.py

settings.register_profile(
    "millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.load_profile("millstream")


@pytest.fixture
def fixtures() -> Path:
    """The folder of public files that nobody here wrote; they are not part of the project."""
    return _folder("MILLSTREAM_FIXTURES")


@pytest.fixture
def tokenizers() -> Path:
    """The folder of public tokenizers; they are not part of the project."""
    return _folder("MILLSTREAM_TOKENIZERS")


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("millstream")]
    for thread in left:
        thread.join(5)
    assert not [thread for thread in left if thread.is_alive()], "a reader thread is left"


def _folder(variable: str) -> Path:
    folder = os.environ.get(variable)
    if folder is None:
        pytest.skip(f"{variable} is not set: the public files are not at hand")
    return Path(folder)
