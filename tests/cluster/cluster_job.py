"""The job that the cluster tests disturb, with a sink that says what its tasks do and goes wrong where a fault asks it.

Run as ``python cluster_job.py FOLDER MASTER PLAN``, with the plan as JSON. In the folder::

    out/                    what is published
    checkpoint/             Spark's and ours
    events/                 Spark's event log
    marks/TASK.STEP         a task came to this step; TASK is EPOCH.GENERATION-SLICE-TASK
    marks/FAULT.happened    the fault hit a task: which one, in which process, of which executor
    marks/FAULT.released    made by the test: a held task may go on
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

import tallystick as ts
from tallystick import killpoints
from tallystick.errors import SinkError
from tallystick.records import Json
from tallystick.sinks.base import SliceContext
from tallystick.sinks.files.transaction import Transaction
from tallystick.sinks.refusals import Refusal
from tallystick.spark import faststart

PER_EPOCH = 60
KEYS = 12
HELD_AT_MOST_S = 120

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    # both executors from the first task on, so that each of them has a part of every stage
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0s",
    # a lost executor is gone at once, and nobody waits for its shuffle files
    "spark.standalone.executorRemoveDelayOnDisconnection": "200ms",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


@dataclass(frozen=True)
class Fault:
    """What goes wrong, once, with the first task that brings this slice of this epoch to this step.

    ``how`` is *raise*, *hold* (until released), or *outlive*: hold, and do not end when the executor does, like a task
    on a machine that was only cut off.
    """

    epoch: int
    slice: int
    step: str
    how: str

    def __str__(self) -> str:
        return f"{self.how}-{self.epoch}-{self.slice}-{self.step}"

    def happen(self, task: str, marks: Path) -> None:
        draft = marks / f".{self}.{os.getpid()}"
        draft.write_text(json.dumps({"task": task, "pid": os.getpid(), "executor": Path.cwd().parts[-2:]}))
        try:
            (marks / f"{self}.happened").hardlink_to(draft)
        except FileExistsError:
            return
        finally:
            draft.unlink()
        if self.how == "raise":
            raise SinkError(f"{self} was asked for")
        if self.how == "outlive":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            killpoints.driver_is(os.getpid())  # a kill point takes down nobody else any more
        self._hold(marks / f"{self}.released")

    def _hold(self, released: Path) -> None:
        deadline = time.monotonic() + HELD_AT_MOST_S
        while not released.exists():
            if time.monotonic() > deadline:
                raise SinkError(f"{self} was never released")
            time.sleep(0.02)


@dataclass(frozen=True)
class Plan:
    """``counts``: a running count per key (with a shuffle and state) instead of the rows as they are."""

    epochs: int
    counts: bool = False
    faults: tuple[Fault, ...] = ()
    conf: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value = json.loads(text)
        return cls(value["epochs"], value["counts"], tuple(Fault(**fault) for fault in value["faults"]), value["conf"])


class Witness(ts.sinks.Files):
    """A file sink whose tasks leave a mark at every step."""

    def __init__(self, folder: Path, faults: tuple[Fault, ...]) -> None:
        super().__init__(folder / "out", format="json")
        self.marks = folder / "marks"
        self.faults = faults

    def begin_transaction(self, context: SliceContext) -> Transaction[Path]:
        self._reached("begin", context.name)
        return super().begin_transaction(context)

    def write(self, transaction: Transaction[Path], rows: pa.RecordBatch) -> Sequence[Refusal]:
        refused = super().write(transaction, rows)
        self._reached("written", transaction.place.name)
        return refused

    def pre_commit(self, transaction: Transaction[Path]) -> Json:
        committable = super().pre_commit(transaction)
        self._reached("pre-committed", transaction.place.name)
        return committable

    def _reached(self, step: str, task: str) -> None:
        (self.marks / f"{task}.{step}").touch()
        attempt, number, _ = task.split("-")
        for fault in self.faults:
            if (fault.epoch, fault.slice, fault.step) == (int(attempt.split(".")[0]), int(number), step):
                fault.happen(task, self.marks)


def record(number: int) -> dict[str, object]:
    return {"id": number, "key": f"k{(number * 7 + number // 11) % KEYS}"}


def expected(plan: Plan) -> Iterator[tuple[str, int]]:
    """What a run without faults writes."""
    counts: dict[str, int] = {}
    for epoch in range(plan.epochs):
        rows = [(str(row["key"]), row["id"]) for row in map(record, range(epoch * PER_EPOCH, (epoch + 1) * PER_EPOCH))]
        if not plan.counts:
            yield from ((key, int(str(number))) for key, number in rows)
            continue
        for key, _ in rows:
            counts[key] = counts.get(key, 0) + 1
        yield from ((key, counts[key]) for key in sorted({key for key, _ in rows}))


def job(folder: Path, plan: Plan) -> ts.Job:
    def steps(rows: DataFrame) -> DataFrame:
        return rows.groupBy("key").count() if plan.counts else rows

    return ts.Job(
        "on-a-cluster",
        source=ts.sources.Collection(
            record, length=plan.epochs * PER_EPOCH, schema="id long, key string", per_epoch=PER_EPOCH
        ),
        steps=steps,
        output_mode="update" if plan.counts else "append",
        sink=Witness(folder, plan.faults),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s"),
    )


def settings(folder: Path, plan: Plan) -> dict[str, str]:
    """Executors do not inherit the driver's environment: what they need of it goes through Spark's settings."""
    armed = {
        f"spark.executorEnv.{name}": os.environ[name]
        for name in (killpoints.ENVIRONMENT, killpoints.ONCE)
        if name in os.environ
    }
    events = {"spark.eventLog.dir": (folder / "events").as_uri()}
    return {**CONF, "spark.executor.extraJavaOptions": faststart.jvm_options(), **events, **armed, **plan.conf}


if __name__ == "__main__":
    folder, plan = Path(sys.argv[1]), Plan.from_json(sys.argv[3])
    spark = ts.session("on-a-cluster", master=sys.argv[2], conf=settings(folder, plan), fast_start=True)
    job(folder, plan).run(spark, available_now=True)
    spark.stop()
