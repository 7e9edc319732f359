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

STANDSTILL_S = 30.0


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
            settings[killpoints.ENVIRONMENT] = ",".join(map(str, killpoints.parse_all(kill)))
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

    def pause(self) -> None:
        """SIGSTOP to the job and everything below it; returns when none of their threads takes a step any more."""
        everyone = descendants(self.pid)
        for pid in everyone:
            _signal(pid, signal.SIGSTOP)
        deadline = time.monotonic() + STANDSTILL_S
        while not all(map(_stands_still, everyone)):
            if time.monotonic() > deadline:
                raise TallystickError(f"the job did not stand still {STANDSTILL_S:g} s after SIGSTOP")
            time.sleep(0.02)

    def resume(self) -> None:
        """SIGCONT to all of them, the last ones first. Harmless if none is stopped, or there."""
        for pid in reversed(descendants(self.pid)):
            _signal(pid, signal.SIGCONT)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found, waiting = [], [pid]
    while waiting:
        found += waiting
        waiting = [child for parent in waiting for child in children(parent)]
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    """All of its threads: the signal is sent to the process and reaches them one after the other."""
    try:
        states = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # ended: it takes no more steps either
        return True
    return all(state.rpartition(")")[2].split()[0] in "TtZX" for state in states)


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return [int(child) for each in lists for child in each.read_text().split()]
    except OSError:  # it ended while we looked
        return []


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""
