"""What tasks hand back, on a real Spark: by the class of ours in its JVM, and without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tallystick.spark.collected import Collect, by_one_call, by_printed_rows, collector

PROPERTY = "tallystick.test"


@pytest.fixture(params=["by one call", "by printed rows"])
def way(request: pytest.FixtureRequest, spark: SparkSession) -> Collect:
    return by_one_call(spark) if request.param == "by one call" else by_printed_rows


def in_an_epoch(spark: SparkSession, folder: Path, rows_per_task: int, look: Callable[[DataFrame], Any]) -> Any:
    """What ``look`` gives inside the first epoch of a query of three tasks, with rows ``{"n": …}``."""
    reader = spark.readStream.format("rate-micro-batch").option("numPartitions", 3)
    rows = reader.option("rowsPerBatch", 3 * rows_per_task).load()
    found: list[Any] = []

    def run(batch: DataFrame, _: int) -> None:
        found.append(look(batch))

    texts = rows.selectExpr("to_json(named_struct('n', value, 'said', 'Grüße, 世界')) AS result")
    writer = texts.writeStream.foreachBatch(run).option("checkpointLocation", str(folder / "ck"))
    query = writer.start()
    try:
        while not found and query.isActive:
            time.sleep(0.05)
    finally:
        query.stop()
    return found[0]


def test_a_session_of_ours_has_the_class(spark: SparkSession) -> None:
    assert collector(spark) is not by_printed_rows


def test_one_value_of_each_task_comes_back(spark: SparkSession, tmp_path: Path, way: Collect) -> None:
    found = in_an_epoch(spark, tmp_path, 1, lambda batch: way(batch, {}))
    assert sorted(found, key=lambda one: one["n"]) == [{"n": number, "said": "Grüße, 世界"} for number in range(3)]


def test_tasks_without_a_row_hand_back_nothing(spark: SparkSession, tmp_path: Path, way: Collect) -> None:
    assert in_an_epoch(spark, tmp_path, 1, lambda batch: way(batch.where("result = ''"), {})) == []


def test_properties_hold_for_this_job_alone(spark: SparkSession, tmp_path: Path, way: Collect) -> None:
    def look(batch: DataFrame) -> tuple[Any, Any]:
        def say(_: Any) -> Any:
            import pyarrow as pa
            from pyspark import TaskContext

            task = TaskContext.get()
            said = task.getLocalProperty(PROPERTY) if task is not None else None
            yield pa.RecordBatch.from_pydict({"result": [f'"{said}"']})

        found = way(batch.mapInArrow(say, "result string"), {PROPERTY: "this one", "tallystick.other": ""})
        return found, spark.sparkContext.getLocalProperty(PROPERTY)

    assert in_an_epoch(spark, tmp_path, 1, look) == (["this one"] * 3, "")


def test_properties_are_gone_after_a_failure_too(spark: SparkSession, tmp_path: Path, way: Collect) -> None:
    def look(batch: DataFrame) -> Any:
        with pytest.raises((PySparkException, Py4JError), match="no good row"):
            way(batch.selectExpr("CAST(raise_error('no good row') AS STRING) AS result"), {PROPERTY: "this one"})
        return spark.sparkContext.getLocalProperty(PROPERTY)

    assert in_an_epoch(spark, tmp_path, 1, look) == ""


def test_two_values_of_one_task_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    def look(batch: DataFrame) -> bool:
        with pytest.raises((PySparkException, Py4JError), match="a slice has voted twice"):
            by_one_call(spark)(batch, {})
        return True

    assert in_an_epoch(spark, tmp_path, 2, look)
