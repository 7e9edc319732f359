"""PostgreSQL and Redis on a real Spark: every type, tables that are made, and rows that are refused."""

from __future__ import annotations

import logging
import subprocess
import threading
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from postgresql_tables import ask, new_table, prepared, staged
from redis_keys import client, found, new_prefix
from tallystick.errors import ConfigError, PrepareError
from tallystick.prover import tally
from tallystick.servers import PostgreSQL, Redis

pytestmark = pytest.mark.spark

ROWS = 30


def job(folder: Path, sink: Any, steps: Any = None) -> ts.Job:
    return ts.Job(
        "databases",
        source=ts.sources.Collection([{"id": n, "key": f"k{n % 4}"} for n in range(ROWS)], per_epoch=10),
        steps=steps,
        sink=sink,
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s", commit_patience="10s"),
    )


def ids(postgresql: PostgreSQL, table: str) -> list[int]:
    return [number for (number,) in ask(postgresql.address, f"SELECT id FROM {table}")]


def of_every_type(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "id",
        "CAST(id AS TINYINT) AS tiny",
        "CAST(id / 8 AS DOUBLE) AS double",
        "CAST(id AS DECIMAL(20, 3)) AS exact",
        "CAST(key AS BINARY) AS raw",
        "id % 2 = 0 AS even",
        "date_add(DATE'2026-01-01', CAST(id AS INT)) AS day",
        "timestamp_seconds(id) AS at",
        "named_struct('list', array(id, NULL), 'map', map(key, id)) AS tree",
    )


def test_a_table_is_made_for_every_type(spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path) -> None:
    table = new_table()
    job(tmp_path, ts.sinks.PostgreSQL(postgresql.address, table), of_every_type).run(spark, available_now=True)
    found = ask(
        postgresql.address,
        f"SELECT id, tiny, double, exact::text, convert_from(raw, 'UTF8'), even, day::text, "
        f"extract(epoch FROM at)::int, tree->'list'->>0, tree->'map' FROM {table} WHERE id = 9",
    )
    assert found == [(9, 9, 1.125, "9.000", "k1", False, "2026-01-10", 9, "9", {"k1": 9})]
    assert tally(range(ROWS), ids(postgresql, table)).exact
    assert prepared(postgresql.address) == []


