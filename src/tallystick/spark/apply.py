"""The commit of sinks that are applied: one Spark job after the decision, a task for every decided slice.

Each task applies one slice from its staged file, so that rows go to the server from where the workers are, many
slices at once, and the driver sees none of them. A task that is run twice, or a job that is run again, applies once
more: what that means is the promise of the sink (`sinks/staged.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException

from tallystick.errors import SinkError
from tallystick.records import Json, Outcome
from tallystick.sinks.staged import Answer, StagedSink
from tallystick.spark.prepare import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ANSWER_SCHEMA = "number long, outcome string, why string"


@dataclass(frozen=True)
class ApplyTask:
    """What ``mapInArrow`` runs: the rows are the numbers of the committables."""

    sink: StagedSink
    committables: Sequence[Json]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome, why = self.sink.apply_one(self.committables[number])
                yield pa.RecordBatch.from_pydict({"number": [number], "outcome": [outcome.value], "why": [why]})


class Executors:
    """Driver: how a `StagedSink` reaches them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, sink: StagedSink, committables: Sequence[Json]) -> list[Answer]:
        """A worker or an executor that dies is no reason to stop: what is decided is asked for again."""
        count = len(committables)
        numbers = self._spark.range(0, count, 1, max(1, count))
        try:
            rows = numbers.mapInArrow(ApplyTask(sink, list(committables)), ANSWER_SCHEMA).collect()
        except PythonException as failure:
            raise SinkError(
                f"{sink.target}: applying a decided slice failed: {cause_of(str(failure))}. nothing was dropped: "
                "remove the cause and start the job again, which goes on committing"
            ) from failure
        except (PySparkException, Py4JError) as failure:
            return [(Outcome.RETRY_LATER, cause_of(str(failure)))] * count
        answers = {row.number: (Outcome(row.outcome), row.why) for row in rows}
        return [answers[number] for number in range(count)]
