"""Savepoints on a real HDFS and in a real S3: the same copy, verified by hash, whole or not there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tallystick as ts
from cli_runner import Tally, commit, finish, new_checkpoint, vote
from real_servers import Elsewhere
from s3_objects import BUCKET, client, objects_below, uploads_below
from tallystick.errors import CheckpointError, ConfigError
from tallystick.servers import Hdfs, S3Server
from tallystick.sinks.memory import Memory
from tallystick.spark import folders
from tallystick.spark.folders import Folder, S3Folder, folder_at
from tallystick.spark.savepoint import MANIFEST, create, restore, verify


@pytest.fixture
def in_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/savepoint"


@pytest.fixture
def on_hdfs(hdfs: Hdfs | Elsewhere) -> str:
    return f"{hdfs.address}/{uuid.uuid4().hex}/savepoint"


@pytest.fixture(params=["hdfs", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """Where to keep a savepoint: nothing is there yet."""
    found: str = request.getfixturevalue("in_s3" if request.param == "s3" else "on_hdfs")
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two finished epochs, and state of more than one block."""
    folder = tmp_path / "checkpoint"
    journal = new_checkpoint(folder)
    for epoch in range(2):
        journal.put(commit(epoch, 1, vote(10)))
    finish(folder, 0, 1)
    (folder / "metadata").write_text("{}")
    (folder / "state" / "0" / "0").mkdir(parents=True)
    (folder / "state" / "0" / "0" / "2.snapshot").write_bytes(bytes(range(256)) * 10_000)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    own = {"tallystick/job.json", "tallystick.json"}
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: data for path, data in found.items() if path not in own}


def test_there_and_back(checkpoint: Path, place: str, tmp_path: Path) -> None:
    manifest = create(checkpoint, place)
    assert set(folder_at(place).files()) == {*manifest["files"], MANIFEST}
    restore(place, tmp_path / "back")
    create(checkpoint, tmp_path / "local")
    restore(tmp_path / "local", tmp_path / "from-local")
    assert content(tmp_path / "back") == content(tmp_path / "from-local")
    assert len(content(tmp_path / "back")["state/0/0/2.snapshot"]) == 2_560_000
    with pytest.raises(CheckpointError, match="is there already and not empty"):
        create(checkpoint, place)


def replace_file(place: str, path: str, data: bytes | None) -> None:
    """Behind everybody's back."""
    folder = folder_at(place)
    if isinstance(folder, S3Folder):
        folder.bucket.call("delete_object", Key=f"{folder.prefix}/{path}")
    else:
        assert isinstance(folder, folders.HdfsFolder)
        folder._hdfs.delete(folder.path / path)
    if data is not None:
        folder.write(path, iter([data]))


