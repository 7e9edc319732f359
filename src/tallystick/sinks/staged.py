"""Two-phase commit for sinks that have none: rows are staged as Arrow files and applied after the decision.

The commit reads the staged file, calls the sink's ``apply``, and then renames the file to say so. Between the two a
process can die, and the next one applies the same rows again: an `IdempotentSink` is not changed by that, so the
whole is exactly-once; a `PlainSink` repeats, so the whole is at-least-once.

A sink that says so is applied on executors, by a Spark job after the decision, many slices at once
(`tallystick.spark.apply`); the others on the driver, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tallystick.errors import CommitRefusedError, SinkError
from tallystick.records import Attempt, Json, Outcome
from tallystick.sinks.base import (
    AppliedSink,
    JobContext,
    OpenTransaction,
    Sink,
    SliceContext,
    TransactionalSink,
)
from tallystick.sinks.filesystem import Posix
from tallystick.sinks.refusals import Refusal, without
from tallystick.sinks.staging import STAGED, Staging
from tallystick.sinks.stamps import check_slice

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

logger = logging.getLogger("tallystick.sinks.staged")

ROWS = f"rows{STAGED}"
APPLIED = "rows.applied"

R = TypeVar("R")

Answer = tuple[Outcome, str]
"""How applying a slice ended, and why if it did not end well."""
OnExecutors = Callable[["StagedSink", Sequence[Json]], list[Answer]]
"""Driver: have `StagedSink.apply_one` called on executors, for each of these committables."""


def lower(sink: Sink, staging: Path) -> TransactionalSink[Any]:
    """Driver: any sink as a transactional one. ``staging`` is a folder of its own that all executors share; it is made
    if needed. A transactional sink is returned unchanged.
    """
    if isinstance(sink, TransactionalSink):
        return sink
    if isinstance(sink, AppliedSink):
        staged = StagedSink(sink, staging)
        staged.make_staging()
        return staged
    raise SinkError(
        f"{type(sink).__name__} is none of the three kinds of sink: subclass TransactionalSink, IdempotentSink or "
        "PlainSink"
    )


class Transaction:
    """One slice's Arrow file. It is opened with the first batch, which brings the schema."""

    def __init__(self, folder: Path, context: SliceContext) -> None:
        self.folder = folder
        self.context = context
        self._file: Any = None
        self._writer: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        self._opened(rows.schema).write_batch(rows)

    def close(self) -> None:
        self._opened(pa.schema([])).close()
        self._file.close()

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()

    def _opened(self, schema: pa.Schema) -> Any:
        if self._writer is None:
            self._file = pa.OSFile(str(self.folder / ROWS), "wb")
            self._writer = pa.ipc.new_file(self._file, schema)
        return self._writer


