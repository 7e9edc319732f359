"""Folders that savepoints are copied from and to: on this machine, on HDFS, in S3.

1.  *A copy that was cut short is never taken for one.* Local folders and those of HDFS are filled beside their place
    and renamed when they are whole. S3 has no rename: there the manifest is put last, and only what has one is a
    savepoint.
2.  *Never over something else.* Only a place where nothing is is filled. Every object in S3 is put if absent, and only
    those that this copy put are removed again: of two copies to one place at most one comes to its end.
3.  *Read back.* What went over a network is read once more, and compared by hash, before it is called a copy.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from tallystick.errors import CheckpointError, ConfigError
from tallystick.records import Json
from tallystick.s3.client import NO_SUCH_UPLOAD, NOT_FOUND, TAKEN, Bucket, StoreError
from tallystick.s3.place import is_s3, place
from tallystick.spark.offsets import local_path

if TYPE_CHECKING:
    from tallystick.sinks.hdfs.filesystem import HdfsFiles

BLOCK_BYTES = 1 << 20
PART_BYTES = 32 << 20
"""Of an upload to S3; a file that is smaller is put at once."""


class Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class Folder(ABC):
    """A place for files, by paths with slashes. Failures are `OSError`; what is not there is `FileNotFoundError`."""

    remote = True

    @abstractmethod
    def files(self) -> dict[str, int]:
        """Every file below, with its bytes; nothing if there is no such folder."""

    @abstractmethod
    def open(self, path: str) -> Reader:
        """To read a file from its beginning."""

    @abstractmethod
    def write(self, path: str, blocks: Iterator[bytes]) -> None:
        """A new file, on disk when this returns."""

    @abstractmethod
    def beside(self) -> Folder:
        """Where to fill what is to appear here. Essay 1."""

    @abstractmethod
    def appear(self, filled: Folder) -> None:
        """Make what was filled `beside` appear here, whole."""

    @abstractmethod
    def discard(self) -> None:
        """Remove what was filled. Harmless if there is nothing."""

    @abstractmethod
    def __str__(self) -> str:
        """As people write it."""

    def read(self, path: str) -> bytes:
        return b"".join(self.blocks(path))

    def blocks(self, path: str) -> Iterator[bytes]:
        with closing(self.open(path)) as reader:
            while block := reader.read(BLOCK_BYTES):
                yield bytes(block)

    def digest(self, path: str) -> dict[str, Json]:
        """Size and SHA-256 of a file."""
        counted = _Counted(self.blocks(path))
        for _ in counted:
            pass
        return counted.digest()

    def copy(self, path: str, source: Folder) -> dict[str, Json]:
        """Take a file over; its size and hash, taken from the bytes that were copied. Essay 3."""
        counted = _Counted(source.blocks(path))
        self.write(path, iter(counted))
        said = counted.digest()
        if self.remote and self.digest(path) != said:
            raise CheckpointError(f"{self}/{path} is not what was written there: nothing was kept. try another place")
        return said


class _Counted:
    """Blocks on their way from one folder to another."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._digest, self._size = hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._digest.update(block)
            self._size += len(block)
            yield block

    def digest(self) -> dict[str, Json]:
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}


