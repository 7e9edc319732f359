"""A checkpoint in S3: led, marked, shown, copied and deleted as on a local disk; and never written by two drivers."""

from __future__ import annotations

import http.client
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import tallystick as ts
from cancelled import cancel
from cli_runner import Tally
from s3_objects import BUCKET, client, new_path, objects_below
from tallystick.errors import CheckpointError, ConfigError, FencedError, JournalError
from tallystick.journal.stores import open_store
from tallystick.records import Attempt
from tallystick.s3.client import Bucket
from tallystick.servers import S3Server, TcpProxy, Way
from tallystick.servers.s3 import MOTO, SECRET_KEY
from tallystick.sinks.memory import Memory
from tallystick.spark import savepoint
from tallystick.spark.file_manager import FILE_MANAGER, choose_file_manager
from tallystick.spark.s3a import MANAGER, prove
from tallystick.spark.session import check_session

pytestmark = pytest.mark.spark

EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"


@pytest.fixture(autouse=True)
def _endpoint(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)


@pytest.fixture(autouse=True)
def _settings_as_before(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(FILE_MANAGER)


@pytest.fixture
def location(s3: S3Server) -> str:
    return new_path()


def counting(location: str, rows: int, on_cancel: str = "keep") -> ts.Job:
    """Ten rows an epoch, of three apps."""
    given = [{"id": number, "app": f"app{number % 3}"} for number in range(rows)]
    return ts.Job(
        "in-s3",
        source=ts.sources.Collection(given, per_epoch=10),
        steps=lambda rows: rows.groupBy("app").count(),
        output_mode="update",
        sink=Memory(uuid.uuid4().hex),
        checkpoint=ts.Checkpoint(location, interval="0s", on_cancel=on_cancel),
    )


def state_of(tally: Tally, location: str) -> dict[str, int]:
    shown = tally("checkpoints", "show", location, "--json")
    assert shown.status == 0, shown.err
    [state] = shown.json["operators"][0]["state"]
    return {entry["key"]["app"]: entry["value"]["count"] for entry in state["sample"]}


def test_a_job_with_state_goes_on_and_every_command_knows_it(
    spark: SparkSession, s3: S3Server, location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One story, because each of its steps needs the one before."""
    tally = Tally(capsys)
    counting(location, 10).run(spark, available_now=True)
    counting(location, 20).run(spark, available_now=True)
    found = [(key.partition("/out/")[2], data) for key, data in objects_below(s3, location)]
    names = {name for name, _ in found}
    assert {"offsets/1", "commits/1", "tallystick.json", "tallystick/terms/0000002.json"} <= names
    assert any(name.endswith("2.changelog") for name in names), "RocksDB with changelogs"
    assert not any("tmp" in name or "probe" in name for name in names), "nothing is renamed, and the probe is gone"
    assert not any(SECRET_KEY.encode() in data for _, data in found)
    assert SECRET_KEY not in str(spark.conf.getAll)

    listed = tally("checkpoints", "list", location, "--json")
    assert [one["status"] for one in listed.json] == ["finished"] * 2, listed.err
    assert tally("audit", location).status == 0
    assert tally("transactions", "list", location, "--json").json == []

    copied = tally("savepoint", "create", location, f"{location}-saved")
    assert copied.status == 0, copied.err
    back = f"{location}-back"
    restored = tally("savepoint", "restore", f"{location}-saved", back)
    assert restored.status == 0, restored.err
    counting(back, 30).run(spark, available_now=True)
    assert state_of(tally, back) == {"app0": 10, "app1": 10, "app2": 10}

    for log in ("offsets/1", "commits/1"):
        open_store(location).delete(log)
    with pytest.raises(CheckpointError, match=r"journal knows of epoch 1, but s3a:.*offsets ends at epoch 0"):
        counting(location, 20).run(spark, available_now=True)


def test_a_late_driver_cannot_write_the_log_of_the_one_that_leads(
    spark: SparkSession, s3: S3Server, location: str
) -> None:
    """Another driver has written ``offsets/1`` while this one was away: it stops, and what is there stays."""
    prefix = location.partition(f"{BUCKET}/")[2]

    def other_driver(attempt: Attempt, _: object) -> None:
        if attempt.epoch == 0:
            client(s3).put_object(Bucket=BUCKET, Key=f"{prefix}/offsets/1", Body=b"of another driver")

    with pytest.raises(FencedError, match="another driver of job in-s3 has taken over, as Spark's logs show"):
        counting(location, 30).run(spark, available_now=True, on_finished=other_driver)
    assert open_store(location).read("offsets/1") == b"of another driver"
    assert open_store(location).list("commits") == ["0"]


def test_a_cancelled_job_deletes_it(spark: SparkSession, s3: S3Server, location: str) -> None:
    cancel(counting(location, 20, on_cancel="delete"), spark)
    assert list(objects_below(s3, location)) == []


class TestManager:
    """The class in Spark's JVM, as Spark calls it."""

    @pytest.fixture
    def manager(self, spark: SparkSession, location: str) -> Any:
        choose_file_manager(spark, location, keeps_state=True)
        return made(spark, location)

    def test_the_first_one_wins_and_the_second_one_is_told(
        self, spark: SparkSession, manager: Any, s3: S3Server
    ) -> None:
        path = path_of(spark, f"s3a://{BUCKET}/{uuid.uuid4().hex}/offsets/7")
        first, second = manager.createAtomic(path, False), manager.createAtomic(path, False)
        second.write(bytearray(b"second"))
        first.write(bytearray(b"first"))
        assert not manager.exists(path), "nothing can be seen until it is closed"
        first.close()
        with pytest.raises(Py4JJavaError) as refused:
            second.close()
        assert refused.value.java_exception.getClass().getName() == EXISTS
        second.cancel()
        assert read(manager, path) == b"first"

    def test_exactly_one_of_many_wins(self, spark: SparkSession, manager: Any, location: str) -> None:
        for number in range(4):
            path, start = path_of(spark, f"{spelled(location)}/offsets/{number}"), threading.Barrier(4, timeout=60)

            def race(me: int, path: Any = path, start: threading.Barrier = start) -> bool:
                stream = manager.createAtomic(path, False)
                stream.write(bytearray([me]))
                start.wait()
                return closes(stream)

            with ThreadPoolExecutor(4) as pool:
                won = list(pool.map(race, range(4)))
            assert sorted(won) == [False, False, False, True]
            assert read(manager, path) == bytes([won.index(True)])

    def test_state_is_replaced_and_what_is_cancelled_never_appears(
        self, spark: SparkSession, manager: Any, location: str
    ) -> None:
        path = path_of(spark, f"{spelled(location)}/state/0/0/1.changelog")
        for data in (b"old", b"new"):
            stream = manager.createAtomic(path, True)
            stream.write(bytearray(data))
            stream.close()
        for overwrite in (True, False):
            given_up = manager.createAtomic(path, overwrite)
            given_up.write(bytearray(b"never"))
            given_up.cancel()
            given_up.close()
        assert read(manager, path) == b"new"
        manager.delete(path)
        manager.delete(path)
        assert not manager.exists(path)

    def test_a_lost_answer_is_settled_by_reading_what_is_there(
        self, spark: SparkSession, manager: Any, s3: S3Server, location: str
    ) -> None:
        """The put gets through, its answer does not; the client asks again and is refused because of itself."""
        with TcpProxy(s3.ports[0]) as proxy:
            other = {"fs.s3a.endpoint": f"http://{proxy.address}", "fs.s3a.impl.disable.cache": "true"}
            through = made(spark, location, other)
            path = path_of(spark, f"{spelled(location)}/offsets/0")
            stream = through.createAtomic(path, False)
            stream.write(bytearray(b"mine"))

            def lose_the_answer() -> None:
                deadline = time.monotonic() + 30
                while not manager.exists(path) and time.monotonic() < deadline:
                    time.sleep(0.02)
                proxy.drop()
                proxy.heal()

            lost = threading.Thread(target=lose_the_answer)
            proxy.hold(Way.TO_CLIENT)
            lost.start()
            stream.close()
            lost.join()
        assert read(manager, path) == b"mine"

    def test_files_of_rocksdb_go_up_and_come_back(
        self, spark: Any, manager: Any, location: str, tmp_path: Path
    ) -> None:
        """As its snapshots do: not through the manager, but as copies of local files."""
        data = bytes(range(256)) * 4000
        (tmp_path / "1.sst").write_bytes(data)
        path = path_of(spark, f"{spelled(location)}/state/0/0/SSTs/1.sst")
        files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        files.copyFromLocalFile(path_of(spark, f"file://{tmp_path}/1.sst"), path)
        files.copyToLocalFile(path, path_of(spark, f"file://{tmp_path}/back.sst"))
        assert (tmp_path / "back.sst").read_bytes() == data
        assert manager.exists(path)

    def test_only_for_s3(self, spark: SparkSession, manager: Any, tmp_path: Path) -> None:
        with pytest.raises(Py4JJavaError, match="is not in S3"):
            made(spark, f"file://{tmp_path}")


def spelled(location: str) -> str:
    return location.replace("s3:", "s3a:", 1)


def path_of(spark: Any, uri: str) -> Any:
    return spark._jvm.org.apache.hadoop.fs.Path(uri)


def made(spark: Any, location: str, settings: dict[str, str] | None = None) -> Any:
    """A manager as Spark makes it."""
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    conf.set(FILE_MANAGER, MANAGER)
    for name, value in (settings or {}).items():
        conf.set(name, value)
    managers = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    return managers.create(path_of(spark, spelled(location)), conf)


def read(manager: Any, path: Any) -> bytes:
    stream = manager.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def closes(stream: Any) -> bool:
    try:
        stream.close()
    except Py4JJavaError as refused:
        if refused.java_exception.getClass().getName() != EXISTS:
            raise
        return False
    return True


class TestRefused:
    def test_a_manager_that_renames(self, spark: SparkSession, location: str) -> None:
        other = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
        spark.conf.set(FILE_MANAGER, other)
        with pytest.raises(ConfigError, match=rf"{FILE_MANAGER} is {other}: a checkpoint in S3 needs {MANAGER}"):
            check_session(spark, location)

    def test_a_bucket_that_is_not_there(self, spark: SparkSession) -> None:
        with pytest.raises(
            JournalError,
            match=r"a checkpoint cannot be kept at s3://no-such-bucket/x: .*NoSuchBucket.* aws s3 mb s3://no",
        ):
            check_session(spark, "s3://no-such-bucket/x")

    def test_a_store_that_ignores_the_condition(
        self, spark: SparkSession, s3: S3Server, location: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if s3.product != MOTO:
            pytest.skip("a signed request cannot be changed on its way: needed moto, which does not look at signatures")
        with forgetful(s3) as address:
            monkeypatch.setenv("AWS_ENDPOINT_URL", address)
            with pytest.raises(ConfigError, match=r"overwrites objects that it was told not to \(If-None-Match\)"):
                prove(spark, location)
        assert list(objects_below(s3, location)) == []

    def test_s3a_without_conditional_puts(self, spark: SparkSession, s3: S3Server) -> None:
        bucket = f"another-{uuid.uuid4().hex[:8]}"
        client(s3).create_bucket(Bucket=bucket)
        spark.conf.set("fs.s3a.create.conditional.enabled", "false")
        try:
            with pytest.raises(
                ConfigError, match=r"Spark cannot write a checkpoint to .*Conditional Writes Unavailable"
            ):
                check_session(spark, f"s3://{bucket}/x")
        finally:
            spark.conf.unset("fs.s3a.create.conditional.enabled")

    def test_two_stores(self, spark: SparkSession, s3: S3Server) -> None:
        """The session goes to one, boto3 to the other."""
        bucket = f"another-{uuid.uuid4().hex[:8]}"
        client(s3).create_bucket(Bucket=bucket)
        spark.conf.set("fs.s3a.endpoint", "http://127.0.0.1:1")
        spark.conf.set("fs.s3a.attempts.maximum", "1")
        spark.conf.set("fs.s3a.retry.limit", "1")
        try:
            with pytest.raises(ConfigError, match=r"Spark cannot write a checkpoint to .*127.0.0.1:1"):
                check_session(spark, f"s3://{bucket}/x")
        finally:
            for name in ("fs.s3a.endpoint", "fs.s3a.attempts.maximum", "fs.s3a.retry.limit"):
                spark.conf.unset(name)

    @pytest.mark.parametrize("location", ["s3://bucket", "s3a://", "s3:bucket/x", "s3://bucket/a/../b"])
    def test_a_location_without_a_folder(self, location: str) -> None:
        with pytest.raises(ConfigError, match="names no folder: needed s3://BUCKET/FOLDER"):
            ts.Checkpoint(location)

    def test_a_restore_that_was_cut_short_is_no_checkpoint(
        self, spark: SparkSession, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S3 has no rename: what a killed process left is found by the mark that it put first."""
        counting(location, 10).run(spark, available_now=True)
        savepoint.create(location, tmp_path / "saved")
        back = f"{location}-back"

        class KilledError(BaseException):
            pass

        def die(*_: object, **__: object) -> Any:
            raise KilledError

        real = Bucket.create

        def create(bucket: Bucket, key: str, data: bytes) -> bool:
            return real(bucket, key, data) if not key.endswith("commits/0") else die()

        with monkeypatch.context() as patch:
            patch.setattr(Bucket, "create", create)
            patch.setattr("tallystick.spark.folders.S3Folder.discard", die)
            with pytest.raises(KilledError):
                savepoint.restore(tmp_path / "saved", back)
        with pytest.raises(CheckpointError, match=r"the checkpoint is not whole.*its journal.* is gone"):
            counting(back, 20).run(spark, available_now=True)

    def test_no_server(
        self, location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("tallystick.s3.client.TRIES", 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(JournalError, match="is the store running, and is the endpoint right"):
            open_store(location).read("job.json")
        told = Tally(capsys)("audit", location)
        assert told.status != 0
        assert "is the store running" in told.err


@contextmanager
def forgetful(s3: S3Server) -> Iterator[str]:
    """A store that does not know If-None-Match: everything goes on to a real one, without that header."""

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            dropped = ("if-none-match", "expect", "host", "connection")
            kept = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
            asked = http.client.HTTPConnection("127.0.0.1", s3.ports[0], timeout=30)
            asked.request(self.command, self.path, body, kept)
            answer = asked.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            asked.close()

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815 - the names that http.server wants

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
