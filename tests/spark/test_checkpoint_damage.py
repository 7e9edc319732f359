"""A checkpoint that is torn, partly deleted, rewound, or of other steps: an error with a way out, never a new start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.errors import CheckpointError, ForeignCheckpointError, PrepareError
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark


def counting(folder: Path, steps: Callable[[DataFrame], DataFrame] | None = None, rows: int = 20) -> ts.Job:
    return ts.Job(
        "damage",
        source=ts.sources.Collection(
            [{"id": number, "app": f"app{number % 3}"} for number in range(rows)], per_epoch=10
        ),
        steps=steps or (lambda rows: rows.groupBy("app").count()),
        output_mode="update",
        sink=Memory(f"damage-{folder.name}"),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


@pytest.fixture
def checkpoint(spark: SparkSession, tmp_path: Path) -> Path:
    """Of a job that has counted two epochs."""
    Memory(f"damage-{tmp_path.name}").clear()
    counting(tmp_path).run(spark, available_now=True)
    return tmp_path / "checkpoint"


def delete(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def unload_state(spark: SparkSession) -> None:
    """As in a new process: what Spark has in memory would hide what is gone from the disk."""
    session: Any = spark
    stores = getattr(session._jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")
    getattr(stores, "MODULE$").unloadAll()


def fails(
    folder: Path, spark: SparkSession, error: type[Exception], words: str, steps: Callable[..., DataFrame] | None = None
) -> None:
    """The next run fails like this, and publishes nothing."""
    sink = Memory(f"damage-{folder.name}")
    before = len(sink.rows())
    assert before == 6
    with pytest.raises(error, match=words):
        counting(folder, steps, rows=30).run(spark, available_now=True)
    assert len(sink.rows()) == before


def test_sparks_logs_are_gone(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    delete(checkpoint / "offsets", checkpoint / "commits")
    fails(
        tmp_path, spark, CheckpointError, r"journal knows of epoch 1, but .*offsets is empty.*restore the whole folder"
    )


def test_sparks_logs_were_rewound(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    delete(checkpoint / "offsets" / "1", checkpoint / "commits" / "1")
    fails(tmp_path, spark, CheckpointError, r"journal knows of epoch 1, but .*offsets ends at epoch 0")


def test_the_journal_is_gone(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    delete(checkpoint / "tallystick")
    fails(tmp_path, spark, CheckpointError, r"belongs to the job 'damage', but its journal, the folder .* is gone")


def test_the_journal_is_that_of_another_checkpoint(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    counting(other).run(spark, available_now=True)
    delete(checkpoint / "tallystick")
    shutil.copytree(other / "checkpoint" / "tallystick", checkpoint / "tallystick")
    fails(tmp_path, spark, ForeignCheckpointError, "is the journal of another checkpoint")


def test_state_files_are_gone(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    delete(checkpoint / "state")
    fails(tmp_path, spark, CheckpointError, "the state in the checkpoint is not whole: .*restore the checkpoint")


def test_some_state_files_are_gone(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    unload_state(spark)
    delete(*(checkpoint / "state" / "0").glob("*/1.changelog"))
    fails(tmp_path, spark, PrepareError, "the state in the checkpoint is not whole: .*restore the checkpoint")


def test_state_of_other_steps(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    def by_number(rows: DataFrame) -> DataFrame:
        return rows.groupBy((F.col("id") % 3).alias("app")).agg(F.sum("id").alias("count"))

    words = "the state in the checkpoint has another schema than these steps need.*start with a new checkpoint"
    fails(tmp_path, spark, CheckpointError, words, by_number)


def test_a_torn_offset_log(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    (checkpoint / "offsets" / "1").write_text("v1\n")
    (checkpoint / "offsets" / ".1.crc").unlink(missing_ok=True)
    (checkpoint / "commits" / "1").unlink()
    fails(tmp_path, spark, CheckpointError, r"is no offset log of Spark|is torn")


def test_the_log_of_a_file_source_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"id": 1}\n')
    sink = Memory(f"files-{tmp_path.name}")
    sink.clear()
    job = ts.Job(
        "files",
        source=ts.sources.Files(tmp_path / "in", format="json", schema="id long"),
        sink=sink,
        checkpoint=ts.Checkpoint(tmp_path / "checkpoint", interval="0s"),
    )
    job.run(spark, available_now=True)
    delete(tmp_path / "checkpoint" / "sources")
    with pytest.raises(CheckpointError, match=r"read up to entry 0 of its file source, but .*sources/0 ends at -1"):
        job.run(spark, available_now=True)
    assert [row["id"] for row in sink.rows()] == [1]


def test_a_plain_checkpoint_of_spark_may_be_taken_over(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    """A job that so far wrote with Spark's own writer: no mark, no journal."""
    delete(checkpoint / "tallystick", checkpoint / "tallystick.json")
    counting(tmp_path, rows=30).run(spark, available_now=True)
    final = {row["app"]: row["count"] for row in Memory(f"damage-{tmp_path.name}").rows()}
    assert final == {"app0": 10, "app1": 10, "app2": 10}
