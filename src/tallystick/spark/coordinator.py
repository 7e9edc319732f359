"""The driver's side of an epoch: carries out what the protocol asks, through Spark, the journal and the sinks.

`Coordinator.run_epoch` is what ``foreachBatch`` calls. The order of things is in `protocol/epoch.py`; here is one
method per command. One coordinator is one generation: it is made when a query starts and never used again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tallystick import killpoints
from tallystick.errors import (
    CheckpointError,
    CommitPendingError,
    CommitRefusedError,
    EpochError,
    FencedError,
    ForeignCheckpointError,
    PrepareError,
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
from tallystick.sinks.base import JobContext, TransactionalSink
from tallystick.spark.batching import Batching, may_adapt
from tallystick.spark.broadcast import PROPERTY
from tallystick.spark.clock import StepClock
from tallystick.spark.collected import Collect, by_printed_rows, collector
from tallystick.spark.input_files import missing_files
from tallystick.spark.offsets import read_offsets
from tallystick.spark.outputs import Output, is_flat
from tallystick.spark.prepare import group_of, prepare_slices, voting
from tallystick.spark.rulebook import Declared, Rulebook
from tallystick.spark.slice_writer import DEAD_LETTERS
from tallystick.spark.slices import Assignment, SliceTask
from tallystick.spark.slicing import Slicing
from tallystick.spark.stamping import Stamping

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    epoch_s: float = JobContext().epoch_s
    timeout_s: float = JobContext().timeout_s
    commit_patience_s: float = 300.0
    min_pause_s: float = 0.0
    still_leading: Callable[[], None] | None = None
    on_finished: Callable[[Attempt, Finished], None] | None = None
    broadcasts: tuple[Declared, ...] = ()


class Coordinator:
    def __init__(self, plan: Plan, journal: Journal) -> None:
        self.plan = plan
        self.journal = journal
        self.failure: BaseException | None = None
        self._votes: DataFrame | None = None
        self._group: str | None = None
        self._read = SourceOffsets()
        self._rules = Rulebook(plan.broadcasts, plan.checkpoint, journal.store)
        self._decided: SourceOffsets | None = None
        self._clock = StepClock()
        self._waiting_since_s: float | None = None
        self._epoch = -1
        self._stamps = Stamping(journal)
        self._generation: int | None = None
        self._ended_s: float | None = None
        self._before: dict[str, Json] = {}
        self._batching = Batching(adapts=False)
        self._slicing = Slicing(None, follows=False)
        self._collect: Collect = by_printed_rows

    def query(self, rows: DataFrame) -> DataFrame:
        """What to start in place of ``rows``: it writes them, slice by slice, when an epoch of it is run."""
        plan = self.plan
        flat = is_flat(plan.outputs)
        sinks = tuple((output.name, plan.sinks[output.name]) for output in plan.outputs)
        self._batching = Batching(adapts=may_adapt(rows))
        self._slicing = Slicing.of(rows)
        letters, grouped = plan.sinks.get(DEAD_LETTERS), self._slicing.grouped
        task = SliceTask(plan.job_id, sinks, flat, plan.epoch_s, os.getpid(), letters, grouped)
        self._collect = collector(rows.sparkSession)
        return voting(rows, plan.outputs, task, self._slicing.tasks)

    def first_slices(self) -> int | None:
        """After `query`: how many its first epoch is to have; None if the plan has them already."""
        return self._slicing.first(self.journal)

    def run_epoch(self, votes: DataFrame, epoch: int) -> None:
        """One epoch of `query`, from Spark's offset log to Spark's commit log. Raises to fail the query."""
        try:
            self._rest()
            self._check_leading()
            killpoints.reach("before-settle", epoch)
            me = Attempt(epoch, self._claimed(epoch))
            self._votes, self._epoch, self._clock, self._waiting_since_s = votes, epoch, StepClock(), None
            self._stamps.begin()
            self._read, self._decided = read_offsets(votes.sparkSession, self.plan.checkpoint, epoch), None
            finished = drive(MODES[self.plan.mode](me), self.perform)
            self._clock.lap("commit")
            killpoints.reach("before-return", epoch)
        except BaseException as failure:
            if isinstance(failure, EpochError):
                failure.details.setdefault("epoch", epoch)
            self.failure = failure
            raise
        finally:
            self._votes = None
            self._ended_s = time.monotonic()
        self._before = {"epoch": epoch, **self._clock.after_decision()}
        log.info("epoch %d of %s: %s", epoch, self.plan.job, finished.how)
        if self.plan.on_finished is not None:
            self.plan.on_finished(me, finished)

    def _rest(self) -> None:
        """The least pause between two epochs. What this one reads is fixed already; its work has not begun."""
        if self._ended_s is not None:
            time.sleep(max(0.0, self._ended_s + self.plan.min_pause_s - time.monotonic()))

    def _check_leading(self) -> None:
        """To the protocol this is a crash here: whoever leads now settles what is left."""
        if self.plan.still_leading is not None:
            self.plan.still_leading()

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
            self._rules.prune(epoch)
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
        self._stamps.recalled(alone=not records and not rivals)
        for record in records:
            if record.decision is Decision.COMMIT and record.read.digest not in ("", self._read.digest):
                raise ForeignCheckpointError(
                    f"epoch {me.epoch} was decided for the offsets {list(record.read.offsets)}, but Spark now reads "
                    f"{list(self._read.offsets)}: the checkpoint {self.plan.checkpoint} was rewound or replaced. "
                    "nothing was written. restore it with its journal, or use a new checkpoint",
                    epoch=me.epoch,
                )
            if record.decision is Decision.COMMIT:
                self._decided = record.read
        return Recalled(records, rivals, self.journal.resolution(me.epoch) if records else None)

    def _put(self, record: Record) -> Record:
        mine = record.attempt.generation == self._generation
        if mine:
            killpoints.reach("before-decide", record.attempt.epoch)
            self._check_leading()
            record = replace(self._stamps.stamped(record), read=self._read, facts=self._facts())
        standing = self.journal.put(record)
        killpoints.reach("after-decide" if mine else "after-fence", record.attempt.epoch)
        self._clock.lap("decide" if mine else "settle")
        if mine and standing.decision is Decision.COMMIT:
            self._check_not_rolled_up(record.attempt)
        return standing

    def _facts(self) -> dict[str, Json]:
        """For people. What comes after a decision cannot be in it: the next one of this driver tells."""
        return {**self._clock.facts(), **({"before": self._before} if self._before else {})}

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
        self._check_leading()
        self._clock.lap("settle")
        if self._votes is None:
            raise CheckpointError(f"epoch {epoch} has no rows to prepare: run_epoch was not called by Spark")
        self._need_input(self._votes, epoch)
        decided = command.decided or None
        work = Assignment(command.attempt, command.write, self._read.digest, self._stamps.first_us(), decided)
        spark = self._votes.sparkSession
        self._group = self._group or group_of(spark)
        carried = self._carried(spark, epoch)
        votes, seen = prepare_slices(self._votes, self._collect, work, self.plan.timeout_s, self._group, carried)
        self._batching.saw(spark, seen)
        self._slicing.saw(spark, seen)
        self._clock.lap("prepare")
        return votes

    def _need_input(self, votes: DataFrame, epoch: int) -> None:
        gone = missing_files(votes.sparkSession, self.plan.checkpoint, epoch, self._read)
        if gone:
            raise PrepareError(
                f"epoch {epoch} could not be prepared: {len(gone)} of the files that it has to read are gone, the "
                f"first is {gone[0]}. nothing was written. put them back and start the job again; to go on without "
                "their rows, put files without rows in their place",
                epoch=epoch,
                files=gone[:100],
            )

    def _carried(self, spark: SparkSession, epoch: int) -> dict[str, str]:
        """The rules for the tasks of an epoch: written down by now, and those that it was decided with before."""
        if not self.plan.broadcasts:
            return {}
        found = self._rules.at(spark, epoch, self._read)
        self._read = replace(self._read, rules=tuple((name, rules.digest) for name, (rules, _) in found.items()))
        decided = self._decided.rules if self._decided is not None else ()  # at-most-once decides before it looks
        if decided and dict(decided) != dict(self._read.rules):
            raise CheckpointError(
                f"epoch {epoch} was decided with the rules {dict(decided)}, but they are now "
                f"{dict(self._read.rules)}: the journal was changed, or a broadcast state was added or taken away "
                "before the epoch was settled. nothing was written. restore the checkpoint, and run the job as it was",
                epoch=epoch,
            )
        return {PROPERTY + name: travelling for name, (_, travelling) in found.items()}

    def _commit(self, votes: tuple[Vote, ...], recovering: bool) -> tuple[Outcome, ...]:
        if killpoints.armed("inside-commit", self._epoch):
            first = self._commit_by_sink(votes[:1], recovering)
            killpoints.reach("inside-commit", self._epoch)
            return first + self._commit_by_sink(votes[1:], recovering)
        outcomes = self._commit_by_sink(votes, recovering)
        killpoints.reach("after-commit", self._epoch)
        return outcomes

    def _commit_by_sink(self, votes: tuple[Vote, ...], recovering: bool) -> tuple[Outcome, ...]:
        """What one sink refuses does not keep the others from committing what is decided."""
        outcomes: dict[tuple[str, int], Outcome] = {}
        refused: CommitRefusedError | None = None
        for name, group in _by_sink(votes).items():
            if name not in self.plan.sinks:
                raise CheckpointError(
                    f"the journal has a decided transaction for the sink {name!r}, which this job does not have: it "
                    f"has {', '.join(self.plan.sinks)}. declare that sink again until the epoch is settled"
                )
            try:
                answers = self.plan.sinks[name].commit_all([vote.committable for vote in group], recovering)
            except CommitRefusedError as error:
                refused = refused or error
                continue
            outcomes.update(zip((vote.key for vote in group), answers, strict=True))
        if refused is not None:
            raise refused
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
