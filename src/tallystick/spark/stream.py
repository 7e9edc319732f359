"""The one changed line: ``ts.write_stream(df, sink, checkpoint=path)`` in place of ``df.writeStream``.

Starting a query, in order; nothing is written before everything has been checked:

1. the declaration: guarantee, sinks, schema
2. whose checkpoint it is, and whether somebody holds it
3. the targets
4. the query starts; its first epoch claims the generation, and from then on every earlier driver is fenced
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.checkpoint import Checkpoint
from tallystick.errors import CheckpointInUseError, ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.journal import JobIdentity, Journal
from tallystick.journal.stores import open_store
from tallystick.planner import derive
from tallystick.protocol import Finished
from tallystick.records import Attempt, Mode
from tallystick.sinks.base import JobContext, Sink, TransactionalSink
from tallystick.sinks.letters import spark_schema
from tallystick.sinks.staged import StagedSink, lower
from tallystick.spark.apply import Executors
from tallystick.spark.brief import briefly
from tallystick.spark.broadcast import Broadcast, bound, broadcasts_of, rides_along
from tallystick.spark.coordinator import Coordinator, Plan
from tallystick.spark.door import each_epoch
from tallystick.spark.file_manager import wait_for_sources
from tallystick.spark.leading import Leadership
from tallystick.spark.lineage import source_names
from tallystick.spark.offsets import local_path
from tallystick.spark.outputs import Output, dead_letters_of, outputs_of, projection, schema_for
from tallystick.spark.rulebook import Declared
from tallystick.spark.session import check_session, started_with
from tallystick.spark.state import may_keep_state
from tallystick.spark.stopping import stop_after_epoch
from tallystick.spark.sweep import sweep
from tallystick.spark.unlocking import unlock_when_ended, wait_for_unlock
from tallystick.spark.whole import check_whole, mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("tallystick")

JOURNAL_FOLDER = "tallystick"
OUTPUT_MODES = ("append", "update", "complete")


class StreamWriter:
    """What `write_stream` returns: set the trigger and the output mode as with Spark's own writer, then `start`."""

    def __init__(
        self,
        rows: DataFrame,
        sinks: Sink | Output | Sequence[Sink | Output],
        checkpoint: Checkpoint | str | PathLike[str],
        name: str | None = None,
        guarantee: str = Mode.EXACTLY_ONCE.value,
        sources: Mapping[str, tuple[SourceFacts, str]] | None = None,
        frames: Mapping[str, DataFrame] | None = None,
        dead_letters: Sink | None = None,
        broadcasts: Sequence[Broadcast] = (),
    ) -> None:
        self.outputs = outputs_of(sinks)
        self.dead_letters = dead_letters_of(dead_letters, self.outputs)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        self.mode = mode_of(guarantee)
        self.explanation = derive(
            sources or {},
            self.mode,
            {output.name: (output.sink.facts, output.sink.target) for output in self.participants},
        )
        if self.explanation.findings:
            finding = self.explanation.findings[0]
            raise ConfigError(f"{self.mode.value} cannot hold: {finding.why}. {finding.fix}")
        if not rows.isStreaming:
            raise ConfigError("write_stream needs a streaming DataFrame, found a batch one: read it with readStream")
        rows.select(*projection(rows, self.outputs))
        self._rows = rows
        self._sources = source_names(rows, frames or {})
        twice = [each.name for each in broadcasts if self._sources.count(each.name) > 1]
        if twice:
            raise ConfigError(f"the broadcast state {twice[0]!r} needs another name: a source of the query has it")
        self._broadcasts = tuple(Declared(each, self._sources.index(each.name)) for each in broadcasts)
        self._name = _checked_name(name)
        self._output_mode = "append"
        self._trigger: dict[str, Any] = {}
        self.trigger(processingTime=f"{round(self.checkpoint.interval_s * 1000)} milliseconds")
        self._on_finished: Callable[[Attempt, Finished], None] | None = None
        self._leadership: Leadership | None = None
        self.coordinator: Coordinator | None = None

    @property
    def participants(self) -> tuple[Output, ...]:
        """Everything that is decided together: the outputs, and that for refused rows."""
        return (*self.outputs, *([] if self.dead_letters is None else [self.dead_letters]))

    def trigger(self, **trigger: Any) -> StreamWriter:
        """``processingTime="1 second"`` or ``availableNow=True``."""
        allowed = ("processingTime", "availableNow")
        if len(trigger) != 1 or next(iter(trigger)) not in allowed:
            raise ConfigError(f"trigger takes one of {', '.join(allowed)}, found {', '.join(trigger) or 'nothing'}")
        try:
            self._rows.writeStream.trigger(**trigger)
        except (PySparkException, Py4JError) as cause:
            [(key, value)] = trigger.items()
            raise ConfigError(
                f"the trigger {key}={value!r} is not one of Spark's: needed processingTime='1 second' or "
                "availableNow=True"
            ) from cause
        self._trigger = dict(trigger)
        return self

    def outputMode(self, mode: str) -> StreamWriter:  # noqa: N802 - Spark's own name
        """``append`` (default), ``update`` or ``complete``, as with Spark."""
        if mode not in OUTPUT_MODES:
            raise ConfigError(f"output mode {mode!r} is unknown: needed one of {', '.join(OUTPUT_MODES)}")
        self._output_mode = mode
        return self

    def queryName(self, name: str) -> StreamWriter:  # noqa: N802 - Spark's own name
        """The job's name: in Spark's UI, in the journal, and checked against the checkpoint's owner."""
        self._name = _checked_name(name)
        return self

    def on_finished(self, call: Callable[[Attempt, Finished], None]) -> StreamWriter:
        """Have ``call`` told of every epoch that ended well. It runs on the driver, inside the epoch: be quick."""
        self._on_finished = call
        return self

    def led_by(self, leadership: Leadership) -> StreamWriter:
        """Run under a leadership that outlives this query. Without it `start` makes one that ends with the query."""
        self._leadership = leadership
        return self

    def start(self) -> StreamingQuery:
        """Check everything, take the job over, and start the query."""
        spark = self._rows.sparkSession
        for finding in check_session(spark, self.checkpoint.uri):
            log.warning("%s", finding)
        journal = Journal(open_store(f"{self.checkpoint.uri}/{JOURNAL_FOLDER}", spark))
        if journal.identity() is not None:
            journal.identify(self._name)
        journal.check()
        check_whole(journal, open_store(_location(journal), spark))
        for output in self.participants:
            if not isinstance(output.sink, TransactionalSink):
                _staging(journal, output)
        for output in self.participants:
            output.sink.check(self._context(journal, output))
        wait_for_unlock(_location(journal))
        given = self._leadership
        claimed = given is not None and given.term is not None
        if not journal.store.try_lock() and not claimed:
            raise CheckpointInUseError(
                f"another living driver holds {self.checkpoint.uri}: stop it first. two drivers would only fence each "
                "other, so this one did not start; nothing was written"
            )
        leadership = given or Leadership(journal.store, driver(), spark)
        running: list[StreamingQuery] = []

        def stop_when_lost() -> None:
            for query in running:
                query.stop()

        def stop_when_asked() -> None:
            for query in running:
                stop_after_epoch(query)

        try:
            plan = replace(self._plan(journal), still_leading=leadership.check)
            leadership.take(stop_when_lost, stop_when_asked)
            logs = open_store(plan.checkpoint, spark)
            mark(JobIdentity(plan.job, plan.job_id), logs)
            sweep(plan, logs)
            self.coordinator = Coordinator(plan, journal)
            query = self._start_query(self.coordinator)
            running.append(query)
            if leadership.lost or leadership.asked:  # before there was a query to stop
                query.stop()
        except BaseException:
            if given is None:
                leadership.release()
            journal.store.unlock()
            raise
        unlock_when_ended(
            _location(journal), query, journal.store, lambda: sweep(plan, logs), None if given else leadership
        )
        return query

    def wait_until_tidy(self) -> None:
        """After the query's end: until what it left open is rolled back and its checkpoint is free."""
        if self.coordinator is not None:
            wait_for_unlock(self.coordinator.plan.checkpoint)

    def _context(self, journal: Journal, output: Output) -> JobContext:
        owner = journal.identity()
        claimed = journal.generations()
        last = journal.generation(claimed[-1]) if claimed else None
        before = last.get("checkpoint") if last else None
        return JobContext(
            job_id=owner.id if owner is not None else None,
            checkpoint=_location(journal),
            interval_s=self.checkpoint.interval_s,
            timeout_s=self.checkpoint.timeout_s,
            moved=before is not None and before != _location(journal),
            schema=spark_schema() if output is self.dead_letters else schema_for(self._rows, output),
        )

    def _plan(self, journal: Journal) -> Plan:
        owner = journal.identify(self._name)
        who = {
            **driver(),
            "started_at": round(time.time(), 3),
            "version": version("tallystick"),
            "python": sys.version.split()[0],
            "mode": self.mode.value,
            "checkpoint": _location(journal),
            "sinks": {output.name: output.sink.target for output in self.participants},
            "sources": list(self._sources),
        }
        return Plan(
            job=owner.job,
            job_id=owner.id,
            who=who,
            mode=self.mode,
            checkpoint=_location(journal),
            outputs=self.outputs,
            sinks={output.name: _lowered(output, journal, self._rows.sparkSession) for output in self.participants},
            epoch_s=self.checkpoint.interval_s + self.checkpoint.timeout_s,
            timeout_s=self.checkpoint.timeout_s,
            commit_patience_s=self.checkpoint.commit_patience_s,
            min_pause_s=self.checkpoint.min_pause_s,
            on_finished=self._on_finished,
            broadcasts=self._broadcasts,
        )

    def _start_query(self, coordinator: Coordinator) -> StreamingQuery:
        spark = self._rows.sparkSession
        writer = (
            each_epoch(coordinator.query(self._rows).writeStream, spark, briefly(coordinator.run_epoch))
            .outputMode(self._output_mode)
            .option("checkpointLocation", coordinator.plan.checkpoint)
            .trigger(**self._trigger)
        )
        if self._name is not None:
            writer = writer.queryName(self._name)
        keeps_state, has_rules = may_keep_state(self._rows), bool(self._broadcasts)
        retention, slices = self.checkpoint.retention, coordinator.first_slices()
        with started_with(spark, self.checkpoint.uri, retention, keeps_state, has_rules, slices):
            query = writer.start()
            wait_for_sources(query)
        return query


