"""Epochs on a real Spark: settle, verify, rewrite, conflict, several sinks, the three modes.

Deleting ``commits/N`` from a checkpoint makes Spark run epoch N again: a crash between the last commit and Spark's own
log, without a crash.
"""

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.errors import (
    CheckpointError,
    CheckpointInUseError,
    ConflictError,
    ForeignCheckpointError,
    PrepareError,
    SinkError,
)
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.prover import tally
from tallystick.records import Decision, Resolution
from tallystick.sinks.memory import Memory

pytestmark = pytest.mark.spark

ROWS = [{"id": number, "app": f"app{number % 3}"} for number in range(40)]


def numbers(count: int = 40, per_epoch: int = 10) -> ts.sources.Collection:
    return ts.sources.Collection(ROWS[:count], per_epoch=per_epoch, partitions=2)


def job(folder: Path, steps: Callable[[DataFrame], DataFrame] | None = None, **settings: Any) -> ts.Job:
    settings.setdefault("sink", ts.sinks.Files(folder / "out"))
    settings.setdefault("source", numbers())
    return ts.Job("numbers", steps=steps, checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"), **settings)


def run(declared: ts.Job, spark: SparkSession) -> list[str]:
    """Run to the end; returns how each epoch ended."""
    endings: list[str] = []
    declared.run(spark, available_now=True, on_finished=lambda _, finished: endings.append(finished.how))
    return endings


def ids(folder: Path) -> list[int]:
    paths = sorted((folder / "out").glob("*.parquet"))
    return [value for path in paths for value in pq.ParquetFile(path).read()["id"].to_pylist()]


def repeat_epoch(folder: Path, epoch: int) -> None:
    for path in (folder / "checkpoint" / "commits").glob(f"*{epoch}*"):
        path.unlink()


def expire(folder: Path, epoch: int, slices: tuple[int, ...] = (0, 1)) -> None:
    """As if the staged files had been swept away before they were published."""
    for number in slices:
        for path in (folder / "out").glob(f"part-{epoch:012d}-{number:06d}-*"):
            path.unlink()
        for path in (folder / "out" / ".tallystick").glob(f"*/{epoch:012d}.*/{epoch:012d}.*-{number:06d}-*"):
            shutil.rmtree(path)


def journal(folder: Path) -> Journal:
    return Journal(PosixStore(folder / "checkpoint" / "tallystick"))


def test_rows_arrive_once_and_an_epoch_that_spark_repeats_is_verified(spark: SparkSession, tmp_path: Path) -> None:
    assert run(job(tmp_path), spark) == ["written"] * 4
    repeat_epoch(tmp_path, 3)
    assert run(job(tmp_path), spark) == ["verified"]
    assert tally(range(40), ids(tmp_path)).exact
    assert not list(journal(tmp_path).notes())


def test_a_job_that_is_not_deterministic_is_reported_when_an_epoch_repeats(spark: SparkSession, tmp_path: Path) -> None:
    def steps(rows: DataFrame) -> DataFrame:
        return rows.withColumn("dice", F.expr("uuid()"))

    run(job(tmp_path, steps), spark)
    repeat_epoch(tmp_path, 3)
    assert run(job(tmp_path, steps), spark) == ["verified"]
    assert [note.kind for note in journal(tmp_path).notes()] == ["not deterministic"]
    assert tally(range(40), ids(tmp_path)).exact


@pytest.mark.parametrize("slices", [(0,), (0, 1)], ids=["one slice", "all slices"])
def test_exactly_the_expired_slices_are_written_again(
    spark: SparkSession, tmp_path: Path, slices: tuple[int, ...]
) -> None:
    run(job(tmp_path), spark)
    kept = set((tmp_path / "out").glob("*.parquet"))
    repeat_epoch(tmp_path, 3)
    expire(tmp_path, 3, slices)
    assert run(job(tmp_path), spark) == ["rewritten"]
    assert tally(range(40), ids(tmp_path)).exact
    now = set((tmp_path / "out").glob("*.parquet"))
    assert len(now - kept) == len(slices)
    assert len(kept - now) == len(slices)


def test_expired_slices_that_the_replay_does_not_give_again_need_a_person(spark: SparkSession, tmp_path: Path) -> None:
    def steps(rows: DataFrame) -> DataFrame:
        return rows.withColumn("dice", F.expr("uuid()"))

    run(job(tmp_path, steps), spark)
    repeat_epoch(tmp_path, 3)
    expire(tmp_path, 3, (0,))
    with pytest.raises(ConflictError, match=r"epoch 3.*files/0.*transactions resolve"):
        run(job(tmp_path, steps), spark)
    assert len(ids(tmp_path)) == 35, "nothing may be published while a person has not chosen"
    journal(tmp_path).resolve(3, Resolution.REWRITE)
    assert run(job(tmp_path, steps), spark) == ["rewritten"]
    assert tally(range(40), ids(tmp_path)).exact


def test_a_loss_that_a_person_accepts_is_on_record(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path), spark)
    repeat_epoch(tmp_path, 3)
    expire(tmp_path, 3, (0,))
    journal(tmp_path).resolve(3, Resolution.ABANDON)
    assert run(job(tmp_path), spark) == ["verified"]
    assert [note.kind for note in journal(tmp_path).notes()] == ["abandoned"]
    assert len(ids(tmp_path)) == 35


