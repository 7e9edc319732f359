"""Queues and streams of RabbitMQ, through a receiver log: acknowledged when they are durable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tallystick.config import duration_s
from tallystick.errors import ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.records import Json, Mode
from tallystick.sources.base import SourceLog, need_whole
from tallystick.sources.lag import Lag
from tallystick.sources.received import ReceivedSource, ReceiverSettings
from tallystick.sources.socket import need_encoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = ("message_id", "correlation_id")


@dataclass(frozen=True)
class RabbitMQ(ReceivedSource):
    """Every message of a queue or a stream, acknowledged when it is durable in a receiver log.

    ``url`` is ``amqp://user:password@host:port/vhost``, or ``amqps:``. ``ids`` says what repeats are known by, the
    first one that a message has: ``message_id``, ``correlation_id`` or ``header:NAME``. A message without any goes to
    the dead letters, unless ``accept_without_id``: such messages are at-least-once. Ids are compared within the window
    of the receiver's settings, which must be larger than ``prefetch``.

    ``stream`` reads a stream by its own offsets, from its ``first`` message or from the ``next`` that comes, without
    gaps and without ids; the broker must have its stream plugin on. ``prefetch`` bounds what the broker sends ahead.
    ``max_deliveries`` sends to the dead letters what a quorum queue has delivered so often.
    """

    facts = SourceFacts(
        "rabbitmq",
        Mode.EXACTLY_ONCE,
        "acknowledged when the receiver log is synced; what is delivered again is known by its id or stream offset",
        "messages of queues have ids of their own, and repeats come within the window; queues are durable and messages "
        "persistent; the folder of the log is one that all workers see",
    )

    log: str | os.PathLike[str]
    url: str = field(repr=False)
    queue: str
    ids: Sequence[str] = field(default=IDS, kw_only=True)
    accept_without_id: bool = field(default=False, kw_only=True)
    stream: str | None = field(default=None, kw_only=True)
    prefetch: int = field(default=1000, kw_only=True)
    max_deliveries: int = field(default=20, kw_only=True)
    encoding: str | None = field(default=None, kw_only=True)
    partitions: int = field(default=1, kw_only=True)
    max_records_per_epoch: int | None = field(default=None, kw_only=True)
    receiver: ReceiverSettings = field(default=ReceiverSettings(), kw_only=True)

    def __post_init__(self) -> None:
        self._check()
        need_whole("rabbitmq", prefetch=self.prefetch, max_deliveries=self.max_deliveries)
        parts = urlsplit(self.url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ConfigError("rabbitmq: the url is none, needed such as amqp://user:password@host:5672/%2F")
        if not self.queue or not isinstance(self.queue, str):
            raise ConfigError(f"rabbitmq: queue is {self.queue!r}, needed the name of a queue or stream")
        if self.stream not in (None, "first", "next"):
            raise ConfigError(f"rabbitmq: stream is {self.stream!r}, needed 'first' or 'next', or None for a queue")
        if self.prefetch > 65535:
            raise ConfigError(f"rabbitmq: prefetch is {self.prefetch}, needed at most 65535")
        if self.receiver.window < 2 * self.prefetch:
            raise ConfigError(
                f"rabbitmq: prefetch is {self.prefetch} and the window holds {self.receiver.window} ids: after a crash "
                "more could come again than is remembered. needed a window of at least twice the prefetch"
            )
        _need_ids(self.ids)
        if self.encoding is not None:
            need_encoding("rabbitmq", self.encoding)

    @property
    def name(self) -> str:
        parts = urlsplit(self.url)
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        return f"rabbitmq:{self.queue}@{parts.hostname}:{port}"

    @property
    def text(self) -> str | None:
        return self.encoding

    def lag(self, read: Json, log: SourceLog, spark: SparkSession | None = None) -> Lag:
        """Records of the log that are not read, and messages that wait in the queue for the receiver.

        What a stream holds beyond the log is not counted: brokers do not tell by this protocol.
        """
        from tallystick.receiver.rabbitmq import queued

        logged = super().lag(read, log, spark)
        waiting = queued(self.url, self.queue) if self.stream is None else 0
        return replace(logged, records=(logged.records or 0) + waiting)

    def inlet(self) -> Json:
        return {
            "kind": "rabbitmq",
            "url": self.url,
            "queue": self.queue,
            "prefetch": self.prefetch,
            "ids": list(self.ids),
            "accept_without_id": self.accept_without_id,
            "stream": self.stream,
            "max_deliveries": self.max_deliveries,
            "encoding": self.encoding,
            "max_record_bytes": self.receiver.max_record_bytes,
            "patience_s": duration_s(self.receiver.patience),
        }


def _need_ids(ids: Sequence[str]) -> None:
    known = all(isinstance(name, str) and (name in IDS or name.startswith("header:")) for name in ids)
    if isinstance(ids, str) or not ids or not known:
        raise ConfigError(f"rabbitmq: ids is {ids!r}, needed some of message_id, correlation_id and header:NAME")
