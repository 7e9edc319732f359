"""The settings of a checkpoint, each on a running job."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

import tallystick as ts
from cancelled import cancel
from tallystick.errors import PrepareError, SinkError
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.records import Decision
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark

# workers cannot import a test module, but they need the sink below
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class FailsSoOften(Memory):
    """Refuses as many slices as there are files in a folder, and takes one away each time."""

    def __init__(self, table: str, folder: Path) -> None:
        super().__init__(table)
        self.folder = folder

    def write(self, transaction: Any, rows: Any) -> None:
        for left in sorted(self.folder.iterdir()):
            left.unlink()
            raise SinkError(f"refused for {left.name}")
        super().write(transaction, rows)


def failing(folder: Path, times: int) -> FailsSoOften:
    (folder / "failures").mkdir()
    for number in range(times):
        (folder / "failures" / str(number)).touch()
    sink = FailsSoOften(f"fails-{folder.name}", folder / "failures")
    sink.clear()
    return sink


def job(folder: Path, sink: ts.sinks.Sink, epochs: int = 3, restart: Any = None, **settings: Any) -> ts.Job:
    settings.setdefault("interval", "0s")
    return ts.Job(
        "settings",
        source=ts.sources.Collection([{"id": number} for number in range(10 * epochs)], per_epoch=10, partitions=1),
        sink=sink,
        checkpoint=ts.Checkpoint(folder / "checkpoint", **settings),
        restart=restart,
    )


def journal(folder: Path) -> Journal:
    return Journal(PosixStore(folder / "checkpoint" / "tallystick"))


def memory(folder: Path) -> Memory:
    sink = Memory(f"settings-{folder.name}")
    sink.clear()
    return sink


def test_the_least_pause_lies_between_two_epochs(spark: SparkSession, tmp_path: Path) -> None:
    ended: list[float] = []
    declared = job(tmp_path, memory(tmp_path), min_pause="600ms")
    declared.run(spark, available_now=True, on_finished=lambda *_: ended.append(time.time()))
    began = [record.facts["at"] for record in journal(tmp_path).records()]
    assert len(began) == 3
    # the journal's times are to the millisecond
    assert all(later - before >= 0.599 for before, later in zip(ended, began[1:], strict=False))


def test_what_an_epoch_did_after_its_decision_is_in_the_next_one(spark: SparkSession, tmp_path: Path) -> None:
    job(tmp_path, memory(tmp_path)).run(spark, available_now=True)
    first, second, third = (record.facts for record in journal(tmp_path).records())
    assert "before" not in first
    for facts, epoch, before in ((second, 0, first), (third, 1, second)):
        assert facts["before"]["epoch"] == epoch
        assert facts["before"]["total_s"] >= before["until_decision_s"]
        assert facts["before"]["commit_s"] >= 0


def test_so_many_failed_epochs_are_tolerated_and_no_more(spark: SparkSession, tmp_path: Path) -> None:
    sink = failing(tmp_path, times=2)
    job(tmp_path, sink, tolerable_failed=2).run(spark, available_now=True)
    assert sorted(row["id"] for row in sink.rows()) == list(range(30))
    aborted = [record.attempt.epoch for record in journal(tmp_path).records() if record.decision is Decision.ABORT]
    assert aborted == [0, 0]


def test_one_failed_epoch_too_many_is_a_failure_of_the_job(spark: SparkSession, tmp_path: Path) -> None:
    sink = failing(tmp_path, times=3)
    with pytest.raises(PrepareError, match="refused for 2"):
        job(tmp_path, sink, tolerable_failed=2).run(spark, available_now=True)
    assert sink.rows() == []


def test_what_is_tolerated_does_not_count_for_the_restart_strategy(spark: SparkSession, tmp_path: Path) -> None:
    sink = failing(tmp_path, times=2)
    restart = ts.FixedDelay(attempts=1, delay="1ms")
    job(tmp_path, sink, tolerable_failed=1, restart=restart).run(spark, available_now=True)
    assert sorted(row["id"] for row in sink.rows()) == list(range(30))


def test_an_epoch_that_takes_too_long_is_rolled_back_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    slow = Slow(f"slow-{tmp_path.name}", tmp_path / "marker")
    slow.clear()
    job(tmp_path, slow, epochs=1, timeout="2s", tolerable_failed=1).run(spark, available_now=True)
    assert sorted(row["id"] for row in slow.rows()) == list(range(10))
    [late, done] = journal(tmp_path).records()
    assert late.decision is Decision.ABORT
    assert "timeout of 2 s" in late.reason
    assert done.decision is Decision.COMMIT


class Slow(Memory):
    """Takes its time with the first slice that it gets."""

    def __init__(self, table: str, marker: Path) -> None:
        super().__init__(table)
        self.marker = marker

    def write(self, transaction: Any, rows: Any) -> None:
        if not self.marker.exists():
            self.marker.touch()
            time.sleep(30)
        super().write(transaction, rows)


def test_retention_is_how_many_epochs_spark_keeps(spark: SparkSession, tmp_path: Path) -> None:
    job(tmp_path, memory(tmp_path), epochs=8, retention=3).run(spark, available_now=True)
    kept = sorted(int(path.name) for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit())
    assert kept == [4, 5, 6, 7]  # the one that runs, and three before it
    assert spark.conf.get("spark.sql.streaming.minBatchesToRetain", None) is None


def test_a_cancelled_job_keeps_its_checkpoint_or_deletes_it(spark: SparkSession, tmp_path: Path) -> None:
    cancel(job(tmp_path, memory(tmp_path)), spark)
    assert (tmp_path / "checkpoint" / "tallystick" / "job.json").exists()
    cancel(job(tmp_path, memory(tmp_path), epochs=5, on_cancel="delete"), spark)
    assert not (tmp_path / "checkpoint").exists()


def test_a_job_that_came_to_its_end_or_failed_keeps_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PrepareError):
        job(tmp_path, failing(tmp_path, times=1), on_cancel="delete").run(spark)
    assert (tmp_path / "checkpoint" / "tallystick" / "job.json").exists()
    job(tmp_path, memory(tmp_path), on_cancel="delete").run(spark, available_now=True)
    assert (tmp_path / "checkpoint" / "tallystick" / "job.json").exists()
