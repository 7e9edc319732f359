"""Real servers for tests: taken from the environment, or started here.

A machine that cannot run one skips the tests that need it and says why. In CI, or with TALLYSTICK_REQUIRE_SERVERS set,
that is a failure: there a skipped test would be one that nobody ever runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

from tallystick.errors import SetupError
from tallystick.servers import Server

S = TypeVar("S", bound=Server)


@dataclass(frozen=True)
class Elsewhere:
    """A server that somebody else runs: tests may use it, not stop it."""

    address: str


@contextmanager
def started(server: S) -> Iterator[S]:
    """Start it for a fixture, and stop it at the end whatever happened."""
    try:
        server.start()
    except SetupError as error:
        if os.environ.get("CI") or os.environ.get("TALLYSTICK_REQUIRE_SERVERS"):
            raise
        pytest.skip(f"no {server.name}: {error}")
    print(f"{server.name} {server.version} at {server.address}")
    try:
        yield server
    finally:
        server.stop()


def need(there: bool, what: str) -> None:
    """Skip a test that needs something of the machine, such as root; in CI, fail it."""
    if there:
        return
    if os.environ.get("CI") or os.environ.get("TALLYSTICK_REQUIRE_SERVERS"):
        pytest.fail(f"needed: {what}")
    pytest.skip(f"needed: {what}")


def elsewhere(name: str) -> Elsewhere | None:
    """What TALLYSTICK_TEST_NAME says, such as ``TALLYSTICK_TEST_KAFKA=127.0.0.1:9092``."""
    address = os.environ.get(f"TALLYSTICK_TEST_{name.upper()}")
    if not address:
        return None
    print(f"{name} at {address}, from the environment")
    return Elsewhere(address)
