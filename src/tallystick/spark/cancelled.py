"""A failed epoch is rolled back when all of its tasks have ended, not when Spark says that it failed.

When one task fails, Spark cancels the others and tells the driver at once. But a worker that has its last row does not
hear of it: it goes on and pre-commits, perhaps after the driver has looked for what to roll back. Nobody would look
again before the next start; if there is none, a prepared transaction stays for ever. Spark gives such a worker two
seconds (``spark.python.task.killTimeout``), then it kills it, and only when the worker is done or dead has its task
ended. So that is what the driver waits for.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tallystick")

PATIENCE_S = 15.0


def await_tasks(spark: SparkSession, group: str | None, patience_s: float = PATIENCE_S) -> bool:
    """Driver, after a Spark job of ``group`` has failed: wait until none of its tasks runs. False if that took too
    long, for example because an executor does not answer: what such a task leaves is found by the next start."""
    if group is None:
        return False
    deadline = time.monotonic() + patience_s
    while _still_running(spark, group):
        if time.monotonic() > deadline:
            log.warning("a task of a failed epoch still runs after %g s: what it leaves is found later", patience_s)
            return False
        time.sleep(0.01)
    return True


def _still_running(spark: SparkSession, group: str) -> bool:
    tracker = spark.sparkContext.statusTracker()
    newest = max(tracker.getJobIdsForGroup(group), default=None)
    job = tracker.getJobInfo(newest) if newest is not None else None
    if job is None:
        return False
    if job.status == "RUNNING":  # Spark's books are behind, and tasks may be missing from them
        return True
    stages = [tracker.getStageInfo(stage) for stage in job.stageIds]
    return any(stage.numActiveTasks for stage in stages if stage is not None)
