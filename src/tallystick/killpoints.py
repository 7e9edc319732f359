"""Named places in the protocol where a prover can kill the process.

Armed only through the environment, when the process starts::

    TALLYSTICK_KILL="after-decide@3"          kill the whole job when epoch 3 reaches this point
    TALLYSTICK_KILL="after-write@3:worker"    kill only the process that reaches it (a task's worker)

A worker-only kill happens once: it leaves a file behind (``TALLYSTICK_KILL_ONCE`` names it), so that the retried
task gets through. When nothing is armed, `reach` costs one comparison.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
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


@dataclass(frozen=True)
class Armed:
    """What ``TALLYSTICK_KILL`` asks for."""

    point: str
    epoch: int
    worker_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Armed:
        match = re.fullmatch(r"(?P<point>[a-z-]+)@(?P<epoch>\d+)(?P<worker>:worker)?", text)
        if match is None or match["point"] not in POINTS:
            raise ConfigError(
                f"{ENVIRONMENT}={text!r} is no kill point: needed POINT@EPOCH or POINT@EPOCH:worker, "
                f"with a point of {', '.join(POINTS)}"
            )
        return cls(match["point"], int(match["epoch"]), match["worker"] is not None)

    def __str__(self) -> str:
        return f"{self.point}@{self.epoch}" + (":worker" if self.worker_only else "")


_armed: Armed | None = Armed.parse(os.environ[ENVIRONMENT]) if ENVIRONMENT in os.environ else None
_driver = os.getpid()


def reach(point: str, epoch: int) -> None:
    """Die here if this point is armed for this epoch; otherwise nothing."""
    if _armed is not None and armed(point, epoch):
        _die(_armed)


def armed(point: str, epoch: int) -> bool:
    """Whether `reach` would kill here: for a step that must be done in parts to be killed between them."""
    return _armed is not None and _armed.point == point and _armed.epoch == epoch


def driver_is(pid: int) -> None:
    """Worker: whom to take down with it when a point that was reached here kills the whole job (same machine only)."""
    global _driver
    _driver = pid


def _die(armed: Armed) -> None:
    if armed.worker_only and not _first_time():
        return
    print(f"tallystick: killed at {armed}", file=sys.stderr, flush=True)
    if not armed.worker_only:
        _kill_group_of_driver()
    os.kill(os.getpid(), signal.SIGKILL)


def _first_time() -> bool:
    marker = os.environ.get(ONCE)
    if marker is None:
        raise ConfigError(f"a worker-only kill needs {ONCE}, the path of a file that says that it happened")
    try:
        with Path(marker).open("x"):
            return True
    except FileExistsError:
        return False


def _kill_group_of_driver() -> None:
    """The driver and its JVM share a process group; Spark puts the Python workers into one of their own."""
    with contextlib.suppress(ProcessLookupError):  # the driver is gone already: then so is its group
        os.killpg(os.getpgid(_driver), signal.SIGKILL)
