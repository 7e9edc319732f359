"""What staging and publishing need of a file system, and how a POSIX one gives it.

Paths are pure: what they stand for is only known to the file system that they are given to. Every failure is an
`OSError`. Folders and files are made, renamed and deleted by single steps that other processes see whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar

import pyarrow as pa

P = TypeVar("P", bound=PurePath)

THREADS = 8


@dataclass(frozen=True)
class Opened:
    """A file that is being written. ``file`` is what Arrow writes to, and closes.

    ``abandon`` closes it without caring what it holds, and never raises because of a full disk or a dead server.
    ``held_bytes`` says how much of it waits in memory outside of Arrow.
    """

    file: Any
    abandon: Callable[[], None]
    held_bytes: Callable[[], int] = int


class FileSystem(ABC, Generic[P]):
    """A value: pickled with the sink that uses it. Threads may share it."""

    @abstractmethod
    def is_dir(self, path: P) -> bool: ...

    @abstractmethod
    def exists(self, path: P) -> bool: ...

    @abstractmethod
    def list(self, folder: P) -> Iterable[P]:
        """What is in a folder, in the order of names; nothing if it is gone."""

    @abstractmethod
    def make_folder(self, folder: P) -> None:
        """With all folders above it. Harmless if it is there."""

    @abstractmethod
    def make_new_folder(self, folder: P) -> None:
        """In a folder that is there. `FileExistsError` if it was made before."""

    @abstractmethod
    def create(self, path: P) -> Opened:
        """A new file in a folder that is there. When it is closed it is whole."""

    @abstractmethod
    def write(self, path: P, data: bytes) -> None:
        """A small file, closed."""

    @abstractmethod
    def read(self, path: P) -> bytes:
        """A small file. `FileNotFoundError` if it is not there."""

    @abstractmethod
    def rename(self, source: P, place: P) -> None:
        """A file or a folder, in one step, into a folder that is there. `FileNotFoundError` if the source is gone."""

    @abstractmethod
    def delete(self, path: P) -> None:
        """A file. Harmless if it is gone."""

    @abstractmethod
    def delete_tree(self, folder: P) -> None:
        """`FileNotFoundError` if it is gone."""

    @abstractmethod
    def sync(self, paths: Sequence[P]) -> None:
        """Make files' content, or folders' lists of names, survive a loss of power."""

    @abstractmethod
    def age_s(self, path: P) -> float | None:
        """Since its last change; None if it is gone."""

    def finish(self, steps: Sequence[Callable[[], None]]) -> None:
        """Run steps that end files, in order. Override it where ending a file is mostly waiting."""
        for step in steps:
            step()


class Posix(FileSystem[Path]):
    """A local or mounted disk."""

    def is_dir(self, path: Path) -> bool:
        return path.is_dir()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, folder: Path) -> Iterable[Path]:
        try:
            return sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def make_new_folder(self, folder: Path) -> None:
        folder.mkdir()

    def create(self, path: Path) -> Opened:
        file = pa.OSFile(str(path), "wb")
        return Opened(file, file.close)

    def write(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def rename(self, source: Path, place: Path) -> None:
        source.rename(place)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def delete_tree(self, folder: Path) -> None:
        shutil.rmtree(folder)

    def sync(self, paths: Sequence[Path]) -> None:
        for_each(_sync, paths)

    def age_s(self, path: Path) -> float | None:
        try:
            return max(0.0, time.time() - path.stat().st_mtime)
        except FileNotFoundError:
            return None


def for_each(step: Callable[[P], None], paths: Sequence[P]) -> None:
    """Run a step for every path, several at once: a disk takes many fsyncs in about the time of one."""
    if len(paths) == 1:
        step(paths[0])
    elif paths:
        with ThreadPoolExecutor(min(THREADS, len(paths))) as pool:
            list(pool.map(step, paths))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
