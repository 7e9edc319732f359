"""Requests of Kafka's protocol that no client offers, sent through kafka-python's connections.

The only file that uses inner parts of kafka-python: its connection manager with its own thread, its request classes
and its cache of coordinators. Connecting, security, versions of requests and their encoding are its work; what to ask,
and what an answer means, is ours (`transactions.py`, `writer.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.errors import SinkError
from tallystick.kafka.clients import kafka_python
from tallystick.kafka.settings import KafkaSettings

REQUEST_TIMEOUT_MS = 15_000
BOOTSTRAP_TIMEOUT_MS = 10_000
BEGUN_TIMEOUT_S = 60.0
UNLIMITED = 1_000_000
"""Requests under way on one connection: who asks keeps count, because kafka-python refuses what is too much."""
MOVED = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""


@dataclass(frozen=True)
class Leaders:
    """A topic as a broker knows it: who leads each partition, -1 for nobody. ``error`` is Kafka's code, 0 for none."""

    error: int
    nodes: tuple[int, ...] = ()


class Connection:
    """To one cluster. Safe to use from several threads. `SinkError` if no broker answers."""

    def __init__(self, settings: KafkaSettings, **given: Any) -> None:
        kafka = kafka_python()
        from kafka.future import Future
        from kafka.protocol.metadata import CoordinatorType, MetadataRequest

        self.errors = kafka.errors
        self._future = Future
        self._transaction_type = CoordinatorType.TRANSACTION
        self._metadata_request = MetadataRequest
        logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it reports every lost connection; so do our errors
        ours = {
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
            "max_in_flight_requests_per_connection": UNLIMITED,
        }
        try:
            self.admin = kafka.KafkaAdminClient(**{**ours, **given, **settings.kafka_python()})
        except self.errors.KafkaError as cause:
            raise SinkError(
                f"no answer from Kafka at {settings.servers}: {words(cause)}. needed a broker that is up and the "
                "right security settings"
            ) from cause

    def close(self) -> None:
        self.admin.close()

    def run(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """Do this, a function that awaits answers, on kafka-python's thread, and wait for its result."""
        try:
            return self.admin._manager.run(ask, *arguments)
        except self.errors.KafkaError:
            raise
        except Exception as cause:
            raise self._no_answer(cause) from cause

    def begin(self, ask: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        """The same without waiting. Returns what waits for the result, to be called once."""
        done = threading.Event()
        try:
            future = self.admin._manager.call_soon(ask, *arguments)
        except Exception as cause:
            raise self._no_answer(cause) from cause
        future.add_both(lambda _: done.set())

        def result() -> Any:
            if not done.wait(BEGUN_TIMEOUT_S):
                raise self.errors.KafkaConnectionError(f"no result after {BEGUN_TIMEOUT_S:g} s")
            if not future.failed():
                return future.value
            if isinstance(future.exception, self.errors.KafkaError):
                raise future.exception
            raise self._no_answer(future.exception) from future.exception

        return result

    def post(self, request: Any, node: int, answered: Callable[[Any], None]) -> None:
        """Send it and go on. ``answered`` gets the answer or the error, on kafka-python's thread."""
        try:
            self.admin._manager.call_soon(self.send, request, node).add_both(answered)
        except Exception as cause:
            raise self._no_answer(cause) from cause

    @property
    def broken(self) -> bool:
        """kafka-python's thread has ended, by itself or because of an error: another connection is needed."""
        loop = self.admin._manager._net
        return bool(loop._exception is not None or loop._closed)

    def _no_answer(self, cause: Exception) -> Exception:
        """Some errors are those of one connection, and the next request makes another one."""
        if self.broken:
            return SinkError(f"kafka: the connection for transactions is broken: {words(cause)}")
        failure: Exception = self.errors.KafkaConnectionError(words(cause))
        return failure

    def send(self, request: Any, node: int) -> Any:
        """On kafka-python's thread: the answer, to be awaited; also if it cannot even be sent, because that broker is
        not known any more."""
        try:
            return self.admin._manager.send(request, node_id=node)
        except self.errors.KafkaError as failure:
            return self._future().failure(failure)

    async def coordinators(self, names: Sequence[str]) -> Mapping[str, int]:
        found: Mapping[str, int] = await self.admin._find_coordinator_ids(names, key_type=self._transaction_type)
        return found

    def forget(self, name: str) -> None:
        """kafka-python keeps a coordinator for ever, also when it has moved."""
        self.admin._manager.cluster._coordinators.pop((self._transaction_type, name), None)

    def forget_all(self) -> None:
        self.admin._manager.cluster._coordinators.clear()

    async def leader(self, place: tuple[str, int]) -> int:
        from kafka import TopicPartition

        [node] = await self.admin._async_get_leader_for_partitions([TopicPartition(*place)])
        return int(node)

    async def leaders(self, topics: Iterable[str], create: bool) -> dict[str, Leaders]:
        """``create``: a topic that is not there may be made, if the brokers do that."""
        wanted = [self._metadata_request.MetadataRequestTopic(name=topic) for topic in topics]
        request = self._metadata_request(topics=wanted, allow_auto_topic_creation=create)
        answer = await self.admin._manager.send(request)
        self.admin._manager.cluster.update_metadata(answer)
        return {one.name: _leaders(one) for one in answer.topics}

    def connected(self) -> frozenset[Any]:
        """The brokers that we are connected to. One that is missing the next time was away in between."""
        return frozenset(one for one in list(self.admin._manager._conns.values()) if one.connected)

    def newest(self, request: Any) -> int:
        """The newest version of a request that this cluster takes."""
        return int(self.admin._manager.broker_version_data.api_version(request))


def words(cause: BaseException) -> str:
    """What an error of kafka-python says."""
    return f"{type(cause).__name__} {cause}".strip()


def _leaders(topic: Any) -> Leaders:
    nodes = {one.partition_index: one.leader_id for one in topic.partitions or ()}
    return Leaders(topic.error_code, tuple(nodes.get(number, -1) for number in range(len(nodes))))