def test_several_sinks_get_their_rows_in_one_pass(spark: SparkSession, tmp_path: Path) -> None:
    memory = Memory("several")
    memory.clear()
    outputs = [
        ts.Output(ts.sinks.Files(tmp_path / "out"), "all"),
        ts.Output(memory, "even", where="id % 2 = 0", select=["id", "upper(app) as app"]),
        ts.Output(ts.sinks.Files(tmp_path / "json", format="json"), "json", select=["id * 10 as tenfold"]),
    ]
    run(job(tmp_path, sink=outputs), spark)
    assert tally(range(40), ids(tmp_path)).exact
    assert tally(range(0, 40, 2), [row["id"] for row in memory.rows()]).exact
    assert {row["app"] for row in memory.rows()} == {"APP0", "APP1", "APP2"}
    lines = [line for path in (tmp_path / "json").glob("*.json") for line in path.read_text().splitlines()]
    assert '{"tenfold":390}' in lines
    assert len(lines) == 40
    votes = {vote.sink for record in journal(tmp_path).records() for vote in record.votes}
    assert votes == {"all", "even", "json"}


def test_at_least_once_does_an_unfinished_epoch_again(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path, guarantee="at-least-once"), spark)
    repeat_epoch(tmp_path, 3)
    assert run(job(tmp_path, guarantee="at-least-once"), spark) == ["written"]
    counted = tally(range(40), ids(tmp_path))
    assert (counted.lost, counted.repeated) == (0, 10)


def test_at_most_once_never_does_an_epoch_again(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path, guarantee="at-most-once"), spark)
    repeat_epoch(tmp_path, 3)
    expire(tmp_path, 3)
    assert run(job(tmp_path, guarantee="at-most-once"), spark) == ["skipped"]
    counted = tally(range(40), ids(tmp_path))
    assert (counted.lost, counted.repeated) == (10, 0)


@pytest.mark.parametrize(("mode", "rows"), [("update", 12), ("complete", 12)])
def test_counts_in_update_and_complete_mode(spark: SparkSession, tmp_path: Path, mode: str, rows: int) -> None:
    memory = Memory(f"counts-{mode}")
    memory.clear()
    declared = job(tmp_path, lambda rows: rows.groupBy("app").count(), sink=memory, output_mode=mode)
    run(declared, spark)
    assert len(memory.rows()) == rows
    final = {row["app"]: row["count"] for row in memory.rows()}
    assert final == {"app0": 14, "app1": 13, "app2": 13}


def test_a_processing_time_trigger_goes_on_until_it_is_stopped(spark: SparkSession, tmp_path: Path) -> None:
    rows = numbers().load(spark)
    writer = ts.write_stream(rows, ts.sinks.Files(tmp_path / "out"), checkpoint=tmp_path / "checkpoint")
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert tally(range(40), ids(tmp_path)).exact


# workers cannot import a test module, but they need the sink below
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Refusing(Memory):
    """Refuses rows while a file exists, from the middle of a slice."""

    def __init__(self, table: str, marker: Path) -> None:
        super().__init__(table)
        self.marker = marker

    def write(self, transaction: Any, rows: Any) -> None:
        if self.marker.exists():
            raise SinkError("the target is full: 0 bytes free")
        super().write(transaction, rows)


def test_a_failed_prepare_aborts_the_epoch_and_goes_on_when_the_cause_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    marker = tmp_path / "full"
    marker.touch()
    refusing = Refusing("refusing", marker)
    refusing.clear()
    outputs = [ts.sinks.Files(tmp_path / "out"), refusing]
    with pytest.raises(PrepareError, match="epoch 0 could not be prepared: the target is full: 0 bytes free"):
        run(job(tmp_path, sink=outputs), spark)
    assert not ids(tmp_path), "one sink's failure publishes nothing to the other"
    [record] = journal(tmp_path).records()
    assert record.decision is Decision.ABORT
    assert not list((tmp_path / "out").rglob("*.staged"))
    marker.unlink()
    assert run(job(tmp_path, sink=outputs), spark) == ["written"] * 4
    assert tally(range(40), ids(tmp_path)).exact
    assert tally(range(40), [row["id"] for row in refusing.rows()]).exact


