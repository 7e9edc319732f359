"""The file sink on targets that are wrong, full, read-only, deleted or not mounted."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from file_slices import made, prepare, published, rows

from small_disk import Disk, small_disk
from tallystick.errors import SinkError
from tallystick.records import Json, Outcome
from tallystick.sinks import Files
from tallystick.sinks.base import JobContext
from tallystick.testing.sinks import JOB, context


def test_check_refuses_a_file_as_target(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(SinkError, match="is a file, needed a folder"):
        Files(tmp_path / "out").check(JobContext())
    with pytest.raises(SinkError, match=r"cannot publish files in .*Not a directory"):
        Files(tmp_path / "out" / "below").check(JobContext())


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
    sink.check(JobContext())
    assert sink.commit(committable) is Outcome.EXPIRED
    assert sink.commit(prepare(sink, rows(0, 3), where=context(generation=2))) is Outcome.COMMITTED
    assert published(tmp_path / "out") == [0, 1, 2]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", "size=4m") as mounted:
        yield mounted
        gc.collect()  # what only the traceback of an expected error still refers to is not left open by the sink
        held = [one for one in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if one.startswith(str(tmp_path))]
    assert not held


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
        sink.check(JobContext())
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
        Files(tmp_path / "out").check(JobContext())
