"""What the sink needs of a producer: one transaction, written here and ended by somebody else.

A producer object is used for one transaction and thrown away: a producer's id and epoch name one transaction, so that
an ending that arrives late cannot end another one. It is never told to commit; that is for the driver.

Two of them pass the same tests: `arrow_producer.py` makes batches of Arrow's columns and sends them itself,
`object_producer.py` goes through confluent-kafka's Python objects and so through librdkafka.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.errors import RowRefusedError, SinkError

INIT_TIMEOUT_S = 60.0
MSG_SIZE_TOO_LARGE, UNKNOWN_TOPIC, UNKNOWN_PARTITION = 10, 3, -190
LEFT_OPEN = "it stays open until the next start of the job, or its time-out"


@dataclass(frozen=True)
class Records:
    """Rows for one topic: binary arrays, null where there is no key or no value; None where no row has any.

    ``partition`` is int32 with nulls for "by the key"; ``headers`` is a list of structs ``key, value``.
    """

    topic: str
    value: pa.Array
    key: pa.Array | None = None
    partition: pa.Array | None = None
    headers: pa.Array | None = None

    def __post_init__(self) -> None:
        lowest = None if self.partition is None else pc.min(self.partition).as_py()
        if lowest is not None and lowest < 0:
            raise RowRefusedError(
                f"kafka: a record for topic {self.topic} names the partition {lowest}: needed 0 or more, or null to go "
                "by the key"
            )

    def __len__(self) -> int:
        return len(self.value)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns() if column is not None)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Which columns there are, and of which types."""
        return tuple(None if column is None else column.type for column in self._columns())

    def take(self, places: pa.Array) -> Records:
        return Records(self.topic, *(None if column is None else column.take(places) for column in self._columns()))

    def slice(self, first: int, count: int) -> Records:
        columns = (None if column is None else column.slice(first, count) for column in self._columns())
        return Records(self.topic, *columns)

    @classmethod
    def joined(cls, several: Sequence[Records]) -> Records:
        """Of one topic and one shape."""
        if len(several) == 1:
            return several[0]
        columns = zip(*(one._columns() for one in several), strict=True)
        return cls(several[0].topic, *(None if one[0] is None else pa.concat_arrays(one) for one in columns))

    def _columns(self) -> tuple[pa.Array | None, ...]:
        return self.value, self.key, self.partition, self.headers


@dataclass(frozen=True)
class Position:
    """Where a record is in the log."""

    partition: int
    offset: int


class Producer(ABC):
    """Executor: one transaction under one name, from `begin` to `wait` or `abort`, then `close`.

    Making one connects, initialises the name and learns the producer's id: `SinkError` if the brokers do not answer or
    refuse. What was open under the name is aborted by that.
    """

    name: str
    producer_id: int
    producer_epoch: int

    @abstractmethod
    def begin(self) -> None:
        """Open the transaction; nothing is sent yet."""

    @abstractmethod
    def send(self, records: Records) -> None:
        """Hand records over, in order. Memory stays bounded: it waits while too many are under way."""

    @abstractmethod
    def send_token(self, topic: str, key: bytes, value: bytes) -> None:
        """One record that says what this transaction is."""

    @abstractmethod
    def wait(self) -> None:
        """Until every record that was sent is acknowledged by the brokers; `SinkError` if one of them was not."""

    @abstractmethod
    def first_token(self) -> Position:
        """After `wait`: where the first token is."""

    def hurry(self, topic: str, key: bytes, second: Callable[[Position | None], bytes]) -> None:
        """No more records come, and `finish` is going to be called with the same: begin what it will wait for."""

    def finish(self, topic: str, key: bytes, second: Callable[[Position | None], bytes]) -> Position:
        """`wait`, and then send the second token, which ``second`` makes when it is told where the first one is.

        One that is told None comes right behind the first one. Returns where that is.
        """
        self.wait()
        first = self.first_token()
        self.send_token(topic, key, second(first))
        self.wait()
        return first

    @abstractmethod
    def abort(self) -> None:
        """Roll back, as well as the brokers can be reached; what could not be told to them expires there."""

    def successor(self) -> Producer | None:
        """One that is ready at once for the name's next transaction, to be used when this one is settled; None if there
        is no such thing, and one has to be made."""
        return None

    @abstractmethod
    def idle(self) -> None:
        """To be called now and then while it waits for its turn, so that nothing piles up in it."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back. An open transaction stays open at the brokers, for the driver to end."""


def refused(
    name: str, code: int, text: str, topic: str | None, key: bytes | None, size: int, partitions_named: bool = False
) -> SinkError:
    """The error for a record that was not taken; ``partitions_named`` if records say which partition they are for."""
    if code == 10:  # MSG_SIZE_TOO_LARGE
        return RowRefusedError(
            f"kafka: a record of {size} bytes with the key {shown(key)} for topic {topic} is over the size limit "
            f"({text}). make the record smaller, or raise max.request.size in the sink's options and the topic's "
            "max.message.bytes"
        )
    if code in (3, -188) or (code == -190 and not partitions_named):  # UNKNOWN_TOPIC_OR_PART, _UNKNOWN_TOPIC
        return SinkError(f"kafka: topic {topic} is not there ({text}). create it again and start the job again")
    if code == -190 and partitions_named:  # _UNKNOWN_PARTITION
        return RowRefusedError(
            f"kafka: a record with the key {shown(key)} names a partition that {topic} does not have. change the "
            "column 'partition', or give the topic more partitions"
        )
    if code in (29, 53, 31):  # TOPIC_, TRANSACTIONAL_ID_, CLUSTER_AUTHORIZATION_FAILED
        return SinkError(f"kafka: writing to topic {topic} is not allowed ({text}). grant WRITE on it to this user")
    return SinkError(f"kafka: {topic or name}: the brokers did not take all records: {text}")


def named(topic: str, headers: Sequence[Mapping[str, Any] | None] | None) -> list[tuple[str, bytes | None]]:
    """The headers of one record as pairs; Kafka has no headers without a name."""
    pairs: list[tuple[str, bytes | None]] = []
    for header in headers or ():
        if header is None or header["key"] is None:
            raise RowRefusedError(f"kafka: a record for {topic} has a header without a name (null): needed a text")
        pairs.append((header["key"], header["value"]))
    return pairs


def shown(key: bytes | None) -> str:
    return "none" if key is None else repr(key[:80].decode("utf-8", "backslashreplace"))
