"""A driver process that dies is started again, by a parent that does nothing else.

1.  *Two restarts.* What fails inside Spark is restarted inside the driver (`Job.run`). A driver that is killed, or
    whose JVM is, cannot do that; its parent does, by the same strategy, and counts these deaths apart. A driver that
    gave up or was fenced says so by its exit status and is left alone.
2.  *One line between them*, a socket: a byte for every epoch that ended well, so that the parent knows of progress; and
    its end, by which the driver learns of its parent's death. Then it stops as if it had been asked to.
3.  *A group of its own.* Signals reach the parent, which hands them on; whatever is left of a dead driver (its JVM) is
    killed before the next one starts.
4.  *A driver that was told to die stays dead*: where a kill point is armed, nobody watches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

from tallystick import killpoints
from tallystick.cli.console import err
from tallystick.restart import NoRestart, Restarts

if TYPE_CHECKING:
    from tallystick.spark.job import Job

ENVIRONMENT = "TALLYSTICK_SUPERVISOR"
"""Set for a driver that has a parent: the number of its end of the line."""
DRIVER_LOST = 75
"""The exit status of a driver that could go on if it were started again."""
POLL_S = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def wanted(job: Job) -> bool:
    """Whether this process should be the parent: not if nothing is to be restarted, and not below a parent."""
    alone = ENVIRONMENT in os.environ or killpoints.ENVIRONMENT in os.environ
    return not isinstance(job.restart, NoRestart) and not alone


def supervise(job: Job, arguments: Sequence[str]) -> int:
    """Run ``tallystick ARGUMENTS`` until it ends by itself or restarts are used up; returns the exit status."""
    restarts = Restarts(job.restart)
    while True:
        with _Driver(arguments, restarts) as driver:
            status = driver.wait()
        if status >= 0 and status != DRIVER_LOST:
            return status
        if driver.asked:
            return 128 + driver.asked
        died = "lost its JVM" if status == DRIVER_LOST else f"was killed by {_signal_name(-status)}"
        pause_s = restarts.failed()
        if pause_s is None:
            err().print(f"job {job.name}: its driver {died}; no restart is left", style="red", soft_wrap=True)
            return 1
        err().print(
            f"job {job.name}: its driver {died}; restart {restarts.in_a_row} in {pause_s:g} s",
            style="yellow",
            soft_wrap=True,
        )
        if _interrupted_during(pause_s):
            return 130


class _Driver:
    """One driver process, in a group of its own."""

    def __init__(self, arguments: Sequence[str], restarts: Restarts) -> None:
        self.asked = 0
        self._restarts = restarts
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tallystick", *arguments],
                env={**os.environ, ENVIRONMENT: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> _Driver:
        self._before = {number: signal.signal(number, self._hand_on) for number in SIGNALS}
        threading.Thread(target=self._listen, name="tallystick-line", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with contextlib.suppress(ProcessLookupError):  # nothing is left of its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._ours.close()

    def wait(self) -> int:
        """In steps, because a signal handler of Python runs between two of them."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(POLL_S)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self._process.send_signal(number)

    def _listen(self) -> None:
        """Each byte is an epoch that ended well."""
        with contextlib.suppress(OSError):  # the line is closed when the driver is over
            while self._ours.recv(4096):
                self._restarts.succeeded()


class Line:
    """The driver's end of the line; of no effect where there is no parent."""

    def __init__(self) -> None:
        number = os.environ.pop(ENVIRONMENT, None)
        self._socket = socket.socket(fileno=int(number)) if number is not None else None

    @property
    def held(self) -> bool:
        return self._socket is not None

    def watch(self) -> None:
        """From here on, the parent's death stops this process as SIGTERM would."""
        if self._socket is not None:
            os.set_inheritable(self._socket.fileno(), False)
            threading.Thread(target=self._wait_for_end, name="tallystick-line", daemon=True).start()

    def epoch_done(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the parent has just died: the other thread sees to that
                self._socket.send(b"e")

    def _wait_for_end(self) -> None:
        with contextlib.suppress(OSError):  # the same as its end
            while self._socket is not None and self._socket.recv(1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)


def _interrupted_during(pause_s: float) -> bool:
    try:
        time.sleep(pause_s)
    except KeyboardInterrupt:
        return True
    return False


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