def test_passwords_are_in_no_log_journal_error_or_process_list(
    spark: SparkSession,
    postgresql: PostgreSQL,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a whole job: some epochs go well, then one fails, with the password in use on driver and workers."""
    secret, user, table = f"secret-{uuid.uuid4().hex}", f"u{uuid.uuid4().hex[:8]}", new_table()
    ask(postgresql.address, f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{secret}'")
    ask(postgresql.address, f"CREATE TABLE {table} (id bigint CHECK (id <> 15), key text)")
    named = postgresql.address.replace("postgres@", f"{user}:{secret}@")
    sinks = [
        ts.Output(ts.sinks.PostgreSQL(named, table), "first"),
        ts.Output(ts.sinks.PostgreSQL(named, new_table(), options={"password": secret}), "second"),
    ]
    processes: list[str] = []
    caplog.set_level(logging.DEBUG, "tallystick")
    with watching_processes(processes), pytest.raises(PrepareError) as failure:
        job(tmp_path, sinks).run(spark, available_now=True)
    assert sorted(ids(postgresql, table)) == list(range(10))
    told = "".join(traceback.format_exception(failure.value))
    captured = capfd.readouterr()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("tallystick" in path.parts for path in files), "the journal was not looked at"
    assert any("pyspark" in line for line in processes), "the process list was not looked at"
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert not [line for line in processes if secret in line]
    for text in (told, captured.out, captured.err, caplog.text):
        assert secret not in text


@contextmanager
def watching_processes(seen: list[str]) -> Iterator[None]:
    """What everybody on this machine can see of our processes, again and again."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.2):
            said = subprocess.run(["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True).stdout
            seen.extend(said.splitlines())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_refused_row_fails_the_epoch_and_the_job_goes_on_when_the_cause_is_gone(
    spark: SparkSession, postgresql: PostgreSQL, tmp_path: Path, mode: str
) -> None:
    """One sink is prepared first, the other refuses: neither shows anything of the epoch."""
    table, other = new_table(), new_table()
    ask(postgresql.address, f"CREATE TABLE {table} (id bigint PRIMARY KEY CHECK (id <> 15), key text)")
    declared: dict[str, Any] = {"mode": mode, **({"key": ["id"]} if mode == "upsert" else {})}
    sinks = [
        ts.Output(ts.sinks.PostgreSQL(postgresql.address, other), "first"),
        ts.Output(ts.sinks.PostgreSQL(postgresql.address, table, **declared), "second"),
    ]
    with pytest.raises(PrepareError, match=r'epoch 1 could not be prepared: .*refuses the row \{"id": 15\}.*check'):
        job(tmp_path, sinks).run(spark, available_now=True)
    assert sorted(ids(postgresql, table)) == sorted(ids(postgresql, other)) == list(range(10))
    assert prepared(postgresql.address) == []
    assert staged(postgresql.address) == []
    ask(postgresql.address, f"ALTER TABLE {table} DROP CONSTRAINT {_constraint(postgresql, table)}")
    job(tmp_path, sinks).run(spark, available_now=True)
    for one in (table, other):
        assert tally(range(ROWS), ids(postgresql, one)).exact


def _constraint(postgresql: PostgreSQL, table: str) -> str:
    question = "SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'c'"
    return str(ask(postgresql.address, question, [table])[0][0])


def test_a_refused_key_of_redis_fails_the_epoch(spark: SparkSession, redis: Redis, tmp_path: Path) -> None:
    prefix = new_prefix()
    asked = client(redis.address)
    sink = ts.Output(ts.sinks.Redis(redis.address, "incrby", key_prefix=prefix), select=["key", "id AS value"])
    asked.set(f"{prefix}k1", "words")
    with pytest.raises(PrepareError, match=r"epoch 0 could not be prepared: .*k1': its value is not an integer"):
        job(tmp_path, sink).run(spark, available_now=True)
    assert len(found(redis.address, f"{prefix}*")) == 1
    asked.delete(f"{prefix}k1")
    job(tmp_path, sink).run(spark, available_now=True)
    expected = {f"{prefix}k{key}": str(sum(range(key, ROWS, 4))).encode() for key in range(4)}
    assert found(redis.address, f"{prefix}*") == expected


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (ts.sinks.PostgreSQL("postgresql://localhost/db", "t", mode="upsert", key=["number"]), "no column 'number'"),
        (
            ts.sinks.PostgreSQL("postgresql://localhost/db", "t", mode="changes", key=["id"], delete_flag="key"),
            "needed boolean, found text",
        ),
        (ts.sinks.Redis("redis://localhost/0", "set"), "set needs the columns key, value"),
        (ts.sinks.Redis("redis://localhost/0", "zadd"), "zadd needs the columns key, score, member"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_when_declared(
    spark: SparkSession, tmp_path: Path, sink: Any, said: str
) -> None:
    rows = ts.sources.Collection([{"id": 1, "key": "k"}]).load(spark)
    with pytest.raises(ConfigError, match=said):
        ts.write_stream(rows, sink, checkpoint=tmp_path / "checkpoint")


def test_types_without_a_counterpart_are_refused_when_declared(spark: SparkSession, tmp_path: Path) -> None:
    rows = ts.sources.Collection([{"id": 1, "key": "k"}]).load(spark).selectExpr("INTERVAL '1' DAY AS span")
    with pytest.raises(ConfigError, match="span is interval day, which has no counterpart"):
        ts.write_stream(rows, ts.sinks.PostgreSQL("postgresql://localhost/db", "t"), checkpoint=tmp_path / "ck")
