"""Topics for tests: made, read as a consumer of committed records reads them, and waited for."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Transactions

WAIT_S = 30.0


@dataclass(frozen=True, order=True)
class Read:
    """One record as a reader sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def make_topic(address: str, partitions: int = 2, name: str = "", **config: str) -> str:
    """A topic that nobody else uses. Settings with underscores in place of dots."""
    name = name or f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": address})
    settings = {setting.replace("_", "."): value for setting, value in config.items()}
    admin.create_topics([NewTopic(name, num_partitions=partitions, config=settings)])[name].result(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while len(admin.list_topics(name, timeout=5).topics[name].partitions) < partitions:
        assert time.monotonic() < deadline, f"{name} is not known"
        time.sleep(0.02)
    return name


def read_topic(address: str, topic: str, isolation: str = "read_committed") -> list[Read]:
    """Everything that a reader sees now, partition by partition, in order."""
    reader = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = reader.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
        reader.assign([TopicPartition(topic, number, 0) for number in partitions])
        return _until_the_end(reader, len(partitions))
    finally:
        reader.close()


def _until_the_end(reader: Consumer, partitions: int) -> list[Read]:
    found: list[Read] = []
    ended: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"partitions {ended} of {partitions} were read to their end"
        messages: list[Any] = reader.consume(1000, 0.1)
        for message in messages:
            error = message.error()
            if error is None:
                headers = tuple(message.headers() or ())
                found.append(Read(message.partition(), message.offset(), message.key(), message.value(), headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise AssertionError(error.str())
    return sorted(found)


def wait_for_markers(address: str, prefix: str, transactions: Transactions | None = None) -> None:
    """Until no transaction with this prefix is between its decision and what readers see of it."""
    asked: Any = transactions or Transactions(KafkaSettings.of(address))
    deadline = time.monotonic() + WAIT_S
    while any(state.startswith("Prepare") for _, state, *_ in asked.activity(prefix)):
        assert time.monotonic() < deadline, f"transactions of {prefix} do not end"
        time.sleep(0.01)
    if transactions is None:
        asked.close()