@dataclass(frozen=True)
class LocalFolder(Folder):
    """On a local or mounted disk."""

    path: Path
    remote = False

    def files(self) -> dict[str, int]:
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(self.path))
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file())
        return {str(path.relative_to(self.path)): path.stat().st_size for path in found}

    def open(self, path: str) -> Reader:
        return (self.path / path).open("rb")

    def write(self, path: str, blocks: Iterator[bytes]) -> None:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as writer:
            for block in blocks:
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())

    def beside(self) -> LocalFolder:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return LocalFolder(self.path.with_name(f"{self.path.name}.partial-{uuid.uuid4().hex[:8]}"))

    def appear(self, filled: Folder) -> None:
        if not isinstance(filled, LocalFolder):
            raise TypeError(f"{filled} was not filled beside {self}")
        for folder in sorted({filled.path, *(path for path in filled.path.rglob("*") if path.is_dir())}):
            _sync(folder)
        if self.path.exists():
            self.path.rmdir()  # only if it is empty
        filled.path.rename(self.path)
        _sync(self.path.parent)

    def discard(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def __str__(self) -> str:
        return str(self.path)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class HdfsFolder(Folder):
    """On HDFS, through hdfs-native: no JVM."""

    address: str
    path: PurePosixPath

    @property
    def _hdfs(self) -> HdfsFiles:
        from tallystick.sinks.hdfs.filesystem import HdfsFiles

        return HdfsFiles(self.address)

    def files(self) -> dict[str, int]:
        return self._hdfs.sizes(self.path)

    def open(self, path: str) -> Reader:
        return self._hdfs.open(self.path / path)

    def write(self, path: str, blocks: Iterator[bytes]) -> None:
        target = self.path / path
        self._hdfs.make_folder(target.parent)
        opened = self._hdfs.create(target)
        try:
            for block in blocks:
                opened.file.write(block)
        except BaseException:
            opened.abandon()
            raise
        opened.file.close()

    def beside(self) -> HdfsFolder:
        name = f"{self.path.name}.partial-{uuid.uuid4().hex[:8]}"
        return HdfsFolder(self.address, self.path.with_name(name))

    def appear(self, filled: Folder) -> None:
        if not isinstance(filled, HdfsFolder):
            raise TypeError(f"{filled} was not filled beside {self}")
        if self._hdfs.is_dir(self.path):
            self._hdfs.delete(self.path)  # only if it is empty: HDFS refuses it otherwise
        self._hdfs.rename(filled.path, self.path)

    def discard(self) -> None:
        if self._hdfs.exists(self.path):
            self._hdfs.delete_tree(self.path)

    def __str__(self) -> str:
        return f"{self.address}{self.path}"


class S3Folder(Folder):
    """In S3. It has no folders: a listing begins with what their names begin with."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self._put: list[str] = []

    def files(self) -> dict[str, int]:
        return {path: size for path, size in self._objects().items() if path and not path.endswith("/")}

    def remove(self, last: str) -> None:
        """Everything below, and what begins with ``last`` after all the rest."""
        for path in sorted(self._objects(), key=lambda path: (path.startswith(last), path)):
            self.bucket.call("delete_object", Key=self._key(path))

    def _objects(self) -> dict[str, int]:
        """Also those by which S3A marks folders: they are empty, and have a slash at their end."""
        entries = self.bucket.pages("list_objects_v2", "Contents", Prefix=f"{self.prefix}/")
        return {entry["Key"].removeprefix(f"{self.prefix}/"): int(entry["Size"]) for entry in entries}

    def open(self, path: str) -> Reader:
        with _found(self, path):
            body: Reader = self.bucket.call("get_object", Key=self._key(path))["Body"]
        return body

    def write(self, path: str, blocks: Iterator[bytes]) -> None:
        held = bytearray()
        upload: _Upload | None = None
        try:
            for block in blocks:
                held += block
                if len(held) >= PART_BYTES:
                    upload = upload or _Upload(self.bucket, self._key(path))
                    upload.part(bytes(held))
                    held.clear()
            if upload is not None:
                upload.part(bytes(held))
                made = upload.complete()
            else:
                made = self.bucket.create(self._key(path), bytes(held))
            if not made:
                raise FileExistsError(errno.EEXIST, "somebody else writes there, too", f"{self}/{path}")
            self._put.append(path)
        except BaseException:
            if upload is not None:
                upload.abort()
            raise

    def beside(self) -> S3Folder:
        return self

    def appear(self, filled: Folder) -> None:
        """It has appeared with its manifest."""

    def discard(self) -> None:
        while self._put:
            path = self._put.pop()
            self.bucket.call("delete_object", Key=self._key(path))

    def _key(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def __str__(self) -> str:
        return f"s3://{self.bucket.name}/{self.prefix}"


class _Upload:
    """One large object, in parts that carry their MD5."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._id = bucket.call("create_multipart_upload", Key=key)["UploadId"]
        self._parts: list[dict[str, Any]] = []

    def part(self, data: bytes) -> None:
        if not data:
            return
        number = len(self._parts) + 1
        md5 = b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        told = {"Key": self._key, "UploadId": self._id, "PartNumber": number}
        answer = self._bucket.call("upload_part", **told, Body=data, ContentMD5=md5)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def complete(self) -> bool:
        """False if there is an object of this name already."""
        told = {"Key": self._key, "UploadId": self._id, "MultipartUpload": {"Parts": self._parts}}
        try:
            self._bucket.call("complete_multipart_upload", **told, IfNoneMatch="*")
        except StoreError as error:
            if error.code in TAKEN:
                return False
            raise
        return True

    def abort(self) -> None:
        """Harmless if it is over."""
        try:
            self._bucket.call("abort_multipart_upload", Key=self._key, UploadId=self._id)
        except StoreError as error:
            if error.code != NO_SUCH_UPLOAD:
                raise


@contextmanager
def _found(folder: Folder, path: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        if error.code in NOT_FOUND:
            raise FileNotFoundError(errno.ENOENT, "no such object", f"{folder}/{path}") from error
        raise


def folder_at(where: str | os.PathLike[str] | Folder) -> Folder:
    """The folder at a path of this machine, or an ``hdfs:``, ``s3:`` or ``s3a:`` URI."""
    if isinstance(where, Folder):
        return where
    location = os.fspath(where)
    local = local_path(location)
    if local is not None:
        return LocalFolder(local.absolute())
    if is_s3(location):
        return S3Folder(*place(location))
    parts = urlsplit(location.rstrip("/"))
    path, host = parts.path.strip("/"), parts.netloc
    if parts.scheme != "hdfs":
        raise ConfigError(f"{location} is on {parts.scheme}: needed a path of this machine, hdfs:, or s3:")
    if not host or not path or any(step in ("", ".", "..") for step in path.split("/")):
        raise ConfigError(f"{location} names no folder: needed hdfs://HOST:PORT/FOLDER")
    return HdfsFolder(f"hdfs://{host}", PurePosixPath("/" + path))
