"""Records as Python objects through confluent-kafka: slower, but it works wherever confluent-kafka does."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from tallystick.errors import SinkError
from tallystick.kafka.clients import confluent
from tallystick.sinks.kafka.producer import INIT_TIMEOUT_S, LEFT_OPEN, Position, Producer, Records, named, refused
from tallystick.sinks.kafka.producer_settings import ProducerSettings

log = logging.getLogger("tallystick.kafka")
_client_log = logging.getLogger("tallystick.kafka.client")
_client_log.setLevel(logging.CRITICAL)  # what matters of it is in our errors


class ObjectProducer(Producer):
    def __init__(self, settings: ProducerSettings, name: str, topics: Sequence[str] = ()) -> None:
        self.name = name
        self.producer_id, self.producer_epoch = -1, -1
        self._kafka = confluent()
        self._sent = self._acknowledged = 0
        self._failure: SinkError | None = None
        self._partitions_named = False
        self._token: Position | None = None
        self._said: list[str] = []
        given = {
            **settings.librdkafka(),
            "statistics.interval.ms": "100",
            "transactional.id": name,
            "stats_cb": self._stats,
            "error_cb": self._error,
        }
        try:
            self._producer = self._kafka.Producer(given, logger=_client_log)
            # Connected first: librdkafka looks for the coordinator once when it is told to initialise, and if it has
            # no connection by then, again only half a second later.
            for topic in topics:
                self._producer.list_topics(topic, INIT_TIMEOUT_S)
            self._producer.init_transactions(INIT_TIMEOUT_S)
        except self._kafka.KafkaException as cause:
            raise SinkError(f"kafka: no transaction could be initialised as {name}: {_text(cause)}") from cause
        deadline = time.monotonic() + INIT_TIMEOUT_S
        while self.producer_id < 0:
            self._producer.poll(0.02)
            if time.monotonic() > deadline:
                raise SinkError(f"kafka: no producer id for {name} within {INIT_TIMEOUT_S:g} s")

    def begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except self._kafka.KafkaException as cause:
            raise SinkError(f"kafka: no transaction could be begun as {self.name}: {_text(cause)}") from cause

    def send(self, records: Records) -> None:
        self._partitions_named |= records.partition is not None
        values = records.value.to_pylist()
        keys = _listed(records.key, len(values))
        partitions = _listed(records.partition, len(values))
        if records.headers is None and records.partition is None:
            self._send_batch(records.topic, values, keys)
            return
        headers_of = _listed(records.headers, len(values))
        for value, key, partition, headers in zip(values, keys, partitions, headers_of, strict=True):
            self._send_one(records.topic, value, key, partition, named(records.topic, headers))

    def send_token(self, topic: str, key: bytes, value: bytes) -> None:
        self._send_one(topic, value, key, None, [], self._token_delivered)

    def wait(self) -> None:
        while self._acknowledged < self._sent and self._failure is None:
            self._call(self._producer.flush, 0.1)
        if self._failure is not None:
            raise self._failure

    def first_token(self) -> Position:
        if self._token is None or self._token.offset < 0:
            raise SinkError(f"kafka: the token of {self.name} was acknowledged without its place in the log")
        return self._token

    def abort(self) -> None:
        try:
            self._producer.abort_transaction(10)
        except self._kafka.KafkaException as failure:
            log.warning("kafka: %s could not be rolled back: %s. %s", self.name, _text(failure), LEFT_OPEN)

    def idle(self) -> None:
        if self._producer is not None:
            self._poll(0)

    def close(self) -> None:
        self._producer = None

    def _send_batch(self, topic: str, values: list[Any], keys: list[Any]) -> None:
        """Without partitions: ``produce_batch`` passes over those of single records."""
        messages: list[dict[str, Any]]
        messages = [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
        while messages:
            taken = self._producer.produce_batch(topic, messages, on_delivery=self._delivered)
            self._sent += taken
            if taken < len(messages):
                self._check_untaken(topic, messages, taken)
            messages = [{"value": each["value"], "key": each["key"]} for each in messages[taken:]]
            self._poll(0)

    def _check_untaken(self, topic: str, messages: list[dict[str, Any]], taken: int) -> None:
        """A full queue: it took the first ones and none after them. A record that it refuses is left out alone."""
        errors = [each.get("_error") for each in messages]
        for error, each in zip(errors, messages, strict=True):
            if error is not None and error.code() != self._kafka.KafkaError._QUEUE_FULL:
                raise self._failed(self._refused(error, topic, each["key"], each["value"]))
        if any(errors[:taken]) or not all(errors[taken:]):
            raise self._failed(SinkError(f"kafka: {topic}: librdkafka left out a record in the middle"))
        self._poll(0.1)

    def _send_one(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes | None]],
        delivered: Any = None,
    ) -> None:
        where = {} if partition is None else {"partition": partition}
        while True:
            try:
                self._producer.produce(
                    topic, value, key, headers=headers, on_delivery=delivered or self._delivered, **where
                )
            except BufferError:
                self._poll(0.1)
            except self._kafka.KafkaException as cause:
                raise self._failed(self._refused(cause.args[0], topic, key, value)) from cause
            else:
                break
        self._sent += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failed(self._refused(error, message.topic(), message.key(), message.value()))

    def _token_delivered(self, error: Any, message: Any) -> None:
        self._delivered(error, message)
        if error is None and self._token is None:
            self._token = Position(message.partition(), message.offset())

    def _refused(self, error: Any, topic: str, key: bytes | None, value: bytes | None) -> SinkError:
        text = error.str() + (f" (librdkafka: {self._said[-1]})" if self._said else "")
        return refused(self.name, error.code(), text, topic, key, len(value or b""), self._partitions_named)

    def _failed(self, failure: SinkError) -> SinkError:
        """From now on `wait` says so too: a transaction that misses a record must not be voted for."""
        self._failure = self._failure or failure
        return failure

    def _poll(self, wait_s: float) -> None:
        self._call(self._producer.poll, wait_s)

    def _call(self, function: Any, wait_s: float) -> None:
        """Errors that are for good, such as a name that was started anew, come out of any call."""
        try:
            function(wait_s)
        except self._kafka.KafkaException as cause:
            raise self._failed(SinkError(f"kafka: {self.name} cannot go on: {_text(cause)}")) from cause

    def _stats(self, text: str) -> None:
        if self.producer_id < 0:
            state = json.loads(text).get("eos", {})
            self.producer_id, self.producer_epoch = state.get("producer_id", -1), state.get("producer_epoch", -1)

    def _error(self, error: Any) -> None:
        self._said = [*self._said[-4:], error.str()]


def _listed(column: Any, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()


def _text(cause: Any) -> str:
    error = cause.args[0] if cause.args else cause
    return str(error.str() if hasattr(error, "str") else error)
