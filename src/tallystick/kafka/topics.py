"""Topics as demonstrations and proofs need them: made, filled, and read to their end as a careful reader does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from tallystick.errors import TallystickError
from tallystick.kafka.clients import confluent

WAIT_S = 60.0


def make(address: str, names: Sequence[str], partitions: int) -> None:
    admin_module = import_module("confluent_kafka.admin")
    admin = admin_module.AdminClient(client_settings(address))
    wanted = [admin_module.NewTopic(name, num_partitions=partitions) for name in names]
    for made in admin.create_topics(wanted).values():
        made.result(WAIT_S)


def fill(address: str, topic: str, records: Iterable[tuple[int, bytes | None, bytes]]) -> None:
    """Partition, key and value of each record, in order."""
    producer = confluent().Producer({**client_settings(address), "enable.idempotence": True})
    for partition, key, value in records:
        while True:
            try:
                producer.produce(topic, value=value, key=key, partition=partition)
                break
            except BufferError:  # its queue is full: let some of it go out first
                producer.poll(0.1)
    left = producer.flush(WAIT_S)
    if left:
        raise TallystickError(f"{left} records for the topic {topic} were not accepted in {WAIT_S:g} s by {address}")


def read_committed(address: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Key and value of every record that a reader of committed records finds, once no transaction is open there."""
    client = confluent()
    reader = client.Consumer(
        {
            **client_settings(address),
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = [client.TopicPartition(topic, number, 0) for number in partitions_of(reader, topic)]
        wait_until_nothing_is_open(address, partitions)
        reader.assign(partitions)
        return _read_to_the_end(reader, topic, len(partitions))
    finally:
        reader.close()


def client_settings(address: str) -> dict[str, str]:
    """Whatever fails is raised; a broker that is just starting is nothing to write across the screen."""
    return {"bootstrap.servers": address, "log_level": "2"}


def partitions_of(reader: Any, topic: str) -> list[int]:
    return sorted(reader.list_topics(topic, timeout=WAIT_S).topics[topic].partitions)


def wait_until_nothing_is_open(address: str, partitions: Sequence[Any]) -> None:
    """The end for readers of committed records is the end for all: a commit is seen some milliseconds after it."""
    admin_module, levels = import_module("confluent_kafka.admin"), confluent().IsolationLevel
    admin = admin_module.AdminClient(client_settings(address))

    def ends(level: Any) -> list[int]:
        latest = {partition: admin_module.OffsetSpec.latest() for partition in partitions}
        answers = admin.list_offsets(latest, isolation_level=level)
        return [answers[partition].result(WAIT_S).offset for partition in partitions]

    deadline = time.monotonic() + WAIT_S
    while ends(levels.READ_COMMITTED) != ends(levels.READ_UNCOMMITTED):
        if time.monotonic() > deadline:
            raise TallystickError(f"a transaction stays open in the topic {partitions[0].topic}: readers wait for it")
        time.sleep(0.05)


def _read_to_the_end(reader: Any, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    at_end = confluent().KafkaError._PARTITION_EOF
    found: list[tuple[bytes, bytes]] = []
    ended: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    while len(ended) < partitions:
        if time.monotonic() > deadline:
            raise TallystickError(f"the topic {topic} could not be read to its end in {WAIT_S:g} s")
        for message in reader.consume(1000, 0.2):
            error = message.error()
            if error is None:
                found.append((message.key(), message.value()))
            elif error.code() == at_end:
                ended.add(message.partition())
            else:
                raise TallystickError(f"the topic {topic} could not be read: {error.str()}")
    return found
