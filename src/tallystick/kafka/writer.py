"""Write transactions for somebody else to end: names are initialised and batches of records sent, request by request.

A client library ends its own transactions, keeps its epoch from one to the next, and takes 60 ms and several threads
to make a producer. Here a transaction is a name with a producer id and an epoch, on connections that all transactions
of a process share: to start one is a single request.

Produce version 12 adds a partition to the transaction by itself, and EndTxn version 5 raises the epoch: so what arrives
late, after the driver has ended the transaction, is refused by every broker and can never be part of the next one.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.errors import NotAllowedError, SinkError
from tallystick.kafka.connection import MOVED, Connection, Leaders, words
from tallystick.kafka.settings import KafkaSettings

PRODUCE_VERSION = 12
END_TXN_VERSION = 5
BUSY = (51, *MOVED, 7)
"""Codes of InitProducerId and EndTxn that pass: CONCURRENT_TRANSACTIONS, coordinators that move, REQUEST_TIMED_OUT."""
REQUEST_TIMEOUT_MS = 30_000
RECONNECT_MAX_MS = 1000
DENIED = {
    53: "this user may not begin transactions with that name. grant WRITE on the transactional ids",
    31: "this user may not begin transactions with that name. grant WRITE on the transactional ids",
    50: "transaction.timeout.ms is more than the brokers allow (transaction.max.timeout.ms)",
}


@dataclass(frozen=True)
class Lost:
    """Nobody knows what became of a request. ``final``: asking again is of no use."""

    text: str
    final: bool


@dataclass(frozen=True)
class Taken:
    """What a broker says of one batch: Kafka's code, 0 if it was taken, and then the offset of its first record."""

    place: tuple[str, int]
    code: int
    offset: int
    text: str


