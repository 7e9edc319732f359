"""Kinesis to Kafka or PostgreSQL, as a job that the chaos tests run and kill: ``kinesis_pipeline.py PLAN``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import tallystick as ts

PER_EPOCH = 20


def job(plan: dict[str, str]) -> ts.Job:
    source = ts.sources.Kinesis(
        plan["stream"], region=plan["region"], endpoint=plan["endpoint"], max_records_per_epoch=PER_EPOCH
    )
    to_kafka = plan["sink"] == "kafka"
    return ts.Job(
        f"kinesis-to-{plan['sink']}",
        source=source,
        steps=lambda rows: rows.selectExpr("value" if to_kafka else "CAST(CAST(value AS STRING) AS LONG) AS id"),
        sink=(ts.sinks.Kafka if to_kafka else ts.sinks.PostgreSQL)(plan["address"], plan["target"]),
        checkpoint=ts.Checkpoint(Path(plan["folder"]) / "checkpoint", interval="0s", timeout="3m"),
    )


def main(plan: dict[str, str]) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    made = job(plan)
    made.run(ts.session(made.name, master="local[2]", conf=conf, fast_start=True), available_now=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
