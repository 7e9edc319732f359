"""The same rows by Spark's own Kafka sink and by ours: the same records in the same partitions, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from kafka_jobs import EPOCH_TIMEOUT, job, run
from kafka_topics import Read, make_topic, read_topic
from real_servers import Elsewhere
from tallystick.errors import ConfigError, PrepareError
from tallystick.servers import Kafka as Broker
from tallystick.sources import Collection

pytestmark = pytest.mark.spark

PARTITIONS = 5
COUNT = 600
SEND = ("arrow", "objects")
PATIENCE_S = 90

SCHEMA = "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int"

KEYS = [None, b"", b"a", "schlüssel-ключ-🔑".encode(), b"\x00\xff\x80 raw", b"x" * 5000, b"\x00", b"null"]
VALUES = [b"value %d", b"", None, b"\x00\x01\x02 %d", "wert-значение %d".encode(), b"long " * 3000]
HEADERS = [
    None,
    [],
    [{"key": "trace", "value": b"1"}],
    [{"key": "twice", "value": b"1"}, {"key": "twice", "value": b"2"}, {"key": "кey", "value": b"\x00\xff"}],
    [{"key": "none", "value": None}, {"key": "", "value": b""}],
]


def row(number: int, topics: list[str]) -> dict[str, Any]:
    """Special keys in the first half, which is the first slice, many keys in the second: no key is in two slices."""
    key = KEYS[number % len(KEYS)] if number < COUNT // 2 else f"user-{number * number % 97}".encode()
    value = VALUES[number % len(VALUES)]
    return {
        "key": key,
        "value": value % number if value and b"%d" in value else value,
        "headers": HEADERS[number % len(HEADERS)],
        "topic": topics[number % len(topics)],
        "partition": number % PARTITIONS if number % 7 == 0 else None,
    }


def rows(topics: list[str]) -> Collection:
    return Collection([row(number, topics) for number in range(COUNT)], schema=SCHEMA, partitions=2)


def by_spark(frame: DataFrame, address: str, checkpoint: Path, topic: str | None = None) -> None:
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", address)
    if topic is not None:
        writer = writer.option("topic", topic)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()


def by_us(frame: DataFrame, sink: ts.sinks.Kafka, checkpoint: Path) -> None:
    at = ts.Checkpoint(checkpoint, interval="0s", timeout=EPOCH_TIMEOUT)
    query = ts.write_stream(frame, sink, checkpoint=at).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()


def told(record: Read) -> tuple[Any, ...]:
    """A record without its offset: markers of transactions take offsets, too."""
    return (record.key, record.value, record.headers)


def by_key(records: Iterable[Read]) -> dict[tuple[int, bytes | None], list[Any]]:
    """The records of each key in each partition, in their order."""
    found: dict[tuple[int, bytes | None], list[Any]] = {}
    for record in records:
        found.setdefault((record.partition, record.key), []).append(told(record))
    return found


def assert_same(spark_wrote: list[Read], we_wrote: list[Read], placed: bool) -> None:
    """``placed``: every record without a key names its partition; else it may be in any."""
    assert spark_wrote, "nothing to compare"
    keyed = [[record for record in side if record.key is not None] for side in (spark_wrote, we_wrote)]
    assert by_key(keyed[0]) == by_key(keyed[1])
    keyless = [[record for record in side if record.key is None] for side in (spark_wrote, we_wrote)]
    if placed:
        assert by_key(keyless[0]) == by_key(keyless[1])
    assert Counter(map(repr, map(told, keyless[0]))) == Counter(map(repr, map(told, keyless[1])))


def test_every_column_lands_where_sparks_own_sink_puts_it(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    theirs = [make_topic(kafka.address, PARTITIONS) for _ in range(2)]
    by_spark(rows(theirs).load(spark), kafka.address, tmp_path / "spark")
    for send in SEND:
        ours = [make_topic(kafka.address, PARTITIONS) for _ in range(2)]
        by_us(rows(ours).load(spark), ts.sinks.Kafka(kafka.address, send=send), tmp_path / send)
        for their, our in zip(theirs, ours, strict=True):
            assert_same(read_topic(kafka.address, their), read_topic(kafka.address, our), placed=False)


@pytest.mark.parametrize(
    "select",
    [
        ["base64(key) as key", "decode(value, 'UTF-8') as value", "topic", "'left out' as other"],
        ["key", "value", "coalesce(partition, 3) as partition"],
    ],
    ids=["strings", "placed"],
)
def test_some_columns_and_one_topic(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, select: list[str]
) -> None:
    """No headers here: records go by the batch, which is another way through both kinds of producers."""
    frame = rows(["not-this-one"]).load(spark).selectExpr(*select)
    their = make_topic(kafka.address, PARTITIONS)
    by_spark(frame, kafka.address, tmp_path / "spark", their)
    for send in SEND:
        our = make_topic(kafka.address, PARTITIONS)
        by_us(frame, ts.sinks.Kafka(kafka.address, our, send=send), tmp_path / send)
        assert_same(read_topic(kafka.address, their), read_topic(kafka.address, our), placed="partition" in select[-1])


WRONG = [
    (["key"], "no column 'value', found key"),
    (["1 as value"], "column value is int, needed a string or binary"),
    (["value", "1.5 as key"], r"column key is decimal\(2,1\), needed a string or binary"),
    (["value", "1 as topic"], "column topic is int, needed a string"),
    (["value", "cast(1 as bigint) as partition"], "column partition is bigint, needed an int"),
    (["value", "map('a', value) as headers"], "column headers is map<string,binary>, needed array<struct<key:string,v"),
]


@pytest.mark.parametrize(("select", "why"), WRONG, ids=[why.split(",")[0] for _, why in WRONG])
def test_what_spark_refuses_is_refused_when_it_is_declared(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path, select: list[str], why: str
) -> None:
    source = rows(["any"])
    topic = None if "1 as topic" in select else "any"  # Spark does not look at the column if there is the option
    with pytest.raises(ConfigError, match=why):
        ts.write_stream(
            source.load(spark).selectExpr(*select), ts.sinks.Kafka(kafka.address, topic), checkpoint=tmp_path
        )
    batch = spark.createDataFrame([], SCHEMA).selectExpr(*select)
    writer = batch.write.format("kafka").option("kafka.bootstrap.servers", kafka.address)
    with pytest.raises(PySparkException):
        (writer if topic is None else writer.option("topic", topic)).save()


def test_no_topic_at_all(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    frame = rows(["any"]).load(spark).select("key", "value")
    with pytest.raises(ConfigError, match=r"no topic: name one, ts.sinks.Kafka\(servers, 'topic'\), or give the rows"):
        ts.write_stream(frame, ts.sinks.Kafka(kafka.address), checkpoint=tmp_path)


def test_a_row_without_a_topic_fails_the_epoch_and_nothing_is_published(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    topic = make_topic(kafka.address, 1)
    frame = rows([topic]).load(spark).selectExpr("value", "nullif(topic, if(key = 'a', topic, '')) as topic")
    with pytest.raises(PySparkException, match="contains a null topic"):
        by_spark(frame, kafka.address, tmp_path / "spark")
    ours = make_topic(kafka.address, 1)
    declared = job(
        tmp_path,
        ts.sinks.Kafka(kafka.address),
        source=rows([ours]),
        steps=lambda frame: frame.selectExpr("value", "nullif(topic, if(key = 'a', topic, '')) as topic"),
    )
    with pytest.raises(PrepareError, match=r"a row has no topic \(null\): give it one, or name one topic for the sink"):
        run(declared, spark)
    assert read_topic(kafka.address, ours) == []
