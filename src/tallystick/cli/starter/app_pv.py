"""Page views, counted per app, exactly once.

tallystick run app_pv.py --available-now     all page views that are there, then stop
tallystick run app_pv.py                     as they come, until Ctrl-C
"""

from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts

HERE = Path(__file__).resolve().parent


def page_view(offset: int) -> tuple[int, str, str]:
    """The same offset always gives the same page view: that is all a source must promise."""
    return offset, f"app{offset % 3 + 1}", f"/page/{offset % 7}"


def count_per_app(views: DataFrame) -> DataFrame:
    return views.groupBy("app").agg(F.count("*").alias("pv"))


job = ts.Job(
    "app-pv",
    source=ts.sources.Collection(
        page_view, schema="id long, app string, page string", length=10_000, per_epoch=1_000, per_second=1_000
    ),
    steps=count_per_app,
    sink=ts.sinks.Files(HERE / "out", format="json"),
    output_mode="update",
    checkpoint=ts.Checkpoint(HERE / "checkpoint", interval="1s"),
    restart=ts.FixedDelay(attempts=3, delay="5s"),
    guarantee="exactly-once",
    spark_conf={"spark.sql.shuffle.partitions": "2"},
)
