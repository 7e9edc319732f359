"""Whose processor time an epoch of few records costs: the JVM's, the workers', the driver's or the broker's.

On two cores that is what an epoch lasts for. Both contestants write the same rows; slices as in ``kafka-slices``.
"""

import os
import time
from pathlib import Path
from typing import Any

from clocks import children_of, command_of, spent
from kafka_slices import CONTESTANTS, ROWS_PER_EPOCH, start_few
from kafka_work import broker, kafka_session
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

COUNTS = (4, 64)
WARM_UP_S = 30
MEASURE_S = 15


def parts() -> dict[str, list[int]]:
    """The processes that have a share in an epoch."""
    found: dict[str, list[int]] = {"driver": [os.getpid()], "jvm": [], "broker": [], "workers": []}
    for pid in children_of(os.getpid()):
        command = command_of(pid)
        if "kafka.Kafka" in command:
            found["broker"].append(pid)
        elif "org.apache.spark.deploy.SparkSubmit" in command:
            found["jvm"].append(pid)
        elif "python" in command:
            found["workers"].append(pid)
    return found


def epochs_of(query: StreamingQuery) -> int:
    progress = query.lastProgress
    if progress is None:
        raise RuntimeError(f"no epoch within {WARM_UP_S:g} s: {query.exception()}")
    return int(progress["batchId"])


def readings() -> dict[str, dict[str, float]]:
    return {name: spent(pids) for name, pids in parts().items()}


def run(spark: SparkSession, folder: Path, address: str, contestant: str, count: int) -> dict[str, Any]:
    query = start_few(spark, folder, address, contestant, count)
    query.awaitTermination(WARM_UP_S)
    before, epochs_before, since_s = readings(), epochs_of(query), time.monotonic()
    query.awaitTermination(MEASURE_S)
    after, epochs = readings(), epochs_of(query) - epochs_before
    lasted_s = time.monotonic() - since_s
    query.stop()
    spent_ms = {
        name: {thread: (value - before[name].get(thread, 0.0)) / epochs * 1000 for thread, value in found.items()}
        for name, found in after.items()
    }
    return {
        "contestant": contestant,
        "partitions": count,
        "epoch_ms": round(lasted_s / epochs * 1000, 1),
        "processor_ms": {name: round(sum(found.values()), 2) for name, found in spent_ms.items()},
        "threads_ms": {name: _most(found) for name, found in spent_ms.items()},
    }


def _most(spent_ms: dict[str, float]) -> dict[str, float]:
    ordered = sorted(spent_ms.items(), key=lambda one: -one[1])
    return {thread: round(value, 2) for thread, value in ordered[:8]}


def measure(folder: Path) -> dict[str, Any]:
    spark = kafka_session(2)
    with broker(folder) as address:
        found = [run(spark, folder, address, name, count) for count in COUNTS for name in CONTESTANTS]
    spark.stop()
    return {"work": f"epochs of {ROWS_PER_EPOCH} rows, trigger 0, {MEASURE_S:g} s each", "epochs": found}
