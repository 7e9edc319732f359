"""Executor side: one task writes one slice of every sink, and votes.

`SliceTask` is what ``mapInArrow`` runs. It is pickled to the workers, so it holds values only. A task that fails rolls
back what it began; a task that is killed leaves its transactions to the driver's `AbortOrphans`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from tallystick import killpoints
from tallystick.errors import EpochError
from tallystick.records import HASH_MASK, Attempt, Fingerprint, Json, Parts, Vote
from tallystick.sinks.base import SliceContext, TransactionalSink

VOTE_SCHEMA = "votes string"


@dataclass(frozen=True)
class SliceTask:
    job_id: str
    attempt: Attempt
    sinks: Sequence[tuple[str, TransactionalSink[Any]]]
    flat: bool
    write: Parts | None
    driver_pid: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        if task is None:
            raise EpochError("a slice can only be written inside a Spark task", epoch=self.attempt.epoch)
        killpoints.driver_is(self.driver_pid)
        writers = [self._writer(name, sink, task) for name, sink in self.sinks]
        try:
            for batch in batches:
                for writer, (rows, hashes) in zip(writers, self._split(batch), strict=True):
                    writer.write(rows, hashes)
            killpoints.reach("after-write", self.attempt.epoch)
            votes = [writer.vote() for writer in writers]
        except BaseException:
            for writer in writers:
                writer.give_up()
            raise
        killpoints.reach("after-pre-commit", self.attempt.epoch)
        yield pa.RecordBatch.from_pydict({"votes": [json.dumps([vote.to_json() for vote in votes])]})

    def _writer(self, name: str, sink: TransactionalSink[Any], task: TaskContext) -> _SliceWriter:
        context = SliceContext(self.job_id, self.attempt, name, task.partitionId(), task.taskAttemptId())
        wanted = self.write is None or Vote(name, context.slice, Fingerprint()) in self.write
        return _SliceWriter(sink, context, wanted)

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


class _SliceWriter:
    """One slice of one sink: counts all rows, and stages them if they are wanted. Empty slices open nothing."""

    def __init__(self, sink: TransactionalSink[Any], context: SliceContext, wanted: bool) -> None:
        self._sink = sink
        self._context = context
        self._wanted = wanted
        self._open: Any = None
        self._fingerprint = Fingerprint()

    def write(self, rows: pa.RecordBatch, hashes: pa.Array) -> None:
        if rows.num_rows == 0:
            return
        self._fingerprint += Fingerprint(rows.num_rows, _sum_64(hashes))
        if not self._wanted:
            return
        if self._open is None:
            killpoints.reach("before-begin", self._context.attempt.epoch)
            self._open = self._sink.begin_transaction(self._context)
        self._sink.write(self._open, rows)

    def vote(self) -> Vote:
        killpoints.reach("before-pre-commit", self._context.attempt.epoch)
        committable: Json = None
        if self._open is not None:
            committable = self._sink.pre_commit(self._open)
            self._open = None
        return Vote(self._context.sink, self._context.slice, self._fingerprint, committable)

    def give_up(self) -> None:
        if self._open is not None:
            transaction, self._open = self._open, None
            self._sink.rollback(transaction)


def _sum_64(hashes: pa.Array) -> int:
    values: np.ndarray[Any, np.dtype[np.uint64]] = hashes.to_numpy(zero_copy_only=False).view(np.uint64)
    return int(np.add.reduce(values)) & HASH_MASK
