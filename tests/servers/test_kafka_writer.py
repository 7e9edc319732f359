"""Requests that write transactions, on a real broker."""

from __future__ import annotations

import queue
from typing import TypeAlias

import pyarrow as pa
import pytest
from kafka_writers import new_name, producer_settings, records

from kafka_topics import WAIT_S, make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere
from tallystick.errors import SinkError
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Answer, Ending, Transactions
from tallystick.kafka.writer import Lost, Taken, Writer, writer_for
from tallystick.servers import Kafka
from tallystick.sinks.kafka.arrow_producer import ArrowProducer
from tallystick.sinks.kafka.batches import Compression, one_record, sealed

Broker: TypeAlias = Kafka | Elsewhere
PLAIN = Compression.of("none")


def batch(producer_id: int, producer_epoch: int, sequence: int, value: bytes) -> bytes:
    return sealed(pa.py_buffer(one_record(0, value, None)), 1, producer_id, producer_epoch, sequence, PLAIN)


def produce(writer: Writer, name: str, topic: str, data: bytes) -> Taken | Lost:
    answers: queue.SimpleQueue[list[Taken] | Lost] = queue.SimpleQueue()
    [node] = writer.leaders(topic, WAIT_S).nodes
    writer.produce(node, name, [((topic, 0), data)], 10_000, answers.put)
    answer = answers.get(timeout=WAIT_S)
    return answer if isinstance(answer, Lost) else answer[0]


def test_a_batch_that_comes_twice_is_written_once(kafka: Broker) -> None:
    topic, name = make_topic(kafka.address, partitions=1), new_name()
    writer, transactions = writer_for(KafkaSettings.of(kafka.address)), Transactions(KafkaSettings.of(kafka.address))
    producer_id, producer_epoch = writer.initialise(name, 60_000, WAIT_S)
    for number in (0, 1, 1, 0):
        taken = produce(writer, name, topic, batch(producer_id, producer_epoch, number, b"%d" % number))
        assert isinstance(taken, Taken)
        assert (taken.code, taken.offset) == (0, number), "the same place for the same batch"
    early = produce(writer, name, topic, batch(producer_id, producer_epoch, 5, b"5"))
    assert isinstance(early, Taken)
    assert early.code == 45, "out of order"
    ending = Ending(name, producer_id, producer_epoch, commit=True)
    assert transactions.end_soon([ending], WAIT_S) == [Answer.DONE]
    wait_for_markers("", name, transactions)
    assert [one.value for one in read_topic(kafka.address, topic)] == [b"0", b"1"]
    late = produce(writer, name, topic, batch(producer_id, producer_epoch, 2, b"2"))
    assert isinstance(late, Taken)
    assert late.code in (47, 90), "what comes after the end is refused"
    assert [one.value for one in read_topic(kafka.address, topic)] == [b"0", b"1"]
    transactions.close()


def test_rolling_back_twice_and_what_was_never_begun(kafka: Broker) -> None:
    topic, name = make_topic(kafka.address, partitions=1), new_name()
    writer = writer_for(KafkaSettings.of(kafka.address))
    ids = writer.initialise(name, 60_000, WAIT_S)
    writer.abort(name, *ids, WAIT_S)
    ids = writer.initialise(name, 60_000, WAIT_S)
    produce(writer, name, topic, batch(*ids, 0, b"gone"))
    writer.abort(name, *ids, WAIT_S)
    writer.abort(name, *ids, WAIT_S)
    assert read_topic(kafka.address, topic) == []


def test_a_time_out_that_the_brokers_do_not_allow_is_not_asked_for_again(kafka: Broker) -> None:
    writer = writer_for(KafkaSettings.of(kafka.address))
    with pytest.raises(SinkError, match=r"InvalidTransactionTimeoutError\. transaction\.timeout\.ms is more than the"):
        writer.initialise(new_name(), 2**31 - 1, WAIT_S)


def test_a_topic_that_is_not_there_and_one_that_came_later(kafka: Broker) -> None:
    writer = writer_for(KafkaSettings.of(kafka.address))
    topic = f"later-{new_name()}"
    assert writer.leaders(topic, WAIT_S).error == 3
    make_topic(kafka.address, partitions=2, name=topic)
    assert len(writer.leaders(topic, WAIT_S).nodes) == 2, "an error is not kept"


def test_a_broken_connection_is_replaced(kafka: Broker) -> None:
    settings = producer_settings(kafka.address, client_id="breaks")
    topic = make_topic(kafka.address, partitions=1)
    first = ArrowProducer(settings, new_name())
    broken = writer_for(settings.kafka)
    broken.close()
    first.begin()
    first.send(records(topic, [b"1"]))
    first.wait()
    assert writer_for(settings.kafka) is not broken
    first.abort()
