"""A Spark session that fits epochs, and a check of one that was made elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.errors import ConfigError
from tallystick.jvm.classes import JAR, SLICES_CLASS
from tallystick.s3.place import is_s3
from tallystick.spark.file_manager import FILE_MANAGER, PLAIN_FILE_MANAGER, choose_file_manager, written_by
from tallystick.spark.interpreter import LAUNCHER, OF_TASKS, RUNS, interpreter_chosen, launches_workers
from tallystick.spark.parts import jar_of_this_machine, jars_of
from tallystick.spark.s3a import prove
from tallystick.spark.slicing import SLICES
from tallystick.spark.sockets import socket_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADAPTIVE = "spark.sql.adaptive.enabled"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
JARS = "spark.jars"
PACKAGES = "spark.jars.packages"
EXTENSIONS = "spark.sql.extensions"
RETENTION = "spark.sql.streaming.minBatchesToRetain"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STATE: Mapping[str, str] = {PROVIDER: ROCKSDB, CHANGELOG: "true"}
"""For queries that keep state: an epoch writes what changed, snapshots go up in the background, and the state need not
fit into memory. docs/decisions/0011-rocksdb-with-changelogs.md"""
PIPE = "spark.sql.execution.pandas.udf.buffer.size"
PIPE_BYTES = 384 << 10
"""How much Spark gathers before it hands rows to a Python worker. Its default of 64 kB costs the JVM a tenth to a sixth
more time per row: it looks around for answers after each piece. Every task makes two buffers of this size. With a heap
of 1 GB, Spark's default, one of 512 kB or more is "humongous" to the JVM's collector: it goes to the old generation at
once, and short epochs had a full marking of the heap every second."""
PRUNING: Mapping[str, str] = {"spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true"}
"""For queries with rules. Spark writes it into the checkpoint with the first epoch, and keeps to it."""
LOSSY = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
"""Settings of a session that make Spark drop rows of files without a word."""

DEFAULTS: Mapping[str, str] = {
    # Adaptive execution moves rows between tasks from one run of an epoch to the next. Spark 4.2 leaves it on for
    # streaming queries without state.
    ADAPTIVE: "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL_DEFAULTS: Mapping[str, str] = {
    # One machine: nobody else needs to reach it, and the name of the machine need not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # For queries that are not ours; each of ours is started with its own.
    FILE_MANAGER: PLAIN_FILE_MANAGER,
}


def session(
    app_name: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    fast_start: bool = False,
    quiet: bool = True,
    jvm_parts: Iterable[str] = (),
) -> SparkSession:
    """Driver: the session of this process, made now or found.

    ``master`` is Spark's (``local[2]``, ``spark://…``); None leaves it to spark-submit and to Spark's own files, and is
    ``local[*]`` where there are none. ``conf`` wins over what is set here; for Spark's web page set
    ``spark.ui.enabled``. ``fast_start`` is for processes that live for minutes: they start sooner, but
    never reach full speed (`faststart`). ``quiet`` shows of Spark's log only errors. ``jvm_parts`` are connectors that
    Spark does not bring along: ``("spark-kafka",)`` for `tallystick.sources.Kafka`, ``("spark-s3",)`` for a checkpoint
    in S3; they are fetched once.

    Options of the JVM and its parts have no effect on one that is already running.
    """
    from pyspark.sql import SparkSession

    master = master or _master(conf or {})
    settings = settings_for(master, conf or {}, fast_start, quiet, jvm_parts)
    if launches_workers(master, settings.get("spark.pyspark.python")):
        settings = {**socket_settings(), **settings}
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with interpreter_chosen(master, settings.get("spark.pyspark.python")):
        return builder.getOrCreate()


def _master(conf: Mapping[str, str]) -> str | None:
    """Where nothing else says so, Spark runs in this process; said aloud, so that it is set up for that."""
    if "spark.master" in conf:
        return conf["spark.master"]
    elsewhere = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "MASTER")
    return None if any(name in os.environ for name in elsewhere) else "local[*]"


def _on_this_machine(master: str | None) -> bool:
    return master is not None and master.startswith("local")


def settings_for(
    master: str | None, conf: Mapping[str, str], fast_start: bool, quiet: bool, jvm_parts: Iterable[str] = ()
) -> dict[str, str]:
    """The settings of `session`: ours, then those of ``conf``, with the options of the JVM and its jars joined."""
    local = LOCAL_DEFAULTS if _on_this_machine(master) else {}
    options = [_quiet_option()] if quiet else []
    if fast_start:
        # Imported here, so that `python -m tallystick.spark.faststart` finds itself not yet imported.
        from tallystick.spark import faststart

        options.append(faststart.jvm_options())
    options += [conf[JAVA_OPTIONS]] if JAVA_OPTIONS in conf else []
    joined = {JAVA_OPTIONS: " ".join(options)} if options else {}
    joined |= _jars(conf, jvm_parts, _on_this_machine(master))
    if _on_this_machine(master):
        joined |= _extensions(conf)
    return {**DEFAULTS, **local, **conf, **joined}


def _jars(conf: Mapping[str, str], jvm_parts: Iterable[str], with_ours: bool) -> dict[str, str]:
    """Jars of Spark, not of the JVM's class path: with another class path the JVM would not take its archive."""
    chosen = _listed(conf.get(JARS, ""))
    brought = conf.get(PACKAGES, "") + conf.get(JARS, "")
    jars = list(dict.fromkeys([*chosen, *(jar for part in dict.fromkeys(jvm_parts) for jar in jars_of(part, brought))]))
    if with_ours and not any(jar.endswith(f"/{JAR.name}") for jar in jars):
        jars.append(jar_of_this_machine())
    return {JARS: ",".join(jars)} if jars else {}


