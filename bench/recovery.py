"""From a kill -9 to the first newly published file: a job of ours against the same steps in plain Spark, interleaved.

Both count per key with state, in the same kind of session, from the same endless source; both are killed after a few
epochs and started again. The clock runs from the second start of the process. Plain Spark writes what ``foreachBatch``
gives it, and so repeats or tears the epoch that was killed; ours settles it first.
"""

import sys
import time
from pathlib import Path
from typing import Any

from machine import spread
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from tallystick.prover import JobProcess
from tallystick.spark.session import STATE

ROUNDS = 3
EPOCHS_BEFORE_KILL = 3
ROWS_PER_EPOCH = 1000
TIMEOUT_S = 120
CONTESTANTS = ("plain spark", "tallystick")


def counts(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_EPOCH)
    return reader.option("numPartitions", 2).load().selectExpr("value % 100 as key").groupBy("key").count()


def job(contestant: str, folder: Path) -> None:
    """The process that is killed."""
    conf = {"spark.sql.shuffle.partitions": "2", **STATE}  # plain Spark would keep its state elsewhere
    spark = ts.session("recovery", "local[2]", conf, fast_start=True)
    out, checkpoint = folder / "out", folder / "checkpoint"
    if contestant == "tallystick":
        settings = ts.Checkpoint(checkpoint, interval="200ms")
        query = ts.write_stream(counts(spark), ts.sinks.Files(out), checkpoint=settings).outputMode("update").start()
    else:

        def write(rows: DataFrame, epoch: int) -> None:
            rows.write.mode("append").parquet(str(out))

        writer = counts(spark).writeStream.foreachBatch(write).outputMode("update")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="200 milliseconds").start()
    query.awaitTermination()


def published(folder: Path) -> set[str]:
    return {path.name for path in (folder / "out").glob("*.parquet")}


def recovery_s(contestant: str, folder: Path) -> float:
    folder.mkdir(parents=True)
    arguments = [__file__, contestant, str(folder)]
    first = JobProcess(arguments, folder / "log")
    try:
        _until(lambda: len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) >= EPOCHS_BEFORE_KILL, first)
    finally:
        first.kill()
    before = published(folder)
    began_s = time.monotonic()
    second = JobProcess(arguments, folder / "log")
    try:
        _until(lambda: bool(published(folder) - before), second)
        return time.monotonic() - began_s
    finally:
        second.kill()


def _until(found: Any, process: JobProcess) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not found():
        if time.monotonic() > deadline or not process.running():
            raise SystemExit(f"the job did not come so far:\n{process.tail()}")
        time.sleep(0.01)


def measure(folder: Path) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(ROUNDS):
        for name in CONTESTANTS:
            times[name].append(recovery_s(name, folder / f"{name.replace(' ', '-')}-{number}"))
    ours, plain = (sorted(times[name])[ROUNDS // 2] for name in reversed(CONTESTANTS))
    return {
        "work": "recovery",
        "rounds": ROUNDS,
        "contestants": {name: spread(found) for name, found in times.items()},
        "ratios": {"tallystick / plain spark": round(ours / plain, 2)},
    }


if __name__ == "__main__":
    job(sys.argv[1], Path(sys.argv[2]))
