"""What is left on disk after ten thousand epochs, and what a decision costs: the real protocol, journal and file sink.

Spark is left out on purpose: prepare calls the sink's verbs directly, so that ten thousand epochs take a minute.
"""

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from machine import spread

import tallystick as ts
from tallystick.journal import Journal
from tallystick.journal.posix import PosixStore
from tallystick.protocol import Command, Prepare, Put, exactly_once
from tallystick.records import Attempt, Fingerprint, Mode, SourceOffsets, Vote
from tallystick.sinks.base import JobContext, SliceContext
from tallystick.spark.coordinator import Coordinator, Plan, drive
from tallystick.spark.outputs import outputs_of

EPOCHS = 10_000
SLICES = 2
ROWS = pa.RecordBatch.from_pydict({"id": list(range(100)), "app": ["app"] * 100})


class WithoutSpark(Coordinator):
    """The driver's side as it is, except that slices are written here."""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        super().__init__(plan, journal)
        self.decision_times: list[float] = []

    def perform(self, command: Command) -> Any:
        if isinstance(command, Prepare):
            return tuple(self._slice(command.attempt, number) for number in range(SLICES))
        started = time.perf_counter()
        answer = super().perform(command)
        if isinstance(command, Put):
            self.decision_times.append(time.perf_counter() - started)
        return answer

    def _slice(self, attempt: Attempt, number: int) -> Vote:
        sink = self.plan.sinks["files"]
        transaction = sink.begin_transaction(
            SliceContext(self.plan.job_id, attempt, "files", number, attempt.epoch * SLICES + number)
        )
        sink.write(transaction, ROWS)
        return Vote("files", number, Fingerprint(ROWS.num_rows, number), sink.pre_commit(transaction))

    def epoch(self, number: int) -> None:
        self._epoch = number
        self._read = SourceOffsets(f"{number:032x}", ({"offset": number},))
        drive(exactly_once(Attempt(number, self._claimed(number))), self.perform)


def files_and_bytes(folder: Path) -> dict[str, int]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {"files": len(found), "bytes": sum(path.stat().st_size for path in found)}


def measure(folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    sink = ts.sinks.Files(folder / "out")
    sink.check(JobContext())
    journal = Journal(PosixStore(folder / "ck" / "tallystick"))
    identity = journal.identify("bounded")
    plan = Plan(
        job=identity.job,
        job_id=identity.id,
        who={},
        mode=Mode.EXACTLY_ONCE,
        checkpoint=str(folder / "ck"),
        outputs=outputs_of(sink),
        sinks={"files": sink},
    )
    coordinator = WithoutSpark(plan, journal)
    sizes: dict[str, Any] = {}
    started = time.perf_counter()
    for number in range(EPOCHS):
        coordinator.epoch(number)
        for path in (folder / "out").glob("*.parquet"):
            path.unlink()  # a consumer takes the published files away
        if number + 1 in (100, 1_000, EPOCHS):
            sizes[str(number + 1)] = {
                "journal": files_and_bytes(folder / "ck" / "tallystick"),
                "staging": files_and_bytes(folder / "out" / ".tallystick"),
            }
    decisions = spread(coordinator.decision_times)
    return {
        "work": f"{EPOCHS} epochs of {SLICES} slices without Spark",
        "seconds": round(time.perf_counter() - started, 1),
        "decision_ms": {key: round(value * 1000, 2) for key, value in decisions.items() if key != "runs"},
        "left_on_disk_after_epochs": sizes,
    }
