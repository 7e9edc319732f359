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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tallystick.checkpoint import Checkpoint
from tallystick.errors import CheckpointInUseError, ConfigError
from tallystick.guarantees import SourceFacts
from tallystick.journal import Journal
from tallystick.journal.stores import open_store
from tallystick.planner import derive
from tallystick.protocol import Finished
from tallystick.records import Attempt, Mode
from tallystick.sinks.base import Sink, TransactionalSink
from tallystick.sinks.staged import lower
from tallystick.spark.coordinator import Coordinator, Plan
from tallystick.spark.offsets import local_path
from tallystick.spark.outputs import Output, outputs_of, projection
from tallystick.spark.session import check_session
from tallystick.spark.state import may_keep_state

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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
    ) -> None:
        self.outputs = outputs_of(sinks)
        self.checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        self.mode = mode_of(guarantee)
        self.explanation = derive(
            sources or {},
            self.mode,
            {output.name: (output.sink.facts, output.sink.target) for output in self.outputs},
        )
        if self.explanation.findings:
            finding = self.explanation.findings[0]
            raise ConfigError(f"{self.mode.value} cannot hold: {finding.why}. {finding.fix}")
        if not rows.isStreaming:
            raise ConfigError("write_stream needs a streaming DataFrame, found a batch one: read it with readStream")
        rows.select(*projection(rows, self.outputs))
        self._rows = rows
        self._name = _checked_name(name)
        self._output_mode = "append"
        self._trigger: dict[str, Any] = {}
        self.trigger(processingTime=f"{round(self.checkpoint.interval_s * 1000)} milliseconds")
        self._on_finished: Callable[[Attempt, Finished], None] | None = None
        self.coordinator: Coordinator | None = None

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

    def start(self) -> StreamingQuery:
        """Check everything, take the job over, and start the query."""
        spark = self._rows.sparkSession
        for finding in check_session(spark, self.checkpoint.uri, may_keep_state(self._rows)):
            log.warning("%s", finding)
        journal = Journal(open_store(f"{self.checkpoint.uri}/{JOURNAL_FOLDER}", spark))
        if journal.identity() is not None:
            journal.identify(self._name)
        journal.check()
        for output in self.outputs:
            if not isinstance(output.sink, TransactionalSink):
                _staging(journal, output)
        for output in self.outputs:
            output.sink.check()
        if not journal.store.try_lock():
            raise CheckpointInUseError(
                f"another living driver holds {self.checkpoint.uri}: stop it first. two drivers would only fence each "
                "other, so this one did not start; nothing was written"
            )
        try:
            self.coordinator = Coordinator(self._plan(journal), journal)
            query = self._start_query(self.coordinator)
        except BaseException:
            journal.store.unlock()
            raise
        _unlock_when_ended(query, journal)
        return query

    def _plan(self, journal: Journal) -> Plan:
        owner = journal.identify(self._name)
        who = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": round(time.time(), 3),
            "version": version("tallystick"),
            "python": sys.version.split()[0],
            "mode": self.mode.value,
            "sinks": {output.name: output.sink.target for output in self.outputs},
        }
        return Plan(
            job=owner.job,
            job_id=owner.id,
            who=who,
            mode=self.mode,
            checkpoint=_location(journal),
            outputs=self.outputs,
            sinks={output.name: _lowered(output, journal) for output in self.outputs},
            commit_patience_s=self.checkpoint.commit_patience_s,
            on_finished=self._on_finished,
        )

    def _start_query(self, coordinator: Coordinator) -> StreamingQuery:
        writer = (
            self._rows.writeStream.foreachBatch(coordinator.run_epoch)
            .outputMode(self._output_mode)
            .option("checkpointLocation", coordinator.plan.checkpoint)
            .trigger(**self._trigger)
        )
        if self._name is not None:
            writer = writer.queryName(self._name)
        return writer.start()


def write_stream(
    rows: DataFrame,
    sinks: Sink | Output | Sequence[Sink | Output],
    *,
    checkpoint: Checkpoint | str | PathLike[str],
    name: str | None = None,
    guarantee: str = Mode.EXACTLY_ONCE.value,
) -> StreamWriter:
    """Write a streaming DataFrame to one or several sinks, decided together, epoch by epoch.

    Use it where ``df.writeStream`` stands; `StreamWriter.start` returns Spark's own ``StreamingQuery``. Several sinks
    get the same rows unless they are wrapped in `Output`. Raises `ConfigError` at once if the declaration cannot work.
    """
    return StreamWriter(rows, sinks, checkpoint, name, guarantee)


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


def _lowered(output: Output, journal: Journal) -> TransactionalSink[Any]:
    if isinstance(output.sink, TransactionalSink):
        return output.sink
    return lower(output.sink, _staging(journal, output))


def _staging(journal: Journal, output: Output) -> Path:
    """A sink that cannot prepare keeps its decided rows beside the journal, where every worker must reach them."""
    local = local_path(_location(journal))
    if local is None:
        raise ConfigError(
            f"the sink {output.name!r} stages its rows beside the checkpoint, which must be a path that all workers "
            f"share, found {_location(journal)}"
        )
    return local / JOURNAL_FOLDER / "staging" / output.name


def _unlock_when_ended(query: StreamingQuery, journal: Journal) -> None:
    """Let go of the checkpoint as soon as the query ends, however it ends, so that the next start can have it."""

    def wait() -> None:
        try:
            query.awaitTermination()
        except (PySparkException, Py4JError, OSError) as ending:
            log.debug("the query ended with %s", type(ending).__name__)
        finally:
            journal.store.unlock()

    threading.Thread(target=wait, name=f"tallystick-{query.runId}", daemon=True).start()
