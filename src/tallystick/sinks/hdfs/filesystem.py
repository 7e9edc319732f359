"""HDFS as a file system for staging and publishing.

1.  *One step.* The NameNode renames a file or a folder under its own lock and has it in its edit log before it answers.
    It never overwrites, so publishing cannot destroy what somebody else put there.
2.  *Durable.* Closing a file leaves its bytes in the DataNodes' memory; they are synced to their disks first. Names
    need nothing: they are in the edit log.
3.  *The lease of a dead writer.* HDFS lets one client write a file and keeps it reserved, and unfinished, until that
    client has been silent for twenty minutes. Nothing here ever goes on with such a file: it is deleted, the NameNode
    gives the lease up with it, and a writer that still lives is told that it has no open files. Leases are taken back
    first, so that DataNodes close the last block at once even where snapshots keep the deleted file.
4.  *Parents are never made by accident.* A task of a fenced driver whose folder was deleted must not bring it back.
5.  *A file that failed is never ended.* After a write that failed, on a full disk for instance, the client would still
    complete the file with the blocks that it has, or wait a quarter of a minute for one that never comes; and its own
    files do so whenever they are thrown away. So the writer beneath them is used, which ends nothing by itself, and is
    dropped at the first failure.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from tallystick.sinks.filesystem import FileSystem, Opened
from tallystick.sinks.hdfs.client import client, library, told

BUFFER_BYTES = 256 << 10
"""Arrow writes in small pieces; each write would be a call into the client."""
FINISHED_AT_ONCE = 16
FOLDER_MODE = 0o755


@dataclass(frozen=True)
class HdfsFiles(FileSystem[PurePosixPath]):
    """``address`` is ``hdfs://HOST:PORT`` or ``hdfs://NAMESERVICE``; ``settings`` are Hadoop's, for the client."""

    address: str
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def _client(self) -> Any:
        return client(self.address, self.settings)

    def is_dir(self, path: PurePosixPath) -> bool:
        status = self._status(path)
        return status is not None and bool(status.isdir)

    def exists(self, path: PurePosixPath) -> bool:
        return self._status(path) is not None

    def _status(self, path: PurePosixPath) -> Any:
        with told():
            try:
                return self._client.get_file_info(str(path))
            except FileNotFoundError:
                return None

    def list(self, folder: PurePosixPath) -> Iterable[PurePosixPath]:
        with told():
            try:
                found = [str(status.path) for status in self._client.list_status(str(folder))]
            except FileNotFoundError:
                return ()
        # of a file the NameNode lists the file itself
        return sorted(PurePosixPath(path) for path in found if path != str(folder))

    def make_folder(self, folder: PurePosixPath) -> None:
        with told():
            self._client.mkdirs(str(folder), FOLDER_MODE, create_parent=True)

    def make_new_folder(self, folder: PurePosixPath) -> None:
        """HDFS does not tell whether it was there. The two sinks that could clash are asked one after the other."""
        if self.exists(folder):
            raise FileExistsError(f"{folder} is there")
        with told():
            self._client.mkdirs(str(folder), FOLDER_MODE, create_parent=False)

    def create(self, path: PurePosixPath) -> Opened:
        with told():
            options = library().WriteOptions(overwrite=False, create_parent=False)
            raw = _Output(self._client.inner.create(str(path), options))
        return Opened(pa.PythonFile(io.BufferedWriter(raw, BUFFER_BYTES), mode="w"), raw.abandon)

    def write(self, path: PurePosixPath, data: bytes) -> None:
        file = self.create(path).file
        file.write(data)
        file.close()

    def read(self, path: PurePosixPath) -> bytes:
        with told():
            return bytes(self._client.read(str(path)).read())

    def open(self, path: PurePosixPath) -> io.RawIOBase:
        """To read a file of any size, from its beginning."""
        with told():
            return _Input(self._client.read(str(path)))

    def sizes(self, folder: PurePosixPath) -> dict[str, int]:
        """Every file below a folder, by its path from there, with its bytes; nothing if the folder is gone."""
        with told():
            try:
                found = list(self._client.list_status(str(folder), recursive=True))
            except FileNotFoundError:
                return {}
        prefix = f"{folder}/"
        return {str(each.path).removeprefix(prefix): int(each.length) for each in found if not each.isdir}

    def rename(self, source: PurePosixPath, place: PurePosixPath) -> None:
        with told():
            self._client.rename(str(source), str(place), overwrite=False)

    def delete(self, path: PurePosixPath) -> None:
        with told():
            self._client.delete(str(path), recursive=False)

    def delete_tree(self, folder: PurePosixPath) -> None:
        with told():
            files = [status.path for status in self._client.list_status(str(folder), recursive=True)]
            for path in files:
                with contextlib.suppress(OSError, RuntimeError):  # it was closed long ago: there is no lease
                    self._client.recover_lease(path)
            if not self._client.delete(str(folder), recursive=True):
                raise FileNotFoundError(f"{folder} is gone")

    def sync(self, paths: Sequence[PurePosixPath]) -> None:
        """Essay 2: files are synced before they are closed, names when the NameNode answers."""

    def age_s(self, path: PurePosixPath) -> float | None:
        status = self._status(path)
        return None if status is None else max(0.0, time.time() - status.modification_time / 1000)

    def finish(self, steps: Sequence[Callable[[], None]]) -> None:
        """All at once: the client waits half a second for the NameNode to hear of a file's last block."""
        with ThreadPoolExecutor(min(FINISHED_AT_ONCE, len(steps))) as pool:
            for ended in [pool.submit(step) for step in steps]:
                ended.result()


class _Input(io.RawIOBase):
    """One file of HDFS as Python's raw input, with failures that have a number."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._reader = reader

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        with told():
            return bytes(self._reader.read(size))


class _Output(io.RawIOBase):
    """One file of HDFS as Python's raw output. Synced when it is closed; `abandon` leaves it as it is.

    Whoever goes on after a failure is told the same failure again (essay 5).
    """

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._writer = writer
        self._failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self._failure is not None:
            raise self._failure
        if self._writer is None:
            raise OSError("the file was given up")
        try:
            with told():
                return int(self._writer.write(data))
        except OSError as error:
            self._writer, self._failure = None, error
            raise

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        writer, self._writer = self._writer, None
        if self._failure is not None:
            raise self._failure
        if writer is not None:
            with told():
                writer.hsync()
                writer.close()

    def abandon(self) -> None:
        """The writer is dropped, and its lease is no longer renewed. Whoever rolls back deletes the file."""
        self._writer = None
