"""Executor: one slice on its way into PostgreSQL, in one session, which bears the name of its transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.config import duration_s
from tallystick.errors import SinkError
from tallystick.sinks.base import SliceContext
from tallystick.sinks.postgresql import keys, sorting, stage
from tallystick.sinks.postgresql.catalog import Target, look
from tallystick.sinks.postgresql.client import psycopg, sql, unreachable
from tallystick.sinks.postgresql.failures import not_unique, refusal, words
from tallystick.sinks.postgresql.names import Name
from tallystick.sinks.postgresql.rows import blocks, longest_bytes, numbered
from tallystick.sinks.postgresql.tokens import token
from tallystick.sinks.refusals import Refusal

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

PREPARED, STAGED = "prepared", "staged"
SLOT_PATIENCE_S = 10.0
IDLE_AT_MOST_S = 2_000_000.0
"""What the server takes as a time-out."""


def begin(sink: PostgreSQL, context: SliceContext) -> Transaction:
    """Open the session and the transaction; `SinkError` if the server or the table is not there."""
    name = Name.of(sink.prefix(context.job_id), context)
    try:
        connection = sink.pool().take()
    except psycopg().Error as cause:
        raise unreachable(cause, sink.server, sink.parameters) from cause
    try:
        target = _begun(connection, sink, name, context.epoch_s)
    except psycopg().Error as cause:
        connection.close()
        raise SinkError(f"postgresql: {sink.server}: {words(cause, sink.parameters)}") from cause
    except BaseException:
        connection.close()
        raise
    return Transaction(sink, name, connection, sink.way(target), target, context.dead_letters)


def _begun(connection: Any, sink: PostgreSQL, name: Name, epoch_s: float) -> Target:
    s = sql()
    statement = s.SQL(
        "SET application_name TO {}; BEGIN; SET LOCAL lock_timeout TO {}; "
        "SET LOCAL idle_in_transaction_session_timeout TO {}"
    )
    waits_ms = s.Literal(int(duration_s(sink.lock_timeout) * 1000))
    idle_ms = s.Literal(int(min(epoch_s + 60, IDLE_AT_MOST_S) * 1000))
    connection.execute(statement.format(s.Literal(str(name)), waits_ms, idle_ms))
    target = look(connection, sink.quoted)
    if target is None:
        raise SinkError(f"postgresql: the table {sink.table} is not there. make it again and start the job again")
    return target


@dataclass
class Transaction:
    """``columns`` are those of the rows that go into the table, known with the first batch, and ``watched`` the unique
    keys among them that `keys` can watch.
    """

    sink: PostgreSQL
    name: Name
    connection: Any
    way: str
    target: Target
    dead_letters: bool = False
    columns: Sequence[str] = ()
    rows: int = 0
    watched: dict[str, keys.Watch] = field(default_factory=dict)
    indexed_bytes: int = 0

    @property
    def numbers_rows(self) -> bool:
        return self.sink.mode != "append" or (self.dead_letters and self.way == STAGED)

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        given, flag = rows, self.sink.delete_flag
        if not self.columns:
            self._try(None, lambda: self._begin([name for name in rows.schema.names if name != flag]))
            self._watch(rows.schema)
        if flag is not None:
            rows = rows.rename_columns([stage.DELETED if name == flag else name for name in rows.schema.names])
        if self.numbers_rows:
            rows = numbered(rows, stage.ROW, self.rows)
        refused: list[Refusal] = []
        if rows.num_rows:
            self._try(given, lambda: refused.extend(self._sorted(rows)) if self.dead_letters else self._copy(rows))
            for watch in self.watched.values():
                watch.see(rows)
            self.indexed_bytes = max(self.indexed_bytes, longest_bytes(rows, self.target.indexed))
        self.rows += rows.num_rows
        return refused

    def _begin(self, columns: Sequence[str]) -> None:
        self.columns = columns
        if self.way == STAGED:
            stage.make(self.connection, self.sink, self.target, self.name, columns, self.numbers_rows)
            if self.dead_letters:
                stage.keep_unique(self.connection, self.sink, self.name, self.to_compare)
        elif self.dead_letters:
            self.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    @property
    def to_compare(self) -> list[list[str]]:
        """The unique keys of the target that staged rows are compared with."""
        return self.target.to_compare(self.sink.mode, self.columns)

    def _watch(self, schema: pa.Schema) -> None:
        if self.way == STAGED:
            watchable = [key for key in self.to_compare if keys.can_be_watched(self.target, schema, key)]
            self.watched = {column: keys.Watch(column) for (column,) in watchable}

    def _sorted(self, rows: pa.RecordBatch) -> list[Refusal]:
        """Those that are refused; the others are where `_copy` would have put them."""
        refused = list(sorting.copied(self, rows, self._copy))
        if self.way == STAGED:
            refused += sorting.staged(self, self.rows, rows)
        return sorted(refused)

    def _copy(self, rows: pa.RecordBatch) -> None:
        """One COPY per batch: if the server refuses a row, the batch is still at hand to tell which."""
        s = sql()
        into = stage.identifier(self.sink, str(self.name)) if self.way == STAGED else self.sink.identifier
        listed = s.SQL(", ").join(map(s.Identifier, rows.schema.names))
        cursor = self.connection.cursor()
        with cursor.copy(s.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(into, listed)) as copy:
            for block in blocks(rows):
                copy.write(block)
        if cursor.rowcount != rows.num_rows:
            raise SinkError(
                f"postgresql: {self.sink.table} kept {cursor.rowcount} of {rows.num_rows} rows and said nothing: a "
                "trigger or rule leaves some out. remove it, or filter the rows before the sink"
            )

    def seal(self) -> None:
        """Make it durable, under its name, with everything checked that can be checked."""
        self._try(None, self._prepare if self.way == PREPARED else self._stage)

    def _prepare(self) -> None:
        self.connection.execute(token(self.sink, self.name))
        self._await_slot()
        self.connection.execute(sql().SQL("PREPARE TRANSACTION {}").format(sql().Literal(str(self.name))))

    def _await_slot(self) -> None:
        """Another job may give one back. What this epoch itself has taken it keeps, so patience is bounded."""
        slots, deadline = self.target.slots, time.monotonic() + SLOT_PATIENCE_S
        while True:
            (taken,) = self.connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone()
            if taken < slots:
                return
            if time.monotonic() > deadline:
                raise SinkError(
                    f"postgresql: {self.sink.server} has no place for one more prepared transaction: all {slots} are "
                    "taken. needed one for each slice of an epoch, and of every other job at the same time. raise "
                    "max_prepared_transactions and restart the server, let the job have fewer slices, or use "
                    "via='staged'"
                )
            time.sleep(0.1)

    def _stage(self) -> None:
        if self.rows:
            self._check_stage()
        self.connection.execute("COMMIT")

    def _check_stage(self) -> None:
        mode, key = self.sink.mode, self.sink.key
        for unique in self.to_compare:
            watch = self.watched.get(unique[0]) if len(unique) == 1 else None
            if watch is not None and watch.rising and not watch.in_target(self.connection, self.sink):
                continue
            taken = stage.taken(self.connection, self.sink, self.name, unique)
            if taken is not None:
                raise not_unique(self.sink.table, ", ".join(unique), ", ".join(map(str, taken)))
        if self.target.must_rehearse(mode, key, self.columns, self.indexed_bytes):
            stage.rehearse(self.connection, self.sink, self.name, self.columns)

    def _try(self, rows: pa.RecordBatch | None, step: Callable[[], None]) -> None:
        """``rows`` are those that the server may refuse, as the job gave them."""
        try:
            step()
        except psycopg().Error as cause:
            key = self.sink.key or self.target.primary_key
            raise refusal(cause, self.sink.table, self.sink.parameters, rows, key) from cause
