"""Jobs that the tests of the prover prove: right ones, weaker ones, and some about which nothing can be said."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import functions as F

import tallystick as ts
from tallystick.prover import Numbered

NOWHERE = Path(__file__).parent / "never-written"
FAR = "far.example:9092"


def views() -> ts.sources.Collection:
    return ts.sources.Collection([{"id": 1, "app": "a"}])


def counting(name: str, guarantee: str = "exactly-once") -> ts.Job:
    return ts.Job(
        name,
        source=views(),
        steps=lambda rows: rows.groupBy("app").agg(F.count("*").alias("pv")),
        output_mode="update",
        sink=ts.sinks.Files(NOWHERE / name, format="json"),
        checkpoint=ts.Checkpoint(NOWHERE / f"{name}-checkpoint", interval="1s"),
        guarantee=guarantee,
    )


def prove_input(record: Numbered) -> object:
    """Lines of a log for the jobs that read Kafka, rows for the others."""
    if record.source == "kafka":
        return f"{record.number} app={record.key}"
    return {"id": record.number, "app": record.key}


at_least_once = counting("at-least-once", "at-least-once")
at_most_once = counting("at-most-once", "at-most-once")

two_outputs = ts.Job(
    "two-outputs",
    source=ts.sources.Kafka(FAR, "lines", options={"security.protocol": "SSL"}),
    steps=lambda rows: rows.selectExpr("regexp_extract(CAST(value AS STRING), 'app=(.*)', 1) AS key", "value"),
    sink=[
        ts.Output(ts.sinks.Kafka(FAR, "copy"), "copy"),
        ts.Output(ts.sinks.Files(NOWHERE / "archive", partition_by=["key"]), "archive", where="key != 'key_000'"),
    ],
    checkpoint=ts.Checkpoint(NOWHERE / "two-outputs", interval="1s"),
    restart=ts.FixedDelay(attempts=2, delay="1s"),
)

files_to_files = ts.Job(
    "files-to-files",
    source=ts.sources.Files(NOWHERE / "in", "csv", schema="id long, app string", options={"header": "true"}),
    sink=ts.sinks.Files(NOWHERE / "out", format="csv", header=True),
    checkpoint=ts.Checkpoint(NOWHERE / "files-to-files", interval="1s"),
)

rules = ts.state.Broadcast(
    "rules",
    ts.sources.Collection(
        [{"name": f"key_{number:03d}", "rank": number} for number in range(4)], "name string, rank int", per_epoch=1
    ),
    key="name",
)
with_rules = ts.Job(
    "with-rules",
    source=views(),
    broadcast=rules,
    steps=lambda rows: rules.join(rows, on="app"),
    sink=ts.sinks.Files(NOWHERE / "ranked", format="json"),
    checkpoint=ts.Checkpoint(NOWHERE / "with-rules", interval="1s"),
)

dreaming = ts.Job(
    "dreaming",
    source=views(),
    steps=lambda rows: rows.withColumn("dream", F.lit(os.getpid()) + F.rand()),
    sink=ts.sinks.Files(NOWHERE / "dreams"),
    checkpoint=NOWHERE / "dreaming",
)

in_memory = ts.Job("in-memory", source=views(), sink=ts.sinks.Memory("table"), checkpoint=NOWHERE / "in-memory")
