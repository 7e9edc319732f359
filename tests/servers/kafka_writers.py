"""Transactions for tests, written as executors write them and left for somebody else to end."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Ending
from tallystick.sinks.kafka.arrow_producer import ArrowProducer
from tallystick.sinks.kafka.limits import Limits
from tallystick.sinks.kafka.producer import Producer, Records
from tallystick.sinks.kafka.producer_settings import ProducerSettings


def new_name() -> str:
    return f"name-{uuid.uuid4().hex[:12]}"


def producer_settings(
    address: str, topic_patience_s: float = 10.0, limits: Limits | None = None, **options: Any
) -> ProducerSettings:
    """Options with underscores in place of dots."""
    given = {option.replace("_", "."): value for option, value in options.items()}
    settings = KafkaSettings.of(address, {"linger.ms": "1", **given})
    timeout_ms = int(given.get("transaction.timeout.ms", 60_000))
    return ProducerSettings(settings, timeout_ms, limits or Limits(), topic_patience_s)


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
    address: str, topic: str, values: Sequence[bytes] = (b"one", b"two"), name: str | None = None, **options: Any
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
