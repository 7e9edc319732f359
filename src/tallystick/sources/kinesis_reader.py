"""A Kinesis stream as a Python streaming data source of Spark: sequence numbers per shard as offsets.

Kinesis does not tell what its newest sequence number is: one has to read. So the *runner* reads ahead, shard by shard,
up to the limit of an epoch, and the last record of each shard becomes the offset. What it has read travels with the
partitions, one per shard; after a restart the runner has nothing, and the *tasks* read the same ranges again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from tallystick.errors import SourceError, TallystickError
from tallystick.kinesis.marks import Repeats
from tallystick.sources.declared import DeclaredDataSource, declare
from tallystick.sources.kinesis_aggregated import Unpacked, unpack
from tallystick.sources.kinesis_client import RECORDS_PER_CALL, KinesisClient
from tallystick.sources.kinesis_repeats import advance, kept, rebuilt, with_parents
from tallystick.sources.kinesis_shards import (
    BEGINNING,
    CLOSED,
    Shard,
    first_shards,
    is_drained,
    known_shards,
    sequence_of,
)
from tallystick.sources.rows import arrow_schema

COLUMNS = StructType(
    [
        StructField("value", BinaryType(), False),
        StructField("key", StringType(), False),
        StructField("shard", StringType(), False),
        StructField("sequence", StringType(), False),
        StructField("sub", LongType(), False),
        StructField("arrived", TimestampType(), True),
    ]
)
MALFORMED_SUB = -1
LIST_EVERY_S = 5.0
READ_AHEAD_S = 2.0
RETENTION_MARGIN_S = 60.0


@dataclass(frozen=True)
class Stream:
    """Which stream is read and how. ``starting`` is ``earliest``, ``latest`` or seconds since 1970.

    ``keep_malformed``: what cannot be unpacked is a row as it is, instead of an error.
    """

    client: KinesisClient
    starting: str
    per_epoch: int
    keep_malformed: bool = False


class ShardRange(InputPartition):
    """Records of one shard after ``start`` up to and with ``end``; ``rows`` as an Arrow stream if they are read."""

    def __init__(self, shard: Shard, start: str, end: str, anchors: Any, rows: bytes | None) -> None:
        super().__init__((shard.name, start, end))
        self.anchors = anchors
        self.shard = shard
        self.start = start
        self.end = end
        self.rows = rows


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._client = stream.client
        self._shards: dict[str, Shard] = {}
        self._listed_s = 0.0
        self._ahead: dict[tuple[str, str, str], list[Any]] = {}
        self._checked = False
        self._only_now = False
        self._done: set[str] = set()
        self._latest: dict[str, Any] | None = None
        self._repeats: dict[str, tuple[str | None, Repeats]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get what was read ahead with their partition."""
        return self.__dict__ | {"_ahead": {}, "_latest": None, "_repeats": {}}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        starting = self._stream.starting
        shards = self._list(now=True).values()
        if starting == "earliest":
            return _offset(dict.fromkeys(first_shards(list(shards)), BEGINNING))
        since = time.time() if starting == "latest" else float(starting)
        return _offset(dict.fromkeys(first_shards(list(shards)), f"@{since:.3f}"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._stream.per_epoch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Each shard is read until it has nothing more for now, once."""
        self._only_now = True
        self._list(now=True)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Runner, asked again and again: reads ahead, and says how far."""
        self._need_kept(start)
        before = start["shards"]
        positions = known_shards(before, self._list(now=self._awaits_children(before)).values())
        open_ones = [name for name, at in positions.items() if not is_drained(at) and name not in self._done]
        per_shard = max(1, (limit.max_rows if isinstance(limit, ReadMaxRows) else 10**9) // max(1, len(open_ones)))
        self._ahead = {}
        anchors = {name: self._anchors(start, name) for name in positions}
        for name in open_ones:
            positions[name] = self._read_ahead(name, positions[name], per_shard, anchors)
        self._latest = start if positions == before else _offset(positions, anchors)
        return self._latest

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Runner. One per shard that has moved, in the order of shards, so that a replay has the same slices."""
        moved = [
            (name, start["shards"].get(name, BEGINNING), at)
            for name, at in sorted(end["shards"].items())
            if sequence_of(at) is not None and sequence_of(at) != sequence_of(start["shards"].get(name, BEGINNING))
        ]
        return [
            ShardRange(self._shard(name), begin, at, self._anchors(start, name), self._carried(name, begin, at))
            for name, begin, at in moved
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Task. May run more than once for the same range; gives the same rows each time."""
        if not isinstance(partition, ShardRange):
            raise TallystickError(f"not a range of a shard: {partition!r}")
        if partition.rows is not None:
            with pa.ipc.open_stream(partition.rows) as stream:
                yield from stream
            return
        for records in _read_again(self._client, partition):
            yield to_batch(records, partition.shard, self._stream.keep_malformed)

    def _read_ahead(self, name: str, position: str, limit: int, anchors: dict[str, Any]) -> str:
        """The position after what was read; what was read is kept for the tasks, without repeats of our own sink."""
        records: list[Any] = []
        end, deadline = position, time.monotonic() + READ_AHEAD_S
        for page, behind_ms in self._client.read(name, position, limit):
            records += page
            if behind_ms is None:
                end = position + CLOSED
            page_limit = min(limit, RECORDS_PER_CALL)
            caught_up = behind_ms == 0 and len(page) < page_limit and not self._shard(name).closed
            if behind_ms is None or caught_up:
                self._done |= {name} if self._only_now else set()
                break
            if len(records) + page_limit > limit or time.monotonic() > deadline:
                break
        if records:
            closed = CLOSED if end.endswith(CLOSED) else ""
            end = records[-1]["SequenceNumber"] + closed
            repeats = self._known(name, position, anchors[name])
            self._ahead[name, position, end] = kept(records, repeats)
            self._repeats[name] = (sequence_of(end), repeats)
            anchors[name] = advance(anchors[name], name, records)
        return end

    def _known(self, name: str, position: str, anchors: Any) -> Repeats:
        """What was seen up to this position: taken out of memory, or read once more. Whoever fails loses it."""
        at, repeats = self._repeats.pop(name, (None, None))
        if repeats is not None and at == sequence_of(position):
            return repeats
        return rebuilt(self._client, anchors, name, position) if anchors else Repeats()

    def _anchors(self, offset: Mapping[str, Any], name: str) -> Any:
        return with_parents(offset.get("marks", {}), name, self._shard(name).parents)

    def _carried(self, name: str, start: str, end: str) -> bytes | None:
        records = self._ahead.get((name, start, end))
        if records is None:
            return None
        batch = to_batch(records, self._shard(name), self._stream.keep_malformed)
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batch.schema) as stream:
            stream.write_batch(batch)
        return bytes(buffer.getvalue())

    def _list(self, now: bool = False) -> dict[str, Shard]:
        if now or not self._shards or time.monotonic() - self._listed_s > LIST_EVERY_S:
            self._shards = {shard.name: shard for shard in self._client.shards()}
            self._listed_s = time.monotonic()
        return self._shards

    def _awaits_children(self, positions: Mapping[str, str]) -> bool:
        """Whether a shard is read to its end and what came out of it is not known yet."""
        parents = {parent for shard in self._shards.values() for parent in shard.parents}
        return any(is_drained(at) and name not in parents for name, at in positions.items())

    def _shard(self, name: str) -> Shard:
        if name not in self._list() and name not in self._list(now=True):
            raise SourceError(
                f"the shard {name} of the stream {self._client.stream} is to be read again, but is gone: its retention "
                "has passed. to go on without its records start with a new checkpoint"
            )
        return self._shards[name]

    def _need_kept(self, start: Mapping[str, Any]) -> None:
        """Once per run: if the job was away for longer than records are kept, the last one read must still be there."""
        if self._checked:
            return
        self._checked = True
        away_s = time.time() - float(start.get("read_at", time.time()))
        if away_s < self._client.retention_s() - RETENTION_MARGIN_S:
            return
        for name, at in start["shards"].items():
            sequence = sequence_of(at)
            if sequence is not None and not is_drained(at) and not self._client.still_there(name, sequence):
                raise SourceError(
                    f"the stream {self._client.stream} keeps records for {self._client.retention_s() / 3600:g} hours, "
                    f"and this job has read nothing for {away_s / 3600:.1f}: records of {name} after {sequence} may be "
                    "gone. to go on without them start with a new checkpoint; raise the stream's retention"
                )


def to_batch(records: Sequence[Any], shard: Shard, keep_malformed: bool = False) -> pa.RecordBatch:
    """Unpacked, in order. What cannot be is an error, or with ``keep_malformed`` one row as it is."""
    rows: list[dict[str, Any]] = []
    for record in records:
        try:
            found = unpack(record["PartitionKey"], record["Data"], shard.hashes)
        except (ValueError, IndexError) as cause:
            if not keep_malformed:
                raise SourceError(
                    f"record {record['SequenceNumber']} of {shard.name} says that it is aggregated, and is not: "
                    f"{cause}. its checksum is right, so its producer is wrong. to have it as a row of its own, "
                    "declare malformed='keep'"
                ) from cause
            found = [Unpacked(record["PartitionKey"], record["Data"], MALFORMED_SUB)]
        rows += [
            {
                "value": each.data,
                "key": each.key,
                "shard": shard.name,
                "sequence": record["SequenceNumber"],
                "sub": each.sub,
                "arrived": record.get("ApproximateArrivalTimestamp"),
            }
            for each in found
        ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(COLUMNS))


def _read_again(client: KinesisClient, part: ShardRange) -> Iterator[list[Any]]:
    """Page by page, up to and with the end; `SourceError` if that does not come."""
    end = sequence_of(part.end) or ""
    repeats = rebuilt(client, part.anchors, part.shard.name, part.start) if part.anchors else Repeats()
    for page, behind_ms in client.read(part.shard.name, part.start, RECORDS_PER_CALL):
        wanted = [record for record in page if int(record["SequenceNumber"]) <= int(end)]
        if wanted:
            yield kept(wanted, repeats)
        if wanted and wanted[-1]["SequenceNumber"] == end:
            return
        if len(wanted) < len(page) or behind_ms is None or (not page and behind_ms == 0):
            break
    raise SourceError(
        f"records of {part.shard.name} up to {end} are to be read again, but are gone: the retention of the stream "
        f"{client.stream} has passed. to go on without them start with a new checkpoint"
    )


def _offset(positions: Mapping[str, str], anchors: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``read_at`` says when something was last read: it moves with the positions only. ``marks``: `kinesis_repeats`."""
    marks = {name: anchors[name] for name in sorted(anchors) if anchors[name]} if anchors else {}
    return {
        "read_at": round(time.time()),
        "shards": dict(sorted(positions.items())),
        **({"marks": marks} if marks else {}),
    }


def data_source(registered: str, stream: Stream) -> type[DeclaredDataSource]:
    """A data source class for one stream."""
    return declare(registered, COLUMNS, lambda: KinesisStreamReader(stream))
