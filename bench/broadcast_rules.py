"""What rules cost an epoch: the same rows, joined with a handful of rules, and with about as many as are allowed.

No rule changes after the first epoch, so what is measured is what every epoch pays: the rules travel to each task as a
property of its Spark job, and each worker finds that it has them already. Runs are interleaved in one session.
"""

import hashlib
from pathlib import Path
from typing import Any

from epoch_cost import ROWS_PER_EPOCH, stream
from epoch_times import start_timed, stop_after
from machine import spread
from pyspark.sql import SparkSession

import tallystick as ts
from tallystick.spark.broadcast import packed

EPOCHS = 30
WARM_UP = 6
ROUNDS = 3
CONTESTANTS = {"no rules": 0, "10 rules": 10, "8,000 rules": 8_000}


def rules_of(count: int) -> ts.state.Broadcast:
    rows = [{"name": number, "high": hashlib.sha512(str(number).encode()).hexdigest()} for number in range(count)]
    return ts.state.Broadcast("rules", ts.sources.Collection(rows, "name long, high string"), key="name")


def packed_bytes(count: int) -> int:
    rows = [(number, hashlib.sha512(str(number).encode()).hexdigest()) for number in range(count)]
    texts = {f'{{"name":{number}}}': f'{{"name":{number},"high":"{high}"}}' for number, high in rows}
    return len(packed(texts, "0" * 32))


def run(spark: SparkSession, folder: Path, count: int) -> list[float]:
    """Seconds inside foreachBatch, epoch by epoch."""
    times: list[float] = []

    rows = stream(spark).selectExpr("value % 10 as name", "value")
    rules = rules_of(count) if count else None
    writer = ts.write_stream(
        rows if rules is None else rules.join(rows),
        ts.sinks.Files(folder / "out"),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
        broadcast=() if rules is None else rules,
    )
    stop_after(start_timed(writer, times), times, EPOCHS)
    return times[WARM_UP:EPOCHS]


def measure(spark: SparkSession, folder: Path) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(ROUNDS):
        for name, count in CONTESTANTS.items():
            times[name] += run(spark, folder / f"{number}-{count}", count)
    medians = {name: spread(found)["median"] * 1000 for name, found in times.items()}
    return {
        "work": f"epoch of {ROWS_PER_EPOCH} rows, 2 slices, Parquet",
        "packed_bytes": {name: packed_bytes(count) for name, count in CONTESTANTS.items() if count},
        "epoch_ms_median": {name: round(value, 1) for name, value in medians.items()},
        "epochs": {name: len(found) for name, found in times.items()},
    }
