"""The job without faults, twice: what it writes for this workload, epoch by epoch, and whether it always does.

Run as ``python -m tallystick.prover.rehearsal PLAN RESULT``. It also puts the workload in place, because that needs
Spark as well. What it finds goes to the file RESULT as JSON: a `Rehearsal`, or why the job cannot be proven.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.errors import TallystickError, UnprovenError
from tallystick.protocol import Finished
from tallystick.prover.life import LifePlan, log_to_stderr, session_for, subject_of
from tallystick.prover.readers import Item, Reader
from tallystick.prover.redirect import Subject
from tallystick.prover.sight import Sight
from tallystick.records import Attempt, Json
from tallystick.spark.state import may_keep_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMES = 2


@dataclass(frozen=True)
class Written:
    """One row that the job wrote without faults."""

    row: str
    epoch: int
    place: str
    key: str | None = None


@dataclass(frozen=True)
class Rehearsal:
    """What each of the runs wrote to each output, in the order of reading; whether the job keeps state; its pace."""

    runs: tuple[Mapping[str, tuple[Written, ...]], ...]
    keeps_state: bool
    epoch_s: float

    def to_json(self) -> Json:
        runs = [{name: [asdict(row) for row in rows] for name, rows in run.items()} for run in self.runs]
        return {"runs": runs, "keeps_state": self.keeps_state, "epoch_s": self.epoch_s}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Rehearsal:
        runs = tuple(
            {name: tuple(Written(**row) for row in rows) for name, rows in run.items()} for run in value["runs"]
        )
        return cls(runs, bool(value["keeps_state"]), float(value["epoch_s"]))


class _Scribe:
    """Reads every output when an epoch is over: what is new then is what the epoch wrote."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self.written: dict[str, list[Written]] = {name: [] for name in readers}
        self.epochs = 0
        self._readers = readers
        self._sights = {name: Sight() for name in readers}

    def finished(self, attempt: Attempt, finished: Finished) -> None:
        self.epochs += 1
        for name, reader in self._readers.items():
            reader.settle()
            new, _ = self._sights[name].difference(reader.read())
            for place, items in new.items():
                self.written[name] += [_written(item, attempt.epoch, place) for item in items]


def _written(item: Item, epoch: int, place: str) -> Written:
    return Written(item.row, epoch, place, item.key)


def rehearse(plan: LifePlan) -> Rehearsal:
    subject = subject_of(plan.spec)
    spark = session_for(subject, plan.master)
    subject.fill(plan.workload, plan.place)
    runs, keeps_state, took_s, epochs = [], False, 0.0, 0
    for number in range(1, TIMES + 1):
        here = replace(plan, place=replace(plan.place, run=f"rehearsal-{number}"))
        began_s = time.monotonic()
        scribe, keeps_state = _run(subject, here, spark)
        took_s, epochs = time.monotonic() - began_s, scribe.epochs
        runs.append({name: tuple(rows) for name, rows in scribe.written.items()})
    return Rehearsal(tuple(runs), keeps_state, took_s / max(1, epochs))


def _run(subject: Subject, plan: LifePlan, spark: SparkSession) -> tuple[_Scribe, bool]:
    readers: dict[str, Reader] = {}
    subject.prepare(plan.workload, plan.place)
    try:
        readers = subject.opened(plan.place)
        scribe = _Scribe(readers)
        job = subject.redirected(plan.workload, plan.place)
        keeps_state = may_keep_state(job.rows(spark)[0])
        job.run(spark, available_now=True, on_finished=scribe.finished)
        return scribe, keeps_state
    finally:
        for reader in readers.values():
            reader.close()
        subject.conclude(plan.place)


def main(plan: LifePlan, result: Path) -> None:
    try:
        found: Json = {"rehearsal": rehearse(plan).to_json()}
    except UnprovenError as reason:
        found = {"unproven": str(reason), "needed": reason.needed}
    except TallystickError as failure:
        found = {"failed": f"{type(failure).__name__}: {failure}"}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    log_to_stderr()
    main(LifePlan.from_json(sys.argv[1]), Path(sys.argv[2]))
