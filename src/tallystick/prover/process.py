"""A job in a process group of its own, so that it can be killed like a machine that loses power.

The kill itself happens inside the job, at an armed kill point (`killpoints`), with SIGKILL: nothing is flushed,
closed or rolled back. What survives is what was durable.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick import killpoints
from tallystick.errors import TallystickError


@dataclass(frozen=True)
class KilledRun:
    """How one run of a job ended: ``killed`` if the armed point was reached, else the exit status."""

    point: str | None
    killed: bool
    status: int
    duration_s: float


class JobProcess:
    """One run of a job: ``python ARGUMENTS…`` in a session of its own, with a kill point armed or none."""

    def __init__(
        self, arguments: Sequence[str], log: Path, kill: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.point = kill
        self.log = log
        settings = {key: value for key, value in os.environ.items() if not key.startswith(killpoints.ENVIRONMENT)}
        settings.update(environment or {})
        if kill is not None:
            settings[killpoints.ENVIRONMENT] = str(killpoints.Armed.parse(kill))
        self._started = time.monotonic()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float = 120) -> KilledRun:
        """Wait for the end. A run that outlives the time-out is ended and is an error, with the end of its log."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TallystickError(f"the job did not end in {timeout_s:g} s:\n{self.tail()}") from None
        self.kill()
        killed = self.point is not None and status == -signal.SIGKILL
        return KilledRun(self.point, killed, status, time.monotonic() - self._started)

    def kill(self) -> None:
        """SIGKILL to whatever is left of the job's group, and wait for it."""
        with contextlib.suppress(ProcessLookupError):  # the group is gone when its last process is
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
