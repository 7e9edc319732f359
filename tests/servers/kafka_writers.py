"""Transactions for tests, written as executors write them and left for somebody else to end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tallystick.kafka.transactions import Ending
from tallystick.sinks.kafka.arrow_producer import ArrowProducer
from tallystick.sinks.kafka.producer import Producer, Records
from tallystick.sinks.kafka.sink import PRODUCER_DEFAULTS


def new_name() -> str:
    return f"name-{uuid.uuid4().hex[:12]}"


def producer_settings(address: str, **options: str) -> dict[str, str]:
    """Options with underscores in place of dots."""
    given = {option.replace("_", "."): value for option, value in options.items()}
    settings = {"bootstrap.servers": address, "linger.ms": "1", "statistics.interval.ms": "20"}
    return {**PRODUCER_DEFAULTS, **settings, "transaction.timeout.ms": "60000", "enable.idempotence": "true", **given}


def records(topic: str, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> Records:
    key = None if keys is None else pa.array(keys, pa.binary())
    return Records(topic, pa.array(values, pa.binary()), key)


@dataclass
class Written:
    """A transaction that is open at the broker; every record of it is acknowledged."""

    producer: Producer
    topic: str

    @property
    def name(self) -> str:
        return self.producer.name

    def ending(self, commit: bool) -> Ending:
        return Ending(self.name, self.producer.producer_id, self.producer.producer_epoch, commit)


def written(
    address: str, topic: str, values: Sequence[bytes] = (b"one", b"two"), name: str | None = None, **options: str
) -> Written:
    """The process that wrote it is as good as dead: its producer is closed."""
    producer = ArrowProducer(producer_settings(address, **options), name or new_name())
    try:
        producer.begin()
        producer.send(records(topic, values))
        producer.wait()
    finally:
        producer.close()
    return Written(producer, topic)
