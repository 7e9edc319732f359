"""Transactions that are not over: what the journal has decided and not seen through, and what sinks hold open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tallystick.cli.opened import Opened
from tallystick.errors import ConfigError, ForeignCheckpointError
from tallystick.protocol.settle import in_force
from tallystick.records import Attempt, Decision, Json, Record, Vote

if TYPE_CHECKING:
    from tallystick.sinks.base import OpenTransaction, TransactionalSink
    from tallystick.spark.job import Job

IN_DOUBT = "in doubt"
"""Decided COMMIT, and the epoch is not in Spark's commit log: published or not, the next start will see to it."""


@dataclass(frozen=True)
class Pending:
    """One transaction that is not over. ``decision`` is the journal's about its attempt, None if there is none."""

    sink: str
    name: str
    state: str
    epoch: int
    generation: int
    age_s: float | None
    slice: int | None
    decision: str | None

    @property
    def next(self) -> str:
        """What the next start of the job does with it."""
        return "is committed" if self.decision == Decision.COMMIT.value else "is rolled back"

    def to_json(self) -> Json:
        age_s = None if self.age_s is None else round(self.age_s, 3)
        return {**asdict(self), "age_s": age_s, "next": self.next}


def pending(opened: Opened, job: Job | None) -> list[Pending]:
    """In the order of epochs. Without the job only the journal is asked, because only the job knows its sinks."""
    records = opened.journal.records()
    in_doubt = _in_doubt(opened, records)
    if job is None:
        return sorted(in_doubt.values(), key=_order)
    decisions = {record.attempt: record.decision for record in records}
    for name, sink in lowered_sinks(opened, job).items():
        for found in sink.open_transactions(opened.owner.id):
            key = _key(name, found.committable if found.committable is not None else found.name)
            in_doubt[key] = _held(name, found, in_doubt.get(key), decisions.get(found.attempt))
    return sorted(in_doubt.values(), key=_order)


def lowered_sinks(opened: Opened, job: Job) -> dict[str, TransactionalSink[Any]]:
    """The job's sinks as the driver uses them. Those that stage beside the checkpoint need a local one."""
    from tallystick.sinks.base import TransactionalSink
    from tallystick.sinks.staged import lower
    from tallystick.spark.offsets import local_path
    from tallystick.spark.stream import JOURNAL_FOLDER

    if job.name != opened.owner.job:
        raise ForeignCheckpointError(
            f"{opened.location} belongs to the job {opened.owner.job!r}, not to {job.name!r}: name that job with --job"
        )
    local = local_path(opened.location)
    sinks: dict[str, TransactionalSink[Any]] = {}
    for output in job.participants:
        if isinstance(output.sink, TransactionalSink):
            sinks[output.name] = output.sink
        elif local is not None:
            sinks[output.name] = lower(output.sink, local.absolute() / JOURNAL_FOLDER / "staging" / output.name)
        else:
            raise ConfigError(f"the sink {output.name!r} stages beside its checkpoint: {opened.location} is not local")
    return sinks


def _in_doubt(opened: Opened, records: Iterable[Record]) -> dict[tuple[str, str], Pending]:
    found: dict[tuple[str, str], Pending] = {}
    open_records = [record for record in records if not opened.is_settled(record.attempt.epoch)]
    for epoch in sorted({record.attempt.epoch for record in open_records}):
        attempts = [record for record in open_records if record.attempt.epoch == epoch]
        standing = in_force(attempts) or ()
        for record in attempts:
            for vote in record.votes:
                if vote in standing and vote.committable is not None:
                    found[_key(vote.sink, vote.committable)] = _decided(record, vote)
    return found


def _decided(record: Record, vote: Vote) -> Pending:
    at = record.facts.get("at")
    age_s = max(0.0, time.time() - at) if isinstance(at, int | float) else None
    decision = record.decision.value
    return _pending(vote.sink, name_of(vote), IN_DOUBT, record.attempt, age_s, vote.slice, decision)


def _held(sink: str, found: OpenTransaction, decided: Pending | None, known: Decision | None) -> Pending:
    """Of an attempt that is decided COMMIT only the votes count: a second try of a task is rolled back, too."""
    decision = decided.decision if decided is not None else Decision.ABORT.value if known is not None else None
    return _pending(sink, found.name, found.state.value, found.attempt, found.age_s, found.slice, decision)


def _pending(
    sink: str, name: str, state: str, attempt: Attempt, age_s: float | None, slice_: int | None, decision: str | None
) -> Pending:
    return Pending(sink, name, state, attempt.epoch, attempt.generation, age_s, slice_, decision)


def name_of(vote: Vote) -> str:
    """What the sink calls the transaction, if its committable tells: a name, or the last part of a folder."""
    named = vote.committable if isinstance(vote.committable, dict) else {}
    return str(named.get("name") or str(named.get("dir", "")).rpartition("/")[2] or f"slice-{vote.slice}")


def _key(sink: str, committable: Json) -> tuple[str, str]:
    """One transaction is one committable, wherever it was found: names are for people."""
    return sink, json.dumps(committable, sort_keys=True)


def _order(entry: Pending) -> tuple[int, int, str, int, str]:
    return (entry.epoch, entry.generation, entry.sink, -1 if entry.slice is None else entry.slice, entry.name)
