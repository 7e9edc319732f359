"""Client libraries, imported when they are needed: a job without that sink does without them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tallystick.errors import MissingExtraError


def needed(module: str, package: str, extra: str) -> Any:
    """A module of a client library. Raises `MissingExtraError` with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as cause:
        raise MissingExtraError(
            f"{extra} needs the package {package}, which cannot be imported here ({cause}). on this machine, and on "
            f"every machine that runs executors: pip install 'tallystick[{extra}]'"
        ) from cause
