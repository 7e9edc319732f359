"""A staging area: folders where transactions wait, on a file system that executors and driver share.

::

    ROOT/JOB/ATTEMPT/TRANSACTION/
        0.staged …     what is to be published; renamed away when it is
        manifest       written last by pre_commit: the committable, so that anybody can find and end it

Why this is enough:

1.  *Sealed or not.* A transaction is pre-committed if its manifest is there; it is written when all else is closed,
    and comes into place whole, by a rename.
2.  *Over or not.* Publishing renames staged files away and leaves the folder, so "published before" and "thrown
    away" look different for as long as anybody may ask: until `settle`.
3.  *Thrown away at once.* `discard` renames the folder before it deletes it. A task of a fenced driver that still
    writes into it finds nothing to write to, and no half-deleted folder can be taken for a published one.
4.  *The root is made once, by the driver.* An executor that does not find it looks at another disk than the driver
    (a path that is not shared, a mount that is missing) and stops, before rows end up where nobody finds them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import PurePath
from typing import Generic
from urllib.parse import quote

from tallystick.errors import SinkError, TallystickError
from tallystick.records import Attempt, Json
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionState
from tallystick.sinks.filesystem import FileSystem, P

MANIFEST = "manifest"
DRAFT = f"{MANIFEST}.draft"
STAGED = ".staged"
"""No format's file extension, so that no pattern of a reader (``**/*.parquet``) matches what is only staged."""
DISCARDED = ".discarded"

logger = logging.getLogger("tallystick.sinks.staging")

_durable: set[tuple[type, PurePath]] = set()
"""Job folders whose way up to the root this process has made durable; they are never removed."""


class Staging(Generic[P]):
    """One staging area. A value: it holds nothing but the root, and is pickled with the sink that uses it."""

    def __init__(self, root: P, files: FileSystem[P]) -> None:
        self.root = root
        self.files = files

    def begin(self, context: SliceContext) -> P:
        """Executor: make the folder of a new transaction."""
        if not self.files.is_dir(self.root):
            raise SinkError(
                f"the staging folder {self.root} is not there for this executor: found no such folder, needed one file "
                "system that the driver and every executor see under the same path. mount it on every node and start "
                "the job again"
            )
        folder = self._job(context.job_id) / str(context.attempt) / context.name
        self.files.make_folder(folder.parent)
        try:
            self.files.make_new_folder(folder)
        except FileExistsError as error:
            raise SinkError(
                f"{folder} is taken: two sinks of one job stage in the same place. give each sink a target of its own"
            ) from error
        return folder

    def relative(self, folder: P) -> str:
        return folder.relative_to(self.root).as_posix()

    def locate(self, relative: str) -> P:
        """The folder that a committable names. Nothing outside the area can be named."""
        parts = relative.split("/")
        if len(parts) != 3 or any(part in ("", ".", "..") for part in parts):
            raise SinkError(f"not a transaction of {self.root}: found {relative!r}, needed JOB/ATTEMPT/TRANSACTION")
        return self.root.joinpath(*parts)

    def draft(self, folder: P, committable: Json) -> None:
        """Executor: write down what is staged. Counts for nothing before `seal`."""
        self.files.write(folder / DRAFT, json.dumps(committable).encode())

    def seal(self, folder: P) -> None:
        """Executor: everything staged is closed, and its draft too; mark it as pre-committed, durably (essay 1).

        The order in which names and bytes reach the disk does not matter: nobody decides on it before this returns.
        """
        self.files.rename(folder / DRAFT, folder / MANIFEST)
        attempt, job = folder.parent, folder.parent.parent
        known = (type(self.files), job)
        above = [] if known in _durable else [self.root, self.root.parent]
        self.files.sync([*self.files.list(folder), folder, attempt, job, *above])
        _durable.add(known)

    def discard(self, folder: P) -> None:
        """Throw a transaction away (essay 3). Harmless if it is gone; may be repeated."""
        grave = folder.with_name(folder.name + DISCARDED)
        try:
            self.files.rename(folder, grave)
        except FileNotFoundError:
            return
        self._delete(grave)

    def roll_back(self, folder: P) -> None:
        """Executor, while a task fails: `discard`, but never hide the failure that led here behind another one."""
        try:
            self.discard(folder)
        except OSError as error:
            logger.warning("cannot delete %s now, the driver aborts it later: %s", folder, error)

    def open(self, job_id: str) -> Iterator[OpenTransaction]:
        """Driver: the transactions of a job that are begun, or pre-committed and not published."""
        for attempt, folder in self._attempts(job_id):
            for transaction in self.files.list(folder):
                if not transaction.name.endswith(DISCARDED):
                    yield from self._open_one(attempt, transaction)

    def settle(self, job_id: str, epoch: int) -> None:
        """Driver: forget every attempt at this epoch or an earlier one. One listing if there is nothing to do."""
        for attempt, folder in self._attempts(job_id):
            if attempt.epoch <= epoch:
                self._delete(folder)

    def _open_one(self, attempt: Attempt, folder: P) -> Iterator[OpenTransaction]:
        committable = self.manifest(folder)
        staged = any(file.name.endswith(STAGED) for file in self.files.list(folder))
        if committable is not None and not staged:
            return
        begun = {"dir": self.relative(folder), "files": []}
        yield OpenTransaction(
            attempt,
            TransactionState.BEGUN if committable is None else TransactionState.PRE_COMMITTED,
            begun if committable is None else committable,
            folder.name,
            slice_of(folder.name),
            self.files.age_s(folder),
        )

    def manifest(self, folder: P) -> Json | None:
        """The committable of a pre-committed transaction; None if it is only begun."""
        try:
            return json.loads(self.files.read(folder / MANIFEST))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None

    def _delete(self, folder: P) -> None:
        """Delete garbage. What cannot be deleted now costs space, not rows: `settle` comes by again."""
        try:
            self.files.delete_tree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("cannot delete %s now, it is tried again later: %s", folder, error)

    def _attempts(self, job_id: str) -> Iterator[tuple[Attempt, P]]:
        for folder in self.files.list(self._job(job_id)):
            try:
                yield Attempt.parse(folder.name), folder
            except TallystickError:
                logger.warning("%s is not the folder of an attempt; left alone", folder)

    def _job(self, job_id: str) -> P:
        return self.root / job_folder(job_id)


def job_folder(job_id: str) -> str:
    """A job's id as one part of a path."""
    return quote(job_id, safe="").replace(".", "%2E")


def slice_of(name: str) -> int | None:
    parts = name.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else None
