"""A lock file that is free again the moment its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import weakref
from dataclasses import dataclass
from pathlib import Path

from tallystick.journal.leftovers import alive, host_name


@dataclass(frozen=True)
class Holder:
    """Who holds the lock. Prints as ``process PID on HOST``."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FileLock:
    """``flock`` on one file. The kernel lets go of it when the holder ends, so a kill leaves nothing to clean up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        _every_lock.add(self)

    def take(self) -> bool:
        """True if it is held now; False if somebody else holds it, this process through another object included."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            # a file system without locks: nobody can know, and safety does not rest on this lock
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                return True
            raise
        self._handle = handle
        text = json.dumps({"pid": os.getpid(), "host": host_name()}) + "\n"
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)
        return True

    def release(self) -> None:
        """Let go. Harmless if it is not held."""
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            self.drop()

    def drop(self) -> None:
        """Close this process's handle, without a word to those that share it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def holder(self) -> Holder | None:
        """Who holds it, as far as the file tells; None if nobody does or the holder is not known.

        Only reads: an observer that tried the lock itself could turn a starting driver away.
        """
        try:
            value = json.loads(self.path.read_bytes())
            found = Holder(int(value["pid"]), str(value["host"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # free, or its new holder is just writing
            return None
        return None if found.host == host_name() and not alive(found.pid) else found


_every_lock: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _drop_in_child() -> None:
    """A forked child shares the lock and would keep it after its parent's death."""
    for lock in list(_every_lock):
        lock.drop()


os.register_at_fork(after_in_child=_drop_in_child)
