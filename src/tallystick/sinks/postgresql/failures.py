"""What the server's answers mean: for a row that is refused, and for a commit that did not go through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tallystick.errors import RowRefusedError, SinkError
from tallystick.records import Outcome
from tallystick.sinks.postgresql.client import psycopg, secretless
from tallystick.sinks.postgresql.rows import row_at, shown

GONE = "42704"
"""undefined_object: no prepared transaction of that name, be it ended or never begun."""
DISABLED = "55000"
LOCK_TIMEOUT = "55P03"
UNIQUE_VIOLATION = "23505"
_FOR_GOOD = ("0A", "22", "23", "42", "44", "54", "P0")
"""Classes of SQLSTATE that waiting does not cure: a value, a constraint, a name, a right, a limit of the server, a
trigger's own error."""
_ROWS = ("22", "23", "44", "54000", "P0")
"""54000: the row is too large for a page, or a value for an index."""


def outcome_of(error: Exception) -> Outcome:
    """Of a commit that failed this way. Without a state nobody knows whether the server still heard it."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is None:
        return Outcome.UNKNOWN
    return Outcome.REFUSED if state.startswith(_FOR_GOOD) else Outcome.RETRY_LATER


def is_about_rows(error: Exception) -> bool:
    """Whether the server refuses a row, and not the statement or the connection."""
    return (getattr(error, "sqlstate", None) or "").startswith(_ROWS)


def words(error: Exception, parameters: Mapping[str, str]) -> str:
    """What the server said: message, detail, hint."""
    diag: Any = getattr(error, "diag", None)
    parts = [diag.message_primary, diag.message_detail, diag.message_hint] if diag is not None else []
    said = ". ".join(part.rstrip(".") for part in parts if part) or str(error)
    return secretless(said, parameters)


def refusal(
    error: Exception, table: str, parameters: Mapping[str, str], rows: pa.RecordBatch | None, key: Sequence[str]
) -> SinkError:
    """What a slice fails with: the row's key, if it is known which row it was, and the server's words."""
    state: str = getattr(error, "sqlstate", None) or ""
    said = words(error, parameters)
    if state == LOCK_TIMEOUT:
        return SinkError(
            f"postgresql: {table}: waited in vain for a lock ({said}). another transaction has written a row with the "
            "same unique key and is not ended: of another slice of this epoch, if two slices hold the same key. make "
            "keys unique within an epoch, or use mode='upsert'"
        )
    if not is_about_rows(error):
        return SinkError(f"postgresql: {table} did not take the rows: {said}")
    place = row_at(rows, error.diag.context, state) if rows is not None and isinstance(error, psycopg().Error) else None
    which = f"the row {shown(rows, place, key)}" if place is not None else "a row"
    return RowRefusedError(
        f"postgresql: {table} refuses {which}: {said}. nothing of the epoch was published. correct the row or the "
        "table, then start the job again"
    )


def not_unique(table: str, columns: str, values: str) -> RowRefusedError:
    """In the server's own words for it, though it was only asked."""
    return RowRefusedError(
        f"postgresql: {table} refuses a row: Key ({columns})=({values}) already exists, in the table or in this slice. "
        "nothing of the epoch was published. correct the rows or the table, or use mode='upsert'; then start the job "
        "again"
    )
