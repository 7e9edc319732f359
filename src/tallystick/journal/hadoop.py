"""The journal on HDFS, through the Hadoop client of the running Spark session (Py4J).

1.  *All or nothing, the first one wins.* The data is written to a temporary file, synced to the disks of the
    DataNodes and closed; then ``FileContext.rename`` without overwrite gives it its name. The NameNode does that in
    one step under its own lock, and has it in its edit log before it answers.
2.  *An answer that got lost* is settled by taking the temporary file away: what is gone cannot be renamed later.
    Then the key is read, and what stands there decides.
3.  *Only where rename is atomic.* Other schemes are refused. ``file:`` belongs to `PosixStore`: Hadoop's local rename
    asks whether the target exists and then overwrites it, so that two drivers could both win. Object stores have no
    rename at all; S3 has a store of its own (`s3.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from tallystick.errors import ConfigError, JournalError
from tallystick.journal.keys import TEMPORARY, check_key, folder_of, reach_inside_decide
from tallystick.journal.leftovers import is_leftover, temporary_name
from tallystick.journal.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATOMIC_RENAME = ("hdfs",)
_EXISTS = "org.apache.hadoop.fs.FileAlreadyExistsException"
_MISSING = "java.io.FileNotFoundException"
_CLOSE_RETRY = "dfs.client.block.write.locateFollowingBlock.initial.delay.ms"

_NO_FOLDER = "a file is where a folder is needed, or the reverse: move it away, or choose another checkpoint location"
_HINTS = {
    "FileNotFoundException": "a folder of the journal is gone: was the checkpoint deleted while the job runs? stop it",
    "AccessControlException": "this user may not do that: check owner and mode with 'hdfs dfs -ls'",
    "SafeModeException": "start the job again when 'hdfs dfsadmin -safemode get' says OFF",
    "DSQuotaExceededException": "the space quota is used up: free some space, then start the job again",
    "NSQuotaExceededException": "the quota of names is used up: remove some files, then start the job again",
}


def default_scheme(spark: SparkSession) -> str:
    """Where Spark puts a path without a scheme: the scheme of ``fs.defaultFS``."""
    conf = _hadoop_conf(spark)
    return str(conf.get("fs.defaultFS", "file:///")).partition(":")[0].lower()


class HadoopStore(Store):
    """Files below a URI of Spark's Hadoop client, with its settings and credentials. Threads may share it.

    Works as long as the session does. There is no lock on HDFS that dies with its holder, so `try_lock` says True
    and fencing alone keeps two drivers apart.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        conf = _hadoop_conf(spark)
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._gateway = context._gateway
        _close_quickly(conf)
        with _told(uri, "opened"):
            path = self._jvm.org.apache.hadoop.fs.Path(uri)
            scheme = path.toUri().getScheme() or default_scheme(spark)
            if scheme.lower() not in ATOMIC_RENAME:
                raise ConfigError(
                    f"the journal cannot be kept at {uri}: no atomic create of {scheme}: was proven here. choose a "
                    "checkpoint location on hdfs: or on a local disk, or in S3: s3://BUCKET/FOLDER"
                )
            self._files = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(path.toUri(), conf)
            self._root = self._files.makeQualified(path)
            self._uri = str(self._root.toString())
        self._made: set[str] = set()

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with _told(self.locate(key), "written"):
            self._make(folder_of(key))
            temporary = self._path(f"{TEMPORARY}/{temporary_name()}")
            self._write_synced(temporary, data)
            reach_inside_decide(key)
            return self._rename(temporary, key, data)

    def read(self, key: str) -> bytes | None:
        check_key(key)
        with _told(self.locate(key), "read"):
            try:
                stream = self._files.open(self._path(key))
            except Py4JJavaError as error:
                self._absent_or_raise(key, error)
                return None
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def list(self, folder: str) -> list[str]:
        check_key(folder)
        with _told(self.locate(folder), "listed"):
            try:
                statuses = self._statuses(folder)
            except Py4JJavaError as error:
                self._absent_or_raise(folder, error)
                return []
            paths = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(statuses)
            # one call over Py4J instead of two per file
            joined = str(self._jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(paths).mkString("\0"))
        if joined == self.locate(folder):
            raise JournalError(f"{joined} could not be listed: {_NO_FOLDER}", file=joined)
        return sorted(path.rpartition("/")[2] for path in joined.split("\0") if path)

    def delete(self, key: str) -> None:
        check_key(key)
        with _told(self.locate(key), "deleted"):
            try:
                self._files.delete(self._path(key), False)
            except Py4JJavaError as error:
                self._absent_or_raise(key, error)

    def locate(self, key: str) -> str:
        return f"{self._uri}/{key}"

    def try_lock(self) -> bool:
        with _told(self.locate(TEMPORARY), "cleaned up"):
            self._make(None)
            now = time.time()
            for status in self._statuses(TEMPORARY):
                if is_leftover(status.getPath().getName(), now - status.getModificationTime() / 1000):
                    self._files.delete(status.getPath(), False)
        return True

    def unlock(self) -> None:
        """Nothing is held."""

    def _path(self, key: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, key)

    def _statuses(self, folder: str) -> Any:
        return self._files.util().listStatus(self._path(folder))

    def _make(self, folder: str | None) -> None:
        """Create what is missing, once. What vanishes later is not made again: writing there is an error."""
        for name in (TEMPORARY, folder):
            if name is not None and name not in self._made:
                permission = self._jvm.org.apache.hadoop.fs.permission.FsPermission.getDirDefault()
                self._files.mkdir(self._path(name), permission, not self._made)
                self._made.add(name)

    def _write_synced(self, path: Any, data: bytes) -> None:
        stream = self._files.create(path).create().build()
        try:
            stream.write(bytearray(data))
            stream.hsync()
        finally:
            stream.close()

    def _rename(self, temporary: Any, key: str, data: bytes) -> bool:
        """Essay 1 and 2. Whatever the answer is, the temporary file is gone afterwards."""
        no_options = self._gateway.new_array(getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 0)
        try:
            self._files.rename(temporary, self._path(key), no_options)
        except Py4JJavaError as error:
            never_renamed = self._remove(temporary)
            if never_renamed and _kind(error) == _EXISTS:
                return False
            standing = None if never_renamed else self.read(key)
            if standing is None:
                raise
            return standing == data
        return True

    def _remove(self, path: Any) -> bool:
        """True if it was there."""
        try:
            return bool(self._files.delete(path, False))
        except Py4JJavaError as error:
            if _kind(error) == _MISSING:
                return False
            raise

    def _absent_or_raise(self, key: str, error: Py4JJavaError) -> None:
        """A missing key is an answer. A folder in its place, or a journal that was deleted under us, is not."""
        exists = self._files.util().exists
        if _kind(error) != _MISSING or exists(self._path(key)) or (self._made and not exists(self._root)):
            raise error


