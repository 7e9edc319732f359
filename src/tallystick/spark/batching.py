"""How many rows Spark hands to a Python worker at once: adapted from epoch to epoch to the rows that were seen.

Spark ends a batch after 10,000 rows or 64 MB, and to know the bytes it adds up all of its columns again after every
row. That is 43 % of the time that a task of ours spends in the JVM (rows of 4 columns and 90 bytes). It can only be
told not to ask at all, so the count of rows has to bound the memory:

1.  *Nothing is known, so Spark asks.* A query begins with Spark's own limits, also after every restart: an epoch that
    proves too large for the memory is done again with them.
2.  *What was seen lately counts.* While the largest rows of the last epochs are small, and enough of them were seen, a
    batch has so many that it holds 4 MB, 10,000 at the most. A single giant among them does no harm; if all rows
    became a hundred times larger within one epoch, a batch would have 400 MB.
3.  *Only our own step.* The limits hold for every Python step of a query. With one of the user's in it, whose rows
    nobody here has seen, Spark's stay; and so do limits that the user has set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
DO_NOT_ASK = str((1 << 31) - 1)
ROWS_MOST = 10_000
ROWS_FEWEST = 100
"""With fewer per batch rows are so large that asking costs nothing to speak of."""
BATCH_BYTES = 4 << 20
ENOUGH_ROWS = 1_000
"""Of one slice, before its rows say anything about those to come."""
EPOCHS_REMEMBERED = 16


@dataclass(frozen=True)
class Seen:
    """What one task was handed."""

    rows: int
    bytes: int


class Batching:
    """Driver: the limits of one query's next epoch. Give it every epoch's `Seen`."""

    def __init__(self, adapts: bool) -> None:
        self._adapts = adapts
        self._epochs: deque[tuple[int, float]] = deque(maxlen=EPOCHS_REMEMBERED)  # rows, bytes of a row
        self._rows: int | None = None

    def saw(self, spark: SparkSession, slices: Sequence[Seen]) -> None:
        """``spark`` is the session of the query, which plans each epoch by the settings that it finds there."""
        full = [seen for seen in slices if seen.rows]
        if not self._adapts or not full:
            return
        self._epochs.append((max(seen.rows for seen in full), max(seen.bytes / seen.rows for seen in full)))
        rows = self._rows_per_batch()
        if rows == self._rows:
            return
        self._rows = rows
        for name, value in ((ROWS, str(rows)), (BYTES, DO_NOT_ASK)):
            if rows is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)

    def _rows_per_batch(self) -> int | None:
        """None: leave it to Spark. Powers of two, so that rows which vary a little change nothing."""
        if max(rows for rows, _ in self._epochs) < ENOUGH_ROWS:
            return None
        fitting = int(BATCH_BYTES / max(1.0, *(size for _, size in self._epochs)))
        if fitting >= ROWS_MOST:
            return ROWS_MOST
        return 1 << (fitting.bit_length() - 1) if fitting >= ROWS_FEWEST else None


def may_adapt(rows: DataFrame) -> bool:
    """Driver, before the start: nobody has set limits, and the query has no Python step but ours. Essay 3."""
    chosen = any(rows.sparkSession.conf.get(name, None) is not None for name in (ROWS, BYTES))
    return not chosen and not _runs_python(rows)


def _runs_python(rows: DataFrame) -> bool:
    """A plan within the plan counts as Python, too: table functions are there, and nobody looks into it."""
    plan: Any = rows._jdf.queryExecution().analyzed()
    jvm: Any = rows.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return any(plan.containsPattern(pattern) for pattern in (patterns.PYTHON_UDF(), patterns.PLAN_EXPRESSION()))
