"""HDFS and Delta in a job: one epoch into both, repeated epochs, bad rows, a checkpoint that was rewound."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from hdfs_folders import files_below, new_folder, rows_below
from real_servers import Elsewhere
from tallystick.errors import CommitRefusedError, PrepareError
from tallystick.servers import Hdfs

pytestmark = pytest.mark.spark


def numbers(count: int = 40, per_epoch: int = 10) -> ts.sources.Collection:
    rows = [{"id": number, "kind": f"k{number % 3}"} for number in range(count)]
    return ts.sources.Collection(rows, per_epoch=per_epoch, partitions=2)


def with_a_day(rows: DataFrame) -> DataFrame:
    return rows.withColumn("day", F.expr("date_add(DATE'2026-01-01', CAST(id % 3 AS INT))"))


def job(folder: Path, *sinks: ts.sinks.Sink, source: ts.sources.Collection | None = None, steps: Any = None) -> ts.Job:
    return ts.Job(
        "lake",
        source=source or numbers(),
        steps=steps,
        sink=list(sinks),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


def run(declared: ts.Job, spark: SparkSession) -> list[str]:
    endings: list[str] = []
    declared.run(spark, available_now=True, on_finished=lambda _, finished: endings.append(finished.how))
    return endings


def ids(folder: Path) -> list[int]:
    return sorted(DeltaTable(str(folder / "delta")).to_pyarrow_table()["id"].to_pylist())


def test_one_epoch_into_hdfs_and_a_delta_table(spark: SparkSession, hdfs: Hdfs | Elsewhere, tmp_path: Path) -> None:
    """The table is made with the rows' columns, a date among its partition columns; an epoch is one version of it."""
    on_hdfs = ts.sinks.HDFS(new_folder(hdfs.address), partition_by=["day"])
    declared = job(tmp_path, on_hdfs, ts.sinks.Delta(tmp_path / "delta", partition_by=["day"]), steps=with_a_day)
    assert run(declared, spark) == ["written"] * 4
    assert ids(tmp_path) == sorted(row["id"] for row in rows_below(on_hdfs.target)) == list(range(40))
    table = DeltaTable(str(tmp_path / "delta"))
    assert table.version() == 4
    days = {row["id"]: row["day"] for row in table.to_pyarrow_table().to_pylist()}
    assert days == {number: dt.date(2026, 1, 1 + number % 3) for number in range(40)}


def test_an_epoch_that_spark_runs_again_is_verified_not_written(spark: SparkSession, tmp_path: Path) -> None:
    declared = job(tmp_path, ts.sinks.Delta(tmp_path / "delta"))
    run(declared, spark)
    for path in (tmp_path / "checkpoint" / "commits").glob("*3*"):
        path.unlink()
    assert run(declared, spark) == ["verified"]
    assert ids(tmp_path) == list(range(40))
    assert DeltaTable(str(tmp_path / "delta")).version() == 4


def test_a_rewound_checkpoint_is_refused_not_skipped(spark: SparkSession, tmp_path: Path) -> None:
    """Restored from an older copy, journal and all: only the table knows that it is ahead."""
    sink = ts.sinks.Delta(tmp_path / "delta")
    run(job(tmp_path, sink, source=numbers(10)), spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    run(job(tmp_path, sink, source=numbers(40)), spark)
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    with pytest.raises(CommitRefusedError):
        run(job(tmp_path, sink, source=numbers(40, per_epoch=7)), spark)
    assert ids(tmp_path) == list(range(40))


def test_a_bad_row_fails_the_epoch_in_all_sinks(spark: SparkSession, hdfs: Hdfs | Elsewhere, tmp_path: Path) -> None:
    def spoil(rows: DataFrame) -> DataFrame:
        return rows.withColumn("kind", F.expr("CASE WHEN id = 15 THEN NULL ELSE kind END"))

    on_hdfs = ts.sinks.HDFS(new_folder(hdfs.address))
    sinks = (on_hdfs, ts.sinks.Delta(tmp_path / "delta", required=["kind"]))
    with pytest.raises(PrepareError, match="a row has null in 'kind'"):
        run(job(tmp_path, *sinks, steps=spoil), spark)
    assert ids(tmp_path) == sorted(row["id"] for row in rows_below(on_hdfs.target)) == list(range(10))
    assert [path for path, _ in files_below(on_hdfs.target) if path.endswith(".staged")] == []
