"""A real server on loopback: started, watched, stopped, killed, and started again on the same data.

To add one, subclass `Server`: say which ports and programs it has, how its data folder is prepared, and how to tell
that it is ready. Everything else is here. One server has one folder::

    FOLDER/ports.json       its ports, chosen once, so that a restart has the same address
    FOLDER/prepared         made when the data was prepared
    FOLDER/NAME.log         what each of its programs says
    FOLDER/NAME.pid         each program's process, while it runs
    FOLDER/data/            the server's own
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from tallystick.errors import SetupError
from tallystick.servers.ports import free_ports
from tallystick.servers.process import Program, ServerProcess

S = TypeVar("S", bound="Server")


class Server(ABC):
    """One server. As a context manager it is started, and stopped at the end whatever happened."""

    name: ClassVar[str]
    ports_needed: ClassVar[int] = 1
    ready_timeout_s: ClassVar[float] = 90.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._ports: list[int] = []
        self._processes: list[ServerProcess] = []

    @property
    @abstractmethod
    def address(self) -> str:
        """What a client connects to."""

    @property
    def version(self) -> str:
        """Of the product; empty if it has none of its own."""
        return ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a client must find in its environment."""
        return {}

    @property
    def keeps_data(self) -> bool:
        """Whether what it stored survives a kill."""
        return True

    @abstractmethod
    def prepare(self) -> None:
        """Write settings and format the data folder. Called once in the life of the folder, again if it failed."""

    @abstractmethod
    def programs(self) -> Sequence[Program]:
        """What to run, in the order of starting. Called after `prepare`."""

    @abstractmethod
    def ready(self) -> bool:
        """Does it serve? Asked again and again, also while nothing listens yet: that is False, not an exception."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def ports(self) -> list[int]:
        """Its ports: chosen at the first question, then the same for ever."""
        if not self._ports:
            noted = self.folder / "ports.json"
            if not noted.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                noted.write_text(json.dumps(free_ports(self.ports_needed)))
            self._ports = json.loads(noted.read_text())
        return self._ports

    @property
    def processes(self) -> list[ServerProcess]:
        """Its processes, running or not, also those that an earlier process of ours started."""
        if not self._processes:
            self._processes = [ServerProcess(program, self.folder) for program in self.programs()]
        return self._processes

    @property
    def running(self) -> bool:
        """True if all of its processes live."""
        return all(process.running for process in self.processes)

    def start(self: S) -> S:
        """Start it and wait until it is ready.

        `SetupError` with the end of its log if it does not get ready; then nothing of it runs. Also if it runs
        already; then it is left alone.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        prepared = self.folder / "prepared"
        if not prepared.exists():
            self.prepare()
            prepared.touch()
        for process in self.processes:
            if process.running:
                raise SetupError(f"{self.name} runs already in {self.folder}, as process {process.pid}")
        try:
            for process in self.processes:
                process.start()
            self._wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """End it as an administrator would, last program first. Harmless if it does not run."""
        for process in reversed(self.processes):
            process.stop()

    def kill(self) -> None:
        """End it as a crash would. Harmless if it does not run."""
        for process in reversed(self.processes):
            process.kill()

    def restart(self) -> None:
        """Start it again on the same data and address, whether it was stopped, killed or still runs."""
        self.stop()
        self.start()

    def __enter__(self: S) -> S:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run_once(self, program: Program, timeout_s: float = 60.0) -> None:
        """Run a program to its end, such as one that formats a disk; `SetupError` with its log if it fails."""
        process = ServerProcess(program, self.folder)
        process.start()
        deadline = time.monotonic() + timeout_s
        while process.running and time.monotonic() < deadline:
            time.sleep(0.05)
        status = process.status
        process.kill()
        if status != 0:
            raise self._failed(process, "took too long" if status is None else f"ended with status {status}")

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self.ready_timeout_s
        while not self.ready():
            for process in self.processes:
                if not process.running:
                    raise self._failed(process, "ended while starting")
            if time.monotonic() > deadline:
                raise self._failed(self.processes[-1], f"is not ready after {self.ready_timeout_s:g} s")
            time.sleep(0.05)

    def _failed(self, process: ServerProcess, what: str) -> SetupError:
        return SetupError(
            f"{self.name} could not start: {process.program.name} {what}. "
            f"the end of {process.log}:\n{process.log_tail()}"
        )
