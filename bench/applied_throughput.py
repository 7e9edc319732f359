"""Rows per second into Cassandra and OpenSearch: the exactly-once sinks against the plain clients, in the same workers.

The plain contestants write what each worker gets with the client's own helper for many rows, in a foreachBatch: at
least once, nothing staged, nothing decided. The server is the same, and the contestants take turns.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from machine import spread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.servers import Cassandra, OpenSearch, Server
from tallystick.sinks.opensearch.client import Connection
from tallystick.sinks.opensearch.mapping import mapping_for

EPOCHS = 3
WARM_UP = 1
ROUNDS = 2
CONCURRENCY = 64
BULK_BYTES = 5 << 20
COLUMNS = "id bigint, app text, amount double, url text"

Write = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def stream(spark: SparkSession, rows_per_epoch: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_epoch)
    rows = reader.option("numPartitions", 2).load()
    return rows.select(
        F.col("value").alias("id"),
        F.concat(F.lit("app"), (F.col("value") % 1000).cast("string")).alias("app"),
        (F.col("value") * 0.25).alias("amount"),
        F.concat(F.lit("https://example.org/page/"), F.xxhash64("value").cast("string")).alias("url"),
    )


def plain_cassandra(address: str, table: str) -> Write:
    """``execute_concurrent_with_args`` with a prepared statement: the driver's own way to write many rows."""
    host, port = address.split(":")

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import builtins

        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.concurrent import execute_concurrent_with_args
        from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy

        kept: dict[str, Any] = builtins.__dict__.setdefault("bench_sessions", {})  # as long as the worker lives
        if table not in kept:
            profile = ExecutionProfile(TokenAwarePolicy(RoundRobinPolicy()), request_timeout=30)
            session = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile}).connect()
            kept[table] = session, session.prepare(f"INSERT INTO {table} (id, app, amount, url) VALUES (?, ?, ?, ?)")
        session, statement = kept[table]
        for batch in batches:
            rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            execute_concurrent_with_args(session, statement, rows, concurrency=CONCURRENCY)
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    return write


def plain_opensearch(address: str, index: str) -> Write:
    """``helpers.bulk``, the client's own way to write many documents, with ids and requests as large as ours."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from opensearchpy import OpenSearch as Client
        from opensearchpy import helpers

        client = Client(address, timeout=60)
        for batch in batches:
            actions = ({"_index": index, "_id": row["id"], "_source": row} for row in batch.to_pylist())
            helpers.bulk(client, actions, chunk_size=10_000, max_chunk_bytes=BULK_BYTES)
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    return write


def epochs(query: Any, rows_per_epoch: int) -> list[float]:
    """Rows per second, epoch by epoch, by Spark's own account of the trigger's duration."""
    rates: dict[int, float] = {}
    while len(rates) < WARM_UP + EPOCHS and query.isActive:
        for progress in query.recentProgress:
            if progress["numInputRows"] == rows_per_epoch:
                rates[progress["batchId"]] = rows_per_epoch / (progress["durationMs"]["triggerExecution"] / 1000)
        time.sleep(0.1)
    query.stop()
    return [rates[epoch] for epoch in sorted(rates)][WARM_UP : WARM_UP + EPOCHS]


def run_plain(spark: SparkSession, folder: Path, write: Write, rows_per_epoch: int) -> list[float]:
    def each(batch: DataFrame, _: int) -> None:
        batch.mapInArrow(write, "rows long").collect()

    writer = stream(spark, rows_per_epoch).writeStream.foreachBatch(each)
    place = str(folder / uuid.uuid4().hex)
    return epochs(
        writer.option("checkpointLocation", place).trigger(processingTime="0 seconds").start(), rows_per_epoch
    )


def run_ours(spark: SparkSession, folder: Path, sink: ts.sinks.Sink, rows_per_epoch: int) -> list[float]:
    checkpoint = ts.Checkpoint(folder / uuid.uuid4().hex, interval="0s")
    return epochs(ts.write_stream(stream(spark, rows_per_epoch), sink, checkpoint=checkpoint).start(), rows_per_epoch)


def compared(
    work: str, server: Server, plain: Callable[[], list[float]], ours: Callable[[], list[float]]
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"plain": [], "tallystick": []}
    for _ in range(ROUNDS):
        rates["plain"] += plain()
        rates["tallystick"] += ours()
    theirs, mine = spread(rates["plain"]), spread(rates["tallystick"])
    return {
        "work": f"{work}, {server.name} {server.version}, 2 workers",
        "plain_rows_per_s": {key: round(value) for key, value in theirs.items()},
        "tallystick_rows_per_s": {key: round(value) for key, value in mine.items()},
        "ratio": round(mine["median"] / theirs["median"], 3),
    }


def measure_cassandra(spark: SparkSession, folder: Path, rows_per_epoch: int = 8_000) -> dict[str, Any]:
    with Cassandra(folder / "server", heap_mb=1024) as server:
        session = ts.sinks.Cassandra(server.address, "bench.t").connection.open()
        session.execute("CREATE KEYSPACE bench WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")

        def table() -> str:
            name = f"bench.t{uuid.uuid4().hex[:8]}"
            session.execute(f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (id))", timeout=60)
            return name

        def plain() -> list[float]:
            return run_plain(spark, folder, plain_cassandra(server.address, table()), rows_per_epoch)

        def ours() -> list[float]:
            sink = ts.sinks.Cassandra(server.address, table(), consistency="LOCAL_ONE", concurrency=CONCURRENCY)
            return run_ours(spark, folder, sink, rows_per_epoch)

        found = compared(f"upserts, epochs of {rows_per_epoch} rows of 4 columns", server, plain, ours)
        session.cluster.shutdown()
        return found


def measure_opensearch(spark: SparkSession, folder: Path, rows_per_epoch: int = 40_000) -> dict[str, Any]:
    with OpenSearch(folder / "server", heap_mb=1024) as server:

        def index() -> str:
            """With the same mapping for both, and no refreshes in between."""
            name, schema = f"bench-{uuid.uuid4().hex[:8]}", stream(spark, 1).schema
            body = {"mappings": mapping_for(schema), "settings": {"refresh_interval": "30s", "number_of_replicas": 0}}
            Connection.of(server.address).ask("PUT", f"/{name}", body)
            return name

        def plain() -> list[float]:
            return run_plain(spark, folder, plain_opensearch(server.address, index()), rows_per_epoch)

        def ours() -> list[float]:
            sink = ts.sinks.OpenSearch(server.address, index(), id="id", bulk_bytes=BULK_BYTES)
            return run_ours(spark, folder, sink, rows_per_epoch)

        return compared(f"documents by id, epochs of {rows_per_epoch} rows of 4 columns", server, plain, ours)
