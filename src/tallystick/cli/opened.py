"""A checkpoint as commands read it: its journal, and how far Spark's own logs are. Reading changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.journal import Journal
    from tallystick.journal.journal import JobIdentity


@dataclass(frozen=True)
class Opened:
    """``begun`` and ``finished`` are the newest epochs of Spark's offset and commit log, -1 if there are none."""

    location: str
    journal: Journal
    owner: JobIdentity
    begun: int
    finished: int
    spark: SparkSession | None = None

    def is_settled(self, epoch: int) -> bool:
        """Spark begins an epoch only when the one before is in its commit log, so the newest one tells all."""
        return epoch <= self.finished

    def delete_checksum(self, log: str, epoch: int) -> None:
        """Hadoop keeps a checksum beside each local file, under a name that no key of a store has."""
        from tallystick.spark.offsets import local_path

        local = local_path(self.location)
        if local is not None:
            (local / log / f".{epoch}.crc").unlink(missing_ok=True)


def open_checkpoint(location: str) -> Opened:
    """On disks and in S3 it is read as it is, on HDFS by a Spark session. `CheckpointError` if there is none."""
    from tallystick.journal import Journal
    from tallystick.journal.stores import open_store
    from tallystick.s3.place import is_s3, spelled
    from tallystick.spark.offsets import local_path, newest_epoch

    location = spelled(location.rstrip("/") or "/")
    local = local_path(location)
    if local is not None and not local.is_dir():
        raise CheckpointError(f"there is no folder {local}: needed the checkpoint location of a job")
    spark = None if local is not None or is_s3(location) else session_to_read(location)
    logs = open_store(location, spark)
    journal = Journal(open_store(f"{location}/tallystick", spark))
    begun, finished = newest_epoch(logs, "offsets"), newest_epoch(logs, "commits")
    owner = journal.identity()
    if owner is None:
        found = "a checkpoint of Spark, but without a journal" if begun >= 0 else "no checkpoint"
        raise CheckpointError(
            f"{location} is {found}: there is no {journal.store.locate('job.json')}. needed the location that was "
            "given to ts.Checkpoint or write_stream(…, checkpoint=…)"
        )
    return Opened(location, journal, owner, begun, finished, spark)


def session_to_read(location: str) -> SparkSession:
    """A small session of this process, for what only Spark can read."""
    from tallystick.cli.console import err
    from tallystick.s3.place import is_s3
    from tallystick.spark.file_manager import choose_file_manager
    from tallystick.spark.parts import parts_for
    from tallystick.spark.session import session

    with err().status(f"starting Spark to read {location}"):
        spark = session("tallystick", "local[1]", fast_start=True, jvm_parts=parts_for(location))
    if is_s3(location):
        choose_file_manager(spark, location, keeps_state=True)
    return spark
