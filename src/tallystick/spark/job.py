"""A whole job, declared as a value: sources, steps, sinks, checkpoint, restart strategy and the guarantee to hold.

Everything that can be wrong is found when the job is declared; `Job.run` is what ``tallystick run`` calls.
"""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick import errors
from tallystick.checkpoint import DELETE, Checkpoint
from tallystick.errors import (
    CheckpointError,
    ConfigError,
    DriverLostError,
    FencedError,
    JournalCorruptError,
    JournalError,
    PrepareError,
    SinkError,
    SourceError,
    TallystickError,
)
from tallystick.journal.stores import open_store
from tallystick.planner import Explanation, derive
from tallystick.protocol import Finished
from tallystick.records import Attempt, Mode
from tallystick.restart import NoRestart, Restarts, RestartStrategy
from tallystick.sinks.base import Sink
from tallystick.sources.base import Source
from tallystick.spark.broadcast import Broadcast, bound, broadcasts_of, rides_along
from tallystick.spark.cancel import delete_checkpoint
from tallystick.spark.leading import Leadership, warm_up
from tallystick.spark.outputs import Output, dead_letters_of, outputs_of
from tallystick.spark.parts import parts_for
from tallystick.spark.session import check_session, session
from tallystick.spark.stream import JOURNAL_FOLDER, OUTPUT_MODES, StreamWriter, driver, mode_of
from tallystick.spark.whole import trouble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("tallystick")

LAST_BEAT_S = 30.0
"""How long a checkpoint that is to be deleted waits for the leader's last sign of life."""

Steps = Callable[..., "DataFrame"]


