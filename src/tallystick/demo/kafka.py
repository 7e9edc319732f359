"""The demonstration on a real broker: page views in a topic, counts in a topic for each mode.

Readers of the counts see committed records only: that is the condition under which Kafka delivers exactly once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.demo.stage import Stage, Update, view
from tallystick.kafka import clients, topics
from tallystick.records import Json, Mode
from tallystick.sinks import Kafka as KafkaSink
from tallystick.sources import Kafka as KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEWS = "page-views"
PARTITIONS = 2


class KafkaStage(Stage):
    def __init__(self, address: str) -> None:
        self.address = address

    @property
    def name(self) -> str:
        return f"kafka@{self.address}"

    @property
    def title(self) -> str:
        return f"Kafka to Kafka, broker {self.address}"

    def prepare(self, views: int) -> None:
        topics.make(self.address, [VIEWS, *(counts_topic(mode) for mode in Mode)], PARTITIONS)
        # Dealt out evenly, so that Spark takes as many from each partition: epoch N has the Nth views.
        records = ((number % PARTITIONS, None, json.dumps(view(number)).encode()) for number in range(views))
        topics.fill(self.address, VIEWS, records)

    def source(self, views: int, per_epoch: int) -> KafkaSource:
        return KafkaSource(self.address, VIEWS, max_records_per_epoch=per_epoch)

    def count(self, read: DataFrame) -> DataFrame:
        apps = read.selectExpr("get_json_object(CAST(value AS STRING), '$.app') AS app")
        return apps.groupBy("app").count().selectExpr("app AS key", "CAST(count AS STRING) AS value")

    def sink(self, mode: Mode, folder: Path) -> KafkaSink:
        return KafkaSink(self.address, counts_topic(mode))

    def delivered(self, mode: Mode, folder: Path) -> list[Update]:
        return [(key.decode(), int(value)) for key, value in topics.read_committed(self.address, counts_topic(mode))]

    def offsets(self, read: Json) -> list[tuple[int, int]]:
        return sorted((int(partition), offset) for partition, offset in read[VIEWS].items())


def counts_topic(mode: Mode) -> str:
    return f"counts-{mode.value}"


def need_everything() -> None:
    """Raises, with the command to type, unless the packages, Java and the parts of the JVM are there or can be had."""
    from tallystick.jvm import find_java, resolve

    clients.confluent()
    clients.kafka_python()
    find_java()
    for part in ("kafka", "spark-kafka"):
        resolve(part)


@contextmanager
def own_broker(folder: Path, kept: bool = False) -> Iterator[KafkaStage]:
    """A stage on a broker of its own, which is stopped at the end whatever happened.

    ``kept``: the folder outlives the demonstration, and ``tallystick servers`` shall find it.
    """
    from tallystick.servers import Kafka as Broker
    from tallystick.servers.registry import claim

    broker = Broker(folder)
    if kept:
        claim(broker)
    with broker:
        yield KafkaStage(broker.address)
