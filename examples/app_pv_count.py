"""Log lines -> app_id -> running count of page views -> Kafka.

    tallystick run examples/app_pv_count.py

Every epoch writes the new count of each app that was viewed in it (update mode). A reader who keeps the latest value
per key has the count; a reader who sees one twice, or misses one, would have it wrong, and that does not happen: the
offsets that were read, Spark's running counts and the records in Kafka advance together, or none of them does.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.prover import Numbered

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
LINES = os.environ.get("LINES", "lines")
COUNTS = os.environ.get("COUNTS", "app-pv")
WORK = Path(os.environ.get("WORK", "work"))
PER_EPOCH = 10_000


def count_views(records: DataFrame) -> DataFrame:
    app_id = F.regexp_extract(F.col("value").cast("string"), r"app_id=(\w+)", 1)
    views = records.select(app_id.alias("app_id")).where("app_id != ''")  # a line without one is no page view
    counts = views.groupBy("app_id").agg(F.count("*").alias("pv"))
    return counts.select(F.col("app_id").alias("key"), F.col("pv").cast("string").alias("value"))


def prove_input(record: Numbered) -> str:
    """What ``tallystick prove examples/app_pv_count.py`` sends: log lines that the steps above understand."""
    return f"{record.number} GET app_id={record.key} /page/{record.sequence} 200"


job = ts.Job(
    "app-pv",
    source=ts.sources.Kafka(KAFKA, LINES, max_records_per_epoch=PER_EPOCH),
    steps=count_views,
    output_mode="update",
    sink=ts.sinks.Kafka(KAFKA, COUNTS),
    checkpoint=ts.Checkpoint(WORK / "app-pv", interval="1s"),
    restart=ts.FixedDelay(attempts=10, delay="5s"),
    spark_conf={"spark.sql.shuffle.partitions": "2"},  # a few counts are no work for Spark's 200 tasks
)
