"""Commit tokens: a row for every transaction, written inside it, in a table of ours.

COMMIT PREPARED is not idempotent: the second one, and one for a transaction that was rolled back or never prepared, get
the same answer. The token tells them apart: it is there if and only if the rows are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tallystick.sinks.postgresql.client import sql
from tallystick.sinks.postgresql.names import Name

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

TABLE = "tokens"


def table(sink: PostgreSQL) -> Any:
    return sql().Identifier(sink.schema, TABLE)


def making(sink: PostgreSQL) -> Any:
    """The statement that makes the table."""
    return (
        sql()
        .SQL(
            "CREATE TABLE IF NOT EXISTS {} (name text PRIMARY KEY, prefix text NOT NULL, epoch bigint NOT NULL, "
            "written timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
        .format(table(sink))
    )


def token(sink: PostgreSQL, name: Name) -> Any:
    """The statement that writes one, to be run inside the transaction whose fate it shares."""
    s = sql()
    values = s.SQL(", ").join(map(s.Literal, (str(name), name.prefix, name.attempt.epoch)))
    return s.SQL("INSERT INTO {} (name, prefix, epoch) VALUES ({})").format(table(sink), values)


def committed(connection: Any, sink: PostgreSQL, names: Iterable[str]) -> set[str]:
    """Driver: those of these whose rows are in the target."""
    question = sql().SQL("SELECT name FROM {} WHERE name = ANY (%s)").format(table(sink))
    return {name for (name,) in connection.execute(question, [list(names)]).fetchall()}


def forget(connection: Any, sink: PostgreSQL, prefix: str, before: int) -> None:
    """Driver: those of epochs that are over. Losing this in a crash costs nothing, so nobody waits for the disk."""
    s = sql()
    connection.execute(
        s.SQL(
            "BEGIN; SET LOCAL synchronous_commit TO off; DELETE FROM {} WHERE prefix = {} AND epoch < {}; COMMIT"
        ).format(table(sink), s.Literal(prefix), s.Literal(before))
    )
