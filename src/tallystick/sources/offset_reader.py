"""A collection as a Python streaming data source of Spark: rows by offset, released in epochs.

Spark runs the pieces in three places, each a Python process of its own:

- *runner*, one per query, on the driver's machine: says what may be read (`latestOffset`) and cuts it (`partitions`);
- *planner*, once per query: pickles the reader for the tasks;
- *tasks*: `read` one partition each.

Rows that are listed live in the runner only; each partition carries its own rows, so that a task gets what it reads
and not the whole collection. A function travels to the tasks and makes its rows there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tallystick.errors import ConfigError, TallystickError
from tallystick.sources.declared import DeclaredDataSource, declare
from tallystick.sources.rows import Row, arrow_schema, to_batch

BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Rows:
    """What a collection holds and how it is released. Exactly one of ``listed`` and ``function`` is set."""

    length: int
    schema: StructType
    listed: pa.RecordBatch | None
    function: Callable[[int], Row] | None
    per_epoch: int | None
    per_second: float | None
    partitions: int
    delay_s: float = 0.0


class Part(InputPartition):
    """The offsets from ``start`` up to, not including, ``stop``; ``rows`` as an Arrow stream if they are listed."""

    def __init__(self, start: int, stop: int, rows: bytes | None) -> None:
        super().__init__((start, stop))
        self.start = start
        self.stop = stop
        self.rows = rows


class OffsetReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._all_due = rows.per_second is None and not rows.delay_s
        self._began: tuple[float, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need no listed rows: their partition carries them."""
        return self.__dict__ | {"_rows": replace(self._rows, listed=None)}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._rows.per_epoch is None else ReadMaxRows(self._rows.per_epoch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """A run that ends when everything is read does not wait for the clock."""
        self._all_due = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Runner, asked again and again. Either the start again (nothing is due yet) or the end of a whole epoch."""
        begin, length = start["offset"], self._rows.length
        if begin > length:
            raise ConfigError(
                f"the checkpoint has read {begin} rows, but the collection holds {length}: rows were taken away. "
                "give it at least the rows it had, or start with a new checkpoint"
            )
        due = self._due(begin)
        if not isinstance(limit, ReadMaxRows):
            return {"offset": due}
        end = min(begin + limit.max_rows, length)
        # An epoch is released whole, when its first row is due: its cuts must not depend on the clock.
        return {"offset": end if begin < due else begin}

    def _due(self, begin: int) -> int:
        """Up to where rows are due: the first row of a run at once, the others in step with the clock.

        Without a delay something is due at the start: Spark makes an epoch of the first answer even if it is empty.
        """
        if self._all_due:
            return self._rows.length
        now = time.monotonic()
        if self._began is None:
            self._began = (now + self._rows.delay_s, begin)
        since, first = self._began
        if now < since:
            return begin
        if self._rows.per_second is None:
            return self._rows.length
        return max(begin, min(self._rows.length, first + 1 + int((now - since) * self._rows.per_second)))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"offset": self._rows.length}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Runner. Cuts depend on the two offsets only, so that a replay has the same slices."""
        return [
            Part(first, stop, self._carried(first, stop)) for first, stop in self._cuts(start["offset"], end["offset"])
        ]

    def _cuts(self, start: int, end: int) -> list[tuple[int, int]]:
        count = self._rows.partitions
        edges = [start + (end - start) * number // count for number in range(count + 1)]
        return [(first, stop) for first, stop in itertools.pairwise(edges) if first < stop]

    def _carried(self, start: int, stop: int) -> bytes | None:
        if self._rows.listed is None:
            return None
        _need_rows(self._rows, stop)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, self._rows.listed.schema) as stream:
            stream.write_batch(self._rows.listed.slice(start, stop - start))
        return bytes(buffer.getvalue())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Task. May run more than once for the same partition; gives the same rows each time."""
        if not isinstance(partition, Part):
            raise TallystickError(f"not a part of a collection: {partition!r}")
        if partition.rows is not None:
            return _carried_batches(partition.rows)
        if self._rows.function is None:
            raise TallystickError(f"rows {partition.start} to {partition.stop} came without their content")
        return _computed_batches(self._rows.function, arrow_schema(self._rows.schema), partition)


def range_batch(rows: Rows, start: int, stop: int) -> pa.RecordBatch:
    """The rows from ``start`` up to, not including, ``stop``."""
    _need_rows(rows, stop)
    if rows.listed is not None:
        return rows.listed.slice(start, stop - start)
    if rows.function is None:
        raise TallystickError(f"a collection of {rows.length} rows has neither a list nor a function")
    return to_batch([rows.function(offset) for offset in range(start, stop)], arrow_schema(rows.schema), start)


def _need_rows(rows: Rows, stop: int) -> None:
    if stop > rows.length:
        raise ConfigError(
            f"the checkpoint is to read row {stop - 1} again, but the collection holds {rows.length}: rows "
            "were taken away. give it at least the rows it had"
        )


def _computed_batches(function: Callable[[int], Row], schema: pa.Schema, part: Part) -> Iterator[pa.RecordBatch]:
    for first in range(part.start, part.stop, BATCH_ROWS):
        stop = min(first + BATCH_ROWS, part.stop)
        yield to_batch([function(offset) for offset in range(first, stop)], schema, first)


def _carried_batches(stream: bytes) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(stream) as reader:
        for batch in reader:
            yield from (batch.slice(first, BATCH_ROWS) for first in range(0, batch.num_rows, BATCH_ROWS))


def data_source(registered: str, rows: Rows) -> type[DeclaredDataSource]:
    """A data source class that holds these rows."""
    return declare(registered, rows.schema, lambda: OffsetReader(rows))