class Job:
    """One streaming query with everything that belongs to it.

    ``source`` is one source, or several by name. ``steps`` is a function from the sources' DataFrames (positional, in
    the order of the sources) to the DataFrame that is written; without it the one source is written as it is.
    ``broadcast`` are the rules that the steps use, `state.Broadcast`, one or several. Rows that a target refuses go
    to ``dead_letters``, in the same epoch; without it they fail the epoch.
    """

    def __init__(
        self,
        name: str,
        *,
        source: Source | Mapping[str, Source],
        sink: Sink | Output | Sequence[Sink | Output],
        checkpoint: Checkpoint | str | PathLike[str],
        steps: Steps | None = None,
        output_mode: str = "append",
        restart: RestartStrategy | None = None,
        guarantee: str = Mode.EXACTLY_ONCE.value,
        spark_conf: Mapping[str, str] | None = None,
        broadcast: Broadcast | Sequence[Broadcast] = (),
        dead_letters: Sink | None = None,
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ConfigError(f"the job name {name!r} is not usable: letters, digits, '_', '-' and '.' only")
        self.name = name
        self.sources = _sources(source)
        self.broadcasts = broadcasts_of(broadcast, self.sources)
        self.outputs = outputs_of(sink)
        self.dead_letters = dead_letters_of(dead_letters, self.outputs)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        self.steps = _steps(steps, self.sources)
        if output_mode not in OUTPUT_MODES:
            raise ConfigError(f"output mode {output_mode!r} is unknown: needed one of {', '.join(OUTPUT_MODES)}")
        self.output_mode = output_mode
        self.restart = restart if restart is not None else NoRestart()
        if not isinstance(self.restart, RestartStrategy):
            raise ConfigError(f"restart needs a strategy such as ts.FixedDelay(), found {type(restart).__name__}")
        self.mode = mode_of(guarantee)
        if not isinstance(spark_conf, Mapping | None):
            raise ConfigError(f"spark_conf needs settings by name, found {type(spark_conf).__name__}")
        self.spark_conf = dict(spark_conf or {})
        self.explanation = self._derive()
        if self.explanation.findings:
            finding = self.explanation.findings[0]
            raise ConfigError(
                f"job {name}: {self.mode.value} cannot hold: {finding.why}. {finding.fix}",
                explanation=self.explanation.to_json(),
            )

    @property
    def participants(self) -> tuple[Output, ...]:
        """Everything that is decided together: the outputs, and that for refused rows."""
        return (*self.outputs, *([] if self.dead_letters is None else [self.dead_letters]))

    def _derive(self) -> Explanation:
        return derive(
            {name: (source.facts, source.name) for name, source in self.inputs.items()},
            self.mode,
            {output.name: (output.sink.facts, output.sink.target) for output in self.participants},
        )

    def writer(self, spark: SparkSession) -> StreamWriter:
        """The query as it will run in this session, not yet started. Schema errors show up here."""
        rows, frames = self.rows(spark)
        sources = {name: (source.facts, source.name) for name, source in self.inputs.items()}
        letters = None if self.dead_letters is None else self.dead_letters.sink
        writer = StreamWriter(
            rows, self.outputs, self.checkpoint, self.name, self.mode.value, sources, frames, letters, self.broadcasts
        )
        return writer.outputMode(self.output_mode)

    def rows(self, spark: SparkSession) -> tuple[DataFrame, dict[str, DataFrame]]:
        """What the steps make of the inputs, and the inputs themselves by name, in this session."""
        frames = {name: source.load(spark) for name, source in self.sources.items()}
        controls = bound(self.broadcasts, spark)
        rows = self.steps(*frames.values())
        return rides_along(rows, list(controls.values())), {**frames, **controls}

    @property
    def inputs(self) -> dict[str, Source]:
        """Everything that is read, by name: the sources, and the control streams of broadcast states."""
        return {**self.sources, **{each.name: each.source for each in self.broadcasts}}

    def start(self, spark: SparkSession | None = None, *, available_now: bool = False) -> StreamingQuery:
        """Start the job once and return Spark's own query. Restarting is up to the caller."""
        return self._start(spark or self.session(), available_now, None, None)[1]

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        available_now: bool = False,
        on_finished: Callable[[Attempt, Finished], None] | None = None,
        standby: bool = False,
        on_standby: Callable[[str], None] | None = None,
    ) -> None:
        """Run until the job is stopped, its sources are exhausted (``available_now``), or restarts are used up.

        Raises the error that ended it, by its own name. Each start is a new generation; a job that was fenced by
        another driver never restarts. With ``standby`` it first waits until nobody else leads the job; ``on_standby``
        is told in words what it sees meanwhile.
        """
        spark = spark or self.session()
        store = open_store(f"{self.checkpoint.uri}/{JOURNAL_FOLDER}", spark)
        leadership = Leadership(store, driver(), spark)
        if standby:
            self.writer(spark)  # a job that cannot start should say so now, and not when it is needed
            check_session(spark, self.checkpoint.uri)
            warm_up(spark)
            if not leadership.wait(on_standby or log.info):
                return
        try:
            self._run_led(spark, available_now, on_finished, leadership)
        finally:
            leadership.release()
            for source in self.inputs.values():
                source.release()

    def _run_led(
        self,
        spark: SparkSession,
        available_now: bool,
        on_finished: Callable[[Attempt, Finished], None] | None,
        leadership: Leadership,
    ) -> None:
        """Start the query, again and again as the restart strategy says."""
        restarts = Restarts(self.restart)
        tolerated = 0

        def succeeded(attempt: Attempt, finished: Finished) -> None:
            nonlocal tolerated
            tolerated = 0
            restarts.succeeded()
            if on_finished is not None:
                on_finished(attempt, finished)

        while True:
            cause = self._run_once(spark, available_now, succeeded, leadership)
            if cause is None or leadership.asked:
                break
            if isinstance(cause, PrepareError) and tolerated < self.checkpoint.tolerable_failed:
                tolerated += 1
                log.warning("job %s: %s; tolerated, %d in a row", self.name, cause, tolerated)
                continue
            pause_s = restarts.failed()
            if pause_s is None or isinstance(cause, FencedError | CheckpointError | JournalCorruptError):
                raise cause
            log.warning("job %s failed (%s); restart %d in %g s", self.name, cause, restarts.in_a_row, pause_s)
            time.sleep(pause_s)
        if self.checkpoint.on_cancel == DELETE and not available_now and not leadership.asked:
            self._delete_checkpoint(spark, leadership)

    def _delete_checkpoint(self, spark: SparkSession, leadership: Leadership) -> None:
        """After the last beat, which would leave itself behind."""
        if leadership.release(LAST_BEAT_S):
            delete_checkpoint(self.checkpoint.uri, spark)
        else:
            log.warning(
                "%s is kept although the job was cancelled: a sign of life is still being written after %g s",
                self.checkpoint.uri,
                LAST_BEAT_S,
            )

    def _run_once(
        self,
        spark: SparkSession,
        available_now: bool,
        on_finished: Callable[[Attempt, Finished], None],
        leadership: Leadership,
    ) -> Exception | None:
        """One start of the query, to its end: None if it was stopped or came to its end, else what ended it."""
        coordinator = None
        try:
            writer, query = self._start(spark, available_now, on_finished, leadership)
            coordinator = writer.coordinator
            query.awaitTermination()
            writer.wait_until_tidy()
            if leadership.lost:
                leadership.check()
        except (PySparkException, SourceError, SinkError, JournalError) as ending:
            failure = coordinator.failure if coordinator is not None else None
            return failure if isinstance(failure, TallystickError) else _named(ending, self.name)
        except (Py4JError, ConnectionError) as ending:
            raise DriverLostError(
                f"job {self.name}: Spark's JVM ended or does not answer ({type(ending).__name__}). nothing is lost: "
                "start the job again, which goes on where it was"
            ) from ending
        return None

    def session(self) -> SparkSession:
        """A Spark session with the settings that epochs need, and this job's own."""
        return session(self.name, conf=self.spark_conf, jvm_parts=self.jvm_parts)

    @property
    def jvm_parts(self) -> tuple[str, ...]:
        """What its sources and its checkpoint need and Spark does not bring along: for `tallystick.session`."""
        of_sources = (part for source in self.inputs.values() for part in source.jvm_parts)
        return tuple(dict.fromkeys([*of_sources, *parts_for(self.checkpoint.uri)]))

    def _start(
        self,
        spark: SparkSession,
        available_now: bool,
        on_finished: Callable[[Attempt, Finished], None] | None,
        leadership: Leadership | None,
    ) -> tuple[StreamWriter, StreamingQuery]:
        writer = self.writer(spark)
        if leadership is not None:
            writer.led_by(leadership)
        if available_now:
            writer.trigger(availableNow=True)
        if on_finished is not None:
            writer.on_finished(on_finished)
        return writer, writer.start()


