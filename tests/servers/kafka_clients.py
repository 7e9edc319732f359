"""What clients do to a broker, in few words. Every wait is bounded."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

WAIT_S = 30.0


def new_topic() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


def producer(address: str, **options: Any) -> Any:
    made = {name.replace("_", "."): value for name, value in options.items()}
    return Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0, **made})


def produce(address: str, topic: str, values: Sequence[str], **options: Any) -> None:
    """Returns when every record is acknowledged; `KafkaException` if one is refused."""
    send(producer(address, **{"message_timeout_ms": int(WAIT_S * 1000), **options}), topic, values)


def send(made: Any, topic: str, values: Sequence[str], timeout_s: float = WAIT_S) -> None:
    refused: list[KafkaError] = []
    for value in values:
        made.produce(topic, value, on_delivery=lambda error, _: refused.append(error) if error else None)
    if made.flush(timeout_s) != 0:
        raise TimeoutError(f"not acknowledged after {timeout_s:g} s")
    if refused:
        raise KafkaException(refused[0])


def consume(address: str, topic: str, timeout_s: float = WAIT_S, **options: Any) -> list[str]:
    """All values that a read_committed consumer gets, up to the end of partition 0."""
    made = {name.replace("_", "."): value for name, value in options.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
            **made,
        }
    )
    try:
        return _up_to_the_end(consumer, topic, timeout_s)
    finally:
        consumer.close()


def _up_to_the_end(consumer: Any, topic: str, timeout_s: float) -> list[str]:
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])  # a group would take seconds on a new broker
    found: list[str] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value().decode())
        elif error.code() == KafkaError._PARTITION_EOF:
            return found
        elif error.code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_AUTHORIZATION_FAILED):
            raise KafkaException(error)
    raise TimeoutError(f"no end of {topic} after {timeout_s:g} s, found {found}")


def transaction_state(address: str, transactional_id: str) -> tuple[str, int]:
    """The state of a transaction and the node that keeps it, as soon as that node has read what it keeps."""
    deadline = time.monotonic() + WAIT_S
    while True:
        admin = KafkaAdminClient(bootstrap_servers=address)  # a new one each time: it never forgets a coordinator
        try:
            found = admin.describe_transactions([transactional_id])[transactional_id]
            return found.state.value, found.coordinator_id
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        finally:
            admin.close()


def topic_leader(address: str, topic: str) -> int:
    """The node that leads partition 0; -1 if nobody does."""
    metadata = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(topic, timeout=WAIT_S)
    partitions = metadata.topics[topic].partitions
    return int(partitions[0].leader) if partitions else -1
