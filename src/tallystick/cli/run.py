"""``tallystick run``: run a job until it is stopped or its input is used up."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.cli.console import err
from tallystick.cli.options import Debug, JobFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tallystick.cli.progress import EpochLines
    from tallystick.cli.supervisor import Line
    from tallystick.protocol import Finished
    from tallystick.records import Attempt
    from tallystick.spark.job import Job
    from tallystick.spark.lag import Watch

EXAMPLES = (
    "Examples: tallystick run app_pv.py --available-now · tallystick run jobs.py:orders --master 'local[2]' · "
    "tallystick run jobs.py:orders --master spark://host:7077"
)
INTERRUPTED = 130
LAG_PATIENCE_S = 3.0
_PY4J_FAREWELLS = ("KeyboardInterrupt while sending command", "Exception while sending command")


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
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait, with Spark ready, until nobody else runs the job; then take over.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a job. Each finished epoch is a line on standard error; Ctrl-C stops after the running epoch.

    A job that was killed goes on where it stopped: run it again. With a restart strategy this command does so by
    itself: it watches over the driver, a process of its own. Exit status 0 if it came to its end or was stopped.
    """
    from tallystick.cli.failures import report
    from tallystick.cli.supervisor import DRIVER_LOST, Line, supervise, wanted
    from tallystick.errors import DriverLostError, TallystickError
    from tallystick.spark.jobfile import in_user_file, load_job, parse, passes_through

    how = _How(available_now, master, fast_start, standby, debug)
    found = load_job(job)
    if wanted(found):
        raise typer.Exit(supervise(found, how.typed(job)))
    line = Line()
    try:
        interrupted = _run(found, line, how)
    except DriverLostError as lost:
        if not line.held:
            raise
        report(lost)
        raise typer.Exit(DRIVER_LOST) from None
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


@dataclass(frozen=True)
class _How:
    """The options, as they were typed."""

    available_now: bool
    master: str | None
    fast_start: bool | None
    standby: bool
    debug: bool

    def typed(self, job: str) -> list[str]:
        """The same command again, for the driver's process."""
        flags = {
            "--available-now": self.available_now,
            "--fast-start": self.fast_start is True,
            "--full-speed": self.fast_start is False,
            "--standby": self.standby,
            "--debug": self.debug,
        }
        given = ["run", job, *(flag for flag, is_given in flags.items() if is_given)]
        return [*given, "--master", self.master] if self.master is not None else given


def _run(job: Job, line: Line, how: _How) -> bool:
    """True if somebody stopped it."""
    from tallystick.cli.progress import EpochLines
    from tallystick.cli.stopping import Stopper, in_thread
    from tallystick.spark.lag import Watch

    console = err()
    stopping = f"job {job.name}: stopping after the running epoch; Ctrl-C again stops at once"
    with EpochLines(console) as lines, Stopper(lambda: lines.say("stopping", stopping)) as stopper:
        console.print(f"job {job.name}: starting Spark", soft_wrap=True)
        spark = in_thread(lambda: _session(job, how))
        try:
            stopper.watch(spark)
            guarantee = job.explanation.guarantee.value
            lines.say("running", f"job {job.name}: {guarantee}, checkpoint {job.checkpoint.uri}")
            line.watch()
            with Watch(job, spark) as watch:
                job.run(
                    spark,
                    available_now=how.available_now,
                    on_finished=_told(lines, watch, line),
                    standby=how.standby,
                    on_standby=lambda text: lines.say("standby", f"job {job.name}: {text}"),
                )
                lines.lags = watch.last(LAG_PATIENCE_S)
        finally:
            stopper.finish()
            _stop(spark)
    ending = "stopped" if stopper.asked else "done"
    console.print(f"job {job.name}: {ending} after {lines.summary()}{lines.lag()}", soft_wrap=True)
    return stopper.asked


def _told(lines: EpochLines, watch: Watch, line: Line) -> Callable[[Attempt, Finished], None]:
    """Inside the epoch: the lag in its line is what was found last, because nobody waits for it."""

    def finished(attempt: Attempt, how: Finished) -> None:
        lines.lags = watch.newest
        lines.finished(attempt, how)
        watch.finished(attempt.epoch)
        line.epoch_done()

    return finished


def _stop(spark: SparkSession) -> None:
    from py4j.protocol import Py4JError

    try:
        spark.stop()
    except (Py4JError, ConnectionError) as gone:
        logging.getLogger("tallystick").debug("Spark's JVM was gone before it could be stopped: %s", gone)


def _session(job: Job, how: _How) -> SparkSession:
    from tallystick.spark.session import session

    conf = dict(job.spark_conf)
    where = how.master or conf.get("spark.master") or "local[*]"
    conf.pop("spark.master", None)
    fast = how.fast_start if how.fast_start is not None else how.available_now and where.startswith("local")
    spark = session(job.name, where, conf, fast_start=fast, quiet=not how.debug, jvm_parts=job.jvm_parts)
    if not how.debug:
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
    _hang_up_quietly(spark.sparkContext._accumulatorServer)


def _hang_up_quietly(server: Any) -> None:
    """The JVM keeps a connection to this server of PySpark's: its end is told elsewhere, so not with a stack here."""
    told = server.handle_error

    def handle_error(request: Any, client: Any) -> None:
        if not isinstance(sys.exc_info()[1], (ConnectionError, EOFError)):
            told(request, client)

    server.handle_error = handle_error


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Py4J logs a call that was interrupted, or cut off by the end of the JVM, with the root logger, stack and all."""
    return not record.getMessage().startswith(_PY4J_FAREWELLS)
