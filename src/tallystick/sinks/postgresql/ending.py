"""Driver: how transactions that another process left are found, committed and rolled back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from tallystick.records import Json, Outcome
from tallystick.sinks.base import OpenTransaction, TransactionState
from tallystick.sinks.postgresql import stage
from tallystick.sinks.postgresql.client import psycopg, sql
from tallystick.sinks.postgresql.failures import DISABLED, GONE, UNIQUE_VIOLATION
from tallystick.sinks.postgresql.names import Name
from tallystick.sinks.postgresql.tokens import TABLE, committed

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

log = logging.getLogger("tallystick.postgresql")

BEGUN = "begun"
END_PATIENCE_S = 10.0

_OPEN = """
SELECT 'prepared', gid, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts
WHERE database = current_database() AND starts_with(gid, %(prefix)s)
UNION ALL
SELECT 'staged', c.relname, NULL FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND starts_with(c.relname, %(prefix)s)
UNION ALL
SELECT 'begun', application_name, extract(epoch FROM now() - xact_start)::float8 FROM pg_stat_activity
WHERE datname = current_database() AND starts_with(application_name, %(prefix)s) AND xact_start IS NOT NULL
"""
_TERMINATE = """
SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s AND xact_start IS NOT NULL
"""


def committable(name: Name, way: str) -> Json:
    return {"name": str(name), "way": way}


def name_of(value: Json) -> Name:
    return Name.parse(value["name"])


def commit_prepared(connection: Any, sink: PostgreSQL, name: Name) -> Outcome:
    """If the server knows no such transaction, it is ended; how, its token tells. That is visible by then."""
    try:
        connection.execute(sql().SQL("COMMIT PREPARED {}").format(sql().Literal(str(name))))
    except psycopg().Error as error:
        if error.sqlstate == DISABLED:  # another process is ending it just now
            return Outcome.RETRY_LATER
        if error.sqlstate != GONE:
            raise
        return Outcome.ALREADY_COMMITTED if committed(connection, sink, [str(name)]) else Outcome.EXPIRED
    return Outcome.COMMITTED


def doubled(error: Exception, sink: PostgreSQL) -> Outcome | None:
    """Another process moved the same staging tables at the same time: the next look at the tokens tells."""
    diag: Any = getattr(error, "diag", None)
    if getattr(error, "sqlstate", None) != UNIQUE_VIOLATION or diag is None:
        return None
    return Outcome.RETRY_LATER if (diag.schema_name, diag.table_name) == (sink.schema, TABLE) else None


def open_ones(connection: Any, sink: PostgreSQL, prefix: str) -> list[OpenTransaction]:
    """A transaction that is prepared or staged is not begun any more, whatever its session says meanwhile."""
    found = connection.execute(_OPEN, {"prefix": prefix, "schema": sink.schema}).fetchall()
    held = {name for way, name, _ in found if way != BEGUN}
    return [_opened(way, name, age_s) for way, name, age_s in found if way != BEGUN or name not in held]


def _opened(way: str, text: str, age_s: float | None) -> OpenTransaction:
    name = Name.parse(text)
    state = TransactionState.BEGUN if way == BEGUN else TransactionState.PRE_COMMITTED
    return OpenTransaction(name.attempt, state, committable(name, way), text, name.slice, age_s)


def abort(connection: Any, sink: PostgreSQL, value: Json) -> None:
    """What is only begun may have come further since somebody looked: so it is looked for everywhere."""
    name, way = name_of(value), value["way"]
    if way == BEGUN:
        connection.execute(_TERMINATE, [int(END_PATIENCE_S * 1000), str(name)])
    if way in (BEGUN, "prepared"):
        _roll_back_prepared(connection, name)
    if way in (BEGUN, "staged"):
        connection.execute(sql().SQL("DROP TABLE IF EXISTS {}").format(stage.identifier(sink, str(name))))


def _roll_back_prepared(connection: Any, name: Name) -> None:
    deadline = time.monotonic() + END_PATIENCE_S
    while True:
        try:
            connection.execute(sql().SQL("ROLLBACK PREPARED {}").format(sql().Literal(str(name))))
        except psycopg().Error as error:
            if error.sqlstate == GONE:
                return
            if error.sqlstate != DISABLED or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
