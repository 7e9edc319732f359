"""What goes wrong in real life, on a real Spark.

The epoch fails with clear words, nothing is half published, and the job goes on when the cause is gone.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.errors import ConfigError, PrepareError, SinkError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.prover import tally

pytestmark = pytest.mark.spark

ROWS = 30


def job(folder: Path, sink: ts.sinks.Files, steps: Any = None, source: ts.sources.Source | None = None) -> ts.Job:
    source = source or ts.sources.Collection([{"id": n} for n in range(ROWS)], per_epoch=10)
    return ts.Job(
        "bad-input",
        source=source,
        steps=steps,
        sink=sink,
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s", commit_patience="100ms"),
    )


def ids(out: Path) -> list[int]:
    return [value for path in out.glob("*.parquet") for value in pq.ParquetFile(path).read()["id"].to_pylist()]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, for the superuser only."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser can mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def padded(rows: DataFrame) -> DataFrame:
    """Rows that take their space: 100 kB each that no compression makes smaller."""
    noise = F.transform(F.sequence(F.lit(1), F.lit(1600)), lambda n: F.sha2(F.concat(F.col("id"), n), 256))
    return rows.withColumn("noise", F.array_join(noise, ""))


def test_a_full_disk_fails_the_epoch_and_the_job_goes_on_when_there_is_room(
    spark: SparkSession, tmp_path: Path, small_disk: Path
) -> None:
    out, ballast = small_disk / "out", small_disk / "ballast"
    ballast.write_bytes(b"\0" * (3 << 19))
    declared = job(tmp_path, ts.sinks.Files(out, compression="none"), padded)
    with pytest.raises(PrepareError, match=r"epoch 0 could not be prepared: .*No space left"):
        declared.run(spark, available_now=True)
    assert not ids(out)
    ballast.unlink()
    job(tmp_path, ts.sinks.Files(out)).run(spark, available_now=True)
    assert tally(range(ROWS), ids(out)).exact


def test_a_target_that_is_deleted_while_the_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = ts.sources.Collection([{"id": n} for n in range(ROWS)], per_epoch=10)
    finished: list[int] = []

    def delete_once(attempt: Any, _: Any) -> None:
        finished.append(attempt.epoch)
        if len(finished) == 1:
            shutil.rmtree(out)

    with pytest.raises(PrepareError, match="epoch 1 could not be prepared"):
        job(tmp_path, ts.sinks.Files(out), source=source).run(spark, available_now=True, on_finished=delete_once)
    job(tmp_path, ts.sinks.Files(out), source=source).run(spark, available_now=True)
    assert tally(range(10, ROWS), ids(out)).exact, "what was deleted stays deleted; nothing else is lost or repeated"


def test_a_target_that_cannot_be_written_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("a file where a folder should be")
    with pytest.raises(SinkError, match="is a file, needed a folder"):
        job(tmp_path, ts.sinks.Files(tmp_path / "out")).run(spark, available_now=True)
    assert not (tmp_path / "checkpoint").exists()


def test_nested_columns_in_csv_are_refused_when_the_job_is_built(spark: SparkSession, tmp_path: Path) -> None:
    declared = job(
        tmp_path, ts.sinks.Files(tmp_path / "out", format="csv"), lambda rows: rows.withColumn("list", F.array("id"))
    )
    with pytest.raises(ConfigError, match=r"column 'list' has the type array<bigint>.*to_json"):
        declared.run(spark, available_now=True)
    assert not (tmp_path / "checkpoint").exists()


def test_a_null_in_a_required_column_fails_the_epoch_by_name(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    nulls = job(
        tmp_path,
        ts.sinks.Files(out, required=["id"]),
        lambda rows: rows.withColumn("id", F.when(F.col("id") != 15, F.col("id"))),
    )
    with pytest.raises(PrepareError, match=r"epoch 1 could not be prepared: .*'?id'?"):
        nulls.run(spark, available_now=True)
    assert tally(range(10), ids(out)).exact
    job(tmp_path, ts.sinks.Files(out, required=["id"])).run(spark, available_now=True)
    assert tally(range(ROWS), ids(out)).exact


def test_a_clock_that_jumps_back_does_no_harm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = iter(range(10_000))
    real = time.time
    monkeypatch.setattr("tallystick.spark.coordinator.time.time", lambda: real() - 3600 * next(jumps))
    job(tmp_path, ts.sinks.Files(tmp_path / "out")).run(spark, available_now=True)
    assert tally(range(ROWS), ids(tmp_path / "out")).exact
    records = Journal(PosixStore(tmp_path / "checkpoint" / "tallystick")).records()
    starts = [record.facts["at"] for record in records]
    assert starts == sorted(starts, reverse=True), "the clock did jump back"
    assert all(record.facts["until_decision_s"] > 0 for record in records)


def test_an_epoch_that_takes_too_long_is_cancelled_and_rolled_back(spark: SparkSession, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def steps(rows: DataFrame) -> DataFrame:
        def wait(batches: Any) -> Any:
            deadline = time.monotonic() + 60
            for batch in batches:
                while 10 in batch.column(0).to_pylist() and not gate.exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                yield batch

        return rows.mapInArrow(wait, "id long")

    def declared(timeout: str) -> ts.Job:
        return ts.Job(
            "slow",
            source=ts.sources.Collection([{"id": n} for n in range(ROWS)], per_epoch=10),
            steps=steps,
            sink=ts.sinks.Files(tmp_path / "out"),
            checkpoint=ts.Checkpoint(tmp_path / "checkpoint", interval="0s", timeout=timeout),
        )

    with pytest.raises(PrepareError, match=r"epoch \d was cancelled: .* timeout of 2 s"):
        declared("2s").run(spark, available_now=True)
    assert tally(range(len(ids(tmp_path / "out"))), ids(tmp_path / "out")).exact
    gate.touch()
    declared("10m").run(spark, available_now=True)
    assert tally(range(ROWS), ids(tmp_path / "out")).exact
