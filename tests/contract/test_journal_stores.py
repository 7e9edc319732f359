"""One suite for every journal store: in memory, on a local disk, on a real HDFS, and on a real S3 server."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from s3_objects import new_path
from tallystick.errors import ConfigError, JournalError
from tallystick.journal.hadoop import HadoopStore
from tallystick.journal.leftovers import temporary_name
from tallystick.journal.memory import MemoryStore
from tallystick.journal.posix import PosixStore
from tallystick.journal.s3 import S3Store
from tallystick.journal.store import Store
from tallystick.journal.stores import open_store
from tallystick.s3.client import Bucket
from tallystick.s3.place import place as place_of
from tallystick.servers import Hdfs, S3Server, TcpProxy, Way
from tallystick.spark.folders import S3Folder

KEY = "attempts/000000000003.0000001.json"


@dataclass
class Place:
    """Somewhere to keep a journal. ``open`` gives a new store on it, as another driver would."""

    open: Callable[[], Store]
    destroy: Callable[[], Any] | None = None


@pytest.fixture
def memory() -> Place:
    store = MemoryStore()
    return Place(lambda: store)


@pytest.fixture
def posix(tmp_path: Path) -> Place:
    root = tmp_path / "checkpoint" / "journal"
    return Place(lambda: PosixStore(root), lambda: shutil.rmtree(root))


@pytest.fixture
def hadoop(hdfs: Hdfs, spark: SparkSession) -> Place:
    uri = f"{hdfs.address}/{uuid.uuid4().hex}/journal"

    def destroy() -> None:
        store = HadoopStore(spark, uri)
        assert store._files.delete(store._root, True)

    return Place(lambda: HadoopStore(spark, uri), destroy)


@pytest.fixture
def objects(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    location = f"{new_path()}/journal"
    return Place(lambda: S3Store(location), lambda: S3Folder(*place_of(location)).remove(last=""))


ON_HDFS = pytest.param("hadoop", marks=pytest.mark.spark)
everywhere = pytest.mark.parametrize("place", ["memory", "posix", "objects", ON_HDFS], indirect=True)
on_disk = pytest.mark.parametrize("place", ["posix", "objects", ON_HDFS], indirect=True)
with_folders = pytest.mark.parametrize("place", ["posix", ON_HDFS], indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    chosen: Place = request.getfixturevalue(request.param)
    return chosen


@everywhere
def test_what_was_put_is_read_by_others(place: Place) -> None:
    assert place.open().put_if_absent(KEY, b"decided")
    assert place.open().read(KEY) == b"decided"
    assert KEY.partition("/")[2] in place.open().locate(KEY)


@everywhere
def test_absence_is_an_answer(place: Place) -> None:
    store = place.open()
    assert store.read(KEY) is None
    assert store.read("job.json") is None
    assert store.list("attempts") == []


@everywhere
def test_a_second_put_loses_and_changes_nothing(place: Place) -> None:
    data = b"first"
    assert place.open().put_if_absent(KEY, data)
    assert not place.open().put_if_absent(KEY, b"second")
    assert not place.open().put_if_absent(KEY, data), "the same data again is not a creation either"
    assert place.open().read(KEY) == b"first"


@everywhere
def test_a_list_is_sorted_and_of_one_folder(place: Place) -> None:
    store = place.open()
    for key in ("attempts/2.json", "attempts/10.json", "attempts/1.json", "attempts-old/3.json", "job.json"):
        assert store.put_if_absent(key, b"{}")
    assert store.list("attempts") == ["1.json", "10.json", "2.json"]
    assert store.list("attempts-old") == ["3.json"]
    assert store.list("notes") == []
    assert store.read("job.json") == b"{}"


@everywhere
def test_what_was_deleted_can_be_put_again(place: Place) -> None:
    store = place.open()
    assert store.put_if_absent(KEY, b"old")
    store.delete(KEY)
    store.delete(KEY)
    assert store.read(KEY) is None
    assert store.list("attempts") == []
    assert store.put_if_absent(KEY, b"new")
    assert store.read(KEY) == b"new"


@everywhere
@pytest.mark.parametrize("size", [0, 1, 3 << 20], ids=["empty", "one byte", "3 MiB"])
def test_values_of_any_size(place: Place, size: int) -> None:
    store, data = place.open(), os.urandom(size)
    assert store.put_if_absent(KEY, data)
    assert store.read(KEY) == data


@everywhere
def test_exactly_one_of_many_threads_wins(place: Place) -> None:
    racers, rounds = 6, 5
    start = threading.Barrier(racers, timeout=60)

    def race(me: int) -> list[bool]:
        store, won = place.open(), []
        for number in range(rounds):
            start.wait()
            won.append(store.put_if_absent(f"attempts/{number}.json", _of(me)))
        return won

    with ThreadPoolExecutor(racers) as pool:
        results = list(pool.map(race, range(racers)))
    for number in range(rounds):
        winners = [me for me in range(racers) if results[me][number]]
        assert len(winners) == 1
        assert place.open().read(f"attempts/{number}.json") == _of(winners[0])


def _of(racer: int) -> bytes:
    return bytes([racer]) * 50_000


@everywhere
def test_locking_twice_never_harms_the_data(place: Place) -> None:
    store = place.open()
    assert store.try_lock()
    assert store.put_if_absent(KEY, b"decided")
    store.unlock()
    store.unlock()
    again = place.open()
    assert again.try_lock()
    again.unlock()
    assert again.read(KEY) == b"decided"


@on_disk
@pytest.mark.parametrize("key", ["", "/x", "../x", "a/../b", "a/b/c", ".tmp/x", "a/.hidden", "a/b\n"])
def test_keys_that_could_climb_out_are_refused(place: Place, key: str) -> None:
    store = place.open()
    for use in (lambda: store.put_if_absent(key, b""), lambda: store.read(key), lambda: store.delete(key)):
        with pytest.raises(JournalError, match="not a key of the journal"):
            use()


@on_disk
def test_a_journal_that_was_deleted_is_an_error_not_an_absence(place: Place) -> None:
    store = place.open()
    assert store.put_if_absent(KEY, b"decided")
    assert place.destroy is not None
    place.destroy()
    uses: list[Callable[[], object]] = [
        lambda: store.put_if_absent(KEY, b"again"),
        lambda: store.put_if_absent("elsewhere/x", b""),
        lambda: store.read(KEY),
        lambda: store.list("attempts"),
    ]
    for use in uses:
        with pytest.raises(JournalError, match="gone") as caught:
            use()
        assert str(store.locate("")) in str(caught.value)
        assert caught.value.details["file"] in str(caught.value)


@with_folders
def test_a_file_where_a_folder_is_needed_is_named(place: Place) -> None:
    store = place.open()
    assert store.put_if_absent("attempts", b"a file")
    uses: list[Callable[[], object]] = [
        lambda: store.put_if_absent(KEY, b"decided"),
        lambda: store.read(KEY),
        lambda: store.list("attempts"),
    ]
    for use in uses:
        with pytest.raises(JournalError, match=r"attempts.* a file is where a folder is needed"):
            use()


@with_folders
def test_a_folder_where_a_file_is_needed_is_named(place: Place) -> None:
    store = place.open()
    assert store.put_if_absent("attempts/x", b"")
    with pytest.raises(JournalError, match=r"attempts could not be read.* where a f"):
        store.read("attempts")


@pytest.mark.spark
class TestHadoop:
    def test_an_unfinished_write_is_not_listed_and_cleaned_up_later(self, hadoop: Place) -> None:
        store = hadoop.open()
        assert isinstance(store, HadoopStore)
        assert store.put_if_absent(KEY, b"decided")
        dead, alive = f"{temporary_name().partition('~')[0]}~99999999~{'0' * 32}", temporary_name()
        for name in (dead, alive):
            store._write_synced(store._path(f".tmp/{name}"), b"unfinished")
        assert store.list("attempts") == [KEY.partition("/")[2]]
        assert hadoop.open().try_lock()
        assert [status.getPath().getName() for status in store._statuses(".tmp")] == [alive]

    def test_a_lost_answer_is_settled_by_reading_back(self, hadoop: Place) -> None:
        """Essay 2 of the module: what the client meets when a rename was carried out but not answered."""
        store = hadoop.open()
        assert isinstance(store, HadoopStore)
        assert store.put_if_absent("attempts/mine", b"mine")  # carried out; the temporary file is gone
        gone = store._path(f".tmp/{temporary_name()}")
        assert store._rename(gone, "attempts/mine", b"mine")
        assert not store._rename(gone, "attempts/mine", b"another driver's")
        with pytest.raises(JournalError, match="attempts/none could not be written"):
            self._put_renamed(store, gone, "attempts/none")

    @staticmethod
    def _put_renamed(store: HadoopStore, temporary: Any, key: str) -> None:
        from tallystick.journal.hadoop import _told

        with _told(store.locate(key), "written"):
            store._rename(temporary, key, b"")

    def test_nothing_temporary_stays_behind(self, hadoop: Place) -> None:
        store = hadoop.open()
        assert isinstance(store, HadoopStore)
        assert [store.put_if_absent(KEY, b"x") for _ in range(2)] == [True, False]
        assert list(store._statuses(".tmp")) == []

    def test_no_server_is_a_journal_error(self, spark: SparkSession) -> None:
        with pytest.raises(JournalError, match=r"hdfs://127.0.0.1:1/journal/.* could not be read.*is HDFS running"):
            HadoopStore(spark, "hdfs://127.0.0.1:1/journal").read(KEY)

    @pytest.mark.parametrize("uri", ["s3a://bucket/journal", "abfs://box@host/journal", "file:///tmp/journal"])
    def test_schemes_without_an_atomic_rename_are_refused(self, spark: SparkSession, uri: str) -> None:
        with pytest.raises(ConfigError, match=r"the journal cannot be kept at .*choose a checkpoint location on hdfs:"):
            HadoopStore(spark, uri)

    def test_the_location_chooses_the_store(self, spark: SparkSession, hdfs: Hdfs, tmp_path: Path) -> None:
        assert isinstance(open_store(str(tmp_path), spark), PosixStore)
        assert isinstance(open_store(f"file://{tmp_path}", spark), PosixStore)
        assert isinstance(open_store(f"{hdfs.address}/x", spark), HadoopStore)
        spark.conf.set("fs.defaultFS", hdfs.address)
        try:
            store = open_store("/x", spark)
            assert store.locate("job.json") == f"{hdfs.address}/x/job.json", "where Spark puts the checkpoint"
        finally:
            spark.conf.unset("fs.defaultFS")


class TestS3:
    def test_a_lost_answer_is_settled_by_reading_what_is_there(
        self, s3: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The put got through, its answer did not, and the client does not ask again."""
        monkeypatch.setattr("tallystick.s3.client.READ_TIMEOUT_S", 1)
        monkeypatch.setattr("tallystick.s3.client.TRIES", 1)
        with TcpProxy(s3.ports[0]) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
            store = S3Store(f"{new_path()}/journal")
            assert store.put_if_absent("attempts/before", b"")
            call = Bucket.call

            def lose_answers(bucket: Bucket, operation: str, **told: Any) -> Any:
                """Of puts only: the look at what is there gets through again."""
                if operation != "put_object":
                    proxy.heal()
                    return call(bucket, operation, **told)
                proxy.hold(Way.TO_CLIENT)
                return call(bucket, operation, **told)

            monkeypatch.setattr(Bucket, "call", lose_answers)
            assert store.put_if_absent(KEY, b"mine"), "it stands there, with the name of this put"
            assert not store.put_if_absent(KEY, b"another driver's")
            monkeypatch.undo()
            proxy.heal()
            assert store.read(KEY) == b"mine"

    def test_no_server_and_no_bucket_are_journal_errors(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
        with pytest.raises(JournalError, match=r"s3a://no-such-bucket/x/attempts/.* aws s3 mb s3://no-such-bucket"):
            S3Store("s3://no-such-bucket/x").put_if_absent(KEY, b"")
        monkeypatch.setattr("tallystick.s3.client.TRIES", 1)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(JournalError, match=r"could not be read.*is the store running"):
            S3Store("s3://bucket/x").read(KEY)

    @pytest.mark.parametrize("location", ["s3://bucket/a/b", "s3a://bucket/a/b", "S3://bucket/a/b/"])
    def test_the_location_chooses_the_store(self, location: str) -> None:
        store = open_store(location)
        assert isinstance(store, S3Store)
        assert store.locate("job.json") == "s3a://bucket/a/b/job.json", "where Spark puts the checkpoint"


@pytest.mark.parametrize("location", ["file:/a/b", "file:///a/b", "/a/b", "FILE:/a/b"])
def test_spellings_of_a_local_path(location: str) -> None:
    assert open_store(location).locate("job.json") == "/a/b/job.json"


@pytest.mark.parametrize("location", ["file://host/a", "file:a", "hdfs://host/a", "s3a://bucket", "s3:a"])
def test_locations_that_cannot_be_opened_here(location: str) -> None:
    with pytest.raises(ConfigError, match="needed"):
        open_store(location)
