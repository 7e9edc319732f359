"""Both ways of sending under the same tests: what is written is what was given, in order, or it is an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from kafka_writers import new_name, producer_settings, records

from kafka_topics import WAIT_S, Read, make_topic, read_topic, wait_for_markers
from real_servers import Elsewhere
from tallystick.errors import RowRefusedError, SinkError
from tallystick.kafka.settings import KafkaSettings
from tallystick.kafka.transactions import Answer, Ending, Transactions
from tallystick.servers import Kafka
from tallystick.sinks.kafka.arrow_producer import ArrowProducer
from tallystick.sinks.kafka.limits import Limits
from tallystick.sinks.kafka.object_producer import ObjectProducer
from tallystick.sinks.kafka.producer import Producer, Records

Make: TypeAlias = Callable[..., Producer]
Broker: TypeAlias = Kafka | Elsewhere
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def transactions(kafka: Broker) -> Iterator[Transactions]:
    made = Transactions(KafkaSettings.of(kafka.address))
    yield made
    made.close()


@pytest.fixture(params=[ArrowProducer, ObjectProducer])
def make(request: pytest.FixtureRequest, kafka: Broker) -> Iterator[Make]:
    made: list[Producer] = []

    def begun(**options: Any) -> Producer:
        made.append(request.param(producer_settings(kafka.address, **options), new_name()))
        made[-1].begin()
        return made[-1]

    yield begun
    for each in made:
        each.close()


def commit(transactions: Transactions, producer: Producer) -> None:
    producer.wait()
    end(transactions, producer, commit=True)


def end(transactions: Transactions, producer: Producer, commit: bool) -> None:
    ending = Ending(producer.name, producer.producer_id, producer.producer_epoch, commit)
    assert transactions.end_soon([ending], WAIT_S) == [Answer.DONE]
    wait_for_markers("", producer.name, transactions)


def sent(kafka: Broker, transactions: Transactions, producer: Producer, topic: str, *given: Records) -> list[Read]:
    for each in given:
        producer.send(each)
    commit(transactions, producer)
    return read_topic(kafka.address, topic)


# -- values -----------------------------------------------------------------------------------------------------------


def test_keys_and_values_null_empty_and_full(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1)
    pairs = [(key, value) for key in (None, b"", b"k", b"\x00\xff") for value in (None, b"", b"v", b"\xc3\xa4\x00")]
    given = records(topic, [value for _, value in pairs], [key for key, _ in pairs])
    found = sent(kafka, transactions, make(), topic, given, records(topic, [None, b"", b"no keys"]))
    assert [(one.key, one.value) for one in found] == [*pairs, (None, None), (None, b""), (None, b"no keys")]


@pytest.mark.parametrize("value", [None, b""])
def test_a_batch_of_nothing_but(kafka: Broker, transactions: Transactions, make: Make, value: bytes | None) -> None:
    """Arrow has no data buffer then."""
    topic = make_topic(kafka.address, partitions=1)
    found = sent(kafka, transactions, make(), topic, records(topic, [value] * 3, [value] * 3))
    assert [(one.key, one.value) for one in found] == [(value, value)] * 3


def test_no_records_at_all(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1)
    assert [one.value for one in sent(kafka, transactions, make(), topic, records(topic, []), records(topic, [b"1"]))]


def test_headers_in_order_repeated_null_and_not_ascii(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1)
    given: list[list[tuple[str, bytes | None]] | None] = [
        [("a", b"1"), ("a", b"2"), ("b", None), ("a", b"")],
        None,
        [],
        [("schlüssel-ключ", "wért".encode()), ("", b"no name"), ("zero", b"\x00\x01\x00")],
    ]
    rows = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in given]
    values, keys = [b"0", None, b"", b"3"], [b"k", None, b"", b"k"]
    headers = pa.array(rows, HEADERS)
    record = Records(topic, pa.array(values, pa.binary()), pa.array(keys, pa.binary()), None, headers)
    found = sent(kafka, transactions, make(), topic, record)
    assert [(one.key, one.value, list(one.headers)) for one in found] == [
        (key, value, each or []) for key, value, each in zip(keys, values, given, strict=True)
    ]


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_partition_that_is_named_and_one_that_is_not(
    kafka: Broker, transactions: Transactions, make: Make, with_headers: bool
) -> None:
    topic = make_topic(kafka.address, partitions=3)
    count = 30
    partition = pa.array([None if n % 2 else n % 3 for n in range(count)], pa.int32())
    values = [b"%d" % n for n in range(count)]
    headers = pa.array([[{"key": "h", "value": b"1"}]] * count, HEADERS) if with_headers else None
    given = Records(topic, pa.array(values, pa.binary()), pa.array([b"key"] * count, pa.binary()), partition, headers)
    found = {int(one.value or b""): one.partition for one in sent(kafka, transactions, make(), topic, given)}
    assert [found[n] for n in range(0, count, 2)] == [n % 3 for n in range(0, count, 2)]
    by_key = {found[n] for n in range(1, count, 2)}
    assert len(by_key) == 1, "by its key, as if there were no such column"


def test_a_window_into_a_larger_batch(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1)
    values = pa.array([None if n % 4 == 1 else b"v%d" % n for n in range(20)], pa.binary())
    keys = pa.array([None if n % 5 == 2 else b"k%d" % n for n in range(20)], pa.binary())
    partition = pa.array([None if n % 2 else 0 for n in range(20)], pa.int32())
    headers = pa.array([[{"key": str(n), "value": None}] for n in range(20)], HEADERS)
    windows = [
        Records(topic, values[3:9], keys[3:9]),
        Records(topic, values[9:9], keys[9:9]),
        Records(topic, values[11:], keys[11:], partition[11:]),
        Records(topic, values[1:3], keys[1:3], partition[1:3], headers[1:3]),
    ]
    found = sent(kafka, transactions, make(), topic, *windows)
    rows = [*range(3, 9), *range(11, 20), 1, 2]
    assert [(one.key, one.value) for one in found] == [(keys[n].as_py(), values[n].as_py()) for n in rows]
    assert [one.headers for one in found[-2:]] == [(("1", None),), (("2", None),)]


def test_large_binary(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1)
    values = pa.array([b"out", b"a", None, b"", b"b" * 1000], pa.large_binary())[1:]
    found = sent(kafka, transactions, make(), topic, Records(topic, values, values))
    assert [one.value for one in found] == [one.key for one in found] == [b"a", None, b"", b"b" * 1000]


def test_what_is_not_binary_is_refused(kafka: Broker) -> None:
    producer = ArrowProducer(producer_settings(kafka.address), new_name())
    producer.begin()
    with pytest.raises(SinkError, match="keys and values are binary, found string"):
        producer.send(Records("any", pa.array(["text"])))
    producer.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression(kafka: Broker, transactions: Transactions, make: Make, compression: str) -> None:
    """Brokers read what they are given before they take it. A batch that cannot be made smaller is among them."""
    topic = make_topic(kafka.address, partitions=1)
    values = [b"the same again " * 50] * 200 + [os.urandom(2000)]
    found = sent(kafka, transactions, make(compression_type=compression), topic, records(topic, values))
    assert [one.value for one in found] == values


# -- many -------------------------------------------------------------------------------------------------------------


def many(topic: str, first: int, count: int) -> Records:
    keys = [b"k%d" % key for key in range(17)]
    return records(
        topic, [b"%d" % n for n in range(first, first + count)], [keys[n % 17] for n in range(first, first + count)]
    )


def assert_all_in_order(found: list[Read], count: int) -> None:
    """Nothing missing, nothing twice, and each key in one partition in the order that it was sent."""
    assert len(found) == count
    numbers: dict[bytes | None, list[int]] = {}
    places: dict[bytes | None, set[int]] = {}
    for one in found:
        numbers.setdefault(one.key, []).append(int(one.value or b"-1"))
        places.setdefault(one.key, set()).add(one.partition)
    assert numbers == {b"k%d" % key: list(range(key, count, 17)) for key in range(17)}
    assert {len(each) for each in places.values()} == {1}


def test_200_000_records(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=3)
    found = sent(kafka, transactions, make(), topic, *(many(topic, n, 10_000) for n in range(0, 200_000, 10_000)))
    assert_all_in_order(found, 200_000)


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_full_queue_keeps_the_order(
    kafka: Broker, transactions: Transactions, make: Make, with_headers: bool
) -> None:
    topic = make_topic(kafka.address, partitions=3)
    given = many(topic, 0, 5000)
    headers = pa.array([[]] * 5000, HEADERS) if with_headers else None
    producer = make(buffer_memory="16384")
    found = sent(kafka, transactions, producer, topic, Records(topic, given.value, given.key, None, headers))
    assert_all_in_order(found, 5000)


# -- refused ----------------------------------------------------------------------------------------------------------


def refusal(producer: Producer, *given: Records) -> str:
    """And nobody may vote for the rest of it."""
    with pytest.raises(RowRefusedError) as caught:
        acknowledged(producer, *given)
    with pytest.raises(SinkError):
        producer.wait()
    return str(caught.value)


def acknowledged(producer: Producer, *given: Records) -> None:
    for each in given:
        producer.send(each)
    producer.wait()


def acknowledged_again_and_again(producer: Producer, given: Records) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        acknowledged(producer, given)
        time.sleep(0.02)


@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_record_over_the_clients_limit_wherever_it_is(
    kafka: Broker, make: Make, place: int, with_headers: bool
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    values = [b"small"] * 4
    values[place] = b"x" * 5000
    keys = pa.array([b"k%d" % n for n in range(4)], pa.binary())
    headers = pa.array([[]] * 4, HEADERS) if with_headers else None
    producer = make(max_request_size="2000")
    with pytest.raises(RowRefusedError, match=rf"a record of 5000 bytes with the key 'k{place}' for topic {topic}"):
        producer.send(Records(topic, pa.array(values, pa.binary()), keys, None, headers))


def test_a_record_over_the_topics_limit(kafka: Broker, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1, max_message_bytes="2000")
    said = refusal(make(), records(topic, [b"x" * 5000], [b"big"]))
    assert "a record of 5000 bytes with the key 'big'" in said
    assert "raise max.request.size in the sink's options and the topic's max.message.bytes" in said


@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_partition_that_the_topic_does_not_have(kafka: Broker, make: Make, known: bool, with_headers: bool) -> None:
    """Whether or not the client knows the topic's partitions already."""
    topic = make_topic(kafka.address, partitions=2)
    producer = make()
    if known:
        producer.send(records(topic, [b"first"]))
        producer.wait()
    partition = pa.array([0, 7, 1], pa.int32())
    headers = pa.array([[]] * 3, HEADERS) if with_headers else None
    keys = pa.array([b"a", b"b", b"c"], pa.binary())
    said = refusal(producer, Records(topic, pa.array([b"1", b"2", b"3"], pa.binary()), keys, partition, headers))
    assert f"a record with the key 'b' names a partition that {topic} does not have" in said


