"""What a file of a local checkpoint costs with each of Spark's checkpoint file managers and with ours, and an epoch.

``python scripts/time_file_managers.py``: a minute, best on a machine that has nothing else to do. The figures are in
docs/decisions/0006-spark-checkpoint-file-manager.md. The time of a file is seen from Python, with the calls into the
JVM in it; that of an epoch is what Spark itself tells.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import tallystick as ts
from tallystick.jvm.classes import LOCAL_CLASS
from tallystick.spark.file_manager import FILE_MANAGER, PLAIN_FILE_MANAGER

MANAGERS = {
    "default": PLAIN_FILE_MANAGER.replace("FileSystemBased", "FileContextBased"),
    "plain": PLAIN_FILE_MANAGER,
    "ours": LOCAL_CLASS,
}
FILES, WARM_UP = 150, 50
STEPS = ("walCommit", "commitOffsets", "triggerExecution")
QUERY_S = 12.0


def file_ms(spark: Any, folder: str, name: str, replaces: bool) -> float:
    """The median of one small file: created, written, closed."""
    jvm, took = spark._jvm, []
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    conf.set(FILE_MANAGER, name)
    root = jvm.org.apache.hadoop.fs.Path(f"file://{folder}")
    managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    manager = managers.create(root, conf)
    manager.mkdirs(root)
    for number in range(FILES):
        path = jvm.org.apache.hadoop.fs.Path(root, str(number))
        begun = time.perf_counter()
        stream = manager.createAtomic(path, replaces)
        stream.write(bytearray(400))
        stream.close()
        took.append(time.perf_counter() - begun)
    return statistics.median(took[WARM_UP:]) * 1000


def epoch_ms(spark: Any, folder: str, name: str) -> dict[str, float]:
    """The means of Spark's own measures, over the later epochs of a query that does nothing."""
    spark.conf.set(FILE_MANAGER, name)
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    writer = rows.writeStream.format("noop").trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", folder).start()
    seen: dict[int, dict[str, int]] = {}
    ends = time.monotonic() + QUERY_S
    while time.monotonic() < ends:
        time.sleep(0.2)
        seen.update({progress.batchId: dict(progress.durationMs) for progress in query.recentProgress})
    query.stop()
    later = [durations for epoch, durations in sorted(seen.items()) if epoch > max(seen) // 3]
    return {step: statistics.fmean(each[step] for each in later if step in each) for step in STEPS}


def main() -> None:
    spark = ts.session("file managers", "local[2]", fast_start=True)
    with tempfile.TemporaryDirectory() as root:
        for label, name in MANAGERS.items():
            new, replaced = (file_ms(spark, f"{root}/{label}-{each}", name, each) for each in (False, True))
            steps = " ".join(f"{step} {ms:.1f}" for step, ms in epoch_ms(spark, f"{root}/{label}", name).items())
            print(f"{label:8} new {new:.2f} replaced {replaced:.2f} {steps} (ms)", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
