"""Named places in the protocol where a prover can kill the process.

Armed only through the environment, when the process starts::

    TALLYSTICK_KILL="after-decide@3"          kill the whole job when epoch 3 reaches this point
    TALLYSTICK_KILL="after-write@3:worker"    kill only the process that reaches it (a task's worker)
    TALLYSTICK_KILL="after-write@3:executor"  kill the executor that the task runs in, with all its workers
    TALLYSTICK_KILL="after-write@3:worker,before-pre-commit@4:worker,after-decide@5"    each of them, in any order

A kill of a worker or executor alone happens once: it leaves a line in a file (``TALLYSTICK_KILL_ONCE`` names it), so
that the retried task gets through. When nothing is armed, `reach` costs one comparison.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tallystick.errors import ConfigError

ENVIRONMENT = "TALLYSTICK_KILL"
ONCE = "TALLYSTICK_KILL_ONCE"

DRIVER_POINTS = (
    "before-settle",
    "after-fence",
    "before-prepare",
    "before-decide",
    "inside-decide",
    "after-decide",
    "inside-commit",
    "after-commit",
    "before-return",
)
"""Reached on the driver, in the order of the protocol. ``inside-decide`` is between writing the record and linking
it into place; ``inside-commit`` is between the commits of two slices."""
WORKER_POINTS = ("before-begin", "after-write", "before-pre-commit", "after-pre-commit")
"""Reached by the task that writes a slice."""
POINTS = DRIVER_POINTS + WORKER_POINTS
RECEIVER_POINTS = (
    "receiver-before-append",
    "receiver-inside-append",
    "receiver-after-append",
    "receiver-after-sync",
    "receiver-before-acknowledge",
    "receiver-after-acknowledge",
    "receiver-new-segment",
    "receiver-before-removal",
    "receiver-after-removal",
)
"""Reached by a receiver, which has no epochs: its number counts the group commits of its run, or what is removed."""


@dataclass(frozen=True)
class Armed:
    """What ``TALLYSTICK_KILL`` asks for."""

    point: str
    epoch: int
    worker_only: bool = False
    executor_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Armed:
        match = re.fullmatch(r"(?P<point>[a-z-]+)@(?P<epoch>\d+)(?P<whom>:worker|:executor)?", text)
        of_executor = match is not None and match["whom"] == ":executor"
        known = WORKER_POINTS if of_executor else POINTS + RECEIVER_POINTS
        if match is None or match["point"] not in known:
            raise ConfigError(
                f"{ENVIRONMENT}={text!r} is no kill point: needed POINT@EPOCH or POINT@EPOCH:worker, with a point of "
                f"{', '.join(POINTS + RECEIVER_POINTS)}; or POINT@EPOCH:executor, with a point that a worker reaches"
            )
        return cls(match["point"], int(match["epoch"]), match["whom"] == ":worker", of_executor)

    def __str__(self) -> str:
        whom = ":worker" if self.worker_only else ":executor" if self.executor_only else ""
        return f"{self.point}@{self.epoch}{whom}"


def parse_all(text: str) -> tuple[Armed, ...]:
    """One or several, with commas between them."""
    return tuple(Armed.parse(part) for part in text.split(","))


_armed: tuple[Armed, ...] = parse_all(os.environ[ENVIRONMENT]) if ENVIRONMENT in os.environ else ()
_driver = os.getpid()


def reach(point: str, epoch: int) -> None:
    """Die here if this point is armed for this epoch; otherwise nothing."""
    for each in _armed:
        if (each.point, each.epoch) == (point, epoch):
            _die(each)


def armed(point: str, epoch: int) -> bool:
    """Whether `reach` would kill here: for a step that must be done in parts to be killed between them."""
    return any((each.point, each.epoch) == (point, epoch) for each in _armed)


def driver_is(pid: int) -> None:
    """Worker: whom to take down with it when a point that was reached here kills the whole job (same machine only)."""
    global _driver
    _driver = pid


def _die(armed: Armed) -> None:
    alone = armed.worker_only or armed.executor_only
    if alone and not _first_time(armed):
        return
    print(f"tallystick: killed at {armed}", file=sys.stderr, flush=True)
    if armed.executor_only:
        os.kill(_executor(), signal.SIGKILL)
    elif not alone:
        _kill_group_of_driver()
    os.kill(os.getpid(), signal.SIGKILL)


def _executor() -> int:
    """The JVM of this task: it has started the daemon that has forked this worker. Linux only."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(re.search(r"^PPid:\s+(\d+)$", status, re.MULTILINE)[1])  # type: ignore[index]  # every process has one


def _first_time(armed: Armed) -> bool:
    marker = os.environ.get(ONCE)
    if marker is None:
        raise ConfigError(
            f"a kill of a worker or executor alone needs {ONCE}, the path of a file that says which kills happened"
        )
    with Path(marker).open("a+") as happened:
        fcntl.flock(happened, fcntl.LOCK_EX)  # of two tasks at the same point one dies
        happened.seek(0)
        if any(line.split()[0] == str(armed) for line in happened):
            return False
        happened.write(f"{armed} {time.time():.3f} {os.getpid()}\n")
        return True


def _kill_group_of_driver() -> None:
    """The driver and its JVM share a process group; Spark puts the Python workers into one of their own."""
    with contextlib.suppress(ProcessLookupError):  # the driver is gone already: then so is its group
        os.killpg(os.getpgid(_driver), signal.SIGKILL)
