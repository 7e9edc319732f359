"""An epoch that was aborted and done again: its state must be that of the rows that were published."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tallystick as ts
from tallystick.errors import PrepareError, SinkError
from tallystick.records import Json
from tallystick.sinks.files.transaction import Transaction
from tallystick.spark.session import CHANGELOG, PROVIDER
from tallystick.spark.state import may_keep_state

pytestmark = pytest.mark.spark


def refusing_epoch_1() -> type[ts.sinks.Files]:
    """Made in a function, so that it is pickled whole: workers cannot import this file."""

    class Refusing(ts.sinks.Files):
        def pre_commit(self, transaction: Transaction[Path]) -> Json:
            if transaction.place.name.startswith(f"{1:012d}."):
                raise SinkError("this epoch is refused")
            return super().pre_commit(transaction)

    return Refusing


def sums(folder: Path, rows: int, sink: type[ts.sinks.Files], weight: int) -> ts.Job:
    """A running sum over all rows; those of epoch 0 count 1, later ones what ``weight`` says."""

    def steps(numbers: DataFrame) -> DataFrame:
        counted = F.when(F.col("id") < 10, 1).otherwise(weight)
        return numbers.groupBy(F.lit("all").alias("key")).agg(F.sum(counted).alias("sum"))

    return ts.Job(
        "sums",
        source=ts.sources.Collection([{"id": number} for number in range(rows)], per_epoch=10),
        steps=steps,
        output_mode="update",
        sink=sink(folder / "out", format="json"),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


@pytest.fixture(params=["RocksDB", "HDFSBacked"])
def written(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """How a store calls what epoch 1 wrote."""
    spark.conf.set(PROVIDER, f"org.apache.spark.sql.execution.streaming.state.{request.param}StateStoreProvider")
    spark.conf.set(CHANGELOG, "true")
    yield "2.changelog" if request.param == "RocksDB" else "2.delta"
    spark.conf.unset(PROVIDER)
    spark.conf.unset(CHANGELOG)


def test_the_state_of_an_aborted_attempt_does_not_come_back(spark: SparkSession, tmp_path: Path, written: str) -> None:
    """Tasks write their state before the sink fails. The steps are corrected, and the epoch is done again."""
    with pytest.raises(PrepareError, match="epoch 1 could not be prepared: this epoch is refused"):
        sums(tmp_path, 20, refusing_epoch_1(), weight=100).run(spark, available_now=True)
    assert list((tmp_path / "checkpoint" / "state").rglob(written)), "no task wrote its state before it failed"
    sums(tmp_path, 20, ts.sinks.Files, weight=1).run(spark, available_now=True)
    sums(tmp_path, 30, ts.sinks.Files, weight=1).run(spark, available_now=True)
    files = sorted((tmp_path / "out").glob("*.json"))
    assert [json.loads(path.read_text())["sum"] for path in files] == [10, 20, 30]
    assert not list((tmp_path / "checkpoint" / "state").rglob("*.tmp"))


def test_what_may_keep_state(spark: SparkSession) -> None:
    rows = ts.sources.Collection([{"id": 1, "parts": [1]}], per_epoch=1, name="kept").load(spark)
    without = [
        rows,
        rows.filter("id > 1").withColumn("part", F.explode("parts")),
        rows.repartition(2, "id").alias("renamed"),
        rows.union(rows),
        rows.mapInArrow(lambda batches: batches, rows.schema),
    ]
    assert [may_keep_state(frame) for frame in without] == [False] * len(without)
    keeping = [rows.groupBy("id").count(), rows.dropDuplicates(["id"]), rows.limit(3), rows.join(rows, "id")]
    assert [may_keep_state(frame) for frame in keeping] == [True] * len(keeping)
