"""The job that the kill matrix kills: a running count per key, into two sinks that are decided together.

Run as ``python pipeline.py MODE FOLDER EPOCHS MASTER``. CHECKPOINT names another place than the folder for it,
SPARK_SETTINGS has more settings for Spark, as JSON.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

import tallystick as ts
from tallystick.demo.job import SPARK

PER_EPOCH = 40
KEYS = 5


def record(number: int) -> dict[str, object]:
    return {"id": number, "key": f"k{(number * 7 + number // 11) % KEYS}"}


def job(mode: str, folder: Path, epochs: int) -> ts.Job:
    return ts.Job(
        "kill-matrix",
        source=ts.sources.Collection(
            record, length=epochs * PER_EPOCH, schema="id long, key string", per_epoch=PER_EPOCH
        ),
        steps=lambda rows: rows.groupBy("key").count(),
        output_mode="update",
        sink=[
            ts.Output(ts.sinks.Files(folder / "json", format="json"), "json"),
            ts.Output(ts.sinks.Files(folder / "parquet", partition_by=["key"]), "parquet", where="key != 'k0'"),
        ],
        checkpoint=ts.Checkpoint(os.environ.get("CHECKPOINT") or folder / "checkpoint", interval="0s"),
        guarantee=mode,
    )


def expected(epochs: int) -> Iterator[tuple[str, int]]:
    """What a run without faults writes to the JSON sink."""
    counts: dict[str, int] = {}
    for epoch in range(epochs):
        touched = [str(record(number)["key"]) for number in range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)]
        for key in touched:
            counts[key] = counts.get(key, 0) + 1
        yield from ((key, counts[key]) for key in sorted(set(touched)))


def expected_parquet(epochs: int) -> list[tuple[str, int]]:
    return [update for update in expected(epochs) if update[0] != "k0"]


def read_json(folder: Path) -> list[tuple[str, int]]:
    lines = [line for path in (folder / "json").glob("*.json") for line in path.read_text().splitlines()]
    return [(row["key"], row["count"]) for row in map(json.loads, lines)]


def read_parquet(folder: Path) -> list[tuple[str, int]]:
    return [
        (path.parent.name.removeprefix("key="), count)
        for path in (folder / "parquet").glob("key=*/*.parquet")
        for count in pq.ParquetFile(path).read()["count"].to_pylist()
    ]


if __name__ == "__main__":
    mode, folder, epochs, master = sys.argv[1:]
    counting = job(mode, Path(folder), int(epochs))
    conf = {**SPARK, **json.loads(os.environ.get("SPARK_SETTINGS", "{}"))}
    spark = ts.session("kill-matrix", master=master, conf=conf, fast_start=True, jvm_parts=counting.jvm_parts)
    counting.run(spark, available_now=True)
