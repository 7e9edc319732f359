"""Kafka -> page views per app and minute -> Kafka, by the time in the lines and not by the time of arrival.

    tallystick run examples/kafka_window_count.py

A window is written once, when the watermark has passed its end (append mode): ten seconds after the newest line that
was seen. Lines that come later than that are left out, as Spark does it; the same lines at every repetition.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
LINES = os.environ.get("LINES", "lines")
WINDOWS = os.environ.get("WINDOWS", "app-pv-per-minute")
WORK = Path(os.environ.get("WORK", "work"))
PER_EPOCH = 10_000


def count_per_minute(records: DataFrame) -> DataFrame:
    line = F.col("value").cast("string")
    views = records.select(
        F.try_to_timestamp(F.regexp_extract(line, r"^\d+ (\S+)", 1)).alias("at"),  # null, and left out, if it is none
        F.regexp_extract(line, r"app_id=(\w+)", 1).alias("app_id"),
    )
    counts = (
        views.withWatermark("at", "10 seconds")
        .groupBy(F.window("at", "1 minute"), "app_id")
        .agg(F.count("*").alias("pv"))
    )
    # Milliseconds, as Kafka has its own times: a date in text would depend on the time zone of the session.
    found = F.struct(F.unix_millis("window.start").alias("minute_ms"), "app_id", "pv")
    return counts.select(F.col("app_id").alias("key"), F.to_json(found).alias("value"))


job = ts.Job(
    "app-pv-per-minute",
    source=ts.sources.Kafka(KAFKA, LINES, max_records_per_epoch=PER_EPOCH),
    steps=count_per_minute,
    sink=ts.sinks.Kafka(KAFKA, WINDOWS),
    checkpoint=ts.Checkpoint(WORK / "app-pv-per-minute", interval="1s"),
    restart=ts.FixedDelay(attempts=10, delay="5s"),
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
