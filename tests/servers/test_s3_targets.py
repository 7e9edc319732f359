"""The S3 sink beyond its contract: what became of an upload, consumers, wrong buckets, secrets, a server that dies."""

from __future__ import annotations

import gzip
import logging
import os
import pickle
import resource
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from real_servers import started
from s3_objects import BUCKET, client, make_bucket, new_path, objects_below, rows_below, uploads_below
from tallystick.errors import ConfigError, MissingExtraError, RowRefusedError, SinkError
from tallystick.records import Json, Outcome
from tallystick.s3.client import Bucket
from tallystick.servers import S3Server, TcpProxy, Way
from tallystick.servers.s3 import SECRET_KEY, VERSITYGW
from tallystick.sinks import S3, TransactionState
from tallystick.sinks.base import JobContext
from tallystick.sinks.s3.upload import abort
from tallystick.testing.doomed import commit_and_die
from tallystick.testing.sinks import JOB, context


def made(server: S3Server, **settings: Any) -> S3:
    sink = S3(new_path(), endpoint=server.address, **settings)
    sink.check(JobContext())
    return sink


@pytest.fixture
def sink(s3: S3Server) -> S3:
    return made(s3)


def rows(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64()), "kind": [f"k {n % 2}/ä" for n in numbers]})


def prepare(sink: S3, *batches: pa.RecordBatch, epoch: int = 0, generation: int = 1, task: int = 7) -> Json:
    transaction = sink.begin_transaction(context(epoch, generation, task=task))
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def ids(server: S3Server, sink: S3) -> list[int]:
    return sorted(row["id"] for row in rows_below(server, sink.target))


def key_of(sink: S3, committable: Json, number: int = 0) -> str:
    return str(sink.notes.prefix + committable["objects"][number][0])


