"""A job for every source and sink that talks to a server, for the prover. None of these addresses is ever used."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.prover import Numbered

NOWHERE = Path(__file__).parent / "never-written"
TABLES = "postgresql://nobody@far.example/orders"


def numbered() -> ts.sources.Collection:
    return ts.sources.Collection([{"id": 1, "key": "a"}], schema="id long, key string")


def checkpoint(name: str) -> ts.Checkpoint:
    return ts.Checkpoint(NOWHERE / name, interval="1s")


def with_counts(rows: DataFrame) -> DataFrame:
    """A running count of each key: what is upserted has versions, and what is added up would show every repeat."""
    return rows.groupBy("key").agg(F.count("*").alias("count"), F.max("id").alias("id"))


databases = ts.Job(
    "databases",
    source=numbered(),
    steps=with_counts,
    output_mode="update",
    sink=[
        ts.Output(ts.sinks.PostgreSQL(TABLES, "history"), "appended"),
        ts.Output(ts.sinks.PostgreSQL(TABLES, "latest", mode="upsert", key=["key"]), "upserted"),
        ts.Output(ts.sinks.Redis("redis://far.example/0", "xadd"), "stream"),
        ts.Output(ts.sinks.Redis("redis://far.example/0", "incrby"), "sums", select=["key", "id AS value"]),
        ts.Output(ts.sinks.Redis("redis://far.example/0", "hset"), "fields"),
    ],
    checkpoint=checkpoint("databases"),
    restart=ts.FixedDelay(attempts=3, delay="1s"),
)

search = ts.Job(
    "search",
    source=numbered(),
    steps=with_counts,
    output_mode="update",
    sink=[
        ts.Output(ts.sinks.Cassandra("far.example", "shop.latest", key=["key"]), "latest"),
        ts.Output(ts.sinks.Cassandra("far.example", "shop.history", key=["key", "count"]), "history"),
        ts.Output(ts.sinks.OpenSearch("http://far.example:9200", "latest", "key"), "documents"),
        ts.Output(ts.sinks.Elasticsearch("http://far.example:9200", "history"), "appended"),
    ],
    checkpoint=checkpoint("search"),
    restart=ts.FixedDelay(attempts=3, delay="1s"),
)

lake = ts.Job(
    "lake",
    source=numbered(),
    sink=[
        ts.Output(ts.sinks.HDFS("hdfs://far.example:9000/out", partition_by=["key"]), "hdfs"),
        ts.Output(ts.sinks.S3("s3://far-away/out", format="json"), "s3"),
        ts.Output(ts.sinks.Delta(NOWHERE / "delta", partition_by=["key"]), "delta"),
    ],
    checkpoint=checkpoint("lake"),
    restart=ts.FixedDelay(attempts=3, delay="1s"),
)

sends = ts.Job(
    "sends",
    source=numbered(),
    steps=lambda rows: rows.selectExpr("key", "CONCAT(key, ' ', id) AS value"),
    sink=[
        ts.Output(ts.sinks.Kinesis("events", region="eu-central-1"), "kinesis"),
        ts.Output(ts.sinks.Socket("far.example", 7000), "socket"),
    ],
    checkpoint=checkpoint("sends"),
    guarantee="at-least-once",
)

kinesis_to_postgresql = ts.Job(
    "kinesis-to-postgresql",
    source=ts.sources.Kinesis("events", region="eu-central-1"),
    steps=lambda rows: rows.selectExpr("key", "CAST(value AS STRING) AS value"),
    sink=ts.sinks.PostgreSQL(TABLES, "events"),
    checkpoint=checkpoint("kinesis-to-postgresql"),
)

received = ts.Job(
    "received",
    source={
        "rabbitmq": ts.sources.RabbitMQ(NOWHERE / "log-1", "amqp://far.example", "orders", encoding="utf-8"),
        "socket": ts.sources.Socket(NOWHERE / "log-2", listen="127.0.0.1:7000"),
        "x": ts.sources.XStream(NOWHERE / "log-3"),
    },
    steps=lambda *inputs: inputs[0].select("value").union(inputs[1].select("value")).union(inputs[2].select("value")),
    sink=ts.sinks.Files(NOWHERE / "received", format="json"),
    checkpoint=checkpoint("received"),
)

received_framed = ts.Job(
    "received-framed",
    source={
        "stream": ts.sources.RabbitMQ(NOWHERE / "log-4", "amqp://far.example", "s", stream="next", encoding="utf-8"),
        "length": ts.sources.Socket(NOWHERE / "log-5", connect="far.example:7000", framing="length"),
        "datagrams": ts.sources.Socket(NOWHERE / "log-6", listen="127.0.0.1:7000", framing="datagrams"),
    },
    steps=lambda *inputs: inputs[0].select("value").union(inputs[1].select("value")).union(inputs[2].select("value")),
    sink=ts.sinks.Files(NOWHERE / "received-framed", format="json"),
    checkpoint=checkpoint("received-framed"),
)
RECEIVED = ("rabbitmq", "socket", "x", "stream", "length", "datagrams")


def prove_input(record: Numbered) -> object:
    if record.source in (*RECEIVED, "kinesis"):
        return f"{record.source} {record.key} {record.number}"
    return {"id": record.number, "key": record.key}
