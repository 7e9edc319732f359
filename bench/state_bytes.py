"""What an epoch writes to the checkpoint when one key of a hundred changes, of a million, against the whole state.

Three ways to keep state: RocksDB with changelogs (the default of stateful jobs), RocksDB with a snapshot per epoch, and
Spark's own store in memory. The first epoch writes every key, which is the size that the others are compared with. What
Spark uploads in the background (snapshots) is counted too.
"""

import threading
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import tallystick as ts
from tallystick.spark.session import CHANGELOG, PROVIDER, ROCKSDB
from tallystick.spark.tree import checkpoint_tree

KEYS = 1_000_000
CHANGED = KEYS // 100
EPOCHS = 12
HDFS_BACKED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
CONTESTANTS = {
    "rocksdb-changelog": {PROVIDER: ROCKSDB, CHANGELOG: "true"},
    "rocksdb-snapshots": {PROVIDER: ROCKSDB, CHANGELOG: "false"},
    "memory-deltas": {PROVIDER: HDFS_BACKED, CHANGELOG: "false"},
}


def feed(spark: SparkSession, folder: Path) -> None:
    """One file per epoch: all keys, then a hundredth of them, others each time."""
    for epoch in range(EPOCHS + 1):
        keys = (
            spark.range(KEYS) if epoch == 0 else spark.range(CHANGED).selectExpr(f"(id * 97 + {epoch}) % {KEYS} as id")
        )
        keys.coalesce(1).write.mode("append").parquet(str(folder))


def counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy("id").count()


def run(spark: SparkSession, folder: Path, source: Path, conf: dict[str, str]) -> list[int]:
    """Bytes of state that were written until the end of each epoch, and by what followed it."""
    seen: dict[str, int] = {}
    written: list[int] = []
    lock = threading.Lock()

    def look(*_: object) -> None:
        with lock:
            now = checkpoint_tree(str(folder / "checkpoint"), None)
            new = {path: size for path, size in now.items() if path.startswith("state/") and seen.get(path) != size}
            seen.update(new)
            written.append(sum(new.values()))

    job = ts.Job(
        "state-bytes",
        source=ts.sources.Files(source, format="parquet", schema="id long", max_files_per_epoch=1),
        steps=counts,
        output_mode="update",
        sink=ts.sinks.Files(folder / "out"),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        job.run(spark, available_now=True, on_finished=look)
    finally:
        for name in conf:
            spark.conf.unset(name)
    look()
    return written


def measure(spark: SparkSession, folder: Path) -> dict[str, Any]:
    source = folder / "in"
    feed(spark, source)
    runs = {name: run(spark, folder / name, source, conf) for name, conf in CONTESTANTS.items()}
    ratios = {}
    for name, written in runs.items():
        whole, later = written[0], written[1 : EPOCHS + 1]
        ratios[name] = {
            "state_bytes": whole,
            "epoch_bytes_median": round(median(later)),
            "epoch_bytes_mean": round(sum(written[1:]) / EPOCHS),
            "median_of_state": round(median(later) / whole, 4),
            "mean_of_state": round(sum(written[1:]) / EPOCHS / whole, 4),
        }
    return {"work": "state-bytes", "keys": KEYS, "changed_per_epoch": CHANGED, "epochs": EPOCHS, "contestants": ratios}
