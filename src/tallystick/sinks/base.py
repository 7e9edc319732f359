"""The sink contract. `memory.py` is the smallest sink that keeps all of it: read that next.

A sink is a value that is declared on the driver, pickled to executors, and used in both places:

==================== ========== ==========================================================================
verb                 where      when
==================== ========== ==========================================================================
`begin_transaction`  executor   once per slice that has rows; opens a transaction for it
`write`              executor   for each batch of rows
`pre_commit`         executor   once: make it durable and name it; after this, commit must be able to succeed
`rollback`           executor   instead of `pre_commit`, if the task fails; never after it
`commit`             driver     after the decision, until confirmed, in creation order; may be called again
`recover_and_commit` driver     the same, from a process that did not prepare it
`abort`              driver     if the attempt is decided ABORT; may be called again
`open_transactions`  driver     what is begun or pre-committed and not ended, found on the server itself
`settled`            driver     every epoch up to this one is over; free what is held for them
==================== ========== ==========================================================================

Spark may run a task more than once (retries, speculation, lost executors), so several transactions may be
pre-committed for one slice; only the one whose vote arrived is decided on, the others are found by
`open_transactions` and aborted. Their names differ because `SliceContext.name` holds Spark's task attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tallystick.errors import ConfigError
from tallystick.guarantees import SinkFacts
from tallystick.records import Attempt, Json, Outcome
from tallystick.sinks.refusals import Refusal

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

T = TypeVar("T")


class TransactionState(str, Enum):
    BEGUN = "begun"
    PRE_COMMITTED = "pre-committed"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class JobContext:
    """What a sink may want to know of the job before it starts.

    ``job_id`` is None at the very first start. An epoch that goes well takes at most ``epoch_s`` from its start to its
    last commit. ``moved`` says that the checkpoint was somewhere else when the job ran last: moved, or copied.
    ``schema`` is that of the rows for this sink, before its `Sink.columns` shape them; None if nobody knows.
    """

    job_id: str | None = None
    checkpoint: str = ""
    interval_s: float = 1.0
    timeout_s: float = 600.0
    moved: bool = False
    schema: StructType | None = None

    @property
    def epoch_s(self) -> float:
        return self.interval_s + self.timeout_s


@dataclass(frozen=True)
class SliceContext:
    """Which slice a transaction is for. ``name`` is unique for every try of every task of every attempt.

    An epoch takes at most ``epoch_s``: so long must a server that rolls back by itself hold what is pre-committed.
    ``read`` is a hash over the offsets that the epoch reads.
    ``stamp_us`` grows with every attempt and never goes back, whatever clocks do: for servers that keep the newer of
    two writes (`stamps.py`).
    ``dead_letters`` says that rows which the target refuses have a place to go: give them back (`write`).
    """

    job_id: str
    attempt: Attempt
    sink: str
    slice: int
    task: int
    epoch_s: float = JobContext().epoch_s
    read: str = ""
    stamp_us: int = 0
    dead_letters: bool = False

    @property
    def name(self) -> str:
        return f"{self.attempt}-{self.slice:06d}-{self.task:09d}"


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that the server still holds open. ``committable`` is what `abort` needs to end it.

    For a pre-committed one it equals what `pre_commit` returned: that is how the coordinator tells a
    decided transaction from an orphan.
    ``slice`` and ``age_s`` are for people; None if the server does not know.
    """

    attempt: Attempt
    state: TransactionState
    committable: Json
    name: str
    slice: int | None = None
    age_s: float | None = None


