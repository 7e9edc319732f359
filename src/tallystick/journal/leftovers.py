"""Temporary files: named after the process that writes them, so that those of dead processes can be removed.

Removing one too many does no harm: its writer cannot put it into place any more, and says so.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from contextlib import suppress
from pathlib import Path

AGE_MAX_S = 24 * 3600.0
"""No write takes a day. The only thing that tells for a process of another host."""

_NAME = re.compile(r"(?P<host>.+)~(?P<pid>\d+)~[0-9a-f]{32}")


def host_name() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "unknown"


def temporary_name() -> str:
    """Unique for every call of every process on every host."""
    return f"{host_name()}~{os.getpid()}~{uuid.uuid4().hex}"


def is_leftover(name: str, age_s: float) -> bool:
    """True if the process that wrote this temporary file cannot be writing it any more."""
    match = _NAME.fullmatch(name)
    if age_s > AGE_MAX_S:
        return True
    return match is not None and match["host"] == host_name() and not alive(int(match["pid"]))


def remove_leftovers(folder: Path) -> None:
    """Remove what dead processes left behind in a folder of this host."""
    now = time.time()
    for path in sorted(folder.iterdir()):
        with suppress(FileNotFoundError):  # its writer has just finished
            if is_leftover(path.name, now - path.stat().st_mtime):
                path.unlink()


def alive(pid: int) -> bool:
    """True if a process of this host has this number now."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's process, but a living one
    return True
