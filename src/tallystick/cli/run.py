"""``tallystick run``: run a job until it is stopped or its input is used up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.cli.console import err
from tallystick.cli.options import Debug, JobFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.spark.job import Job

EXAMPLES = (
    "Examples: tallystick run app_pv.py --available-now · tallystick run jobs.py:orders --master 'local[2]' · "
    "tallystick run jobs.py:orders --master spark://host:7077"
)
INTERRUPTED = 130


def run(
    job: JobFile,
    available_now: Annotated[bool, typer.Option("--available-now", help="Do what is there now, then stop.")] = False,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master \\[default: the job's, else local\\[*]].")
    ] = None,
    fast_start: Annotated[
        bool | None,
        typer.Option(
            "--fast-start/--full-speed",
            help="Start sooner but run slower, for runs of a few minutes; or the other way round "
            "\\[default: fast start with --available-now on this machine].",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run a job. Each finished epoch is a line on standard error; Ctrl-C stops after the running epoch.

    A job that was killed goes on where it stopped: run it again. Exit status 0 if it came to its end or was stopped.
    """
    from tallystick.cli.failures import in_user_file, passes_through
    from tallystick.cli.load import load_job, parse
    from tallystick.errors import TallystickError

    found = load_job(job)
    try:
        interrupted = _run(found, available_now, master, fast_start, debug)
    except TallystickError:
        raise
    except KeyboardInterrupt:
        err().print(f"job {found.name}: stopped at once. run it again and it goes on where it was", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as failure:
        path, _ = parse(job)
        if passes_through(failure, path):
            raise in_user_file(failure, path) from failure
        raise
    if interrupted and available_now:
        raise typer.Exit(INTERRUPTED)


def _run(job: Job, available_now: bool, master: str | None, fast_start: bool | None, debug: bool) -> bool:
    """True if somebody stopped it."""
    from tallystick.cli.progress import EpochLines
    from tallystick.cli.stopping import Stopper, in_thread

    console = err()
    stopping = f"job {job.name}: stopping after the running epoch; Ctrl-C again stops at once"
    with EpochLines(console) as lines, Stopper(lambda: lines.say("stopping", stopping)) as stopper:
        console.print(f"job {job.name}: starting Spark", soft_wrap=True)
        spark = in_thread(lambda: _session(job, available_now, master, fast_start, debug))
        try:
            stopper.watch(spark)
            guarantee = job.explanation.guarantee.value
            lines.say("running", f"job {job.name}: {guarantee}, checkpoint {job.checkpoint.uri}")
            job.run(spark, available_now=available_now, on_finished=lines.finished)
        finally:
            stopper.finish()
            spark.stop()
    ending = "stopped" if stopper.asked else "done"
    console.print(f"job {job.name}: {ending} after {lines.summary()}", soft_wrap=True)
    return stopper.asked


def _session(job: Job, available_now: bool, master: str | None, fast_start: bool | None, debug: bool) -> SparkSession:
    from tallystick.spark.session import session

    conf = dict(job.spark_conf)
    where = master or conf.get("spark.master") or "local[*]"
    conf.pop("spark.master", None)
    fast = fast_start if fast_start is not None else available_now and where.startswith("local")
    spark = session(job.name, where, conf, fast_start=fast, quiet=not debug)
    if not debug:
        _log_no_more_than_once(spark)
    return spark


def _log_no_more_than_once(spark: SparkSession) -> None:
    """Spark logs what ends a query, with the stacks of Java and Python, and raises it too: we say it in our words."""
    from pyspark.logger import PySparkLogger

    spark.sparkContext.setLogLevel("FATAL")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4j)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Py4J logs an interrupted call with the root logger, stack and all."""
    return not record.getMessage().startswith("KeyboardInterrupt while sending command")
