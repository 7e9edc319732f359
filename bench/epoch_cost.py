"""What the layer adds to an epoch: the same rows through the same writer, with the protocol and without it.

Both contestants stage and publish Parquet with the file sink's own verbs. The plain one does it as anybody would in a
``foreachBatch``: write on the executors, publish from the driver, no journal, no fingerprint, no fencing. Runs are
interleaved in one session.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
from epoch_times import start_timed, stop_after, timed
from machine import spread
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from tallystick.records import Attempt
from tallystick.sinks.base import JobContext, SliceContext

EPOCHS = 40
WARM_UP = 8
ROUNDS = 3
ROWS_PER_EPOCH = 1000


def stream(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_EPOCH)
    return reader.option("numPartitions", 2).load()


def plain_epoch(sink: ts.sinks.Files, rows: DataFrame, epoch: int) -> None:
    def write(batches: Any) -> Any:
        task = TaskContext.get()
        assert task is not None
        name = SliceContext("plain", Attempt(epoch, 1), "files", task.partitionId(), task.taskAttemptId())
        transaction = sink.begin_transaction(name)
        for batch in batches:
            sink.write(transaction, batch)
        yield pa.RecordBatch.from_pydict({"c": [json.dumps(sink.pre_commit(transaction))]})

    for row in rows.mapInArrow(write, "c string").collect():
        sink.commit(json.loads(row.c))


def run(spark: SparkSession, folder: Path, contestant: str) -> list[float]:
    """Seconds inside foreachBatch, epoch by epoch."""
    shutil.rmtree(folder, ignore_errors=True)
    sink = ts.sinks.Files(folder / "out")
    times: list[float] = []

    if contestant == "plain":
        sink.check(JobContext())
        writer = stream(spark).writeStream.foreachBatch(
            timed(lambda rows, number: plain_epoch(sink, rows, number), times)
        )
        query = writer.option("checkpointLocation", str(folder / "ck")).trigger(processingTime="0 seconds").start()
    else:
        layered = ts.write_stream(stream(spark), sink, checkpoint=ts.Checkpoint(folder / "ck", interval="0s"))
        query = start_timed(layered, times)
    stop_after(query, times, EPOCHS)
    return times[WARM_UP:EPOCHS]


def measure(spark: SparkSession, folder: Path) -> dict[str, Any]:
    times: dict[str, list[float]] = {"plain": [], "tallystick": []}
    for _ in range(ROUNDS):
        for contestant, collected in times.items():
            collected += run(spark, folder, contestant)
    plain, layered = spread(times["plain"]), spread(times["tallystick"])
    return {
        "work": f"epoch of {ROWS_PER_EPOCH} rows, 2 slices, Parquet",
        "plain_ms": {key: round(value * 1000, 1) for key, value in plain.items() if key != "runs"},
        "tallystick_ms": {key: round(value * 1000, 1) for key, value in layered.items() if key != "runs"},
        "added_ms_median": round((layered["median"] - plain["median"]) * 1000, 1),
        "ratio": round(layered["median"] / plain["median"], 3),
        "epochs": layered["runs"],
    }