def _extensions(conf: Mapping[str, str]) -> dict[str, str]:
    """Ours behind those of ``conf``. What files of Spark's may set is not known here: it stays, without ours."""
    if EXTENSIONS not in conf and any(name in os.environ for name in ("SPARK_CONF_DIR", "SPARK_HOME")):
        return {}
    return {EXTENSIONS: ",".join(dict.fromkeys([*_listed(conf.get(EXTENSIONS, "")), SLICES_CLASS]))}


def _listed(names: str) -> list[str]:
    return [name for name in names.split(",") if name]


def _quiet_option() -> str:
    """Spark reads its log settings before anything else, so that even its first lines follow them."""
    properties = Path(__file__).with_name("log4j2.properties")
    option = f"-Dlog4j2.configurationFile={properties.as_uri()}"
    return f'"{option}"' if " " in option else option


def check_session(spark: SparkSession, checkpoint: str | None = None) -> tuple[str, ...]:
    """Driver, before a query starts: make somebody's session fit for epochs. May be called again.

    Returns what was changed on it or should be known, in words, one per finding; nothing if all is well. Raises
    `ConfigError` for a session that cannot keep the guarantees. A ``checkpoint`` in S3 is tried out, through the class
    that Spark will write it with.
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
    if checkpoint is not None and is_s3(checkpoint):
        choose_file_manager(spark, checkpoint, keeps_state=False)
        prove(spark, checkpoint)
    return tuple(_without_adaptive(spark) + _other_interpreter(spark))


@contextmanager
def started_with(
    spark: SparkSession,
    checkpoint: str,
    epochs: int,
    keeps_state: bool,
    has_rules: bool = False,
    slices: int | None = None,
) -> Iterator[None]:
    """A query that starts here keeps that many finished epochs, and its state in RocksDB if it has any, gets its rows
    to Python in large pieces, and writes its checkpoint with the class that fits it (`file_manager`).

    With rules it leaves out what is never true: the control streams, which are there for their offsets only, are not
    read by its tasks, and so a replay does not need their rows. What the user has chosen for the session stays; and a
    checkpoint keeps to the state store that it was begun with. ``slices`` are those of its first epoch (`slicing`).
    """
    with written_by(spark, checkpoint, keeps_state):
        wanted = {
            RETENTION: str(epochs),
            PIPE: str(PIPE_BYTES),
            **(STATE if keeps_state and spark.conf.get(PROVIDER, None) is None else {}),
            **(PRUNING if has_rules else {}),
            **({} if slices is None else {SLICES: str(slices)}),
        }
        ours = {name: value for name, value in wanted.items() if spark.conf.get(name, None) is None}
        for name, value in ours.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in ours:
                spark.conf.unset(name)


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
    jvm: Any = spark.sparkContext._jvm
    named = jvm.System.getenv(OF_TASKS)
    if named == str(LAUNCHER):
        named = jvm.System.getenv(RUNS)
    found = shutil.which(named or "python3")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return []
    return [
        f"Python sources run with {found or named}, this program with {sys.executable}: if they differ in their "
        f"packages, set PYSPARK_PYTHON={sys.executable} before Spark is started"
    ]