def test_a_topic_that_is_deleted_while_it_is_written(kafka: Broker, make: Make) -> None:
    topic = make_topic(kafka.address, partitions=1)
    producer = make(topic_patience_s=1.0, limits=Limits(partitions=1))
    producer.send(records(topic, [b"first"]))
    producer.wait()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    began = time.monotonic()
    with pytest.raises(SinkError, match=rf"topic {topic} is not there .* create it again and start the job again"):
        acknowledged_again_and_again(producer, records(topic, [b"second"]))
    print(f"a deleted topic was noticed after {time.monotonic() - began:.1f} s")


def test_an_impossible_name_of_a_topic(kafka: Broker, make: Make) -> None:
    producer = make()
    with pytest.raises(SinkError, match="kafka: "):
        acknowledged(producer, records("no/such name", [b"1"]))


# -- endings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acknowledged_before", [True, False])
def test_abort_in_the_middle_leaves_nothing(
    kafka: Broker, transactions: Transactions, make: Make, acknowledged_before: bool
) -> None:
    """If it comes before anything is acknowledged, librdkafka may leave an empty transaction behind: no reader waits
    for that, and the next sweep ends it."""
    topic = make_topic(kafka.address, partitions=1)
    producer = make(linger_ms="500")
    if acknowledged_before:
        acknowledged(producer, records(topic, [b"first"]))
    producer.send(many(topic, 0, 3000))
    began = time.monotonic()
    producer.abort()
    assert time.monotonic() - began < 10
    wait_for_markers("", producer.name, transactions)
    if acknowledged_before:
        assert [one.state for one in transactions.describe([producer.name])] == ["CompleteAbort"]
    assert [one.value for one in sent(kafka, transactions, make(), topic, records(topic, [b"next"]))] == [b"next"]


def test_after_another_ended_it_nothing_more_can_be_sent(kafka: Broker, transactions: Transactions, make: Make) -> None:
    """As when the driver sweeps up a task that Spark ran twice while that is still writing."""
    topic = make_topic(kafka.address, partitions=1)
    producer = make()
    producer.send(records(topic, [b"first"]))
    producer.wait()
    end(transactions, producer, commit=False)
    with pytest.raises(SinkError):
        acknowledged_again_and_again(producer, records(topic, [b"more"]))
    producer.abort()
    assert read_topic(kafka.address, topic) == []


def test_the_first_token_is_where_it_says(kafka: Broker, transactions: Transactions, make: Make) -> None:
    topic, other = make_topic(kafka.address, partitions=4), make_topic(kafka.address, partitions=1)
    producer = make()
    with pytest.raises(SinkError, match="without its place"):
        producer.first_token()
    producer.send_token(topic, b"key", b"first")
    producer.send(records(other, [b"1", b"2"]))
    producer.wait()
    producer.send_token(topic, b"key", b"second")
    commit(transactions, producer)
    place = producer.first_token()
    assert [(one.partition, one.offset) for one in read_topic(kafka.address, topic) if one.value == b"first"] == [
        (place.partition, place.offset)
    ]
