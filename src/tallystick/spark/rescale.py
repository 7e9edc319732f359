"""More or fewer state partitions, by Spark's own repartitioning of a stopped query's checkpoint.

Spark adds an epoch without rows that holds the state as it is dealt out now. The journal gets a COMMIT for it that
wrote nothing, so that the audit trail has no gap and says what happened.
"""

from __future__ import annotations

import json
from os import PathLike, fspath
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.errors import CheckpointError, CheckpointInUseError
from tallystick.journal import Journal, Note
from tallystick.journal.store import Store
from tallystick.journal.stores import open_store
from tallystick.records import Attempt, Decision, Record
from tallystick.spark.offsets import newest_epoch
from tallystick.spark.session import PROVIDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def repartition(spark: SparkSession, checkpoint: str | PathLike[str], partitions: int) -> int:
    """Deal the state out anew; returns the epoch that did it. The job must be stopped, with no epoch open."""
    where = fspath(checkpoint)
    journal, logs = Journal(open_store(f"{where}/tallystick", spark)), open_store(where, spark)
    if not journal.store.try_lock():
        raise CheckpointInUseError(f"a living driver holds {checkpoint}: stop it before its state is dealt out anew")
    try:
        begun, finished = newest_epoch(logs, "offsets"), newest_epoch(logs, "commits")
        if begun > finished:
            raise CheckpointError(
                f"epoch {begun} of {checkpoint} is not finished: start the job once more, then stop it"
            )
        _check_rocksdb(logs, finished)
        _repartition(spark, where, partitions)
        epoch = newest_epoch(logs, "commits")
        attempt = Attempt(epoch, max([0, *journal.generations()]))
        journal.put(Record(attempt, Decision.COMMIT, reason=f"state dealt out to {partitions} partitions"))
        journal.note(Note(attempt, "repartitioned", {"partitions": partitions}))
        return epoch
    finally:
        journal.store.unlock()


def _check_rocksdb(logs: Store, epoch: int) -> None:
    """Spark finds out only when it has begun, and then the checkpoint cannot be used any more."""
    text = (logs.read(f"offsets/{epoch}") or b"").decode()
    try:
        provider = str(json.loads(text.splitlines()[1])["conf"][PROVIDER]).rpartition(".")[2]
    except (LookupError, ValueError) as cause:
        raise CheckpointError(
            f"{logs.locate(f'offsets/{epoch}')} does not say where the query keeps its state"
        ) from cause
    if not provider.startswith("RocksDB"):
        raise CheckpointError(
            f"the state is kept by {provider}, and Spark deals state out anew only for RocksDB. nothing was changed. "
            f"set {PROVIDER} to RocksDBStateStoreProvider before a job's first run"
        )


def _repartition(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    try:
        spark._streamingCheckpointManager.repartition(checkpoint, partitions)
    except (PySparkException, Py4JError) as cause:
        found = " ".join(str(cause).strip().splitlines()[0].split())
        raise CheckpointError(
            f"the state of {checkpoint} was not dealt out to {partitions} partitions: {found}. this checkpoint may be "
            "left half way: restore the savepoint once more, into a new folder"
        ) from cause
