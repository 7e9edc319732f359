"""Tables of Cassandra for tests: made, read, and never shared."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import RoundRobinPolicy

KEYSPACE = "tallystick_tests"


@contextmanager
def session(address: str) -> Iterator[Session]:
    host, port = address.split(":")
    profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=60)
    cluster = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    try:
        yield cluster.connect()
    finally:
        cluster.shutdown()


def ask(address: str, statement: str, values: Any = None) -> list[Any]:
    with session(address) as open_session:
        return [tuple(row) for row in open_session.execute(statement, values)]


def new_table(address: str, columns: str) -> str:
    """``columns`` as in CREATE TABLE; returns ``keyspace.table``."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with session(address) as open_session:
        open_session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = "
            "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        open_session.execute(f"CREATE TABLE {KEYSPACE}.{name} ({columns})")
    return f"{KEYSPACE}.{name}"
