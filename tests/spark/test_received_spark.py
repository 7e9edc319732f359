"""Receiver logs in real queries: a killed receiver is started again, settled records go, a failed one is told."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from rabbit_queues import wait_for
from tallystick.errors import SourceError
from tallystick.receiver import LogReader
from tallystick.receiver.disk import Mark
from tallystick.receiver.status import is_received, read_status
from tallystick.servers.ports import LOOPBACK, free_ports
from tallystick.sources import Lag, ReceiverSettings, Socket

pytestmark = pytest.mark.spark


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Socket]:
    [port] = free_ports(1)
    settings = ReceiverSettings(segment_bytes=200, max_bytes=1 << 20, keep="0s")
    made = Socket(tmp_path / "log", listen=f"{LOOPBACK}:{port}", receiver=settings)
    yield made
    made.release()


def send(source: Socket, numbers: range) -> None:
    """As soon as somebody listens."""
    host, _, port = str(source.listen).rpartition(":")
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((host, int(port))) as link:
                link.sendall(b"".join(f"{number}\n".encode() for number in numbers))
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.05)


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def job(source: Socket, folder: Path) -> ts.Job:
    sink = ts.Output(ts.sinks.Files(folder / "out", format="json"), select=["value"])
    return ts.Job("received", source=source, sink=sink, checkpoint=folder / "checkpoint")


def test_a_killed_receiver_is_started_again_and_settled_records_go(
    spark: SparkSession, source: Socket, tmp_path: Path
) -> None:
    out: list[int] = []

    def collect(rows: DataFrame, epoch: int) -> None:
        out.extend(int(row.value) for row in rows.orderBy("offset").collect())

    query = (
        source.load(spark)
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        send(source, range(30))
        wait_for("the first records", lambda: len(out) == 30 or query.exception())
        first = int(read_status(source.folder)["pid"])
        os.kill(first, signal.SIGKILL)
        wait_for("its end", lambda: ended(first))  # else the dying one might still take the connection
        send(source, range(30, 60))
        wait_for("the others", lambda: len(out) == 60 or query.exception())
        assert read_status(source.folder)["pid"] != first
        wait_for("retention", lambda: LogReader(source.folder).first > 0)
        assert (Mark(source.folder / "settled").read() or 0) >= LogReader(source.folder).first
        assert source.lag({"offset": 60}, list) == Lag(records=0)
    finally:
        query.stop()
    assert out == list(range(60))


def test_a_job_stops_its_receiver_at_its_end(spark: SparkSession, source: Socket, tmp_path: Path) -> None:
    source.load(spark)
    send(source, range(5))
    wait_for("5 records", lambda: LogReader(source.folder).durable == 5)
    job(source, tmp_path).run(spark, available_now=True)
    assert not is_received(source.folder)
    assert read_status(source.folder)["state"] == "stopped"
    written = [line for path in (tmp_path / "out").glob("*.json") for line in path.read_text().splitlines()]
    assert len(written) == 5


def test_what_a_receiver_failed_of_ends_the_job_with_its_words(spark: SparkSession, tmp_path: Path) -> None:
    [port] = free_ports(1)
    stopping = ReceiverSettings(bad_records="stop")
    source = Socket(tmp_path / "log", listen=f"{LOOPBACK}:{port}", receiver=stopping)
    query = job(source, tmp_path).start(spark)
    try:
        with socket.create_connection((LOOPBACK, port)) as link:
            link.sendall(b"fine\n\xff\xff\n")
        wait_for("the end of the query", lambda: not query.isActive)
        assert "a record was refused: it is no utf-8" in str(query.exception())
    finally:
        query.stop()
        source.release()
    reader = LogReader(source.folder)
    assert [record.value for _, record in reader.records(0, reader.durable)] == [b"fine"]
    assert LogReader(source.folder / "dead-letters").durable == 1


def test_a_log_that_was_replaced_is_noticed(spark: SparkSession, source: Socket, tmp_path: Path) -> None:
    def run() -> None:
        rows = source.load(spark).select("value")
        ts.write_stream(rows, ts.sinks.Files(tmp_path / "out", format="json"), checkpoint=tmp_path / "ck").trigger(
            availableNow=True
        ).start().awaitTermination()

    source.load(spark)
    send(source, range(3))
    wait_for("3 records", lambda: LogReader(source.folder).durable == 3)
    run()
    source.release()
    shutil.rmtree(source.folder)
    with pytest.raises(Exception, match="it was replaced"):
        run()


def test_a_receiver_that_cannot_start_is_a_source_error(spark: SparkSession, tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        host, port = server.getsockname()
        taken = Socket(tmp_path / "log", listen=f"{host}:{port}")
        with pytest.raises(SourceError, match="cannot be listened on"):
            job(taken, tmp_path).run(spark, available_now=True)
