"""Rows per second into Parquet: this package's exactly-once sink against ``df.write.parquet`` in a foreachBatch."""

import shutil
import time
from pathlib import Path
from typing import Any

from machine import spread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts

ROWS_PER_EPOCH = 2_000_000
EPOCHS = 4
WARM_UP = 1
ROUNDS = 3


def stream(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_EPOCH)
    rows = reader.option("numPartitions", 2).load()
    return rows.select(
        F.col("value").alias("id"),
        F.concat(F.lit("app"), (F.col("value") % 1000).cast("string")).alias("app"),
        (F.col("value") * 0.25).alias("amount"),
        F.concat(F.lit("https://example.org/page/"), F.xxhash64("value").cast("string")).alias("url"),
    )


def run(spark: SparkSession, folder: Path, contestant: str) -> list[float]:
    """Rows per second, epoch by epoch, by Spark's own account of the trigger's duration."""
    shutil.rmtree(folder, ignore_errors=True)
    rows, out, checkpoint = stream(spark), folder / "out", folder / "ck"
    if contestant == "spark":
        query = (
            rows.writeStream.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(str(out)))
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="0 seconds")
            .start()
        )
    else:
        query = ts.write_stream(rows, ts.sinks.Files(out), checkpoint=ts.Checkpoint(checkpoint, interval="0s")).start()
    rates: dict[int, float] = {}
    while len(rates) < EPOCHS and query.isActive:
        for progress in query.recentProgress:
            if progress["numInputRows"] == ROWS_PER_EPOCH:
                rates[progress["batchId"]] = ROWS_PER_EPOCH / (progress["durationMs"]["triggerExecution"] / 1000)
        time.sleep(0.1)
    query.stop()
    return [rates[epoch] for epoch in sorted(rates)][WARM_UP:EPOCHS]


def measure(spark: SparkSession, folder: Path) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"spark": [], "tallystick": []}
    for _ in range(ROUNDS):
        for contestant, collected in rates.items():
            collected += run(spark, folder, contestant)
    ours, theirs = spread(rates["tallystick"]), spread(rates["spark"])
    return {
        "work": f"Parquet, epochs of {ROWS_PER_EPOCH} rows of 4 columns",
        "spark_rows_per_s": {key: round(value) for key, value in theirs.items()},
        "tallystick_rows_per_s": {key: round(value) for key, value in ours.items()},
        "ratio": round(ours["median"] / theirs["median"], 3),
    }
