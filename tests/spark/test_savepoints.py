"""Savepoints of real jobs: made while one runs, restored under a new id, dealt out to more partitions."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tallystick as ts
from cli_runner import Tally
from tallystick.errors import CheckpointError
from tallystick.journal import Journal, audit_lines
from tallystick.journal.posix import PosixStore
from tallystick.sinks.memory import Memory
from tallystick.spark.rescale import repartition
from tallystick.spark.savepoint import create, restore

pytestmark = pytest.mark.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
IN_MEMORY = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


@pytest.fixture
def tally(capsys: pytest.CaptureFixture[str]) -> Tally:
    return Tally(capsys)


def counting(checkpoint: Path, sink: Memory, rows: int, **settings: Any) -> ts.Job:
    given = [{"id": number, "app": f"app{number % 3}"} for number in range(rows)]
    return ts.Job(
        "pv",
        source=ts.sources.Collection(given, per_epoch=10),
        steps=lambda rows: rows.groupBy("app").count(),
        output_mode="update",
        sink=sink,
        checkpoint=ts.Checkpoint(checkpoint, interval="0s", **settings),
    )


def memory(name: str) -> Memory:
    sink = Memory(name)
    sink.clear()
    return sink


def final(sink: Memory) -> dict[str, int]:
    return {row["app"]: row["count"] for row in sink.rows()}


def test_a_savepoint_of_a_running_job_goes_on_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    first = memory(f"first-{tmp_path.name}")
    query = counting(tmp_path / "checkpoint", first, 30).start(spark)
    try:
        query.processAllAvailable()
        manifest = create(tmp_path / "checkpoint", tmp_path / "savepoint")
        assert query.isActive
    finally:
        query.stop()
    assert manifest["epoch"] == 2
    counting(tmp_path / "checkpoint", first, 60).run(spark, available_now=True)  # the original goes on
    assert final(first) == {"app0": 20, "app1": 20, "app2": 20}

    restore(tmp_path / "savepoint", tmp_path / "restored")
    second = memory(f"second-{tmp_path.name}")
    counting(tmp_path / "restored", second, 60).run(spark, available_now=True)
    assert final(second) == {"app0": 20, "app1": 20, "app2": 20}
    assert len(second.rows()) == 9, "the three epochs after the savepoint, and none before it"
    restored = Journal(PosixStore(tmp_path / "restored" / "tallystick"))
    decided = [line["epoch"] for line in audit_lines(restored) if line.get("decision") == "COMMIT"]
    assert decided[:6] == [0, 1, 2, 3, 4, 5], "the audit trail goes on where the original's was"


def test_stop_with_savepoint(spark: SparkSession, tally: Tally, tmp_path: Path) -> None:
    """The job is asked through the journal. That is no cancel: its checkpoint stays."""
    sink = memory(f"stop-{tmp_path.name}")
    begun = threading.Event()
    job = counting(tmp_path / "checkpoint", sink, 30, on_cancel="delete")
    running = threading.Thread(target=lambda: job.run(spark, on_finished=lambda *_: begun.set()))
    running.start()
    assert begun.wait(60)
    ran = tally("savepoint", "create", tmp_path / "checkpoint", tmp_path / "savepoint", "--stop", "--json")
    assert ran.status == 0, ran.err
    running.join(60)
    assert not running.is_alive()
    newest = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit())
    assert ran.json["epoch"] == newest
    counting(tmp_path / "checkpoint", sink, 30).run(spark, available_now=True)  # asked once is not asked for ever
    assert final(sink) == {"app0": 10, "app1": 10, "app2": 10}


def test_more_partitions(spark: SparkSession, tmp_path: Path) -> None:
    sink = memory(f"rescaled-{tmp_path.name}")
    counting(tmp_path / "checkpoint", sink, 30).run(spark, available_now=True)
    create(tmp_path / "checkpoint", tmp_path / "savepoint")
    restore(tmp_path / "savepoint", tmp_path / "restored")
    assert repartition(spark, tmp_path / "restored", 3) == 3
    assert {path.name for path in (tmp_path / "restored" / "state" / "0").iterdir()} >= {"0", "1", "2"}
    counting(tmp_path / "restored", sink, 60).run(spark, available_now=True)
    assert final(sink) == {"app0": 20, "app1": 20, "app2": 20}
    restored = Journal(PosixStore(tmp_path / "restored" / "tallystick"))
    lines = [line for line in audit_lines(restored) if line["epoch"] == 3]
    assert [line.get("note") or line["decision"] for line in lines] == ["COMMIT", "repartitioned"]


def test_state_that_spark_cannot_deal_out_is_said(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PROVIDER, IN_MEMORY)
    try:
        counting(tmp_path / "checkpoint", memory(f"refused-{tmp_path.name}"), 20).run(spark, available_now=True)
    finally:
        spark.conf.unset(PROVIDER)
    with pytest.raises(CheckpointError, match=r"HDFSBackedStateStoreProvider.*only for RocksDB.*nothing was changed"):
        repartition(spark, tmp_path / "checkpoint", 3)
    counting(tmp_path / "checkpoint", memory(f"refused-{tmp_path.name}"), 30).run(spark, available_now=True)