def _named(ending: Exception, job: str) -> Exception:
    """What a source said, in its own words; and being fenced, if Spark found that another driver wrote its logs."""
    if "CONCURRENT_STREAM_LOG_UPDATE" in str(ending):
        return FencedError(f"another driver of job {job} has taken over, as Spark's logs show: this one stops")
    told = _SOURCE_ERROR.search(str(ending))
    if told is not None:
        return getattr(errors, told["kind"])(told["text"].strip())  # type: ignore[no-any-return]
    about_checkpoint = trouble(str(ending)) if isinstance(ending, PySparkException) else None
    return CheckpointError(f"job {job}: {about_checkpoint}") if about_checkpoint is not None else ending


_SOURCE_ERROR = re.compile(r"tallystick\.errors\.(?P<kind>SourceError|ReceiverLogCorruptError): (?P<text>.+)")
"""A source of ours runs in a process of Spark's, whose errors arrive as texts with the stacks of two languages."""


def _sources(source: Source | Mapping[str, Source]) -> dict[str, Source]:
    if not isinstance(source, Source | Mapping):
        raise ConfigError(
            f"a job needs a source such as ts.sources.Files(path, …), or several by name, found {source!r}"
        )
    named = {source.facts.name: source} if isinstance(source, Source) else dict(source)
    if not named:
        raise ConfigError("a job needs at least one source, found none")
    for name, entry in named.items():
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"a source needs a name, found {name!r}")
        if not isinstance(entry, Source):
            raise ConfigError(
                f"source {name!r} is a {type(entry).__name__}: needed a source such as ts.sources.Files(path, …)"
            )
    return named


def _steps(steps: Steps | None, sources: Mapping[str, Source]) -> Steps:
    if steps is None:
        if len(sources) > 1:
            raise ConfigError(f"a job with {len(sources)} sources needs steps that bring them together, found none")
        return lambda rows: rows
    if not callable(steps):
        raise ConfigError(f"steps is a function from DataFrames to a DataFrame, found {type(steps).__name__}")
    try:
        inspect.signature(steps).bind(*sources)
    except TypeError as cause:
        raise ConfigError(
            f"steps takes one DataFrame per source, in the order {', '.join(sources)}: {cause}"
        ) from cause
    return steps
