"""Start Spark sooner, for processes that live for minutes: demos, tests, the prover's many restarts.

Most of a short job is the JVM loading 20,000 classes and compiling methods it will hardly use again. Two remedies:
compile lightly only (`LIGHT`; a long job would stay slower, so it is never the default), and map the classes from an
archive (AppCDS) that a short job has left behind once. ``python -m tallystick.spark.faststart`` makes the archive.

An archive fits one Java and one set of jars; their hash is its name. If it is missing nothing happens, and if the JVM
does not accept it, it says nothing and loads the classes as usual. But a JVM that is given a truncated archive dies
of SIGBUS, so the name also holds the size, and an archive of another size is not used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tallystick.errors import TallystickError

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_JOB: Mapping[str, str] = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # A job that lives for seconds spends more on compiling its plan than on running it uncompiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Spark's settings for a job that lives for seconds."""
CACHE = "TALLYSTICK_CACHE"
ARCHIVES_KEPT = 3
EXIT_S = 120


def jvm_options(cache_dir: Path | None = None) -> str:
    """For ``spark.driver.extraJavaOptions``. Reads file names only: a few milliseconds."""
    archive = archive_path(cache_dir)
    if archive is None:
        return LIGHT
    return f"{LIGHT} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off {_quoted(f'-XX:SharedArchiveFile={archive}')}"


def archive_path(cache_dir: Path | None = None) -> Path | None:
    """The whole archive for this Java and this Spark; None if there is none, or no Java."""
    java = _java()
    if java is None:
        return None
    found = (cache_dir or default_cache_dir()).glob(f"spark-{_key(java)}-*.jsa")
    return next((path for path in found if path.stem.endswith(f"-{path.stat().st_size}")), None)


def default_cache_dir() -> Path:
    if CACHE in os.environ:
        return Path(os.environ[CACHE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tallystick"


def build_archive(cache_dir: Path | None = None, timeout_s: float = 300) -> Path:
    """Make the archive unless it is there, by running a short job in a process of its own. About a minute.

    Atomic: others see no archive or a whole one. Raises `TallystickError` with the end of the job's output.
    """
    java = _java()
    if java is None:
        raise TallystickError("no java was found: install Java 17 or newer, or set JAVA_HOME")
    found = archive_path(cache_dir)
    if found is not None:
        with suppress(OSError):  # of somebody else: then it is up to him what is pruned
            found.touch()  # those that were not used for longest are pruned
        return found
    folder = cache_dir or default_cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as scratch:
        made = Path(scratch, "archive.jsa")
        _run_short_job(made, Path(scratch, "checkpoint"), timeout_s)
        with made.open("rb") as whole:
            os.fsync(whole.fileno())
        archive = made.replace(folder / f"spark-{_key(java)}-{made.stat().st_size}.jsa")
    _prune(folder)
    return archive


def _run_short_job(archive: Path, checkpoint: Path, timeout_s: float) -> None:
    command = [sys.executable, "-m", "tallystick.spark.faststart", "--short-job", str(archive), str(checkpoint)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise TallystickError(f"the short job for the archive was not done in {timeout_s:.0f} s") from error
    if done.returncode != 0 or not archive.exists():
        raise TallystickError(f"the short job left no archive (status {done.returncode}): {done.stderr[-2000:]}")


def short_job(archive: Path, checkpoint: Path) -> None:
    """What a job of ours makes Spark load: a Python source, state, Arrow to Python and back, the driver's part."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from tallystick.sources import Collection
    from tallystick.spark.session import JAVA_OPTIONS, session

    options = f"{LIGHT} {_quoted(f'-XX:ArchiveClassesAtExit={archive}')}"
    conf = {JAVA_OPTIONS: options, "spark.sql.shuffle.partitions": "2"}
    spark = session("tallystick fast start", "local[2]", conf)
    rows = Collection([{"id": number, "app": f"app{number % 3}"} for number in range(40)], per_epoch=10)

    def epoch(frame: DataFrame, number: int) -> None:
        hashed = frame.withColumn("hash", F.xxhash64(*frame.columns))
        hashed.mapInArrow(lambda batches: batches, hashed.schema).collect()

    counts = rows.load(spark).groupBy("app").count()
    query = (
        counts.writeStream.foreachBatch(epoch)
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    # The JVM writes the archive when it ends, and it ends when its standard input does.
    java = gateway.proc  # type: ignore[union-attr]
    java.stdin.close()
    status = java.wait(EXIT_S)
    if status != 0:
        raise TallystickError(f"the JVM ended with status {status} while it wrote {archive}")


def _java() -> Path | None:
    """The java that Spark's start script will take."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).exists() else None


def _key(java: Path) -> str:
    """An archive is good for the same Java and the same jars, found in the same place."""
    import pyspark

    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    release = java.parent.parent / "release"
    parts = [str(java), release.read_text() if release.exists() else str(java.stat().st_mtime_ns)]
    parts += [pyspark.__version__, str(jars)]
    for jar in sorted(jars.glob("*.jar")):
        facts = jar.stat()
        parts.append(f"{jar.name} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _prune(folder: Path) -> None:
    """Each archive is some 160 MB, and every upgrade leaves one behind."""
    archives = sorted(folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in archives[ARCHIVES_KEPT:]:
        old.unlink(missing_ok=True)


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--short-job"]:
        short_job(Path(arguments[1]), Path(arguments[2]))
        return 0
    began_s = time.monotonic()
    try:
        archive = build_archive()
    except TallystickError as error:
        print(f"no archive was made; everything works without, only slower to start. {error}", file=sys.stderr)
        return 1
    print(f"{archive} ({archive.stat().st_size >> 20} MB, {time.monotonic() - began_s:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
