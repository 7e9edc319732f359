"""Two-phase commit for sinks that have none: rows are staged as Arrow files and applied after the decision.

The commit reads the staged file, calls the sink's ``apply``, and then renames the file to say so. Between the two a
process can die, and the next one applies the same rows again: an `IdempotentSink` is not changed by that, so the
whole is exactly-once; a `PlainSink` repeats, so the whole is at-least-once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tallystick.errors import SinkError
from tallystick.records import Attempt, Json, Outcome
from tallystick.sinks.base import (
    IdempotentSink,
    OpenTransaction,
    PlainSink,
    Sink,
    SliceContext,
    TransactionalSink,
)
from tallystick.sinks.staging import STAGED, Staging

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

logger = logging.getLogger("tallystick.sinks.staged")

ROWS = f"rows{STAGED}"
APPLIED = "rows.applied"

R = TypeVar("R")


def lower(sink: Sink, staging: Path) -> TransactionalSink[Any]:
    """Driver: any sink as a transactional one. ``staging`` is a folder of its own that all executors share; it is made
    if needed. A transactional sink is returned unchanged.
    """
    if isinstance(sink, TransactionalSink):
        return sink
    if isinstance(sink, IdempotentSink | PlainSink):
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

    def __init__(self, sink: IdempotentSink | PlainSink, staging: Path) -> None:
        self.sink = sink
        self.staging = Staging(staging.absolute())
        self.facts = sink.facts  # type: ignore[misc] # what it promises is what the sink inside promises

    @property
    def target(self) -> str:
        return self.sink.target

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        return self.sink.columns(schema, column)

    def make_staging(self) -> None:
        """Driver: executors refuse to stage in a folder that the driver has not made."""
        self._staging(lambda: self.staging.root.mkdir(parents=True, exist_ok=True))

    def check(self) -> None:
        self.make_staging()
        self.sink.check()

    def begin_transaction(self, context: SliceContext) -> Transaction:
        return self._staging(lambda: Transaction(self.staging.begin(context), context))

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> None:
        self._staging(lambda: transaction.write(rows))

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
        }
        self.staging.seal(transaction.folder, committable)
        return committable

    def rollback(self, transaction: Transaction) -> None:
        transaction.discard()
        self.staging.roll_back(transaction.folder)

    def commit(self, committable: Json) -> Outcome:
        """Apply, then mark as applied. A row that the server refuses needs a person; a lost connection, patience."""
        folder = self.staging.locate(committable["dir"])
        try:
            if not (folder / ROWS).exists():
                return self._without_rows(folder)
            self.sink.apply(_context(committable), _batches(folder / ROWS))
            (folder / ROWS).rename(folder / APPLIED)
        except OSError as error:
            logger.warning("%s of %s cannot be applied now, asking again later: %s", folder.name, self.target, error)
            return Outcome.RETRY_LATER
        except SinkError as error:
            logger.error("%s is decided, but %s refuses it: %s", folder.name, self.target, error)
            return Outcome.REFUSED
        return Outcome.COMMITTED

    def _without_rows(self, folder: Path) -> Outcome:
        if (folder / APPLIED).exists():
            return Outcome.ALREADY_COMMITTED
        if not self.staging.root.is_dir():
            logger.warning("the staging folder %s is gone: is it mounted? asking again later", self.staging.root)
            return Outcome.RETRY_LATER
        return Outcome.EXPIRED

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
    )


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Mapped, not read: a slice may be larger than memory."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
