"""The Kafka to Kafka job that faults hit: records as they are, or a running count per key.

Run as ``python kafka_pipeline.py PLAN``, with the plan as JSON. A plan may hold the job at named places::

    FOLDER/marks/POINT@EPOCH.reached     the job is there, and waits
    FOLDER/marks/POINT@EPOCH.released    made by the test: it may go on

On the driver these are the kill points; in the tasks ``before-pre-commit`` and ``after-pre-commit`` of slice 0; and on
the driver ``before-commits``, and ``between-commits``, when one slice is committed and the others are not.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tallystick as ts
from tallystick import killpoints
from tallystick.demo.job import SPARK
from tallystick.errors import SinkError
from tallystick.records import Json, Outcome
from tallystick.sinks.kafka.sink import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME = "kafka-faults"
KEYS = 50
PER_EPOCH = 200
PARTITIONS = 2
HELD_AT_MOST_S = 120.0


@dataclass(frozen=True)
class Plan:
    """``counts``: a running count per key (with a shuffle and state) instead of the records as they are; ``slices``: so
    many of them, by key, which share the tasks that there are slots for."""

    folder: str
    servers: str
    source: str
    target: str
    epochs: int
    mode: str = "exactly-once"
    counts: bool = False
    slices: int = 0
    restarts: int = 0
    holds: tuple[str, ...] = ()
    master: str = "local[2]"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        value = json.loads(text)
        return cls(**{**value, "holds": tuple(value["holds"])})


@dataclass(frozen=True)
class Record:
    """Number N of the source. A key is in one partition only, so that its records have an order."""

    number: int

    @property
    def key(self) -> str:
        return f"k{self.number % KEYS}"

    @property
    def sequence(self) -> int:
        return self.number // KEYS

    @property
    def partition(self) -> int:
        return self.number % PARTITIONS

    @property
    def value(self) -> str:
        return f"{self.key} {self.sequence} {self.number}"


def source_records(epochs: int) -> Iterator[Record]:
    """Spark takes as many records of each partition: those of epoch N are the Nth ``PER_EPOCH`` numbers."""
    return (Record(number) for number in range(epochs * PER_EPOCH))


def expected(plan: Plan) -> Iterator[tuple[str, str]]:
    """Key and value of every record that a run without faults writes."""
    if not plan.counts:
        yield from ((record.key, record.value) for record in source_records(plan.epochs))
        return
    for epoch in range(1, plan.epochs + 1):
        yield from ((f"k{key}", str(epoch * PER_EPOCH // KEYS)) for key in range(KEYS))


@dataclass(frozen=True)
class Holds:
    folder: str
    points: tuple[str, ...]

    def wanted(self, point: str, epoch: int) -> bool:
        return f"{point}@{epoch}" in self.points

    def at(self, point: str, epoch: int) -> None:
        """Wait here until the test lets go, the first time this place is reached."""
        name = f"{point}@{epoch}"
        marks = Path(self.folder) / "marks"
        if not self.wanted(point, epoch) or not _made(marks / f"{name}.reached"):
            return
        deadline = time.monotonic() + HELD_AT_MOST_S
        while not (marks / f"{name}.released").exists():
            if time.monotonic() > deadline:
                raise SinkError(f"{name} was never released")
            time.sleep(0.02)


def _made(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True, repr=False)
class HeldKafka(ts.sinks.Kafka):
    """The Kafka sink, held where the plan says so."""

    holds: Holds = Holds("", ())

    def pre_commit(self, transaction: Transaction) -> Json:
        context = transaction.context
        if context.slice == 0:
            self.holds.at("before-pre-commit", context.attempt.epoch)
        committable = super().pre_commit(transaction)
        if context.slice == 0:
            self.holds.at("after-pre-commit", context.attempt.epoch)
        return committable

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        if self.holds.wanted("before-commits", _epoch):
            # now the coordinators are known, and what is sent next is the commits themselves
            self.driver.transactions.describe([committable["name"] for committable in committables])
            self.holds.at("before-commits", _epoch)
        if not self.holds.wanted("between-commits", _epoch):
            return super().commit_all(committables, recovering)
        first = super().commit_all(committables[:1], recovering)
        self.holds.at("between-commits", _epoch)
        return first + super().commit_all(committables[1:], recovering)


_epoch = -1
"""Driver: the epoch that is on its way."""


def hold_at_kill_points(holds: Holds) -> None:
    """Driver: the points at which it can be killed are also those at which it can be held."""
    reach = killpoints.reach

    def reach_or_hold(point: str, epoch: int) -> None:
        global _epoch
        _epoch = epoch
        holds.at(point, epoch)
        reach(point, epoch)

    killpoints.reach = reach_or_hold


def count_per_key(rows: DataFrame) -> DataFrame:
    counted = rows.groupBy("key").count()
    return counted.selectExpr("key", "CAST(count AS STRING) AS value")


def as_they_are(rows: DataFrame) -> DataFrame:
    return rows.select("key", "value")


def in_slices(count: int) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: as_they_are(rows).repartition(count, "key")


def job(plan: Plan) -> ts.Job:
    folder = Path(plan.folder)
    passed = in_slices(plan.slices) if plan.slices else as_they_are
    return ts.Job(
        NAME,
        source=ts.sources.Kafka(plan.servers, plan.source, max_records_per_epoch=PER_EPOCH),
        steps=count_per_key if plan.counts else passed,
        output_mode="update" if plan.counts else "append",
        sink=HeldKafka(plan.servers, plan.target, holds=Holds(plan.folder, plan.holds)),
        checkpoint=ts.Checkpoint(folder / "checkpoint", interval="0s", timeout="3m"),
        restart=ts.FixedDelay(plan.restarts, "1s") if plan.restarts else None,
        guarantee=plan.mode,
    )


def main(plan: Plan) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    hold_at_kill_points(Holds(plan.folder, plan.holds))
    made = job(plan)
    spark = ts.session(NAME, master=plan.master, conf=SPARK, fast_start=True, jvm_parts=("spark-kafka",))
    made.run(spark, available_now=True)


if __name__ == "__main__":
    main(Plan.from_json(sys.argv[1]))
