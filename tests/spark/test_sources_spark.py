"""Sources in real queries: exact cuts, restart anywhere, replay of an epoch, files; and the session they run in."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from tallystick import sinks
from tallystick.errors import ConfigError
from tallystick.records import Attempt, Outcome
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.sources import Collection, Files
from tallystick.spark.session import ADAPTIVE, LOSSY, check_session

pytestmark = pytest.mark.spark

ROWS = [{"id": number, "app": f"app{number % 3}"} for number in range(50)]
PATIENCE_S = 60


class Seen:
    """What each epoch gave, by partition; an epoch that runs again is added, not replaced."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.epochs: dict[int, list[list[list[int]]]] = defaultdict(list)
        self.times: list[float] = []
        self.enough = threading.Event()
        self._stop_after = stop_after

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.epochs[epoch].append(frame.rdd.map(lambda row: int(row.id)).glom().collect())
        self.times.append(time.monotonic())
        if self._stop_after is not None and len(self.times) >= self._stop_after:
            self.enough.set()

    def ids(self) -> list[int]:
        return [n for epoch in sorted(self.epochs) for run in self.epochs[epoch] for part in run for n in part]


def run_to_end(frame: DataFrame, checkpoint: Path) -> Seen:
    seen = Seen()
    query = (
        frame.writeStream.foreachBatch(seen)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()
    return seen


def run_epochs(frame: DataFrame, checkpoint: Path, count: int) -> Seen:
    """Run until so many epochs are seen, then stop in the middle of everything."""
    seen = Seen(stop_after=count)
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(checkpoint)).start()
    try:
        assert seen.enough.wait(PATIENCE_S), query.exception()
    finally:
        query.stop()
    return seen


def forget_commit(checkpoint: Path, epoch: int) -> None:
    """What a crash just before the end of the epoch leaves behind."""
    (checkpoint / "commits" / str(epoch)).unlink()
    (checkpoint / "commits" / f".{epoch}.crc").unlink(missing_ok=True)


def test_cuts_are_exact_and_a_replay_gives_the_same_slices(spark: SparkSession, tmp_path: Path) -> None:
    source = Collection(ROWS, per_epoch=20)
    first = run_to_end(source.load(spark), tmp_path)
    halves = [
        [[*range(10)], [*range(10, 20)]],
        [[*range(20, 30)], [*range(30, 40)]],
        [[*range(40, 45)], [*range(45, 50)]],
    ]
    assert [first.epochs[epoch] for epoch in range(3)] == [[half] for half in halves]

    forget_commit(tmp_path, 2)
    again = run_to_end(source.load(spark), tmp_path)
    assert dict(again.epochs) == {2: [halves[2]]}


def test_a_restart_goes_on_where_the_last_epoch_was_committed(spark: SparkSession, tmp_path: Path) -> None:
    def row(offset: int) -> tuple[int, str]:
        return offset, "made"

    source = Collection(row, schema="id long, app string", length=60, per_epoch=10, per_second=50, name="made")
    first = run_epochs(source.load(spark), tmp_path, 3)
    rest = run_to_end(source.load(spark), tmp_path)
    # The stop may come between an epoch's end and its commit log entry: then exactly that epoch is run again.
    assert first.ids() == list(range(len(first.epochs) * 10))
    assert min(rest.epochs) in (len(first.epochs) - 1, len(first.epochs))
    assert {epoch: runs[0] for epoch, runs in (rest.epochs | first.epochs).items()} == {
        epoch: [[*range(epoch * 10, epoch * 10 + 5)], [*range(epoch * 10 + 5, epoch * 10 + 10)]] for epoch in range(6)
    }
    for epoch in first.epochs.keys() & rest.epochs.keys():
        assert first.epochs[epoch] == rest.epochs[epoch]


def test_rows_added_before_a_restart_are_read_and_only_they(spark: SparkSession, tmp_path: Path) -> None:
    assert run_to_end(Collection(ROWS[:30]).load(spark), tmp_path).ids() == list(range(30))
    assert run_to_end(Collection(ROWS).load(spark), tmp_path).ids() == list(range(30, 50))
    with pytest.raises(StreamingQueryException, match="has read 50 rows, but the collection holds 30"):
        run_to_end(Collection(ROWS[:30]).load(spark), tmp_path)


def test_per_second_releases_at_about_that_rate(spark: SparkSession, tmp_path: Path) -> None:
    source = Collection(lambda offset: (offset,), schema="id long", length=10_000, per_second=100, per_epoch=50)
    frame = source.load(spark)
    began_s = time.monotonic()
    seen = run_epochs(frame, tmp_path, 6)
    # The first rows are due at once, each further 50 half a second later; the rest is Spark's own speed.
    assert 2.5 <= seen.times[5] - began_s < PATIENCE_S
    assert seen.times[5] - seen.times[0] < 2.5 + 5
    assert seen.ids()[:300] == list(range(300))


def test_two_collections_of_one_name_do_not_mix(spark: SparkSession, tmp_path: Path) -> None:
    low, high = Collection(ROWS[:5]).load(spark), Collection(ROWS[5:8]).load(spark)
    assert sorted(run_to_end(low.unionByName(high), tmp_path).ids()) == list(range(8))


def test_words_that_are_no_schema_are_refused_before_the_start(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="not a schema: 'id lung'"):
        Collection([], schema="id lung").load(spark)
    with pytest.raises(ConfigError, match=r"row 0: id = 'x' is no int64"):
        Collection([("x",)], schema="id long").load(spark)


