"""Rules from a topic: read by offset once, wherever it began, and not again when the topic has forgotten them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from kafka_topics import WAIT_S, make_topic
from real_servers import Elsewhere
from tallystick.errors import SourceError
from tallystick.servers import Kafka as Broker
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark


def send(address: str, topic: str, rules: dict[str, int | None], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for name, high in rules.items():
        value = json.dumps({"name": name, "high": high})
        producer.produce(topic, key=name, value=value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def forget(address: str, topic: str, before: int) -> None:
    """As retention and compaction do."""
    where = TopicPartition(topic, 0, before)
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_records([where])[where].result(WAIT_S)


def job(folder: Path, address: str, topic: str, rows: int, starting: str = "earliest") -> ts.Job:
    def parsed(records: DataFrame) -> DataFrame:
        return records.selectExpr("from_json(string(value), 'name string, high long') as rule").select("rule.*")

    control = ts.sources.Kafka(address, topic, starting=starting)
    limits = ts.state.Broadcast("limits", control, key="name", remove="high is null", steps=parsed)
    return ts.Job(
        "limits",
        source=ts.sources.Collection([{"id": number, "name": "a"} for number in range(rows)], name="readings"),
        broadcast=limits,
        steps=lambda readings: limits.join(readings, how="left"),
        sink=Memory(f"limits-{folder.name}"),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


def test_rules_of_a_topic(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    sink = Memory(f"limits-{tmp_path.name}")
    sink.clear()
    topic = make_topic(kafka.address, 1)

    def seen(rows: int) -> list[int | None]:
        before = len(sink.rows())
        job(tmp_path, kafka.address, topic, rows).run(spark, available_now=True)
        return [row["high"] for row in sink.rows()[before:]]

    send(kafka.address, topic, {"a": 1, "b": 2})
    send(kafka.address, topic, {"a": 3})
    assert seen(1) == [3]
    forget(kafka.address, topic, 2)
    send(kafka.address, topic, {"b": 5})
    assert seen(2) == [3], "what the topic has forgotten is in the journal"
    admin = AdminClient({"bootstrap.servers": kafka.address})  # has to live while its futures run
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT_S)
    send(kafka.address, topic, {"a": 7}, partition=1)
    assert seen(3) == [7], "a partition that was added later"
    send(kafka.address, topic, {"a": None}, partition=1)
    assert seen(4) == [None]

    for path in (tmp_path / "checkpoint" / "commits").glob("*3*"):  # Spark does the last epoch again
        path.unlink()
    for number, end in ((0, 4), (1, 2)):
        where = TopicPartition(topic, number, end)
        admin.delete_records([where])[where].result(WAIT_S)
    assert seen(4) == []
    assert len(sink.rows()) == 4


def test_rules_from_now_on(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    """The place where 'latest' was is Spark's to remember; rules that are gone before they were read are an error."""
    sink = Memory(f"limits-{tmp_path.name}")
    sink.clear()
    topic = make_topic(kafka.address, 1)
    send(kafka.address, topic, {"a": 1})
    job(tmp_path, kafka.address, topic, 1, "latest").run(spark, available_now=True)
    send(kafka.address, topic, {"a": 2})
    job(tmp_path, kafka.address, topic, 2, "latest").run(spark, available_now=True)
    assert [row["high"] for row in sink.rows()] == [None, 2]

    for path in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    for path in (tmp_path / "checkpoint" / "tallystick" / "attempts").glob("000000000001.*"):
        path.unlink()  # as if it had died before it wrote anything of the epoch
    for path in (tmp_path / "checkpoint" / "tallystick" / "rules").glob("000000000001.*"):
        path.unlink()
    forget(kafka.address, topic, 2)
    with pytest.raises(SourceError, match=r"control stream of broadcast state 'limits' .* could not be read from"):
        job(tmp_path, kafka.address, topic, 2, "latest").run(spark, available_now=True)
