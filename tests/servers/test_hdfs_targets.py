"""The HDFS sink beyond its contract: leases of dead and of living writers, wrong targets, a server that dies."""

from __future__ import annotations

import errno
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pytest

from hdfs_folders import files_below, new_folder, rows_below
from real_servers import Elsewhere, started
from tallystick.errors import ConfigError, MissingExtraError, RowRefusedError, SinkError
from tallystick.records import Json, Outcome
from tallystick.servers import Hdfs
from tallystick.sinks import HDFS, TransactionState
from tallystick.sinks.base import JobContext
from tallystick.sinks.files.folder import FolderSink
from tallystick.sinks.hdfs.client import as_os_error
from tallystick.sinks.hdfs.filesystem import HdfsFiles
from tallystick.testing.doomed import write_and_die
from tallystick.testing.sinks import JOB, context


@pytest.fixture
def sink(hdfs: Hdfs | Elsewhere) -> HDFS:
    made = HDFS(new_folder(hdfs.address))
    made.check(JobContext())
    return made


def rows(start: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(range(start, start + count), pa.int64())})


def prepare(sink: FolderSink[PurePosixPath], *batches: pa.RecordBatch, epoch: int = 0, generation: int = 1) -> Json:
    transaction = sink.begin_transaction(context(epoch, generation))
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def ids(sink: HDFS) -> list[int]:
    return sorted(row["id"] for row in rows_below(sink.target))


def is_closed(sink: HDFS, path: str) -> bool:
    """The NameNode says so only if nobody holds a lease."""
    return bool(HdfsFiles(sink.address)._client.recover_lease(path))


def test_the_lease_of_a_dead_writer_goes_with_its_file(sink: HDFS, tmp_path: Path) -> None:
    """Essay 3 of `sinks/hdfs/filesystem.py`. The writer dies with a file open, and nobody waits for its lease."""
    write_and_die(sink, context(), [rows(0, 50_000)], tmp_path)
    (found,) = sink.open_transactions(JOB)
    assert found.state is TransactionState.BEGUN
    (staged,) = [path for path, _ in files_below(sink.target)]
    sink.abort(found.committable)
    assert list(files_below(sink.target)) == []
    assert list(sink.open_transactions(JOB)) == []
    # the same name can be written at once: a lease that was left would refuse it
    files, again = HdfsFiles(sink.address), PurePosixPath(staged)
    files.make_folder(again.parent)
    files.write(again, b"mine")
    assert is_closed(sink, staged)


def test_a_writer_that_lives_on_is_fenced_by_the_abort(sink: HDFS) -> None:
    """A task of a fenced driver: it can neither seal what it wrote nor bring its folder back."""
    transaction = sink.begin_transaction(context())
    sink.write(transaction, rows(0, 50_000))
    (found,) = sink.open_transactions(JOB)
    sink.abort(found.committable)
    with pytest.raises(SinkError, match=r"nothing of this slice was published.*hdfs dfs -ls"):
        sink.pre_commit(transaction)
    sink.rollback(transaction)
    assert list(files_below(sink.target)) == []


def test_a_file_of_somebody_else_is_never_overwritten(sink: HDFS, caplog: pytest.LogCaptureFixture) -> None:
    committable = prepare(sink, rows(0, 3))
    place = sink.path / committable["files"][0][1]
    sink.files.write(place, b"somebody's")
    assert sink.commit(committable) is Outcome.REFUSED
    assert sink.files.read(place) == b"somebody's"
    assert "another file already has the name" in caplog.text
    sink.files.delete(place)
    assert sink.commit(committable) is Outcome.COMMITTED
    assert ids(sink) == [0, 1, 2]


def test_a_file_that_a_consumer_took_away_is_not_published_again(sink: HDFS) -> None:
    committable = prepare(sink, rows(0, 3))
    assert sink.commit(committable) is Outcome.COMMITTED
    sink.files.delete(sink.path / committable["files"][0][1])
    assert sink.recover_and_commit(committable) is Outcome.ALREADY_COMMITTED
    assert ids(sink) == []


def test_files_roll_and_a_large_slice_needs_little_memory(hdfs: Hdfs | Elsewhere) -> None:
    """256 MB of rows, while the memory of this process grows by a fraction of it."""
    sink = HDFS(new_folder(hdfs.address), compression="none", roll_bytes=32 << 20, row_group_bytes=8 << 20)
    sink.check(JobContext())
    prepare(sink, rows(0, 1000), epoch=9)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    transaction = sink.begin_transaction(context())
    for number in range(32):
        noise = pa.array(
            [n.to_bytes(8, "little") * 128 for n in range(number * 8192, (number + 1) * 8192)], pa.binary()
        )
        sink.write(transaction, pa.RecordBatch.from_pydict({"noise": noise}))
    committable = sink.pre_commit(transaction)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert len(committable["files"]) >= 2
    assert sink.commit(committable) is Outcome.COMMITTED
    assert grown_kb < 128 << 10, f"{grown_kb >> 10} MB"