def test_a_restart_strategy_tries_again(spark: SparkSession, tmp_path: Path) -> None:
    marker = tmp_path / "full"
    marker.touch()
    refusing = Refusing("restarted", marker)
    refusing.clear()
    declared = job(tmp_path, sink=refusing, restart=ts.FixedDelay(attempts=2, delay="10ms"))
    with pytest.raises(PrepareError):
        run(declared, spark)
    assert journal(tmp_path).generations() == [1, 2, 3]


class JournalGoesAway(Memory):
    """Fails once, and takes a folder of the journal along."""

    def __init__(self, table: str, folder: Path) -> None:
        super().__init__(table)
        self.folder = folder

    def write(self, transaction: Any, rows: Any) -> None:
        away = self.folder.with_name("away")
        if not away.exists():
            self.folder.rename(away)
            self.folder.touch()
            raise SinkError("the disk is gone")
        super().write(transaction, rows)


def test_a_journal_that_cannot_be_read_for_a_while_is_waited_for_by_a_restart(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoint" / "tallystick" / "generations"
    sink = JournalGoesAway("away", folder)
    sink.clear()
    declared = job(tmp_path, sink=sink, restart=ts.FixedDelay(attempts=100, delay="100ms"))

    def put_back() -> None:
        while f"job numbers failed ({folder}" not in caplog.text:
            time.sleep(0.02)
        folder.unlink()
        shutil.copytree(folder.with_name("away"), folder)

    repair = threading.Thread(target=put_back, daemon=True)
    repair.start()
    run(declared, spark)
    assert tally(range(40), [row["id"] for row in sink.rows()]).exact
    assert f"job numbers failed ({folder}" in caplog.text


STOPPED_AMID_AN_EPOCH = """
import sys, time
from pathlib import Path
import tallystick as ts
from tallystick.sinks.memory import Memory

class Endless(Memory):
    def write(self, transaction, rows):
        Path(FOLDER, "begun").touch()
        time.sleep(60)

FOLDER = sys.argv[1]
spark = ts.session("stopped", "local[1]", fast_start=True)
rows = ts.sources.Collection([{"id": 1}], schema="id long").load(spark)
query = ts.write_stream(rows, Endless("endless"), checkpoint=FOLDER + "/checkpoint").start()
while not Path(FOLDER, "begun").exists():
    time.sleep(0.02)
query.stop()
print(query.exception())
"""


def test_a_query_that_is_stopped_amid_an_epoch_has_not_failed(tmp_path: Path) -> None:
    """In a process of its own: what Spark's stream thread dies of is only to be seen in what the JVM prints."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AMID_AN_EPOCH, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert "StackOverflowError" not in done.stderr


def test_a_checkpoint_of_another_job_is_refused_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path), spark)
    other = ts.Job("other", source=numbers(), sink=ts.sinks.Files(tmp_path / "out"), checkpoint=tmp_path / "checkpoint")
    with pytest.raises(ForeignCheckpointError, match=r"belongs to the job 'numbers', not to 'other'"):
        other.run(spark, available_now=True)
    assert journal(tmp_path).generations() == [1]


def test_two_living_drivers_on_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    query = job(tmp_path).start(spark)
    try:
        with pytest.raises(CheckpointInUseError, match="another living driver"):
            job(tmp_path).start(spark)
    finally:
        query.stop()


def test_offsets_that_were_changed_behind_a_decision_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path), spark)
    repeat_epoch(tmp_path, 3)
    log = tmp_path / "checkpoint" / "offsets" / "3"
    log.write_text(log.read_text().replace('"offset": 40', '"offset": 39').replace('"offset":40', '"offset":39'))
    log.with_name(".3.crc").unlink(missing_ok=True)
    with pytest.raises(ForeignCheckpointError, match="was decided for the offsets"):
        run(job(tmp_path), spark)


def test_a_decided_sink_that_is_not_declared_any_more(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path), spark)
    repeat_epoch(tmp_path, 3)
    renamed = ts.Output(ts.sinks.Files(tmp_path / "out"), "renamed")
    with pytest.raises(CheckpointError, match="sink 'files', which this job does not have"):
        run(job(tmp_path, sink=renamed), spark)


def test_an_empty_epoch_opens_no_transaction(spark: SparkSession, tmp_path: Path) -> None:
    run(job(tmp_path, lambda rows: rows.where("id < 0")), spark)
    records = journal(tmp_path).records()
    assert len(records) == 4
    assert all(vote.committable is None for record in records for vote in record.votes)
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_job_that_starts_again_at_once_waits_for_its_own_lock(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a query's end may be quicker than the thread that lets go of its checkpoint."""
    unlock = PosixStore.unlock

    def late(store: PosixStore) -> None:
        time.sleep(1)
        unlock(store)

    monkeypatch.setattr(PosixStore, "unlock", late)
    run(job(tmp_path, source=numbers(20)), spark)
    run(job(tmp_path, source=numbers(40)), spark)
    assert tally(range(40), ids(tmp_path)).exact
