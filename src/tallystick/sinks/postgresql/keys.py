"""Executor: keys of staged rows that cannot be taken, seen without looking for each of them.

Events mostly come with a number that grows. While the rows of a slice come in rising order of such a key, no two of
them are equal; and one look into the index of the target tells that it has none between the smallest and the largest.
Only where that does not tell, every key is looked for (`stage.taken`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallystick.sinks.postgresql.catalog import Target
from tallystick.sinks.postgresql.client import sql

if TYPE_CHECKING:
    from tallystick.sinks.postgresql.sink import PostgreSQL

_WHOLE = ("smallint", "integer", "bigint")
"""Types of the target's column in which two numbers that differ still differ."""


def can_be_watched(target: Target, rows: pa.Schema, key: Sequence[str]) -> bool:
    """Whether the key is one whole number, in the rows and in the table."""
    if len(key) != 1 or not pa.types.is_integer(rows.field(key[0]).type):
        return False
    return any(column.name == key[0] and column.type in _WHOLE for column in target.columns)


class Watch:
    """The smallest and the largest number of a column so far, and whether each was larger than the one before."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.rising = True
        self.bounds: tuple[int, int] | None = None

    def see(self, rows: pa.RecordBatch) -> None:
        numbers = rows[self.column]
        found = pc.min_max(numbers)
        low, high = found["min"].as_py(), found["max"].as_py()
        if numbers.null_count or (self.bounds is not None and low <= self.bounds[1]):
            self.rising = False
        self.rising = self.rising and _rises(numbers)
        if low is not None:
            before = self.bounds or (low, high)
            self.bounds = min(low, before[0]), max(high, before[1])

    def in_target(self, connection: Any, sink: PostgreSQL) -> bool:
        """Whether the target has a number between the bounds; the order keeps the server to the index."""
        if self.bounds is None:
            return False
        low, high = self.bounds
        statement = sql().SQL("SELECT {0} FROM {1} WHERE {0} >= {2} ORDER BY {0} LIMIT 1")
        column = sql().Identifier(self.column)
        found = connection.execute(statement.format(column, sink.identifier, sql().Literal(low))).fetchone()
        return found is not None and found[0] <= high


def _rises(numbers: pa.Array) -> bool:
    values = numbers.to_numpy(zero_copy_only=False)
    return bool(np.all(values[1:] > values[:-1]))
