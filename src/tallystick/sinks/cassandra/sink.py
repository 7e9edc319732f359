"""The Cassandra sink: upserts with write timestamps from the epoch, applied by workers after the decision.

1.  *Again is the same.* A slice is written with the stamps that were decided with it (`sinks/stamps.py`), so applying
    it again writes the same cells with the same timestamps, which changes nothing.
2.  *Late loses.* Cassandra keeps the cell with the highest timestamp. Whatever a driver that was taken for dead still
    writes has the stamps of its epoch, and what later epochs wrote stays.
3.  *Counters are refused.* An increment has no timestamp and no identity: done again, it counts again.
4.  *A null is a value.* It deletes what the column held before, as an upsert must; Cassandra keeps a tombstone for it.
    With ``nulls="keep"`` a null says nothing about the column.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tallystick.config import duration_s
from tallystick.errors import ConfigError, SinkError
from tallystick.guarantees import Kind, SinkFacts
from tallystick.records import Mode
from tallystick.sinks.base import IdempotentSink, JobContext, SliceContext
from tallystick.sinks.cassandra.client import Connection, Writer, is_passing, quoted, writer_for
from tallystick.sinks.cassandra.preflight import preflight
from tallystick.sinks.cassandra.rows import Layout, last_of_each, refusal, screen
from tallystick.sinks.extras import needed
from tallystick.sinks.hosts import hosts_and_port
from tallystick.sinks.letters import need
from tallystick.sinks.refusals import Refusal, screened
from tallystick.sinks.stamps import stamp_us, windows
from tallystick.sinks.tls import Tls, tls_of

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

PORT = 9042
TRIES = 5
PAUSE_S = 0.2
NULLS = ("write", "keep")
CONSISTENCIES = ("ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE")


@dataclass(frozen=True, repr=False)
class Cassandra(IdempotentSink):
    """Upsert rows into a table, by its primary key. Columns are found by name.

    hosts             one or several nodes, as "host", "host:port" or a list; the port is the same for all
    table             "keyspace.table". Names are taken as they are, upper and lower case too
    key               with ``create``: the primary key. The first column is the partition key, the others are clustering
                      columns; a list as the first element is a partition key of several columns
    create            make the table if it is missing, from the columns of the rows and ``key``. The keyspace must be
                      there
    nulls             "write": a null deletes what the column held. "keep": a null leaves it as it is
    consistency       how many replicas must have a row before it counts as written
    local_dc          the name of the data centre to write to; None: all nodes alike
    username          for servers that ask for a password
    password          never shown
    tls               ts.sinks.Tls(ca_file=…), or True
    concurrency       how many rows each worker has under way at once
    request_timeout   how long one row may take, such as "10s"
    """

    facts = SinkFacts(
        "cassandra",
        Kind.IDEMPOTENT,
        Mode.EXACTLY_ONCE,
        "upserts by primary key with write timestamps from the epoch, applied after the decision",
        "the cluster keeps what it acknowledges (commitlog_sync batch or group, or enough replicas); no counters; a "
        "checkpoint that all workers share",
    )
    on_executors = True

    hosts: str | Iterable[str]
    table: str
    key: Sequence[str | Sequence[str]] = ()
    create: bool = False
    nulls: str = "write"
    consistency: str = "LOCAL_QUORUM"
    local_dc: str | None = None
    username: str | None = None
    password: str | None = None
    tls: Tls | bool | None = None
    concurrency: int = 64
    request_timeout: str = "10s"
    connection: Connection = field(init=False, compare=False)
    layout: Layout | None = field(init=False, default=None, compare=False)
    schema: Any = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        keyspace, dot, table = self.table.partition(".") if isinstance(self.table, str) else ("", "", "")
        if not (keyspace and dot and table) or '"' in self.table:
            raise ConfigError(f"cassandra: table is {self.table!r}, needed 'keyspace.table'")
        if self.nulls not in NULLS:
            raise ConfigError(f"cassandra: nulls is {self.nulls!r}, needed one of {', '.join(NULLS)}")
        if self.consistency not in CONSISTENCIES:
            raise ConfigError(
                f"cassandra: consistency is {self.consistency!r}, needed one of {', '.join(CONSISTENCIES)}"
            )
        if isinstance(self.concurrency, bool) or not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise ConfigError(f"cassandra: concurrency is {self.concurrency!r}, needed a number above 0")
        if (self.username is None) != (self.password is None):
            raise ConfigError("cassandra: username and password go together: found only one of them")
        if self.create and not self.key:
            raise ConfigError("cassandra: create=True needs key=[…]: which columns the primary key of the table has")
        hosts, port = hosts_and_port("cassandra", self.hosts, PORT)
        timeout_s = duration_s(self.request_timeout)
        object.__setattr__(
            self,
            "connection",
            Connection(
                hosts,
                port,
                self.local_dc,
                self.username,
                self.password,
                tls_of(self.tls),
                self.consistency,
                timeout_s,
            ),
        )

    @property
    def target(self) -> str:
        return f"cassandra:{','.join(self.connection.hosts)}:{self.connection.port}/{self.table}"

    def __repr__(self) -> str:
        return f"Cassandra({self.connection!r}, table={self.table!r})"

    def columns(self, schema: StructType, column: Callable[[str], Column]) -> Sequence[Column] | None:
        """Remembered for `check`, which knows the table."""
        names = schema.fieldNames()
        missing = [name for name in self.key_columns if name not in names]
        if missing:
            raise ConfigError(f"cassandra: the key column {missing[0]!r} is not in the rows, which have {names}")
        if any('"' in name for name in names):
            raise ConfigError("cassandra: a column name with a double quote in it cannot be a column of a table")
        object.__setattr__(self, "schema", schema)
        return None

    @property
    def key_columns(self) -> tuple[str, ...]:
        """All columns of ``key``, flat."""
        return tuple(name for part in self.key for name in ([part] if isinstance(part, str) else part))

    def check(self, job: JobContext) -> None:
        if job.schema is not None:
            object.__setattr__(self, "schema", job.schema)
        try:
            session = self.connection.open()
        except OSError as error:
            raise SinkError(f"{error}. start it, or correct hosts=. look with: tallystick servers status") from error
        try:
            object.__setattr__(self, "layout", preflight(self, session))
        finally:
            session.cluster.shutdown()

    def letters(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        need(self.target, "key", self.key_columns)
        return rows

    def screen(self, context: SliceContext, rows: pa.RecordBatch) -> Sequence[Refusal] | None:
        layout = self.layout
        if layout is None:
            return None
        return screened(context, screen(layout, rows), lambda found: refusal(self.target, layout, rows, found))

    def apply(self, context: SliceContext, batches: Iterable[pa.RecordBatch]) -> None:
        for number, window in enumerate(windows(batches)):
            writer = writer_for(self.connection, self.insert(window.schema.names))
            rows = last_of_each(window, writer.types, self._keys(writer), self.nulls == "write")
            stamp = stamp_us(context, number)
            self._write(writer, [(*self._nulls_said(row), stamp) for row in rows])

    def insert(self, names: Sequence[str]) -> str:
        """The statement for rows with these columns."""
        keyspace, _, table = self.table.partition(".")
        marks = ", ".join("?" * len(names))
        return f'INSERT INTO "{keyspace}"."{table}" ({quoted(names)}) VALUES ({marks}) USING TIMESTAMP ?'

    def _keys(self, writer: Writer) -> Sequence[str]:
        """From the layout; a worker that has none asks the server's own description."""
        if self.layout is not None:
            return self.layout.keys
        keyspace, _, table = self.table.partition(".")
        described = writer.session.cluster.metadata.keyspaces[keyspace].tables[table]
        return [column.name for column in described.primary_key]

    def _nulls_said(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.nulls == "write":
            return row
        unset = needed("cassandra.query", "cassandra-driver", "cassandra").UNSET_VALUE
        return tuple(unset if value is None else value for value in row)

    def _write(self, writer: Writer, rows: list[tuple[Any, ...]]) -> None:
        """All of them, or an error. What fails in passing is tried again; the same row again is no harm (essay 1)."""
        for attempt in range(TRIES):
            failed = writer.refused(rows, self.concurrency)
            for row, error in failed:
                if not is_passing(error):
                    key = dict(zip(writer.columns, row[:-1], strict=True))
                    shown = {name: key[name] for name in self._keys(writer)}
                    raise SinkError(f"the row {shown}: {error}") from error
            if not failed:
                return
            rows = [row for row, _ in failed]
            time.sleep(PAUSE_S * 2**attempt)
        raise ConnectionError(f"cassandra: {len(rows)} rows are not written after {TRIES} tries: {failed[0][1]}")
