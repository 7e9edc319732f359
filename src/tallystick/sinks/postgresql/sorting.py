"""Executor: rows sorted into those that the table takes and those that it refuses, for jobs with dead letters.

1.  *Copied in a savepoint.* If the server refuses a row it says which line; the rows before it are copied again, then
    it alone, and it goes on after it. If it does not say (a foreign key is looked at when the COPY ends), the rows
    are halved until one is left. Only a row that is refused alone is refused, so a line that was counted wrongly
    costs time and nothing else.
2.  *Keys that came before in this slice* are refused by the COPY into the stage, which has the unique indexes of the
    target: looking for each of them in a stage without an index takes time that grows with its square.
3.  *Compared and rehearsed, batch by batch*, if rows are staged: keys that are in the table, and where there is more
    than keys, the move itself, taken back. What is refused is deleted from the stage.

Only errors that are about values, constraints and triggers' own words count as refusals; all others fail the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.sinks.postgresql import stage
from tallystick.sinks.postgresql.client import psycopg, secretless, sql
from tallystick.sinks.postgresql.failures import UNIQUE_VIOLATION, is_about_rows, words
from tallystick.sinks.postgresql.keys import Watch, can_be_watched
from tallystick.sinks.postgresql.rows import longest_bytes, row_at
from tallystick.sinks.refusals import Refusal

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.transaction import Transaction

Copy = Callable[[pa.RecordBatch], None]


def copied(transaction: Transaction, rows: pa.RecordBatch, copy: Copy, first: int = 0) -> Iterator[Refusal]:
    """Essay 1. ``first`` is the place of the first of these rows in its batch."""
    while rows.num_rows:
        error = _tried(transaction, lambda rows=rows: copy(rows))  # type: ignore[misc]
        if error is None:
            return
        if rows.num_rows == 1:
            yield Refusal(first, _why(error, transaction))
            return
        place = row_at(rows, error.diag.context, error.sqlstate)
        cuts = (place, place + 1) if place is not None else (rows.num_rows // 2,)
        for start, end in zip((0, *cuts[:-1]), cuts, strict=True):
            yield from copied(transaction, rows.slice(start, end - start), copy, first + start)
        rows, first = rows.slice(cuts[-1]), first + cuts[-1]


def staged(transaction: Transaction, first: int, rows: pa.RecordBatch) -> Iterator[Refusal]:
    """Essay 3, for rows that are in the stage under the numbers from ``first`` on; places are counted from there."""
    for unique in transaction.to_compare:
        if _may_be_taken(transaction, unique, rows):
            for number, key in _taken(transaction, unique, first):
                yield Refusal(number - first, f"Key ({', '.join(unique)})=({key}) already exists")
    sink, long = transaction.sink, longest_bytes(rows, transaction.target.indexed)
    if transaction.target.must_rehearse(sink.mode, sink.key, transaction.columns, long):
        yield from _rehearsed(transaction, first, first, rows.num_rows)


def _why(error: Any, transaction: Transaction) -> str:
    """The server's words; of a key that is in the stage already without the name of the index there."""
    if error.sqlstate == UNIQUE_VIOLATION and error.diag.schema_name == transaction.sink.schema:
        return secretless(error.diag.message_detail or "", transaction.sink.parameters).rstrip(".")
    return words(error, transaction.sink.parameters)


def _may_be_taken(transaction: Transaction, key: Sequence[str], rows: pa.RecordBatch) -> bool:
    if not can_be_watched(transaction.target, rows.schema, key):
        return True
    watch = Watch(key[0])
    watch.see(rows)
    return watch.in_target(transaction.connection, transaction.sink)


def _tried(transaction: Transaction, step: Callable[[], Any]) -> Any:
    """The error of a row that is refused, with everything as it was before; None if all went well."""
    connection = transaction.connection
    connection.execute("SAVEPOINT refusable")
    try:
        step()
    except psycopg().Error as error:
        if not is_about_rows(error):
            raise
        connection.execute("ROLLBACK TO refusable; RELEASE refusable")
        return error
    connection.execute("RELEASE refusable")
    return None


def _taken(transaction: Transaction, key: Sequence[str], first: int) -> list[tuple[int, str]]:
    """Rows of the newest batch whose key is in the table. They are deleted from the stage."""
    s = sql()
    same = s.SQL(" AND ").join(s.SQL("target.{0} = staged.{0}").format(s.Identifier(one)) for one in key)
    shown = s.SQL(", ").join(s.SQL("staged.{}").format(s.Identifier(one)) for one in key)
    statement = s.SQL(
        "DELETE FROM {stage} AS staged USING {target} AS target WHERE staged.{row} >= {first} AND {same} "
        "RETURNING staged.{row}, concat_ws(', ', {shown})"
    ).format(
        stage=stage.identifier(transaction.sink, str(transaction.name)),
        target=transaction.sink.identifier,
        row=s.Identifier(stage.ROW),
        first=s.Literal(first),
        same=same,
        shown=shown,
    )
    found: list[tuple[int, str]] = transaction.connection.execute(statement).fetchall()
    return sorted(found)


def _rehearsed(transaction: Transaction, base: int, first: int, count: int) -> Iterator[Refusal]:
    """The rows numbered from ``first`` on, halved until only those are left that are refused alone."""
    if count == 0:
        return
    sink, name, connection = transaction.sink, transaction.name, transaction.connection
    error = _tried(
        transaction, lambda: stage.rehearse(connection, sink, name, transaction.columns, (first, first + count))
    )
    if error is None:
        return
    if count > 1:
        half = count // 2
        yield from _rehearsed(transaction, base, first, half)
        yield from _rehearsed(transaction, base, first + half, count - half)
        return
    s = sql()
    table, row = stage.identifier(sink, str(name)), s.Identifier(stage.ROW)
    connection.execute(s.SQL("DELETE FROM {} WHERE {} = {}").format(table, row, s.Literal(first)))
    yield Refusal(first - base, words(error, sink.parameters))