def test_files_appear_once_and_staged_ones_never(spark: SparkSession, tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for name, line in {
        "a.csv": "1,a",
        "b.csv": "2,b",
        "c.csv": "3,c",
        ".hidden.csv": "90,x",
        "_temporary.csv": "91,x",
        ".tallystick/staged/d.csv": "92,x",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(line + "\n")
    source = Files(folder, "csv", "id long, app string", max_files_per_epoch=2)
    first = run_to_end(source.load(spark), checkpoint)
    assert sorted(first.ids()) == [1, 2, 3]
    assert len(first.epochs) == 2

    (folder / ".tallystick/staged/d.csv").rename(folder / "d.csv")
    assert run_to_end(source.load(spark), checkpoint).ids() == [92]
    assert source.describe_offset((checkpoint / "offsets" / "2").read_text().splitlines()[-1]) == "log 2"


def test_what_our_own_sink_has_only_prepared_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    sink = sinks.Files(tmp_path / "out")
    sink.check(JobContext())
    prepared = []
    for slice_number in (0, 1):
        context = SliceContext("job", Attempt(0, 1), "files", slice_number, slice_number)
        transaction = sink.begin_transaction(context)
        sink.write(transaction, pa.RecordBatch.from_pylist([{"id": slice_number}]))
        prepared.append(sink.pre_commit(transaction))
    source = Files(tmp_path / "out", "parquet", "id long")
    assert run_to_end(source.load(spark), tmp_path / "checkpoint").ids() == []
    assert sink.commit(prepared[1]) is Outcome.COMMITTED
    assert run_to_end(source.load(spark), tmp_path / "checkpoint").ids() == [1]
    assert sink.commit(prepared[0]) is Outcome.COMMITTED
    assert run_to_end(source.load(spark), tmp_path / "checkpoint").ids() == [0]


def test_staged_files_stay_hidden_in_a_recursive_listing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in/.tallystick/staged").mkdir(parents=True)
    (tmp_path / "in/deep/er").mkdir(parents=True)
    (tmp_path / "in/.tallystick/staged/a.json").write_text('{"id": 1}\n')
    (tmp_path / "in/deep/er/b.json").write_text('{"id": 2}\n')
    source = Files(tmp_path / "in", "json", "id long", options={"recursiveFileLookup": "true"})
    assert run_to_end(source.load(spark), tmp_path / "checkpoint").ids() == [2]


def test_a_line_that_cannot_be_parsed_stops_the_job(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("1\nnot a number\n")
    with pytest.raises(StreamingQueryException, match="MALFORMED_RECORD"):
        run_to_end(Files(tmp_path / "in", "csv", "id long").load(spark), tmp_path / "checkpoint")


def test_a_line_that_cannot_be_parsed_is_kept_in_a_column_if_declared(spark: SparkSession, tmp_path: Path) -> None:
    """Without the column its text would be gone; with it, such rows can have an output of their own."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\nnot a row\n')
    permissive = {"mode": "PERMISSIVE"}
    with pytest.raises(ConfigError, match="add the column _corrupt_record string to the schema"):
        Files(tmp_path / "in", "json", "id long", options=permissive).load(spark)
    rows = Files(tmp_path / "in", "json", "id long, _corrupt_record string", options=permissive).load(spark)
    outputs = [
        ts.Output(ts.sinks.Files(tmp_path / "good", format="json"), "good", "_corrupt_record IS NULL", ["id"]),
        ts.Output(ts.sinks.Files(tmp_path / "bad", format="json"), "bad", "_corrupt_record IS NOT NULL"),
    ]
    writer = ts.write_stream(rows, outputs, checkpoint=tmp_path / "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = {name: [path.read_text() for path in (tmp_path / name).glob("*.json")] for name in ("good", "bad")}
    assert found["good"] == ['{"id":1}\n']
    [bad] = found["bad"]
    assert "not a row" in bad


def test_a_folder_that_is_not_there_is_refused_before_the_start(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Files(tmp_path / "nowhere", "text").load(spark)


def test_the_session_is_what_epochs_need(spark: SparkSession) -> None:
    assert check_session(spark) == ()
    spark.conf.set(ADAPTIVE, "true")
    (finding,) = check_session(spark)
    assert "is now off" in finding
    assert spark.conf.get(ADAPTIVE) == "false"
    assert check_session(spark) == ()


def test_workers_import_the_compiled_pyspark(spark: SparkSession) -> None:
    def places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"place": [pyspark.__file__]})

    found = {row.place for row in spark.range(2).mapInArrow(places, "place string").collect()}
    assert found == {pyspark.__file__}


@pytest.mark.parametrize("setting", LOSSY)
def test_a_session_that_drops_rows_is_refused(spark: SparkSession, setting: str) -> None:
    spark.conf.set(setting, "true")
    try:
        with pytest.raises(ConfigError, match="rows of files would be lost"):
            check_session(spark)
    finally:
        spark.conf.unset(setting)


def test_spark_says_nothing_when_all_is_well(tmp_path: Path) -> None:
    program = (
        "from tallystick.spark.session import session; session('quiet', 'local[1]', fast_start=True).range(3).count()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    # The JVM itself, not Spark, tells of its vector module.
    said = [line for line in done.stderr.splitlines() if "jdk.incubator.vector" not in line]
    assert (said, done.stdout) == ([], "")