def _hadoop_conf(spark: SparkSession) -> Any:
    """A fresh copy of the session's Hadoop settings: the same that Spark opens the checkpoint with."""
    session: Any = spark
    if not hasattr(session, "_jsparkSession"):
        raise ConfigError("the journal needs a classic Spark session: Spark Connect gives no access to Hadoop's client")
    return session._jsparkSession.sessionState().newHadoopConf()


def _close_quickly(conf: Any) -> None:
    """Closing a small file asks whether its block has arrived, and waits 400 ms before it asks again, unless somebody
    set that otherwise. A journal's file is there at once."""
    sources = conf.getPropertySources(_CLOSE_RETRY)
    if sources is None or all(str(source).endswith("-default.xml") for source in sources):
        conf.set(_CLOSE_RETRY, "5")


def _kind(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


@contextmanager
def _told(where: str, verb: str) -> Iterator[None]:
    """Every failure of Hadoop or of the way to the JVM becomes a `JournalError` that names the file."""
    try:
        yield
    except Py4JJavaError as error:
        found = str(error.java_exception.toString()).splitlines()[0].rstrip(".")
        raise JournalError(f"{where} could not be {verb}: {found}. {_hint(_kind(error), found)}", file=where) from error
    except (Py4JError, PySparkException, ConnectionError) as error:
        raise JournalError(
            f"{where} could not be {verb}: no answer from Spark's JVM ({error}). has the session been stopped?",
            file=where,
        ) from error


def _hint(kind: str, found: str) -> str:
    name = kind.rpartition(".")[2]
    if "not a directory" in found or "not a file" in found or name == "FileAlreadyExistsException":
        return _NO_FOLDER
    return _HINTS.get(name, "is HDFS running, and is the address right? look into the NameNode's log")