def test_a_file_that_was_damaged_or_is_gone_is_named(checkpoint: Path, place: str, tmp_path: Path) -> None:
    create(checkpoint, place)
    replace_file(place, "offsets/1", b"v1\n{}\n[]")
    with pytest.raises(CheckpointError, match=r"was damaged: offsets/1 has 8 bytes and SHA-256"):
        restore(place, tmp_path / "back")
    replace_file(place, "offsets/1", None)
    with pytest.raises(CheckpointError, match="is not whole: offsets/1 cannot be read"):
        restore(place, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    replace_file(place, MANIFEST, None)
    with pytest.raises(CheckpointError, match="is no savepoint"):
        verify(place)


def test_a_copy_that_is_cut_short_leaves_nothing(checkpoint: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class CutShortError(Exception):
        pass

    real = Folder.blocks

    def cut(folder: Folder, path: str) -> Iterator[bytes]:
        for block in real(folder, path):
            yield block
            if path.endswith("2.snapshot"):
                raise CutShortError

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "blocks", cut)
        patch.setattr(folders, "PART_BYTES", 1 << 20)
        with pytest.raises(CutShortError):
            create(checkpoint, place)
    assert folder_at(place.rpartition("/")[0]).files() == {}


@pytest.fixture
def rival(s3: S3Server, in_s3: str) -> str:
    """Somebody else copies to the same place in S3 at the same time."""
    prefix = in_s3.partition(f"{BUCKET}/")[2]
    client(s3).put_object(Bucket=BUCKET, Key=f"{prefix}/state/0/0/2.snapshot", Body=b"of the other one")
    return in_s3


def test_two_copies_to_one_place_in_s3(
    checkpoint: Path, rival: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Folder, "files", lambda _: {})  # he began after the look
    for part_bytes in (1 << 20, 1 << 25):
        monkeypatch.setattr(folders, "PART_BYTES", part_bytes)
        with pytest.raises(CheckpointError, match="somebody else writes there, too"):
            create(checkpoint, rival)
        assert [data for _, data in objects_below(s3, rival)] == [b"of the other one"], "his is not touched"
        assert not uploads_below(s3, rival)


def test_large_files_go_to_s3_in_parts(checkpoint: Path, in_s3: str, tmp_path: Path) -> None:
    large = checkpoint / "state" / "0" / "0" / "2.snapshot"
    with large.open("wb") as file:
        for number in range(70):
            file.write(bytes([number]) * (1 << 20))
    create(checkpoint, in_s3)
    restore(in_s3, tmp_path / "back")
    assert (tmp_path / "back" / "state" / "0" / "0" / "2.snapshot").read_bytes() == large.read_bytes()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("s3://bucket", "names no folder: needed s3://BUCKET/FOLDER"),
        ("s3://bucket/a/../b", "names no folder"),
        ("hdfs://host:9000/", "names no folder: needed hdfs://HOST:PORT/FOLDER"),
        ("ftp://host/folder", "is on ftp: needed a path of this machine, hdfs:, or s3:"),
    ],
)
def test_what_is_no_place_is_said(where: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        folder_at(where)


def test_a_checkpoint_in_s3(checkpoint: Path, in_s3: str, tmp_path: Path) -> None:
    create(checkpoint, tmp_path / "kept")
    manifest = restore(tmp_path / "kept", in_s3)
    assert set(folder_at(in_s3).files()) == {*manifest["files"], "tallystick/job.json", "tallystick.json"}


def test_a_server_that_is_not_there(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    with pytest.raises(CheckpointError, match=r"s3://bucket/kept cannot be used: .*127\.0\.0\.1:9"):
        create(checkpoint, "s3://bucket/kept")


def counting(location: str, rows: int) -> ts.Job:
    given = [{"id": number, "app": f"app{number % 3}"} for number in range(rows)]
    return ts.Job(
        "kept",
        source=ts.sources.Collection(given, per_epoch=10),
        steps=lambda rows: rows.groupBy("app").count(),
        output_mode="update",
        sink=Memory("kept"),
        checkpoint=ts.Checkpoint(location, interval="0s"),
    )


@pytest.mark.spark
@pytest.mark.slow
def test_from_hdfs_to_s3_to_hdfs_with_more_partitions(
    spark: SparkSession, on_hdfs: str, in_s3: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line, with a job that keeps state and goes on."""
    sink = Memory("kept")
    sink.clear()
    first, second = f"{on_hdfs}-first", f"{on_hdfs}-second"
    counting(first, 20).run(spark, available_now=True)
    tally = Tally(capsys)
    made = tally("savepoint", "create", first, in_s3, "--stop", "--json")
    assert made.status == 0, made.err
    assert (made.json["epoch"], made.json["location"]) == (1, in_s3)
    restored = tally("savepoint", "restore", in_s3, second, "--partitions", "3", "--json")
    assert restored.status == 0, restored.err
    counting(second, 40).run(spark, available_now=True)
    assert {row["app"]: row["count"] for row in sink.rows()} == {"app0": 14, "app1": 13, "app2": 13}
    shown = tally("checkpoints", "show", second, "--json")
    assert shown.status == 0, shown.err
    assert [operator["partitions"] for operator in shown.json["operators"]] == [3]
