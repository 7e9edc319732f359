"""Staging tables: one per slice, filled by its task, moved into the target by the driver.

The table is a copy of the target's columns, in a schema of ours, made and filled in one transaction: if anybody sees
it, it is whole. The driver moves the rows, drops the table and writes the token in one transaction. So a table that is
there waits, a token says that its rows are in the target, and neither of both means that it was rolled back.

Rows that are appended have no order between slices: each slice is a transaction, several at once, because one session
alone moves rows at half the speed at which two tasks staged them. Where the last row of a key counts, all slices are
one transaction, in their order.

A copy has the target's types and its NOT NULL and CHECK constraints, but not its keys, foreign keys and triggers. So
that a row that the target refuses fails the epoch before it is decided, rows that are appended are compared with the
target's keys, and where there is more than keys, the task rehearses the move and takes it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.config import duration_s
from tallystick.records import Outcome
from tallystick.sinks.postgresql.catalog import Target
from tallystick.sinks.postgresql.client import sql
from tallystick.sinks.postgresql.names import Name
from tallystick.sinks.postgresql.tokens import committed, token

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

ROW = "tallystick row"
"""The place of a row in its slice: of several rows with one key the last one counts."""
DELETED = "tallystick deleted"
AT_ONCE = 200
"""Slices in one transaction: each of them costs the server a few locks."""


def make(
    connection: Any, sink: PostgreSQL, target: Target, name: Name, columns: Sequence[str], number: bool = False
) -> None:
    """Executor, inside its transaction. ``columns`` are those of the rows, the flag of a deletion not among them.

    Rows are numbered where the last of several counts, and where it is asked for.
    """
    s = sql()
    stage, table = identifier(sink, str(name)), sink.identifier
    if sink.mode == "changes":
        picked = s.SQL(", ").join(map(s.Identifier, columns))
        statement = s.SQL("CREATE TABLE {} WITH (autovacuum_enabled = off) AS SELECT {} FROM {} WITH NO DATA")
        connection.execute(statement.format(stage, picked, table))
        added = [s.SQL("ADD COLUMN {} boolean NOT NULL").format(s.Identifier(DELETED))]
        added += [s.SQL("ALTER COLUMN {} SET NOT NULL").format(s.Identifier(one)) for one in sink.key]
    else:
        statement = s.SQL("CREATE TABLE {} (LIKE {} INCLUDING CONSTRAINTS) WITH (autovacuum_enabled = off)")
        connection.execute(statement.format(stage, table))
        extra = [column.name for column in target.columns if column.name not in columns]
        added = [s.SQL("DROP COLUMN {}").format(s.Identifier(one)) for one in extra]
    if sink.mode != "append" or number:
        added.append(s.SQL("ADD COLUMN {} bigint NOT NULL").format(s.Identifier(ROW)))
    if added:
        connection.execute(s.SQL("ALTER TABLE {} {}").format(stage, s.SQL(", ").join(added)))


def keep_unique(connection: Any, sink: PostgreSQL, name: Name, keys: Iterable[Sequence[str]]) -> None:
    """Executor, on an empty stage: COPY refuses rows with a key that came before in this slice."""
    s = sql()
    for key in keys:
        listed = s.SQL(", ").join(map(s.Identifier, key))
        connection.execute(s.SQL("CREATE UNIQUE INDEX ON {} ({})").format(identifier(sink, str(name)), listed))


def taken(connection: Any, sink: PostgreSQL, name: Name, key: Sequence[str]) -> tuple[Any, ...] | None:
    """Executor: a key that is in the target already, or twice in this slice; None if there is none."""
    s = sql()
    stage, target = identifier(sink, str(name)), sink.identifier
    listed = s.SQL(", ").join(s.SQL("staged.{}").format(s.Identifier(one)) for one in key)
    same = s.SQL(" AND ").join(s.SQL("target.{0} = staged.{0}").format(s.Identifier(one)) for one in key)
    there = s.SQL("SELECT {} FROM {} AS staged JOIN {} AS target ON {} LIMIT 1").format(listed, stage, target, same)
    whole = s.SQL(" AND ").join(s.SQL("staged.{} IS NOT NULL").format(s.Identifier(one)) for one in key)
    twice = s.SQL("SELECT {0} FROM {1} AS staged WHERE {2} GROUP BY {0} HAVING count(*) > 1 LIMIT 1").format(
        listed, stage, whole
    )
    found: tuple[Any, ...] | None = connection.execute(twice).fetchone() or connection.execute(there).fetchone()
    return found


def rehearse(
    connection: Any, sink: PostgreSQL, name: Name, columns: Sequence[str], numbers: tuple[int, int] | None = None
) -> None:
    """Executor: move the rows, have every constraint look at them, and take it all back.

    ``numbers`` are those of the rows to move, from and to; None: all.
    """
    connection.execute("SAVEPOINT rehearsal; SET CONSTRAINTS ALL IMMEDIATE")
    connection.execute(moving(sink, str(name), columns, numbers))
    connection.execute("ROLLBACK TO rehearsal; RELEASE rehearsal")


def commit_stages(connection: Any, sink: PostgreSQL, names: Sequence[Name]) -> list[Outcome]:
    """Driver: these, in one transaction. psycopg's errors come through; then nothing was moved."""
    there = waiting(connection, sink, map(str, names))
    done = committed(connection, sink, map(str, names))
    s = sql()
    waits_ms = s.Literal(int(duration_s(sink.lock_timeout) * 1000))
    connection.execute(s.SQL("BEGIN; SET LOCAL lock_timeout TO {}").format(waits_ms))
    for name in names:
        if str(name) in there and str(name) not in done:
            connection.execute(token(sink, name))
            connection.execute(moving(sink, str(name), there[str(name)]))
            connection.execute(s.SQL("DROP TABLE {}").format(identifier(sink, str(name))))
    connection.execute("COMMIT")
    return [
        Outcome.ALREADY_COMMITTED if str(name) in done else Outcome.COMMITTED if str(name) in there else Outcome.EXPIRED
        for name in names
    ]


