"""The Kafka source in real queries on a real broker: what is not committed stays hidden, what is gone is not silent."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from kafka_topics import WAIT_S, make_topic
from real_servers import Elsewhere
from tallystick import Job, sinks
from tallystick.errors import ConfigError, PrepareError, SourceError
from tallystick.restart import FixedDelay
from tallystick.servers import Kafka as Broker
from tallystick.sources import Kafka

pytestmark = pytest.mark.spark

PATIENCE_S = 60


def produce(address: str, topic: str, values: Sequence[str], partition: int = 0, **headers: str | bytes | None) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value=value, partition=partition, headers=headers or None)
    assert producer.flush(WAIT_S) == 0


def transaction(address: str, topic: str, values: Sequence[str]) -> Any:
    """Written and at the broker, but not ended."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"test-{uuid.uuid4()}", "linger.ms": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value=value, partition=0)
    assert producer.flush(WAIT_S) == 0
    return producer


def delete_records(address: str, topic: str, before: int) -> None:
    where = TopicPartition(topic, 0, before)
    admin = AdminClient({"bootstrap.servers": address})  # has to live while its futures run
    admin.delete_records([where])[where].result(WAIT_S)


def read_all(source: Kafka, spark: SparkSession, checkpoint: Path) -> list[list[str]]:
    """The values that each epoch gave, until nothing is left."""
    epochs: list[list[str]] = []

    def epoch(frame: DataFrame, _: int) -> None:
        epochs.append([row.value.decode() for row in frame.orderBy("topic", "partition", "offset").collect()])

    query = (
        source.load(spark)
        .writeStream.foreachBatch(epoch)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()
    return epochs


def logged(checkpoint: Path) -> str:
    newest = max(checkpoint.joinpath("offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return newest.read_text().splitlines()[-1]


def test_a_restart_goes_on_and_offsets_are_described(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    topic = make_topic(kafka.address)
    produce(kafka.address, topic, ["a", "b", "c"], 0)
    produce(kafka.address, topic, ["d"], 1)
    source = Kafka(kafka.address, topic)
    assert read_all(source, spark, tmp_path) == [["a", "b", "c", "d"]]
    assert source.describe_offset(logged(tmp_path)) == f"{topic}: 0=3 1=1"
    produce(kafka.address, topic, ["e"], 1)
    assert read_all(source, spark, tmp_path) == [["e"]]
    assert source.describe_offset(logged(tmp_path)) == f"{topic}: 0=3 1=2"


def test_open_and_aborted_transactions_are_never_seen(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    source = Kafka(kafka.address, topic)
    transaction(kafka.address, topic, ["aborted"]).abort_transaction(WAIT_S)
    produce(kafka.address, topic, ["plain"])
    still_open = transaction(kafka.address, topic, ["later"])
    produce(kafka.address, topic, ["behind"])  # a record behind an open transaction waits for it
    assert read_all(source, spark, tmp_path) == [["plain"]]
    still_open.commit_transaction(WAIT_S)
    assert read_all(source, spark, tmp_path) == [["later", "behind"]]


def test_an_epoch_is_bounded_and_partitions_are_cut(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    produce(kafka.address, topic, [str(number) for number in range(10)])
    source = Kafka(kafka.address, topic, max_records_per_epoch=4, min_partitions=2)
    assert [len(epoch) for epoch in read_all(source, spark, tmp_path)] == [4, 4, 2]


def test_where_a_new_job_begins_and_headers(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    topic = make_topic(kafka.address, partitions=1)
    before = datetime.now(timezone.utc) - timedelta(minutes=1)
    produce(kafka.address, topic, ["a", "b", "c"], app="x")
    at: list[tuple[Any, list[str]]] = [({topic: {0: 1}}, ["b", "c"]), (before, ["a", "b", "c"]), ("latest", [])]
    for number, (starting, seen) in enumerate(at):
        source = Kafka(kafka.address, topic, starting=starting, headers=True)
        assert "headers" in source.load(spark).columns
        epochs = read_all(source, spark, tmp_path / str(number))
        assert [value for epoch in epochs for value in epoch] == seen


def test_a_pattern_finds_topics(spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path) -> None:
    topic = make_topic(kafka.address, partitions=1)
    produce(kafka.address, topic, ["a"])
    assert read_all(Kafka(kafka.address, pattern=f"{topic[:-1]}."), spark, tmp_path) == [["a"]]


def test_records_that_are_gone_stop_the_job_in_words(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    produce(kafka.address, topic, ["a", "b"])

    def job() -> Job:
        return Job(
            "gone",
            source=Kafka(kafka.address, topic),
            steps=lambda rows: rows.selectExpr("cast(value as string) value"),
            sink=sinks.Files(tmp_path / "out", format="json"),
            checkpoint=tmp_path / "checkpoint",
        )

    job().run(spark, available_now=True)
    produce(kafka.address, topic, ["c", "d", "e"])
    delete_records(kafka.address, topic, 4)
    with pytest.raises(PrepareError, match=rf"records are gone that were not read yet \(.*\[2, 5\).*{topic}-0"):
        job().run(spark, available_now=True)
    assert '"e"' not in "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))


def test_a_topic_that_was_deleted_or_made_anew_is_no_silence(
    spark: SparkSession, kafka: Broker | Elsewhere, tmp_path: Path
) -> None:
    topic = make_topic(kafka.address, partitions=1)
    produce(kafka.address, topic, ["a", "b", "c"])
    source = Kafka(kafka.address, topic)
    assert read_all(source, spark, tmp_path) == [["a", "b", "c"]]
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    with pytest.raises(ConfigError, match=f"does not have every topic of {topic}: make it"):
        read_all(source, spark, tmp_path)
    produce(kafka.address, topic, ["other"])  # the broker makes it
    with pytest.raises(StreamingQueryException, match="offset was changed from 3 to 1"):
        read_all(source, spark, tmp_path)


def test_brokers_that_do_not_answer_are_told_soon_and_waited_for_by_a_restart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tallystick.sources.kafka_check.PATIENCE_MS", 1000)
    source = Kafka("127.0.0.1:1", "pv")
    with pytest.raises(SourceError, match=r"127.0.0.1:1 has not answered in 1 s .*check that the brokers run"):
        source.load(spark)
    job = Job(
        "away",
        source=source,
        sink=sinks.Files(tmp_path / "out", format="json"),
        checkpoint=tmp_path / "checkpoint",
        restart=FixedDelay(attempts=2, delay="1ms"),
    )
    with pytest.raises(SourceError, match="has not answered"):
        job.run(spark, available_now=True)
    assert caplog.text.count("restart 1 in 0.001 s") == caplog.text.count("restart 2 in 0.001 s") == 1


def test_settings_that_make_no_client_are_told_without_secrets(spark: SparkSession, kafka: Broker | Elsewhere) -> None:
    tls = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/no/such.pem"}
    with pytest.raises(ConfigError, match=r"no client can be made: .*/no/such.pem"):
        Kafka(kafka.address, "pv", options=tls).load(spark)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with pytest.raises(ConfigError, match="do not accept each other") as caught:
        Kafka(kafka.address, "pv", options={**login, "sasl.username": "a", "sasl.password": "hush"}).load(spark)
    assert "hush" not in str(caught.value)


def test_a_session_without_the_connector_is_told_what_to_type() -> None:
    """In a process of its own: this one has the connector for good."""
    program = """if True:
        import tallystick as ts
        spark = ts.session("bare", "local[1]", fast_start=True)
        try:
            ts.sources.Kafka("127.0.0.1:1", "pv").load(spark)
        except ts.TallystickError as error:
            print(type(error).__name__, error)
        spark.stop()
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.startswith("ConfigError kafka: this Spark session has no Kafka connector")
    assert "jvm_parts=('spark-kafka',)" in ended.stdout
    assert "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4" in ended.stdout
