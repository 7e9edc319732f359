"""The reference sink: rows end up in a dictionary of the driver. Read this one first.

It keeps the whole contract in a page. A slice is small here, so the committable carries the rows themselves: the
process that prepared it may die, any other can commit. The "server" is a module-level dictionary of this process,
so what was published does not outlive the driver; use it for tests and notebooks.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import pyarrow as pa

from tallystick.errors import SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionalSink

SLICE_BYTES_MAX = 8 << 20

_tables: dict[str, dict[str, pa.RecordBatch]] = {}
"""Table name -> transaction name -> the rows that it published."""


class Transaction:
    def __init__(self, name: str) -> None:
        self.name = name
        self.batches: list[pa.RecordBatch] = []


class Memory(TransactionalSink[Transaction]):
    """Publish into a named table of the driver's memory; read it with `rows`."""

    facts = SinkFacts(
        "memory", Kind.TRANSACTIONAL, Mode.EXACTLY_ONCE, "rows travel in the committable", "lives as long as the driver"
    )

    def __init__(self, table: str) -> None:
        self.table = table

    @property
    def target(self) -> str:
        return f"memory:{self.table}"

    def begin_transaction(self, context: SliceContext) -> Transaction:
        return Transaction(context.name)

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> None:
        transaction.batches.append(rows)
        if sum(batch.nbytes for batch in transaction.batches) > SLICE_BYTES_MAX:
            raise SinkError(f"a slice for {self.target} is over {SLICE_BYTES_MAX} bytes: use a file sink for so much")

    def pre_commit(self, transaction: Transaction) -> Json:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, transaction.batches[0].schema) as stream:
            for batch in transaction.batches:
                stream.write_batch(batch)
        return {"name": transaction.name, "rows": base64.b64encode(buffer.getvalue()).decode()}

    def rollback(self, transaction: Transaction) -> None:
        transaction.batches.clear()

    def commit(self, committable: Json) -> Outcome:
        table = _tables.setdefault(self.table, {})
        if committable["name"] in table:
            return Outcome.ALREADY_COMMITTED
        with pa.ipc.open_stream(base64.b64decode(committable["rows"])) as stream:
            table[committable["name"]] = stream.read_all().combine_chunks()
        return Outcome.COMMITTED

    def abort(self, committable: Json) -> None:
        """Nothing is held for a committable that is not committed."""

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        return ()

    def rows(self) -> list[dict[str, Json]]:
        """What is published, in the order of commits."""
        return [row for batch in _tables.get(self.table, {}).values() for row in batch.to_pylist()]

    def clear(self) -> None:
        """Forget what is published."""
        _tables.pop(self.table, None)
