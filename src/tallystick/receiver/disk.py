"""Small durable things beside the segments: marks, the lock, files that are replaced as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
import uuid
from pathlib import Path

from tallystick.errors import SourceError

_MARK = struct.Struct("<QQ")
_ALL = (1 << 64) - 1
_LOCK_PATIENCE_S = 2.0


class Mark:
    """One offset in a file, written in place: 16 bytes, the number and its complement. Not synced.

    Readers of other processes see the old or the new number; what is neither is read again, and at last as none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, offset: int) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, _MARK.pack(offset, offset ^ _ALL), 0)
        finally:
            os.close(handle)

    def read(self) -> int | None:
        for _ in range(10):
            try:
                data = self.path.read_bytes()
            except FileNotFoundError:
                return None
            if len(data) == _MARK.size:
                offset, complement = _MARK.unpack(data)
                if offset ^ complement == _ALL:
                    return int(offset)
            time.sleep(0.001)
        return None


class Lock:
    """``flock`` on a file: the kernel lets go of it when its holder ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def take(self) -> bool:
        """False if somebody else holds it. Observers hold it for a moment, so it is tried for a while."""
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES) or time.monotonic() > deadline:
                    os.close(handle)
                    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                        return False
                    raise
                time.sleep(0.02)
            else:
                self._handle = handle
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                return True

    def held(self) -> bool:
        """Whether anybody holds it now."""
        if self._handle is not None:
            return True
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def holder(self) -> int | None:
        """The process that holds it; None if nobody does."""
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while self.held() and time.monotonic() < deadline:
            text = self.path.read_text().strip()
            if text.isdigit():
                return int(text)
            time.sleep(0.01)  # it was taken this moment
        return None

    def release(self) -> None:
        """Harmless if it is not held."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def replace_file(path: Path, data: bytes, synced: bool = True) -> None:
    """All of the new content or all of the old, for any reader and after any crash."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(handle, data)
            if synced:
                os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        sync_folder(path.parent)


def write_all(handle: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """With its parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)
    except OSError as error:
        raise SourceError(f"the receiver log {folder} cannot be made: {error.strerror}") from error
