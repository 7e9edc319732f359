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
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from tallystick.errors import SinkError, TallystickError
from tallystick.records import Attempt, Json
from tallystick.sinks.base import OpenTransaction, SliceContext, TransactionState

MANIFEST = "manifest"
STAGED = ".staged"
"""No format's file extension, so that no pattern of a reader (``**/*.parquet``) matches what is only staged."""
DISCARDED = ".discarded"
THREADS = 8

logger = logging.getLogger("tallystick.sinks.staging")

_durable: set[Path] = set()
"""Job folders whose way up to the root this process has made durable; they are never removed."""


class Staging:
    """One staging area. A value: it holds nothing but the root, and is pickled with the sink that uses it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, context: SliceContext) -> Path:
        """Executor: make the folder of a new transaction."""
        if not self.root.is_dir():
            raise SinkError(
                f"the staging folder {self.root} is not there for this executor: found no such folder, needed one file "
                "system that the driver and every executor see under the same path. mount it on every node and start "
                "the job again"
            )
        folder = self._job(context.job_id) / str(context.attempt) / context.name
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError as error:
            raise SinkError(
                f"{folder} is taken: two sinks of one job stage in the same place. give each sink a target of its own"
            ) from error
        return folder

    def relative(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix()

    def locate(self, relative: str) -> Path:
        """The folder that a committable names. Nothing outside the area can be named."""
        parts = relative.split("/")
        if len(parts) != 3 or any(part in ("", ".", "..") for part in parts):
            raise SinkError(f"not a transaction of {self.root}: found {relative!r}, needed JOB/ATTEMPT/TRANSACTION")
        return self.root.joinpath(*parts)

    def seal(self, folder: Path, committable: Json) -> None:
        """Executor: everything staged is closed; mark it as pre-committed and make it durable (essay 1).

        The order in which names and bytes reach the disk does not matter: nobody decides on it before this returns.
        """
        draft = folder / f"{MANIFEST}.draft"
        draft.write_text(json.dumps(committable))
        draft.rename(folder / MANIFEST)
        attempt, job = folder.parent, folder.parent.parent
        above = [] if job in _durable else [self.root, self.root.parent]
        for_each(sync, [*folder.iterdir(), folder, attempt, job, *above])
        _durable.add(job)

    def discard(self, folder: Path) -> None:
        """Throw a transaction away (essay 3). Harmless if it is gone; may be repeated."""
        grave = folder.with_name(folder.name + DISCARDED)
        try:
            folder.rename(grave)
        except FileNotFoundError:
            return
        remove_tree(grave)

    def roll_back(self, folder: Path) -> None:
        """Executor, while a task fails: `discard`, but never hide the failure that led here behind another one."""
        try:
            self.discard(folder)
        except OSError as error:
            logger.warning("cannot delete %s now, the driver aborts it later: %s", folder, error)

    def open(self, job_id: str) -> Iterator[OpenTransaction]:
        """Driver: the transactions of a job that are begun, or pre-committed and not published."""
        for attempt, folder in self._attempts(job_id):
            for transaction in list_folder(folder):
                if not transaction.name.endswith(DISCARDED):
                    yield from self._open_one(attempt, transaction)

    def settle(self, job_id: str, epoch: int) -> None:
        """Driver: forget every attempt at this epoch or an earlier one. One listing if there is nothing to do."""
        for attempt, folder in self._attempts(job_id):
            if attempt.epoch <= epoch:
                remove_tree(folder)

    def _open_one(self, attempt: Attempt, folder: Path) -> Iterator[OpenTransaction]:
        committable = read_manifest(folder)
        staged = any(file.name.endswith(STAGED) for file in list_folder(folder))
        if committable is not None and not staged:
            return
        begun = {"dir": self.relative(folder), "files": []}
        yield OpenTransaction(
            attempt,
            TransactionState.BEGUN if committable is None else TransactionState.PRE_COMMITTED,
            begun if committable is None else committable,
            folder.name,
            _slice_of(folder.name),
            _age_s(folder),
        )

    def _attempts(self, job_id: str) -> Iterator[tuple[Attempt, Path]]:
        for folder in list_folder(self._job(job_id)):
            try:
                yield Attempt.parse(folder.name), folder
            except TallystickError:
                logger.warning("%s is not the folder of an attempt; left alone", folder)

    def _job(self, job_id: str) -> Path:
        return self.root / quote(job_id, safe="").replace(".", "%2E")


def sync(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def for_each(step: Callable[[Path], None], paths: Sequence[Path]) -> None:
    """Run a step for every path, several at once: a disk takes many fsyncs in about the time of one."""
    if len(paths) == 1:
        step(paths[0])
    elif paths:
        with ThreadPoolExecutor(min(THREADS, len(paths))) as pool:
            list(pool.map(step, paths))


def list_folder(folder: Path) -> Iterable[Path]:
    """What is in a folder, in the order of names; nothing if it is gone."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()


def read_manifest(folder: Path) -> Json | None:
    """The committable of a pre-committed transaction; None if it is only begun."""
    try:
        return json.loads((folder / MANIFEST).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def remove_tree(folder: Path) -> None:
    """Delete garbage. What cannot be deleted now costs space, not rows: `Staging.settle` comes by again."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("cannot delete %s now, it is tried again later: %s", folder, error)


def _slice_of(name: str) -> int | None:
    parts = name.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else None


def _age_s(folder: Path) -> float | None:
    try:
        return max(0.0, time.time() - folder.stat().st_mtime)
    except FileNotFoundError:
        return None
