"""How an epoch comes from Spark's JVM into Python: ``foreachBatch``, without a new session for each epoch.

PySpark's own ``foreachBatch`` makes a ``SparkSession`` around every batch, half a dozen calls to the JVM, although the
batches of one query all have the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class EpochFunction:
    """Called by the JVM, on the thread of the query. For one start of one query."""

    def __init__(self, spark: SparkSession, run: Callable[[DataFrame, int], None]) -> None:
        self._spark = spark
        self._run = run
        self._of_query: SparkSession | None = None

    def call(self, batch: Any, epoch: int) -> None:
        from pyspark.sql import DataFrame, SparkSession

        if self._of_query is None:
            self._of_query = SparkSession(self._spark.sparkContext, batch.sparkSession())
        self._run(DataFrame(batch, self._of_query), epoch)

    class Java:
        implements = ("org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",)


def each_epoch(
    writer: DataStreamWriter, spark: SparkSession, run: Callable[[DataFrame, int], None]
) -> DataStreamWriter:
    """Driver: the writer whose query calls ``run`` with each of its batches, as its ``foreachBatch`` would do."""
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = spark.sparkContext._gateway
    helper = gateway.jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper
    helper.callForeachBatch(writer._jwrite, EpochFunction(spark, run))
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    return writer
