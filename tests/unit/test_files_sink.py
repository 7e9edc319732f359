"""The file sink on real file systems: commits by renaming, rolling, partitions, plain readers, disks that fail."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tallystick import sinks
from tallystick.errors import ConfigError, RowRefusedError, SinkError
from tallystick.records import Json, Outcome
from tallystick.sinks import Files, SliceContext, TransactionState
from tallystick.testing.sinks import JOB, context


def rows(start: int, count: int, kinds: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    columns = {"id": pa.array(numbers, pa.int64())}
    return pa.RecordBatch.from_pydict(columns | ({"kind": [f"k{n % kinds}" for n in numbers]} if kinds else {}))


def made(path: Path, **settings: Any) -> Files:
    sink = Files(path, **settings)
    sink.check()
    return sink


def prepare(sink: Files, *batches: pa.RecordBatch, where: SliceContext | None = None) -> Json:
    transaction = sink.begin_transaction(where or context())
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def published(path: Path) -> list[int]:
    return sorted(ds.dataset(path, format="parquet").to_table().to_pydict().get("id", []))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"format": "avro"}, "unknown file format 'avro': needed one of csv, json, orc, parquet, text"),
        ({"compression": "zip"}, "parquet files cannot be compressed with 'zip': needed one of none, snappy"),
        ({"format": "json", "compression": "snappy"}, "json files cannot be compressed with 'snappy'"),
        ({"partition_by": "day"}, r"partition_by needs a list of column names such as \['day'\], found 'day'"),
        ({"partition_by": ["a", "a"]}, "partition_by names a column twice"),
        ({"required": [1]}, "required needs a list"),
        ({"roll_bytes": 0}, "roll_bytes needs a number of bytes above 0.* found 0"),
        ({"roll_bytes": True}, "roll_bytes .* found True"),
        ({"row_group_bytes": "1MB"}, "row_group_bytes .* found '1MB'"),
        ({"roll_age": 1.5}, "not a duration: 1.5 of type float"),
        ({"roll_age": "0s"}, "roll_age needs a duration above zero"),
        ({"header": True}, "only csv files have a header"),
        ({"format": "csv", "options": {"lineSep": "x"}}, "csv files have no option lineSep: needed one of"),
        ({"options": {"a": "b"}}, "parquet files have no option a: they take none"),
        ({"path": ""}, "is empty"),
        ({"path": "s3a://bucket/x"}, "found 's3a://bucket/x'"),
        ({"path": "file://other/x"}, "names the host 'other'"),
    ],
)
def test_wrong_settings_are_refused_when_declared(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Files(**{"path": "x", **settings})


def test_paths_are_absolute_and_may_be_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Files("out").path == tmp_path / "out"
    assert Files("file:///data/a%20b").path == Path("/data/a b")
    assert Files(tmp_path).target == f"file:{tmp_path}"


def test_exports_are_sorted() -> None:
    assert sinks.__all__ == sorted(sinks.__all__)


def test_names_sort_by_epoch_and_keep_jobs_and_sinks_apart(tmp_path: Path) -> None:
    sink = made(tmp_path)
    first = context(epoch=9)
    other = SliceContext(JOB, context(epoch=10).attempt, "another sink", 0, 7)
    for where in (first, other, context(epoch=10, job="other job")):
        assert sink.commit(prepare(sink, rows(0, 1), where=where)) is Outcome.COMMITTED
    names = sorted(file.name for file in tmp_path.glob("*.parquet"))
    assert [name.split("-")[1] for name in names] == ["000000000009", "000000000010", "000000000010"]
    assert all(re.fullmatch(r"part-\d{12}-\d{6}-\d{7}-\d{9}-\d{4}-[0-9a-f]{10}\.parquet", name) for name in names)


def test_what_is_staged_matches_no_readers_pattern(tmp_path: Path) -> None:
    for format_ in ("parquet", "json", "csv", "orc", "text"):
        sink = made(tmp_path / format_, format=format_)
        prepare(sink, pa.RecordBatch.from_pydict({"value": ["x"]}))
        extensions = {".parquet", ".json", ".csv", ".orc", ".txt"}
        assert {file.suffix for file in sink.path.rglob("*") if file.is_file()} == {".staged", ""}
        assert not [file for file in sink.path.rglob("*") if file.suffix in extensions]


def test_plain_tools_read_while_another_transaction_is_prepared(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    assert sink.commit(prepare(sink, rows(0, 10, kinds=3))) is Outcome.COMMITTED
    prepare(sink, rows(100, 10, kinds=3), where=context(epoch=1))
    half = sink.begin_transaction(context(epoch=2))
    sink.write(half, rows(200, 10, kinds=3))
    pattern = f"{tmp_path}/**/*.parquet"
    query = f"select id, kind from read_parquet('{pattern}', hive_partitioning=true) order by id"
    by_duckdb = duckdb.execute(query).fetchall()
    by_pandas = pd.read_parquet(tmp_path).sort_values("id")
    by_arrow = ds.dataset(tmp_path, partitioning="hive").to_table().sort_by("id")
    expected = [(n, f"k{n % 3}") for n in range(10)]
    assert by_duckdb == expected
    assert list(zip(by_pandas["id"], by_pandas["kind"], strict=True)) == expected
    assert list(zip(*by_arrow.select(["id", "kind"]).to_pydict().values(), strict=True)) == expected
    sink.rollback(half)


def test_a_file_taken_away_by_a_consumer_is_not_published_again(tmp_path: Path) -> None:
    sink = made(tmp_path / "out")
    committable = prepare(sink, rows(0, 3))
    assert sink.commit(committable) is Outcome.COMMITTED
    (file,) = (tmp_path / "out").glob("*.parquet")
    file.rename(tmp_path / "taken")
    assert sink.recover_and_commit(committable) is Outcome.ALREADY_COMMITTED
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_commit_that_died_half_way_is_finished(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 6, kinds=2))
    staged, final = committable["files"][0]
    (tmp_path / final).parent.mkdir()
    (sink.staging.locate(committable["dir"]) / staged).rename(tmp_path / final)
    assert [one.state for one in sink.open_transactions(JOB)] == [TransactionState.PRE_COMMITTED]
    assert sink.recover_and_commit(committable) is Outcome.COMMITTED
    assert published(tmp_path) == list(range(6))
    assert list(sink.open_transactions(JOB)) == []


def test_without_its_folder_a_transaction_is_judged_by_what_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 6, kinds=2))
    assert sink.commit(committable) is Outcome.COMMITTED
    sink.settled(JOB, 0)
    assert sink.commit(committable) is Outcome.ALREADY_COMMITTED
    (tmp_path / committable["files"][0][1]).unlink()
    assert sink.commit(committable) is Outcome.REFUSED
    assert "1 of 2 files were published" in caplog.text
    (tmp_path / committable["files"][1][1]).unlink()
    assert sink.commit(committable) is Outcome.EXPIRED


def test_a_foreign_file_is_never_overwritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = made(tmp_path)
    committable = prepare(sink, rows(0, 3))
    place = tmp_path / committable["files"][0][1]
    place.write_text("somebody's")
    assert sink.commit(committable) is Outcome.REFUSED
    assert place.read_text() == "somebody's"
    assert "another file already has the name" in caplog.text
    place.unlink()
    assert sink.commit(committable) is Outcome.COMMITTED


def test_a_file_where_a_partition_folder_must_be_needs_a_person(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 2, kinds=1))
    (tmp_path / "kind=k0").write_text("in the way")
    assert sink.commit(committable) is Outcome.REFUSED
    (tmp_path / "kind=k0").unlink()
    assert sink.commit(committable) is Outcome.COMMITTED


def test_many_commits_at_once_publish_once(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"])
    committable = prepare(sink, rows(0, 100, kinds=50))
    outcomes: list[Outcome] = []
    start = threading.Barrier(4)

    def commit() -> None:
        start.wait(10)
        outcomes.append(sink.commit(committable))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(outcomes) == 4
    assert all(outcome.confirmed for outcome in outcomes)
    assert published(tmp_path) == list(range(100))


def test_a_task_of_a_fenced_driver_finds_nothing_to_write_to(tmp_path: Path) -> None:
    sink = made(tmp_path)
    late = sink.begin_transaction(context(generation=1))
    sink.write(late, rows(0, 3))
    for one in sink.open_transactions(JOB):
        sink.abort(one.committable)
    with pytest.raises(SinkError, match="cannot stage files"):
        sink.pre_commit(late)
    sink.rollback(late)
    assert list(sink.open_transactions(JOB)) == []


def test_open_transactions_tell_what_people_ask(tmp_path: Path) -> None:
    sink = made(tmp_path)
    prepared = prepare(sink, rows(0, 3), where=context(epoch=5, slice_=3))
    sink.begin_transaction(context(epoch=6, slice_=4))
    first, second = sink.open_transactions(JOB)
    assert (first.state, first.slice, first.committable) == (TransactionState.PRE_COMMITTED, 3, prepared)
    assert (second.state, second.slice) == (TransactionState.BEGUN, 4)
    assert first.name == context(epoch=5, slice_=3).name
    assert first.age_s is not None
    assert 0 <= first.age_s < 60
    assert list(sink.open_transactions("no such job")) == []


def test_a_torn_manifest_is_no_pre_commit(tmp_path: Path) -> None:
    sink = made(tmp_path)
    committable = prepare(sink, rows(0, 3))
    (sink.staging.locate(committable["dir"]) / "manifest").write_text('{"dir": "con')
    (found,) = sink.open_transactions(JOB)
    assert found.state is TransactionState.BEGUN
    sink.abort(found.committable)
    assert list(sink.open_transactions(JOB)) == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "a/../c", "/etc/x", "a//b", "a/b/c/d"])
def test_nothing_outside_the_staging_folder_can_be_named(name: str, tmp_path: Path) -> None:
    sink = made(tmp_path)
    with pytest.raises(SinkError, match="not a transaction"):
        sink.abort({"dir": name, "files": []})


def test_a_job_id_of_any_letters_stays_inside(tmp_path: Path) -> None:
    sink = made(tmp_path / "out")
    assert sink.commit(prepare(sink, rows(0, 1), where=context(job="../../a b"))) is Outcome.COMMITTED
    sink.settled("../../a b", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_files_roll_by_bytes(tmp_path: Path) -> None:
    sink = made(tmp_path, roll_bytes=4000, compression="none")
    committable = prepare(sink, *(rows(n * 500, 500) for n in range(6)))
    assert len(committable["files"]) > 2
    assert sink.commit(committable) is Outcome.COMMITTED
    assert published(tmp_path) == list(range(3000))


@pytest.mark.parametrize(("age", "files"), [("1ms", 3), ("1h", 1)])
def test_files_roll_by_age_at_the_latest_with_the_next_batch(age: str, files: int, tmp_path: Path) -> None:
    sink = made(tmp_path, roll_age=age)
    transaction = sink.begin_transaction(context())
    for number in range(3):
        sink.write(transaction, rows(number, 1))
        threading.Event().wait(0.005)
    committable = sink.pre_commit(transaction)
    assert len(committable["files"]) == files
    assert sink.commit(committable) is Outcome.COMMITTED
    assert published(tmp_path) == [0, 1, 2]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_many_partitions_keep_few_files_open(format_: str, tmp_path: Path) -> None:
    sink = made(tmp_path, format=format_, partition_by=["kind"])
    before = open_files()
    transaction = sink.begin_transaction(context())
    for number in range(2):
        sink.write(transaction, rows(number * 300, 300, kinds=300))
        assert open_files() - before <= sink.settings.spec.open_files_max
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    assert open_files() <= before
    table = ds.dataset(tmp_path, format=format_, partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == list(range(600))


def test_all_partitions_together_keep_a_bounded_buffer(tmp_path: Path) -> None:
    sink = made(tmp_path, partition_by=["kind"], row_group_bytes=10_000)
    transaction = sink.begin_transaction(context())
    for number in range(50):
        sink.write(transaction, rows(number * 1000, 1000, kinds=20))
        assert sum(writer.buffered_bytes for writer, _ in transaction._open.values()) <= 20_000
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED
    assert published(tmp_path) == list(range(50_000))


def test_a_null_in_a_required_column_is_refused(tmp_path: Path) -> None:
    sink = made(tmp_path, required=("id",))
    transaction = sink.begin_transaction(context())
    with pytest.raises(RowRefusedError, match="null in 'id'") as error:
        sink.write(transaction, pa.RecordBatch.from_pydict({"id": [1, None]}))
    assert error.value.details == {"column": "id"}
    sink.rollback(transaction)


def test_check_refuses_a_file_as_target(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(SinkError, match="is a file, needed a folder"):
        Files(tmp_path / "out").check()
    with pytest.raises(SinkError, match=r"cannot publish files in .*Not a directory"):
        Files(tmp_path / "out" / "below").check()


def test_check_leaves_nothing_but_the_staging_folder(tmp_path: Path) -> None:
    made(tmp_path / "a" / "b")
    assert [path.name for path in (tmp_path / "a" / "b").rglob("*")] == [".tallystick"]


def test_an_executor_that_does_not_see_the_drivers_folder_stops(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="is not there for this executor"):
        Files(tmp_path).begin_transaction(context())


def test_a_deleted_target_is_not_taken_for_an_expired_transaction_until_it_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = made(tmp_path / "out")
    committable = prepare(sink, rows(0, 3))
    open_one = sink.begin_transaction(context(epoch=1))
    sink.write(open_one, rows(3, 3))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(SinkError, match="No such file"):
        sink.pre_commit(open_one)
    sink.rollback(open_one)
    with caplog.at_level(logging.WARNING, "tallystick.sinks.files"):
        assert sink.commit(committable) is Outcome.RETRY_LATER
    assert "is the target mounted?" in caplog.text
    sink.check()
    assert sink.commit(committable) is Outcome.EXPIRED
    assert sink.commit(prepare(sink, rows(0, 3), where=context(generation=2))) is Outcome.COMMITTED
    assert published(tmp_path / "out") == [0, 1, 2]


class Disk:
    """A small file system of its own that can be filled and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-o", options, "-t", "tmpfs", "tmpfs", str(self.path)], check=True, timeout=30)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True, timeout=30)

    def fill(self) -> Path:
        ballast = self.path / ".ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                return ballast
        raise AssertionError("the disk did not fill up")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    made_disk = Disk(tmp_path / "disk")
    made_disk.path.mkdir()
    try:
        made_disk.mount("size=4m")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"cannot mount a small file system here: {error}")
    yield made_disk
    subprocess.run(["umount", str(made_disk.path)], check=True, timeout=30)


