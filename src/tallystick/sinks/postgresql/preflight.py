"""Everything that would go wrong at night, asked for before the first epoch: with what to type."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tallystick.errors import SinkError
from tallystick.sinks.base import JobContext
from tallystick.sinks.postgresql import tokens
from tallystick.sinks.postgresql.catalog import Target, look
from tallystick.sinks.postgresql.client import psycopg, sql, unreachable
from tallystick.sinks.postgresql.failures import words
from tallystick.sinks.postgresql.shape import fits, type_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tallystick.sinks.postgresql.sink import PostgreSQL

log = logging.getLogger("tallystick.postgresql")

OLDEST = 14
RIGHTS = {"append": ("INSERT",), "upsert": ("INSERT", "SELECT", "UPDATE")}
RIGHTS["changes"] = (*RIGHTS["upsert"], "DELETE")
DENIED = "42501"
PATIENCE_S = 30.0


def preflight(sink: PostgreSQL, job: JobContext) -> None:
    """Driver: `SinkError` with the next step if the sink cannot work as it is declared."""
    try:
        connection = sink.pool(PATIENCE_S).take()
    except psycopg().Error as cause:
        raise unreachable(cause, sink.server, sink.parameters) from cause
    try:
        _need_server(sink, connection)
        _need_schema(sink, connection)
        target = _need_table(sink, connection, job.schema)
        _need_shape(sink, target, job.schema)
        if sink.via == "prepared" and target.can_wait:
            log.warning(
                "%s has unique keys: a task that Spark runs twice waits %s for itself, and then the epoch fails and is "
                "done again. leave via out if that happens often",
                sink.table,
                sink.lock_timeout,
            )
        _need_rights(sink, connection)
        if job.moved and job.job_id is not None:
            _need_alone(sink, connection, job)
    except psycopg().Error as cause:
        raise SinkError(f"postgresql: {sink.server}: {words(cause, sink.parameters)}") from cause
    finally:
        connection.close()


def _need_server(sink: PostgreSQL, connection: Any) -> None:
    number, standby, read_only, fsync, slots = connection.execute(
        "SELECT current_setting('server_version_num')::int / 10000, pg_is_in_recovery(), "
        "current_setting('transaction_read_only')::bool, current_setting('fsync')::bool, "
        "current_setting('max_prepared_transactions')::int"
    ).fetchone()
    if number < OLDEST:
        raise SinkError(f"postgresql: {sink.server} is PostgreSQL {number}, needed {OLDEST} or newer")
    if standby or read_only:
        found = "a standby" if standby else "read-only (default_transaction_read_only)"
        raise SinkError(f"postgresql: {sink.server} is {found}: needed a server that can be written to")
    if not fsync:
        log.warning("%s runs with fsync off: what it confirms is lost if its machine crashes", sink.server)
    if sink.via == "prepared" and slots == 0:
        raise SinkError(
            f"postgresql: {sink.server} allows no prepared transactions (max_prepared_transactions is 0). set it to at "
            "least the number of slices of an epoch and restart the server, or leave via out: rows are staged then"
        )


def _need_schema(sink: PostgreSQL, connection: Any) -> None:
    """Where tokens and staging tables live. Two jobs that make it at once are no error: the second looks again."""
    for last in (False, True):
        try:
            if _make_schema(sink, connection):
                return
        except psycopg().Error as error:
            if error.sqlstate != DENIED and not last:
                continue
            if error.sqlstate != DENIED:
                raise
        break
    schema, table, user = _quoted(sink.schema), _quoted(tokens.TABLE), _quoted(_user(connection))
    raise SinkError(
        f"postgresql: this user may not use the schema {sink.schema}, which holds commit tokens and staging tables. as "
        f"an administrator: CREATE SCHEMA {schema} AUTHORIZATION {user}; or, if it is there: GRANT ALL ON SCHEMA "
        f"{schema} TO {user}; GRANT SELECT, INSERT, DELETE ON {schema}.{table} TO {user}"
    )


def _make_schema(sink: PostgreSQL, connection: Any) -> bool:
    """Make what is missing; False if this user may not use it."""
    s = sql()
    (there,) = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", [_quoted(sink.schema)]).fetchone()
    if not there:
        connection.execute(s.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(s.Identifier(sink.schema)))
    table = f"{_quoted(sink.schema)}.{_quoted(tokens.TABLE)}"
    if look(connection, table) is None:
        connection.execute(tokens.making(sink))
    may_create, *may = connection.execute(
        "SELECT has_schema_privilege(%(schema)s, 'CREATE'), has_table_privilege(%(table)s, 'SELECT'), "
        "has_table_privilege(%(table)s, 'INSERT'), has_table_privilege(%(table)s, 'DELETE')",
        {"schema": sink.schema, "table": table},
    ).fetchone()
    return bool(may_create and all(may))


def _need_table(sink: PostgreSQL, connection: Any, schema: StructType | None) -> Target:
    target = look(connection, sink.quoted)
    if target is None and sink.create and schema is not None:
        try:
            connection.execute(making(sink, schema))
        except psycopg().Error as error:
            raise SinkError(
                f"postgresql: the table {sink.table} is not there and cannot be made: {words(error, sink.parameters)}"
            ) from error
        target = look(connection, sink.quoted)
    if target is None:
        raise SinkError(f"postgresql: there is no table {sink.table} in {sink.server}: make it, or set create=True")
    if target.kind not in ("r", "p"):
        raise SinkError(f"postgresql: {sink.table} is no table (its kind is {target.kind!r}): needed a table")
    if target.persistence != "p":
        raise SinkError(
            f"postgresql: {sink.table} is unlogged or temporary, so a crash of the server empties it. "
            f"ALTER TABLE {sink.quoted} SET LOGGED"
        )
    return target


def making(sink: PostgreSQL, schema: StructType) -> Any:
    """The statement that makes the table for these rows."""
    s = sql()
    parts = [
        s.SQL("{} {}").format(s.Identifier(field.name), s.SQL(type_of(field.dataType) or "text"))
        for field in schema.fields
        if field.name != sink.delete_flag
    ]
    if sink.key:
        parts.append(s.SQL("PRIMARY KEY ({})").format(s.SQL(", ").join(map(s.Identifier, sink.key))))
    return s.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sink.identifier, s.SQL(", ").join(parts))


def _need_shape(sink: PostgreSQL, target: Target, schema: StructType | None) -> None:
    """The rows and the table fit each other, and what is called the key is one."""
    if sink.mode != "append" and not target.has_unique(sink.key):
        listed = ", ".join(map(_quoted, sink.key))
        raise SinkError(
            f"postgresql: {sink.table} has no unique index on just ({listed}), which mode {sink.mode!r} needs: "
            f"CREATE UNIQUE INDEX ON {sink.quoted} ({listed})"
        )
    if schema is None:
        return
    rows = {field.name: type_of(field.dataType) or "" for field in schema.fields if field.name != sink.delete_flag}
    known = {column.name: column for column in target.columns}
    for name, kind in rows.items():
        if name not in known:
            raise SinkError(
                f"postgresql: {sink.table} has no column {name!r}, which the rows have: it has {', '.join(known)}. "
                f"ALTER TABLE {sink.quoted} ADD COLUMN {_quoted(name)} {kind}, or leave the column out with select=[…]"
            )
        if known[name].generated:
            raise SinkError(f"postgresql: the server makes the column {name!r} of {sink.table} itself: leave it out")
        if not fits(kind, known[name].type):
            raise SinkError(
                f"postgresql: the column {name!r} of {sink.table} is {known[name].type}, the rows have {kind}: cast "
                "one of them"
            )
    missing = [column.name for column in target.columns if not column.optional and column.name not in rows]
    if missing:
        raise SinkError(
            f"postgresql: the rows have no column {missing[0]!r}, which {sink.table} needs (NOT NULL, no default): add "
            "it to the rows, or give it a default"
        )


def _need_rights(sink: PostgreSQL, connection: Any) -> None:
    missing = [right for right in RIGHTS[sink.mode] if not _may(connection, sink.quoted, right)]
    if missing:
        raise SinkError(
            f"postgresql: this user may not {', '.join(missing)} on {sink.table}. as its owner: GRANT "
            f"{', '.join(missing)} ON {sink.quoted} TO {_quoted(_user(connection))}"
        )


def _may(connection: Any, table: str, right: str) -> bool:
    """On the table, or on each of its columns."""
    question = "SELECT has_table_privilege(%s, %s)"
    return bool(connection.execute(question, [table, right]).fetchone()[0])


def _need_alone(sink: PostgreSQL, connection: Any, job: JobContext) -> None:
    """The checkpoint is not where it was. If it is a copy and the original still runs, both would write."""
    (living,) = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND starts_with(application_name, %s)",
        [sink.prefix(job.job_id or "")],
    ).fetchone()
    if living:
        raise SinkError(
            f"postgresql: a living job uses transactions named {sink.prefix(job.job_id or '')}…: {job.checkpoint} is a "
            "copy of the checkpoint of a job that runs. stop that one first, or start this one with a new checkpoint"
        )


def _user(connection: Any) -> str:
    return str(connection.info.user)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
