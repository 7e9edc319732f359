"""Servers whose disk is full: what was not decided fails with the server's words and leaves nothing behind, what was
decided waits, and both go on when there is room.

The data of each server are on a small file system of their own. Some servers end when they cannot write; they are
started again, as whoever watches over them would.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cassandra_tables
import hdfs_folders
import postgresql_tables
import s3_objects
from kafka_topics import make_topic, read_topic, wait_for_markers
from real_servers import started
from small_disk import Disk, small_disk
from tallystick.errors import SinkError
from tallystick.records import Json, Outcome
from tallystick.servers import Cassandra as Node
from tallystick.servers import Hdfs, S3Server
from tallystick.servers import Kafka as Broker
from tallystick.servers import PostgreSQL as Server
from tallystick.servers.s3 import versitygw
from tallystick.sinks import HDFS, S3, Cassandra, JobContext, Kafka, PostgreSQL
from tallystick.sinks.base import TransactionalSink
from tallystick.sinks.cassandra import client
from tallystick.sinks.kafka.sink import TOKENLESS_S
from tallystick.sinks.staged import lower
from tallystick.testing.sinks import JOB, context

pytestmark = [pytest.mark.timeout(300)]

PATIENCE_S = 60.0


def staged(sink: TransactionalSink[Any], *batches: pa.RecordBatch, **where: Any) -> Json:
    """As a task does it: what fails is rolled back."""
    transaction = sink.begin_transaction(context(**where))
    try:
        for rows in batches:
            sink.write(transaction, rows)
        return sink.pre_commit(transaction)
    except BaseException:
        sink.rollback(transaction)
        raise


def committed(sink: TransactionalSink[Any], committable: Json) -> Outcome:
    """As the driver does it: asked until there is an answer."""
    deadline = time.monotonic() + PATIENCE_S
    while (outcome := sink.commit(committable)) in (Outcome.RETRY_LATER, Outcome.UNKNOWN):
        assert time.monotonic() < deadline, f"{sink.target} still says {outcome.value}"
        time.sleep(0.2)
    return outcome


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


SHORT_LOG = {"min_wal_size": "32MB", "max_wal_size": "32MB"}
"""What is kept ready for later does not take the room of what is written now."""


@contextmanager
def small_postgresql(folder: Path, size: str) -> Iterator[tuple[Server, Disk]]:
    with (
        small_disk(folder / "server" / "data", f"size={size}") as disk,
        started(Server(folder / "server", settings=SHORT_LOG)) as server,
    ):
        yield server, disk


@contextmanager
def postgresql_with_a_small_log(folder: Path, size: str) -> Iterator[tuple[Server, Disk]]:
    server = Server(folder / "server", settings=SHORT_LOG)
    with started(server):
        log = server.data / "cluster" / "pg_wal"
    with small_disk(folder / "disk", f"size={size}") as disk:
        subprocess.run(["cp", "-a", str(log), str(disk.path)], check=True, timeout=30)
        shutil.rmtree(log)
        log.symlink_to(disk.path / "pg_wal")
        with started(server):
            yield server, disk


def events(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(numbers, pa.int64()), "t": [os.urandom(50).hex() for _ in numbers]}
    )


@pytest.mark.parametrize("unique", ["", "PRIMARY KEY"], ids=["prepared", "staged"])
def test_a_full_postgresql_fails_what_is_not_decided_and_delays_what_is(unique: str, tmp_path: Path) -> None:
    with small_postgresql(tmp_path, "160m") as (server, disk):
        postgresql_tables.ask(server.address, f"CREATE TABLE t (id bigint {unique}, t text)")
        sink = PostgreSQL(server.address, "t")
        sink.check(JobContext())
        decided = staged(sink, events(0, 5_000))
        ballast = disk.fill()
        with pytest.raises(SinkError, match=r"postgresql: t did not take the rows: could not extend file .*No space"):
            staged(sink, *(events(10_000 * n, 10_000) for n in range(1, 4)), epoch=1)
        assert [one.attempt.epoch for one in sink.open_transactions(JOB)] == [0], "nothing is left of the failed slice"
        outcome = sink.commit(decided)
        if unique:  # the rows are still to be moved, and that needs room
            assert outcome is Outcome.RETRY_LATER
            assert postgresql_tables.ask(server.address, "SELECT count(*) FROM t") == [(0,)]
        else:
            assert outcome is Outcome.COMMITTED
        ballast.unlink()
        assert committed(sink, decided) is (Outcome.COMMITTED if unique else Outcome.ALREADY_COMMITTED)
        again = staged(sink, events(10_000, 10_000), epoch=1, generation=2)
        assert committed(sink, again) is Outcome.COMMITTED
        assert postgresql_tables.ask(server.address, "SELECT count(*), count(DISTINCT id) FROM t") == [(15_000, 15_000)]
        assert list(sink.open_transactions(JOB)) == []


@pytest.mark.parametrize("unique", ["", "PRIMARY KEY"], ids=["prepared", "staged"])
def test_a_postgresql_that_cannot_write_its_log_ends_and_loses_nothing(unique: str, tmp_path: Path) -> None:
    """Tables have room, the log, on a disk of its own, has none: the server panics in the middle of a slice."""
    with postgresql_with_a_small_log(tmp_path, "64m") as (server, disk):
        postgresql_tables.ask(server.address, f"CREATE TABLE t (id bigint {unique}, t text)")
        sink = PostgreSQL(server.address, "t", options={"connect_timeout": 5})
        sink.check(JobContext())
        decided = staged(sink, events(0, 5_000))
        ballast = disk.fill()
        with pytest.raises(SinkError, match="postgresql: t did not take the rows"):
            staged(sink, *(events(10_000 * n, 10_000) for n in range(1, 21)), epoch=1)
        assert "PANIC" in (server.folder / "postgresql.log").read_text()
        first = sink.commit(decided)  # by then it may have found some room in the log that it had
        assert first in (Outcome.RETRY_LATER, Outcome.UNKNOWN, Outcome.COMMITTED)
        server.kill()
        ballast.unlink()
        server.start()
        left = [] if first is Outcome.COMMITTED else [0]
        assert [one.attempt.epoch for one in sink.open_transactions(JOB)] == left, "nothing of the failed slice"
        assert committed(sink, decided) in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
        again = staged(sink, events(10_000, 10_000), epoch=1, generation=2)
        assert committed(sink, again) is Outcome.COMMITTED
        assert postgresql_tables.ask(server.address, "SELECT count(*), count(DISTINCT id) FROM t") == [(15_000, 15_000)]
        assert list(sink.open_transactions(JOB)) == []


# -- Kafka -------------------------------------------------------------------------------------------------------------


def records(first: int, count: int, value_bytes: int = 1000) -> pa.RecordBatch:
    values = [f"{n} ".encode().ljust(value_bytes, b"x") for n in range(first, first + count)]
    return pa.RecordBatch.from_pydict({"key": pa.nulls(count, pa.binary()), "value": pa.array(values, pa.binary())})


OPTIONS = {"delivery.timeout.ms": 8000, "request.timeout.ms": 4000}


@pytest.mark.slow
def test_a_full_kafka_fails_what_is_not_decided_and_delays_what_is(tmp_path: Path) -> None:
    """A broker that cannot write to its only disk ends. The transaction that was decided waits for its return."""
    settings = {"log.segment.bytes": str(1 << 20), "log.index.size.max.bytes": "65536"}
    folder = tmp_path / "broker"
    with small_disk(folder / "data", "size=160m") as disk, started(Broker(folder, settings=settings)) as broker:
        topic = make_topic(broker.address)
        sink = Kafka(broker.address, topic, OPTIONS)
        sink.check(JobContext())
        decided = staged(sink, records(0, 500))
        ballast = disk.fill()
        with pytest.raises(SinkError, match="the brokers did not take all records"):
            # of the same epoch: with the next one a worker takes this one for settled, and its names for free
            staged(sink, *(records(1000 * n, 1000) for n in range(1, 9)), slice_=1)
        assert sink.commit(decided) in (Outcome.RETRY_LATER, Outcome.UNKNOWN)
        broker.kill()
        ballast.unlink()
        broker.start()
        assert committed(sink, decided) is Outcome.COMMITTED
        time.sleep(TOKENLESS_S)  # if there was no room for a token either, nobody knows whose it is before
        for left in list(sink.open_transactions(JOB)):
            assert left.name != decided["name"]
            sink.abort(left.committable)
        again = staged(sink, records(1000, 1000), epoch=1, generation=2)
        assert committed(sink, again) is Outcome.COMMITTED
        wait_for_markers(broker.address, sink.prefix(JOB), sink.driver.transactions)
        found = [int((read.value or b"").split()[0]) for read in read_topic(broker.address, topic)]
        assert sorted(found) == [*range(500), *range(1000, 2000)]
        assert list(sink.open_transactions(JOB)) == []


# -- Cassandra ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_cassandra_delays_what_is_decided(tmp_path: Path) -> None:
    """Its commit log has no room: the node stops to serve. What is decided waits beside the checkpoint."""
    with small_disk(tmp_path / "node" / "data", "size=96m") as disk, started(Node(tmp_path / "node")) as node:
        table = cassandra_tables.new_table(node.address, "id bigint PRIMARY KEY, t text")
        inner = Cassandra(node.address, table, request_timeout="5s")
        sink = lower(inner, tmp_path / "staging")
        sink.check(JobContext())
        assert sink.commit(staged(sink, events(0, 100))) is Outcome.COMMITTED
        ballast = disk.fill()
        decided = staged(sink, *(events(1000 * n, 1000) for n in range(1, 41)), epoch=1)
        assert sink.commit(decided) is Outcome.RETRY_LATER
        node.kill()
        ballast.unlink()
        node.start()
        client.close()
        assert committed(sink, decided) is Outcome.COMMITTED
        (count,) = cassandra_tables.ask(node.address, f"SELECT count(*) FROM {table}")[0]
        assert count == 40_100
        assert list(sink.open_transactions(JOB)) == []
        client.close()


# -- HDFS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hdfs, Disk]]:
    """The DataNode's disk is small; a block must find room on it as a whole, so blocks are small, too."""
    server = Hdfs(tmp_path_factory.mktemp("hdfs") / "server", settings={"dfs.blocksize": str(1 << 20)})
    with small_disk(server.data / "datanode", "size=64m") as disk, started(server):
        yield server, disk