class Writer:
    """Executor: the connections of one process to one cluster."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._connection = Connection(
            settings, reconnect_backoff_max_ms=RECONNECT_MAX_MS, request_timeout_ms=REQUEST_TIMEOUT_MS
        )
        from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest, ProduceRequest

        self._init_request, self._end_request = InitProducerIdRequest, EndTxnRequest
        self._produce_request = ProduceRequest
        errors = self._connection.errors
        self._final = (
            errors.AuthorizationError,
            errors.SaslAuthenticationFailedError,
            errors.UnsupportedSaslMechanismError,
            errors.IncompatibleBrokerVersion,
        )
        self._leaders: dict[str, tuple[float, Leaders]] = {}
        self._age_max_s = float(settings.options.get("metadata.max.age.ms", "300000")) / 1000

    @property
    def broken(self) -> bool:
        """It will never answer again."""
        return self._connection.broken

    def close(self) -> None:
        self._connection.close()

    def initialise(self, name: str, timeout_ms: int, patience_s: float) -> tuple[int, int]:
        """Start a name anew: a producer id and an epoch that nobody has used. What was open under it is aborted.

        `SinkError` if the brokers refuse, or do not answer in time.
        """
        request = {"transaction_timeout_ms": timeout_ms, "producer_id": -1, "producer_epoch": -1}
        answer = self._of_coordinator(name, lambda: self._init_request(transactional_id=name, **request), patience_s)
        return int(answer.producer_id), int(answer.producer_epoch)

    def abort(self, name: str, producer_id: int, producer_epoch: int, patience_s: float) -> None:
        """Roll back. `SinkError` if that is not known to have worked; nothing open is no error."""
        version = {"min_version": END_TXN_VERSION, "max_version": END_TXN_VERSION}
        ending = {"producer_id": producer_id, "producer_epoch": producer_epoch, "committed": False}
        self._of_coordinator(
            name, lambda: self._end_request(transactional_id=name, **ending, **version), patience_s, harmless=(48,)
        )

    def _of_coordinator(
        self, name: str, request: Callable[[], Any], patience_s: float, harmless: Sequence[int] = ()
    ) -> Any:
        """The answer to a request that may be repeated, asked until there is one."""

        async def ask() -> Any:
            coordinators = await self._connection.coordinators([name])
            return await self._connection.send(request(), coordinators[name])

        deadline, pause_s = time.monotonic() + patience_s, 0.002
        while True:
            try:
                answer = self._connection.run(ask)
                if answer.error_code in (0, *harmless):
                    return answer
                why, passing = self._name_of(answer.error_code), answer.error_code in BUSY
                refused = DENIED.get(answer.error_code, "")
            except self._connection.errors.KafkaError as failure:
                why, refused = words(failure), ""
                passing = not isinstance(failure, self._final)
            self._connection.forget(name)
            if not passing or time.monotonic() > deadline:
                raise SinkError(f"kafka: no answer about the transaction {name}: {why}. {refused}".removesuffix(". "))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)

    def _name_of(self, code: int) -> str:
        return str(self._connection.errors.for_code(code).__name__)

    def leaders(self, topic: str, patience_s: float, create: bool = False) -> Leaders:
        """Who leads the partitions of a topic, as it was known lately. ``create``: one that is new here may be made."""
        known = self._leaders.get(topic)
        if known is None or known[1].error or time.monotonic() - known[0] > self._age_max_s:
            self.look([topic], patience_s, create and known is None)
        return self._leaders[topic][1]

    def look(self, topics: Iterable[str], patience_s: float, create: bool = False) -> None:
        """Ask who leads the partitions of these topics now. `SinkError` if nobody answers, `NotAllowedError` if nobody
        ever will."""
        deadline, wanted = time.monotonic() + patience_s, sorted(topics)
        while True:
            try:
                found = self._connection.run(self._connection.leaders, wanted, create)
            except self._connection.errors.KafkaError as failure:
                if isinstance(failure, self._final):
                    raise NotAllowedError(f"kafka: the brokers refuse this client: {words(failure)}") from failure
                if time.monotonic() > deadline:
                    raise SinkError(f"kafka: no answer from the brokers: {words(failure)}") from failure
                time.sleep(0.05)
                continue
            now = time.monotonic()
            self._leaders.update({topic: (now, leaders) for topic, leaders in found.items()})
            return

    def produce(
        self,
        node: int,
        name: str,
        batches: Sequence[tuple[tuple[str, int], bytes]],
        timeout_ms: int,
        answered: Callable[[list[Taken] | Lost], None],
    ) -> None:
        """Send batches, one for a partition, to the broker that leads them, and go on.

        ``answered`` gets what became of each of them, or why nobody knows; on a thread of the connection.
        """
        data = self._produce_request.TopicProduceData
        topics: dict[str, list[Any]] = {}
        for (topic, number), batch in batches:
            topics.setdefault(topic, []).append(data.PartitionProduceData(index=number, records=batch))
        request = self._produce_request(
            transactional_id=name,
            acks=-1,
            timeout_ms=timeout_ms,
            topic_data=[data(name=topic, partition_data=parts) for topic, parts in topics.items()],
            min_version=PRODUCE_VERSION,
            max_version=PRODUCE_VERSION,
        )
        self._connection.post(request, node, lambda answer: answered(self._taken(answer)))

    def _taken(self, answer: Any) -> list[Taken] | Lost:
        if isinstance(answer, BaseException):
            return Lost(words(answer), isinstance(answer, self._final))
        return [
            Taken((topic.name, one.index), one.error_code, one.base_offset, self._said(one))
            for topic in answer.responses
            for one in topic.partition_responses
        ]

    def _said(self, one: Any) -> str:
        if one.error_code == 0:
            return ""
        return f"{self._name_of(one.error_code)} {one.error_message or ''}".strip()


class _Writers:
    """Those of this process, which is not the one that it was forked from."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[tuple[int, str, tuple[tuple[str, str], ...]], Writer] = {}

    def __call__(self, settings: KafkaSettings) -> Writer:
        key = (os.getpid(), settings.servers, _sorted(settings.of_role("connection")))
        with self._guard:
            if key in self._made and self._made[key].broken:
                self._made.pop(key).close()
            if key not in self._made:
                self._made[key] = Writer(settings)
            return self._made[key]

    def close(self) -> None:
        with self._guard:
            mine = [writer for key, writer in self._made.items() if key[0] == os.getpid()]
            self._made.clear()
        for writer in mine:
            writer.close()


def _sorted(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(options.items()))


writer_for = _Writers()
atexit.register(writer_for.close)
