"""Tables for tests: made, read, and looked at from a connection of their own."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import psycopg


def new_table() -> str:
    """A name that nobody else uses, odd enough to show what is not quoted."""
    return f'public."T {uuid.uuid4().hex[:12]}"'


def ask(address: str, statement: str, values: Sequence[Any] | None = None) -> list[Any]:
    """What a reader of the database finds now."""
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description is not None else []


def prepared(address: str, prefix: str = "tallystick/") -> list[str]:
    """Names of transactions that are prepared and not ended."""
    found = ask(address, "SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s) ORDER BY 1", [prefix])
    return [gid for (gid,) in found]


def staged(address: str, prefix: str = "tallystick/") -> list[str]:
    """Names of staging tables."""
    found = ask(
        address, "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND starts_with(relname, %s)", [prefix]
    )
    return [name for (name,) in found]
