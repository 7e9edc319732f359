"""The driver's side of an epoch: carries out what the protocol asks, through Spark, the journal and the sinks.

`Coordinator.run_epoch` is what ``foreachBatch`` calls. The order of things is in `protocol/epoch.py`; here is one
method per command. One coordinator is one generation: it is made when a query starts and never used again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tallystick import killpoints
from tallystick.errors import (
    CheckpointError,
    CommitPendingError,
    EpochError,
    FencedError,
    ForeignCheckpointError,
    TallystickError,
)
from tallystick.journal import Journal, horizon, roll_up
from tallystick.journal import Note as JournalNote
from tallystick.journal.audit import EPOCHS_PER_SEGMENT
from tallystick.protocol import (
    MODES,
    AbortOrphans,
    Command,
    Commit,
    Finished,
    Note,
    Prepare,
    Put,
    Recall,
    Recalled,
    Settled,
    Steps,
    Wait,
)
from tallystick.records import Attempt, Decision, Json, Mode, Outcome, Record, SourceOffsets, Vote
from tallystick.sinks.base import TransactionalSink
from tallystick.spark.offsets import read_offsets
from tallystick.spark.outputs import Output, is_flat, projection
from tallystick.spark.prepare import prepare_slices

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("tallystick")

WAIT_FIRST_S = 0.05
WAIT_LONGEST_S = 5.0


@dataclass(frozen=True)
class Plan:
    """What one generation of the driver works with.

    ``who`` says in the journal who drives; ``sinks`` are the outputs' sinks, lowered to transactional ones.
    """

    job: str
    job_id: str
    who: Mapping[str, Json]
    mode: Mode
    checkpoint: str
    outputs: tuple[Output, ...]
    sinks: dict[str, TransactionalSink[Any]]
    commit_patience_s: float = 300.0
    on_finished: Callable[[Attempt, Finished], None] | None = None


class Coordinator:
    def __init__(self, plan: Plan, journal: Journal) -> None:
        self.plan = plan
        self.journal = journal
        self.failure: BaseException | None = None
        self._rows: DataFrame | None = None
        self._read = SourceOffsets()
        self._clock = _StepClock()
        self._waiting_since_s: float | None = None
        self._epoch = -1
        self._generation: int | None = None
        self._projection: list[Column] | None = None

    def run_epoch(self, rows: DataFrame, epoch: int) -> None:
        """One epoch, from Spark's offset log to Spark's commit log. Raises to fail the query."""
        try:
            killpoints.reach("before-settle", epoch)
            me = Attempt(epoch, self._claimed(epoch))
            self._rows, self._epoch, self._clock, self._waiting_since_s = rows, epoch, _StepClock(), None
            self._read = read_offsets(rows.sparkSession, self.plan.checkpoint, epoch)
            finished = drive(MODES[self.plan.mode](me), self.perform)
            killpoints.reach("before-return", epoch)
        except BaseException as failure:
            if isinstance(failure, EpochError):
                failure.details.setdefault("epoch", epoch)
            self.failure = failure
            raise
        finally:
            self._rows = None
        log.info("epoch %d of %s: %s", epoch, self.plan.job, finished.how)
        if self.plan.on_finished is not None:
            self.plan.on_finished(me, finished)

    def _claimed(self, epoch: int) -> int:
        if self._generation is None:
            self._generation = self.journal.claim_generation(self.plan.who, first_epoch=epoch)
        return self._generation

    def perform(self, command: Command) -> Any:
        """Carry out one command and answer it."""
        match command:
            case Settled(epoch):
                return self._settled(epoch)
            case Recall(attempt):
                return self._recall(attempt)
            case Put(record):
                return self._put(record)
            case AbortOrphans(attempt, keep):
                return self._abort_orphans(attempt, keep)
            case Prepare():
                return self._prepare(command)
            case Commit(votes, recovering):
                return self._commit(votes, recovering)
            case Wait(tries, unsettled):
                return self._wait(tries, unsettled)
            case Note(attempt, kind, details):
                level = logging.INFO if kind == "delivered" else logging.WARNING
                log.log(level, "epoch %d of %s: %s: %s", attempt.epoch, self.plan.job, kind, dict(details))
                return self.journal.note(JournalNote(attempt, kind, details))

    def _settled(self, epoch: int) -> None:
        for sink in self.plan.sinks.values():
            sink.settled(self.plan.job_id, epoch)
        if epoch % EPOCHS_PER_SEGMENT == 0:
            roll_up(self.journal, settled=epoch)

    def _recall(self, me: Attempt) -> Recalled:
        if me.epoch <= horizon(self.journal):
            raise ForeignCheckpointError(
                f"epoch {me.epoch} was settled and rolled up long ago, yet Spark runs it again: the checkpoint "
                f"{self.plan.checkpoint} was rewound without its journal. restore both from one copy, or use a new "
                "checkpoint",
                epoch=me.epoch,
            )
        records, rivals = self.journal.recall(me)
        for record in records:
            if record.decision is Decision.COMMIT and record.read.digest not in ("", self._read.digest):
                raise ForeignCheckpointError(
                    f"epoch {me.epoch} was decided for the offsets {list(record.read.offsets)}, but Spark now reads "
                    f"{list(self._read.offsets)}: the checkpoint {self.plan.checkpoint} was rewound or replaced. "
                    "nothing was written. restore it with its journal, or use a new checkpoint",
                    epoch=me.epoch,
                )
        return Recalled(records, rivals, self.journal.resolution(me.epoch) if records else None)

    def _put(self, record: Record) -> Record:
        mine = record.attempt.generation == self._generation
        if mine:
            killpoints.reach("before-decide", record.attempt.epoch)
            record = replace(record, read=self._read, facts=self._clock.facts())
        standing = self.journal.put(record)
        killpoints.reach("after-decide" if mine else "after-fence", record.attempt.epoch)
        self._clock.lap("decide" if mine else "settle")
        if mine and standing.decision is Decision.COMMIT:
            self._check_not_rolled_up(record.attempt)
        return standing

    def _check_not_rolled_up(self, me: Attempt) -> None:
        """A very late zombie finds no ABORT any more, because old ones are pruned; but then its epoch is rolled up.

        Looking after the put leaves no gap: an ABORT is pruned only when its segment stands.
        """
        if me.epoch <= horizon(self.journal):
            self.journal.forget(me)
            raise FencedError(
                f"epoch {me.epoch} was settled and rolled up while generation {me.generation} prepared it: another "
                "driver has taken over, this one stops. nothing was published",
                epoch=me.epoch,
            )

    def _abort_orphans(self, me: Attempt, keep: tuple[Vote, ...]) -> int:
        kept = [(vote.sink, vote.committable) for vote in keep]
        count = 0
        for name, sink in self.plan.sinks.items():
            for found in sink.open_transactions(self.plan.job_id):
                ours = found.attempt.epoch <= me.epoch and found.attempt.generation <= me.generation
                if ours and (name, found.committable) not in kept:
                    sink.abort(found.committable)
                    count += 1
        return count

    def _prepare(self, command: Prepare) -> tuple[Vote, ...]:
        epoch = command.attempt.epoch
        killpoints.reach("before-prepare", epoch)
        self._clock.lap("settle")
        if self._rows is None:
            raise CheckpointError(f"epoch {epoch} has no rows to prepare: run_epoch was not called by Spark")
        if self._projection is None:
            self._projection = projection(self._rows, self.plan.outputs)
        projected = self._rows.select(*self._projection)
        votes = prepare_slices(projected, command, self.plan.job_id, is_flat(self.plan.outputs), self.plan.sinks)
        self._clock.lap("prepare")
        return votes

    def _commit(self, votes: tuple[Vote, ...], recovering: bool) -> tuple[Outcome, ...]:
        if killpoints.armed("inside-commit", self._epoch):
            first = self._commit_by_sink(votes[:1], recovering)
            killpoints.reach("inside-commit", self._epoch)
            return first + self._commit_by_sink(votes[1:], recovering)
        outcomes = self._commit_by_sink(votes, recovering)
        killpoints.reach("after-commit", self._epoch)
        return outcomes

    def _commit_by_sink(self, votes: tuple[Vote, ...], recovering: bool) -> tuple[Outcome, ...]:
        outcomes: dict[tuple[str, int], Outcome] = {}
        for name, group in _by_sink(votes).items():
            if name not in self.plan.sinks:
                raise CheckpointError(
                    f"the journal has a decided transaction for the sink {name!r}, which this job does not have: it "
                    f"has {', '.join(self.plan.sinks)}. declare that sink again until the epoch is settled"
                )
            answers = self.plan.sinks[name].commit_all([vote.committable for vote in group], recovering)
            outcomes.update(zip((vote.key for vote in group), answers, strict=True))
        return tuple(outcomes[vote.key] for vote in votes)

    def _wait(self, tries: int, unsettled: tuple[Vote, ...]) -> None:
        """Patience counts from the first wait of the epoch, and the time that the tries themselves take with it."""
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        elif now_s - self._waiting_since_s > self.plan.commit_patience_s:
            raise CommitPendingError(
                f"{len(unsettled)} decided commits of epoch {self._epoch} are not confirmed after "
                f"{now_s - self._waiting_since_s:.0f} s and {tries} tries, the first is {unsettled[0].sink}/"
                f"{unsettled[0].slice}. nothing is lost: make the server reachable and start the job again, which "
                "goes on committing",
                epoch=self._epoch,
                slices=[vote.key for vote in unsettled],
            )
        time.sleep(min(WAIT_LONGEST_S, WAIT_FIRST_S * 2 ** min(tries, 10)))


def drive(steps: Steps, perform: Callable[[Command], Any]) -> Finished:
    """Run the protocol: hand each command to the world and its answer, or its named failure, back."""
    answer: Any = None
    failure: TallystickError | None = None
    while True:
        try:
            command = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            finished: Finished = end.value
            return finished
        try:
            answer, failure = perform(command), None
        except TallystickError as error:
            answer, failure = None, error


def _by_sink(votes: tuple[Vote, ...]) -> dict[str, list[Vote]]:
    groups: dict[str, list[Vote]] = {}
    for vote in votes:
        groups.setdefault(vote.sink, []).append(vote)
    return groups


class _StepClock:
    """Wall time for people, durations from a clock that never jumps back."""

    def __init__(self) -> None:
        self._started_at = time.time()
        self._started = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self._laps[step] = self._laps.get(step, 0.0) + now - self._last
        self._last = now

    def facts(self) -> dict[str, Any]:
        durations = {f"{step}_s": round(seconds, 4) for step, seconds in self._laps.items()}
        return {"at": round(self._started_at, 3), "until_decision_s": round(self._last - self._started, 4), **durations}
