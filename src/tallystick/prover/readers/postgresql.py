"""Tables of PostgreSQL, as any session sees them: what is committed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tallystick.errors import SinkError, UnprovenError
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.sinks.postgresql import PostgreSQL
from tallystick.sinks.postgresql.client import psycopg, sql

CONNECT_TIMEOUT_S = 5


class PostgreSQLReader(Reader):
    kind = "postgresql"
    servers = ("postgresql",)

    def __init__(self, sink: PostgreSQL, place: Place) -> None:
        super().__init__(sink, place)
        self._connection: Any = None

    @classmethod
    def redirect(cls, sink: PostgreSQL, name: str, place: Place) -> PostgreSQL:
        server, table = place.server_for_job("postgresql"), place.table_name(name)
        return replace(sink, dsn=server, table=table, options={}, schema="tallystick", create=True)

    @classmethod
    def latest_only(cls, sink: PostgreSQL) -> bool:
        if sink.mode == "changes":
            raise UnprovenError(
                f"the sink {sink.target} deletes rows: when they are gone, nobody can tell how often they were there",
                "mode='append' or mode='upsert' for the proof: all three modes are committed in the same way",
            )
        return sink.mode == "upsert"

    def read(self) -> Mapping[str, Sequence[Item]]:
        try:
            if self._connection is None:
                self._connection = psycopg().connect(
                    self.place.server("postgresql"), autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
                )
            asked = self._connection.execute(sql().SQL("SELECT * FROM {}").format(self.sink.identifier))
            names = [column.name for column in asked.description]
            rows = [dict(zip(names, row, strict=True)) for row in asked.fetchall()]
        except psycopg().errors.UndefinedTable:  # the job makes it when it starts
            return {}
        except psycopg().Error as failure:
            self.close()
            raise SinkError(f"{self.sink.target} cannot be read: {failure}") from failure
        if not self.latest_only(self.sink):
            return {"table": [Item(row_text(row)) for row in rows]}
        return {_key(row, self.sink.key): [Item(row_text(row))] for row in rows}

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg().Error):  # it is broken: that is why it is closed
                self._connection.close()
            self._connection = None


def _key(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    return json.dumps([row[name] for name in columns], default=str)