def write_stream(
    rows: DataFrame,
    sinks: Sink | Output | Sequence[Sink | Output],
    *,
    checkpoint: Checkpoint | str | PathLike[str],
    name: str | None = None,
    guarantee: str = Mode.EXACTLY_ONCE.value,
    dead_letters: Sink | None = None,
    broadcast: Broadcast | Sequence[Broadcast] = (),
) -> StreamWriter:
    """Write a streaming DataFrame to one or several sinks, decided together, epoch by epoch.

    Use it where ``df.writeStream`` stands; `StreamWriter.start` returns Spark's own ``StreamingQuery``. Several sinks
    get the same rows unless they are wrapped in `Output`. Rows that a sink's target refuses go to ``dead_letters``, in
    the same epoch; without it they fail the epoch. ``broadcast`` are the rules that the rows were made with,
    `state.Broadcast`, one or several: their control streams become sources of the query. Raises `ConfigError` at once
    if the declaration cannot work.
    """
    states = broadcasts_of(broadcast)
    controls = bound(states, rows.sparkSession) if states and rows.isStreaming else {}
    rows = rides_along(rows, list(controls.values()))
    return StreamWriter(
        rows, sinks, checkpoint, name, guarantee, frames=controls, dead_letters=dead_letters, broadcasts=states
    )


