"""What one more partition and one more slice cost an epoch: the same few rows in 2 to 64 of them.

Without being told otherwise, tasks of ours take over several partitions of the source (``tallystick``); a query that
names the number of its slices gets as many (``tallystick-sliced``).
"""

from pathlib import Path
from typing import Any

import numpy as np
from kafka_work import broker, epochs_of, kafka_session, make_topic, start
from machine import spread
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

CONTESTANTS = ("spark", "tallystick", "tallystick-sliced")
COUNTS = (2, 16, 32, 64)
ROWS_PER_EPOCH = 640
EPOCHS = 60
WARM_UP = 40
"""Until then the JVM still compiles what runs once per task: for rows that go to Python that is much more code."""
ROUNDS = 2


def start_few(spark: SparkSession, folder: Path, address: str, contestant: str, count: int) -> StreamingQuery:
    """Epochs of few rows in so many partitions of the source, or slices, one right after the other."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_EPOCH)
    rows = reader.option("numPartitions", count).load().selectExpr("CAST(value AS STRING) AS value")
    sink, _, sliced = contestant.partition("-")
    asked = rows.coalesce(count) if sliced else rows
    return start(sink, asked, address, make_topic(address), folder / "ck", processingTime="0 seconds")


def run(spark: SparkSession, folder: Path, address: str, contestant: str, count: int) -> list[float]:
    query = start_few(spark, folder, address, contestant, count)
    while query.isActive and len(epochs_of(query)) < EPOCHS:
        query.awaitTermination(1)
    done = epochs_of(query)[WARM_UP:EPOCHS]
    query.stop()
    return [epoch["durationMs"]["triggerExecution"] / 1000 for epoch in done]


def measure(folder: Path) -> dict[str, Any]:
    spark = kafka_session(2)
    times: dict[tuple[str, int], list[float]] = {(name, count): [] for name in CONTESTANTS for count in COUNTS}
    with broker(folder) as address:
        for _ in range(ROUNDS):
            for (contestant, count), collected in times.items():
                collected += run(spark, folder, address, contestant, count)
    spark.stop()
    medians = {name: [spread(times[name, count])["median"] for count in COUNTS] for name in CONTESTANTS}
    slopes = {name: float(np.polyfit(COUNTS, found, 1)[0]) for name, found in medians.items()}
    return {
        "work": f"epochs of {ROWS_PER_EPOCH} rows in {', '.join(map(str, COUNTS))} partitions or slices, trigger 0",
        "epoch_ms": {name: [round(value * 1000, 1) for value in found] for name, found in medians.items()},
        "one_more_ms": {name: round(slope * 1000, 2) for name, slope in slopes.items()},
    }
