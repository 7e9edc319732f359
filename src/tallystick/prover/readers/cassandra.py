"""Tables of Cassandra: the latest row of each primary key."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tallystick.errors import SinkError, UnprovenError
from tallystick.prover.place import Place
from tallystick.prover.readers.base import Item, Reader, row_text
from tallystick.sinks.cassandra import Cassandra
from tallystick.sinks.cassandra.client import Connection, errors
from tallystick.sinks.hosts import hosts_and_port

KEYSPACE = "prove"


class CassandraReader(Reader):
    kind = "cassandra"
    servers = ("cassandra",)

    def __init__(self, sink: Cassandra, place: Place) -> None:
        super().__init__(sink, place)
        self._session: Any = None

    @classmethod
    def redirect(cls, sink: Cassandra, name: str, place: Place) -> Cassandra:
        """One node has one replica of everything."""
        return replace(
            sink,
            hosts=place.server_for_job("cassandra"),
            table=f"{KEYSPACE}.{place.table_name(name)}",
            create=True,
            consistency="LOCAL_QUORUM",
            local_dc=None,
            username=None,
            password=None,
            tls=None,
        )

    @classmethod
    def latest_only(cls, sink: Cassandra) -> bool:
        if not sink.key:
            raise UnprovenError(
                f"the sink {sink.target} does not say what the primary key of its table is, and the prover has to make "
                "a table like it",
                "the primary key in the declaration, such as key=['app']",
            )
        return True

    @classmethod
    def prepare(cls, sink: Cassandra, place: Place) -> None:
        session = _opened(place)
        try:
            replicas = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            session.execute(f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replicas}")
        finally:
            session.cluster.shutdown()

    def read(self) -> Mapping[str, Sequence[Item]]:
        table = self.sink.table.partition(".")[2]
        try:
            if self._session is None:
                self._session = _opened(self.place)
            there = self._session.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s",
                (KEYSPACE, table),
            ).one()
            if there is None:  # the job makes it when it starts
                return {}
            found = self._session.execute(f'SELECT * FROM {KEYSPACE}."{table}"')
            rows = [dict(zip(found.column_names, row, strict=True)) for row in found]
        except errors() as failure:
            self.close()
            raise SinkError(f"{self.sink.target} cannot be read: {failure}") from failure
        return {_key(row, self.sink.key_columns): [Item(row_text(row))] for row in rows}

    def close(self) -> None:
        if self._session is not None:
            self._session.cluster.shutdown()
            self._session = None


def _opened(place: Place) -> Any:
    hosts, port = hosts_and_port("cassandra", place.server("cassandra"), 0)
    return Connection(hosts, port).open()


def _key(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    return json.dumps([row[name] for name in columns], default=str)
