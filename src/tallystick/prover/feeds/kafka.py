"""Topics: one of the prover's own for each that is declared, on a broker of the prover's own."""

from __future__ import annotations

from dataclasses import replace

from tallystick.kafka import topics
from tallystick.prover.feeds.base import Feed, Rows
from tallystick.prover.place import Place
from tallystick.prover.workload import LANES
from tallystick.sources import Kafka


class KafkaFeed(Feed):
    kind = "kafka"
    servers = ("kafka",)

    @classmethod
    def redirect(cls, source: Kafka, rows: Rows, place: Place) -> Kafka:
        return replace(
            source,
            servers=place.server_for_job("kafka"),
            topics=place.input_name(rows.source),
            pattern=None,
            starting="earliest",
            max_records_per_epoch=rows.workload.per_epoch,
            min_partitions=None,
            options={},
        )

    @classmethod
    def fill(cls, source: Kafka, rows: Rows, place: Place) -> None:
        address, topic = place.server("kafka"), place.input_name(rows.source)
        topics.make(address, [topic], LANES)
        topics.fill(address, topic, rows.messages())
