"""RabbitMQ: manual acknowledgements after the log is synced. Queues by ids, streams by their own offsets. One thread.

1.  A message is acknowledged when it is durable in the log. If the receiver or the connection dies before that, the
    broker delivers it again, and its id in the window tells that it is there.
2.  The broker sends at most ``prefetch`` messages that are not acknowledged: that is the back-pressure, and also the
    most that can come again after a crash. The window must be larger.
3.  A receiver that begins with the ``next`` message of a stream remembers when it began: if the connection is lost
    before the first one came, it asks for what came since then, and may get some from just before.
4.  A stream keeps its messages and numbers them. The number travels in the log, so a restart asks for what comes after
    the newest one there. If the broker then begins later than that, messages are gone, and that is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from tallystick.errors import MissingExtraError, SourceError
from tallystick.receiver.format import ID_BYTES_MAX, Record
from tallystick.receiver.framing import KEPT_OF_REFUSED_BYTES
from tallystick.receiver.inlet import Inlet, Received, Refused
from tallystick.receiver.patience import Patience
from tallystick.records import Json

log = logging.getLogger("tallystick.receiver")

STREAM_OFFSET = "stream_offset"
_COMES_BACK = "is down or inaccessible"
_PROPERTIES = ("content_type", "correlation_id", "message_id", "reply_to", "type", "user_id", "app_id")


def pika() -> ModuleType:
    """Raises `MissingExtraError`."""
    try:
        return import_module("pika")
    except ImportError as cause:
        raise MissingExtraError(
            f"RabbitMQ needs the package pika, which cannot be imported here ({cause}). on this machine: "
            "pip install 'tallystick[rabbitmq]'"
        ) from cause


class RabbitInlet(Inlet):
    """``stream`` is where a new log begins to read a stream, ``first`` or ``next``; None for a queue."""

    kind = "rabbitmq"

    def __init__(
        self,
        url: str,
        queue: str,
        prefetch: int,
        ids: Sequence[str],
        accept_without_id: bool,
        stream: str | None,
        max_deliveries: int,
        encoding: str | None,
        max_record_bytes: int,
        patience_s: float,
    ) -> None:
        self._url = url
        self._queue = queue
        self._prefetch = prefetch
        self._ids = tuple(ids)
        self._accept_without_id = accept_without_id
        self._stream = stream
        self._max_deliveries = max_deliveries
        self._encoding = encoding
        self._max_bytes = max_record_bytes
        self._patience = Patience(patience_s)
        self._connection: Any = None
        self._channel: Any = None
        self._arrived: list[tuple[int, Received]] = []
        self._given = 0
        self._next: int | None = None
        self._since: datetime | None = None
        self._expected: int | None = None
        self._counts = {"connections_lost": 0, "redelivered": 0, "without_id": 0}

    def open(self, last: Record | None) -> None:
        pika()
        if self._stream is not None and last is not None:
            if STREAM_OFFSET not in last.attributes:
                raise SourceError(
                    f"this log holds messages of a queue, but {self._queue} is declared as a stream: choose another log"
                )
            self._next = int(last.attributes[STREAM_OFFSET]) + 1
        self._connected()

    def receive(self, wait_s: float) -> Sequence[Received]:
        if not self._connected():
            self._patience.wait(wait_s)
            return []
        try:
            self._connection.process_data_events(wait_s)
            before = -1
            while before < len(self._arrived) < self._prefetch:
                before = len(self._arrived)
                self._connection.process_data_events(0)
            if self._channel is not None and not self._channel.is_open:
                raise pika().exceptions.ChannelClosed(0, f"the consumer of {self._queue} was cancelled")
        except self._errors() as failure:
            self._lost(failure)
        return self._give()

    def acknowledge(self) -> None:
        """Everything up to the last one given. If that is lost with the connection, it all comes again."""
        if not self._given or self._channel is None:
            return
        try:
            self._channel.basic_ack(self._given, multiple=True)
            self._connection.process_data_events(0)
        except self._errors() as failure:
            self._lost(failure)
        self._given = 0

    def close(self) -> Sequence[Received]:
        if self._connection is not None:
            try:
                self._connection.close()
            except self._errors() as failure:
                log.info("the connection to %s was gone already: %s", self._where, failure)
            self._connection = self._channel = None
        return []

    def rest(self, seconds: float) -> None:
        """Heartbeats go on, so that the broker does not take the silence for a death."""
        if not self._connected():
            self._patience.wait(seconds)
            return
        try:
            self._connection.sleep(seconds)
        except self._errors() as failure:
            self._lost(failure)

    def counts(self) -> Mapping[str, int]:
        return self._counts

    def facts(self) -> Mapping[str, Json]:
        return {"address": self._where, "queue": self._queue, "connected": self._connection is not None}

    @property
    def _where(self) -> str:
        """Without the password."""
        parts = urlsplit(self._url)
        return f"{parts.hostname}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"

    def _errors(self) -> tuple[type[BaseException], ...]:
        return (pika().exceptions.AMQPError, OSError)

    def _give(self) -> list[Received]:
        made = []
        for tag, received in self._arrived:
            self._given = tag
            made.append(received)
            if self._stream is not None:
                record = received.record if isinstance(received, Refused) else received
                self._next = int(record.attributes[STREAM_OFFSET]) + 1
        self._arrived = []
        return made

    def _connected(self) -> bool:
        """One try if it is time for one. `SourceError` for what no waiting will mend."""
        if self._connection is not None:
            return True
        if not self._patience.due():
            return False
        errors = pika().exceptions
        try:
            self._connect()
        except (errors.ProbableAuthenticationError, errors.ProbableAccessDeniedError, errors.AuthenticationError) as no:
            raise SourceError(
                f"RabbitMQ at {self._where} refuses this user: {no}. check the url's name and password"
            ) from no
        except errors.ChannelClosedByBroker as no:
            self._forget()
            if _COMES_BACK not in str(no.reply_text):
                raise SourceError(
                    f"RabbitMQ at {self._where} does not give the queue {self._queue!r}: {no.reply_code} "
                    f"{no.reply_text}. make the queue, or give this user the right to read it"
                ) from no
            self._patience.failed(f"RabbitMQ at {self._where}", no)
            return False
        except self._errors() as failure:
            self._forget()
            self._patience.failed(f"RabbitMQ at {self._where}", failure)
            return False
        self._patience.answered()
        return True

    def _connect(self) -> None:
        library = pika()
        parameters = library.URLParameters(self._url)
        parameters.connection_attempts = 1
        parameters.socket_timeout = parameters.stack_timeout = 10
        parameters.heartbeat = 30
        self._expected = self._next
        self._connection = library.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        self._channel.basic_qos(prefetch_count=self._prefetch)
        self._channel.queue_declare(self._queue, passive=True)
        self._channel.add_on_cancel_callback(lambda _: self._channel.close())
        self._channel.basic_consume(self._queue, self._on_message, arguments=self._arguments())

    def _arguments(self) -> dict[str, Any]:
        if self._stream is None:
            return {}
        if self._next is not None:
            return {"x-stream-offset": self._next}
        if self._stream != "next":
            return {"x-stream-offset": self._stream}
        asked = self._stream if self._since is None else self._since
        self._since = self._since or datetime.now(timezone.utc)
        return {"x-stream-offset": asked}

    def _lost(self, failure: BaseException) -> None:
        log.warning("the connection to %s is lost: %s: %s", self._where, type(failure).__name__, failure)
        self._counts["connections_lost"] += 1
        self._forget()

    def _forget(self) -> None:
        """What was delivered here and not given is delivered again."""
        connection, self._connection, self._channel = self._connection, None, None
        self._arrived, self._given = [], 0
        if connection is not None and connection.is_open:
            try:
                connection.close()
            except self._errors() as failure:
                log.info("the connection to %s could not be closed: %s", self._where, failure)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._counts["redelivered"] += bool(method.redelivered)
        offset = (properties.headers or {}).get("x-stream-offset") if self._stream is not None else None
        if offset is not None and not self._is_next(int(offset)):
            return
        self._arrived.append((method.delivery_tag, self._received(method, properties, body, offset)))

    def _is_next(self, offset: int) -> bool:
        """A stream is read without gaps; a chunk may begin before what was asked for."""
        expected, self._expected = self._expected, max(offset + 1, self._expected or 0)
        if expected is not None and offset > expected:
            raise SourceError(
                f"the stream {self._queue} begins at offset {offset}, but {expected} to {offset - 1} were not read "
                "yet: its retention has passed. to go on without them start with a new log and a new checkpoint"
            )
        return expected is None or offset == expected

    def _received(self, method: Any, properties: Any, body: bytes, offset: Any) -> Received:
        attributes = _attributes(method, properties)
        if offset is not None:
            attributes[STREAM_OFFSET] = str(int(offset))
        name = f"{self._queue}:{int(offset)}" if offset is not None else self._id(properties)
        record = Record(body, name, attributes=attributes)
        reason = self._reason(record, properties)
        return record if reason is None else Refused(reason, Record(body[:KEPT_OF_REFUSED_BYTES], "", 0, attributes))

    def _reason(self, record: Record, properties: Any) -> str | None:
        """Why it cannot be a record, if it cannot."""
        deliveries = int((properties.headers or {}).get("x-delivery-count") or 0)
        if len(record.value) > self._max_bytes:
            return f"it has {len(record.value)} bytes, at most {self._max_bytes} are allowed"
        if deliveries > self._max_deliveries:
            return f"it was delivered {deliveries} times and never acknowledged"
        if not record.id and not self._accept_without_id:
            return f"it has no {' and no '.join(self._ids)}, so that a repeat could not be told"
        if len(record.id.encode()) > ID_BYTES_MAX:
            return f"its id has {len(record.id.encode())} bytes, at most {ID_BYTES_MAX} are allowed"
        if not record.id:
            self._counts["without_id"] += 1
        return _not_encoded(record.value, self._encoding)

    def _id(self, properties: Any) -> str:
        for name in self._ids:
            header = name.removeprefix("header:")
            found = (properties.headers or {}).get(header) if header != name else getattr(properties, name)
            if found:
                return str(found)
        return ""


def queued(url: str, queue: str) -> int:
    """Messages that wait in a queue for somebody to take them. Asked on a connection of its own."""
    library = pika()
    parameters = library.URLParameters(url)
    parameters.connection_attempts, parameters.socket_timeout, parameters.stack_timeout = 1, 5, 5
    try:
        connection = library.BlockingConnection(parameters)
        try:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
        finally:
            if connection.is_open:
                connection.close()
    except (library.exceptions.AMQPError, OSError) as failure:
        told = str(failure) or type(failure).__name__
        raise SourceError(f"RabbitMQ did not tell how many messages wait in {queue!r}: {told}") from failure


def _not_encoded(value: bytes, encoding: str | None) -> str | None:
    if encoding is None:
        return None
    try:
        value.decode(encoding)
    except UnicodeDecodeError as error:
        return f"it is no {encoding}: {error.reason} at byte {error.start}"
    return None


def _attributes(method: Any, properties: Any) -> dict[str, str]:
    """What came with it, as texts; headers as ``header.NAME``."""
    made = {"exchange": method.exchange, "routing_key": method.routing_key}
    made |= {name: str(value) for name in _PROPERTIES if (value := getattr(properties, name)) is not None}
    if properties.timestamp is not None:
        made["timestamp"] = str(properties.timestamp)
    return made | {f"header.{name}": str(value) for name, value in (properties.headers or {}).items()}