@pytest.mark.parametrize("format_", ["parquet", "orc", "json"])
def test_a_full_disk_fails_the_slice_and_publishes_nothing(format_: str, disk: Disk) -> None:
    sink = made(disk.path / "out", format=format_, compression="none", row_group_bytes=100_000)
    ballast = disk.fill()
    batch = pa.RecordBatch.from_pydict({"value": [os.urandom(50).hex() for _ in range(5000)]})
    transaction = sink.begin_transaction(context())

    def stage() -> Json:
        for _ in range(20):
            sink.write(transaction, batch)
        return sink.pre_commit(transaction)

    with pytest.raises(SinkError, match=r"cannot stage files in .*No space left on device.*nothing of this slice"):
        stage()
    sink.rollback(transaction)
    assert list(sink.open_transactions(JOB)) == []
    ballast.unlink()
    assert not [file for file in sink.path.rglob("*") if file.is_file()]
    assert sink.commit(prepare(sink, batch, where=context(generation=2))) is Outcome.COMMITTED


def test_a_read_only_disk_delays_the_commit(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    sink = made(disk.path / "out")
    committable = prepare(sink, rows(0, 3))
    disk.remount("ro")
    assert sink.commit(committable) is Outcome.RETRY_LATER
    assert sink.commit_all([committable] * 2, recovering=True) == [Outcome.RETRY_LATER] * 2
    assert "Read-only file system" in caplog.text
    with pytest.raises(SinkError, match=r"cannot stage files in .*Read-only file system"):
        sink.begin_transaction(context(epoch=1))
    with pytest.raises(SinkError, match=r"cannot publish files in .*Read-only file system"):
        sink.check()
    disk.remount("rw")
    assert sink.commit(committable) is Outcome.COMMITTED
    assert published(sink.path) == [0, 1, 2]


def test_a_full_disk_still_takes_a_commit_or_delays_it(disk: Disk) -> None:
    """A new partition folder needs space that is not there; the decided rows wait for it."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=14", str(disk.path)], check=True, timeout=30)
    sink = made(disk.path / "out", partition_by=["kind"])
    committable = prepare(sink, rows(0, 4, kinds=2))
    extra = [disk.path / f"extra{number}" for number in range(20)]
    with pytest.raises(OSError, match="No space left"):
        list(map(Path.touch, extra))
    assert sink.commit(committable) is Outcome.RETRY_LATER
    for file in extra:
        file.unlink(missing_ok=True)
    assert sink.commit(committable) is Outcome.COMMITTED
    assert published(sink.path) == list(range(4))


def test_a_staging_folder_on_another_file_system_is_refused(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".tallystick").symlink_to(disk.path)
    with pytest.raises(SinkError, match="on another file system"):
        Files(tmp_path / "out").check()