def driver() -> dict[str, Any]:
    """Who drives, for people who look into the journal."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def mode_of(guarantee: str) -> Mode:
    try:
        return Mode(guarantee)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise ConfigError(f"guarantee {guarantee!r} is unknown: needed one of {known}") from None


def _checked_name(name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ConfigError(f"a job's name is a text that is not empty, found {name!r}")
    return name


def _location(journal: Journal) -> str:
    """The checkpoint as the journal's store found it: absolute, and on the file system that Spark takes by default."""
    return journal.store.locate("job.json").removesuffix(f"/{JOURNAL_FOLDER}/job.json")


def _lowered(output: Output, journal: Journal, spark: SparkSession) -> TransactionalSink[Any]:
    if isinstance(output.sink, TransactionalSink):
        return output.sink
    lowered = lower(output.sink, _staging(journal, output))
    if isinstance(lowered, StagedSink) and lowered.sink.on_executors:
        lowered.executors = Executors(spark)
    return lowered


def _staging(journal: Journal, output: Output) -> Path:
    """A sink that cannot prepare keeps its decided rows beside the journal, where every worker must reach them."""
    local = local_path(_location(journal))
    if local is None:
        raise ConfigError(
            f"the sink {output.name!r} stages its rows beside the checkpoint, which must be a path that all workers "
            f"share, found {_location(journal)}"
        )
    return local / JOURNAL_FOLDER / "staging" / output.name
