"""End, look at and start transactions from a process that did not write them.

Kafka answers a request about a transaction with a code; `Answer` says what the code means for somebody who wants the
transaction committed. Measured on broker 4.3.1 (EndTxn version 5; ``e`` is the epoch that the transaction was written
with):

======================================================= ======================= =======================
situation                                               commit                  abort
======================================================= ======================= =======================
open                                                    DONE                    DONE
the same ending repeated, any time later                DONE                    DONE
the same ending repeated while its markers are written  LATER                   LATER
aborted before, by anybody or by its time-out           GONE                    DONE
committed before                                        DONE                    GONE
the name was initialised again since                    FENCED                  FENCED
name unknown, or forgotten after days                   FORGOTTEN               FORGOTTEN
======================================================= ======================= =======================

FENCED and FORGOTTEN do not tell whether it had been committed. Version 5 is required, never a lower one: it raises the
producer's epoch, so that a late repeat cannot end another transaction of the same name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tallystick.errors import NotAllowedError, SinkError
from tallystick.kafka.connection import MOVED, Connection, words
from tallystick.kafka.settings import KafkaSettings

log = logging.getLogger("tallystick.kafka")

END_TXN_VERSION = 5
LANES = 2
"""Connections for endings. A broker answers the requests of one connection one after the other, and each ending waits
until it is written down: four of them took 7.5 ms on one connection, 4.5 ms on two, 4.4 ms on four."""
MARKER_VERSION = 1
FETCH_VERSION = 12
"""The last one that knows topics by their names."""
FETCH_BYTES = 1 << 20


class Answer(str, Enum):
    """What the coordinator said about ending a transaction. LATER: ask again; nothing is known yet."""

    DONE = "done"
    GONE = "gone"
    FENCED = "fenced"
    FORGOTTEN = "forgotten"
    LATER = "later"
    DENIED = "denied"


_ANSWERS = {
    0: Answer.DONE,
    48: Answer.GONE,  # INVALID_TXN_STATE
    47: Answer.FENCED,  # INVALID_PRODUCER_EPOCH
    90: Answer.FENCED,  # PRODUCER_FENCED
    49: Answer.FORGOTTEN,  # INVALID_PRODUCER_ID_MAPPING
    53: Answer.DENIED,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    31: Answer.DENIED,  # CLUSTER_AUTHORIZATION_FAILED
}


@dataclass(frozen=True)
class Ending:
    """Which transaction to end, and how."""

    name: str
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True)
class Found:
    """One transaction as its coordinator knows it. ``started_ms`` is -1 when none is open."""

    name: str
    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    partitions: frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Writing:
    """One producer's open transaction on one partition.

    ``coordinator_epoch`` is that of the last marker which this producer got there, -1 if it never got one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    first_offset: int
    coordinator_epoch: int


