"""A receiver as a process of its own: started beside a driver, found again by the next one, ended with the job.

::

    LOG/lock           held by the receiver for as long as it lives
    LOG/status.json    what it says about itself
    LOG/driver.json    for whom it works; a later driver puts itself here
    LOG/receiver.log   what it prints

It runs in a session of its own, so that a signal for the driver's group does not reach it, and it goes on when its
driver is killed: for ``outlives_s``, or until another driver takes it over. Settings travel through its standard input:
they may hold passwords, which neither the list of processes nor the disk should show.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tallystick.errors import SourceError
from tallystick.receiver.disk import Lock, make_folder, replace_file
from tallystick.receiver.log import LogSettings
from tallystick.receiver.status import is_received, read_status
from tallystick.records import Json

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02


@dataclass(frozen=True)
class ReceiverSpec:
    """Everything that a receiver needs to know. ``inlet`` holds the kind and its settings, passwords among them.

    ``outlives_s`` None: it runs until it is told to stop, whoever lives or dies.
    """

    folder: str
    inlet: Json = field(repr=False)
    log: LogSettings = field(default_factory=LogSettings)
    stop_at_bad: bool = False
    outlives_s: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ReceiverSpec:
        value = json.loads(text)
        return cls(**{**value, "log": LogSettings(**value["log"])})


def ensure_received(spec: ReceiverSpec, driver: int) -> None:
    """Driver's machine: a receiver lives and receives when this returns. Harmless if one does already.

    Raises `SourceError` with its own words if it fails to start.
    """
    folder = Path(spec.folder)
    make_folder(folder)
    work_for(folder, driver)
    if is_received(folder):
        return
    process = _spawn(spec)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = process.poll()
        status = read_status(folder) if read_status(folder).get("pid") == process.pid else {}
        if status.get("state") in ("receiving", "full"):
            return
        if ended is not None:
            if is_received(folder):  # somebody else was faster
                return
            raise SourceError(f"the receiver of {folder} could not start: {status.get('error') or _tail(folder)}")
        time.sleep(POLL_S)
    raise SourceError(f"the receiver of {folder} is not ready after {START_TIMEOUT_S:g} s: {_tail(folder)}")


def work_for(folder: Path, driver: int) -> None:
    """Tell the receiver, now or whenever it starts, which driver it works for."""
    replace_file(folder / "driver.json", json.dumps({"pid": driver}).encode() + b"\n", synced=False)


def driver_lives(folder: Path) -> bool:
    try:
        pid = int(json.loads((folder / "driver.json").read_text())["pid"])
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, KeyError, ProcessLookupError):
        return False
    except PermissionError:
        return True  # somebody else's process, but a living one
    return True


def stop_receiver(folder: Path, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """SIGTERM, and wait until it has let go of its log. False if there was none."""
    pid = Lock(folder / "lock").holder()
    if pid is None:
        return False
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while is_received(folder):
        if time.monotonic() > deadline:
            raise SourceError(f"the receiver of {folder}, process {pid}, does not end: see {folder / 'receiver.log'}")
        time.sleep(POLL_S)
    return True


def _spawn(spec: ReceiverSpec) -> subprocess.Popen[bytes]:
    with (Path(spec.folder) / "receiver.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tallystick.receiver"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as pipe:  # it has ended already: the caller finds out why
            pipe.write(spec.to_json().encode())
    _children.append(process)
    return process


_children: list[subprocess.Popen[bytes]] = []
"""Kept, so that their ends are noticed by this process and no zombie is taken for a receiver."""


def _tail(folder: Path) -> str:
    path = folder / "receiver.log"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1] if lines else "it said nothing"
