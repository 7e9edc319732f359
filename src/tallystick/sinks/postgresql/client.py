"""psycopg, imported when it is needed, and connections that do not wait for ever."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from tallystick.errors import ConfigError, MissingExtraError, SinkError

DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "10",
    # a server that has gone without a good-bye is noticed
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
OURS = {"application_name": "names of transactions", "client_encoding": "text is UTF-8"}
IDLE_NAME = "tallystick"


def psycopg() -> ModuleType:
    """Raises `MissingExtraError`."""
    try:
        return import_module("psycopg")
    except ImportError as cause:
        raise MissingExtraError(
            f"PostgreSQL needs the package psycopg, which cannot be imported here ({cause}). on this machine, and on "
            "every machine that runs executors: pip install 'tallystick[postgresql]'"
        ) from cause


def sql() -> ModuleType:
    """psycopg's composition of statements: every name and literal goes through it."""
    psycopg()
    return import_module("psycopg.sql")


def parameters_of(dsn: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What libpq is to be told, from an address and options of its own. The text of neither is ever shown."""
    if not isinstance(dsn, str) or not dsn.strip():
        raise ConfigError("postgresql: the address is empty: needed one such as 'postgresql://user@host/database'")
    psycopg()
    try:
        parsed = import_module("psycopg.conninfo").conninfo_to_dict(dsn, **{k: str(v) for k, v in options.items()})
    except psycopg().Error:
        raise ConfigError(
            "postgresql: the address or an option is not one of libpq's (its text is not shown: it may hold a "
            "password). needed 'postgresql://user@host:5432/database', and options such as sslmode or password"
        ) from None
    for name, use in OURS.items():
        if name in parsed:
            raise ConfigError(f"postgresql: {name} is set by tallystick ({use}): leave it out")
    return {**DEFAULTS, **{name: str(value) for name, value in parsed.items()}, "client_encoding": "UTF8"}


@lru_cache(maxsize=1)
def _patient() -> Any:
    class Patient(psycopg().Connection):  # type: ignore[misc]
        """A connection that, when an answer does not come for ``patience_s``, asks the server whether it is still at
        work on it. If it is, the wait goes on; if not, the answer was lost: psycopg's time-out error."""

        patience_s: float | None = None

        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            if timeout is not None or self.patience_s is None:
                return super().wait(gen, interval, timeout)
            while True:
                try:
                    return super().wait(gen, interval, self.patience_s)
                except psycopg().errors._WaitTimeout:
                    if not self._at_work():
                        raise

        def _at_work(self) -> bool:
            with psycopg().connect(self.info.dsn, password=self.info.password, autocommit=True) as other:
                question = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
                return bool(other.execute(question, [self.info.backend_pid]).fetchone()[0])

    return Patient


def connect(parameters: Mapping[str, str], patience_s: float | None = None) -> Any:
    """A new connection, each statement its own transaction unless one is begun. psycopg's errors come through."""
    made = _patient().connect(**parameters, application_name=IDLE_NAME, autocommit=True, prepare_threshold=None)
    made.execute(
        "SELECT set_config('client_min_messages', 'warning', false), set_config('synchronous_commit', "
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') "
        "END, false)"
    )
    made.patience_s = patience_s
    return made


class Pool:
    """Connections of this process to one place, kept from epoch to epoch."""

    def __init__(self, parameters: Mapping[str, str], patience_s: float | None) -> None:
        self._parameters, self._patience_s = dict(parameters), patience_s
        self._idle: list[Any] = []
        self._guard = threading.Lock()

    def take(self) -> Any:
        while True:
            with self._guard:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return connect(self._parameters, self._patience_s)
            if _usable(connection):
                return connection
            connection.close()

    def give(self, connection: Any) -> None:
        """Back for the next one; closed if something is open in it or it is broken."""
        if connection.closed or connection.info.transaction_status != 0:
            connection.close()
            return
        with self._guard:
            self._idle.append(connection)

    @contextmanager
    def use(self) -> Iterator[Any]:
        """One for a while; closed if the work with it fails."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.give(connection)


def _usable(connection: Any) -> bool:
    """An idle connection has nothing to say: one that has is closed by the server, or about to be."""
    if connection.closed:
        return False
    readable, _, _ = select.select([connection.fileno()], [], [], 0)
    return not readable


_pools: dict[tuple[Any, ...], Pool] = {}
_pools_guard = threading.Lock()


def pool_for(parameters: Mapping[str, str], patience_s: float | None = None) -> Pool:
    """Of this process: what was inherited by a fork is not ours."""
    key = (os.getpid(), patience_s, tuple(sorted(parameters.items())))
    with _pools_guard:
        if key not in _pools:
            _pools[key] = Pool(parameters, patience_s)
        return _pools[key]


def secretless(text: str, parameters: Mapping[str, str]) -> str:
    """A text from a server or library, without the password, should it be in it."""
    for name in ("password", "sslpassword"):
        secret = parameters.get(name)
        if secret:
            text = text.replace(secret, "***")
    return " ".join(text.split())


def unreachable(error: Exception, where: str, parameters: Mapping[str, str]) -> SinkError:
    """What to say when no connection was had."""
    said = secretless(str(error), parameters)
    return SinkError(
        f"postgresql: no connection to {where}: {said}. needed a server that is up, and a user, password and database "
        "that are right. look with: psql, with the same address"
    )