class TestWhatBecameOfAnUpload:
    """The essays of `sinks/s3/complete.py`, one by one."""

    def test_completed_by_another_process(self, s3: S3Server, sink: S3, tmp_path: Path) -> None:
        committable = prepare(sink, rows(0, 3))
        commit_and_die(sink, committable, tmp_path)
        assert sink.commit(committable) is Outcome.ALREADY_COMMITTED
        assert ids(s3, sink) == [0, 1, 2]

    def test_aborted_before_anybody_tried_to_complete_it(self, s3: S3Server, sink: S3) -> None:
        """As a lifecycle rule does. One of its two objects is enough: the slice is written again as a whole."""
        both = made(s3, partition_by=["kind"])
        committable = prepare(both, rows(0, 4))
        assert len(committable["objects"]) == 2
        abort(both.notes.bucket, key_of(both, committable, 1), committable["objects"][1][1])
        assert both.commit(committable) is Outcome.EXPIRED
        assert both.commit(committable) is Outcome.EXPIRED
        assert rows_below(s3, both.target) == [], "nothing of a half expired slice is published"
        both.settled(JOB, 0)
        assert uploads_below(s3, both.target) == []

    def test_taken_away_by_a_consumer_before_the_epoch_was_settled(
        self, s3: S3Server, sink: S3, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Published and gone, or never published: only a person can tell. Neither is guessed."""
        committable = prepare(sink, rows(0, 3))
        assert sink.commit(committable) is Outcome.COMMITTED
        client(s3).delete_object(Bucket=BUCKET, Key=key_of(sink, committable))
        assert sink.recover_and_commit(committable) is Outcome.REFUSED
        assert "if a consumer took the object away: aws s3api put-object" in caplog.text
        client(s3).put_object(Bucket=BUCKET, Key=f"{sink.notes.root}{committable['name']}/completed")
        assert sink.recover_and_commit(committable) is Outcome.ALREADY_COMMITTED
        assert ids(s3, sink) == []

    def test_aborted_after_the_driver_died_right_before_completing(self, s3: S3Server, sink: S3) -> None:
        committable = prepare(sink, rows(0, 3))
        sink.notes.put(committable["name"], "completing")
        abort(sink.notes.bucket, key_of(sink, committable), committable["objects"][0][1])
        assert sink.recover_and_commit(committable) is Outcome.REFUSED
        client(s3).delete_object(Bucket=BUCKET, Key=f"{sink.notes.root}{committable['name']}/completing")
        assert sink.recover_and_commit(committable) is Outcome.EXPIRED

    def test_the_driver_died_right_before_completing(self, s3: S3Server, sink: S3) -> None:
        committable = prepare(sink, rows(0, 3))
        sink.notes.put(committable["name"], "completing")
        assert sink.recover_and_commit(committable) is Outcome.COMMITTED
        assert ids(s3, sink) == [0, 1, 2]

    def test_another_object_is_never_overwritten(
        self, s3: S3Server, sink: S3, caplog: pytest.LogCaptureFixture
    ) -> None:
        committable = prepare(sink, rows(0, 3))
        client(s3).put_object(Bucket=BUCKET, Key=key_of(sink, committable), Body=b"somebody's")
        assert sink.commit(committable) is Outcome.REFUSED
        assert client(s3).get_object(Bucket=BUCKET, Key=key_of(sink, committable))["Body"].read() == b"somebody's"
        assert "another object, and is not overwritten" in caplog.text
        client(s3).delete_object(Bucket=BUCKET, Key=key_of(sink, committable))
        assert sink.commit(committable) is Outcome.COMMITTED

    def test_other_parts_than_were_prepared(self, s3: S3Server, sink: S3) -> None:
        committable = prepare(sink, rows(0, 3))
        where = {"Bucket": BUCKET, "Key": key_of(sink, committable), "UploadId": committable["objects"][0][1]}
        client(s3).upload_part(**where, PartNumber=1, Body=b"forged")
        assert sink.commit(committable) is Outcome.REFUSED
        assert rows_below(s3, sink.target) == []

    def test_a_lost_answer_is_asked_for_again(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """Requests get through, answers do not: whatever happened at the server is found out later."""
        monkeypatch.setattr("tallystick.s3.client.READ_TIMEOUT_S", 1)
        monkeypatch.setattr("tallystick.s3.client.TRIES", 1)
        proxy = TcpProxy(s3.ports[0]).open()
        try:
            sink = S3(new_path(), endpoint=f"http://{proxy.address}")
            sink.check(JobContext())
            committable = prepare(sink, rows(0, 3))
            proxy.hold(Way.TO_CLIENT)
            assert sink.commit(committable) is Outcome.RETRY_LATER
            proxy.heal()
            assert sink.commit(committable).confirmed
        finally:
            proxy.close()
        assert ids(s3, sink) == [0, 1, 2]


class TestCreate:
    """`Bucket.create`, by which notes are put: the first one wins."""

    def test_the_second_one_loses_even_with_the_same_data(self, s3: S3Server, sink: S3) -> None:
        key = f"{sink.notes.prefix}x"
        assert [sink.notes.bucket.create(key, data) for data in (b"first", b"first", b"other")] == [True, False, False]
        assert client(s3).get_object(Bucket=BUCKET, Key=key)["Body"].read() == b"first"

    def test_a_lost_answer_is_settled_by_the_name_of_the_put(self, s3: S3Server) -> None:
        """The put got through, its answer did not, and the client asks again by itself."""
        proxy = TcpProxy(s3.ports[0]).open()
        try:
            bucket = Bucket(BUCKET, f"http://{proxy.address}")
            heal = threading.Timer(3.0, proxy.heal)  # the client waits 1 s for leave to send the data, then sends it
            proxy.hold(Way.TO_CLIENT)
            heal.start()
            assert bucket.create(uuid.uuid4().hex, b"mine"), "refused because of its own first try"
            heal.join()
        finally:
            proxy.close()

    def test_exactly_one_of_many_wins(self, sink: S3) -> None:
        for number in range(5):
            key, start = f"{sink.notes.prefix}{number}", threading.Barrier(6, timeout=30)

            def race(me: int, key: str = key, start: threading.Barrier = start) -> bool:
                start.wait()
                return sink.notes.bucket.create(key, str(me).encode())

            with ThreadPoolExecutor(6) as pool:
                assert sorted(pool.map(race, range(6))) == [False] * 5 + [True]


class TestOrphans:
    def test_uploads_of_a_dead_task_are_found_by_their_names_alone(self, s3: S3Server, sink: S3) -> None:
        transaction = sink.begin_transaction(context(epoch=4, slice_=3))
        sink.write(transaction, rows(0, 3))
        (found,) = sink.open_transactions(JOB)
        assert (found.attempt.epoch, found.slice, found.state) == (4, 3, TransactionState.BEGUN)
        sink.settled(JOB, 3)
        assert len(uploads_below(s3, sink.target)) == 1
        sink.settled(JOB, 4)
        assert uploads_below(s3, sink.target) == []
        with pytest.raises(SinkError, match="nothing of this slice was published"):
            sink.pre_commit(transaction)

    def test_uploads_of_others_are_left_alone(self, s3: S3Server, sink: S3) -> None:
        key = f"{sink.notes.prefix}theirs.parquet"
        client(s3).create_multipart_upload(Bucket=BUCKET, Key=key)
        sink.settled(JOB, 99)
        assert list(sink.open_transactions(JOB)) == []
        assert uploads_below(s3, sink.target) == [key]

    def test_one_target_takes_one_transaction_of_a_name(self, sink: S3) -> None:
        prepare(sink, rows(0, 3))
        with pytest.raises(SinkError, match="manifest is there"):
            prepare(sink, rows(0, 3))


def test_partitions_and_text_formats(s3: S3Server) -> None:
    sink = made(s3, format="text", compression="gzip", partition_by=["kind"])
    lines = pa.RecordBatch.from_pydict({"value": ["a", "b"], "kind": ["x/y=ä", None]})
    assert sink.commit(prepare(sink, lines)) is Outcome.COMMITTED
    found = {key.removeprefix(sink.notes.prefix).split("/")[0]: data for key, data in objects_below(s3, sink.target)}
    found = {folder: gzip.decompress(data) for folder, data in found.items() if folder.startswith("kind=")}
    assert found == {"kind=x%2Fy%3Dä": b"a\n", "kind=__HIVE_DEFAULT_PARTITION__": b"b\n"}


def test_an_object_of_many_parts_needs_little_memory(s3: S3Server) -> None:
    """96 MB of rows in parts of 5 MiB, while the memory of this process grows by a fraction of it."""
    sink = made(s3, compression="none", row_group_bytes=4 << 20, part_bytes=5 << 20)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    transaction = sink.begin_transaction(context())
    for _ in range(48):
        noise = pa.array([os.urandom(1024) for _ in range(2048)], pa.binary())
        sink.write(transaction, pa.RecordBatch.from_pydict({"noise": noise}))
    committable = sink.pre_commit(transaction)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert committable["objects"][0][2] >= 18, "parts"
    assert sink.commit(committable) is Outcome.COMMITTED
    assert client(s3).head_object(Bucket=BUCKET, Key=key_of(sink, committable))["ContentLength"] > 96 << 20
    assert grown_kb < 80 << 10, f"{grown_kb >> 10} MB"


def test_many_partitions_hold_a_bounded_part_of_their_objects_in_memory(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be sent is counted: past the limit the oldest object is closed and a new one begun."""
    monkeypatch.setattr("tallystick.sinks.files.transaction.HELD_BYTES_MAX", 2 << 20)
    sink = made(s3, format="text", partition_by=["kind"], row_group_bytes=16 << 10)
    kinds = [f"k{n % 4}" for n in range(64)]
    batches = [pa.RecordBatch.from_pydict({"value": ["x" * 32_000] * 64, "kind": kinds}) for _ in range(8)]
    committable = prepare(sink, *batches)
    assert len(committable["objects"]) > 4
    assert sink.commit(committable) is Outcome.COMMITTED
    assert len(rows_below(s3, sink.target, ".txt")) == 512


def test_a_bad_row_fails_the_slice_and_leaves_nothing(s3: S3Server) -> None:
    sink = made(s3, format="text")
    transaction = sink.begin_transaction(context())
    sink.write(transaction, pa.RecordBatch.from_pydict({"value": ["good"]}))
    with pytest.raises(RowRefusedError, match="a line break"):
        sink.write(transaction, pa.RecordBatch.from_pydict({"value": ["two\nlines"]}))
    sink.rollback(transaction)
    assert uploads_below(s3, sink.target) == []
    assert list(objects_below(s3, sink.target)) == []


class TestPreflight:
    def test_it_leaves_nothing(self, s3: S3Server, sink: S3) -> None:
        assert list(objects_below(s3, sink.target)) == []
        assert uploads_below(s3, sink.target) == []

    def test_a_bucket_that_is_not_there(self, s3: S3Server) -> None:
        with pytest.raises(SinkError, match="make it first: aws s3 mb s3://no-such-bucket"):
            S3("s3://no-such-bucket/x", endpoint=s3.address).check(JobContext())

    def test_no_server(self, s3: S3Server) -> None:
        with pytest.raises(SinkError, match="is the store running, and is the endpoint right"):
            S3(new_path(), endpoint="http://127.0.0.1:1").check(JobContext())

    def test_no_credentials(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with pytest.raises(SinkError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE"):
            S3(new_path(), endpoint=s3.address, region="eu-west-1").check(JobContext())

    def test_a_store_that_overwrites(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        """As one does that does not know If-None-Match: the answer to it is left out here."""
        monkeypatch.setattr("tallystick.sinks.s3.preflight._completes", lambda notes, key, upload: True)
        with pytest.raises(SinkError, match="overwrites objects that it was told not to"):
            S3(new_path(), endpoint=s3.address).check(JobContext())

    @pytest.mark.parametrize("path", ["/x", "s3://", "s3:///x", "s3://UPPER/x", "gs://bucket/x", "s3://k:s@bucket/x"])
    def test_paths_that_are_none(self, path: str) -> None:
        with pytest.raises(ConfigError, match="is no place in S3: needed s3://BUCKET/PREFIX"):
            S3(path)

    def test_settings_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match=r"has an empty part, '\.' or '\.\.' in its path"):
            S3("s3://bucket/a/../b")
        with pytest.raises(ConfigError, match="S3 takes no parts below 5242880"):
            S3("s3://bucket/a", part_bytes=1 << 20)
        assert S3("s3a://bucket").target == S3("s3://bucket/").target == "s3://bucket/"

    def test_a_missing_library_names_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'tallystick\[s3\]'"):
            S3("s3://bucket/x", endpoint="http://127.0.0.1:2").check(JobContext())


def test_secrets_are_nowhere(s3: S3Server, sink: S3, caplog: pytest.LogCaptureFixture) -> None:
    """Not in what is pickled, printed, logged, put into the journal or left in the bucket."""
    with caplog.at_level(logging.DEBUG, "tallystick"):
        committable = prepare(sink, rows(0, 3))
        assert sink.commit(committable) is Outcome.COMMITTED
    shown = [repr(sink), str(vars(sink)), str(committable), caplog.text, pickle.dumps(sink).decode("latin-1")]
    shown += [data.decode("latin-1") for _, data in objects_below(s3, sink.target)]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET_KEY
    assert [text for text in shown if SECRET_KEY in text] == []


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[S3Server]:
    with started(S3Server(tmp_path / "s3")) as server:
        if server.product != VERSITYGW:
            pytest.skip("moto forgets everything when it is killed: needs versitygw, sh scripts/ensure-versitygw.sh")
        yield server


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back(mortal: S3Server, s3: S3Server) -> None:
    """What was prepared before the kill is committed after it; what was open is rolled back."""
    make_bucket(mortal)
    sink = made(mortal)
    prepared, open_one = prepare(sink, rows(0, 3)), sink.begin_transaction(context(epoch=1))
    sink.write(open_one, rows(3, 3))
    mortal.kill()
    assert sink.commit(prepared) is Outcome.RETRY_LATER
    with pytest.raises(SinkError, match="cannot stage files in s3"):
        sink.pre_commit(open_one)
    sink.rollback(open_one)
    mortal.start()
    assert sink.recover_and_commit(prepared) is Outcome.COMMITTED
    assert ids(mortal, sink) == [0, 1, 2]
    sink.settled(JOB, 1)
    assert uploads_below(mortal, sink.target) == []
