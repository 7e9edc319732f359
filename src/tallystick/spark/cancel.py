"""What becomes of a checkpoint when its job is cancelled and asked for its deletion.

Only a checkpoint without an open epoch goes: one that is open may hold decided commits that nobody else knows of. The
journal's folder goes last, so that a deletion that was cut short is found by the next start and not taken for a new
checkpoint.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.journal.stores import open_store
from tallystick.s3.place import is_s3, place
from tallystick.spark.folders import S3Folder
from tallystick.spark.offsets import local_path, newest_epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallystick")


def delete_checkpoint(location: str, spark: SparkSession) -> bool:
    """Driver, after the query's end. False, with a warning that says why, if it was kept."""
    logs = open_store(location, spark)
    begun, finished = newest_epoch(logs, "offsets"), newest_epoch(logs, "commits")
    if begun > finished:
        log.warning("%s is kept although the job was cancelled: epoch %d is not finished", location, begun)
        return False
    journal = open_store(f"{location}/tallystick", spark)
    if not journal.try_lock():
        log.warning("%s is kept although the job was cancelled: another driver holds it", location)
        return False
    try:
        folder = logs.locate("tallystick").removesuffix("/tallystick")
        local = local_path(folder)
        if local is not None:
            _delete_local(local)
        elif is_s3(folder):
            S3Folder(*place(folder)).remove(last="tallystick")
        else:
            _delete_through_hadoop(spark, folder)
    finally:
        journal.unlock()
    return True


def _delete_local(folder: Path) -> None:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == "tallystick"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    folder.rmdir()


def _delete_through_hadoop(spark: SparkSession, uri: str) -> None:
    session: Any = spark
    path = session._jvm.org.apache.hadoop.fs.Path(uri)
    files = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    entries = [status.getPath() for status in files.listStatus(path)]
    for entry in sorted(entries, key=lambda entry: str(entry.getName()) == "tallystick"):
        files.delete(entry, True)
    files.delete(path, True)
