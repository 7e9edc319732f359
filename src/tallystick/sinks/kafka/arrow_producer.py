"""Records from Arrow's memory: no Python object per record, no thread and no connection per transaction.

Rows are gathered until they make good batches and laid out as Kafka stores them (`batches.py`), for the partitions that
they belong to (`placement.py`). What becomes of a batch is the sender's business (`sender.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tallystick.errors import SinkError
from tallystick.sinks.kafka.batches import Body, Compression, binary, bodies, one_record, record_bytes
from tallystick.sinks.kafka.placement import by_key, place_of
from tallystick.sinks.kafka.producer import (
    MSG_SIZE_TOO_LARGE,
    UNKNOWN_PARTITION,
    Position,
    Producer,
    Records,
    refused,
)
from tallystick.sinks.kafka.producer_settings import ProducerSettings
from tallystick.sinks.kafka.sender import ANSWER_WAIT_S, Sender

GATHERED_BYTES = 1 << 20
"""Rows of a topic wait for each other until they are so many, or so many for each of its partitions:"""
GATHERED_BYTES_PER_PARTITION = 64 << 10
GATHERED_BYTES_MAX = 16 << 20
UNCOMPRESSED = Compression.of("none")


class ArrowProducer(Producer):
    def __init__(
        self,
        settings: ProducerSettings,
        name: str,
        topics: Sequence[str] = (),
        expected: tuple[int, int] | None = None,
    ) -> None:
        """``expected`` is the producer's id and epoch, if the name's last transaction leads to them."""
        self.name = name
        self._settings = settings
        self._compression = Compression.of(*settings.compression)
        self._sender = Sender(settings, name, expected)
        for topic in topics if expected is None else ():
            self._sender.partitions(topic)
        self._topics = topics
        self._gathered: dict[str, list[Records]] = {}
        self._gathered_bytes: Counter[str] = Counter()
        self._waiting_token: tuple[str, bytes, bytes] | None = None
        self._first_token: tuple[str, int] | None = None
        self._all_sent = False
        self._spread_bytes, self._spread_from = 0, random.randrange(1 << 30)

    @property
    def producer_id(self) -> int:  # type: ignore[override] # the sender may have to take another one
        return self._sender.producer_id

    @property
    def producer_epoch(self) -> int:  # type: ignore[override]
        return self._sender.producer_epoch

    def begin(self) -> None:
        """Brokers open a transaction with the first batch."""
        self._sender.begin()

    def send(self, records: Records) -> None:
        self._sender.need_no_failure()
        self._sender.partitions_named |= records.partition is not None
        self._check_sizes(records)
        self._gathered.setdefault(records.topic, []).append(records)
        self._gathered_bytes[records.topic] += records.nbytes
        full = self._gathered_bytes[records.topic] >= self._gather_bytes(records.topic)
        too_much = self._gathered_bytes.total() + self._sender.unacknowledged_bytes > self._settings.buffer_bytes
        if full or too_much:
            self._put_token()
            for topic in list(self._gathered) if too_much else [records.topic]:
                self._stage(topic)
            self._sender.exchange(0)
        while self._sender.unacknowledged_bytes > self._settings.buffer_bytes and self._sender.failure is None:
            self._sender.exchange(ANSWER_WAIT_S)

    def send_token(self, topic: str, key: bytes, value: bytes) -> None:
        """The first one goes out with the first rows."""
        self._put_token()
        self._waiting_token = (topic, key, value)
        if self._sender.anything_sent:
            self._put_token()

    def wait(self) -> None:
        self._put_token()
        for topic in list(self._gathered):
            self._stage(topic)
        self._sender.wait()

    def hurry(self, topic: str, key: bytes, second: Callable[[Position | None], bytes]) -> None:
        """All in one request, if it is for one broker and there is one batch for each partition."""
        if self._waiting_token is None or self._sender.anything_sent:
            return
        for name in list(self._gathered):
            self._stage(name)
        if self._sender.fits_one_request(self._token_place(topic, key)):
            self._put_token(second(None))
            self._all_sent = True
            self._sender.exchange(0)

    def finish(self, topic: str, key: bytes, second: Callable[[Position | None], bytes]) -> Position:
        self.hurry(topic, key, second)
        if not self._all_sent:
            return super().finish(topic, key, second)
        self._sender.wait()
        return self.first_token()

    def first_token(self) -> Position:
        found = None if self._first_token is None else self._sender.first_in(self._first_token)
        if found is None or found.offset < 0:
            raise SinkError(f"kafka: the token of {self.name} was acknowledged without its place in the log")
        return found

    def abort(self) -> None:
        self._sender.abort()

    def successor(self) -> Producer | None:
        """After a transaction that was sent without trouble."""
        if self._sender.failure is not None or not self._sender.anything_sent:
            return None
        expected = (self.producer_id, self.producer_epoch + 1)
        return ArrowProducer(self._settings, self.name, self._topics, expected)

    def idle(self) -> None:
        """Nothing piles up in it."""

    def close(self) -> None:
        self._gathered.clear()
        self._gathered_bytes.clear()
        self._sender.close()

    def _check_sizes(self, records: Records) -> None:
        most = self._settings.record_bytes_max
        sizes = record_bytes(records)
        too_large = np.flatnonzero(sizes > most)
        if len(too_large):
            key, size = _of(records, int(too_large[0]))
            text = f"max.request.size is {most}"
            raise self._sender.failed(refused(self.name, MSG_SIZE_TOO_LARGE, text, records.topic, key, size))

    def _gather_bytes(self, topic: str) -> int:
        partitions = len(self._sender.partitions(topic))
        return min(max(GATHERED_BYTES, partitions * GATHERED_BYTES_PER_PARTITION), GATHERED_BYTES_MAX)

    def _stage(self, topic: str) -> None:
        del self._gathered_bytes[topic]
        for records in _joined(self._gathered.pop(topic)):
            self._put(records)

    def _put(self, records: Records) -> None:
        """To the sender, in batches for their partitions."""
        if not len(records):
            return
        ordered, places, cuts = self._by_partition(records)
        for body in bodies(ordered, self._settings.batch_bytes, cuts):
            place = (records.topic, int(places[body.first]))
            self._sender.put(place, body, self._compression, *_of(ordered, body.largest))

    def _put_token(self, *behind: bytes) -> None:
        """The token that waits, if any, and what is to come right behind it."""
        if self._waiting_token is None:
            return
        (topic, key, first), self._waiting_token = self._waiting_token, None
        place, values = self._token_place(topic, key), (first, *behind)
        self._first_token = self._first_token or place
        laid_out = pa.py_buffer(b"".join(one_record(number, value, key) for number, value in enumerate(values)))
        self._sender.put(place, Body(len(values), laid_out, 0, 0), UNCOMPRESSED, key, len(first))

    def _token_place(self, topic: str, key: bytes) -> tuple[str, int]:
        return topic, place_of(key, len(self._sender.partitions(topic)))

    def _by_partition(self, records: Records) -> tuple[Records, np.ndarray[Any, np.dtype[np.int32]], list[int]]:
        """Those of one partition together, in their order; the partition of each, and where another one begins."""
        places = self._places(records)
        if not (places == places[0]).all():
            order = np.argsort(places, kind="stable")
            records, places = records.take(pa.array(order)), places[order]
        return records, places, (np.flatnonzero(np.diff(places)) + 1).tolist()

    def _places(self, records: Records) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The partition of each record."""
        nodes = self._sender.partitions(records.topic)
        if records.key is None or records.key.null_count == len(records):
            places = self._spread(record_bytes(records), nodes)
        else:
            places = by_key(binary(records.key), len(nodes))
            if records.key.null_count:
                keyless = records.key.is_null().to_numpy(zero_copy_only=False)
                places[keyless] = self._spread(record_bytes(records)[keyless], nodes)
        if records.partition is not None:
            named = records.partition.is_valid().to_numpy(zero_copy_only=False)
            chosen = records.partition.fill_null(0).to_numpy()
            if (named & (chosen >= len(nodes))).any():  # the topic may have got more of them
                self._sender.look_at(records.topic)
                self._check_partitions(
                    records, np.flatnonzero(named & (chosen >= len(self._sender.partitions(records.topic))))
                )
            places = np.where(named, chosen, places)
        return places

    def _spread(self, sizes: Any, nodes: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Those without a key stay together up to a batch; partitions without a leader are left alone."""
        usable = np.array([number for number, node in enumerate(nodes) if node >= 0] or range(len(nodes)), np.int32)
        upto = self._spread_bytes + np.cumsum(sizes)
        self._spread_bytes = int(upto[-1]) if len(upto) else self._spread_bytes
        drawn: np.ndarray[Any, np.dtype[np.int32]] = usable[
            (self._spread_from + upto // self._settings.batch_bytes) % len(usable)
        ]
        return drawn

    def _check_partitions(self, records: Records, wrong: Any) -> None:
        if len(wrong):
            key, size = _of(records, int(wrong[0]))
            text = "there is no such partition"
            raise self._sender.failed(refused(self.name, UNKNOWN_PARTITION, text, records.topic, key, size, True))


def _of(records: Records, place: int) -> tuple[bytes | None, int]:
    """Of one record the key, and how large its value is."""
    key = None if records.key is None else records.key[place].as_py()
    value = records.value[place].as_py()
    return key, len(value or b"")


def _joined(gathered: list[Records]) -> Iterator[Records]:
    """Those with the same columns as one, in their order."""
    same: list[Records] = []
    for records in gathered:
        if same and same[0].shape != records.shape:
            yield Records.joined(same)
            same = []
        same.append(records)
    if same:
        yield Records.joined(same)
