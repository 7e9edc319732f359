"""How the JVM talks to Python workers: through sockets of the file system, where everything is on one machine.

Spark's default is TCP without ``TCP_NODELAY``. To hand a task to a worker it writes several small pieces, and the
second of them waits for the kernel's delayed acknowledgement of the first: 40 ms for every task, on an idle machine
too (measured: with acknowledgements at once, ``ip route … quickack 1``, they are gone). Sockets of the file system know
no such wait.

Spark leaves their files behind. So they are in a folder of this process, which goes away with it. As long as it lives
it holds a lock there: folders without one are those of processes that were killed, and are swept by the next one.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import logging
import os
import secrets
import shutil
import time
from pathlib import Path

from tallystick.scratch import scratch_folder

log = logging.getLogger("tallystick")

ENABLED = "spark.python.unix.domain.socket.enabled"
FOLDER = "spark.python.unix.domain.socket.dir"
PATH_BYTES_MAX = 107
NAME_BYTES = 48
"""Of a file that Spark makes there."""
NEW_S = 60.0
"""A folder so young may be about to get its lock."""


def socket_settings() -> dict[str, str]:
    """For a session on this machine; nothing if there can be no folder for them, or none with a path so short."""
    try:
        folder = _folder_of(os.getpid())
    except OSError as cause:
        log.info("Spark talks to its workers over TCP: %s", cause)
        return {}
    if len(os.fsencode(folder)) + NAME_BYTES > PATH_BYTES_MAX:
        return {}
    return {ENABLED: "true", FOLDER: str(folder)}


@functools.cache
def _folder_of(pid: int) -> Path:
    """Made once per process, and removed when that very process ends."""
    folder = scratch_folder("sockets", f"{pid}-{secrets.token_hex(3)}")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def remove() -> None:
        if os.getpid() == pid:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    _sweep(folder.parent)
    return folder


def _sweep(root: Path) -> None:
    for left in root.iterdir():
        try:
            lock = os.open(left / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            if left.exists() and time.time() - left.stat().st_mtime > NEW_S:
                shutil.rmtree(left, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            continue  # it lives
        finally:
            os.close(lock)