def waiting(connection: Any, sink: PostgreSQL, names: Iterable[str]) -> Mapping[str, list[str]]:
    """Those of these that are staged, with the columns of their rows. Asked before the tokens: essay above."""
    found = connection.execute(
        "SELECT c.relname::text, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE n.nspname = %s AND c.relname = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 1",
        [sink.schema, list(names)],
    ).fetchall()
    return {name: [column for column in columns if column not in (ROW, DELETED)] for name, columns in found}


def moving(sink: PostgreSQL, name: str, columns: Sequence[str], numbers: tuple[int, int] | None = None) -> Any:
    """The statement that moves one slice: all rows, or for each key the last one. With ``numbers`` a part of it."""
    s = sql()
    stage, target = identifier(sink, name), sink.identifier
    if numbers is not None:
        stage = s.SQL("(SELECT * FROM {} WHERE {row} >= {} AND {row} < {}) AS part").format(
            stage, *map(s.Literal, numbers), row=s.Identifier(ROW)
        )
    listed = s.SQL(", ").join(map(s.Identifier, columns))
    if sink.mode == "append":
        return s.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(target, listed, listed, stage)
    key = s.SQL(", ").join(map(s.Identifier, sink.key))
    others = [column for column in columns if column not in sink.key]
    changed = s.SQL(", ").join(s.SQL("{0} = excluded.{0}").format(s.Identifier(one)) for one in others)
    then = s.SQL("DO UPDATE SET {}").format(changed) if others else s.SQL("DO NOTHING")
    last = s.SQL("SELECT DISTINCT ON ({}) * FROM {} ORDER BY {}, {} DESC").format(key, stage, key, s.Identifier(ROW))
    if sink.mode == "upsert":
        return s.SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) AS last ON CONFLICT ({}) {}").format(
            target, listed, listed, last, key, then
        )
    same = s.SQL(" AND ").join(s.SQL("target.{0} = last.{0}").format(s.Identifier(one)) for one in sink.key)
    return s.SQL(
        "WITH last AS MATERIALIZED ({last}), gone AS (DELETE FROM {target} AS target USING last "
        "WHERE last.{deleted} AND {same}) INSERT INTO {target} ({listed}) SELECT {listed} FROM last "
        "WHERE NOT last.{deleted} ON CONFLICT ({key}) {then}"
    ).format(last=last, target=target, deleted=s.Identifier(DELETED), same=same, listed=listed, key=key, then=then)


def identifier(sink: PostgreSQL, name: str) -> Any:
    return sql().Identifier(sink.schema, name)
