"""PostgreSQL, from the system's packages, with prepared transactions allowed.

::

    FOLDER/data/cluster/       what initdb made
    FOLDER/certificates/       of a server with TLS

Whoever comes from this machine is let in without a password, as the superuser ``postgres`` or as anybody else, except
members of the role ``passworded``, who need theirs.

PostgreSQL refuses to run as root. Where we are root it runs as the user ``postgres``, which the package made, with one
capability beside: to reach its folder, wherever that is.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tallystick.errors import SetupError
from tallystick.servers.base import Server
from tallystick.servers.certificates import Certificates
from tallystick.servers.packaged import program, version_of
from tallystick.servers.ports import LOOPBACK
from tallystick.servers.process import STOP_TIMEOUT_S, Program
from tallystick.servers.tcp_proxy import OnePort

USER = "postgres"
PACKAGE = "postgresql"
SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_prepared_transactions": "64",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "lc_messages": "C",
}
_ACCESS = f"""\
host all +passworded {LOOPBACK}/32 scram-sha-256
host all all {LOOPBACK}/32 trust
"""


class PostgreSQL(Server, OnePort):
    """Ready when it takes connections.

    ``settings`` are those of ``postgresql.conf``, beside or instead of ours; each start takes those of the object
    started. ``tls`` offers TLS on the same port, with a certificate that `ca_file` signed; choose it when the folder
    is new.
    """

    name = "postgresql"

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None, tls: bool = False) -> None:
        super().__init__(folder)
        self.settings = dict(settings or {})
        self.tls = tls

    @property
    def version(self) -> str:
        return version_of(_program("postgres"))

    @property
    def address(self) -> str:
        return self.address_of(self.ports[0])

    @property
    def ca_file(self) -> Path:
        """What a client must trust, of a server with TLS."""
        return self._certificates.ca_file

    def address_of(self, port: int, user: str = USER, database: str = "postgres") -> str:
        """The same server by another port, such as a proxy's, or for another user."""
        return f"postgresql://{user}@{LOOPBACK}:{port}/{database}"

    def prepare(self) -> None:
        if self._other_user is not None:
            os.chown(self.data, self._other_user.pw_uid, self._other_user.pw_gid)
        words = ["-D", str(self._cluster), "-U", USER, "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"]
        self.run_once(Program("initdb", [*self._as_user(), str(_program("initdb")), *words]))
        (self._cluster / "pg_hba.conf").write_text(_ACCESS)
        if self.tls:
            self._certificates.make()
            if self._other_user is not None:
                os.chown(self._certificates.server_file, self._other_user.pw_uid, self._other_user.pw_gid)
            self._certificates.server_file.chmod(0o600)

    def programs(self) -> Sequence[Program]:
        settings = {**SETTINGS, "port": str(self.ports[0]), **self._tls_settings(), **self.settings}
        chosen = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [*self._as_user(), str(_program("postgres")), "-D", str(self._cluster), *chosen]
        return [Program(self.name, command, stop_signal=signal.SIGINT)]

    def ready(self) -> bool:
        asked = [str(_program("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(self.ports[0])]
        return subprocess.run(asked, timeout=30, check=False).returncode == 0

    def kill(self) -> None:
        """Its processes are in groups of their own; one that lived on would keep the memory that they share.

        The first one starts the others, at any time: it is held before they are listed, so that the list is whole.
        """
        pid = self.processes[0].pid
        others = _children(pid) if pid is not None and _hold(pid) else []
        super().kill()
        for other in others:
            with suppress(ProcessLookupError):  # it has noticed that the first one is gone
                os.kill(other, signal.SIGKILL)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(Path(f"/proc/{other}").exists() for other in others):
            if time.monotonic() > deadline:
                raise SetupError(f"{self.name}: some of its processes do not end after SIGKILL: {others}")
            time.sleep(0.01)

    @property
    def _cluster(self) -> Path:
        return self.data / "cluster"

    @property
    def _certificates(self) -> Certificates:
        return Certificates(self.folder / "certificates")

    def _tls_settings(self) -> dict[str, str]:
        file = str(self._certificates.server_file)
        return {"ssl": "on", "ssl_cert_file": file, "ssl_key_file": file} if self.tls else {}

    @property
    def _other_user(self) -> pwd.struct_passwd | None:
        """Whom it runs as, if not as ourselves."""
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(USER)
        except KeyError:
            raise SetupError(
                f"there is no user {USER!r}, which the package {PACKAGE} makes and as whom it must run where we are "
                f"root: apt-get install {PACKAGE}"
            ) from None

    def _as_user(self) -> list[str]:
        user = self._other_user
        if user is None:
            return []
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return ["setpriv", *ids, "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


def _program(name: str) -> Path:
    return program(name, PACKAGE, "usr/lib/postgresql/*/bin")


def _hold(pid: int) -> bool:
    """Stop it where it is; False if it is gone, and its children with it."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (state := Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
            if state in "ZX":
                return False
            if time.monotonic() > deadline:
                raise SetupError(f"postgresql: process {pid} does not stop after SIGSTOP, it is in state {state}")
            time.sleep(0.005)
        return True
    return False


def _children(pid: int) -> list[int]:
    said = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in said.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]
