"""The shipped contract, run for the PostgreSQL sink on a real server, for each mode and each way of holding rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from postgresql_tables import ask, new_table, prepared, staged
from tallystick.records import Json
from tallystick.servers import PostgreSQL as Server
from tallystick.servers.tcp_proxy import TcpProxy
from tallystick.sinks import PostgreSQL
from tallystick.testing import SinkContract
from tallystick.testing.sinks import JOB


@pytest.fixture(scope="module")
def proxy(postgresql: Server) -> Iterator[TcpProxy]:
    with postgresql.proxy() as opened:
        yield opened


class PostgreSQLContract(SinkContract):
    ends_with_its_client = True
    settings: ClassVar[dict[str, Any]]
    unique: ClassVar[bool] = True
    server: Server
    proxy: TcpProxy

    @pytest.fixture(autouse=True)
    def _server(self, postgresql: Server, proxy: TcpProxy) -> None:
        self.server, self.proxy = postgresql, proxy

    def make_sink(self, tmp_path: Path) -> PostgreSQL:
        table = new_table()
        unique = "PRIMARY KEY" if self.unique else "NOT NULL"
        ask(self.server.address, f'CREATE TABLE {table} (id bigint {unique}, name text, "née" float8)')
        return PostgreSQL(self.server.address_of(self.proxy.port), table, **self.settings)

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        """Every sort of text: empty, null, with quotes, several lines, and the mark that ends COPY."""
        numbers = range(start, start + count)
        texts = [None, "", 'a "quote", a comma', "two\nlines\r\n", "\\.", "\\N", "räw"]
        columns = {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([texts[n % len(texts)] for n in numbers], pa.string()),
            "née": pa.array([None if n % 5 == 4 else n / 3 for n in numbers], pa.float64()),
        }
        return pa.RecordBatch.from_pydict(columns)

    def read_rows(self, sink: PostgreSQL) -> Sequence[Json]:
        found = ask(self.server.address, f'SELECT id, name, "née" FROM {sink.table}')
        return [dict(zip(("id", "name", "née"), row, strict=True)) for row in found]

    def refused_rows(self) -> pa.RecordBatch:
        rows = self.rows(90, 2)
        return rows.set_column(0, "id", pa.nulls(2, pa.int64()))

    def expire(self, sink: PostgreSQL, committable: Json) -> bool:
        """As an administrator would, who found a transaction that nobody ended."""
        name = committable["name"]
        if committable["way"] == "prepared":
            ask(self.server.address, f"ROLLBACK PREPARED '{name}'")
        else:
            ask(self.server.address, f'DROP TABLE tallystick."{name}"')
        return True

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.heal()

    def break_connection(self, sink: PostgreSQL) -> contextlib.AbstractContextManager[None]:
        return self.cut()

    def leftovers(self, sink: PostgreSQL) -> Sequence[str]:
        """The tokens of the epoch that was settled last stay until the next one."""
        prefix = sink.prefix(JOB)
        return [*prepared(self.server.address, prefix), *staged(self.server.address, prefix)]


class TestPrepared(PostgreSQLContract):
    settings: ClassVar[dict[str, Any]] = {"via": "prepared"}
    unique = False


class TestStaged(PostgreSQLContract):
    settings: ClassVar[dict[str, Any]] = {"via": "staged"}


class TestUpsert(PostgreSQLContract):
    settings: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": ["id"]}


class TestChanges(PostgreSQLContract):
    """Every third row comes, goes and comes again."""

    settings: ClassVar[dict[str, Any]] = {"mode": "changes", "key": ["id"], "delete_flag": "gone"}

    def rows(self, start: int, count: int) -> pa.RecordBatch:
        plain = super().rows(start, count)
        return plain.append_column("gone", pa.array([n % 3 == 2 for n in range(start, start + count)], pa.bool_()))

    def as_read(self, batch: pa.RecordBatch) -> Sequence[Json]:
        kept: list[dict[str, Json]] = batch.to_pylist()
        return [{name: row[name] for name in ("id", "name", "née")} for row in kept if not row["gone"]]
