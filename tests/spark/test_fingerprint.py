"""The row hash: what it must tell apart, and what it must not."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tallystick.spark.fingerprint import row_hash

pytestmark = pytest.mark.spark


def hashes(rows: DataFrame) -> list[int]:
    columns = [(F.col(field.name), field.dataType, field.nullable) for field in rows.schema.fields]
    return [row[0] for row in rows.select(row_hash(columns)).collect()]


def test_nulls_are_seen_where_they_are(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(None, 1), (1, None), (1, 1), (None, None)], "a int, b int")
    assert len(set(hashes(rows))) == 4


def test_nulls_inside_nested_values_are_seen(spark: SparkSession) -> None:
    rows = spark.createDataFrame([([None, 1],), ([1, None],), ([1],), (None,)], "a array<int>")
    assert len(set(hashes(rows))) == 4


def test_maps_and_structs_can_be_hashed(spark: SparkSession) -> None:
    schema = "m map<string,int>, s struct<x:int,y:string>"
    rows = spark.createDataFrame([({"a": 1}, (1, None)), ({"a": 2}, (1, None)), ({"a": 1}, (None, "1"))], schema)
    assert len(set(hashes(rows))) == 3


def test_equal_rows_have_equal_hashes_and_order_does_not_matter(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(number % 7, str(number % 3)) for number in range(200)], "a long, b string")
    assert sorted(hashes(rows)) == sorted(hashes(rows.orderBy("b", "a")))
    assert len(set(hashes(rows))) == 21


def test_more_nullable_columns_than_a_mask_has_bits(spark: SparkSession) -> None:
    width = 130
    schema = ", ".join(f"c{number} int" for number in range(width))
    rows = spark.createDataFrame(
        [tuple(None if column == hole else 1 for column in range(width)) for hole in range(width)], schema
    )
    assert len(set(hashes(rows))) == width
