"""Connections to Cassandra, and what its driver's errors mean: unreachable now, or refused.

A connection lives as long as its process: workers are used again from epoch to epoch, and connecting costs more than
a small slice.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tallystick.errors import SinkError
from tallystick.sinks.extras import needed
from tallystick.sinks.tls import Tls

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Connection:
    """How to reach the nodes. Travels to executors; shown without the password."""

    hosts: tuple[str, ...]
    port: int
    local_dc: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    consistency: str = "LOCAL_QUORUM"
    request_timeout_s: float = 10.0

    def open(self) -> Any:
        """A new session. `ConnectionError` if nobody answers, `SinkError` if the password is wrong."""
        cluster = self._cluster()
        try:
            return cluster.connect()
        except errors() as error:
            cluster.shutdown()
            raise self._told(error) from None  # what it holds inside names every setting of the connection

    def _cluster(self) -> Any:
        module, policies = driver(), needed("cassandra.policies", "cassandra-driver", "cassandra")
        levels = needed("cassandra", "cassandra-driver", "cassandra").ConsistencyLevel
        balancing = policies.TokenAwarePolicy(
            policies.DCAwareRoundRobinPolicy(local_dc=self.local_dc or "")
            if self.local_dc
            else policies.RoundRobinPolicy()
        )
        profile = module.ExecutionProfile(
            load_balancing_policy=balancing,
            consistency_level=levels.name_to_value[self.consistency],
            request_timeout=self.request_timeout_s,
            # a retry is ours: it must be bounded, and told
            retry_policy=policies.FallthroughRetryPolicy(),
        )
        auth = needed("cassandra.auth", "cassandra-driver", "cassandra")
        return module.Cluster(
            list(map(self._resolved, self.hosts)),
            port=self.port,
            auth_provider=None
            if self.username is None
            else auth.PlainTextAuthProvider(self.username, self.password or ""),
            ssl_context=None if self.tls is None else self.tls.context(),
            execution_profiles={module.EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=policies.ExponentialReconnectionPolicy(0.2, 5.0),
            connect_timeout=CONNECT_TIMEOUT_S,
            control_connection_timeout=CONNECT_TIMEOUT_S,
            idle_heartbeat_interval=10,
        )

    def _resolved(self, host: str) -> str:
        """A name that nobody knows is told like a node that does not answer; the driver would tell it otherwise."""
        try:
            socket.getaddrinfo(host, self.port)
        except OSError as error:
            raise ConnectionError(f"cassandra: {host} cannot be reached: {error}") from error
        return host

    def _told(self, error: Any) -> Exception:
        where = f"cassandra: {', '.join(self.hosts)} port {self.port}"
        inside = getattr(error, "errors", None)
        found = list(inside.values()) if isinstance(inside, dict) else [error]
        refused = next((each for each in found if type(each).__name__ == "AuthenticationFailed"), None)
        if refused is not None:
            return SinkError(f"{where} refuses the user {self.username!r}: {refused}. needed username= and password=")
        said = "; ".join(sorted({str(each) for each in found})) or "no answer"
        return ConnectionError(f"{where} cannot be reached: {said}")


def driver() -> Any:
    """``cassandra.cluster``. Raises `MissingExtraError`."""
    return needed("cassandra.cluster", "cassandra-driver", "cassandra")


def errors() -> tuple[type[Exception], ...]:
    """What the driver raises, whatever went wrong."""
    return (needed("cassandra", "cassandra-driver", "cassandra").DriverException, driver().NoHostAvailable, OSError)


def is_passing(error: BaseException) -> bool:
    """Whether trying again may help: time-outs, nodes that are down, connections that broke."""
    module = needed("cassandra", "cassandra-driver", "cassandra")
    passing = (
        module.OperationTimedOut,
        module.Timeout,
        module.Unavailable,
        module.WriteFailure,
        driver().NoHostAvailable,
        OSError,
    )
    return isinstance(error, passing) or type(error).__name__ in (
        "ConnectionException",
        "ConnectionShutdown",
        "ConnectionBusy",
        "OverloadedErrorMessage",
        "IsBootstrappingErrorMessage",
        "ServerError",
        "TruncateError",
        "NoConnectionsAvailable",
    )


Row = tuple[Any, ...]


@dataclass
class Writer:
    """A session with the statement that a slice is written with."""

    session: Any
    statement: Any
    types: dict[str, str]

    @property
    def columns(self) -> Sequence[str]:
        return list(self.types)

    def refused(self, rows: Iterable[Row], concurrency: int) -> list[tuple[Row, Exception]]:
        """Write all of these, so many at once. Gives those that were not written, and why.

        The driver's own helper for this tells of some rows twice when a node ends meanwhile, and breaks there.
        """
        failed: list[tuple[Row, Exception]] = []
        sent: deque[tuple[Row, Any]] = deque()

        def answered() -> None:
            row, answer = sent.popleft()
            try:
                answer.result()
            except Exception as error:  # noqa: BLE001 - whatever it was, the caller is told of it
                failed.append((row, error))

        for row in rows:
            if len(sent) == concurrency:
                answered()
            try:
                sent.append((row, self.session.execute_async(self.statement, row)))
            except Exception as error:  # noqa: BLE001 - a value that cannot be bound
                failed.append((row, error))
        while sent:
            answered()
        return failed


_writers: dict[tuple[Connection, str], Writer] = {}
_lock = threading.Lock()


def writer_for(connection: Connection, insert: str) -> Writer:
    """This process's writer for a statement; made when it is first needed. `OSError` if nobody answers."""
    with _lock:
        found = _writers.get((connection, insert))
        if found is None:
            found = _writers[connection, insert] = _made(connection, insert)
        return found


def close() -> None:
    """End the connections of this process, for those who want to end it in order."""
    with _lock:
        for writer in _writers.values():
            writer.session.cluster.shutdown()
        _writers.clear()


def _made(connection: Connection, insert: str) -> Writer:
    session = connection.open()
    try:
        statement = session.prepare(insert)
    except errors() as error:
        session.cluster.shutdown()
        if is_passing(error):
            raise ConnectionError(f"cassandra: {error}") from error
        raise SinkError(f"cassandra refuses the statement {insert}: {error}") from error
    statement.is_idempotent = True
    types = {each.name: each.type.cql_parameterized_type() for each in statement.column_metadata}
    return Writer(session, statement, {name: kind for name, kind in types.items() if name != "[timestamp]"})


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
