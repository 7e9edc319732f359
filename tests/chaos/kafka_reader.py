"""A reader of committed records that reads all along, while servers and jobs come and go."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from kafka_topics import Read

PATIENCE_S = 60.0


class FollowingReader:
    """Reads a topic from its first record on, in a thread, until it is closed. A context manager.

    It never starts over: one that lost its place says so in `failure` instead of reading something twice.
    """

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self.failure: str | None = None
        self.disturbances = 0
        self._seen: dict[int, list[Read]] = {number: [] for number in range(partitions)}
        self._closing = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"follower-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in self._seen])
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def by_partition(self) -> dict[int, list[Read]]:
        """What it has seen until now, in the order in which it came."""
        return {number: list(records) for number, records in self._seen.items()}

    def count(self) -> int:
        return sum(len(records) for records in self._seen.values())

    def await_count(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Until it has seen so many records, or some time has passed: what is missing then, the caller finds out."""
        deadline = time.monotonic() + timeout_s
        while self.count() < count and self.failure is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def __enter__(self) -> FollowingReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(PATIENCE_S)
        self._consumer.close()

    def _follow(self) -> None:
        while not self._closing.is_set() and self.failure is None:
            for message in self._consumer.consume(1000, 0.05):
                self._take(message)

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None:
            read = Read(message.partition(), message.offset(), message.key(), message.value())
            self._seen[read.partition].append(read)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
            self.failure = error.str()
        else:  # brokers that went away are looked for until they are back
            self.disturbances += 1


def out_of_order(records: Iterable[Read]) -> list[str]:
    """The records of one partition that came before an earlier one of their key; values are ``KEY SEQUENCE …``."""
    last: dict[str, int] = {}
    wrong = []
    for record in records:
        key, sequence, *_ = (record.value or b"").decode().split()
        if int(sequence) <= last.get(key, -1):
            wrong.append(f"{key} {sequence} after {last[key]}")
        last[key] = int(sequence)
    return wrong
