"""The lag of sources on real servers where the contract does not look: what is not committed, begun or received."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadMaxRows

from kafka_topics import make_topic
from kinesis_resharding import REGION, make_stream, open_shards, put, split
from rabbit_queues import make_queue, publish
from real_servers import Elsewhere
from tallystick.errors import SourceError
from tallystick.servers import Kafka, RabbitMQ
from tallystick.servers.kinesis import Kinesis
from tallystick.sources import Kafka as KafkaSource
from tallystick.sources import Kinesis as KinesisSource
from tallystick.sources import Lag
from tallystick.sources import RabbitMQ as RabbitSource
from tallystick.sources.kinesis_client import KinesisClient
from tallystick.sources.kinesis_reader import KinesisStreamReader, Stream

FLUSH_S = 30


def test_kafka_counts_what_is_committed_in_every_partition_also_in_those_never_read(kafka: Kafka | Elsewhere) -> None:
    topic = make_topic(kafka.address, partitions=2)
    source = KafkaSource(kafka.address, topic)
    plain = Producer({"bootstrap.servers": kafka.address})
    for number in range(5):
        plain.produce(topic, str(number), partition=0)
    plain.produce(topic, "other", partition=1)
    assert plain.flush(FLUSH_S) == 0
    assert source.lag(None, list) == Lag(records=6)
    assert source.lag({topic: {"0": 3}}, list) == Lag(records=3), "a new partition is read from its beginning"
    assert KafkaSource(kafka.address, pattern=f"{topic}.*").lag({topic: {"0": 3, "1": 0}}, list) == Lag(records=3)
    assert KafkaSource(kafka.address, topic, starting="latest").lag(None, list) is None, "it has not begun"

    writing = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic})
    writing.init_transactions(FLUSH_S)
    writing.begin_transaction()
    for _ in range(4):
        writing.produce(topic, "later", partition=1)
    assert writing.flush(FLUSH_S) == 0
    assert source.lag({topic: {"0": 5, "1": 1}}, list) == Lag(records=0), "nobody may read these yet"
    writing.commit_transaction(FLUSH_S)
    assert source.lag({topic: {"0": 5, "1": 1}}, list) == Lag(records=5), "four, and the marker behind them"


def test_kafka_that_is_away_or_has_lost_the_topic_says_so(
    kafka: Kafka | Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match="there is no topic never-made any more"):
        KafkaSource(kafka.address, "never-made").lag({}, list)
    monkeypatch.setattr("tallystick.sources.kafka_lag.PATIENCE_S", 1.0)
    with pytest.raises(SourceError, match="did not tell its newest offsets"):
        KafkaSource("127.0.0.1:1", "any").lag({}, list)


def test_kinesis_has_the_age_of_the_oldest_record_and_looks_at_children_that_nobody_reads_yet(kinesis: Kinesis) -> None:
    stream = make_stream(kinesis.address, shards=1)
    source = KinesisSource(stream, region=REGION, endpoint=kinesis.address)
    assert source.lag(None, list) == Lag(behind_ms=0)
    put(kinesis.address, stream, [1])
    assert source.lag(None, list).waits, "one record is behind nothing, by what Kinesis says of it"
    assert KinesisSource(stream, region=REGION, endpoint=kinesis.address, starting="latest").lag(None, list) == Lag(
        behind_ms=0
    )
    reader = KinesisStreamReader(Stream(KinesisClient(stream, REGION, kinesis.address), "earliest", 10))
    read: Any = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert source.lag(json.loads(json.dumps(read)), list) == Lag(behind_ms=0)
    split(kinesis.address, stream, open_shards(kinesis.address, stream)[0])
    put(kinesis.address, stream, [2])
    assert source.lag(read, list).waits, "the parent is read, the child has a record"
    for _ in range(3):  # to the end of the parent, to the child, and through it
        read = reader.latestOffset(read, ReadMaxRows(10))
        reader._list(now=True)
    assert source.lag(read, list) == Lag(behind_ms=0)


def test_rabbitmq_counts_what_nobody_has_received(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    queue = make_queue(rabbitmq.address)
    source = RabbitSource(tmp_path / "log", rabbitmq.address, queue)
    assert source.lag(None, list) == Lag(records=0)
    publish(rabbitmq.address, queue, range(7))
    assert source.lag(None, list) == Lag(records=7)
    with pytest.raises(SourceError, match="did not tell how many messages wait in 'nowhere'"):
        RabbitSource(tmp_path / "log", rabbitmq.address, "nowhere").lag(None, list)