class StagedSink(TransactionalSink[Transaction]):
    """An idempotent or plain sink behind the verbs of a transactional one; made by `lower`."""

    def __init__(self, sink: AppliedSink, staging: Path) -> None:
        self.sink = sink
        self.staging = Staging(staging.absolute(), Posix())
        self.facts = sink.facts  # type: ignore[misc] # what it promises is what the sink inside promises
        self.executors: OnExecutors | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The way to the executors is the driver's alone."""
        return {**self.__dict__, "executors": None}

    @property
    def target(self) -> str:
        return self.sink.target

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        return self.sink.columns(schema, column)

    def make_staging(self) -> None:
        """Driver: executors refuse to stage in a folder that the driver has not made."""
        self._staging(lambda: self.staging.root.mkdir(parents=True, exist_ok=True))

    def check(self, job: JobContext) -> None:
        self.make_staging()
        self.sink.check(job)

    def begin_transaction(self, context: SliceContext) -> Transaction:
        check_slice(context)
        return self._staging(lambda: Transaction(self.staging.begin(context), context))

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self.sink.letters(rows)

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> Sequence[Refusal] | None:
        refused = self.sink.screen(transaction.context, rows) or ()
        left = without(rows, refused)
        self._staging(lambda: transaction.write(left))
        return refused

    def pre_commit(self, transaction: Transaction) -> Json:
        return self._staging(lambda: self._seal(transaction))

    def _seal(self, transaction: Transaction) -> Json:
        transaction.close()
        context = transaction.context
        committable = {
            "dir": self.staging.relative(transaction.folder),
            "job": context.job_id,
            "attempt": str(context.attempt),
            "sink": context.sink,
            "slice": context.slice,
            "task": context.task,
            "stamp_us": context.stamp_us,
        }
        self.staging.draft(transaction.folder, committable)
        self.staging.seal(transaction.folder)
        return committable

    def rollback(self, transaction: Transaction) -> None:
        transaction.discard()
        self.staging.roll_back(transaction.folder)

    def commit(self, committable: Json) -> Outcome:
        return self._told(committable, self.apply_one(committable))

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        """What is refused is told with the words of the server, which an outcome cannot hold."""
        if self.executors is None:
            answers = [self.apply_one(committable) for committable in committables]
        else:
            answers = self.executors(self, committables)
        for outcome, why in answers:
            if outcome is Outcome.REFUSED:
                raise CommitRefusedError(
                    f"{self.target} refuses rows of an epoch that is decided: {why}. nothing was dropped: remove the "
                    "cause and start the job again, which goes on committing"
                )
        return [self._told(committable, answer) for committable, answer in zip(committables, answers, strict=True)]

    def _told(self, committable: Json, answer: Answer) -> Outcome:
        outcome, why = answer
        if outcome is Outcome.RETRY_LATER:
            logger.warning("%s of %s waits, asking again later: %s", committable["dir"], self.target, why)
        elif outcome is Outcome.REFUSED:
            logger.error("%s is decided, but %s refuses it: %s", committable["dir"], self.target, why)
        return outcome

    def apply_one(self, committable: Json) -> Answer:
        """Driver or executor: apply, then mark as applied. A refused row needs a person, a lost connection patience."""
        folder = self.staging.locate(committable["dir"])
        try:
            if not (folder / ROWS).exists():
                return self._without_rows(folder)
            self.sink.apply(_context(committable), _batches(folder / ROWS))
            (folder / ROWS).rename(folder / APPLIED)
        except OSError as error:
            return Outcome.RETRY_LATER, f"it cannot be applied now: {error}"
        except SinkError as error:
            return Outcome.REFUSED, str(error)
        return Outcome.COMMITTED, ""

    def _without_rows(self, folder: Path) -> Answer:
        if (folder / APPLIED).exists():
            return Outcome.ALREADY_COMMITTED, ""
        if not self.staging.root.is_dir():
            return Outcome.RETRY_LATER, f"the staging folder {self.staging.root} is gone: is it mounted?"
        return Outcome.EXPIRED, ""

    def abort(self, committable: Json) -> None:
        self._staging(lambda: self.staging.discard(self.staging.locate(committable["dir"])))

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return self._staging(lambda: list(self.staging.open(job_id)))

    def settled(self, job_id: str, epoch: int) -> None:
        self._staging(lambda: self.staging.settle(job_id, epoch))

    def _staging(self, step: Callable[[], R]) -> R:
        try:
            return step()
        except OSError as error:
            root = self.staging.root
            raise SinkError(
                f"cannot stage rows for {self.target} in {root}: {error}. nothing of this slice was published. needed "
                f"a folder that is there, writable and has free space. look with: ls -ld {root}; df {root}"
            ) from error


def _context(committable: Json) -> SliceContext:
    return SliceContext(
        committable["job"],
        Attempt.parse(committable["attempt"]),
        committable["sink"],
        int(committable["slice"]),
        int(committable["task"]),
        stamp_us=int(committable.get("stamp_us", 0)),
    )


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Mapped, not read: a slice may be larger than memory."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
