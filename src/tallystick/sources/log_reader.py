"""A receiver log as a Python streaming data source of Spark: records by offset.

As with `offset_reader.py`, the *runner* says what may be read and cuts it, and the *tasks* read one range each,
straight from the segments: their folder must be one that all of them see. An offset names the log too, so that a log
that was replaced is noticed instead of being read from the middle.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from tallystick.errors import SourceError, TallystickError
from tallystick.receiver.format import Record
from tallystick.receiver.process import ReceiverSpec, ensure_received
from tallystick.receiver.reading import LogReader
from tallystick.receiver.status import is_received, read_status
from tallystick.sources.declared import DeclaredDataSource, declare
from tallystick.sources.rows import arrow_schema

BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Records:
    """Which log is read and how. ``spec`` starts its receiver again if that is killed; None: it is not ours."""

    folder: str
    encoding: str | None
    partitions: int
    per_epoch: int | None
    spec: ReceiverSpec | None
    driver: int


def columns(encoding: str | None) -> StructType:
    return StructType(
        [
            StructField("value", StringType() if encoding is not None else BinaryType(), False),
            StructField("id", StringType(), True),
            StructField("received", TimestampType(), False),
            StructField("attributes", MapType(StringType(), StringType(), False), False),
            StructField("offset", LongType(), False),
        ]
    )


class Range(InputPartition):
    """The offsets from ``start`` up to, not including, ``stop``."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__((start, stop))
        self.start = start
        self.stop = stop


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, records: Records) -> None:
        self._records = records
        self._log = LogReader(Path(records.folder))
        self._end: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tasks start no receivers, and need no passwords."""
        return self.__dict__ | {"_records": replace(self._records, spec=None)}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The oldest record that is there: a new log is read from its beginning."""
        return self._offset(self._log.first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._records.per_epoch
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = self._log.durable

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Runner, asked again and again: also sees to it that the receiver lives."""
        self._need_same_log(start)
        self._need_receiver()
        begin = int(start["offset"])
        durable = max(begin, self._log.durable if self._end is None else self._end)
        return self._offset(min(durable, begin + limit.max_rows) if isinstance(limit, ReadMaxRows) else durable)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(self._log.durable)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Runner. Cuts depend on the two offsets only, so that a replay has the same slices."""
        self._need_same_log(end)
        begin, stop, count = int(start["offset"]), int(end["offset"]), self._records.partitions
        edges = [begin + (stop - begin) * number // count for number in range(count + 1)]
        return [Range(first, last) for first, last in itertools.pairwise(edges) if first < last]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Task. May run more than once for the same range; gives the same rows each time."""
        if not isinstance(partition, Range):
            raise TallystickError(f"not a range of a receiver log: {partition!r}")
        found = self._log.records(partition.start, partition.stop)
        while batch := list(itertools.islice(found, BATCH_ROWS)):
            yield to_batch(batch, self._records.encoding)

    def commit(self, end: dict[str, Any]) -> None:
        """Runner: these epochs are in Spark's commit log, so nobody asks for them again."""
        self._log.settle(int(end["offset"]))

    def _offset(self, offset: int) -> dict[str, Any]:
        return {"log": self._log.log_id or "", "offset": offset}

    def _need_same_log(self, offset: dict[str, Any]) -> None:
        found = self._log.log_id or ""
        if offset["log"] not in ("", found):
            raise SourceError(
                f"the checkpoint has read the receiver log {offset['log']}, but {self._records.folder} holds the log "
                f"{found or 'of nobody'}: it was replaced. put the old folder back, or start with a new checkpoint"
            )

    def _need_receiver(self) -> None:
        """A receiver that was killed is started again; what it failed of is told once, by the epoch that finds it."""
        spec = self._records.spec
        folder = Path(self._records.folder)
        if spec is None or is_received(folder):
            return
        status = read_status(folder)
        if status.get("state") == "failed":
            raise SourceError(f"the receiver of {folder} failed: {status.get('error')}")
        ensure_received(spec, self._records.driver)


def to_batch(found: Sequence[tuple[int, Record]], encoding: str | None) -> pa.RecordBatch:
    values = [record.value for _, record in found]
    given = {
        "value": values if encoding is None else [value.decode(encoding) for value in values],
        "id": [record.id or None for _, record in found],
        "received": [record.received_us for _, record in found],
        "attributes": [list(record.attributes.items()) for _, record in found],
        "offset": [offset for offset, _ in found],
    }
    return pa.RecordBatch.from_pydict(given, schema=arrow_schema(columns(encoding)))


def data_source(registered: str, records: Records) -> type[DeclaredDataSource]:
    """A data source class for one log."""
    return declare(registered, columns(records.encoding), lambda: LogStreamReader(records))
