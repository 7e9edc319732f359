"""Commit tokens: two small records inside every transaction that say whose it is.

The first is sent before any row, the second when all rows are acknowledged; of a slice that is so small that it goes
out in one request, both go along with the rows. They share the fate of the
rows, so whoever reads them as *committed* knows that the rows are, whatever became of the name since; and an open
transaction can be traced to its epoch and slice by anybody. They live in a compacted topic of their own, with the
transaction's name as key: as many remain as there are names.

Compaction keeps the last record of a key, which is the second token, and takes the first one away one day. An empty
place is therefore no proof that nothing was committed: the second token says where the first one was.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tallystick.errors import SinkError, TallystickError
from tallystick.kafka.clients import confluent
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions
from tallystick.records import Attempt
from tallystick.sinks.base import SliceContext
from tallystick.sinks.kafka.producer import Position

VERSION = 1
TOPIC = "tallystick.tokens"
PARTITIONS = 8
SETTINGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # a token is asked for only while its epoch is not settled; a day is ample
    "min.compaction.lag.ms": str(24 * 3600 * 1000),
    "max.message.bytes": "1000000",
}
READ_TIMEOUT_S = 5.0
SEARCH_TIMEOUT_S = 30.0


class Fate(str, Enum):
    """What a reader of committed records finds in the token's place, or will find when no other transaction is open
    before it. OPEN: it is not ended, or nobody answered in time."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


@dataclass(frozen=True)
class Token:
    job_id: str
    sink: str
    attempt: Attempt
    slice: int
    task: int
    rows: int | None = None
    first: Position | None = None

    @classmethod
    def of(cls, context: SliceContext, rows: int | None = None, first: Position | None = None) -> Token:
        """``rows`` and ``first``, where the first token is, are known to the second one; if it has no ``first``, that
        is right before it."""
        return cls(context.job_id, context.sink, context.attempt, context.slice, context.task, rows, first)

    def to_bytes(self) -> bytes:
        value: dict[str, Any] = {
            "version": VERSION,
            "job": self.job_id,
            "sink": self.sink,
            "attempt": str(self.attempt),
            "slice": self.slice,
            "task": self.task,
        }
        if self.rows is not None:
            value["rows"] = self.rows
        if self.first is not None:
            value["first"] = [self.first.partition, self.first.offset]
        return json.dumps(value).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Token:
        try:
            value: Any = json.loads(data)
            if value["version"] > VERSION:
                raise SinkError("kafka: a commit token was written by a newer version of tallystick: use that one")
            attempt = Attempt.parse(value["attempt"])
            first = Position(*value["first"]) if "first" in value else None
            return cls(value["job"], value["sink"], attempt, value["slice"], value["task"], value.get("rows"), first)
        except (ValueError, KeyError, TypeError, TallystickError) as cause:
            if isinstance(cause, SinkError):
                raise
            raise SinkError(f"kafka: not a commit token: {data[:200]!r}") from cause


