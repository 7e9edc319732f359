"""Page views and unique visitors per app: counted exactly, kept as state, published as updates, exactly once.

    tallystick run examples/pv_uv.py --available-now

The views are made up from their number, so every run sees the same ones. Output goes to ``PV_UV/counts`` (default: a
folder ``pv-uv`` here). For very many visitors per app take ``approx_count_distinct``: its state does not grow.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts

FOLDER = Path(os.environ.get("PV_UV", "pv-uv"))
VIEWS = 120


def view(number: int) -> dict[str, object]:
    return {"app": f"app{number % 3}", "user": f"user{number * 7 % 31}"}


def count(views: DataFrame) -> DataFrame:
    return views.groupBy("app").agg(F.count("*").alias("pv"), F.size(F.collect_set("user")).alias("uv"))


job = ts.Job(
    "pv-uv",
    source=ts.sources.Collection(view, length=VIEWS, schema="app string, user string", per_epoch=20),
    steps=count,
    output_mode="update",
    sink=ts.sinks.Files(FOLDER / "counts", format="json"),
    checkpoint=ts.Checkpoint(FOLDER / "checkpoint", interval="0s"),
    restart=ts.FixedDelay(attempts=3, delay="1s"),
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
