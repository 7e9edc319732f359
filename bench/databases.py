"""Rows per second into PostgreSQL and Redis, exactly once, against the plain client write of the same rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import databases_work
from databases_work import SLICES, PlainCopy, PlainPipeline, ours, plain, source
from machine import spread
from pyspark.sql import SparkSession

import tallystick as ts
from tallystick.servers import PostgreSQL, Redis
from tallystick.sinks.postgresql.client import connect, parameters_of

ROUNDS = 2
POSTGRESQL_ROWS = 200_000
REDIS_ROWS = 100_000
PLAIN = "plain COPY"


@dataclass(frozen=True)
class Table:
    """``id`` is how rows get theirs from their number."""

    name: str
    key: str
    id: str
    ways: tuple[str, ...]


TABLES = (
    Table("no key", "", "value", (PLAIN, "prepared", "staged")),
    Table("a primary key that rises", "PRIMARY KEY", "value", (PLAIN, "prepared", "staged")),
    Table("a primary key in no order", "PRIMARY KEY", "xxhash64(value)", (PLAIN, "prepared", "staged")),
)


def postgresql(spark: SparkSession, folder: Path) -> dict[str, Any]:
    spark.sparkContext.addPyFile(databases_work.__file__)
    work = f"epochs of {POSTGRESQL_ROWS} rows of four columns, {SLICES} slices, PostgreSQL, fsync on"
    with PostgreSQL(folder / "postgresql", settings={"max_wal_size": "4GB", "checkpoint_timeout": "1h"}) as server:
        results = {table.name: _into(spark, server, folder, table) for table in TABLES}
    return {"work": work, "tables": results}


def _into(spark: SparkSession, server: PostgreSQL, folder: Path, table: Table) -> dict[str, Any]:
    rows = source(spark, POSTGRESQL_ROWS).selectExpr(
        f"{table.id} AS id", "concat('customer ', value % 1000) AS customer", "value / 7 AS amount", "timestamp AS at"
    )
    rates: dict[str, list[float]] = {way: [] for way in table.ways}
    admin = connect(parameters_of(server.address, {}))
    for _ in range(ROUNDS):
        for way, collected in rates.items():
            admin.execute("DROP TABLE IF EXISTS t")
            admin.execute(f"CREATE TABLE t (id bigint {table.key}, customer text, amount float8, at timestamptz)")
            admin.execute("CHECKPOINT")
            sink = ts.sinks.PostgreSQL(server.address, "t", via="auto" if way == PLAIN else way)
            if way == PLAIN:
                collected += plain(rows, PlainCopy(sink, "id, customer, amount, at"), folder / "ck")
            else:
                collected += ours(rows, sink, folder / "ck")
    admin.close()
    return _result(f"append to a table with {table.name}", rates, PLAIN)


def redis(spark: SparkSession, folder: Path) -> dict[str, Any]:
    spark.sparkContext.addPyFile(databases_work.__file__)
    results: dict[str, Any] = {}
    with Redis(folder / "redis") as server:
        rows = source(spark, REDIS_ROWS).selectExpr(
            "concat('k', value % 50000) AS key", "CAST(value AS STRING) AS value"
        )
        for command in ("set", "incrby"):
            rates: dict[str, list[float]] = {"plain pipeline": [], "tallystick": []}
            given = rows if command == "set" else rows.selectExpr("key", "CAST(value AS LONG) AS value")
            text = rows.select("key", "value")
            for _ in range(ROUNDS):
                sink = ts.sinks.Redis(server.address, command, key_prefix=f"{command}:")
                rates["plain pipeline"] += plain(text, PlainPipeline(sink), folder / "ck")
                rates["tallystick"] += ours(given, sink, folder / "ck")
            work = f"epochs of {REDIS_ROWS} {command}, {SLICES} slices, Redis, appendfsync always"
            results[command] = _result(work, rates, "plain pipeline")
    return {"work": "redis", "commands": results}


def _result(work: str, rates: dict[str, list[float]], peer: str) -> dict[str, Any]:
    results = {name: spread(values) for name, values in rates.items()}
    theirs = results[peer]["median"]
    return {
        "work": work,
        "rows_per_s": {name: {key: round(value) for key, value in one.items()} for name, one in results.items()},
        "ratios": {name: round(one["median"] / theirs, 3) for name, one in results.items() if name != peer},
    }
