"""How many rows a Python worker gets at once, seen by the worker itself."""

import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.sinks.base import SliceContext
from tallystick.sinks.memory import Memory, Transaction
from tallystick.spark.batching import BYTES, DO_NOT_ASK, ROWS, Batching, Seen, may_adapt

pytestmark = pytest.mark.spark

register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Watched(Memory):
    """Notes how many rows came at once in which epoch; keeps the first of them only."""

    def __init__(self, table: str, notes: Path) -> None:
        super().__init__(table)
        self.notes = notes

    def begin_transaction(self, context: SliceContext) -> Transaction:
        self.epoch = context.attempt.epoch
        return super().begin_transaction(context)

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> None:
        with self.notes.open("a") as notes:
            notes.write(f"{self.epoch} {rows.num_rows}\n")
        super().write(transaction, rows.slice(0, 1).take(pa.array([0])))


def stream(spark: SparkSession, rows_per_epoch: int, row_bytes: int) -> DataFrame:
    numbered = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_epoch)
    return numbered.option("numPartitions", 1).load().select("value", F.lit("x" * row_bytes).alias("filling"))


def batches(rows: DataFrame, folder: Path, epochs: int) -> list[list[int]]:
    """The batches of each of the first epochs."""
    notes = folder / "notes"
    notes.touch()
    query = ts.write_stream(rows, Watched(folder.name, notes), checkpoint=folder / "checkpoint").start()
    deadline = time.monotonic() + 60
    while query.isActive and time.monotonic() < deadline:
        if query.lastProgress and query.lastProgress["batchId"] >= epochs:
            break
        time.sleep(0.02)
    query.stop()
    seen = [line.split() for line in notes.read_text().splitlines()]
    return [[int(rows) for _, rows in group] for _, group in groupby(seen, key=lambda line: line[0])][:epochs]


def test_batches_fit_the_rows_that_were_seen(spark: SparkSession, tmp_path: Path) -> None:
    first, second = batches(stream(spark, 25_000, 1000), tmp_path, 2)
    assert first == [10_000, 10_000, 5_000]
    assert second == [4096] * 6 + [25_000 - 6 * 4096]
    assert spark.conf.get(ROWS, None) is None  # so that the next start begins with Spark's own limits


def test_spark_goes_on_asking_for_bytes_while_rows_are_large(spark: SparkSession, tmp_path: Path) -> None:
    first, second = batches(stream(spark, 2_000, 50_000), tmp_path, 2)
    assert first == second
    assert len(first) == 2
    assert first[0] * 50_000 < 68_000_000


def test_limits_that_somebody_set_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(ROWS, "7000")
    try:
        assert batches(stream(spark, 20_000, 1000), tmp_path, 2) == [[7_000, 7_000, 6_000]] * 2
    finally:
        spark.conf.unset(ROWS)


def _worded(value: int) -> str:
    return str(value)


def _same(rows: Iterator[Any]) -> Iterator[Any]:
    yield from rows


def test_a_python_step_of_the_user_keeps_sparks_limits(spark: SparkSession) -> None:
    rows = stream(spark, 10, 10)
    assert may_adapt(rows)
    assert may_adapt(rows.select(F.explode(F.array("value", "value")).alias("value")))
    assert not may_adapt(rows.select(F.udf(_worded, "string", useArrow=False)("value").alias("text")))
    assert not may_adapt(rows.mapInArrow(_same, rows.schema).where("value > 1"))

    class Twice:
        def eval(self, value: int) -> Iterator[tuple[int]]:
            yield (value,)

    twice: Any = F.udtf(Twice, returnType="copied long")
    spark.udtf.register("twice", twice)
    rows.createOrReplaceTempView("numbered")
    assert not may_adapt(spark.sql("select * from numbered, lateral twice(value)"))


def test_what_was_seen_is_remembered_for_a_while(spark: SparkSession) -> None:
    own, batching = spark.newSession(), Batching(adapts=True)

    def after(*slices: Seen) -> tuple[str | None, str | None]:
        batching.saw(own, slices)
        return own.conf.get(ROWS, None), own.conf.get(BYTES, None)

    nothing = (None, None)
    assert after() == nothing
    assert after(Seen(999, 999 * 50)) == nothing  # too few to tell
    assert after(Seen(1_000, 1_000 * 50), Seen(0, 0)) == ("10000", DO_NOT_ASK)
    assert after(Seen(10, 10 * 2_000)) == ("2048", DO_NOT_ASK)
    assert after(Seen(1, 500_000), Seen(100_000, 100_000)) == nothing
    for _ in range(15):
        assert after(Seen(100_000, 100_000)) == nothing
    assert after(Seen(100_000, 100_000)) == ("10000", DO_NOT_ASK)
