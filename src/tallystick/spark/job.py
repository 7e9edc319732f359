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

from pyspark.errors import PySparkException

from tallystick.checkpoint import Checkpoint
from tallystick.errors import CheckpointError, ConfigError, FencedError, TallystickError
from tallystick.planner import Explanation, derive
from tallystick.protocol import Finished
from tallystick.records import Attempt, Mode
from tallystick.restart import NoRestart, RestartStrategy
from tallystick.sinks.base import Sink
from tallystick.sources.base import Source
from tallystick.spark.outputs import Output, outputs_of
from tallystick.spark.session import session
from tallystick.spark.stream import OUTPUT_MODES, StreamWriter, mode_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("tallystick")

Steps = Callable[..., "DataFrame"]


class Job:
    """One streaming query with everything that belongs to it.

    ``source`` is one source, or several by name. ``steps`` is a function from the sources' DataFrames (positional, in
    the order of the sources) to the DataFrame that is written; without it the one source is written as it is.
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
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ConfigError(f"the job name {name!r} is not usable: letters, digits, '_', '-' and '.' only")
        self.name = name
        self.sources = _sources(source)
        self.outputs = outputs_of(sink)
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

    def _derive(self) -> Explanation:
        return derive(
            {name: (source.facts, source.name) for name, source in self.sources.items()},
            self.mode,
            {output.name: (output.sink.facts, output.sink.target) for output in self.outputs},
        )

    def writer(self, spark: SparkSession) -> StreamWriter:
        """The query as it will run in this session, not yet started. Schema errors show up here."""
        rows = self.steps(*(source.load(spark) for source in self.sources.values()))
        sources = {name: (source.facts, source.name) for name, source in self.sources.items()}
        writer = StreamWriter(rows, self.outputs, self.checkpoint, self.name, self.mode.value, sources)
        return writer.outputMode(self.output_mode)

    def start(self, spark: SparkSession | None = None, *, available_now: bool = False) -> StreamingQuery:
        """Start the job once and return Spark's own query. Restarting is up to the caller."""
        return self._start(spark or self.session(), available_now, None)[1]

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        available_now: bool = False,
        on_finished: Callable[[Attempt, Finished], None] | None = None,
    ) -> None:
        """Run until the job is stopped, its sources are exhausted (``available_now``), or restarts are used up.

        Raises the error that ended it, by its own name. Each start is a new generation; a job that was fenced by
        another driver never restarts.
        """
        spark = spark or self.session()
        failures = 0

        def succeeded(attempt: Attempt, finished: Finished) -> None:
            nonlocal failures
            failures = 0
            if on_finished is not None:
                on_finished(attempt, finished)

        while True:
            writer, query = self._start(spark, available_now, succeeded)
            try:
                query.awaitTermination()
                return
            except PySparkException as ending:
                failures += 1
                coordinator = writer.coordinator
                failure = coordinator.failure if coordinator is not None else None
                cause = failure if isinstance(failure, TallystickError) else ending
            pause_s = self.restart.pause_s(failures)
            if pause_s is None or isinstance(cause, FencedError | CheckpointError):
                raise cause
            log.warning("job %s failed (%s); restart %d in %g s", self.name, cause, failures, pause_s)
            time.sleep(pause_s)

    def session(self) -> SparkSession:
        """A Spark session with the settings that epochs need, and this job's own."""
        return session(self.name, conf=self.spark_conf)

    def _start(
        self, spark: SparkSession, available_now: bool, on_finished: Callable[[Attempt, Finished], None] | None
    ) -> tuple[StreamWriter, StreamingQuery]:
        writer = self.writer(spark)
        if available_now:
            writer.trigger(availableNow=True)
        if on_finished is not None:
            writer.on_finished(on_finished)
        return writer, writer.start()


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
