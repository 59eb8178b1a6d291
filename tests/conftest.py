"""What all tests share: where public fixtures are, eight virtual JAX devices, and that nothing is left behind."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # order_reference.py, contract_loaders.py, scripted_engine.py

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):  # takes effect only before JAX makes its CPU devices
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()

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


@pytest.fixture
def devices() -> list[Any]:
    """Eight virtual CPU devices of JAX; a test that needs them is skipped, aloud, without JAX or where XLA_FLAGS says fewer."""
    jax = pytest.importorskip("jax")
    found: list[Any] = jax.devices("cpu")
    if len(found) < 8:
        pytest.skip(f"JAX has {len(found)} CPU devices, expected 8: XLA_FLAGS is {os.environ['XLA_FLAGS']!r}")
    return found[:8]


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
