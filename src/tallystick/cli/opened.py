"""A checkpoint as commands read it: its journal, and how far Spark's own logs are. Reading changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.journal import Journal
    from tallystick.journal.journal import JobIdentity
    from tallystick.journal.store import Store


@dataclass(frozen=True)
class Opened:
    """``begun`` and ``finished`` are the newest epochs of Spark's offset and commit log, -1 if there are none."""

    location: str
    journal: Journal
    owner: JobIdentity
    begun: int
    finished: int

    def is_settled(self, epoch: int) -> bool:
        """Spark begins an epoch only when the one before is in its commit log, so the newest one tells all."""
        return epoch <= self.finished


def open_checkpoint(location: str) -> Opened:
    """Local ones are read as they are; for any other scheme a Spark session is started. `CheckpointError` if none."""
    from tallystick.journal import Journal
    from tallystick.journal.stores import open_store
    from tallystick.spark.offsets import local_path

    location = location.rstrip("/") or "/"
    local = local_path(location)
    if local is not None and not local.is_dir():
        raise CheckpointError(f"there is no folder {local}: needed the checkpoint location of a job")
    spark = None if local is not None else _session(location)
    logs = open_store(location, spark)
    journal = Journal(open_store(f"{location}/tallystick", spark))
    begun, finished = _newest(logs, "offsets"), _newest(logs, "commits")
    owner = journal.identity()
    if owner is None:
        found = "a checkpoint of Spark, but without a journal" if begun >= 0 else "no checkpoint"
        raise CheckpointError(
            f"{location} is {found}: there is no {journal.store.locate('job.json')}. needed the location that was "
            "given to ts.Checkpoint or write_stream(…, checkpoint=…)"
        )
    return Opened(location, journal, owner, begun, finished)


def _session(location: str) -> SparkSession:
    from tallystick.cli.console import err
    from tallystick.spark.session import session

    with err().status(f"starting Spark to read {location}"):
        return session("tallystick", "local[1]", fast_start=True)


def _newest(logs: Store, folder: str) -> int:
    return max((int(name) for name in logs.list(folder) if name.isdigit()), default=-1)
