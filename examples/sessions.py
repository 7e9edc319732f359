"""Sessions: clicks of a user that follow each other within ten seconds, published once, when they are surely over.

    tallystick run examples/sessions.py --available-now

The clicks are made up from their number. Output goes to ``SESSIONS/sessions`` (default: a folder ``sessions`` here).
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts

FOLDER = Path(os.environ.get("SESSIONS", "sessions"))
CLICKS = 120


def click(number: int) -> dict[str, object]:
    """Bursts of five clicks, a second apart; half a minute between two bursts."""
    return {"user": f"user{number // 5 % 3}", "second": number // 5 * 30 + number % 5}


def sessions(clicks: DataFrame) -> DataFrame:
    timed = clicks.withColumn("at", F.timestamp_seconds("second")).withWatermark("at", "5 seconds")
    found = timed.groupBy(F.session_window("at", "10 seconds"), "user").agg(F.count("*").alias("clicks"))
    return found.selectExpr("user", "unix_seconds(session_window.start) as start", "clicks")


job = ts.Job(
    "sessions",
    source=ts.sources.Collection(click, length=CLICKS, schema="user string, second long", per_epoch=20),
    steps=sessions,
    sink=ts.sinks.Files(FOLDER / "sessions", format="json"),
    checkpoint=ts.Checkpoint(FOLDER / "checkpoint", interval="0s"),
    restart=ts.FixedDelay(attempts=3, delay="1s"),
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
