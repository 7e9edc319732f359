"""Records from Arrow's memory: no Python object per record on the way out, none on the way back."""

from __future__ import annotations

import ctypes as c
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.errors import RowRefusedError, SinkError
from tallystick.sinks.kafka import librdkafka as lib
from tallystick.sinks.kafka.producer import INIT_TIMEOUT_S, LEFT_OPEN, Position, Producer, Records, named, refused

log = logging.getLogger("tallystick.kafka")

ABORT_TIMEOUT_S = 10.0
TALKATIVE = {
    "log.queue": "true",
    # librdkafka tells a producer's id in two places only. Its log has it at once, in words that nobody promised; its
    # statistics have it when they are next made, which costs, the more so while many producers wait for their turn.
    "debug": "eos",
    "statistics.interval.ms": "1000",
}
WARNING = 4
TOPIC_MISSING = "UNKNOWN_TOPIC_OR_PART"

_ACQUIRED = re.compile(rb"Acquired PID\{Id:(\d+),Epoch:(\d+)\}")
_EMPTY = c.create_string_buffer(1)
"""Somewhere to point for a value that is empty but not null."""


class ArrowProducer(Producer):
    def __init__(self, settings: Mapping[str, str], name: str, topics: Sequence[str] = ()) -> None:
        self.name = name
        self.producer_id, self.producer_epoch = -1, -1
        self._lib = lib.library()
        self._topics: dict[str, int] = {}
        self._sent = self._acknowledged = 0
        self._patience_s = int(settings.get("transaction.timeout.ms", "60000")) / 1000
        self._failure: SinkError | None = None
        self._partitions_named = False
        self._said: list[str] = []
        self._token_topic: int | None = None
        self._token: Position | None = None
        try:
            self._handle = lib.new_handle({**settings, **TALKATIVE, "transactional.id": name})
        except lib.LibrdkafkaError as cause:
            raise SinkError(f"kafka: {cause}") from cause
        self._queue = self._lib.rd_kafka_queue_get_main(self._handle)
        self._lib.rd_kafka_set_log_queue(self._handle, self._queue)
        try:
            self._learn(topics)
            self._initialise()
        except BaseException:
            self.close()
            raise

    def _learn(self, topics: Sequence[str]) -> None:
        """Connect, and ask where the topics are, before anything needs it: librdkafka looks for the coordinator once
        when it is told to initialise, and if it has no connection by then, again only half a second later."""
        for topic in topics:
            self._topic(topic)
        answer = c.c_void_p()
        code = self._lib.rd_kafka_metadata(self._handle, 0, None, c.byref(answer), int(INIT_TIMEOUT_S * 1000))
        if code != 0:
            self._serve(0)
            raise SinkError(f"kafka: no answer from the brokers: {lib.words(code)}{self._last_words()}")
        self._lib.rd_kafka_metadata_destroy(answer)

    def _initialise(self) -> None:
        self._call(
            "no transaction could be initialised", self._lib.rd_kafka_init_transactions, int(INIT_TIMEOUT_S * 1000)
        )
        deadline = time.monotonic() + INIT_TIMEOUT_S
        while self.producer_id < 0:
            self._serve(20)
            if time.monotonic() > deadline:
                raise SinkError(
                    f"kafka: no producer id for {self.name} within {INIT_TIMEOUT_S:g} s{self._last_words()}"
                )

    def begin(self) -> None:
        self._call("no transaction could be begun", self._lib.rd_kafka_begin_transaction)

    def send(self, records: Records) -> None:
        self._partitions_named |= records.partition is not None
        if records.headers is not None:
            self._send_with_headers(records)
            return
        messages = np.zeros(len(records), lib.MESSAGE)
        kept = [_point(messages, "payload", "len", records.value)]
        if records.key is not None:
            kept.append(_point(messages, "key", "key_len", records.key))
        flags = lib.FLAG_COPY
        if records.partition is not None:
            messages["partition"] = records.partition.fill_null(lib.PARTITION_UNASSIGNED).to_numpy()
            flags |= lib.FLAG_PARTITION
        self._send_messages(records.topic, messages, flags)
        del kept  # Arrow's buffers were needed until here

    def send_token(self, topic: str, key: bytes, value: bytes) -> None:
        self._token_topic = self._topic(topic)
        self.send(Records(topic, pa.array([value], pa.binary()), pa.array([key], pa.binary())))

    def wait(self) -> None:
        before, since_s = self._acknowledged, time.monotonic()
        while self._acknowledged < self._sent and self._failure is None:
            self._lib.rd_kafka_flush(self._handle, 1)
            self._serve(20)
            if self._acknowledged > before:
                before, since_s = self._acknowledged, time.monotonic()
            elif time.monotonic() - since_s > self._patience_s:
                raise self._failed(self._stalled())
        if self._failure is not None:
            raise self._failure

    def _stalled(self) -> SinkError:
        """The brokers have rolled the transaction back by now; librdkafka should have said so before."""
        return SinkError(
            f"kafka: {self._sent - self._acknowledged} records of {self.name} are neither taken nor refused after "
            f"{self._patience_s:g} s{self._last_words()}. look at the brokers and whether the topic is still there"
        )

    def first_token(self) -> Position:
        if self._token is None or self._token.offset < 0:
            raise SinkError(f"kafka: the token of {self.name} was acknowledged without its place in the log")
        return self._token

    def abort(self) -> None:
        """librdkafka drops what is under way first and waits until we took note of that: so in short turns."""
        deadline = time.monotonic() + ABORT_TIMEOUT_S
        while True:
            try:
                lib.raise_for(self._lib.rd_kafka_abort_transaction(self._handle, 50))
            except lib.LibrdkafkaError as failure:
                self._serve(0)
                if failure.code == lib.TIMED_OUT and time.monotonic() < deadline:
                    continue
                log.warning("kafka: %s could not be rolled back: %s. %s", self.name, failure, LEFT_OPEN)
            return

    def idle(self) -> None:
        if self._handle:
            self._serve(0)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            for topic in self._topics.values():
                self._lib.rd_kafka_topic_destroy(topic)
            self._lib.rd_kafka_queue_destroy(self._queue)
            self._lib.rd_kafka_destroy(handle)

    def _send_messages(self, topic: str, messages: np.ndarray[Any, Any], flags: int) -> None:
        """All of them, in order: after a full queue it goes on with the first that was not taken."""
        rkt, first = self._topic(topic), 0
        while first < len(messages):
            rest = messages[first:]
            taken = self._lib.rd_kafka_produce_batch(rkt, lib.PARTITION_UNASSIGNED, flags, rest.ctypes.data, len(rest))
            self._sent += taken
            first += taken
            if taken < len(rest):
                self._check_untaken(topic, rest, taken)
            self._serve(0)

    def _check_untaken(self, topic: str, rest: np.ndarray[Any, Any], taken: int) -> None:
        """A full queue: it took the first ones and none after them. A record that it refuses is left out alone."""
        codes = rest["err"]
        wrong = np.flatnonzero((codes != 0) & (codes != lib.QUEUE_FULL))
        if len(wrong):
            raise self._failed(self._refused(int(codes[wrong[0]]), topic, rest[wrong[0]]))
        if np.any(codes[:taken]) or not np.all(codes[taken:]):
            raise self._failed(SinkError(f"kafka: {topic}: librdkafka left out a record in the middle"))
        self._serve(100)

    def _send_with_headers(self, records: Records) -> None:
        rkt = self._topic(records.topic)
        columns = [
            records.value.to_pylist(),
            *(_listed(column, len(records)) for column in (records.key, records.partition)),
        ]
        for value, key, partition, headers in zip(*columns, _listed(records.headers, len(records)), strict=True):
            self._send_one(records.topic, rkt, value, key, partition, named(records.topic, headers))
            self._serve(0)

    def _send_one(
        self,
        topic: str,
        rkt: int,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        arguments = (lib.Variant * (5 + len(headers)))()
        arguments[0].vtype, arguments[0].u.ptr = lib.V_RKT, rkt
        arguments[1].vtype, arguments[1].u.i32 = lib.V_PARTITION, -1 if partition is None else partition
        arguments[2].vtype, arguments[2].u.i = lib.V_FLAGS, lib.FLAG_COPY
        kept = [_memory(arguments[3], lib.V_VALUE, value), _memory(arguments[4], lib.V_KEY, key)]
        for argument, header in zip(arguments[5:], headers, strict=True):
            kept.append(_header(argument, *header))
        while True:
            try:
                lib.raise_for(self._lib.rd_kafka_produceva(self._handle, arguments, len(arguments)))
            except lib.LibrdkafkaError as cause:
                if cause.code != lib.QUEUE_FULL:
                    raise self._failed(self._error(cause.code, str(cause), topic, key, len(value or b""))) from cause
                self._serve(100)
            else:
                break
        del kept
        self._sent += 1

    def _topic(self, topic: str) -> int:
        if topic not in self._topics:
            made = self._lib.rd_kafka_topic_new(self._handle, topic.encode(), None)
            if not made:
                raise RowRefusedError(f"kafka: {topic!r} cannot be the name of a topic")
            self._topics[topic] = made
        return self._topics[topic]

    def _serve(self, wait_ms: int) -> None:
        """Take what librdkafka has to say: waits for the first event only."""
        while event := self._lib.rd_kafka_queue_poll(self._queue, wait_ms):
            wait_ms = 0
            try:
                self._take(event, self._lib.rd_kafka_event_type(event))
            finally:
                self._lib.rd_kafka_event_destroy(event)

    def _take(self, event: int, kind: int) -> None:
        if kind == lib.EVENT_DELIVERY:
            self._delivered(event)
        elif kind == lib.EVENT_STATS and self.producer_id < 0:
            state = json.loads(self._lib.rd_kafka_event_stats(event)).get("eos", {})
            self.producer_id, self.producer_epoch = state.get("producer_id", -1), state.get("producer_epoch", -1)
        elif kind == lib.EVENT_ERROR:
            self._hear(self._lib.rd_kafka_event_error_string(event))
        elif kind == lib.EVENT_LOG:
            facility, text, level = c.c_char_p(), c.c_char_p(), c.c_int()
            self._lib.rd_kafka_event_log(event, c.byref(facility), c.byref(text), c.byref(level))
            self._hear(text.value, level.value)

    def _delivered(self, event: int) -> None:
        """One event is one batch of one partition, taken or not taken as a whole."""
        code = self._lib.rd_kafka_event_error(event)
        count = self._lib.rd_kafka_event_message_count(event)
        message = lib.first_message(event)
        if code == 0:
            self._acknowledged += count
            if message["rkt"] == self._token_topic and self._token is None:
                self._token = Position(int(message["partition"]), int(message["offset"]))
        elif self._failure is None:
            topic = next((name for name, rkt in self._topics.items() if rkt == message["rkt"]), None)
            self._failure = self._refused(int(message["err"]) or code, topic, message)

    def _refused(self, code: int, topic: str | None, message: Any) -> SinkError:
        key = c.string_at(int(message["key"]), int(message["key_len"])) if message["key"] else None
        return self._error(code, lib.words(code) + self._last_words(), topic, key, int(message["len"]))

    def _error(self, code: int, text: str, topic: str | None, key: bytes | None, size: int) -> SinkError:
        if TOPIC_MISSING in text:  # the transaction failed as a whole, and is said of whichever record came first
            written = (name for name, rkt in self._topics.items() if rkt != self._token_topic)
            code, topic = lib.UNKNOWN_TOPIC, next(written, topic)
        return refused(self.name, code, text, topic, key, size, self._partitions_named)

    def _failed(self, failure: SinkError) -> SinkError:
        """From now on `wait` says so too: a transaction that misses a record must not be voted for."""
        self._failure = self._failure or failure
        return failure

    def _call(self, what: str, function: Any, *arguments: Any) -> None:
        try:
            lib.raise_for(function(self._handle, *arguments))
        except lib.LibrdkafkaError as cause:
            self._serve(0)
            raise SinkError(f"kafka: {what} as {self.name}: {cause}{self._last_words()}") from cause

    def _hear(self, text: bytes | None, level: int = WARNING) -> None:
        if (acquired := _ACQUIRED.search(text or b"")) is not None:
            self.producer_id, self.producer_epoch = int(acquired[1]), int(acquired[2])
        if level > WARNING:
            return
        said = (text or b"").decode(errors="replace").strip()
        log.debug("%s: %s", self.name, said)
        self._said = [*self._said[-4:], said]

    def _last_words(self) -> str:
        return f" (librdkafka: {self._said[-1]})" if self._said else ""


def _point(messages: np.ndarray[Any, Any], pointer: str, length: str, values: pa.Array) -> object:
    """Let each message point at its bytes. Returns what must stay alive while they are used."""
    if pa.types.is_large_binary(values.type):
        width: Any = np.int64
    elif pa.types.is_binary(values.type):
        width = np.int32
    else:
        raise SinkError(f"kafka: keys and values are binary, found {values.type}")
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, width)[values.offset : values.offset + len(values) + 1]
    base = data.address if data is not None and data.size else c.addressof(_EMPTY)
    messages[pointer] = offsets[:-1].astype(np.uint64) + np.uint64(base)
    messages[length] = np.diff(offsets)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        messages[pointer][missing] = 0
        messages[length][missing] = 0
    return values


def _listed(column: pa.Array | None, count: int) -> list[Any]:
    return [None] * count if column is None else column.to_pylist()


def _memory(argument: lib.Variant, kind: int, data: bytes | None) -> object:
    argument.vtype = kind
    if data is None:
        argument.u.mem.ptr, argument.u.mem.size = None, 0
        return None
    kept = c.create_string_buffer(data, len(data) or 1)
    argument.u.mem.ptr, argument.u.mem.size = c.addressof(kept), len(data)
    return kept


def _header(argument: lib.Variant, name: str, value: bytes | None) -> object:
    encoded = name.encode()
    argument.vtype = lib.V_HEADER
    argument.u.header.name, argument.u.header.val = encoded, value
    argument.u.header.size = 0 if value is None else len(value)
    return encoded, value
