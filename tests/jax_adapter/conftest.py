"""Eight virtual CPU devices in one process, and the plans that these tests serve."""

from __future__ import annotations

import os
from typing import Any

import pytest

_FLAG = "--xla_force_host_platform_device_count"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):  # takes effect only before JAX makes its CPU devices
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}=8".strip()


@pytest.fixture
def devices() -> list[Any]:
    """The eight devices; a test that needs them is skipped, aloud, where JAX had begun with fewer."""
    jax = pytest.importorskip("jax")
    found: list[Any] = jax.devices("cpu")
    if len(found) < 8:
        pytest.skip(
            f"JAX began with {len(found)} CPU devices before this folder asked for 8: run pytest tests/jax_adapter"
        )
    return found[:8]
