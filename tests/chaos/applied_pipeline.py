"""The jobs that are killed with sinks that are applied after the decision. Run as ``python applied_pipeline.py PLAN``.

*upserts*: a running count per key, exactly once, into four targets that are decided together. In Cassandra and in
OpenSearch there is the latest count of each key, where a late write would show, and every count that there ever was,
where a lost or a repeated one would.

*sends*: rows as they are, at least once, to Kinesis and to a socket.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tallystick as ts
from tallystick.demo.job import SPARK
from tallystick.sinks.base import SliceContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PER_EPOCH = 40
KEYS = 5
PATIENCE_S = 300.0
"""Longer than another driver may take (`killed_job.RUN_TIMEOUT_S`)."""


@dataclass(frozen=True)
class Plan:
    """``held`` and ``dies`` are epochs: in the first, a worker of generation 1 waits before it applies to Cassandra
    until a file ``go`` is there; in the second, a worker kills itself when it has applied, once."""

    folder: str
    job: str
    epochs: int
    master: str = "local[2]"
    cassandra: str = ""
    latest_table: str = ""
    history_table: str = ""
    opensearch: str = ""
    latest_index: str = ""
    history_index: str = ""
    kinesis: str = ""
    stream: str = ""
    port: int = 0
    held: int = -1
    dies: int = -1
    restarts: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


PLAN = Plan("", "", 0)
"""What this process was told; workers get it with the sinks."""


class FaultyCassandra(ts.sinks.Cassandra):
    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        read = list(batches)  # the other driver throws the staged file away meanwhile
        was_held = hold(context)
        super().apply(context, read)
        if was_held:
            Path(PLAN.folder, "applied-late").touch()
        die(context, "cassandra")


class FaultyOpenSearch(ts.sinks.OpenSearch):
    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        super().apply(context, batches)
        die(context, "opensearch")


def hold(context: SliceContext) -> bool:
    if (context.attempt.epoch, context.attempt.generation) != (PLAN.held, 1):
        return False
    folder = Path(PLAN.folder)
    (folder / "held").touch()
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"held for {PATIENCE_S:g} s, and nobody said go")
        time.sleep(0.05)
    return True


def die(context: SliceContext, where: str) -> None:
    mark = Path(PLAN.folder, f"died-{where}")
    if context.attempt.epoch == PLAN.dies and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def record(number: int) -> dict[str, object]:
    return {"id": number, "key": f"k{(number * 7 + number // 11) % KEYS}"}


def count_per_key(rows: DataFrame) -> DataFrame:
    return rows.groupBy("key").count()


def as_they_are(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "CAST(id AS STRING) AS value")


def job(plan: Plan) -> ts.Job:
    upserts = plan.job == "upserts"
    return ts.Job(
        plan.job,
        source=ts.sources.Collection(
            record, length=plan.epochs * PER_EPOCH, schema="id long, key string", per_epoch=PER_EPOCH
        ),
        steps=count_per_key if upserts else as_they_are,
        output_mode="update" if upserts else "append",
        sink=upserted(plan) if upserts else sent(plan),
        checkpoint=ts.Checkpoint(Path(plan.folder) / "checkpoint", interval="0s", timeout="3m"),
        restart=ts.FixedDelay(plan.restarts, "1s") if plan.restarts else None,
        guarantee="exactly-once" if upserts else "at-least-once",
    )


def upserted(plan: Plan) -> list[ts.Output]:
    made = []
    if plan.cassandra:
        made += [
            ts.Output(FaultyCassandra(plan.cassandra, plan.latest_table), "latest-table"),
            ts.Output(ts.sinks.Cassandra(plan.cassandra, plan.history_table), "history-table"),
        ]
    if plan.opensearch:
        made += [
            ts.Output(FaultyOpenSearch(plan.opensearch, plan.latest_index, "key"), "latest-index"),
            ts.Output(ts.sinks.OpenSearch(plan.opensearch, plan.history_index), "history-index"),
        ]
    return made


def sent(plan: Plan) -> list[ts.Output]:
    signed = {"region": "us-east-1", "access_key": "any", "secret_key": "any"}
    return [
        ts.Output(ts.sinks.Kinesis(plan.stream, endpoint=plan.kinesis, **signed)),
        ts.Output(ts.sinks.Socket("127.0.0.1", plan.port), select=["value"]),
    ]


def expected(epochs: int) -> list[tuple[str, int]]:
    """Every count of every key, as a run without faults writes them."""
    counts: dict[str, int] = {}
    updates = []
    for epoch in range(epochs):
        touched = [str(record(number)["key"]) for number in range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH)]
        for key in touched:
            counts[key] = counts.get(key, 0) + 1
        updates += [(key, counts[key]) for key in sorted(set(touched))]
    return updates


def main(text: str) -> None:
    global PLAN
    PLAN = Plan(**json.loads(text))
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    for noisy in ("py4j", "cassandra", "opensearch", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    made = job(PLAN)
    made.run(ts.session(PLAN.job, master=PLAN.master, conf=SPARK, fast_start=True), available_now=True)


if __name__ == "__main__":
    main(sys.argv[1])
