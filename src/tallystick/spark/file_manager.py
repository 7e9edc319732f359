"""Which class of the JVM writes Spark's own part of a checkpoint: its logs, and its state. docs/decisions/0006"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tallystick.errors import ConfigError
from tallystick.jvm.classes import LOCAL_CLASS, S3_CLASS
from tallystick.s3.place import is_s3
from tallystick.spark.s3a import tell_s3a

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
PLAIN_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's other one, for ``file:`` checkpoints where our jar is not there, and for other queries of `session.session`.
Spark's default forks ``readlink`` and ``chmod`` for each of the two logs of an epoch; this one forks less.

Its rename first looks whether the target exists and then renames, so that two drivers at the same moment could
write the same ``offsets/N`` twice. What protects instead is the journal: its lock keeps a second living driver out
before Spark starts, its fencing lets one of two drivers decide an epoch, and a decision holds a digest of the offsets
that were read, so that a log that was changed behind it is found and not followed.

Not for queries that keep state. Spark's default replaces a state file that is there; this one leaves it, without a
word, because Spark's file system for ``file:`` (a class of Hive's) renames onto nothing that exists. An epoch that was
aborted and done again would publish its new rows and keep the old state."""

_OURS = (None, PLAIN_FILE_MANAGER, LOCAL_CLASS, S3_CLASS)
"""What a session has if its user chose nothing."""

_SOURCES_MADE_MS = 10_000
_SETTING = threading.Lock()


def choose_file_manager(spark: SparkSession, checkpoint: str, keeps_state: bool) -> str | None:
    """Driver: the class for a query with this checkpoint; None is Spark's default. May be called again.

    Ours for S3; ours for local checkpoints if this session's JVM has it, else Spark's plain one if the query keeps no
    state; Spark's default for all others. A choice of the user's stays; for S3 it is refused, because no other one is
    known to create atomically there. Sets it on the session for S3 only, where commands that read need it, too.
    """
    chosen = spark.conf.get(FILE_MANAGER, None)
    if is_s3(checkpoint):
        if chosen not in _OURS:
            raise ConfigError(
                f"{FILE_MANAGER} is {chosen}: a checkpoint in S3 needs {S3_CLASS}, because a late driver must "
                f"not overwrite the logs of the one that leads: spark.conf.unset('{FILE_MANAGER}')"
            )
        tell_s3a(spark, checkpoint)
        spark.conf.set(FILE_MANAGER, S3_CLASS)
        return S3_CLASS
    if chosen not in _OURS:
        return chosen
    if not _is_local(spark, checkpoint):
        return None
    if has_class(spark, LOCAL_CLASS):
        return LOCAL_CLASS
    return None if keeps_state else PLAIN_FILE_MANAGER


@contextmanager
def written_by(spark: SparkSession, checkpoint: str, keeps_state: bool) -> Iterator[None]:
    """A query that starts here writes with the chosen class; the session is then as it was.

    Spark copies the session's settings when it makes a query, and logs and state follow the copy. One start at a time:
    what another thread sets back must not be the setting of this one.
    """
    with _SETTING:
        before = spark.conf.get(FILE_MANAGER, None)
        _set(spark, choose_file_manager(spark, checkpoint, keeps_state))
        try:
            yield
        finally:
            _set(spark, S3_CLASS if is_s3(checkpoint) else before)


def wait_for_sources(query: StreamingQuery) -> None:
    """Until Spark has made the sources of a query that has just started, a few milliseconds.

    The log of a file source follows the session itself, not the query's copy of its settings.
    """
    started: Any = query
    try:
        started._jsq.streamingQuery().awaitInitialization(_SOURCES_MADE_MS)
    except (PySparkException, Py4JJavaError):
        # What ended the query. Who waits for the query gets it from there.
        if query.exception() is None:
            raise


def _set(spark: SparkSession, name: str | None) -> None:
    if name is None:
        spark.conf.unset(FILE_MANAGER)
    else:
        spark.conf.set(FILE_MANAGER, name)


def has_class(spark: SparkSession, name: str) -> bool:
    """Can Spark find this class? Asked of the loader that it looks with."""
    session: Any = spark
    try:
        session._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Py4JJavaError as failure:
        if str(failure.java_exception.getClass().getName()) != "java.lang.ClassNotFoundException":
            raise
        return False
    return True


def _is_local(spark: SparkSession, checkpoint: str) -> bool:
    scheme = urlsplit(checkpoint).scheme
    if not scheme:
        default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")
        scheme = urlsplit(default or "file:///").scheme
    return scheme == "file"
