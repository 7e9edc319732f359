"""Servers whose disk is full: what was not decided fails with the server's words and leaves nothing behind, what was
decided waits, and both go on when there is room.

The data of each server are on a small file system of their own. Some servers end when they cannot write; they are
started again, as whoever watches over them would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cassandra_tables
import postgresql_tables
from kafka_topics import make_topic, read_topic, wait_for_markers
from real_servers import started
from small_disk import Disk, small_disk
from tallystick.errors import SinkError
from tallystick.records import Json, Outcome
from tallystick.servers import Cassandra as Node
from tallystick.servers import Kafka as Broker
from tallystick.servers import PostgreSQL as Server
from tallystick.sinks import Cassandra, JobContext, Kafka, PostgreSQL
from tallystick.sinks.base import TransactionalSink
from tallystick.sinks.cassandra import client
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
        for left in list(sink.open_transactions(JOB)):
            assert left.slice == 1
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
