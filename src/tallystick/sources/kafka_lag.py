"""How many offsets of some topics lie after what was read: asked with librdkafka, which needs no Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from tallystick.errors import SourceError
from tallystick.kafka.clients import confluent
from tallystick.kafka.settings import KafkaSettings

PATIENCE_S = 10.0

Place = tuple[str, int]
"""A topic and a partition of it."""


def unread(
    settings: KafkaSettings, topics: Sequence[str], pattern: str | None, read: Mapping[str, Mapping[str, int]]
) -> int:
    """Up to the last record that is committed. A partition that was never read is read from its beginning."""
    client = confluent()
    admin = import_module("confluent_kafka.admin").AdminClient({**settings.librdkafka("connection"), "log_level": "2"})
    try:
        places = _places(admin, topics, pattern)
        done = {(topic, int(number)): int(at) for topic, found in read.items() for number, at in found.items()}
        ends = _offsets(admin, places, lambda spec: spec.latest())
        begun = _offsets(admin, [place for place in places if place not in done], lambda spec: spec.earliest())
    except client.KafkaException as failure:
        raise SourceError(f"kafka: {settings.servers} did not tell its newest offsets: {failure}") from failure
    return sum(max(0, end - {**begun, **done}[place]) for place, end in ends.items())


def _places(admin: Any, topics: Sequence[str], pattern: str | None) -> list[Place]:
    """A pattern is Java's; those that people write mean the same here."""
    listed = admin.list_topics(timeout=PATIENCE_S).topics
    wanted = topics if pattern is None else [name for name in listed if re.fullmatch(pattern, name)]
    missing = [name for name in wanted if name not in listed]
    if missing:
        raise SourceError(f"kafka: there is no topic {missing[0]} any more")
    return [(name, number) for name in wanted for number in listed[name].partitions]


def _offsets(admin: Any, places: Sequence[Place], spec: Callable[[Any], Any]) -> dict[Place, int]:
    if not places:
        return {}
    client, wanted = confluent(), spec(import_module("confluent_kafka.admin").OffsetSpec)
    answers = admin.list_offsets(
        {client.TopicPartition(*place): wanted for place in places},
        isolation_level=client.IsolationLevel.READ_COMMITTED,
        request_timeout=PATIENCE_S,
    )
    return {(place.topic, place.partition): answer.result(PATIENCE_S).offset for place, answer in answers.items()}
