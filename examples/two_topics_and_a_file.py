"""One stream into two topics and a folder of files, decided together: an epoch is in all three of them, or in none.

    tallystick run examples/two_topics_and_a_file.py

Without that, a crash between the writes leaves an alarm whose line is in no archive, or the other way round. Each
`Output` says what its sink gets: ``where`` is a SQL condition, ``select`` are columns or SQL expressions.
"""

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.prover import Numbered

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
LINES = os.environ.get("LINES", "lines")
VIEWS = os.environ.get("VIEWS", "views")
ALARMS = os.environ.get("ALARMS", "alarms")
WORK = Path(os.environ.get("WORK", "work"))

LINE = r"^(\d+) (\S+) app_id=(\w+) (\S+) (\d{3})$"


def parse(records: DataFrame) -> DataFrame:
    line = F.col("value").cast("string")
    parsed = records.select(
        line.alias("line"),
        F.regexp_extract(line, LINE, 3).alias("app_id"),
        F.regexp_extract(line, LINE, 4).alias("page"),
        F.regexp_extract(line, LINE, 5).alias("status"),
    )
    return parsed.where("status != ''")


def prove_input(record: Numbered) -> str:
    """What ``tallystick prove examples/two_topics_and_a_file.py`` sends: every tenth line is an alarm."""
    status = 500 if record.number % 10 == 0 else 200
    return f"{record.number} GET app_id={record.key} /page/{record.sequence} {status}"


job = ts.Job(
    "views-and-alarms",
    source=ts.sources.Kafka(KAFKA, LINES, max_records_per_epoch=100_000),
    steps=parse,
    sink=[
        ts.Output(
            ts.sinks.Kafka(KAFKA, VIEWS),
            "views",
            where="status < '500'",
            select=["app_id AS key", "to_json(struct(app_id, page, status)) AS value"],
        ),
        ts.Output(
            ts.sinks.Kafka(KAFKA, ALARMS), "alarms", where="status >= '500'", select=["app_id AS key", "line AS value"]
        ),
        # Parquet by app: files appear under their final names when the epoch is decided, and any reader may read them.
        ts.Output(ts.sinks.Files(WORK / "archive", partition_by=["app_id"]), "archive"),
    ],
    checkpoint=ts.Checkpoint(WORK / "views-and-alarms", interval="1s"),
    restart=ts.FixedDelay(attempts=10, delay="5s"),
)
