"""The file sink with Spark on both ends: Spark shapes the rows, and reads back what was published."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from tallystick.errors import RowRefusedError
from tallystick.records import Outcome
from tallystick.sinks import Files
from tallystick.sinks.base import JobContext
from tallystick.testing.sinks import context

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _far_away(spark: SparkSession) -> Iterator[None]:
    """A time zone in which a forgotten conversion shows."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


ROWS: list[tuple[Any, ...]] = [
    (1, 'q"uo,te', dt.datetime(2026, 1, 2, 3, 4, 5, 123456), Decimal("1.50"), True, dt.date(2026, 1, 31)),
    (2, "two\nlines", dt.datetime(2026, 7, 2, 3, 4, 5), None, False, None),
    (3, "  spaces  ", None, Decimal("-0.01"), None, dt.date(2026, 1, 31)),
    (4, "", None, None, None, None),
    (5, None, None, None, None, None),
]
SCHEMA = "id long, text string, seen timestamp, price decimal(9,2), flag boolean, day date"


def publish(spark: SparkSession, sink: Files, schema: str = SCHEMA, rows: Any = tuple(ROWS)) -> None:
    frame = spark.createDataFrame(list(rows), schema)
    columns = sink.columns(frame.schema, f.col)
    shaped = frame if columns is None else frame.select(*columns)
    sink.check(JobContext())
    transaction = sink.begin_transaction(context())
    for batch in shaped.toArrow().to_batches():
        sink.write(transaction, batch)
    assert sink.commit(sink.pre_commit(transaction)) is Outcome.COMMITTED


@pytest.mark.parametrize("format_", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("partition_by", [[], ["day"]], ids=["flat", "partitioned"])
def test_spark_reads_back_what_it_gave(
    spark: SparkSession, format_: str, partition_by: list[str], tmp_path: Path
) -> None:
    publish(spark, Files(tmp_path, format_, partition_by=partition_by, header=format_ == "csv"))
    options = {"csv": {"header": "true", "escape": '"', "multiLine": "true"}}.get(format_, {})
    read = spark.read.format(format_).schema(SCHEMA).options(**options).load(str(tmp_path)).orderBy("id")
    expected = [(row[0], row[1] or None, *row[2:]) for row in ROWS] if format_ == "csv" else ROWS
    assert [tuple(row) for row in read.collect()] == expected  # the file says "" and nothing; Spark reads both as null


def test_pandas_and_duckdb_read_csv_without_options(spark: SparkSession, tmp_path: Path) -> None:
    publish(spark, Files(tmp_path, "csv", header=True))
    (file,) = tmp_path.glob("*.csv")
    texts = [text for _, text, *_ in ROWS]
    assert pd.read_csv(file, keep_default_na=False)["text"].tolist() == [text or "" for text in texts]
    read = duckdb.execute(f"select id, text, seen from read_csv('{file}') order by id").fetchall()
    assert [text or "" for _, text, _ in read] == [text or "" for text in texts]
    assert read[0][2] == ROWS[0][2].astimezone(dt.timezone.utc)


def test_a_required_column_is_named_even_when_rows_are_folded_into_text(spark: SparkSession, tmp_path: Path) -> None:
    for format_ in ("json", "csv", "parquet"):
        sink = Files(tmp_path / format_, format_, required=["id", "text"])
        with pytest.raises(RowRefusedError, match="null in 'text'"):
            publish(spark, sink)
        assert not list(sink.path.glob("part-*"))


def test_json_leaves_nulls_out_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    rows = [Row(a=1, b=None)]
    publish(spark, Files(tmp_path / "out", "json"), "a long, b long", rows)
    publish(spark, Files(tmp_path / "in", "json", options={"ignoreNullFields": "false"}), "a long, b long", rows)
    assert [next((tmp_path / where).glob("*.json")).read_text() for where in ("out", "in")] == [
        '{"a":1}\n',
        '{"a":1,"b":null}\n',
    ]
