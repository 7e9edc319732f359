"""Checkpoints on a local disk: the class in Spark's JVM that writes them, who gets it, and other classes beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.errors import PrepareError, SinkError
from tallystick.jvm.classes import LOCAL_CLASS
from tallystick.records import Json
from tallystick.sinks.files.transaction import Transaction
from tallystick.spark import file_manager
from tallystick.spark.file_manager import FILE_MANAGER, PLAIN_FILE_MANAGER, choose_file_manager
from tallystick.spark.session import CHANGELOG, PROVIDER

pytestmark = pytest.mark.spark

EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
STORES = "org.apache.spark.sql.execution.streaming.state."


class Manager:
    """A manager as Spark makes it, for one folder."""

    def __init__(self, spark: Any, folder: Path, name: str = LOCAL_CLASS) -> None:
        self.jvm, self.folder = spark._jvm, folder
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        conf.set(FILE_MANAGER, name)
        managers = self.jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        self.java = managers.create(self.path(""), conf)

    def path(self, name: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"file://{self.folder}{'/' if name else ''}{name}")

    def begun(self, name: str, data: bytes, replaces: bool = False) -> Any:
        stream = self.java.createAtomic(self.path(name), replaces)
        stream.write(bytearray(data))
        return stream

    def write(self, name: str, data: bytes, replaces: bool = False) -> None:
        self.begun(name, data, replaces).close()

    def read(self, name: str) -> bytes:
        stream = self.java.open(self.path(name))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def names(self) -> list[str]:
        return sorted(str(found.getPath().getName()) for found in self.java.list(self.path("")))


@pytest.fixture
def ours(spark: SparkSession, tmp_path: Path) -> Manager:
    return Manager(spark, tmp_path)


@pytest.fixture
def plain(spark: SparkSession, tmp_path: Path) -> Manager:
    """One that keeps checksums."""
    return Manager(spark, tmp_path, PLAIN_FILE_MANAGER)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def closes(stream: Any) -> bool:
    try:
        stream.close()
    except Py4JJavaError as refused:
        if refused.java_exception.getClass().getName() != EXISTS:
            raise
        return False
    return True


class TestManager:
    def test_the_first_one_wins_and_the_second_one_is_told(self, ours: Manager) -> None:
        first, second = ours.begun("7", b"first"), ours.begun("7", b"second")
        assert not ours.java.exists(ours.path("7")), "nothing can be seen until it is closed"
        assert ours.names() == []
        assert (closes(first), closes(second)) == (True, False)
        assert ours.read("7") == b"first"
        assert not closes(ours.begun("7", b"third"))
        assert left(ours.folder) == ["7"]

    def test_of_many_threads_one_wins(self, ours: Manager) -> None:
        with ThreadPoolExecutor(8) as threads:
            for number in range(40):
                streams = [ours.begun(str(number), b"%d" % each) for each in range(8)]
                won = [each for each, closed in enumerate(threads.map(closes, streams)) if closed]
                assert len(won) == 1
                assert ours.read(str(number)) == b"%d" % won[0]
        assert len(left(ours.folder)) == 40

    def test_a_file_that_may_be_there_is_replaced(self, ours: Manager) -> None:
        ours.write("2.delta", b"old", replaces=True)
        reader = ours.java.open(ours.path("2.delta"))
        stream = ours.begun("2.delta", b"newer", replaces=True)
        assert ours.read("2.delta") == b"old"
        stream.close()
        assert ours.read("2.delta") == b"newer"
        assert bytes(reader.readAllBytes()) == b"old", "who reads the old one reads it to its end"
        reader.close()
        assert left(ours.folder) == ["2.delta"]

    @pytest.mark.parametrize("replaces", [False, True])
    def test_one_that_is_given_up_leaves_nothing(self, ours: Manager, replaces: bool) -> None:
        stream = ours.begun("3", b"x" * 100_000, replaces)
        stream.cancel()
        stream.cancel()
        stream.close()
        assert left(ours.folder) == []

    @pytest.mark.parametrize("replaces", [False, True])
    def test_what_comes_after_the_end_does_nothing(self, ours: Manager, replaces: bool) -> None:
        stream = ours.begun("3", b"kept", replaces)
        stream.close()
        stream.close()
        stream.cancel()
        assert ours.read("3") == b"kept"
        assert left(ours.folder) == ["3"]

    def test_a_folder_that_is_gone_is_not_made_again(self, ours: Manager) -> None:
        with pytest.raises(Py4JJavaError, match=r"java\.io\.FileNotFoundException"):
            ours.begun("offsets/1", b"lost")
        assert left(ours.folder) == []

    def test_one_whose_folder_goes_while_it_is_written_fails(self, ours: Manager, tmp_path: Path) -> None:
        ours.java.mkdirs(ours.path("offsets"))
        stream = ours.begun("offsets/1", b"lost")
        ours.java.delete(ours.path("offsets"))
        with pytest.raises(Py4JJavaError, match="NoSuchFileException"):
            stream.close()
        assert left(tmp_path) == []

    def test_lists_show_neither_checksums_nor_temporary_files(self, ours: Manager, plain: Manager) -> None:
        plain.write("1", b"one")
        ours.write("2", b"two")
        ours.write("2.changelog.crc", b"a checksum of Spark's own is a file as any other")
        stream = ours.begun("3", b"three")
        assert ours.names() == ["1", "2", "2.changelog.crc"]
        assert [path.name for path in ours.folder.glob(".3.*.tmp")], "it has one"
        stream.cancel()
        with pytest.raises(Py4JJavaError, match=r"java\.io\.FileNotFoundException"):
            ours.java.list(ours.path("no-such-folder"))

    def test_folders_are_made_and_deleted_whole(self, ours: Manager, plain: Manager) -> None:
        ours.java.mkdirs(ours.path("a/b"))
        ours.java.mkdirs(ours.path("a/b"))
        plain.write("a/b/1", b"one")
        ours.java.delete(ours.path("a/b/1"))
        assert left(ours.folder / "a" / "b") == [], "its checksum goes with it"
        plain.write("a/b/1", b"one")
        ours.java.delete(ours.path("a"))
        ours.java.delete(ours.path("a"))
        assert not ours.java.exists(ours.path("a"))

    def test_paths_are_taken_as_they_are(self, spark: SparkSession, tmp_path: Path) -> None:
        folder = tmp_path / "with space" / "100%20 #1?+&"
        odd = Manager(spark, folder)
        assert odd.java.isLocal()
        assert str(odd.java.createCheckpointDirectory().toString()) == f"file:{folder}"
        odd.write("a b%41", b"first")
        odd.write("a b%41", b"second", replaces=True)
        assert left(folder) == odd.names() == ["a b%41"]
        assert (folder / "a b%41").read_bytes() == odd.read("a b%41") == b"second"

    def test_only_for_local_disks(self, spark: Any) -> None:
        conf = spark._jsparkSession.sessionState().newHadoopConf()
        conf.set(FILE_MANAGER, LOCAL_CLASS)
        managers = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        with pytest.raises(Py4JJavaError, match="is not on a local disk"):
            managers.create(spark._jvm.org.apache.hadoop.fs.Path("hdfs://nowhere/checkpoint"), conf)


class TestChecksums:
    """Hadoop keeps them in ``.NAME.crc``, and whoever reads through Hadoop checks what has one."""

    def test_that_of_a_file_that_is_replaced_goes(self, ours: Manager, plain: Manager) -> None:
        plain.write("2.delta", b"old", replaces=True)
        assert left(ours.folder) == [".2.delta.crc", "2.delta"]
        ours.write("2.delta", b"new", replaces=True)
        assert left(ours.folder) == ["2.delta"]
        assert plain.read("2.delta") == b"new"

    def test_one_that_was_left_alone_goes_when_its_name_is_used_again(self, ours: Manager, plain: Manager) -> None:
        plain.write("5", b"old")
        (ours.folder / "5").unlink()
        ours.write("5", b"new")
        assert left(ours.folder) == ["5"]
        assert plain.read("5") == b"new"

    def test_who_comes_second_does_not_touch_it(self, ours: Manager, plain: Manager) -> None:
        plain.write("5", b"first")
        assert not closes(ours.begun("5", b"second"))
        assert left(ours.folder) == [".5.crc", "5"]

    def test_one_that_is_there_is_checked(self, ours: Manager, plain: Manager) -> None:
        plain.write("5", b"as it was written")
        assert ours.read("5") == b"as it was written"
        (ours.folder / "5").write_bytes(b"as the disk has it")
        with pytest.raises(Py4JJavaError, match="ChecksumException"):
            ours.read("5")


class TestChoice:
    @pytest.fixture(autouse=True)
    def _as_it_was(self, spark: SparkSession) -> Iterator[None]:
        yield
        spark.conf.set(FILE_MANAGER, PLAIN_FILE_MANAGER)

    def test_ours_for_local_checkpoints_only(self, spark: SparkSession, tmp_path: Path) -> None:
        for keeps_state in (False, True):
            assert choose_file_manager(spark, str(tmp_path), keeps_state) == LOCAL_CLASS
            assert choose_file_manager(spark, f"file://{tmp_path}", keeps_state) == LOCAL_CLASS
            assert choose_file_manager(spark, "hdfs://nowhere/checkpoint", keeps_state) is None
        assert spark.conf.get(FILE_MANAGER) == PLAIN_FILE_MANAGER, "that of other queries stays"

    def test_without_our_jar_one_of_sparks(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_manager, "LOCAL_CLASS", "tallystick.NoSuchClass")
        assert choose_file_manager(spark, str(tmp_path), keeps_state=False) == PLAIN_FILE_MANAGER
        assert choose_file_manager(spark, str(tmp_path), keeps_state=True) is None

    def test_a_choice_of_the_users_stays(self, spark: SparkSession, tmp_path: Path) -> None:
        spark.conf.set(FILE_MANAGER, "somebody.elses.Choice")
        assert choose_file_manager(spark, str(tmp_path), keeps_state=True) == "somebody.elses.Choice"

    def test_a_query_writes_everything_with_it_and_the_session_stays_as_it_was(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "one.json").write_text('{"id": 1}\n')
        rows = ts.sources.Files(tmp_path / "in", "json", schema="id long").load(spark).groupBy("id").count()
        checkpoint = tmp_path / "check point"
        sink = ts.sinks.Files(tmp_path / "out", format="json")
        started: Any = ts.write_stream(rows, sink, checkpoint=checkpoint).outputMode("update").start()
        try:
            assert spark.conf.get(FILE_MANAGER) == PLAIN_FILE_MANAGER
            query = started._jsq.streamingQuery()
            for log in (query.offsetLog(), query.commitLog()):
                assert log.fileManager().getClass().getName() == LOCAL_CLASS
            assert query.sparkSessionForStream().conf().get(FILE_MANAGER) == LOCAL_CLASS, "state follows that"
            started.processAllAvailable()
        finally:
            started.stop()
        assert left(checkpoint / "sources" / "0") == ["0"]
        assert left(checkpoint / "offsets")[0] == "0"
        assert list((checkpoint / "state").rglob("1.changelog"))
        logs = [path for path in checkpoint.rglob("*") if path.parent.name != "metadata"]
        assert not [path for path in logs if path.name.startswith(".") and path.suffix in (".crc", ".tmp")]

    def test_a_query_that_cannot_make_its_sources_says_so_itself(self, spark: SparkSession, tmp_path: Path) -> None:
        """The log of its file source is no folder: the query starts, and ends with that."""
        (tmp_path / "in").mkdir()
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "sources").write_text("no folder")
        rows = ts.sources.Files(tmp_path / "in", "json", schema="id long").load(spark)
        sink = ts.sinks.Files(tmp_path / "out", format="json")
        query = ts.write_stream(rows, sink, checkpoint=tmp_path / "checkpoint").start()
        with pytest.raises(Exception, match="sources"):
            query.awaitTermination(60)
        assert spark.conf.get(FILE_MANAGER) == PLAIN_FILE_MANAGER


# --- Spark's own classes before and after it


def refusing(epoch: int) -> type[ts.sinks.Files]:
    """Made in a function, so that it is pickled whole: workers cannot import this file."""

    class Refusing(ts.sinks.Files):
        def pre_commit(self, transaction: Transaction[Path]) -> Json:
            if transaction.place.name.startswith(f"{epoch:012d}."):
                raise SinkError("this epoch is refused")
            return super().pre_commit(transaction)

    return Refusing


def counts(rows: DataFrame, weight: int) -> DataFrame:
    return rows.select(F.lit(weight).alias("sum"))


def sums(rows: DataFrame, weight: int) -> DataFrame:
    return rows.groupBy(F.lit("all").alias("key")).agg(F.sum(F.lit(weight)).alias("sum"))


@pytest.fixture(params=["RocksDB", "HDFSBacked", None])
def steps(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Callable[[DataFrame, int], DataFrame]]:
    """With both state stores, and without state."""
    if request.param is None:
        yield counts
        return
    spark.conf.set(PROVIDER, f"{STORES}{request.param}StateStoreProvider")
    spark.conf.set(CHANGELOG, "true")
    yield sums
    spark.conf.unset(PROVIDER)
    spark.conf.unset(CHANGELOG)


def test_a_checkpoint_goes_on_with_sparks_own_class_and_back(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: Callable[[DataFrame, int], DataFrame],
) -> None:
    """In a session without our jar, and with it. Each does an epoch again that the other one has begun."""

    def job(rows: int, weight: int, sink: type[ts.sinks.Files]) -> ts.Job:
        return ts.Job(
            "both",
            source=ts.sources.Collection([{"id": number} for number in range(rows)], per_epoch=10),
            steps=lambda numbers: steps(numbers, weight),
            output_mode="append" if steps is counts else "update",
            sink=sink(tmp_path / "out", format="json"),
            checkpoint=ts.Checkpoint(tmp_path / "checkpoint", interval="0s"),
        )

    def run(rows: int, refused: int | None = None) -> None:
        """The steps of a refused epoch are wrong; then they are corrected, and it is done again."""
        if refused is None:
            job(rows, 1, ts.sinks.Files).run(spark, available_now=True)
            return
        with pytest.raises(PrepareError, match=f"epoch {refused} could not be prepared: this epoch is refused"):
            job(rows, 100, refusing(refused)).run(spark, available_now=True)

    with monkeypatch.context() as patch:
        patch.setattr(file_manager, "LOCAL_CLASS", "tallystick.NoSuchClass")
        run(10)
        run(20, refused=1)
    run(30)
    run(40, refused=3)
    with monkeypatch.context() as patch:
        patch.setattr(file_manager, "LOCAL_CLASS", "tallystick.NoSuchClass")
        run(50)
    run(60)
    found = [
        [json.loads(line)["sum"] for line in path.read_text().splitlines()]
        for path in sorted((tmp_path / "out").glob("*.json"))
    ]
    if steps is counts:
        assert sum(map(sum, found)) == 60
    else:
        assert found == [[10], [20], [30], [40], [50], [60]]
