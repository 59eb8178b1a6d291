"""Optional libraries: loaded where they are used, missed in one sentence that says what to install."""

from __future__ import annotations

import importlib
from typing import Any


class MissingExtraError(RuntimeError):
    """A library of an extra is not installed; the message holds the pip command."""


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import and return an optional module; raise MissingExtraError where it is not installed.

    Args:
        module: to import, such as ``tokenizers``.
        extra: of the distribution that brings it.
        purpose: what it is needed for, to stand before "needs".
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingExtraError(f"{purpose} needs {module}: pip install 'millstream[{extra}]'") from None
