"""How a producer sends: from Kafka's own options, for both kinds of producers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.writer import REQUEST_TIMEOUT_MS
from tallystick.sinks.kafka.limits import RECORD_BYTES_MAX, Limits

BATCH_BYTES = 1_000_000
BUFFER_BYTES = 64 << 20
TOPIC_PATIENCE_S = 10.0
"""How long a topic that is not there may be one that was just made."""

LIBRDKAFKA_DEFAULTS: Mapping[str, str] = {
    # keys land where Java's clients and Spark's sink put them
    "partitioner": "murmur2_random",
    "linger.ms": "5",
    "compression.type": "none",
    "queue.buffering.max.messages": "500000",
    "enable.metrics.push": "false",
}


@dataclass(frozen=True)
class ProducerSettings:
    """``limits`` are those of the topic; ``transaction_timeout_ms`` is how long a transaction may stay open."""

    kafka: KafkaSettings
    transaction_timeout_ms: int
    limits: Limits = field(default_factory=Limits)
    topic_patience_s: float = TOPIC_PATIENCE_S

    @property
    def batch_bytes(self) -> int:
        """No batch is larger than the topic takes."""
        chosen = self._whole("batch.size", BATCH_BYTES)
        return max(1, chosen if self.limits.batch_bytes is None else min(chosen, self.limits.batch_bytes))

    @property
    def create_topics(self) -> bool:
        """Brokers may make a topic that is not there; not one that was there when the job began."""
        return self.limits.partitions is None

    @property
    def record_bytes_max(self) -> int:
        """Key, value and headers of one record."""
        return self._whole("max.request.size", RECORD_BYTES_MAX)

    @property
    def buffer_bytes(self) -> int:
        """What a slice may hold in memory on its way out."""
        return self._whole("buffer.memory", BUFFER_BYTES)

    @property
    def under_way_max(self) -> int:
        return self._whole("max.in.flight.requests.per.connection", 5)

    @property
    def replication_timeout_ms(self) -> int:
        """How long a broker waits for its replicas: it has to answer before nobody listens any more."""
        return self._whole("request.timeout.ms", REQUEST_TIMEOUT_MS) * 2 // 3

    @property
    def patience_s(self) -> float:
        """How long nothing at all may be acknowledged; after the transaction's own time brokers have rolled it back."""
        return min(self.transaction_timeout_ms, self._whole("delivery.timeout.ms", self.transaction_timeout_ms)) / 1000

    @property
    def retry_pause_s(self) -> float:
        return self._whole("retry.backoff.ms", 50) / 1000

    @property
    def compression(self) -> tuple[str, int | None]:
        """Its name, and a level where one is set."""
        name = self.kafka.options.get("compression.type", "none")
        level = self.kafka.options.get(f"compression.{name}.level")
        return name, None if level is None or int(level) == -1 else int(level)

    def librdkafka(self) -> dict[str, str]:
        return {
            **LIBRDKAFKA_DEFAULTS,
            "queue.buffering.max.kbytes": str(BUFFER_BYTES // 1024),
            **self.kafka.librdkafka("producer"),
            "batch.size": str(self.batch_bytes),
            "allow.auto.create.topics": "true" if self.create_topics else "false",
            "topic.metadata.propagation.max.ms": str(int(self.topic_patience_s * 1000)),
            "transaction.timeout.ms": str(self.transaction_timeout_ms),
            "enable.idempotence": "true",
        }

    def _whole(self, name: str, default: int) -> int:
        return int(self.kafka.options.get(name, default))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for settings that a producer made with the one can be used for the other."""
        options = tuple(sorted(self.kafka.options.items()))
        return (self.kafka.servers, options, self.transaction_timeout_ms, self.limits, self.topic_patience_s)
