"""What the database benchmarks share: rows, a query per contestant, and the plain writers that it is compared with."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from tallystick.sinks.postgresql.client import pool_for
from tallystick.sinks.postgresql.rows import blocks

SLICES = 2
EPOCHS = 5
WARM_UP = 1


class PlainCopy:
    """COPY from the same workers, over connections that are kept, in the same format: committed at once."""

    def __init__(self, sink: ts.sinks.PostgreSQL, columns: str) -> None:
        self.parameters, self.statement = sink.parameters, f"COPY {sink.quoted} ({columns}) FROM STDIN (FORMAT csv)"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        with pool_for(self.parameters).use() as connection, connection.cursor().copy(self.statement) as copy:
            for batch in batches:
                count += batch.num_rows
                for block in blocks(batch):
                    copy.write(block)
        yield pa.RecordBatch.from_pydict({"rows": [count]})


class PlainPipeline:
    """Commands from the same workers through redis-py's pipeline, a thousand at a time: applied at once."""

    def __init__(self, sink: ts.sinks.Redis) -> None:
        self.sink = sink

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count, prefix = 0, self.sink.key_prefix.encode()
        for batch in batches:
            keys, values = batch["key"].cast(pa.binary()).to_pylist(), batch["value"].cast(pa.binary()).to_pylist()
            for first in range(0, len(keys), 1000):
                pipeline = self.sink.client.pipeline(transaction=False)
                pairs = zip(keys[first : first + 1000], values[first : first + 1000], strict=True)
                for key, value in pairs:
                    pipeline.execute_command(self.sink.command.upper(), prefix + key, value)
                pipeline.execute()
            count += len(keys)
        yield pa.RecordBatch.from_pydict({"rows": [count]})


def source(spark: SparkSession, rows_per_epoch: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_epoch)
    return reader.option("numPartitions", SLICES).load()


def plain(rows: DataFrame, write: Any, folder: Path) -> list[float]:
    """Rows per second, epoch by epoch, through ``foreachBatch`` with nothing but the writer in it."""

    def each(batch: DataFrame, _: int) -> None:
        batch.mapInArrow(write, "rows long").collect()

    shutil.rmtree(folder, ignore_errors=True)
    query = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(folder))
    return _rates(query.trigger(processingTime="0 seconds").start())


def ours(rows: DataFrame, sink: Any, folder: Path) -> list[float]:
    shutil.rmtree(folder, ignore_errors=True)
    query = ts.write_stream(rows, sink, checkpoint=ts.Checkpoint(folder, interval="0s"))
    return _rates(query.trigger(processingTime="0 seconds").start())


def _rates(query: Any) -> list[float]:
    done: list[Any] = []
    while query.isActive and len(done) < EPOCHS:
        query.awaitTermination(1)
        done = [epoch for epoch in query.recentProgress if epoch["numInputRows"]]
    query.stop()
    measured = done[WARM_UP:EPOCHS]
    return [epoch["numInputRows"] / (epoch["durationMs"]["triggerExecution"] / 1000) for epoch in measured]
