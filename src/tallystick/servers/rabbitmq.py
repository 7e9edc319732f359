"""RabbitMQ, from the system's packages: one node with a port mapper of its own, and with streams.

::

    FOLDER/rabbitmq.conf      written when the folder is new
    FOLDER/home/              the cookie by which Erlang nodes know each other
    FOLDER/data/              queues, streams, users
"""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.servers.base import Server
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import Program
from tallystick.servers.tcp_proxy import OnePort

PACKAGE = "rabbitmq-server"
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The program itself: the one on the path insists on the system's own user and folders."""
GUEST = "guest:guest"
_GREETING = b"AMQP\x00\x00\x09\x01"


class RabbitMQ(Server, OnePort):
    """Ready when it greets clients. ``plugins`` are switched on, ``settings`` are lines of ``rabbitmq.conf``."""

    name = "rabbitmq"
    ports_needed = 4

    def __init__(
        self,
        folder: Path,
        *,
        plugins: Sequence[str] = ("rabbitmq_stream",),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder)
        self.plugins = tuple(plugins)
        self.settings = dict(settings or {})

    @property
    def version(self) -> str:
        found = re.search(r"rabbitmq_server-([\d.]+)", str(_program().resolve()))
        return found[1] if found else ""

    @property
    def address(self) -> str:
        return self.address_of(self.ports[0])

    def address_of(self, port: int, user: str = GUEST) -> str:
        """The same server by another port, such as a proxy's, or as another user."""
        return f"amqp://{user}@{LOOPBACK}:{port}/%2F"

    def prepare(self) -> None:
        for folder in ("home", "log"):
            (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        settings = {
            "stream.listeners.tcp.1": f"{LOOPBACK}:{self.ports[1]}",
            "vm_memory_high_watermark.absolute": "512MB",
            "disk_free_limit.absolute": "50MB",
            **self.settings,
        }
        if "rabbitmq_stream" not in self.plugins:
            del settings["stream.listeners.tcp.1"]
        lines = (f"{name} = {value}\n" for name, value in settings.items())
        (self.folder / "rabbitmq.conf").write_text("".join(lines))

    def programs(self) -> list[Program]:
        epmd = ["epmd", "-address", LOOPBACK, "-port", str(self.ports[3])]
        return [
            Program("epmd", [shutil.which("epmd") or "epmd", *epmd[1:]]),
            Program(self.name, ["sh", str(_program())], self._environment()),
        ]

    def ready(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.ports[0]), 1) as connection:
                connection.settimeout(1)
                connection.sendall(_GREETING)
                return connection.recv(1) == b"\x01"  # a frame: it asks who is there
        except OSError:
            return False

    def _environment(self) -> dict[str, str]:
        amqp, _, distribution, epmd = self.ports
        return {
            "HOME": str(self.folder / "home"),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_NODENAME": f"tallystick{amqp}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(amqp),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(self.folder / "beam.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }


def _program() -> Path:
    if SERVER.exists() and shutil.which("epmd"):
        return SERVER
    raise SetupError(
        f"RabbitMQ was not found at {SERVER}. install the package {PACKAGE}, for instance: "
        f"sudo apt-get install {PACKAGE}"
    )
