"""Executor side: one task writes its slices of every sink, mostly one of each, and votes.

`SliceTask` is the last step of the streaming query: ``mapInArrow`` runs it, and what comes out of the query are votes.
It is pickled to the workers once per query, so it holds values only, and only those that stay the same; which attempt
a task works for, and what it is to write, travels with the Spark job of the epoch (`Assignment`). A task that fails
rolls back what it began; a task that is killed leaves its transactions to the driver's `AbortOrphans`.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tallystick import killpoints
from tallystick.errors import EpochError
from tallystick.records import Attempt, Fingerprint, Parts, Vote
from tallystick.sinks.base import SliceContext, TransactionalSink
from tallystick.spark.slice_writer import DEAD_LETTERS, SliceWriter
from tallystick.spark.task_slices import Slice, TaskSlices

VOTE_SCHEMA = "result string"
"""A JSON text per task: ``votes``, and ``rows`` and ``bytes`` that it was handed (`batching`), which are no vote."""


@dataclass(frozen=True)
class Assignment:
    """What the tasks of one Spark job are to do: for which attempt, and which parts of it they write (None: all).

    ``read`` is the digest of the offsets that the epoch reads, ``stamp_us`` a number that grows with every attempt.
    ``decided`` are, if the epoch was decided before, the votes with refused rows; None if it was not.

    It is a local property of that job, set by the driver right before it, because the query itself stays the same from
    epoch to epoch.
    """

    PROPERTY: ClassVar[str] = "tallystick.assignment"

    attempt: Attempt
    write: Parts | None
    read: str = ""
    stamp_us: int = 0
    decided: tuple[Vote, ...] | None = None

    def to_text(self) -> str:
        write = None if self.write is None else self.write.to_json()
        fields = {"attempt": str(self.attempt), "write": write, "read": self.read, "stamp_us": self.stamp_us}
        if self.decided is not None:
            fields["refused"] = [replace(vote, committable=None).to_json() for vote in self.decided if vote.refused]
        return json.dumps(fields)

    @classmethod
    def from_text(cls, text: str) -> Assignment:
        value = json.loads(text)
        write = value["write"]
        parts = None if write is None else Parts.from_json(write)
        decided = tuple(map(Vote.from_json, value["refused"])) if "refused" in value else None
        return cls(Attempt.parse(value["attempt"]), parts, value["read"], value["stamp_us"], decided)

    @classmethod
    def of(cls, task: TaskContext) -> Assignment:
        """The one of this task. Without one nobody asked for these rows, so nothing may be written."""
        text = task.getLocalProperty(cls.PROPERTY)
        if not text:
            raise EpochError("a slice can only be written inside an epoch: its rows were asked for by somebody else")
        return cls.from_text(text)


@dataclass(frozen=True)
class SliceTask:
    job_id: str
    sinks: Sequence[tuple[str, TransactionalSink[Any]]]
    flat: bool
    epoch_s: float
    driver_pid: int
    letters: TransactionalSink[Any] | None = None
    grouped: bool = False
    """A task has several slices: the last column says which one a row is of."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise EpochError("a slice can only be written inside a Spark task")
        work = Assignment.of(task)
        killpoints.driver_is(self.driver_pid)
        slices = TaskSlices(lambda number: self._slice(number, task, work))
        rows_seen = bytes_seen = 0
        try:
            if not self.grouped:
                slices.taking(task.partitionId(), 0)  # one without rows votes, too
            for batch in batches:
                rows_seen, bytes_seen = rows_seen + batch.num_rows, bytes_seen + batch.nbytes
                for number, some in self._by_slice(batch, task.partitionId()):
                    self._write(slices.taking(number, some.nbytes), some)
            killpoints.reach("after-write", work.attempt.epoch)
            votes = slices.votes()
        except BaseException:
            slices.give_up()
            raise
        killpoints.reach("after-pre-commit", work.attempt.epoch)
        _spare_the_collector()
        result = {"votes": [vote.to_json() for vote in votes], "rows": rows_seen, "bytes": bytes_seen}
        yield pa.RecordBatch.from_pydict({"result": [json.dumps(result)]})

    def _by_slice(self, batch: pa.RecordBatch, task: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each slice, in their order."""
        if not self.grouped:
            yield task, batch
            return
        last = batch.num_columns - 1
        numbers, rows = batch.column(last).to_numpy(), batch.select(range(last))
        cuts = (np.flatnonzero(np.diff(numbers)) + 1).tolist()
        for first, end in itertools.pairwise([0, *cuts, len(numbers)] if len(numbers) else []):
            yield int(numbers[first]), rows.slice(first, end - first)

    def _write(self, one: Slice, batch: pa.RecordBatch) -> None:
        for writer, (rows, hashes) in zip(one.outputs, self._split(batch), strict=True):
            for refused in writer.write(rows, hashes):
                if one.letters is not None:
                    one.letters.write_letters(refused)

    def _slice(self, number: int, task: TaskContext, work: Assignment) -> Slice:
        outputs = [self._writer(name, sink, number, task, work) for name, sink in self.sinks]
        letters = None if self.letters is None else self._writer(DEAD_LETTERS, self.letters, number, task, work)
        return Slice(number, outputs, letters)

    def _writer(
        self, name: str, sink: TransactionalSink[Any], number: int, task: TaskContext, work: Assignment
    ) -> SliceWriter:
        context = SliceContext(
            self.job_id,
            work.attempt,
            name,
            number,
            task.taskAttemptId(),
            self.epoch_s,
            work.read,
            work.stamp_us,
            dead_letters=self.letters is not None and name != DEAD_LETTERS and work.decided is None,
        )
        wanted = work.write is None or Vote(name, context.slice, Fingerprint()) in work.write
        known = next((vote.refused for vote in work.decided or () if vote.key == (name, number)), {})
        return SliceWriter(sink, context, wanted, known)

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """The rows and hashes for each sink, as `outputs.projection` laid them out."""
        if self.flat:
            last = batch.num_columns - 1
            yield batch.select(range(last)), batch.column(last)
            return
        for number in range(len(self.sinks)):
            rows, hashes = batch.column(2 * number), batch.column(2 * number + 1)
            if rows.null_count:
                wanted = rows.is_valid()
                rows, hashes = rows.filter(wanted), hashes.filter(wanted)
            yield pa.RecordBatch.from_struct_array(rows), hashes


_spared = False


def _spare_the_collector() -> None:
    """Once per worker: take what it has imported by now out of the garbage collector's sight.

    PySpark's worker collects all garbage after every task, before it can take the next one. With everything that a sink
    imports that takes 20 to 45 ms, every time, and finds nothing: modules stay for as long as the worker does.
    """
    global _spared
    if not _spared:
        _spared = True
        gc.collect()
        gc.freeze()
