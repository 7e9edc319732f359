"""One process of a server: its command, its log, and a pid file by which any later process can end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.errors import SetupError

STOP_TIMEOUT_S = 20.0
_LOG_TAIL_LINES = 20


@dataclass(frozen=True)
class Program:
    """What to run. ``name`` is that of its log and pid files, unique within a server.

    ``stop_signal`` is how an administrator would end it.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_signal: int = signal.SIGTERM


class ServerProcess:
    """A program that runs in a session of its own, so that a signal for the caller's group does not reach it."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.log = folder / f"{program.name}.log"
        self.pid_file = folder / f"{program.name}.pid"
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises `SetupError` if it runs already or the program is not there."""
        if self.running:
            raise SetupError(f"{self.program.name} runs already, as process {self.pid}: see {self.pid_file}")
        try:
            with self.log.open("ab") as log:
                self._child = subprocess.Popen(
                    list(self.program.command),
                    cwd=self.folder,
                    env={**os.environ, **self.program.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise SetupError(f"{self.program.command[0]} cannot be run: {error.strerror}") from error
        born = _born(self._child.pid)
        self.pid_file.write_text(json.dumps({"pid": self._child.pid, "born": born}) + "\n")

    @property
    def pid(self) -> int | None:
        """Its process id while it lives, even if another process started it. A reused number is not taken for it."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        try:
            noted = json.loads(self.pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        born = _born(noted["pid"])
        return int(noted["pid"]) if born is not None and born == noted["born"] else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs, or if another process started it."""
        return None if self._child is None else self._child.poll()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Its stop signal, then SIGKILL for it and for whoever of its group is left. Harmless if it does not run."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):  # ended between the question and the signal
                os.kill(pid, self.program.stop_signal)
            self._ended(timeout_s)
        self._kill_group(pid)

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash would: nothing is flushed. Harmless if it does not run."""
        self._kill_group(self.pid)

    def log_tail(self) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    def _kill_group(self, pid: int | None) -> None:
        if pid is not None:
            with suppress(ProcessLookupError):  # nobody of it is left
                os.killpg(pid, signal.SIGKILL)
        if not self._ended(STOP_TIMEOUT_S):
            raise SetupError(f"{self.program.name}, process {self.pid}, does not end after SIGKILL")

    def _ended(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.running:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        self.pid_file.unlink(missing_ok=True)
        return True


def _born(pid: int) -> str | None:
    """When a process started, in whatever unit the system has; None if it does not live."""
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, threads, born = fields[0], int(fields[17]), fields[19]
        # the first thread can be a zombie while others still write or hold ports: then the process lives
        return None if state in "ZX" and threads <= 1 else born
    if Path("/proc/self/stat").exists():
        return None
    answer = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None
