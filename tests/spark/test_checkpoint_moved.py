"""A checkpoint that was moved, to another folder or another file system: the job goes on, or says what is missing."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tallystick as ts
from real_servers import Elsewhere
from tallystick.errors import CheckpointError, ConfigError
from tallystick.servers import Hdfs
from tallystick.sinks.hdfs.filesystem import HdfsFiles
from tallystick.sinks.memory import Memory
from tallystick.spark.folders import HdfsFolder, LocalFolder, folder_at

pytestmark = pytest.mark.spark


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder of another file system of this machine."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system: /dev/shm is not one")
    folder = memory / f"tallystick-{uuid.uuid4().hex}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def counting(location: str | os.PathLike[str], rows: int) -> ts.Job:
    given = [{"id": number, "app": f"app{number % 3}"} for number in range(rows)]
    return ts.Job(
        "moved",
        source=ts.sources.Collection(given, per_epoch=10),
        steps=lambda rows: rows.groupBy("app").count(),
        output_mode="update",
        sink=Memory("moved"),
        checkpoint=ts.Checkpoint(location, interval="0s"),
    )


@pytest.fixture
def checkpoint(spark: SparkSession, tmp_path: Path) -> Path:
    Memory("moved").clear()
    counting(tmp_path / "checkpoint", 20).run(spark, available_now=True)
    return tmp_path / "checkpoint"


def goes_on(spark: SparkSession, location: str | os.PathLike[str]) -> None:
    """Each epoch was published once, and the state is the one that was moved."""
    counting(location, 40).run(spark, available_now=True)
    rows = Memory("moved").rows()
    assert len(rows) == 12
    assert {row["app"]: row["count"] for row in rows} == {"app0": 14, "app1": 13, "app2": 13}


def test_to_another_file_system(spark: SparkSession, checkpoint: Path, elsewhere: Path) -> None:
    shutil.move(checkpoint, elsewhere)
    goes_on(spark, elsewhere)


def test_to_hdfs(spark: SparkSession, checkpoint: Path, hdfs: Hdfs | Elsewhere) -> None:
    location = f"{hdfs.address}/{uuid.uuid4().hex}/checkpoint"
    target, source = folder_at(location), LocalFolder(checkpoint)
    for path in source.files():
        if not path.endswith((".crc", "/lock")):
            target.copy(path, source)
    goes_on(spark, location)


def test_a_part_that_was_left_behind_is_said(spark: SparkSession, checkpoint: Path, hdfs: Hdfs | Elsewhere) -> None:
    """Tools that do not copy what they take for temporary, or only the newest: never a start from nothing."""
    location = f"{hdfs.address}/{uuid.uuid4().hex}/checkpoint"
    target, source = folder_at(location), LocalFolder(checkpoint)
    for path in source.files():
        if path.startswith("tallystick") and not path.endswith("/lock"):
            target.copy(path, source)
    with pytest.raises(CheckpointError, match=r"journal knows of epoch 1, but hdfs:.*offsets is empty"):
        counting(location, 40).run(spark, available_now=True)
    assert isinstance(target, HdfsFolder)
    HdfsFiles(target.address).delete_tree(target.path / "tallystick")
    with pytest.raises(CheckpointError, match=r"belongs to the job 'moved', but its journal, .*hdfs:.* is gone"):
        counting(location, 40).run(spark, available_now=True)
    assert len(Memory("moved").rows()) == 6


def test_to_a_file_system_that_cannot_hold_one(spark: SparkSession, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="the journal cannot be kept at gs://bucket/checkpoint/tallystick: no atomic"):
        counting("gs://bucket/checkpoint", 40).run(spark, available_now=True)
