"""Redis, from the system's packages: everything that it acknowledged is in its log on disk.

::

    FOLDER/redis.conf          written at every start: settings, and the password if there is one
    FOLDER/data/               its log of commands (AOF)
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tallystick.servers.base import Server
from tallystick.servers.packaged import program, version_of
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program
from tallystick.servers.tcp_proxy import OnePort

R = TypeVar("R", bound="Redis")
PACKAGE = "redis-server"
SETTINGS: Mapping[str, str] = {
    "bind": LOOPBACK,
    "appendonly": "yes",
    "appendfsync": "always",
    "save": '""',
    "maxmemory-policy": "noeviction",
}


class Redis(Server, OnePort):
    """Ready when it answers, and has read its data.

    ``settings`` are those of ``redis.conf``, beside or instead of ours, such as ``requirepass``; each start takes those
    of the object started.
    """

    name = "redis"

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self.settings = dict(settings or {})

    @property
    def version(self) -> str:
        return version_of(_program())

    @property
    def address(self) -> str:
        return self.address_of(self.ports[0])

    def address_of(self, port: int) -> str:
        """The same server by another port, such as a proxy's."""
        return f"redis://{LOOPBACK}:{port}/0"

    def start(self: R) -> R:
        self._write_settings()
        return super().start()

    def prepare(self) -> None:
        """An empty folder is all that it needs."""

    def programs(self) -> Sequence[Program]:
        return [Program(self.name, [str(_program()), str(self._file)])]

    def ready(self) -> bool:
        """A server that wants a password, or has too many clients, is ready, too; one that loads its data is not."""
        try:
            with socket.create_connection((LOOPBACK, self.ports[0]), 1) as connection:
                connection.settimeout(1)
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    @property
    def _file(self) -> Path:
        return self.folder / "redis.conf"

    def _write_settings(self) -> None:
        settings = {**SETTINGS, "port": str(self.ports[0]), "dir": str(self.data), **self.settings}
        self._file.touch(mode=0o600)
        self._file.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))


def _program() -> Path:
    return program("redis-server", PACKAGE)
