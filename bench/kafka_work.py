"""What the Kafka benchmarks share: one broker, topics, records, the two contestants and their settings."""

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tallystick as ts
from tallystick.servers import Kafka

CONTESTANTS = ("spark", "tallystick")
PARTITIONS = 4
PRODUCER = {"compression.type": "lz4", "linger.ms": "5", "batch.size": "1000000"}
"""The same for both sinks."""


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    with Kafka(folder / "broker", heap_mb=1024) as server:
        yield server.address


def make_topic(address: str, partitions: int = PARTITIONS) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})  # must outlive the answer
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
    return name


def fill(address: str, topic: str, records: int) -> None:
    """Records of about 100 bytes with a key, the same ones every time."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "compression.type": "lz4"})
    for first in range(0, records, 10_000):
        batch = [
            {"key": b"key%07d" % (number % 100_000), "value": b"%020d" % number + b"payload " * 10}
            for number in range(first, min(first + 10_000, records))
        ]
        while batch:
            batch = batch[producer.produce_batch(topic, batch) :]
            producer.poll(0.01 if batch else 0)
    producer.flush()


def start(contestant: str, rows: DataFrame, address: str, topic: str, folder: Path, **trigger: Any) -> StreamingQuery:
    """The same rows into the same topic with the same settings, once at-least-once by Spark's own sink, once exactly
    once by ours."""
    shutil.rmtree(folder, ignore_errors=True)
    if contestant == "spark":
        writer = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", address).option("topic", topic)
        for name, value in PRODUCER.items():
            writer = writer.option(f"kafka.{name}", value)
        return writer.option("checkpointLocation", str(folder)).trigger(**trigger).start()
    send = contestant.partition("-")[2] or "arrow"
    sink = ts.sinks.Kafka(address, topic, PRODUCER, send=send)
    return ts.write_stream(rows, sink, checkpoint=ts.Checkpoint(folder)).trigger(**trigger).start()


def epochs_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Spark's own account of the epochs that had rows."""
    return [progress for progress in query.recentProgress if progress["numInputRows"] > 0]


def finish(query: StreamingQuery, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    if query.isActive:
        query.stop()
        raise TimeoutError(f"the benchmark's query did not end within {timeout_s:g} s")
    failure = query.exception()
    if failure is not None:
        raise failure


def kafka_session(slots: int) -> SparkSession:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.numRecentProgressUpdates": "1000"}
    return ts.session("tallystick-bench", master=f"local[{slots}]", conf=conf, jvm_parts=("spark-kafka",))