def test_a_bad_row_fails_the_slice_and_leaves_nothing(hdfs: Hdfs | Elsewhere) -> None:
    sink = HDFS(new_folder(hdfs.address), required=["id"])
    sink.check(JobContext())
    transaction = sink.begin_transaction(context())
    with pytest.raises(RowRefusedError, match=rf"null in 'id', which {re.escape(sink.target)} requires"):
        sink.write(transaction, pa.RecordBatch.from_pydict({"id": pa.array([1, None], pa.int64())}))
    sink.rollback(transaction)
    assert list(files_below(sink.target)) == []


def test_two_sinks_in_one_folder_are_noticed(sink: HDFS) -> None:
    sink.begin_transaction(context())
    with pytest.raises(SinkError, match="two sinks of one job stage in the same place"):
        sink.begin_transaction(context())


class TestPreflight:
    def test_a_file_in_place_of_the_folder(self, sink: HDFS) -> None:
        sink.files.write(sink.path / "file", b"")
        with pytest.raises(SinkError, match="file is a file, needed a folder"):
            HDFS(f"{sink.target}/file").check(JobContext())
        with pytest.raises(SinkError, match=r"cannot be used: .*not a directory"):
            HDFS(f"{sink.target}/file/below").check(JobContext())

    def test_it_leaves_nothing_but_the_staging_folder(self, sink: HDFS) -> None:
        assert [path.name for path in sink.files.list(sink.path)] == [".tallystick"]

    def test_no_server(self) -> None:
        with pytest.raises(SinkError, match=r"hdfs://127.0.0.1:1 cannot be used: Connection refused.*is HDFS running"):
            HDFS("hdfs://127.0.0.1:1/out").check(JobContext())

    @pytest.mark.parametrize(
        "path", ["/out", "hdfs:///out", "hdfs://host:9000", "hdfs://host:9000/", "s3://b/x", "hdfs://u:p@host:9000/x"]
    )
    def test_paths_that_are_none(self, path: str) -> None:
        with pytest.raises(ConfigError, match="is no folder of HDFS: needed hdfs://HOST:PORT/FOLDER"):
            HDFS(path)

    def test_a_path_that_climbs(self) -> None:
        with pytest.raises(ConfigError, match="is no plain path"):
            HDFS("hdfs://host:9000/a/../b")

    def test_a_missing_library_names_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "hdfs_native", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[hdfs\]'"):
            HDFS("hdfs://another-host:9000/out").check(JobContext())


@pytest.mark.parametrize(
    ("kind", "words", "number"),
    [
        ("org.apache.hadoop.security.AccessControlException", r"Permission denied: user=x\n\tat a.b", errno.EACCES),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", r"Cannot create\nThe reported", errno.EROFS),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "quota is exceeded", errno.EDQUOT),
        ("something.Else", "words", errno.EIO),
    ],
)
def test_the_servers_words_and_a_number(kind: str, words: str, number: int) -> None:
    error = as_os_error(f'RPCError("{kind}", "{words}")')
    assert error.errno == number
    assert error.strerror == f"{words.partition(chr(92))[0]} ({kind.rpartition('.')[2]})"
    assert as_os_error('OperationFailed("its own words")').strerror == "its own words (OperationFailed)"
    assert as_os_error("no such form\nwith lines").strerror == "no such form"


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Hdfs]:
    with started(Hdfs(tmp_path / "hdfs")) as server:
        yield server


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back(mortal: Hdfs) -> None:
    """What was prepared before the kill is committed after it; what was open is rolled back."""
    sink = HDFS(new_folder(mortal.address))
    sink.check(JobContext())
    prepared, open_one = prepare(sink, rows(0, 3)), sink.begin_transaction(context(epoch=1))
    sink.write(open_one, rows(3, 3))
    mortal.kill()
    assert sink.commit(prepared) is Outcome.RETRY_LATER
    with pytest.raises(SinkError, match="cannot stage files in hdfs"):
        sink.pre_commit(open_one)
    sink.rollback(open_one)
    mortal.start()
    assert sink.recover_and_commit(prepared) is Outcome.COMMITTED
    assert ids(sink) == [0, 1, 2]
    for found in sink.open_transactions(JOB):
        sink.abort(found.committable)
    sink.settled(JOB, 1)
    assert [path for path, _ in files_below(f"{sink.target}/.tallystick")] == []
