"""What one more slice costs an epoch: the same few rows in 2 to 64 slices."""

from pathlib import Path
from typing import Any

import numpy as np
from kafka_work import CONTESTANTS, broker, epochs_of, kafka_session, make_topic, start
from machine import spread
from pyspark.sql import SparkSession

SLICES = (2, 16, 32, 64)
ROWS_PER_EPOCH = 640
EPOCHS = 25
WARM_UP = 6
ROUNDS = 2


def run(spark: SparkSession, folder: Path, address: str, contestant: str, slices: int) -> list[float]:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_EPOCH)
    rows = reader.option("numPartitions", slices).load().selectExpr("CAST(value AS STRING) AS value")
    query = start(contestant, rows, address, make_topic(address), folder / "ck", processingTime="0 seconds")
    while query.isActive and len(epochs_of(query)) < EPOCHS:
        query.awaitTermination(1)
    done = epochs_of(query)[WARM_UP:EPOCHS]
    query.stop()
    return [epoch["durationMs"]["triggerExecution"] / 1000 for epoch in done]


def measure(folder: Path) -> dict[str, Any]:
    spark = kafka_session(2)
    times: dict[tuple[str, int], list[float]] = {(name, count): [] for name in CONTESTANTS for count in SLICES}
    with broker(folder) as address:
        for _ in range(ROUNDS):
            for (contestant, slices), collected in times.items():
                collected += run(spark, folder, address, contestant, slices)
    spark.stop()
    medians = {name: [spread(times[name, count])["median"] for count in SLICES] for name in CONTESTANTS}
    slopes = {name: float(np.polyfit(SLICES, found, 1)[0]) for name, found in medians.items()}
    return {
        "work": f"epochs of {ROWS_PER_EPOCH} rows in {', '.join(map(str, SLICES))} slices, trigger 0",
        "epoch_ms": {name: [round(value * 1000, 1) for value in found] for name, found in medians.items()},
        "one_more_slice_ms": {name: round(slope * 1000, 2) for name, slope in slopes.items()},
        "added_by_tallystick_ms": round((slopes["tallystick"] - slopes["spark"]) * 1000, 2),
    }
