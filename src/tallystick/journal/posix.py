"""The journal on a local disk: a temporary file, fsync, ``link``, fsync of the folder.

Why each step is there:

1.  *All or nothing.* The data is complete and on disk before it gets its name; until then it lives in ``.tmp``,
    which no key can name. A process killed at any moment leaves a decision whole or not at all.
2.  *The first one wins.* ``link`` fails if the name is taken, in one step of the kernel, whoever else tries.
    (``rename`` would overwrite; asking first and then writing would let two win.)
3.  *A name is durable when its folder is synced.* So `put_if_absent` syncs the folder also when it loses: the winner
    may have died before its own sync, and the loser is about to act on what it reads. For the same reason a driver
    that starts (`try_lock`) syncs every folder before it reads anything.
4.  *A failed sync cannot be repeated*: the kernel may have dropped the pages and report success the next time. The
    key stays in doubt for this process; reading it is an error, and only a restart reads it from disk again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tallystick.errors import JournalError
from tallystick.journal.keys import TEMPORARY, check_key, folder_of, reach_inside_decide
from tallystick.journal.leftovers import remove_leftovers, temporary_name
from tallystick.journal.lock import FileLock, Holder
from tallystick.journal.store import Store

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, then start the job again",
    errno.EDQUOT: "the disk quota is used up: free some space, then start the job again",
    errno.EROFS: "the file system is mounted read-only: remount it, or choose another checkpoint location",
    errno.EACCES: "this user may not do that: check owner and mode with 'ls -ld'",
    errno.EPERM: "this user or this file system does not allow it: the journal needs hard links",
    errno.ENOENT: "a folder of the journal is gone: was the checkpoint deleted while the job runs? stop the job",
    errno.ENOTDIR: "a file is where a folder is needed: move it away, or choose another checkpoint location",
    errno.EISDIR: "a folder is where a file is needed: move it away, or choose another checkpoint location",
    errno.EIO: "the disk reports an error: look into the system's log",
}


class PosixStore(Store):
    """Files below ``root``, which is created by the first write. Threads may share it. About 1 ms per write."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._lock = FileLock(self.root / "lock")
        self._made: set[Path] = set()
        self._making = threading.Lock()
        self._doubtful: set[str] = set()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        target = self.root / key
        with _told(target, "written"):
            self._make(target.parent)
            temporary = self.root / TEMPORARY / temporary_name()
            try:
                _write_synced(temporary, data)
                reach_inside_decide(key)
                created = _link(temporary, target)
            finally:
                with suppress(FileNotFoundError):
                    temporary.unlink()
        self._sync_name(key)
        return created

    def read(self, key: str) -> bytes | None:
        check_key(key)
        if key in self._doubtful:
            raise self._doubt(key)
        with _told(self.root / key, "read"):
            try:
                return (self.root / key).read_bytes()
            except FileNotFoundError:
                self._root_still_there()
                return None

    def list(self, folder: str) -> list[str]:
        check_key(folder)
        with _told(self.root / folder, "listed"):
            try:
                return sorted(os.listdir(self.root / folder))  # noqa: PTH208 - every epoch looks, and needs names only
            except FileNotFoundError:
                self._root_still_there()
                return []

    def delete(self, key: str) -> None:
        """Not synced: after a power failure a deleted key may be back."""
        check_key(key)
        with _told(self.root / key, "deleted"):
            try:
                (self.root / key).unlink()
            except FileNotFoundError:
                self._root_still_there()

    def locate(self, key: str) -> str:
        return str(self.root / key)

    def try_lock(self) -> bool:
        with _told(self.root / "lock", "locked"):
            self._make(self.root)
            if not self._lock.take():
                return False
            remove_leftovers(self.root / TEMPORARY)
            for folder in sorted(path for path in self.root.iterdir() if path.is_dir()):
                _sync(folder)
            _sync(self.root)
        return True

    def unlock(self) -> None:
        self._lock.release()

    def holder(self) -> Holder | None:
        """Who holds the lock, as far as the lock file tells; None if nobody does or it is not known."""
        with _told(self.root / "lock", "read"):
            return self._lock.holder()

    def _make(self, folder: Path) -> None:
        """Create what is missing on the way to a folder, durably; once. What vanishes later is not made again."""
        if folder in self._made:
            return
        with self._making:
            if self.root not in self._made:
                _make_durable(self.root)
                _make_durable(self.root / TEMPORARY)
                self._made.add(self.root)
            if folder not in self._made:
                if not self.root.is_dir():
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.root))
                _make_durable(folder)
                self._made.add(folder)

    def _root_still_there(self) -> None:
        """A "no such key" of a journal that was deleted under us would read as "nothing was decided"."""
        if self.root in self._made and not self.root.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.root))

    def _sync_name(self, key: str) -> None:
        folder = folder_of(key)
        try:
            _sync(self.root / folder if folder else self.root)
        except OSError as error:
            self._doubtful.add(key)
            raise self._doubt(key) from error

    def _doubt(self, key: str) -> JournalError:
        where = self.locate(key)
        return JournalError(
            f"{where} may or may not be on disk: syncing its folder failed. nothing was decided on it. check the "
            "disk, then start the job again: it reads what is really there",
            file=where,
        )


@contextmanager
def _told(path: Path, verb: str) -> Iterator[None]:
    """Every failure of the operating system becomes a `JournalError` that names the file and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        found = f"{error.filename}: {reason}" if error.filename not in (None, str(path)) else reason
        hint = _HINTS.get(error.errno or 0, "look into the system's log")
        raise JournalError(f"{path} could not be {verb}: {found}. {hint}", file=str(path)) from error


def _write_synced(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _make_durable(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        _sync(path.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