class Transactions:
    """A connection to one cluster, for the driver. Safe to use from several threads."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings)
        self._lanes = [self._connection]
        self._guard = threading.Lock()
        self._adding = self._closed = False
        from kafka.protocol.consumer import FetchRequest
        from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest
        from kafka.protocol.producer.transaction import WriteTxnMarkersRequest
        from kafka.record import MemoryRecords

        self._admin, self._errors = self._connection.admin, self._connection.errors
        self._end_request = EndTxnRequest
        self._init_request = InitProducerIdRequest
        self._marker_request = WriteTxnMarkersRequest
        self._fetch_request = FetchRequest
        self._batches = MemoryRecords

    def close(self) -> None:
        with self._guard:
            self._closed = True
        for lane in self._lanes:
            lane.close()

    def end_all(self, endings: Sequence[Ending]) -> list[Answer]:
        """Ask for all of them at once and wait for the answers; lost connections and time-outs are LATER.

        Endings of one name are asked for in their order.
        """
        if not endings:
            return []
        names = {name: number for number, name in enumerate(dict.fromkeys(ending.name for ending in endings))}
        lanes = self._lanes_for(list(names))
        shares: list[list[int]] = [[] for _ in lanes]
        for place, ending in enumerate(endings):
            shares[names[ending.name] % len(lanes)].append(place)
        under_way = [
            lane.begin(self._end_all, lane, [endings[place] for place in share])
            for lane, share in zip(lanes, shares, strict=True)
        ]
        found = {
            place: answer
            for share, result in zip(shares, under_way, strict=True)
            for place, answer in zip(share, result(), strict=True)
        }
        return [found[place] for place in range(len(endings))]

    def _lanes_for(self, names: list[str]) -> list[Connection]:
        """Those that are there. Another one is made in the background when it is needed first: nobody waits for it."""
        with self._guard:
            for lane in [lane for lane in self._lanes[1:] if lane.broken]:
                self._lanes.remove(lane)
                lane.close()
            if len(self._lanes) < min(len(names), LANES) and not self._adding:
                self._adding = True
                thread = threading.Thread(
                    target=self._add_lane, args=[names], name="tallystick-kafka-lane", daemon=True
                )
                thread.start()
            return self._lanes[: len(names)]

    def _add_lane(self, names: list[str]) -> None:
        """It has asked the coordinators of these names something when it is used first: then it knows who they are, is
        connected, and no ending waits for that."""
        lane: Connection | None = None
        try:
            lane = Connection(self._settings)
            lane.admin.describe_transactions(names)
        except (SinkError, self._errors.KafkaError, RuntimeError) as failure:  # RuntimeError: its thread has ended
            log.info("no further connection for endings, one will do: %s", failure)
            if lane is not None:
                lane.close()
            lane = None
        with self._guard:
            self._adding = False
            if lane is not None and not self._closed:
                self._lanes.append(lane)
                lane = None
        if lane is not None:
            lane.close()

    def end_soon(self, endings: Sequence[Ending], patience_s: float = 1.0) -> list[Answer]:
        """The same, and ask again for a while those that were LATER: markers are written within milliseconds."""
        answers = self.end_all(endings)
        deadline, pause_s = time.monotonic() + patience_s, 0.005
        while Answer.LATER in answers and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)
            open_ones = [number for number, answer in enumerate(answers) if answer is Answer.LATER]
            for number, answer in zip(open_ones, self.end_all([endings[n] for n in open_ones]), strict=True):
                answers[number] = answer
        return answers

    async def _end_all(self, lane: Connection, endings: Sequence[Ending]) -> list[Answer]:
        try:
            coordinators = await lane.coordinators([ending.name for ending in endings])
        except self._errors.AuthorizationError:
            return [Answer.DENIED] * len(endings)
        except self._errors.KafkaError:
            return [Answer.LATER] * len(endings)
        sent = [lane.send(self._request(ending), coordinators[ending.name]) for ending in endings]
        return [await self._answer(lane, ending.name, future) for ending, future in zip(endings, sent, strict=True)]

    def _request(self, ending: Ending) -> Any:
        return self._end_request(
            transactional_id=ending.name,
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            committed=ending.commit,
            min_version=END_TXN_VERSION,
            max_version=END_TXN_VERSION,
        )

    async def _answer(self, lane: Connection, name: str, future: Any) -> Answer:
        try:
            code = (await future).error_code
        except self._errors.KafkaError:
            lane.forget(name)
            return Answer.LATER
        if code in MOVED:
            lane.forget(name)
        return _ANSWERS.get(code, Answer.LATER)

    def initialise(self, name: str, timeout_ms: int) -> str:
        """Start a name anew: what is open under it is aborted. Returns the name of Kafka's error, '' if it worked."""

        async def ask() -> Any:
            coordinators = await self._connection.coordinators([name])
            request = self._init_request(
                transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
            )
            return await self._connection.send(request, coordinators[name])

        try:
            code = self._connection.run(ask).error_code
        except self._errors.KafkaError as failure:
            self._connection.forget(name)
            return type(failure).__name__
        if code in MOVED:
            self._connection.forget(name)
        return "" if code == 0 else str(self._errors.for_code(code).__name__)

    def write_marker(self, place: tuple[str, int], open_there: Writing, commit: bool) -> str:
        """Say to a partition's leader that this transaction has ended, as its coordinator should have done.

        Nobody but the coordinator checks that it is true. A leader refuses a marker of a coordinator that is older than
        the one which wrote the producer's last marker there, so ours claims to come from that one. Returns the name of
        Kafka's error, '' if it worked.
        """
        marker = self._marker_request.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic(name=place[0], partition_indexes=[place[1]])
        request = self._marker_request(
            markers=[
                marker(
                    producer_id=open_there.producer_id,
                    producer_epoch=open_there.producer_epoch,
                    transaction_result=commit,
                    topics=[topic],
                    coordinator_epoch=open_there.coordinator_epoch,
                )
            ],
            max_version=MARKER_VERSION,
        )

        async def ask() -> Any:
            return await self._connection.send(request, await self._connection.leader(place))

        try:
            answered = self._connection.run(ask)
        except self._errors.KafkaError as failure:
            return type(failure).__name__
        codes = {one.error_code for found in answered.markers for topic in found.topics for one in topic.partitions}
        return "".join(str(self._errors.for_code(code).__name__) for code in sorted(codes - {0}))

    def partitions(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        """Every partition of these topics; those that are not there have none."""
        found = self._ask(self._admin.describe_topics, sorted(topics))
        return [(topic["name"], one["partition_index"]) for topic in found for one in topic["partitions"]]

    def connections(self) -> frozenset[Any]:
        """The brokers that we are connected to. One that is missing the next time was away in between."""
        return frozenset(broker for lane in self._lanes for broker in lane.connected())

    def newest_end_version(self) -> int:
        """The newest EndTxn that this cluster takes."""
        return self._connection.newest(self._end_request)

    def open(self, prefix: str) -> list[Found]:
        """Every open transaction whose name starts with ``prefix``, on any coordinator."""
        return [found for found in self.describe(self._names(prefix, ["Ongoing"])) if found.state == "Ongoing"]

    def known(self, prefix: str) -> list[Found]:
        """Every name that starts with ``prefix`` and that a coordinator remembers, whatever became of it."""
        return self.describe(self._names(prefix, None))

    def activity(self, prefix: str) -> frozenset[tuple[str, str, int, int]]:
        """Something that changes whenever a transaction with this prefix begins or ends."""
        found = self.known(prefix)
        return frozenset((one.name, one.state, one.producer_epoch, one.started_ms) for one in found)

    def _names(self, prefix: str, states: Sequence[str] | None) -> list[str]:
        listed = self._ask(self._admin.list_transactions, state_filters=states)
        names = {one.transactional_id for listing in listed.values() for one in listing}
        return sorted(name for name in names if name.startswith(prefix))

    def describe(self, names: Iterable[str]) -> list[Found]:
        """The transactions of these names; those that no coordinator knows are left out."""
        asked = list(names)
        try:
            return [_found(name, one) for name, one in self._ask(self._admin.describe_transactions, asked).items()]
        except self._errors.TransactionalIdNotFoundError:
            return [one for name in asked for one in self.describe([name])] if len(asked) > 1 else []

    def writing(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[Writing]]:
        """Who has a transaction open on these partitions. `NotAllowedError` without the right to read them."""
        from kafka import TopicPartition

        asked = [TopicPartition(topic, number) for topic, number in partitions]
        states = self._ask(self._admin.describe_producers, asked) if asked else {}
        return {
            (place.topic, place.partition): [
                Writing(
                    one.producer_id,
                    one.producer_epoch,
                    one.last_sequence,
                    one.current_transaction_start_offset,
                    one.coordinator_epoch,
                )
                for one in state.active_producers
                if one.current_transaction_start_offset >= 0
            ]
            for place, state in states.items()
        }

    def ending_in_log(self, place: tuple[str, int], offset: int) -> bool | None:
        """How the transaction that wrote the record there has ended: True for committed, None if it has not, or if the
        record is gone. `SinkError` if there is no answer.

        The partition's own log is asked for the next marker of the same producer. So neither a coordinator has to
        remember the transaction, nor does another one that is open before it matter, where readers of committed
        records have to wait.
        """
        try:
            committed: bool | None = self._ask(self._connection.run, self._ending_in_log, place, offset)
            return committed
        except self._errors.KafkaError as cause:
            raise SinkError(f"kafka: {place[0]} partition {place[1]} cannot be read: {words(cause)}") from cause

    async def _ending_in_log(self, place: tuple[str, int], offset: int) -> bool | None:
        leader = await self._connection.leader(place)
        producer_id, at, end = None, offset, offset + 1
        while at < end:
            answered = await self._connection.send(self._fetch(place, at), leader)
            [found] = [one for topic in answered.responses for one in topic.partitions]
            if found.error_code:
                raise self._errors.for_code(found.error_code)
            began_at, end = at, found.high_watermark
            for batch in self._batches(found.records or b""):
                if producer_id is None:
                    if not batch.base_offset <= offset <= batch.last_offset:
                        return None
                    producer_id = batch.producer_id
                elif batch.is_control_batch and batch.producer_id == producer_id:
                    return bool(next(batch).commit)
                at = batch.next_offset
            if at == began_at:
                return None
        return None

    def _fetch(self, place: tuple[str, int], offset: int) -> Any:
        wanted = self._fetch_request.FetchTopic
        partition = wanted.FetchPartition(
            partition=place[1],
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=FETCH_BYTES,
        )
        return self._fetch_request(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[wanted(topic=place[0], partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
            max_version=FETCH_VERSION,
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """A question that changes nothing: asked again a few times while coordinators move.

        `NotAllowedError` if this user may not ask, another `SinkError` if there is no answer.
        """
        passing = (
            self._errors.KafkaConnectionError,
            self._errors.NodeNotReadyError,
            self._errors.RequestTimedOutError,
            self._errors.KafkaTimeoutError,
            self._errors.CoordinatorNotAvailableError,
            self._errors.CoordinatorLoadInProgressError,
            self._errors.NotCoordinatorError,
            self._errors.NotLeaderForPartitionError,
            self._errors.LeaderNotAvailableError,
        )
        for pause_s in (0.1, 0.2, 0.5, 1.0, 2.0, 4.0):
            try:
                return call(*arguments, **named)
            except passing:
                self._connection.forget_all()
                time.sleep(pause_s)
            except self._errors.AuthorizationError as cause:
                raise NotAllowedError(f"kafka: this user may not ask that: {words(cause)}") from cause
        try:
            return call(*arguments, **named)
        except self._errors.KafkaError as cause:
            raise SinkError(f"Kafka does not answer a question about its transactions: {words(cause)}") from cause


def _found(name: str, one: Any) -> Found:
    partitions = frozenset((place.topic, place.partition) for place in one.topic_partitions)
    started_ms = one.transaction_start_time_ms
    return Found(name, one.state.value, one.producer_id, one.producer_epoch, started_ms, partitions)