class Sink(ABC):
    """What every sink has. Subclass one of the three kinds below, not this."""

    facts: ClassVar[SinkFacts]

    @property
    @abstractmethod
    def target(self) -> str:
        """Where the rows go, for people and for the checkpoint's identity: no secrets in it."""

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        """Driver, when the job starts: how a row must look for `write`, as Spark columns; None to take it as it is.

        ``column`` gives the Spark column of a field of the schema; use it in place of ``functions.col``, because the
        rows of several sinks travel together. Each row of the job gives one row here. A schema that the sink cannot
        hold is a `ConfigError` now, not a failure at night.
        """
        return None

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Executor: dead letters (`letters.py`) as `write` wants them, for sinks whose rows need `columns`.

        `ConfigError` if the sink, as it is declared, cannot hold them: the driver tries it out with no letter at all.
        """
        if type(self).columns is not Sink.columns:
            raise ConfigError(
                f"{self.target} cannot be the sink for dead letters: {type(self).__name__} shapes its rows with "
                "columns() and does not say how letters look. give it a method letters(), or use ts.sinks.Files(path)"
            )
        return rows

    def check(self, job: JobContext) -> None:
        """Driver, before the first epoch: is the target there, writable, and set up as needed? Raises `SinkError`."""


class TransactionalSink(Sink, Generic[T]):
    """Prepared on executors, committed by the driver: exactly-once."""

    together: ClassVar[bool] = False
    """Whether one task may have several transactions open, for several small slices, and pre-commit them at once
    (`pre_commit_all`). If not, each slice is pre-committed before the next one begins."""

    @abstractmethod
    def begin_transaction(self, context: SliceContext) -> T:
        """Open a transaction for one slice. Called only if the slice has rows."""

    @abstractmethod
    def write(self, transaction: T, rows: pa.RecordBatch) -> Sequence[Refusal] | None:
        """Stage rows where no reader sees them. Keep memory bounded: an epoch may be larger than it.

        A row that the target refuses is a `RowRefusedError`; or, with `SliceContext.dead_letters`, it is left out and
        given back. None: all of them are staged.
        """

    @abstractmethod
    def pre_commit(self, transaction: T) -> Json:
        """Make all of it durable and give it a name that any process can commit or abort by: the committable.

        A small JSON value; it goes into the journal, so no secrets in it.
        """

    def pre_commit_all(self, transactions: Sequence[T]) -> Iterator[Json]:
        """Those of several slices of one task, in order: more than one only with `together`. Override it to have many
        under way at once.

        What it has given is pre-committed; if it fails, the others are rolled back.
        """
        return map(self.pre_commit, transactions)

    @abstractmethod
    def rollback(self, transaction: T) -> None:
        """The task failed before `pre_commit` came to its end: drop what was staged, close what is open."""

    @abstractmethod
    def commit(self, committable: Json) -> Outcome:
        """Publish. May be called any number of times, by several processes; publishes once.

        Say `EXPIRED` only if it surely was not and never will be published; if in doubt, `UNKNOWN`. Errors of the
        connection are `RETRY_LATER` or `UNKNOWN`, not exceptions.
        """

    def recover_and_commit(self, committable: Json) -> Outcome:
        """Publish what another process prepared, perhaps long ago. The same promises as `commit`."""
        return self.commit(committable)

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        """Commit in order. Override it to have many commits under way at once."""
        one = self.recover_and_commit if recovering else self.commit
        return [one(committable) for committable in committables]

    @abstractmethod
    def abort(self, committable: Json) -> None:
        """Roll back what was begun or pre-committed; harmless if it is gone. Exactly-once never asks after a COMMIT."""

    @abstractmethod
    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        """All open transactions of this job, of any attempt, as the server knows them."""

    def settled(self, job_id: str, epoch: int) -> None:
        """Every epoch up to this one is over for good. Called again and again; must be cheap when nothing is left.

        What is open by then is garbage, such as the second transaction of a task that Spark ran twice. Override it if
        there is a quicker way than to ask for all that is open, or more to free.
        """
        for found in self.open_transactions(job_id):
            if found.attempt.epoch <= epoch:
                self.abort(found.committable)


class AppliedSink(Sink):
    """What idempotent and plain sinks share: their rows are staged first, and applied after the decision."""

    on_executors: ClassVar[bool] = False
    """Where `apply` runs: on the driver, slice by slice in order, or on executors, many slices at once."""

    def screen(self, context: SliceContext, rows: pa.RecordBatch) -> Sequence[Refusal] | None:
        """Executor, before anything is decided: the rows that the target would refuse, as `write` gives them back.

        After the decision a refused row can only stop the job until a person has removed the cause.
        """
        return None

    @abstractmethod
    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the rows of one decided slice. Called again if nobody heard that it was done.

        An `OSError` says that the target cannot be reached now and is asked again later; a `SinkError`, that it
        refuses the rows.
        """


class IdempotentSink(AppliedSink):
    """Applied after the decision; applying the same rows again changes nothing: exactly-once."""


class PlainSink(AppliedSink):
    """Applied after the decision; applying again repeats: at-least-once."""
