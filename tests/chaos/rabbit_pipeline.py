"""RabbitMQ to Kafka, as a job that the chaos tests run and kill: ``rabbit_pipeline.py PLAN``."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import tallystick as ts
from tallystick.receiver import LogReader

NAME = "rabbit-to-kafka"
PER_EPOCH = 20
PATIENCE_S = 60


def job(plan: dict[str, str]) -> ts.Job:
    folder = Path(plan["folder"])
    source = ts.sources.RabbitMQ(
        folder / "log",
        plan["url"],
        plan["queue"],
        prefetch=10,
        partitions=2,
        max_records_per_epoch=PER_EPOCH,
        receiver=ts.sources.ReceiverSettings(segment_bytes=2000, max_bytes=1 << 20, keep="0s", outlives="60s"),
    )
    return ts.Job(
        NAME,
        source=source,
        steps=lambda rows: rows.selectExpr("value"),
        sink=ts.sinks.Kafka(plan["servers"], plan["topic"]),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s", timeout="3m"),
    )


def wait_received(folder: Path, count: int) -> None:
    """A job that does what is there and stops must not start before it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while LogReader(folder).durable < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"{LogReader(folder).durable} of {count} messages are in the log")
        time.sleep(0.02)


def main(plan: dict[str, str]) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    made = job(plan)
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    spark = ts.session(NAME, master="local[2]", conf=conf, fast_start=True)
    made.sources["rabbitmq"].load(spark)
    wait_received(Path(plan["folder"]) / "log", int(plan["expected"]))
    made.run(spark, available_now=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
