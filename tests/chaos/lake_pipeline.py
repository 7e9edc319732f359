"""The job that the lake's kill matrix kills: a running count per key, into HDFS, S3 and Delta, decided together.

Run as ``python lake_pipeline.py SINKS FOLDER EPOCHS MASTER``. SINKS are some of delta, hdfs and s3; LAKE_HDFS and
LAKE_S3 name the servers; with LAKE_RESTARTS a failure is not the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pipeline
from pipeline import PER_EPOCH, record
from pyspark.cloudpickle import register_pickle_by_value

import tallystick as ts
from tallystick.demo.job import SPARK

register_pickle_by_value(pipeline)  # type: ignore[no-untyped-call] # workers cannot import it


def sink_of(kind: str, folder: Path) -> ts.sinks.Sink:
    """Text and Parquet, with partitions and without."""
    if kind == "hdfs":
        return ts.sinks.HDFS(os.environ["LAKE_HDFS"], partition_by=["key"])
    if kind == "s3":
        return ts.sinks.S3(os.environ["LAKE_S3"], format="json")
    return ts.sinks.Delta(folder / "delta", partition_by=["key"])


def job(sinks: Sequence[str], folder: Path, epochs: int) -> ts.Job:
    return ts.Job(
        "lake-kill-matrix",
        source=ts.sources.Collection(
            record, length=epochs * PER_EPOCH, schema="id long, key string", per_epoch=PER_EPOCH
        ),
        steps=lambda rows: rows.groupBy("key").count(),
        output_mode="update",
        sink=[ts.Output(sink_of(kind, folder), kind) for kind in sinks],
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
        restart=ts.FixedDelay(60, "1s") if "LAKE_RESTARTS" in os.environ else None,
    )


if __name__ == "__main__":
    sinks, folder, epochs, master = sys.argv[1:]
    spark = ts.session("lake-kill-matrix", master=master, conf=SPARK, fast_start=True)
    job(sinks.split(","), Path(folder), int(epochs)).run(spark, available_now=True)
