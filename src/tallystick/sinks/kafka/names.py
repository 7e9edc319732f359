"""Names for transactions: bound to the worker that uses them, few, and never started anew too early.

To Kafka a name is for ever: its coordinator remembers each for a week, and initialising one aborts whatever is open
under it. So a job must not use a new name for every transaction, and must not reuse one whose transaction is not
settled. And a producer is initialised before anybody knows which slice it will write, so a name cannot be made of the
slice. Hence:

1.  A worker holds a *slot*, a locked file, for as long as it lives. The next worker on that machine gets the lowest
    slot that is free: as many slots as workers at the same time.
2.  A slot has numbered names. One that was used in epoch N is free again in a later epoch, because Spark starts that
    only when N is settled; until then the worker takes the next number: as many names as slices per worker, and some
    more where producers are made before they are needed.
3.  The file keeps which attempt used which name last. If a worker dies after its vote, its successor in the same epoch
    leaves those names alone.

A name that is started anew too early all the same (a machine that lost its disk's last writes) costs time, not
records: its transaction is found not committed, by its token, and is written again.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import threading
from pathlib import Path
from typing import TextIO

from tallystick.errors import SinkError, TallystickError
from tallystick.records import Attempt
from tallystick.scratch import scratch_folder

log = logging.getLogger("tallystick.kafka")

SLOTS_MAX = 4096
LINES_MAX = 1000


def prefix_of(given: str, job_id: str, topic: str | None) -> str:
    """How the names of all transactions of a job's sink start: nobody else's do."""
    return f"{given}/{job_id}/{topic or '*'}/"


def prefix_in(name: str) -> str:
    """The prefix that a name was made with."""
    return name[: name.rindex("/") + 1]


class Slot:
    """The names of one worker. Not for several threads at once, except `take` and `give_back`."""

    def __init__(self, prefix: str, folder: Path | None = None) -> None:
        self._folder = folder or _folder(prefix)
        self._file, number = self._lock()
        self._stem = f"{prefix}{self._place()}.{number}."
        self._lines = 0
        self._used = self._read()
        self._held: set[int] = set()
        self._guard = threading.Lock()

    def take(self, attempt: Attempt) -> str:
        """The lowest name that neither waits for its turn in this worker nor may still be undecided."""
        with self._guard:
            number = 0
            while number in self._held or self._undecided(number, attempt):
                number += 1
            self._held.add(number)
            return f"{self._stem}{number}"

    def use(self, name: str, attempt: Attempt) -> None:
        """The name gets a transaction now: on disk before the first byte is sent."""
        with self._guard:
            number = self._number(name)
            self._used[number] = attempt
            if self._lines >= LINES_MAX:
                self._write_anew()
            else:
                self._note(number, attempt)
            self._file.flush()

    def give_back(self, name: str) -> None:
        """Its producer is gone; whether it can be used again depends on the attempt that used it."""
        with self._guard:
            self._held.discard(self._number(name))

    def _undecided(self, number: int, attempt: Attempt) -> bool:
        """Settled is what was used by an earlier epoch of this driver, or by an earlier driver at this epoch or before.

        What a newer driver or a later epoch used is not: who asks then is a task that is late.
        """
        last = self._used.get(number)
        if last is None:
            return False
        earlier = last.epoch <= attempt.epoch and last.generation <= attempt.generation
        return last == attempt or not earlier

    def _number(self, name: str) -> int:
        return int(name.removeprefix(self._stem))

    def _lock(self) -> tuple[TextIO, int]:
        for number in range(SLOTS_MAX):
            file = _opened(self._folder / f"slot-{number}")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                continue
            return file, number
        raise SinkError(f"kafka: {SLOTS_MAX} workers of one job hold a slot in {self._folder}: more cannot be served")

    def _note(self, number: int, attempt: Attempt) -> None:
        self._file.write(f"{number} {attempt}\n")
        self._lines += 1

    def _write_anew(self) -> None:
        """One line a name. Who reads it half written knows less, which costs time and nothing else."""
        self._file.seek(0)
        self._file.truncate()
        self._lines = 0
        for number, last in self._used.items():
            self._note(number, last)

    def _read(self) -> dict[int, Attempt]:
        """A line a use: the last one of a name counts."""
        try:
            lines = [line.split() for line in self._file.read().splitlines() if line.strip()]
            self._lines = len(lines)
            return {int(number): Attempt.parse(last) for number, last in lines}
        except (ValueError, TypeError, TallystickError):  # a machine that crashed while it was written, or a stranger
            log.warning("kafka: %s cannot be read: which names are undecided is not known", self._file.name)
            self._lines = LINES_MAX  # to be written anew
            return {}

    def _place(self) -> str:
        """Which set of locks this is: other machines and containers have sets of their own."""
        path = self._folder / "place"
        drawn = self._folder / f"place-{secrets.token_hex(4)}"
        drawn.touch()
        try:
            path.symlink_to(drawn.name)
        except FileExistsError:
            drawn.unlink()
        return path.readlink().name.removeprefix("place-")


def _opened(path: Path) -> TextIO:
    """To be read and written from its start; made if it is missing."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")


def _folder(prefix: str) -> Path:
    """Where the workers of one sink find each other: a folder of this user, on this machine."""
    digest = hashlib.sha256(prefix.encode()).hexdigest()[:16]
    try:
        return scratch_folder("kafka", digest)
    except OSError as cause:
        raise SinkError(
            f"kafka: workers need a folder for their locks, and {cause.filename} cannot be made: {cause.strerror}. set "
            "TMPDIR to a folder of your own"
        ) from cause