class TokenReader:
    """Driver: look single tokens up. Safe to use from several threads, one after the other."""

    def __init__(self, settings: KafkaSettings, topic: str, transactions: Transactions) -> None:
        self._kafka = confluent()
        self._transactions = transactions
        self._guard = threading.Lock()
        self._topic = topic
        # librdkafka asks for the coordinator of a group that nobody joins; a user may have no right to know it
        self._harmless = (self._kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,)
        base = {
            **settings.librdkafka("connection"),
            "group.id": f"tallystick-tokens-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "enable.metrics.push": False,
            "log_level": 2,
        }
        self._committed = self._kafka.Consumer({**base, "isolation.level": "read_committed"})
        self._anything = self._kafka.Consumer({**base, "isolation.level": "read_uncommitted"})

    def close(self) -> None:
        with self._guard:
            self._committed.close()
            self._anything.close()

    def fate(self, place: Position, name: str) -> Fate:
        """What became of the transaction of that name whose first token is there.

        `SinkError` if the topic cannot be read, or does not tell any more.
        """
        if place.partition < 0 or place.offset < 0:
            raise SinkError(f"kafka: {name} has no commit token, so nobody can tell what became of it")
        with self._guard:
            return self._fate(place, name)

    def _fate(self, place: Position, name: str) -> Fate:
        if self._end(self._committed, place.partition) <= place.offset:
            if self._end(self._anything, place.partition) <= place.offset:
                raise SinkError(
                    f"kafka: the token topic {self._topic} ends before {place}: it was made anew. restore it"
                )
            return self._fate_behind_an_open_one(place, name)
        found, reached = self._look(self._committed, place, name)
        if found is not None:
            return Fate.COMMITTED
        if reached <= place.offset:
            return Fate.OPEN
        found, reached = self._look(self._anything, place, name)
        if found is not None:
            return Fate.ABORTED
        return Fate.OPEN if reached < 0 else self._fate_after_compaction(place, name)

    def read(self, place: Position, name: str) -> Token | None:
        """The token of that name there, committed or not; None if there is none. `SinkError` if nobody answers."""
        with self._guard:
            found, reached = self._look(self._anything, place, name)
        if found is None and reached < 0:
            raise SinkError(f"kafka: the token topic {self._topic} could not be read for {READ_TIMEOUT_S:g} s")
        return None if found is None else Token.from_bytes(found)

    def _fate_behind_an_open_one(self, place: Position, name: str) -> Fate:
        """A transaction is open, there or before. It may be that of another job, which died and stays open until its
        time-out: this one need not wait for it."""
        found, _ = self._look(self._anything, place, name)
        if found is None:
            return Fate.OPEN
        committed = self._transactions.ending_in_log((self._topic, place.partition), place.offset)
        return Fate.OPEN if committed is None else Fate.COMMITTED if committed else Fate.ABORTED

    def _fate_after_compaction(self, place: Position, name: str) -> Fate:
        """The place is empty for everybody. A committed second token is the last of its name, unless that was used
        again; and it is to be found up to where the log ended before we looked."""
        end, used_again = self._end(self._anything, place.partition), False
        for message, offset in self._messages(self._committed, place, SEARCH_TIMEOUT_S):
            if message is None:
                if offset < end:
                    return Fate.OPEN
                break
            if message.key() == name.encode():
                token = Token.from_bytes(message.value())
                before = token.first or Position(place.partition, offset - 1)
                if token.rows is not None and before == place:
                    return Fate.COMMITTED
                used_again = True
        else:
            return Fate.OPEN
        if used_again:
            raise SinkError(
                f"kafka: the commit token of {name} was compacted away in {self._topic}: whether it was committed is "
                "not known any more. look for its rows in the topic, then go on with a new checkpoint"
            )
        return Fate.ABORTED

    def _end(self, consumer: Any, partition: int) -> int:
        """Up to where this consumer can read now: one of committed records, up to the first open transaction."""
        try:
            where = self._kafka.TopicPartition(self._topic, partition)
            return int(consumer.get_watermark_offsets(where, READ_TIMEOUT_S)[1])
        except self._kafka.KafkaException as cause:
            raise SinkError(f"kafka: the token topic {self._topic} cannot be read: {cause.args[0].str()}") from cause

    def _look(self, consumer: Any, place: Position, name: str) -> tuple[bytes | None, int]:
        """The record in that very place, and up to where was looked without finding it; -1 if nobody answered."""
        for message, offset in self._messages(consumer, place, READ_TIMEOUT_S):
            if message is None or offset != place.offset:
                return None, offset
            if message.key() != name.encode():
                raise SinkError(
                    f"kafka: the token topic {self._topic} was made anew: partition {place.partition} offset "
                    f"{place.offset} is not about {name} but {message.key()!r}. restore the topic"
                )
            return message.value(), offset
        return None, -1

    def _messages(self, consumer: Any, place: Position, timeout_s: float) -> Iterator[tuple[Any, int]]:
        """Records from there on with their offsets, then None with the offset of the end; nothing more after a time."""
        consumer.assign([self._kafka.TopicPartition(self._topic, place.partition, place.offset)])
        deadline = time.monotonic() + timeout_s
        try:
            while time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    yield message, message.offset()
                elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                    yield None, message.offset()
                elif not error.retriable() and error.code() not in self._harmless:
                    raise SinkError(f"kafka: the token topic {self._topic} cannot be read: {error.str()}")
        finally:
            consumer.unassign()
