"""The PostgreSQL sink: rows through COPY on executors, made visible by the driver, in one of two ways.

1.  *Prepared* (append to a table without unique keys, where the server allows prepared transactions): a slice is one
    transaction, COPY and a token, ended on the executor with PREPARE TRANSACTION. The driver ends it with COMMIT
    PREPARED. Every constraint was checked by then, and the rows are written once.
2.  *Staged* (everything else; `stage.py`): a slice is a staging table, which the driver moves. A prepared transaction
    holds the locks of its rows and keys until it is ended. Whoever has the same key, another slice or a second try of
    the same task, would wait for it for ever, and the server could not see why: the one who could end the wait is the
    driver, which waits for both. So no unique key is held by a prepared one.
3.  *Doubt is settled by the token* (`tokens.py`), a row inside the same transaction as the rows.
4.  *Names* (`names.py`) hold job, table, attempt, slice and task. The session that writes a slice bears its name, too:
    so the driver sees what is begun, and can end the session of a task that outlived its attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.errors import SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Json, Mode, Outcome
from tallystick.sinks.base import JobContext, OpenTransaction, SliceContext, TransactionalSink
from tallystick.sinks.letters import need
from tallystick.sinks.postgresql import driver, ending
from tallystick.sinks.postgresql.catalog import Target
from tallystick.sinks.postgresql.client import Pool, parameters_of, pool_for, sql
from tallystick.sinks.postgresql.declared import check_declared, parts_of
from tallystick.sinks.postgresql.names import prefix_of
from tallystick.sinks.postgresql.preflight import preflight
from tallystick.sinks.postgresql.shape import shaped
from tallystick.sinks.postgresql.tokens import forget
from tallystick.sinks.postgresql.transaction import PREPARED, STAGED, Transaction, begin
from tallystick.sinks.refusals import Refusal

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

log = logging.getLogger("tallystick.postgresql")


@dataclass(frozen=True, repr=False)
class PostgreSQL(TransactionalSink[Transaction]):
    """Rows into one table: each column of the rows goes to the table's column of the same name.

    ``dsn`` as ``"postgresql://user@host:5432/database"``; ``options`` are libpq's own beside it, such as ``password``,
    ``sslmode`` and ``sslrootcert``. ``table`` as ``"orders"`` or ``"shop.orders"``, taken as it is written; it is made
    from the rows if it is missing, unless ``create`` is False.

    ``mode="append"`` adds rows. ``mode="upsert"`` writes rows by ``key``: of the rows with one key the last one stays.
    ``mode="changes"`` also deletes: rows whose boolean column ``delete_flag`` is true delete their key.
    """

    facts = SinkFacts(
        "postgresql",
        Kind.TRANSACTIONAL,
        Mode.EXACTLY_ONCE,
        "a prepared transaction or a staging table per slice, committed or moved by the driver; a commit token in each",
        "PostgreSQL 14 or newer, with fsync on; nobody deletes the commit tokens",
    )

    dsn: str
    table: str
    mode: str = "append"
    key: Sequence[str] = ()
    delete_flag: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    via: str = "auto"
    schema: str = "tallystick"
    create: bool = True
    lock_timeout: str = "30s"
    parameters: Mapping[str, str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        check_declared(self)
        object.__setattr__(self, "parameters", parameters_of(self.dsn, self.options))
        object.__setattr__(self, "key", tuple(self.key))

    @property
    def target(self) -> str:
        return f"postgresql:{self.server}/{self.table}"

    @property
    def server(self) -> str:
        known = self.parameters
        host = known.get("host") or known.get("service") or "localhost"
        return f"{host}:{known.get('port', '5432')}/{known.get('dbname') or known.get('user', '')}"

    def __repr__(self) -> str:
        return f"PostgreSQL({self.server}, table={self.table!r}, mode={self.mode!r})"

    @property
    def path(self) -> list[str]:
        """The parts of the table's name."""
        return parts_of(self.table)

    @property
    def identifier(self) -> Any:
        """The table, quoted."""
        return sql().Identifier(*self.path)

    @property
    def quoted(self) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in self.path)

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column]:
        return shaped(schema, column, self.key, self.delete_flag)

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        need(self.target, "key", self.key)
        need(self.target, "delete_flag", [self.delete_flag] if self.delete_flag else [])
        return rows

    def check(self, job: JobContext) -> None:
        preflight(self, job)

    # -- executors --------------------------------------------------------------------------------------------------

    def begin_transaction(self, context: SliceContext) -> Transaction:
        return begin(self, context)

    def way(self, target: Target) -> str:
        """How slices of this sink are held until they are decided."""
        if self.mode != "append":
            return STAGED
        if self.via == "auto":
            return PREPARED if target.slots > 0 and not target.can_wait else STAGED
        return self.via

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> Sequence[Refusal]:
        return transaction.write(rows)

    def pre_commit(self, transaction: Transaction) -> Json:
        transaction.seal()
        self.pool().give(transaction.connection)
        return ending.committable(transaction.name, transaction.way)

    def rollback(self, transaction: Transaction) -> None:
        """Closing is enough: the server rolls back what its client left."""
        transaction.connection.close()

    # -- driver -----------------------------------------------------------------------------------------------------

    def commit(self, committable: Json) -> Outcome:
        return self.commit_all([committable], recovering=False)[0]

    def commit_all(self, committables: Sequence[Json], recovering: bool) -> list[Outcome]:
        return driver.commit_all(self, committables)

    def abort(self, committable: Json) -> None:
        driver.tell(self, lambda connection: ending.abort(connection, self, committable))

    def open_transactions(self, job_id: str) -> Iterable[OpenTransaction]:
        prefix = self.prefix(job_id)
        found: list[OpenTransaction] = driver.tell(self, lambda asked: ending.open_ones(asked, self, prefix))
        return found

    def settled(self, job_id: str, epoch: int) -> None:
        """The tokens of this epoch itself stay until the next one is settled: see `spark/sweep.py`."""
        try:
            super().settled(job_id, epoch)
            driver.tell(self, lambda connection: forget(connection, self, self.prefix(job_id), epoch))
        except SinkError as failure:
            log.warning("leftovers of epoch %d and before were not looked for, the next time: %s", epoch, failure)

    def prefix(self, job_id: str) -> str:
        return prefix_of(job_id, self.table)

    def pool(self, patience_s: float | None = None) -> Pool:
        return pool_for(self.parameters, patience_s)