def hdfs_sink(server: Hdfs, **settings: Any) -> HDFS:
    sink = HDFS(hdfs_folders.new_folder(server.address), compression="none", row_group_bytes=1 << 20, **settings)
    sink.check(JobContext())
    return sink


def asked(server: Hdfs, method: str, path: str) -> Any:
    """What the NameNode's web server answers."""
    connection = http.client.HTTPConnection(server.web_address.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body) if body else None
    finally:
        connection.close()


def files_being_written(server: Hdfs) -> int:
    """For which somebody has a lease."""
    (system,) = asked(server, "GET", "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystem")["beans"]
    return int(system["NumFilesUnderConstruction"])


def staged_when_it_is_known(sink: HDFS, generation: int) -> Json:
    """The DataNode tells the NameNode how much room it has once in a second."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return staged(sink, events(10_000, 10_000), epoch=1, generation=generation)
        except SinkError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)
        generation += 1


def test_a_full_hdfs_fails_what_is_not_decided_and_publishes_what_is(small_hdfs: tuple[Hdfs, Disk]) -> None:
    """Renaming needs no room on a DataNode: what is decided does not even wait."""
    server, disk = small_hdfs
    sink = hdfs_sink(server)
    decided = staged(sink, events(0, 1000))
    left = [path for path, _ in hdfs_folders.files_below(sink.target)]
    transaction = sink.begin_transaction(context(1))
    sink.write(transaction, events(10_000, 10_000))
    ballast = disk.fill()
    with pytest.raises(
        SinkError, match=r"cannot stage files in hdfs:.*DataTransferError.*free space\. look with: hdfs dfs"
    ):
        sink.write(transaction, events(20_000, 10_000))  # in the middle of a block
    with pytest.raises(SinkError, match="DataTransferError"):  # told again, and nothing is waited for
        sink.pre_commit(transaction)
    sink.rollback(transaction)
    assert "No space left on device" in (server.folder / "datanode.log").read_text()
    deadline, said = time.monotonic() + PATIENCE_S, ""
    while "could only be written to 0 of the 1 minReplication nodes" not in said:  # when the NameNode knows it, too
        assert time.monotonic() < deadline, said
        with pytest.raises(SinkError) as failed:
            staged(sink, events(10_000, 10_000), epoch=1, generation=2)
        said = str(failed.value)
    with pytest.raises(SinkError, match=r"cannot be used: .*minReplication nodes.*free space\? look with: hdfs dfs"):
        hdfs_sink(server)
    assert [path for path, _ in hdfs_folders.files_below(sink.target)] == left, "nothing of the failed slices"
    assert files_being_written(server) == 0, "nor a lease"
    assert [one.attempt.epoch for one in sink.open_transactions(JOB)] == [0]
    assert sink.commit(decided) is Outcome.COMMITTED
    ballast.unlink()
    assert sink.commit(staged_when_it_is_known(sink, generation=3)) is Outcome.COMMITTED
    found = sorted(row["id"] for row in hdfs_folders.rows_below(sink.target))
    assert found == [*range(1000), *range(10_000, 20_000)]
    assert list(sink.open_transactions(JOB)) == []
    assert files_being_written(server) == 0


@contextmanager
def quota(server: Hdfs, folder: str, **quotas: int) -> Iterator[None]:
    """For a while, as an administrator sets it."""
    start = f"/webhdfs/v1{folder}?user.name=root&op=SETQUOTA"
    asked(server, "PUT", "&".join([start, *(f"{name}={value}" for name, value in quotas.items())]))
    yield
    asked(server, "PUT", "&".join([start, *(f"{name}={(1 << 63) - 2}" for name in quotas)]))


@pytest.mark.parametrize("kind", ["storagespacequota", "namespacequota"])
def test_a_quota_of_hdfs_is_a_disk_that_is_full(small_hdfs: tuple[Hdfs, Disk], kind: str) -> None:
    """A folder of a partition needs a name of its own: what is decided waits for that one."""
    server, _ = small_hdfs
    sink = hdfs_sink(server, partition_by=["id"])
    decided = staged(sink, events(0, 1))
    left = [path for path, _ in hdfs_folders.files_below(sink.target)]
    with quota(server, str(sink.path), **{kind: 1}):
        with pytest.raises(
            SinkError, match=r"cannot stage files in hdfs:.* quota .* is exceeded.*QuotaExceededException"
        ):
            staged(sink, events(1, 1), epoch=1)
        assert [path for path, _ in hdfs_folders.files_below(sink.target)] == left
        assert files_being_written(server) == 0
        outcome = sink.commit(decided)
        assert outcome is (Outcome.COMMITTED if kind == "storagespacequota" else Outcome.RETRY_LATER)
    assert committed(sink, decided).confirmed
    assert committed(sink, staged(sink, events(1, 1), epoch=1, generation=2)) is Outcome.COMMITTED
    published = [path for path, _ in hdfs_folders.files_below(sink.target) if path.endswith(".parquet")]
    assert sorted(path.split("/")[-2] for path in published) == ["id=0", "id=1"]
    assert list(sink.open_transactions(JOB)) == []


# -- S3 ----------------------------------------------------------------------------------------------------------------


@contextmanager
def small_s3(folder: Path) -> Iterator[tuple[S3Server, Disk, S3]]:
    """On versitygw: moto keeps objects in memory, and drops an upload before it has the object that it becomes."""
    if versitygw() is None:
        pytest.skip("needs versitygw, sh scripts/ensure-versitygw.sh")
    with small_disk(folder / "s3" / "data", "size=64m") as disk, started(S3Server(folder / "s3")) as server:
        s3_objects.make_bucket(server)
        sink = S3(s3_objects.new_path(), compression="none", row_group_bytes=1 << 20, endpoint=server.address)
        sink.check(JobContext())
        yield server, disk, sink


def s3_ids(server: S3Server, sink: S3) -> list[int]:
    return sorted(row["id"] for row in s3_objects.rows_below(server, sink.target))


@pytest.mark.slow
def test_a_full_s3_fails_what_is_not_decided_and_delays_what_is(tmp_path: Path) -> None:
    """The parts of an upload are there; to make an object of them takes as much room again."""
    with small_s3(tmp_path) as (server, disk, sink):
        decided = staged(sink, *(events(10_000 * n, 10_000) for n in range(16)))
        kept = s3_objects.uploads_below(server, sink.target)
        ballast = disk.fill()
        with pytest.raises(
            SinkError, match=r"cannot stage files in s3:.*No space left on device.*needed .* free space"
        ):
            staged(sink, *(events(10_000 * n, 10_000) for n in range(16, 32)), epoch=1)
        elsewhere = S3(s3_objects.new_path(), endpoint=server.address)
        with pytest.raises(SinkError, match=r"cannot be used: No space left on device.*needed .* free space"):
            elsewhere.check(JobContext())
        assert s3_objects.uploads_below(server, elsewhere.target) == []
        assert s3_objects.uploads_below(server, sink.target) == kept, "nothing is left of the failed slice"
        assert [one.attempt.epoch for one in sink.open_transactions(JOB)] == [0]
        for room in (0, 1 << 20, 12 << 20):  # from none at all to not enough for the object
            os.truncate(ballast, ballast.stat().st_size - room)
            assert sink.commit(decided) is Outcome.RETRY_LATER
            assert s3_ids(server, sink) == []
        ballast.unlink()
        assert committed(sink, decided) is Outcome.COMMITTED
        again = staged(sink, events(160_000, 10_000), epoch=1, generation=2)
        assert committed(sink, again) is Outcome.COMMITTED
        assert s3_ids(server, sink) == list(range(170_000))
        assert list(sink.open_transactions(JOB)) == []
        sink.settled(JOB, 1)
        left = [key for key, _ in s3_objects.objects_below(server, sink.target) if not key.endswith(".parquet")]
        assert (left, s3_objects.uploads_below(server, sink.target)) == ([], [])


@pytest.mark.slow
def test_an_s3_that_dies_while_it_completes_is_not_taken_at_its_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Essay 6 of `sinks/s3/complete.py`. Asked again after its return it says "completed", and has no such object."""
    with small_s3(tmp_path) as (server, disk, sink):
        decided = staged(sink, *(events(10_000 * n, 10_000) for n in range(20)))
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(sink.commit, decided)
            while not any(disk.path.glob("buckets/*/.sgwtmp/multipart/*/*.*")):  # the upload, while it is completed
                assert not outcome.done(), "it was completed before it could be killed"
            server.kill()
            server.start()
        assert not s3_ids(server, sink), "it was completed before it was killed"
        assert outcome.result() is Outcome.RETRY_LATER
        assert "the store says that" in caplog.text
        # From here nobody can tell whether it was published and taken away. The log says how a person does.
        assert sink.commit(decided) is Outcome.REFUSED
        note = f"{sink.notes.root}{decided['name']}/completing"
        assert f"if its upload was aborted: aws s3 rm 's3://{s3_objects.BUCKET}/{note}'" in caplog.text
        s3_objects.client(server).delete_object(Bucket=s3_objects.BUCKET, Key=note)
        assert sink.commit(decided) is Outcome.EXPIRED
