"""A Spark session that fits epochs, and a check of one that was made elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADAPTIVE = "spark.sql.adaptive.enabled"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""For ``file:`` checkpoints: Spark's default forks ``readlink`` and ``chmod`` processes for each of the two logs of an
epoch; this one does not.

Its rename first looks whether the target exists and then renames, so that two drivers at the same moment could
write the same ``offsets/N`` twice. What protects instead is the journal: its lock keeps a second living driver out
before Spark starts, its fencing lets one of two drivers decide an epoch, and a decision holds a digest of the offsets
that were read, so that a log that was changed behind it is found and not followed.

Not for queries that keep state. Spark's own manager replaces a state file that is there; this one leaves it, without a
word, because Spark's file system for ``file:`` (a class of Hive's) renames onto nothing that exists. An epoch that was
aborted and done again would publish its new rows and keep the old state."""

LOSSY = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
"""Settings of a session that make Spark drop rows of files without a word."""

DEFAULTS: Mapping[str, str] = {
    # Adaptive execution moves rows between tasks from one run of an epoch to the next. Spark 4.2 leaves it on for
    # streaming queries without state.
    ADAPTIVE: "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The state store is left as Spark has it: RocksDB with changelog checkpoints showed no gain for small state (six
    # pairs on a busy machine, first epoch from 7 s sooner to 15 s later: undecided). For much state choose it with
    # spark.sql.streaming.stateStore.providerClass before the first run; a checkpoint keeps the choice.
}

LOCAL_DEFAULTS: Mapping[str, str] = {
    # One machine: nobody else needs to reach it, and the name of the machine need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    FILE_MANAGER: LOCAL_FILE_MANAGER,
}


def session(
    app_name: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    fast_start: bool = False,
    quiet: bool = True,
) -> SparkSession:
    """Driver: the session of this process, made now or found.

    ``master`` is Spark's (``local[2]``, ``spark://…``); None leaves it to spark-submit and to Spark's own files, and is
    ``local[*]`` where there are none. ``conf`` wins over what is set here; for Spark's web page set
    ``spark.ui.enabled``. ``fast_start`` is for processes that live for minutes: they start sooner, but
    never reach full speed (`faststart`). ``quiet`` shows of Spark's log only errors.

    Options of the JVM have no effect on one that is already running.
    """
    from pyspark.sql import SparkSession

    master = master or _master(conf or {})
    settings = settings_for(master, conf or {}, fast_start, quiet)
    # The process that runs a Python source takes the interpreter from the environment that the JVM is started with,
    # not from spark.pyspark.python.
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _master(conf: Mapping[str, str]) -> str | None:
    """Where nothing else says so, Spark runs in this process; said aloud, so that it is set up for that."""
    if "spark.master" in conf:
        return conf["spark.master"]
    elsewhere = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "MASTER")
    return None if any(name in os.environ for name in elsewhere) else "local[*]"


def settings_for(master: str | None, conf: Mapping[str, str], fast_start: bool, quiet: bool) -> dict[str, str]:
    """The settings of `session`: ours, then those of ``conf``, with the options of the JVM joined."""
    local = LOCAL_DEFAULTS if master is not None and master.startswith("local") else {}
    options = [_quiet_option()] if quiet else []
    if fast_start:
        # Imported here, so that `python -m tallystick.spark.faststart` finds itself not yet imported.
        from tallystick.spark import faststart

        options.append(faststart.jvm_options())
    options += [conf[JAVA_OPTIONS]] if JAVA_OPTIONS in conf else []
    joined = {JAVA_OPTIONS: " ".join(options)} if options else {}
    return {**DEFAULTS, **local, **conf, **joined}


def _quiet_option() -> str:
    """Spark reads its log settings before anything else, so that even its first lines follow them."""
    properties = Path(__file__).with_name("log4j2.properties")
    option = f"-Dlog4j2.configurationFile={properties.as_uri()}"
    return f'"{option}"' if " " in option else option


def check_session(spark: SparkSession, checkpoint: str | None = None, keeps_state: bool = False) -> tuple[str, ...]:
    """Driver, before a query starts: make somebody's session fit for epochs. May be called again.

    Returns what was changed on it or should be known, in words, one per finding; nothing if all is well. Raises
    `ConfigError` for a session that cannot keep the guarantees. With ``checkpoint`` also chooses how Spark writes its
    logs there, and its state if the query keeps any.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise ConfigError(
            "this is a Spark Connect session: the driver is on another machine and epochs cannot be decided there. "
            "needed a classic session: unset SPARK_REMOTE, or use tallystick.spark.session.session()"
        )
    for setting in LOSSY:
        if spark.conf.get(setting, "false") == "true":
            raise ConfigError(
                f"{setting} is true: rows of files would be lost without a word. needed false: "
                f"spark.conf.set('{setting}', 'false')"
            )
    if checkpoint is not None:
        _choose_file_manager(spark, checkpoint, keeps_state)
    return tuple(_without_adaptive(spark) + _other_interpreter(spark))


def _without_adaptive(spark: SparkSession) -> list[str]:
    if spark.conf.get(ADAPTIVE, "true") == "false":
        return []
    spark.conf.set(ADAPTIVE, "false")
    return [
        f"{ADAPTIVE} was on and is now off for this session: it regroups the rows of an epoch by their size, so that a "
        "repeated epoch would not have the same slices. other queries of this session run without it, too"
    ]


def _other_interpreter(spark: SparkSession) -> list[str]:
    """Python sources run under the interpreter that the JVM found in its environment."""
    jvm = spark.sparkContext._jvm
    named = jvm.System.getenv("PYSPARK_PYTHON") if jvm is not None else None
    found = shutil.which(named or "python3")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return []
    return [
        f"Python sources run with {found or named}, this program with {sys.executable}: if they differ in their "
        f"packages, set PYSPARK_PYTHON={sys.executable} before Spark is started"
    ]


def _choose_file_manager(spark: SparkSession, checkpoint: str, keeps_state: bool) -> None:
    """The fast one for local checkpoints without state, Spark's own for all others; a choice of the user's stays."""
    chosen = spark.conf.get(FILE_MANAGER, None)
    if chosen not in (None, LOCAL_FILE_MANAGER):
        return
    if _is_local(spark, checkpoint) and not keeps_state:
        spark.conf.set(FILE_MANAGER, LOCAL_FILE_MANAGER)
    elif chosen is not None:
        spark.conf.unset(FILE_MANAGER)


def _is_local(spark: SparkSession, checkpoint: str) -> bool:
    scheme = urlsplit(checkpoint).scheme
    if not scheme:
        default = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")
        scheme = urlsplit(default or "file:///").scheme
    return scheme == "file"
