"""Every option of Kafka's clients that a job may set, in Kafka's own names, and what the other two clients call it.

A table, because three libraries have to agree on it: Java's clients (inside Spark) take the names as they are,
librdkafka and kafka-python have names and ranges of their own. A test builds real clients with every line of it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from tallystick.errors import ConfigError

Role = Literal["connection", "producer", "consumer"]
Kind = Literal["text", "whole", "number", "switch"]

INT = 2**31 - 1
LONG = 2**63 - 1


@dataclass(frozen=True)
class Option:
    """One line. ``low`` and ``high`` are Java's bounds, ``rd_range`` those of librdkafka where they are narrower.

    An empty ``librdkafka`` or ``kafka_python`` says that this client has no such setting and can do without.
    """

    name: str
    role: Role
    kind: Kind
    librdkafka: str = ""
    kafka_python: str = ""
    low: float = 0
    high: float = INT
    choices: tuple[str, ...] = ()
    rd_range: tuple[float, float] | None = None
    secret: bool = False

    def checked(self, value: object) -> str:
        """The value as text. Anything that Java would refuse, or silently take for something else, is refused here."""
        text = _as_text(self.name, value)
        if self.kind == "switch":
            return self._switch(text)
        if self.kind in ("whole", "number"):
            return self._number(text)
        if not self.choices:
            return text
        found = next((choice for choice in self.choices if choice.lower() == text.strip().lower()), None)
        if found is None:
            needed = ", ".join(choice or "nothing" for choice in self.choices)
            raise ConfigError(f"kafka: {self.name} is {text!r}, needed one of {needed}")
        return found

    def _switch(self, text: str) -> str:
        if text.strip().lower() not in ("true", "false"):
            raise ConfigError(f"kafka: {self.name} is {text!r}, needed true or false")
        return text.strip().lower()

    def _number(self, text: str) -> str:
        needed = "a whole number" if self.kind == "whole" else "a number"
        try:
            number = int(text) if self.kind == "whole" else float(text)
        except ValueError:
            raise ConfigError(f"kafka: {self.name} is {text!r}, needed {needed}") from None
        if not self.low <= number <= self.high:
            raise ConfigError(f"kafka: {self.name} is {text}, needed {needed} from {self.low:g} to {self.high:.0f}")
        return text.strip()

    def for_librdkafka(self, text: str) -> str:
        """The same value, if it is in the range that librdkafka takes."""
        if self.rd_range is not None and not self.rd_range[0] <= float(text) <= self.rd_range[1]:
            low, high = self.rd_range
            raise ConfigError(
                f"kafka: {self.name} is {text}, but librdkafka takes {low:.0f} to {high:.0f} (as {self.librdkafka}): "
                "choose a value that all clients of the job take"
            )
        return text

    def for_kafka_python(self, text: str) -> Any:
        if self.kind == "switch":
            return text == "true"
        return int(text) if self.kind == "whole" else text


def _as_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"kafka: {name} is a {type(value).__name__}, needed text or a number")


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
STORES = ("PEM", "PKCS12", "JKS")

_SECURITY = (
    Option("security.protocol", "connection", "text", choices=PROTOCOLS),
    Option("sasl.mechanism", "connection", "text", choices=MECHANISMS),
    Option("sasl.jaas.config", "connection", "text", secret=True),
    Option("sasl.username", "connection", "text"),
    Option("sasl.password", "connection", "text", secret=True),
    Option("sasl.kerberos.service.name", "connection", "text"),
    Option("sasl.login.callback.handler.class", "connection", "text"),
    Option("sasl.client.callback.handler.class", "connection", "text"),
    Option("sasl.oauthbearer.token.endpoint.url", "connection", "text"),
    Option("ssl.truststore.type", "connection", "text", choices=STORES),
    Option("ssl.truststore.location", "connection", "text"),
    Option("ssl.truststore.password", "connection", "text", secret=True),
    Option("ssl.truststore.certificates", "connection", "text"),
    Option("ssl.keystore.type", "connection", "text", choices=STORES),
    Option("ssl.keystore.location", "connection", "text"),
    Option("ssl.keystore.password", "connection", "text", secret=True),
    Option("ssl.keystore.key", "connection", "text", secret=True),
    Option("ssl.keystore.certificate.chain", "connection", "text"),
    Option("ssl.key.password", "connection", "text", secret=True),
    Option("ssl.endpoint.identification.algorithm", "connection", "text", choices=("https", "")),
    Option("ssl.cipher.suites", "connection", "text"),
    Option("ssl.enabled.protocols", "connection", "text"),
    Option("ssl.protocol", "connection", "text"),
)
"""Translated together, by `security`: a line alone says nothing."""

_CONNECTION = (
    Option("client.id", "connection", "text", "client.id", "client_id"),
    Option(
        "client.dns.lookup",
        "connection",
        "text",
        "client.dns.lookup",
        "client_dns_lookup",
        choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    # librdkafka's own request.timeout.ms is the broker's patience with its replicas, and not the client's.
    Option(
        "request.timeout.ms", "connection", "whole", "socket.timeout.ms", "request_timeout_ms", rd_range=(10, 300_000)
    ),
    Option("default.api.timeout.ms", "connection", "whole"),
    Option("connections.max.idle.ms", "connection", "whole", "connections.max.idle.ms", "connections_max_idle_ms"),
    Option(
        "reconnect.backoff.ms",
        "connection",
        "whole",
        "reconnect.backoff.ms",
        "reconnect_backoff_ms",
        rd_range=(0, 3_600_000),
    ),
    Option(
        "reconnect.backoff.max.ms",
        "connection",
        "whole",
        "reconnect.backoff.max.ms",
        "reconnect_backoff_max_ms",
        rd_range=(0, 3_600_000),
    ),
    Option("retry.backoff.ms", "connection", "whole", "retry.backoff.ms", "retry_backoff_ms", rd_range=(1, 300_000)),
    Option("retry.backoff.max.ms", "connection", "whole", "retry.backoff.max.ms", rd_range=(1, 300_000)),
    # librdkafka's own metadata.max.age.ms only says when its cache is stale; it looks for news at this interval.
    Option(
        "metadata.max.age.ms",
        "connection",
        "whole",
        "topic.metadata.refresh.interval.ms",
        "metadata_max_age_ms",
        rd_range=(1, 3_600_000),
    ),
    Option(
        "socket.connection.setup.timeout.ms",
        "connection",
        "whole",
        "socket.connection.setup.timeout.ms",
        rd_range=(1000, INT),
    ),
    Option("socket.connection.setup.timeout.max.ms", "connection", "whole"),
    Option(
        "send.buffer.bytes",
        "connection",
        "whole",
        "socket.send.buffer.bytes",
        "send_buffer_bytes",
        low=-1,
        rd_range=(-1, 100_000_000),
    ),
    Option(
        "receive.buffer.bytes",
        "connection",
        "whole",
        "socket.receive.buffer.bytes",
        "receive_buffer_bytes",
        low=-1,
        rd_range=(-1, 100_000_000),
    ),
    Option("enable.metrics.push", "connection", "switch", "enable.metrics.push"),
)

_PRODUCER = (
    Option("acks", "producer", "text", "acks", choices=("all", "-1", "0", "1")),
    Option("enable.idempotence", "producer", "switch", "enable.idempotence"),
    Option("batch.size", "producer", "whole", "batch.size", rd_range=(1, INT)),
    Option("buffer.memory", "producer", "whole", "queue.buffering.max.kbytes", high=LONG),
    Option(
        "compression.type",
        "producer",
        "text",
        "compression.type",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    Option("compression.gzip.level", "producer", "whole", low=-1, high=9),
    Option("compression.lz4.level", "producer", "whole", low=1, high=17),
    Option("compression.zstd.level", "producer", "whole", low=-131072, high=22),
    Option("delivery.timeout.ms", "producer", "whole", "delivery.timeout.ms"),
    Option("linger.ms", "producer", "whole", "linger.ms", rd_range=(0, 900_000)),
    Option("max.block.ms", "producer", "whole", high=LONG),
    Option(
        "max.in.flight.requests.per.connection", "producer", "whole", "max.in.flight.requests.per.connection", low=1
    ),
    Option("max.request.size", "producer", "whole", "message.max.bytes", rd_range=(1000, 1_000_000_000)),
    Option("metadata.max.idle.ms", "producer", "whole", low=5000, high=LONG),
    Option("retries", "producer", "whole", "retries"),
    Option("transaction.timeout.ms", "producer", "whole", "transaction.timeout.ms", low=1, rd_range=(1000, INT)),
)

_CONSUMER = (
    Option("allow.auto.create.topics", "consumer", "switch", "allow.auto.create.topics"),
    Option("check.crcs", "consumer", "switch", "check.crcs"),
    Option("client.rack", "consumer", "text", "client.rack"),
    Option("fetch.max.bytes", "consumer", "whole", "fetch.max.bytes", rd_range=(1000, INT - 512)),
    Option("fetch.max.wait.ms", "consumer", "whole", "fetch.wait.max.ms", rd_range=(0, 300_000)),
    Option("fetch.min.bytes", "consumer", "whole", "fetch.min.bytes", rd_range=(1, 100_000_000)),
    Option("heartbeat.interval.ms", "consumer", "whole"),
    Option("isolation.level", "consumer", "text", "isolation.level", choices=("read_committed", "read_uncommitted")),
    Option(
        "max.partition.fetch.bytes",
        "consumer",
        "whole",
        "max.partition.fetch.bytes",
        rd_range=(1, 1_000_000_000),
    ),
    Option("max.poll.interval.ms", "consumer", "whole", low=1),
    Option("max.poll.records", "consumer", "whole", low=1),
    Option("session.timeout.ms", "consumer", "whole"),
)

OPTIONS: Mapping[str, Option] = MappingProxyType(
    {option.name: option for option in (*_SECURITY, *_CONNECTION, *_PRODUCER, *_CONSUMER)}
)

_SPARK_READS = "Spark reads and writes bytes and makes its own"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "bootstrap.servers": "it is what servers= says",
        "transactional.id": "transactions are named per worker and epoch; a name set by hand would end those of others",
        "transaction.two.phase.commit.enable": "no client can finish such a transaction yet",
        "group.id": "offsets are kept in the checkpoint, not in a group; two jobs of one group would take each other's",
        "group.instance.id": "offsets are kept in the checkpoint, not in a group",
        "group.protocol": "offsets are kept in the checkpoint, not in a group",
        "partition.assignment.strategy": "Spark gives partitions to tasks by itself",
        "auto.offset.reset": "it would pass over lost records without a word; starting= says where a new job begins",
        "enable.auto.commit": "offsets are kept in the checkpoint, not in a group",
        "auto.commit.interval.ms": "offsets are kept in the checkpoint, not in a group",
        "key.serializer": _SPARK_READS,
        "value.serializer": _SPARK_READS,
        "key.deserializer": _SPARK_READS,
        "value.deserializer": _SPARK_READS,
        "interceptor.classes": "interceptors may change or drop records unseen",
        "partitioner.class": "it is a Java class, which librdkafka cannot run; give the rows a partition column",
        "partitioner.ignore.keys": "records of one key would lose their order; leave the key out instead",
    }
)


def unknown(name: str, known: Mapping[str, object] | None = None) -> ConfigError:
    """The error for a name that is not known, with those that are spelled like it."""
    near = difflib.get_close_matches(name, [*(OPTIONS if known is None else known)], n=3, cutoff=0.6)
    advice = f"did you mean {' or '.join(near)}?" if near else "needed one of Kafka's own, such as 'compression.type'"
    return ConfigError(f"kafka: there is no option {name!r}. {advice}")
