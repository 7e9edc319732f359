"""Topics, read committed: partitions in the order of their offsets. It never starts over."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallystick.errors import SinkError, TallystickError, UnprovenError
from tallystick.kafka import topics
from tallystick.kafka.clients import confluent
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.prover.workload import LANES
from tallystick.sinks.kafka import Kafka

_QUIET_S = 0.05
_SETTLE_S = 60.0


class KafkaReader(Reader):
    kind = "kafka"
    servers = ("kafka",)
    ordered = True
    expires = True
    settles_s = None

    def __init__(self, sink: Kafka, place: Place) -> None:
        super().__init__(sink, place)
        self._seen: dict[str, tuple[Item, ...]] = {str(number): () for number in range(LANES)}
        client = confluent()
        self._consumer = client.Consumer(
            {
                **topics.client_settings(place.server("kafka")),
                "group.id": f"prove-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
            }
        )
        self._partitions = [client.TopicPartition(sink.topic, number, 0) for number in range(LANES)]
        self._consumer.assign(self._partitions)
        self._ends: dict[int, int] = {}

    @classmethod
    def redirect(cls, sink: Kafka, name: str, place: Place) -> Kafka:
        if sink.topic is None:
            raise UnprovenError(
                f"the sink {sink.target} takes its topics from the rows: the prover cannot send them elsewhere",
                "a sink with one topic: ts.sinks.Kafka(servers, topic)",
            )
        kept = {name: value for name, value in sink.options.items() if name.startswith(("compression", "linger"))}
        return replace(sink, servers=place.server_for_job("kafka"), topic=place.output_name(name), options=kept)

    @classmethod
    def prepare(cls, sink: Kafka, place: Place) -> None:
        if sink.topic is not None:
            topics.make(place.server("kafka"), [sink.topic], LANES)

    def read(self) -> Mapping[str, Sequence[Item]]:
        """What came since the last time; returns when nothing more comes at once."""
        while messages := self._consumer.consume(1000, _QUIET_S):
            arrived: dict[str, list[Item]] = {}
            for message in messages:
                if self._is_record(message):
                    arrived.setdefault(str(message.partition()), []).append(_item(message))
            for partition, items in arrived.items():
                self._seen[partition] += tuple(items)
            if not arrived:
                break
        return dict(self._seen)

    def _is_record(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() == confluent().KafkaError._PARTITION_EOF:
            self._ends[message.partition()] = message.offset()
            return False
        if error.code() == confluent().KafkaError._AUTO_OFFSET_RESET or error.fatal():
            raise SinkError(f"the reader of {self.sink.topic} lost its place: {error.str()}")
        return False  # a broker that went away is looked for until it is back

    def settle(self) -> None:
        """Until nothing is open and everything up to the end was read."""
        try:
            topics.wait_until_nothing_is_open(self.place.server("kafka"), self._partitions)
        except TallystickError as failure:
            raise SinkError(str(failure)) from failure
        deadline = time.monotonic() + _SETTLE_S
        ends = [self._consumer.get_watermark_offsets(each, timeout=_SETTLE_S)[1] for each in self._partitions]
        while any(self._ends.get(number, 0) < end for number, end in enumerate(ends)):
            if time.monotonic() > deadline:
                raise SinkError(f"the topic {self.sink.topic} could not be read to its end in {_SETTLE_S:g} s")
            self.read()

    def close(self) -> None:
        self._consumer.close()


def _item(message: Any) -> Item:
    key = _text(message.key())
    return Item(row_text({"key": key, "value": _text(message.value())}), key)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")
