"""The files of a checkpoint, with their sizes, wherever it lies. Only reads: a running job may change it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.errors import CheckpointError
from tallystick.s3.place import is_s3
from tallystick.spark.folders import folder_at
from tallystick.spark.offsets import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checkpoint_tree(location: str, spark: SparkSession | None) -> dict[str, int]:
    """Every file below the location, by its path from there, with its bytes. Checksum files of Hadoop are left out."""
    local = local_path(location)
    if local is not None:
        found = _local_tree(local)
    elif is_s3(location):
        found = folder_at(location).files()
    else:
        found = _hadoop_tree(location, spark)
    return {path: size for path, size in sorted(found.items()) if not path.endswith(".crc")}


def read_file(location: str, path: str, spark: SparkSession | None) -> str:
    """The text of one file below the location. `CheckpointError` if it is not there any more or no text."""
    local = local_path(location)
    try:
        if local is not None:
            return (local / path).read_text(encoding="utf-8")
        if is_s3(location):
            return folder_at(location).read(path).decode()
        files, root = _hadoop(location, spark)
        stream = files.open(_child(spark, root, path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()
    except (OSError, ValueError) as cause:
        raise CheckpointError(f"{location}/{path} cannot be read: {cause}") from cause


def _local_tree(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                found[str(path.relative_to(root))] = path.stat().st_size
            except FileNotFoundError:  # a running job has just removed it
                continue
    return found


def _hadoop_tree(location: str, spark: SparkSession | None) -> dict[str, int]:
    files, root = _hadoop(location, spark)
    prefix = str(files.makeQualified(root).toString()) + "/"
    found: dict[str, int] = {}
    statuses = files.listFiles(root, True)
    while statuses.hasNext():
        status = statuses.next()
        found[str(status.getPath().toString()).removeprefix(prefix)] = int(status.getLen())
    return found


def _hadoop(location: str, spark: SparkSession | None) -> tuple[Any, Any]:
    if spark is None:
        raise CheckpointError(f"{location} is reached through Spark: a session is needed")
    session: Any = spark
    root = session._jvm.org.apache.hadoop.fs.Path(location)
    return root.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), root


def _child(spark: Any, root: Any, path: str) -> Any:
    return spark._jvm.org.apache.hadoop.fs.Path(root, path)
